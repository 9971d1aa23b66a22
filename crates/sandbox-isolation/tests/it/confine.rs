//! Tests of the system calls that programs in a cell may make, and of the paths they may write.
//!
//! Every refusal has its control: the same program without isolation is not refused, or not with this error.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;

use nix::libc;
use rustix::fs::{AtFlags, Mode, mkdirat, unlinkat};
use sandbox_isolation::{Cell, CellLauncher, CellSpec, ExitStatus, Privilege};

use crate::support::{cell, output, python, run, shell, strict_cell};

/// Calls with their names and errors.
macro_rules! with_errors {
    ($($error:ident: $($number:ident)*;)*) => {
        &[$($((stringify!($number), libc::$number, libc::$error),)*)*]
    };
}

/// Calls that are refused whatever their arguments.
const REFUSED: &[(&str, libc::c_long, i32)] = with_errors! {
    ENOSYS: SYS_clone3 SYS_get_mempolicy SYS_set_mempolicy SYS_mbind SYS_set_mempolicy_home_node
        SYS_memfd_secret SYS_io_setup SYS_lookup_dcookie SYS_nfsservctl;
    EPERM: SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_move_mount SYS_open_tree
        SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick SYS_mount_setattr SYS_open_by_handle_at
        SYS_fanotify_init SYS_fanotify_mark SYS_quotactl SYS_quotactl_fd SYS_swapon SYS_swapoff
        SYS_setns SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_kcmp SYS_pidfd_getfd
        SYS_process_mrelease SYS_move_pages SYS_migrate_pages SYS_keyctl SYS_add_key
        SYS_request_key SYS_kexec_load SYS_kexec_file_load SYS_init_module SYS_finit_module
        SYS_delete_module SYS_reboot SYS_acct SYS_syslog SYS_vhangup SYS_sethostname
        SYS_setdomainname SYS_settimeofday SYS_clock_settime SYS_adjtimex SYS_clock_adjtime
        SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_io_uring_setup SYS_io_uring_enter
        SYS_io_uring_register;
    EOPNOTSUPP: SYS_setxattr SYS_lsetxattr SYS_fsetxattr;
};

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[(&str, libc::c_long, i32)] = with_errors! {
    EPERM: SYS_ioperm SYS_iopl SYS_modify_ldt SYS_uselib SYS_ustat SYS_sysfs SYS__sysctl;
};
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[(&str, libc::c_long, i32)] = &[];

/// Calls whose rules refuse arguments with all bits set.
const REFUSED_WITH_ALL_BITS: &[(&str, libc::c_long, i32)] = with_errors! {
    EPERM: SYS_unshare SYS_clone SYS_setpriority SYS_ioprio_set;
    EAFNOSUPPORT: SYS_socket SYS_socketpair;
};

/// Numbers that no current kernel has.
const UNKNOWN: [libc::c_long; 10] =
    [463, 464, 465, 466, 467, 468, 500, 600, 0x4000_0000, 0x4000_0027];

/// Returns the call numbers, with the error of each.
fn all_refused() -> BTreeMap<libc::c_long, i32> {
    let named = [REFUSED, REFUSED_HERE, REFUSED_WITH_ALL_BITS].concat();
    let named = named.into_iter().map(|(_, number, error)| (number, error));
    named.chain(UNKNOWN.map(|number| (number, libc::ENOSYS))).collect()
}

/// These calls have no argument that could make them harmless.
const NEVER_TRIED_OUTSIDE: [libc::c_long; 2] = [libc::SYS_vhangup, libc::SYS_clone];

/// Makes calls whose arguments have all bits set, and prints the error of each.
async fn errors(cell: &Cell, calls: &[libc::c_long]) -> BTreeMap<libc::c_long, i32> {
    let calls: Vec<_> = calls.iter().map(ToString::to_string).collect();
    let script = format!(
        "import ctypes\n\
         syscall = ctypes.CDLL(None, use_errno=True).syscall\n\
         for number in ({},):\n  \
           ctypes.set_errno(0)\n  \
           result = syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)\n  \
           print(number, ctypes.get_errno() if result == -1 else 0)\n",
        calls.join(",")
    );
    let text = output(cell, python(&script)).await;
    let line = |line: &str| {
        let (number, error) = line.split_once(' ').unwrap();
        (number.parse().unwrap(), error.parse().unwrap())
    };
    text.lines().map(line).collect()
}

