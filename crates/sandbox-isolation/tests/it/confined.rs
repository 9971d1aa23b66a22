//! Tests of cells without namespaces, confined only by seccomp and Landlock.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use sandbox_isolation::{Cell, CellKind, CellLauncher, CellSpec, Error, ExitStatus};

use crate::support::{
    cell, eventually, is_alive, output, private_directory, processes_with, program, python, run,
    shell, start_until_line, unique_sleep,
};

async fn confined() -> Option<Cell> {
    confined_as(&CellSpec::confined()).await
}

/// Returns `None` for root, which is refused.
async fn confined_as(spec: &CellSpec) -> Option<Cell> {
    if !rustix::process::geteuid().is_root() {
        return Some(cell(spec).await);
    }
    let refused = CellLauncher::start().await.unwrap().cell(spec).await.map(drop);
    let Err(Error::Unavailable { missing, fix }) = &refused else { panic!("{refused:?}") };
    assert!(missing.contains("root") && fix.contains("an ordinary user"), "{missing}: {fix}");
    None
}

async fn off() -> Cell {
    cell(&CellSpec::off()).await
}

#[tokio::test]
async fn only_its_own_directory_is_written() {
    let outside = tempfile::tempdir().unwrap();
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = outside.path().display();
    let script = format!(
        "echo x > own && cat own && mkdir d && mv own d/ && : > /dev/null; \
         for f in {path}/new /tmp/confined-probe /dev/shm/confined-probe; do \
         (echo x > $f) 2>/dev/null && rm $f || echo refused; done"
    );
    assert_eq!(output(&off().await, shell(&script)).await, "x\n");
    let Some(confined) = confined().await else { return };
    assert_eq!(output(&confined, shell(&script)).await, "x\nrefused\nrefused\nrefused\n");
}

#[tokio::test]
async fn files_of_the_user_are_not_read() {
    let outside = tempfile::tempdir().unwrap();
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "canary").unwrap();
    let script = format!(
        "cat {0}; ls {1}; ls /root /home /etc/ssh",
        secret.display(),
        outside.path().display()
    );
    assert_eq!(output(&off().await, shell(&format!("cat {}", secret.display()))).await, "canary");
    let Some(confined) = confined().await else { return };
    let (_, text) = run(&confined, shell(&script)).await;
    assert!(!text.contains("canary") && !text.contains("secret\n"), "{text}");
    let spec = CellSpec::confined().bind(outside.path());
    assert_eq!(
        output(&cell(&spec).await, shell(&format!("cat {}", secret.display()))).await,
        "canary"
    );
}

/// Runs probes in a cell, and returns the result of each: 0, or an error number.
async fn outcomes(cell: &Cell, probes: &str) -> String {
    let script = format!(
        "import os, sys\n\
         def t(f):\n  \
           try: f(); print('0', end=' ')\n  \
           except OSError as e: print(e.errno, end=' ')\n\
         {probes}"
    );
    run(cell, python(&script)).await.1
}

#[tokio::test]
async fn no_file_is_made_set_user_id() {
    let Some(confined) = confined().await else { return };
    let probes = "\
        for mode in (0o755, 0o4755, 0o2755):\n  \
          t(lambda: os.open(f'made-{mode}', os.O_CREAT | os.O_WRONLY, mode))\n  \
          t(lambda: os.mknod(f'node-{mode}', 0o100000 | mode))\n";
    assert_eq!(outcomes(&confined, probes).await, "0 0 1 1 1 1 ");
    assert_eq!(outcomes(&off().await, probes).await, "0 0 0 0 0 0 ");
}

