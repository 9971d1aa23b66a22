//! Tests of starting programs in cells.

use std::io::Write as _;
use std::time::Duration;

use sandbox_isolation::{
    CellKind, CellLauncher, CellSpec, Error, ExitStatus, Privilege, Resource, Rlimit, SpawnSpec,
    SpawnStage,
};

use crate::support::{cell, output, program, python, run, shell, start, strict_cell};

fn kinds() -> [CellSpec; 2] {
    [CellSpec::strict(), CellSpec::off()]
}

#[tokio::test]
async fn exit_statuses_and_signals_are_exact() {
    for spec in kinds() {
        let cell = cell(&spec).await;
        for code in [0, 1, 7, 255] {
            let (exit, _) = run(&cell, shell(&format!("exit {code}"))).await;
            assert_eq!(exit.status, ExitStatus::Code(code));
        }
        for signal in [2, 6, 9, 11, 15] {
            let (exit, _) = run(&cell, shell(&format!("kill -{signal} $$"))).await;
            assert_eq!(exit.status, ExitStatus::Signal(signal));
            assert_eq!(exit.status.shell_code(), 128 + signal);
        }
    }
}

#[tokio::test]
async fn time_and_memory_are_the_kernels() {
    for spec in kinds() {
        let cell = cell(&spec).await;
        let script = "import time\nb = bytearray(64 << 20)\nwhile time.process_time() < 0.2: pass";
        let (exit, _) = run(&cell, python(script)).await;
        let time = exit.user + exit.system;
        assert!(time >= Duration::from_millis(190) && time < Duration::from_secs(2), "{exit:?}");
        assert!(exit.max_rss > 64 << 20 && exit.max_rss < 256 << 20, "{exit:?}");
    }
}

#[tokio::test]
async fn a_failed_start_reports_the_reason() {
    for spec in kinds() {
        let cell = cell(&spec).await;
        let directory = cell.work_dir().display().to_string();
        output(&cell, shell("echo x > plain; printf '\\177ELF' > broken; chmod +x broken")).await;
        let refused = |spec: SpawnSpec| {
            let cell = cell.clone();
            async move {
                match cell.spawn(spec).await {
                    Err(Error::Spawn { stage, source, .. }) => (stage, source.raw_os_error()),
                    other => panic!("{other:?}"),
                }
            }
        };
        let at = |name: &str| program(["x"]).cwd(format!("{directory}/{name}"));
        assert_eq!(refused(program(["no-such-program"])).await, (SpawnStage::Program, Some(2)));
        assert_eq!(refused(program(["/no/such/program"])).await, (SpawnStage::Program, Some(2)));
        assert_eq!(refused(program([""])).await, (SpawnStage::Program, Some(2)));
        assert_eq!(refused(program(["/etc"])).await, (SpawnStage::Program, Some(13)));
        assert_eq!(refused(program(["./plain"])).await, (SpawnStage::Program, Some(13)));
        assert_eq!(refused(program(["./broken"])).await, (SpawnStage::Program, Some(8)));
        assert_eq!(refused(at("missing")).await, (SpawnStage::Directory, Some(2)));
        assert_eq!(refused(at("plain")).await, (SpawnStage::Directory, Some(20)));
        let error = cell.spawn(program(["no-such-program"])).await.unwrap_err();
        assert!(error.is_program_not_found() && !error.is_program_not_executable());
        let error = cell.spawn(program(["./plain"])).await.unwrap_err();
        assert!(error.is_program_not_executable() && !error.is_program_not_found());
        assert!(!error.to_string().contains('\n'));
        assert_eq!(output(&cell, shell("echo still works")).await, "still works\n");
    }
}