#[tokio::test]
async fn the_filter_causes_the_refusals() {
    let refused = all_refused();
    let calls: Vec<_> = refused.keys().copied().collect();
    assert_eq!(errors(&strict_cell().await, &calls).await, refused);
    let launcher = CellLauncher::start().await.unwrap();
    let harmless: Vec<_> =
        calls.into_iter().filter(|number| !NEVER_TRIED_OUTSIDE.contains(number)).collect();
    let control = errors(&launcher.cell(&CellSpec::off()).await.unwrap(), &harmless).await;
    let differ = refused.iter().filter(|(number, error)| control.get(number) != Some(error));
    // An ordinary user may not make some of these calls anyway, and some kernels lack some.
    let least = if launcher.privilege() == Privilege::Root { 50 } else { 30 };
    assert!(differ.count() >= least, "{control:?}");
}

/// A rule without conditions that is not tried in a cell is missing above.
#[cfg(target_arch = "x86_64")]
#[test]
fn every_rule_without_conditions_is_tried() {
    const RULES: &str = include_str!(
        "../../src/policy/seccomp/snapshots/sandbox_isolation__policy__seccomp__tests__the_rules_are_these.snap"
    );
    let of_every_cell = RULES.split("\n---\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let always = of_every_cell.lines().filter_map(|line| line.split_once(": Always returns "));
    let mut always: Vec<_> = always.map(|(name, _)| name).collect();
    let mut tried: Vec<_> = [REFUSED, REFUSED_HERE].concat().iter().map(|call| call.0).collect();
    always.sort_unstable();
    tried.sort_unstable();
    assert_eq!(tried, always);
}

/// Runs Python that defines `call(number, *arguments)`, which returns the error or 0.
async fn calls(cell: &Cell, script: &str) -> String {
    let prelude = "import ctypes, os\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        def call(number, *arguments):\n  \
          ctypes.set_errno(0)\n  \
          r = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments], *[ctypes.c_long(0)] * (6 - len(arguments)))\n  \
          return ctypes.get_errno() if r == -1 else 0\n";
    output(cell, python(&format!("{prelude}{script}"))).await
}

#[tokio::test]
async fn arguments_are_checked() {
    let script = format!(
        "print(call({unshare}, 0x10000000), call({unshare}, 0x400),\n\
               call({socket}, 16, 3, 4), call({socket}, 40, 1, 0), call({socket}, 2, 1, 0),\n\
               call({socket}, 2, 1, 132), call({socket}, 2, 1, 262),\n\
               call({personality}, 0x40000), call({personality}, 0xffffffff),\n\
               call({ioctl}, 0, 0x5412), call({ioctl}, 0, 0x541c), call({ioctl}, 0, 0x5423),\n\
               call({prlimit}, 1, 7), call({prlimit}, 0, 7),\n\
               call({affinity}, 1), call({affinity}, 0))",
        unshare = libc::SYS_unshare,
        socket = libc::SYS_socket,
        personality = libc::SYS_personality,
        ioctl = libc::SYS_ioctl,
        prlimit = libc::SYS_prlimit64,
        affinity = libc::SYS_sched_setaffinity,
    );
    let strict = calls(&strict_cell().await, &script).await;
    let launcher = CellLauncher::start().await.unwrap();
    // A thread's own descriptor table would escape the monitor of an ordinary user's cell.
    let own_files = if launcher.privilege() == Privilege::Root { 0 } else { 1 };
    assert_eq!(strict, format!("1 {own_files} 95 97 0 93 93 1 0 1 1 1 1 0 1 22\n"));
    let off = calls(&launcher.cell(&CellSpec::off()).await.unwrap(), &script).await;
    let off: Vec<_> = off.split_whitespace().collect();
    // Netlink and the execution domain work there, and /dev/null is not a terminal.
    assert_eq!((off[2], off[7], off[9], off[10], off[11]), ("0", "0", "25", "25", "25"));
}

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn another_call_numbering_kills_the_program() {
    // int 0x80 with eax = 20, which is getpid for 32-bit programs.
    let script = "import ctypes, mmap\n\
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n\
        page.write(bytes.fromhex('b814000000cd80c3'))\n\
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n\
        print('before', flush=True)\n\
        ctypes.CFUNCTYPE(ctypes.c_int)(address)()\n\
        print('after')\n";
    let (exit, text) = run(&strict_cell().await, python(script)).await;
    assert_eq!((exit.status, text.as_str()), (ExitStatus::Signal(libc::SIGSYS), "before\n"));
}

#[tokio::test]
async fn every_program_reports_that_it_is_confined() {
    let cell = strict_cell().await;
    let script = "grep -hE '^(Seccomp|NoNewPrivs):' /proc/self/status; \
                  sh -c 'grep -h ^Seccomp: /proc/self/status'";
    assert_eq!(output(&cell, shell(script)).await, "NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp:\t2\n");
    let layers = cell.layers();
    for layer in ["user-namespace", "private-root", "seccomp", "landlock", "no-capabilities"] {
        assert!(layers.contains(&layer), "{layers:?}");
    }
    let off = cell_off().await;
    assert_eq!(output(&off, shell("grep ^Seccomp: /proc/self/status")).await, "Seccomp:\t0\n");
    assert!(!off.layers().contains(&"seccomp") && !off.layers().contains(&"user-namespace"));
}

async fn cell_off() -> Cell {
    cell(&CellSpec::off()).await
}

#[tokio::test]
async fn the_root_directory_is_written_from_outside_only() {
    let cell = strict_cell().await;
    // Every user may write there, by its mode.
    assert_eq!(output(&cell, shell("stat -c %a /")).await, "1777\n");
    let (exit, text) = run(&cell, shell("mkdir /made")).await;
    assert_eq!(exit.status, ExitStatus::Code(1), "{text}");
    assert!(text.contains("Permission denied"), "{text}");
    mkdirat(cell.root(), "made", Mode::RWXU).unwrap();
    assert_eq!(output(&cell, shell("cd / && echo m*")).await, "made\n");
    unlinkat(cell.root(), "made", AtFlags::REMOVEDIR).unwrap();
}

#[tokio::test]
async fn a_directory_of_the_host_that_leaks_in_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(directory.path().join("there"), "text").unwrap();
    fs::set_permissions(directory.path().join("there"), fs::Permissions::from_mode(0o666)).unwrap();
    let script = "cd /proc/self/fd/0 && cat there; echo x > there || echo refused; \
                  echo x > new || echo refused; mkdir d || echo refused; mv there th || echo refused";
    let leaking = || {
        let mut spec = shell(script);
        let opened: OwnedFd = fs::File::open(directory.path()).unwrap().into();
        spec.stdin = Some(opened);
        spec
    };
    let (_, text) = run(&strict_cell().await, leaking()).await;
    assert_eq!((text.matches("refused").count(), text.starts_with("text")), (4, true), "{text}");
    let (_, text) = run(&cell_off().await, leaking()).await;
    assert_eq!(text, "text");
}