#[tokio::test]
async fn files_of_the_user_are_not_truncated() {
    let Some(confined) = confined().await else { return };
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("file").display().to_string();
    let bound = tempfile::tempdir().unwrap();
    let shown = bound.path().join("file").display().to_string();
    for path in [&path, &shown] {
        fs::write(path, "of the user").unwrap();
    }
    let spec = CellSpec::confined().bind(bound.path());
    let probes = format!(
        "for path in [{path:?}, {shown:?}]:\n  \
           t(lambda: os.truncate(path, 0))\n  \
           t(lambda: os.open(path, os.O_RDONLY | os.O_TRUNC))\n  \
           t(lambda: os.open(path, os.O_WRONLY | os.O_TRUNC))\n"
    );
    for cell in [confined, cell(&spec).await] {
        assert_eq!(outcomes(&cell, &probes).await, "13 13 13 13 13 13 ");
        assert_eq!(fs::read_to_string(&path).unwrap(), "of the user");
        assert_eq!(fs::read_to_string(&shown).unwrap(), "of the user");
        // The controls: the cell's own file may be emptied, and outside a cell this user may empty the others.
        let own = "open('f', 'w').write('x'); os.truncate('f', 0); t(lambda: os.open('f', os.O_RDONLY | os.O_TRUNC))";
        assert_eq!(outcomes(&cell, own).await, "0 ");
    }
    assert_eq!(outcomes(&off().await, &probes).await, "0 0 0 0 0 0 ");
}

#[tokio::test]
async fn nothing_is_written_below_proc() {
    let Some(confined) = confined().await else { return };
    let mut other = std::process::Command::new("/bin/sleep").arg(unique_sleep()).spawn().unwrap();
    let pid = other.id();
    let probes = format!(
        "for pid in [{pid}, 'self']:\n  \
           for name in ['oom_score_adj', 'coredump_filter', 'clear_refs']:\n    \
             t(lambda: os.open(f'/proc/{{pid}}/{{name}}', os.O_WRONLY))\n\
         t(lambda: os.open('/proc/self/comm', os.O_RDWR))\n\
         t(lambda: open('/proc/{pid}/cmdline').read())\n\
         t(lambda: open('/proc/sys/kernel/core_pattern').read())\n\
         t(lambda: open('/proc/self/status').read())\n\
         t(lambda: open('/dev/stderr', 'w'))\n"
    );
    let (outside, inside) =
        (outcomes(&off().await, &probes).await, outcomes(&confined, &probes).await);
    let settings = "import glob\nfor path in glob.glob('/proc/sys/**', recursive=True):\n  \
         if os.path.isfile(path):\n    \
           try: os.close(os.open(path, os.O_WRONLY)); print(path)\n    \
           except OSError: pass\n";
    let written = outcomes(&confined, settings).await;
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(inside, "13 13 13 13 13 13 13 0 0 0 0 ");
    assert_eq!(outside, "0 0 0 0 0 0 0 0 0 0 0 ");
    assert_eq!(written, "");
}

#[tokio::test]
async fn other_terminals_of_the_user_are_out_of_reach_and_its_own_works() {
    let Some(confined) = confined().await else { return };
    let terminal = || {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&near).unwrap();
        unlockpt(&near).unwrap();
        let name = ptsname(&near, Vec::new()).unwrap().into_string().unwrap();
        (near, name)
    };
    let (_other, name) = terminal();
    let probes = format!(
        "t(lambda: os.open({name:?}, os.O_RDONLY | os.O_NOCTTY))\n\
         t(lambda: os.open({name:?}, os.O_WRONLY | os.O_NOCTTY))\n\
         t(lambda: os.listdir('/dev/pts'))\n\
         t(os.openpty)\n"
    );
    let (outside, inside) =
        (outcomes(&off().await, &probes).await, outcomes(&confined, &probes).await);
    assert_eq!((outside.as_str(), inside.as_str()), ("0 0 0 0 ", "13 13 13 13 "));
    // The terminal on which a program is started works completely.
    let (near, name) = terminal();
    let far = fs::File::options().read(true).write(true).open(&name).unwrap();
    let script = "import os, sys, termios, tty\n\
         assert all(os.isatty(fd) for fd in (0, 1, 2)); tty.setcbreak(0)\n\
         own = os.open('/dev/tty', os.O_RDWR); os.write(own, os.ttyname(0).encode() + b' ready')\n\
         termios.tcgetattr(own); os.get_terminal_size()\n\
         assert os.read(0, 1) == b'q'\n";
    let mut spec = program(["/usr/bin/python3", "-c", script]);
    spec.controlling_terminal = true;
    for stream in [&mut spec.stdin, &mut spec.stdout, &mut spec.stderr] {
        *stream = Some(far.try_clone().unwrap().into());
    }
    let process = confined.spawn(spec).await.unwrap();
    drop(far);
    let mut output = String::new();
    while !output.ends_with("ready") {
        let mut chunk = [0; 64];
        let count = rustix::io::read(&near, &mut chunk).expect("its output");
        output += &String::from_utf8_lossy(&chunk[..count]);
    }
    rustix::io::write(&near, b"q").unwrap();
    let exit = process.wait().await.unwrap();
    assert!(output.contains(&name), "{output}");
    assert_eq!(exit.status, ExitStatus::Code(0), "{output}");
}

