//! Tests of what code in a strict cell can see and do.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use sandbox_isolation::{Bind, CellLauncher, CellSpec, Error, Privilege};

use crate::support::{
    cell, output, program, python, run, shell, start_until_line, status_field, strict_cell,
};

#[tokio::test]
async fn the_root_has_only_what_the_policy_lists() {
    let cell = strict_cell().await;
    let listing = output(&cell, shell("ls -A /")).await;
    let mut names: Vec<_> = listing.split_whitespace().collect();
    names.retain(|name| !name.starts_with("lib") && !matches!(*name, "bin" | "sbin" | "nix"));
    let expected = "data dev etc home proc run sys tmp usr var workspace";
    assert_eq!(names.join(" "), expected);
    assert_eq!(
        output(&cell, shell("ls -A /workspace /tmp /sys /home")).await.matches("sandbox").count(),
        1
    );
}

#[tokio::test]
async fn host_files_are_not_visible() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    fs::write(&secret, "canary").unwrap();
    let cell = strict_cell().await;
    for path in [secret.to_str().unwrap(), "/etc/shadow", "/root", "/oldroot", "/proc/1/root/etc"] {
        let (exit, text) = run(&cell, program(["/bin/ls", path])).await;
        assert_eq!(exit.status.code(), Some(2), "{path}: {text}");
    }
}

#[tokio::test]
async fn system_and_configuration_cannot_be_changed() {
    let cell = strict_cell().await;
    for script in [
        "touch /usr/x",
        "touch /etc/x",
        "echo x >> /etc/passwd",
        "mv /etc /etc2",
        "rm -f /dev/null",
        "mv /usr /usr2",
        "mount -o remount,rw /usr",
        "umount /usr",
        "umount -l /etc",
        "echo 1 > /proc/sys/vm/overcommit_memory",
        "echo b > /proc/sysrq-trigger",
        "printf 'some 1 10000000' > /proc/pressure/cpu",
        "ln /usr/bin/env /workspace/e",
        "chroot / true",
        "hostname other",
        "test -s /proc/keys",
    ] {
        let (exit, text) = run(&cell, shell(script)).await;
        assert_ne!(exit.status.code(), Some(0), "{script}: {text}");
    }
}

#[tokio::test]
async fn own_directories_can_be_written() {
    let cell = strict_cell().await;
    let script = "set -e; for d in /workspace /data /home/sandbox /tmp /var/tmp /run /dev/shm; do \
                  echo x > $d/f; test \"$(cat $d/f)\" = x; done; touch ~/g";
    output(&cell, shell(script)).await;
}

#[tokio::test]
async fn processes_of_the_host_are_not_visible() {
    let cell = strict_cell().await;
    let pids = output(&cell, shell("cd /proc && echo [0-9]*")).await;
    let pids: Vec<u32> = pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids, [1, 2]);
    assert_eq!(output(&cell, shell("echo $PPID")).await, "1\n");
}

#[tokio::test]
async fn the_first_process_cannot_be_read_or_harmed() {
    let cell = strict_cell().await;
    for file in ["environ", "mem", "maps", "fd/3", "root", "cwd", "exe", "ns/mnt"] {
        let script = format!("open('/proc/1/{file}','rb').read()");
        let (exit, text) = run(&cell, python(&script)).await;
        assert_eq!(exit.status.code(), Some(1), "{file}: {text}");
        assert!(text.contains("PermissionError"), "{file}: {text}");
    }
    // Listing and setting its limits is refused as well: the kernel checks the owner of these entries.
    let script = "import os\n\
         for directory in ('fd', 'task/1/fd', 'fdinfo', 'ns', 'map_files'):\n  \
           try: print(directory, os.listdir('/proc/1/' + directory))\n  \
           except PermissionError: pass\n\
         for file in ('oom_score_adj', 'coredump_filter', 'clear_refs', 'sched', 'comm', 'uid_map'):\n  \
           try: os.open('/proc/1/' + file, os.O_WRONLY); print(file)\n  \
           except PermissionError: pass\n\
         os.listdir('/proc/self/fd'); os.open('/proc/self/oom_score_adj', os.O_WRONLY)\n";
    assert_eq!(output(&cell, python(script)).await, "");
    let script =
        "import os,signal\nfor s in range(1, 65):\n  try: os.kill(1, s)\n  except OSError: pass";
    output(&cell, python(script)).await;
    assert_eq!(output(&cell, shell("echo alive")).await, "alive\n");
}