#[tokio::test]
async fn the_search_path_is_the_programs_own() {
    let cell = strict_cell().await;
    output(
        &cell,
        shell("mkdir a b; echo x > a/tool; printf '#!/bin/sh\\necho b' > b/tool; chmod +x b/tool"),
    )
    .await;
    let spec = |path: &str| SpawnSpec::new(["tool"]).env("PATH", path);
    // A file that cannot be executed does not hide a later program.
    assert_eq!(output(&cell, spec("/workspace/a:/workspace/b")).await, "b\n");
    assert_eq!(output(&cell, spec("/nowhere:b")).await, "b\n");
    assert!(cell.spawn(spec("/workspace/a")).await.unwrap_err().is_program_not_executable());
    assert!(cell.spawn(spec("/nowhere")).await.unwrap_err().is_program_not_found());
    assert_eq!(output(&cell, SpawnSpec::new(["echo", "default"])).await, "default\n");
}

#[tokio::test]
async fn invalid_arguments_never_reach_the_cell() {
    let cell = strict_cell().await;
    for spec in [
        SpawnSpec::new(Vec::<String>::new()),
        SpawnSpec::new(["a\0b"]),
        SpawnSpec::new(["a"]).env("A\0", "b"),
        SpawnSpec::new(["a"]).env("A", "\0"),
        SpawnSpec::new(["a"]).env("A=B", "c"),
        SpawnSpec::new(["a"]).env("", "c"),
        SpawnSpec::new(["a"]).cwd("/\0"),
    ] {
        let outcome = cell.spawn(spec).await;
        assert!(matches!(outcome, Err(Error::Invalid(_))), "{outcome:?}");
    }
}

#[tokio::test]
async fn arguments_can_be_as_large_as_the_kernel_allows() {
    for spec in kinds() {
        let cell = cell(&spec).await;
        let large = "x".repeat(100_000);
        let mut spec = program(["/bin/sh", "-c", "shift; echo ${#1} $#", "sh"]);
        spec.argv.extend((0..12).map(|_| large.clone().into()));
        assert_eq!(output(&cell, spec).await, "100000 11\n");
        let mut spec = program(["/bin/true"]);
        spec.argv.push("x".repeat(200_000).into());
        match cell.spawn(spec).await {
            Err(Error::Spawn { stage: SpawnStage::Program, source, .. }) => {
                assert_eq!(source.kind(), std::io::ErrorKind::ArgumentListTooLong);
            }
            other => panic!("{other:?}"),
        }
        let mut spec = program(["/bin/sh", "-c", "echo $#", "sh"]);
        spec.argv.extend((0..20_000).map(|_| "".into()));
        assert_eq!(output(&cell, spec).await, "20000\n");
    }
}

#[tokio::test]
async fn standard_input_arrives_and_ends() {
    for spec in kinds() {
        let cell = cell(&spec).await;
        let (input, mut writer) = std::io::pipe().unwrap();
        let mut spec = program(["/bin/cat"]);
        spec.stdin = Some(input.into());
        let (process, reader) = start(&cell, spec).await;
        writer.write_all(b"through").unwrap();
        drop(writer);
        assert_eq!(process.wait().await.unwrap().status, ExitStatus::Code(0));
        assert_eq!(std::io::read_to_string(reader).unwrap(), "through");
        assert_eq!(output(&cell, program(["/bin/cat"])).await, "", "nothing without input");
    }
}

#[tokio::test]
async fn output_ends_when_the_program_does() {
    // Neither the first process nor a subreaper may keep the pipe open.
    for spec in kinds() {
        let cell = cell(&spec).await;
        let (process, reader) = start(&cell, shell("echo one; exec >&- 2>&-; sleep 100")).await;
        let read = tokio::task::spawn_blocking(|| std::io::read_to_string(reader).unwrap());
        let text = tokio::time::timeout(Duration::from_secs(5), read).await.unwrap().unwrap();
        assert_eq!(text, "one\n");
        process.kill_tree().await.unwrap();
    }
}