#[tokio::test]
async fn message_queues_of_the_user_are_not_visible() {
    let Some(confined) = confined().await else { return };
    // A key and a name that no other test uses.
    let mark = unique_sleep();
    let digits: String = mark.chars().filter(char::is_ascii_digit).collect();
    let key = digits.bytes().fold(7_u32, |key, digit| key.wrapping_mul(31) + u32::from(digit));
    let key = (key & 0x3fff_ffff) | 1;
    let prelude = format!(
        "import ctypes\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         def c(name, *a):\n  \
           f = getattr(libc, name); f.restype = ctypes.c_long if name == 'shmat' else ctypes.c_int; r = f(*a)\n  \
           if r == -1: raise OSError(ctypes.get_errno(), name)\n  \
           return r\n\
         key, name = {key}, b'/messages-{digits}'\n"
    );
    let made = "t(lambda: c('shmget', key, 4096, 0o1600)); t(lambda: c('semget', key, 1, 0o1600))\n\
         t(lambda: c('msgget', key, 0o1600)); t(lambda: c('mq_open', name, os.O_CREAT | os.O_RDWR, 0o600, 0))\n";
    let reached = "shm, sem, msg = (c('shmget', key, 0, 0), c('semget', key, 0, 0), c('msgget', key, 0)) if 'off' in sys.argv else (0, 0, 0)\n\
         t(lambda: c('shmget', key, 0, 0)); t(lambda: c('semget', key, 0, 0)); t(lambda: c('msgget', key, 0))\n\
         t(lambda: c('shmat', shm, 0, 0o10000)); t(lambda: c('semctl', sem, 0, 12)); t(lambda: c('msgctl', msg, 2, bytes(512)))\n\
         t(lambda: c('mq_open', name, os.O_RDWR))\n";
    let removed = "t(lambda: c('shmctl', c('shmget', key, 0, 0), 0, 0)); t(lambda: c('semctl', c('semget', key, 0, 0), 0, 0))\n\
         t(lambda: c('msgctl', c('msgget', key, 0), 0, 0)); t(lambda: c('mq_unlink', name))\n";
    let with = |probes: &str| format!("{prelude}{probes}");
    let off = off().await;
    let (inside, outside) =
        (outcomes(&confined, &with(made)).await, outcomes(&off, &with(made)).await);
    let held = outcomes(&confined, &with(reached)).await;
    let control = outcomes(&off, &format!("{prelude}sys.argv.append('off')\n{reached}")).await;
    let removed = outcomes(&off, &with(removed)).await;
    assert_eq!((outside.as_str(), inside.as_str()), ("0 0 0 0 ", "38 38 38 38 "));
    assert_eq!((control.as_str(), held.as_str()), ("0 0 0 0 0 0 0 ", "38 38 38 38 38 38 38 "));
    assert_eq!(removed, "0 0 0 0 ");
}

