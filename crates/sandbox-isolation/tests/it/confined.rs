//! Cells without namespaces, of which seccomp and Landlock are what is left.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use sandbox_isolation::{Cell, CellKind, CellSpec, ExitStatus};

use crate::support::{
    cell, eventually, is_alive, output, private_directory, processes_with, python, run, shell,
    start_until_line, unique_sleep,
};

async fn confined() -> Cell {
    cell(&CellSpec::confined()).await
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
    assert_eq!(output(&confined().await, shell(&script)).await, "x\nrefused\nrefused\nrefused\n");
    assert_eq!(output(&off().await, shell(&script)).await, "x\n");
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
    let confined = confined().await;
    let (_, text) = run(&confined, shell(&script)).await;
    assert!(!text.contains("canary") && !text.contains("secret\n"), "{text}");
    assert_eq!(output(&off().await, shell(&format!("cat {}", secret.display()))).await, "canary");
    let spec = CellSpec::confined().bind(outside.path());
    assert_eq!(
        output(&cell(&spec).await, shell(&format!("cat {}", secret.display()))).await,
        "canary"
    );
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
    assert_eq!(output(&confined().await, python(&script)).await, "1\n1\n1\n1\nFalse False ");
    let expected = "made\nmade\nmade\nconnected\nTrue True ";
    assert_eq!(output(&off().await, python(&script)).await, expected);
    let open = CellSpec { no_network: false, ..CellSpec::confined() };
    assert!(output(&cell(&open).await, python(&script)).await.starts_with("made\nmade\n95\n"));
}

#[tokio::test]
async fn processes_of_the_user_are_left_alone() {
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
    let (_, inside) = run(&confined().await, python(&script)).await;
    let (_, outside) = run(&off().await, python(&script)).await;
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(inside, "1\n13\n1\n1\n");
    assert_eq!(outside, "done\ndone\ndone\ndone\n");
}

#[tokio::test]
async fn it_has_no_capability_and_says_what_it_has() {
    let cell = confined().await;
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
    let cell = confined().await;
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