#[tokio::test]
async fn programs_of_one_cell_reach_each_other() {
    let cell = strict_cell().await;
    let script = "import os, signal, socket, sys\n\
        s = socket.socket(socket.AF_UNIX); s.bind('\\0meeting'); s.listen()\n\
        print(os.getpid(), flush=True); c, _ = s.accept(); c.recv(1)\n\
        signal.pause()";
    let (server, pid) = crate::support::start_until_line(&cell, python(script)).await;
    let client = format!(
        "import os, signal, socket\n\
         c = socket.socket(socket.AF_UNIX); c.connect('\\0meeting'); c.send(b'x')\n\
         os.kill({pid}, signal.SIGTERM)"
    );
    output(&cell, python(&client)).await;
    assert_eq!(server.wait().await.unwrap().status, ExitStatus::Signal(libc::SIGTERM));
}

#[tokio::test]
async fn ordinary_programs_still_work() {
    let script = "
import asyncio, concurrent.futures, ctypes, mmap, multiprocessing, os, pty, shutil, signal
import socket, sqlite3, ssl, subprocess, sys, tempfile, threading, time
from multiprocessing import shared_memory

def square(x): return x * x

if __name__ == '__main__':
    os.chdir('/workspace')
    assert subprocess.run('echo a | tr a b', shell=True, capture_output=True).stdout == b'b\\n'
    assert os.waitstatus_to_exitcode(os.system('exit 3')) == 3
    pid = os.posix_spawn('/bin/true', ['true'], {}); os.waitpid(pid, 0)
    threads = [threading.Thread(target=square, args=(i,)) for i in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    for method in ('fork', 'spawn', 'forkserver'):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(square, range(4)) == [0, 1, 4, 9]
    q = multiprocessing.Queue(); q.put(1); assert q.get() == 1
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        assert list(pool.map(square, [3])) == [9]
    async def main():
        p = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)
        assert (await p.communicate(b'x'))[0] == b'x'
        server = await asyncio.start_server(lambda r, w: w.close(), '127.0.0.1', 0)
        port = server.sockets[0].getsockname()[1]
        r, w = await asyncio.open_connection('localhost', port)
        assert await r.read() == b''
    asyncio.run(main())
    s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())
    u = socket.socket(socket.AF_UNIX); u.bind('/tmp/u'); u.listen()
    socket.socket(socket.AF_UNIX).connect('/tmp/u')
    socket.socketpair()
    db = sqlite3.connect('/workspace/db'); db.execute('pragma journal_mode=wal')
    db.execute('create table t(x)'); db.commit()
    with tempfile.TemporaryDirectory() as d: open(d + '/f', 'w').close()
    os.makedirs('a/b'); open('a/f', 'w').close(); os.rename('a/f', 'a/b/f')
    os.rename('a', '/tmp/a'); os.link('/tmp/a/b/f', '/tmp/link'); os.truncate('/tmp/a/b/f', 9)
    os.symlink('f', '/tmp/a/s'); os.mkfifo('/tmp/a/fifo'); shutil.rmtree('/tmp/a')
    ssl.create_default_context()
    m = shared_memory.SharedMemory(create=True, size=4096); m.close(); m.unlink()
    mmap.mmap(-1, 4096).close()
    near, far = pty.openpty(); os.ttyname(far); os.write(near, b'x'); os.get_terminal_size(far)
    open('/dev/null', 'w').write('x'); open('/dev/stdout', 'w').close()
    assert len(os.sched_getaffinity(0)) >= 1; os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.nice(1); signal.alarm(0); time.sleep(0)
    open('/proc/self/oom_score_adj', 'w').write('500')
    libc, names = ctypes.CDLL(None), ctypes.c_void_p()
    assert libc.getifaddrs(ctypes.byref(names)) == 0 and names.value; libc.freeifaddrs(names)
    if shutil.which('gcc'):
        open('t.c', 'w').write('int main(){return 7;}')
        subprocess.run(['gcc', 't.c', '-o', 't'], check=True)
        assert subprocess.run(['./t']).returncode == 7
    fd = os.memfd_create('x'); os.write(fd, open('/bin/true', 'rb').read())
    assert subprocess.run(['/proc/self/fd/%d' % fd], pass_fds=[fd]).returncode == 0
    print('fine')
";
    let write = format!("cat > /workspace/life.py <<'END'\n{script}\nEND\n");
    let cell = strict_cell().await;
    output(&cell, shell(&write)).await;
    let (exit, text) =
        run(&cell, crate::support::program(["/usr/bin/python3", "/workspace/life.py"])).await;
    assert_eq!((exit.status, text.as_str()), (ExitStatus::Code(0), "fine\n"));
}