#[tokio::test]
async fn environment_and_descriptors_are_exactly_the_given() {
    let cell = strict_cell().await;
    let text = output(&cell, program(["/usr/bin/env"]).env("A", "b=c\nd")).await;
    assert_eq!(text, "PATH=/usr/local/bin:/usr/bin:/bin\nHOME=/home/sandbox\nA=b=c\nd\n");
    let script = "import os\nprint(sorted(int(n) for n in os.listdir('/proc/self/fd')))";
    assert_eq!(output(&cell, python(script)).await, "[0, 1, 2, 3]\n", "3 is the listing itself");
}

#[tokio::test]
async fn programs_are_an_ordinary_user_inside_and_an_unused_id_outside() {
    let cell = strict_cell().await;
    let identity = cell.identity();
    assert_eq!((identity.uid, identity.gid), (1000, 1000));
    assert_eq!(
        output(&cell, shell("id -u; id -g; id -un; umask; pwd; hostname; echo ~sandbox")).await,
        "1000\n1000\nsandbox\n0022\n/workspace\nsandbox\n/home/sandbox\n"
    );
    let uids = status_field(cell.pid(), "Uid:").unwrap();
    let ids: Vec<u32> = uids.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert!(
        ids.iter().all(|id| *id == ids[0] && *id != 0 && *id != 65534 || rustix_uid() == 65534),
        "{uids}"
    );
    if rustix_uid() == 0 {
        assert_eq!(ids[0], identity.launcher_uid);
        assert_eq!(ids[0], 0x7000_0000 + cell.pid());
    } else {
        assert_eq!(ids[0], rustix_uid());
    }
}

fn rustix_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[tokio::test]
async fn privilege_follows_the_user() {
    let launcher = CellLauncher::start().await.unwrap();
    let expected = if rustix_uid() == 0 { Privilege::Root } else { Privilege::User };
    assert_eq!(launcher.privilege(), expected);
}

#[tokio::test]
async fn programs_have_no_privilege_and_cannot_get_any() {
    let cell = strict_cell().await;
    let status = output(&cell, shell("cat /proc/self/status")).await;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    // A nested user namespace would give every capability back.
    for flags in ["--user", "--user --map-root-user", "--uts", "--net", "--mount", "--pid"] {
        let (exit, text) = run(&cell, shell(&format!("unshare {flags} true"))).await;
        assert_ne!(exit.status.code(), Some(0), "{flags}: {text}");
    }
}

#[tokio::test]
async fn the_first_process_keeps_one_capability_in_its_own_namespace() {
    let cell = strict_cell().await;
    let field = |label| status_field(cell.pid(), label).unwrap();
    assert_eq!(field("CapEff:"), "0000000000200000");
    assert_eq!(field("CapBnd:"), "0000000000000000");
    assert_eq!(field("NoNewPrivs:"), "1");
}

#[tokio::test]
async fn there_is_no_network_but_the_loopback() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let cell = strict_cell().await;
    let script = format!(
        "import socket\n\
         def t(a):\n\
         \x20 s = socket.socket(); s.settimeout(3)\n\
         \x20 try: s.connect(a); return 'connected'\n\
         \x20 except OSError as e: return e.errno\n\
         print(t(('127.0.0.1', {port})), t(('192.0.2.1', 80)))\n\
         l = socket.create_server(('127.0.0.1', 0)); print(t(l.getsockname()))\n\
         print(*[l.split(':')[0].strip() for l in open('/proc/net/dev') if ':' in l])\n"
    );
    let text = output(&cell, program(["/usr/bin/python3", "-I", "-c", &script])).await;
    assert_eq!(text, "111 101\nconnected\nlo\n");
}

#[tokio::test]
async fn devices_and_terminals_work() {
    let cell = strict_cell().await;
    let script = "import os\n\
         assert os.read(os.open('/dev/zero', 0), 3) == b'\\0\\0\\0'\n\
         assert len(os.read(os.open('/dev/urandom', 0), 3)) == 3\n\
         a, b = os.openpty(); print(os.ttyname(b), flush=True)\n\
         open('/dev/stdout', 'w').write('through the link\\n')\n";
    assert_eq!(output(&cell, python(script)).await, "/dev/pts/0\nthrough the link\n");
    assert_eq!(output(&cell, shell("ls /dev/pts")).await, "ptmx\n");
}