#[tokio::test]
async fn there_is_no_network_and_no_abstract_socket_of_others() {
    let name = format!("confined-{}", std::process::id());
    use std::os::linux::net::SocketAddrExt as _;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let script = format!(
        "import socket\n\
         for family in (2, 10, 16):\n  \
           try: socket.socket(family, 3 if family == 16 else 1); print('made')\n  \
           except OSError as e: print(e.errno)\n\
         try: s = socket.socket(socket.AF_UNIX); s.connect('\\0{name}'); print('connected')\n\
         except OSError as e: print(e.errno)\n\
         socket.socketpair()\n\
         socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
         import sys\n\
         for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):\n  \
           try: socket.socketpair(socket.AF_UNIX, kind); made = True\n  \
           except PermissionError: made = False\n  \
           sys.stderr.write('%s ' % made)\n"
    );
    let expected = "made\nmade\nmade\nconnected\nTrue True ";
    assert_eq!(output(&off().await, python(&script)).await, expected);
    let Some(confined) = confined().await else { return };
    assert_eq!(output(&confined, python(&script)).await, "1\n1\n1\n1\nFalse False ");
    let open = CellSpec { no_network: false, ..CellSpec::confined() };
    assert!(output(&cell(&open).await, python(&script)).await.starts_with("made\nmade\n95\n"));
}

#[tokio::test]
async fn processes_of_the_user_are_left_alone() {
    let Some(confined) = confined().await else { return };
    let mark = unique_sleep();
    let mut other = std::process::Command::new("/bin/sleep")
        .arg(&mark)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pid = other.id();
    let script = format!(
        "import os, resource\n\
         def t(f):\n  \
           try: f(); print('done')\n  \
           except OSError as e: print(e.errno)\n\
         t(lambda: os.kill({pid}, 0))\n\
         t(lambda: open('/proc/{pid}/environ').read())\n\
         t(lambda: resource.prlimit({pid}, resource.RLIMIT_NOFILE))\n\
         t(lambda: os.setpriority(os.PRIO_PROCESS, {pid}, 5))\n"
    );
    let (_, inside) = run(&confined, python(&script)).await;
    let (_, outside) = run(&off().await, python(&script)).await;
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(inside, "1\n13\n1\n1\n");
    assert_eq!(outside, "done\ndone\ndone\ndone\n");
}

#[tokio::test]
async fn it_has_no_capability_and_reports_its_layers() {
    let Some(cell) = confined().await else { return };
    let script =
        "grep -E '^(CapEff|CapPrm|CapInh|NoNewPrivs|Seccomp):' /proc/self/status; unshare -U true";
    let (exit, text) = run(&cell, shell(script)).await;
    let none = "0000000000000000";
    let expected =
        format!("CapInh:\t{none}\nCapPrm:\t{none}\nCapEff:\t{none}\nNoNewPrivs:\t1\nSeccomp:\t2\n");
    assert!(text.starts_with(&expected), "{text}");
    assert_ne!(exit.status, ExitStatus::Code(0), "{text}");
    assert_eq!(
        cell.layers(),
        ["landlock", "seccomp", "rlimits", "no-capabilities", "no-new-privileges"]
    );
    assert_eq!(cell.kind(), CellKind::Confined);
}

#[tokio::test]
async fn it_ends_with_everything_in_it() {
    let Some(cell) = confined().await else { return };
    let (directory, first, mark) = (private_directory(&cell), cell.pid(), unique_sleep());
    let script = format!("(setsid sleep {mark} &) ; echo ready; wait; sleep {mark}");
    let (_process, line) = start_until_line(&cell, shell(&script)).await;
    assert_eq!(line, "ready");
    eventually(Duration::from_secs(5), "both run", || {
        processes_with(&format!("sleep\0{mark}")).len() == 2
    })
    .await;
    drop(cell);
    eventually(Duration::from_secs(5), "all is gone", || {
        processes_with(&mark).is_empty() && !directory.exists() && !is_alive(first)
    })
    .await;
}
