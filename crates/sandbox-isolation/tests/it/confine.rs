//! What programs in a cell may ask of the kernel, and where they may write.
//!
//! Every refusal has its control: the same program without isolation is not refused, or not for this reason.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;

use nix::libc;
use rustix::fs::{AtFlags, Mode, mkdirat, unlinkat};
use sandbox_isolation::{Cell, CellSpec, ExitStatus, Maker, Privilege};

use crate::support::{cell, output, python, run, shell, strict_cell};

/// Calls that are refused whatever their arguments, with the error.
const REFUSED: [(libc::c_long, i32); 76] = [
    (libc::SYS_clone3, libc::ENOSYS),
    (libc::SYS_mount, libc::EPERM),
    (libc::SYS_umount2, libc::EPERM),
    (libc::SYS_pivot_root, libc::EPERM),
    (libc::SYS_chroot, libc::EPERM),
    (libc::SYS_move_mount, libc::EPERM),
    (libc::SYS_open_tree, libc::EPERM),
    (libc::SYS_fsopen, libc::EPERM),
    (libc::SYS_fsconfig, libc::EPERM),
    (libc::SYS_fsmount, libc::EPERM),
    (libc::SYS_fspick, libc::EPERM),
    (libc::SYS_mount_setattr, libc::EPERM),
    (libc::SYS_open_by_handle_at, libc::EPERM),
    (libc::SYS_fanotify_init, libc::EPERM),
    (libc::SYS_fanotify_mark, libc::EPERM),
    (libc::SYS_quotactl, libc::EPERM),
    (libc::SYS_quotactl_fd, libc::EPERM),
    (libc::SYS_swapon, libc::EPERM),
    (libc::SYS_swapoff, libc::EPERM),
    (libc::SYS_setns, libc::EPERM),
    (libc::SYS_ptrace, libc::EPERM),
    (libc::SYS_process_vm_readv, libc::EPERM),
    (libc::SYS_process_vm_writev, libc::EPERM),
    (libc::SYS_kcmp, libc::EPERM),
    (libc::SYS_pidfd_getfd, libc::EPERM),
    (libc::SYS_process_mrelease, libc::EPERM),
    (libc::SYS_move_pages, libc::EPERM),
    (libc::SYS_migrate_pages, libc::EPERM),
    (libc::SYS_keyctl, libc::EPERM),
    (libc::SYS_add_key, libc::EPERM),
    (libc::SYS_request_key, libc::EPERM),
    (libc::SYS_kexec_load, libc::EPERM),
    (libc::SYS_kexec_file_load, libc::EPERM),
    (libc::SYS_init_module, libc::EPERM),
    (libc::SYS_finit_module, libc::EPERM),
    (libc::SYS_delete_module, libc::EPERM),
    (libc::SYS_reboot, libc::EPERM),
    (libc::SYS_acct, libc::EPERM),
    (libc::SYS_syslog, libc::EPERM),
    (libc::SYS_vhangup, libc::EPERM),
    (libc::SYS_sethostname, libc::EPERM),
    (libc::SYS_setdomainname, libc::EPERM),
    (libc::SYS_settimeofday, libc::EPERM),
    (libc::SYS_clock_settime, libc::EPERM),
    (libc::SYS_adjtimex, libc::EPERM),
    (libc::SYS_clock_adjtime, libc::EPERM),
    (libc::SYS_bpf, libc::EPERM),
    (libc::SYS_perf_event_open, libc::EPERM),
    (libc::SYS_userfaultfd, libc::EPERM),
    (libc::SYS_io_uring_setup, libc::EPERM),
    (libc::SYS_io_uring_enter, libc::EPERM),
    (libc::SYS_io_uring_register, libc::EPERM),
    (libc::SYS_get_mempolicy, libc::ENOSYS),
    (libc::SYS_set_mempolicy, libc::ENOSYS),
    (libc::SYS_mbind, libc::ENOSYS),
    (libc::SYS_set_mempolicy_home_node, libc::ENOSYS),
    (libc::SYS_memfd_secret, libc::ENOSYS),
    (libc::SYS_io_setup, libc::ENOSYS),
    (libc::SYS_lookup_dcookie, libc::ENOSYS),
    (libc::SYS_nfsservctl, libc::ENOSYS),
    // With all bits set, these ask for what their rules refuse.
    (libc::SYS_unshare, libc::EPERM),
    (libc::SYS_clone, libc::EPERM),
    (libc::SYS_socket, libc::EAFNOSUPPORT),
    (libc::SYS_socketpair, libc::EAFNOSUPPORT),
    (libc::SYS_setpriority, libc::EPERM),
    (libc::SYS_ioprio_set, libc::EPERM),
    // Numbers that no kernel of today has.
    (500, libc::ENOSYS),
    (600, libc::ENOSYS),
    (0x4000_0000, libc::ENOSYS),
    (0x4000_0027, libc::ENOSYS),
    (463, libc::ENOSYS),
    (464, libc::ENOSYS),
    (465, libc::ENOSYS),
    (466, libc::ENOSYS),
    (467, libc::ENOSYS),
    (468, libc::ENOSYS),
];

/// Without arguments there is nothing to make them harmless.
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
async fn what_is_refused_is_refused_by_the_filter() {
    let calls: Vec<_> = REFUSED.iter().map(|(number, _)| *number).collect();
    let found = errors(&strict_cell().await, &calls).await;
    for (number, error) in REFUSED {
        assert_eq!(found[&number], error, "call {number}");
    }
    let maker = Maker::start().await.unwrap();
    let harmless: Vec<_> =
        calls.into_iter().filter(|number| !NEVER_TRIED_OUTSIDE.contains(number)).collect();
    let control = errors(&maker.cell(&CellSpec::off()).await.unwrap(), &harmless).await;
    let differ = REFUSED.iter().filter(|(number, error)| control.get(number) != Some(error));
    // An ordinary user may not make some of them anyway, and some kernels do not have all.
    let least = if maker.privilege() == Privilege::Root { 50 } else { 30 };
    assert!(differ.count() >= least, "{control:?}");
}

/// Runs Python that defines `call(number, *arguments)`, which gives the error or 0.
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
async fn arguments_are_looked_at() {
    let script = format!(
        "print(call({unshare}, 0x10000000), call({unshare}, 0x400),\n\
               call({socket}, 16, 3, 0), call({socket}, 40, 1, 0), call({socket}, 2, 1, 0),\n\
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
    let maker = Maker::start().await.unwrap();
    // Descriptors of one's own, beside those of the process, escape the count of an ordinary user's cell.
    let own_files = if maker.privilege() == Privilege::Root { 0 } else { 1 };
    assert_eq!(strict, format!("1 {own_files} 95 97 0 93 93 1 0 1 1 1 1 0 1 22\n"));
    let off = calls(&maker.cell(&CellSpec::off()).await.unwrap(), &script).await;
    let off: Vec<_> = off.split_whitespace().collect();
    // Netlink and the execution domain work there, and /dev/null is no terminal.
    assert_eq!((off[2], off[7], off[9], off[10], off[11]), ("0", "0", "25", "25", "25"));
}

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn another_numbering_of_calls_ends_the_program() {
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
async fn every_program_says_that_it_is_confined() {
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
    // Everybody may write there, as far as its mode goes.
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
async fn ordinary_life_goes_on() {
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