#[tokio::test]
async fn a_full_disk_is_an_error_and_not_the_hosts_memory() {
    let mib = 1024 * 1024;
    let cell = cell(&CellSpec::strict().disk(8 * mib)).await;
    let script = "head -c 16M /dev/zero > /tmp/a 2>/dev/null; head -c 16M /dev/zero > /workspace/b";
    let (exit, text) = run(&cell, shell(script)).await;
    assert_eq!(exit.status.code(), Some(1), "{text}");
    assert!(text.contains("No space left"), "{text}");
    let used =
        output(&cell, shell("du -sk /tmp /workspace | cut -f1 | paste -sd+ | bc || du -sk /tmp"))
            .await;
    assert!(
        used.lines().next().unwrap().trim_end_matches("\t/tmp").parse::<u64>().unwrap() <= 8 * 1024
    );
}

#[tokio::test]
async fn the_number_of_files_is_limited() {
    let mut spec = CellSpec::strict();
    spec.disk_inodes = 500;
    let cell = cell(&spec).await;
    let (exit, text) =
        run(&cell, shell("i=0; while [ $i -lt 600 ]; do : > f$i || exit 9; i=$((i+1)); done"))
            .await;
    assert_ne!(exit.status.code(), Some(0), "{text}");
    assert!(text.contains("No space left"), "{text}");
}

#[tokio::test]
async fn binds_are_readable_and_read_only_wherever_they_are() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("sub")).unwrap();
    fs::write(directory.path().join("sub/file"), "inside").unwrap();
    std::os::unix::fs::symlink("/etc/shadow", directory.path().join("link")).unwrap();
    std::os::unix::fs::symlink("sub", directory.path().join("alias")).unwrap();
    let bind = |source: &str, target: &str| Bind {
        source: directory.path().join(source),
        target: target.into(),
    };
    let mut spec = CellSpec::strict().bind(directory.path());
    spec.binds.push(bind("sub/file", "/opt/deep/file"));
    spec.binds.push(bind("alias", "/data"));
    let cell = cell(&spec).await;
    let path = directory.path().display();
    // Only its owner may enter a temporary directory, and no user of a cell made by root is that owner.
    if rustix_uid() != 0 {
        assert_eq!(output(&cell, shell(&format!("cat {path}/sub/file"))).await, "inside");
        let (exit, _) = run(&cell, shell(&format!("cat {path}/link"))).await;
        assert_eq!(exit.status.code(), Some(1));
    }
    assert_eq!(output(&cell, shell("cat /opt/deep/file /data/file")).await, "insideinside");
    for script in ["echo x > /opt/deep/file", "touch /data/x", "rm /opt/deep/file"] {
        let (exit, text) = run(&cell, shell(script)).await;
        assert_ne!(exit.status.code(), Some(0), "{script}: {text}");
    }
}