#[tokio::test]
async fn signals_start_from_their_defaults() {
    for spec in kinds() {
        let cell = cell(&spec).await;
        let status = output(&cell, shell("grep -E '^Sig(Blk|Ign)' /proc/self/status")).await;
        assert_eq!(status, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
        let script = "import os\nprint(os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid())";
        assert_eq!(output(&cell, python(script)).await, "True True\n");
    }
}

#[tokio::test]
async fn limits_apply_and_only_go_down() {
    let cell = strict_cell().await;
    let text = output(
        &cell,
        shell("ulimit -n; ulimit -Hn; ulimit -c; ulimit -p 2>/dev/null || ulimit -u"),
    )
    .await;
    let is_root = CellLauncher::start().await.unwrap().privilege() == Privilege::Root;
    let (soft, hard) = if is_root { (1024, 4096) } else { (512, 512) };
    assert_eq!(text, format!("{soft}\n{hard}\n0\n256\n"));
    let mut spec = shell("ulimit -n; ulimit -Hn");
    spec.rlimits.push(Rlimit::fixed(Resource::OpenFiles, 100));
    assert_eq!(output(&cell, spec).await, "100\n100\n");
    let mut spec = shell("ulimit -Hn");
    spec.rlimits.push(Rlimit::fixed(Resource::OpenFiles, u64::MAX));
    assert_eq!(output(&cell, spec).await, format!("{hard}\n"));
    let mut spec = python("b = bytearray(512 << 20)");
    spec.rlimits.push(Rlimit::fixed(Resource::AddressSpace, 256 << 20));
    assert!(run(&cell, spec).await.1.contains("MemoryError"));
}

#[tokio::test]
async fn signals_reach_the_program_or_its_tree() {
    for spec in kinds() {
        let cell = cell(&spec).await;
        let script = "trap 'echo int; exit 3' INT; echo ready; while :; do sleep 0.01; done";
        let (process, reader) = start(&cell, shell(script)).await;
        let mut reader = std::io::BufReader::new(reader);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut reader, &mut line).unwrap();
        process.signal(2).await.unwrap();
        assert_eq!(process.wait().await.unwrap().status, ExitStatus::Code(3));
        assert!(process.signal(2).await.is_err(), "it is dead");
        assert!(process.root().signal(-1).await.is_err());
        let (tree, _) =
            crate::support::start_until_line(&cell, shell("sleep 100 & echo ready; wait")).await;
        tree.root().signal_tree(15).await.unwrap();
        assert_eq!(tree.wait().await.unwrap().status, ExitStatus::Signal(15));
        assert!(tree.signal(1000).await.is_err());
    }
}

#[tokio::test]
async fn a_terminal_controls_the_session_it_is_given_to() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let cell = cell(&CellSpec::off()).await;
    let host = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&host).unwrap();
    unlockpt(&host).unwrap();
    let name = ptsname(&host, Vec::new()).unwrap().into_string().unwrap();
    let terminal = std::fs::File::options().read(true).write(true).open(name).unwrap();
    let mut spec = shell("echo yes > /dev/tty");
    spec.stdin = Some(terminal.into());
    spec.controlling_terminal = true;
    let (exit, text) = run(&cell, spec).await;
    assert_eq!(exit.status, ExitStatus::Code(0), "{text}");
    let (exit, _) = run(&cell, shell("echo no > /dev/tty")).await;
    assert_ne!(exit.status, ExitStatus::Code(0));
}

#[tokio::test]
async fn without_isolation_the_host_is_visible_and_the_directory_private() {
    let cell = cell(&CellSpec::off()).await;
    assert_eq!(cell.kind(), CellKind::Off);
    let text =
        output(&cell, shell("pwd; id -u; stat -c %a .; test -e /proc/self/ns/pid && echo $PPID"))
            .await;
    let directory = cell.work_dir().display().to_string();
    assert!(
        text.starts_with(&format!("{directory}\n{}\n700\n", rustix::process::geteuid().as_raw())),
        "{text}"
    );
}