#[tokio::test]
async fn invalid_specs_are_refused() {
    let launcher = CellLauncher::start().await.unwrap();
    let strict = CellSpec::strict;
    let at = |target: &str| {
        let mut spec = strict();
        spec.binds.push(Bind { source: "/usr".into(), target: target.into() });
        spec
    };
    let mut unnamed = strict();
    unnamed.hostname = "a b".to_owned();
    let mut endless = strict();
    endless.disk_bytes = 0;
    for spec in [
        at("/"),
        at("relative"),
        at("/proc/x"),
        at("/dev"),
        at("/a/../etc"),
        at("/tmp"),
        strict().bind("/"),
        strict().bind("/does/not/exist"),
        CellSpec::off().bind("/usr"),
        unnamed,
        endless,
    ] {
        let outcome = launcher.cell(&spec).await;
        assert!(matches!(outcome, Err(Error::Invalid(_))), "{spec:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_step_that_fails_names_itself_and_leaves_nothing() {
    let launcher = CellLauncher::start().await.unwrap();
    let mut spec = CellSpec::strict();
    spec.binds.push(Bind { source: "/etc/hosts".into(), target: "/usr/no-such/file".into() });
    match launcher.cell(&spec).await {
        Err(Error::Setup { step, source }) => {
            assert_eq!(step, "bind /etc/hosts");
            assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
        }
        other => panic!("{other:?}"),
    }
    launcher.cell(&CellSpec::strict()).await.unwrap();
}

#[tokio::test]
async fn cells_do_not_see_each_other() {
    let launcher = CellLauncher::start().await.unwrap();
    let a = launcher.cell(&CellSpec::strict()).await.unwrap();
    let b = launcher.cell(&CellSpec::strict()).await.unwrap();
    let script =
        "for d in /workspace /tmp /dev/shm; do echo secret > $d/secret; done; echo done; sleep 100";
    let (_process, line) = start_until_line(&a, shell(script)).await;
    assert_eq!(line, "done");
    assert_eq!(
        output(
            &b,
            shell("ls /workspace /tmp /dev/shm | grep -c secret || true; echo /proc/[0-9]*")
        )
        .await,
        "0\n/proc/1 /proc/2\n"
    );
}

#[tokio::test]
async fn the_root_descriptor_shows_the_cells_files() {
    use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
    let cell = strict_cell().await;
    output(&cell, shell("echo text > /workspace/file; ln -s /workspace/file /tmp/link")).await;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(cell.root(), "tmp/link", flags, Mode::empty(), how).unwrap();
    assert_eq!(std::io::read_to_string(fs::File::from(file)).unwrap(), "text\n");
    assert!(openat2(cell.root(), "/etc/shadow", flags, Mode::empty(), how).is_err());
}

#[tokio::test]
async fn the_probe_finds_every_layer() {
    let probe = sandbox_isolation::probe().await;
    assert!(probe.is_available(), "{probe:?}");
    assert_eq!(probe.layers.len(), 12);
    assert!(probe.layers.iter().all(|layer| layer.available), "{probe:?}");
}

#[tokio::test]
async fn processes_in_cells_are_killed_before_the_host_when_memory_runs_out() {
    let score = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap();
        text.trim().parse::<i32>().unwrap()
    };
    let before = score("/proc/self/oom_score_adj");
    // Repeated, because this process races with the launcher that it starts.
    for _ in 0..20 {
        let cell = strict_cell().await;
        let inside = output(&cell, shell("cat /proc/self/oom_score_adj")).await;
        assert_eq!(inside.trim().parse::<i32>().unwrap(), before.max(500));
    }
    assert_eq!(score("/proc/self/oom_score_adj"), before);
}

/// A file that an administrator has put into `/etc`, readable by every user. Dropping it removes the file.
struct Planted(PathBuf);

impl Planted {
    /// Returns `None` for a user that may not write there.
    fn new(text: &str) -> Option<Self> {
        let path = PathBuf::from(format!("/etc/{text}.conf"));
        fs::write(&path, format!("remark = {text}\n")).ok().map(|()| Self(path))
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn programs_see_their_configuration_and_nothing_private() {
    const PRIVATE: [&str; 24] = [
        "shadow",
        "shadow-",
        "gshadow",
        "sudoers",
        "sudoers.d",
        "machine-id",
        "pip.conf",
        "npmrc",
        "gitconfig",
        "netrc",
        "environment",
        "fstab",
        "crontab",
        "docker",
        "kubernetes",
        "rancher",
        "NetworkManager",
        "wireguard",
        "apt",
        "ssh",
        "mysql",
        "systemd",
        "cloud",
        "letsencrypt",
    ];
    let text = format!("canary-{}", std::process::id());
    let planted = Planted::new(&text);
    let cell = strict_cell().await;
    let found =
        output(&cell, shell("cd /etc && ls -A && find . -type f -exec cat {} + 2>/dev/null")).await;
    let names: Vec<&str> = found.lines().collect();
    assert!(names.contains(&"ld.so.cache"), "the control is missing: {names:?}");
    for name in PRIVATE {
        assert!(!names.contains(&name), "{name} is shown");
    }
    if planted.is_some() {
        let own = fs::read_to_string(format!("/etc/{text}.conf")).unwrap();
        assert!(own.contains(&text), "the control has {own:?}");
    }
    assert!(!found.contains(&text), "a file that no package owns is shown");
    let keys = output(&cell, shell("ls /etc/ssl/private /etc/shadow /etc/ssh 2>&1 || true")).await;
    assert_eq!(keys.matches("No such file").count(), 3, "{keys}");
}
