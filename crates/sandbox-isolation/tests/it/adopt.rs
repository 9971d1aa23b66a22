//! Tests of trusted programs beside the cells, and of processes that enter cells from outside.

use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::time::Duration;

use sandbox_isolation::{
    Cell, CellLauncher, CellSpec, Error, LauncherProcess, ProcessSpec, SpawnStage,
};

use crate::support::{
    PYTHON, eventually, is_alive, processes_with, shell, start_until_line, unique_sleep,
};

fn process(argv: &[&str], fds: Vec<(OwnedFd, u32)>) -> ProcessSpec {
    ProcessSpec {
        argv: argv.iter().map(Into::into).collect(),
        env: vec![("ONLY".into(), "this".into())],
        cwd: None,
        fds,
    }
}

#[tokio::test]
async fn a_trusted_program_gets_exactly_what_it_is_given() {
    let launcher = CellLauncher::start().await.unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let script = "import os\nw = os.fdopen(7, 'w')\n\
         print(sorted(map(int, os.listdir('/proc/self/fd'))), dict(os.environ), os.getcwd(),\n\
         os.getsid(0) == os.getpid(), file=w)";
    let spec = process(&[PYTHON, "-I", "-S", "-c", script], vec![(writer.into(), 7)]);
    let program = launcher.start_process(spec).await.unwrap();
    let text = std::io::read_to_string(reader).unwrap();
    // 3 is the listing itself. Python adds a locale to its own environment.
    assert!(text.starts_with("[0, 1, 2, 3, 7] {'ONLY': 'this'"), "{text}");
    assert!(text.ends_with("/ True\n"), "{text}");
    program.exited().await;
}

#[tokio::test]
async fn a_trusted_program_that_does_not_start_reports_the_reason() {
    let launcher = CellLauncher::start().await.unwrap();
    match launcher.start_process(process(&["/no/such"], Vec::new())).await {
        Err(Error::Spawn { stage: SpawnStage::Program, source, .. }) => {
            assert_eq!(source.raw_os_error(), Some(2));
        }
        other => panic!("{other:?}"),
    }
    let mut spec = process(&["/bin/true"], Vec::new());
    spec.cwd = Some("/no/such".into());
    let outcome = launcher.start_process(spec).await;
    assert!(
        matches!(outcome, Err(Error::Spawn { stage: SpawnStage::Directory, .. })),
        "{outcome:?}"
    );
    // The launcher and a large payload still work.
    let mut spec = process(&["/bin/true"], Vec::new());
    spec.argv.extend((0..2).map(|_| "x".repeat(60_000).into()));
    launcher.start_process(spec).await.unwrap().exited().await;
}

#[tokio::test]
async fn a_trusted_program_dies_with_its_handle_and_with_the_launcher() {
    let launcher = CellLauncher::start().await.unwrap();
    let mark = unique_sleep();
    let spec = || process(&["/bin/sleep", &mark], Vec::new());
    let program = launcher.start_process(spec()).await.unwrap();
    let pid = program.pid();
    assert!(is_alive(pid));
    drop(program);
    eventually(Duration::from_secs(2), "the program is gone", || !is_alive(pid)).await;
    let program = launcher.start_process(spec()).await.unwrap();
    let parent = crate::support::status_field(program.pid(), "PPid:").unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(parent.parse().unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    program.exited().await;
    let outcome = launcher.start_process(spec()).await;
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    assert!(matches!(launcher.cell(&CellSpec::strict()).await, Err(Error::Closed)));
}

/// Acts as a warm parent of workers: forks a process that enters the cell at descriptor 4 and starts a `sleep` there.
/// Reports the worker's host process id on descriptor 3.
const ENTER: &str = "
import ctypes, os, signal, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result != 0: raise OSError(ctypes.get_errno(), 'refused')
report = os.fdopen(3, 'w', buffering=1)
check(libc.setns(4, 0x20000000))
ready, notify = os.pipe()
worker = os.fork()
if worker == 0:
    check(libc.setns(4, 0x10000000 | 0x20000 | 0x40000000 | 0x8000000 | 0x4000000 | 0x2000000))
    check(libc.unshare(0x4000000))
    os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
    check(libc.capset(struct.pack('Ii', 0x20080522, 0), bytes(24)))
    check(libc.prctl(4, 1, 0, 0, 0))
    os.chdir('/workspace')
    if os.fork() == 0:
        os.setsid(); os.execv('/bin/sleep', ['sleep', sys.argv[1]])
    os.write(notify, b'.')
    signal.pause()
os.read(ready, 1)
print(worker, file=report)
os.waitpid(worker, 0)
print('reaped', file=report)
";

struct Worker {
    _zygote: LauncherProcess,
    report: BufReader<std::io::PipeReader>,
    pid: u32,
}

async fn enter(launcher: &CellLauncher, cell: &Cell, mark: &str) -> Worker {
    let (reader, writer) = std::io::pipe().unwrap();
    let cell_fd = cell.pidfd().try_clone_to_owned().unwrap();
    let argv = [PYTHON, "-I", "-S", "-c", ENTER, mark];
    let spec = process(&argv, vec![(writer.into(), 3), (cell_fd, 4)]);
    let zygote = launcher.start_process(spec).await.unwrap();
    let mut report = BufReader::new(reader);
    let mut line = String::new();
    report.read_line(&mut line).unwrap();
    Worker { _zygote: zygote, report, pid: line.trim().parse().expect("the worker's number") }
}

#[tokio::test]
async fn a_worker_from_outside_is_a_root_like_any_other() {
    let launcher = CellLauncher::start().await.unwrap();
    let cell = launcher.cell(&CellSpec::strict()).await.unwrap();
    let (mark, other) = (unique_sleep(), unique_sleep());
    let mut worker = enter(&launcher, &cell, &mark).await;
    let root = cell.adopt(worker.pid).await.unwrap();
    let (command, _) =
        start_until_line(&cell, shell(&format!("sleep {other} & echo ready; wait"))).await;

    eventually(Duration::from_secs(5), "both trees are complete", || {
        processes_with(&format!("sleep\0{mark}")).len() == 1
            && processes_with(&format!("sleep\0{other}")).len() == 1
    })
    .await;
    root.signal(0).await.unwrap();
    command.kill_tree().await.unwrap();
    assert_eq!(processes_with(&other), [] as [u32; 0]);
    assert!(is_alive(worker.pid));
    assert_eq!(processes_with(&format!("sleep\0{mark}")).len(), 1);

    let (witness, _) = start_until_line(&cell, shell("echo ready; exec sleep 100")).await;
    assert!(!root.kill_tree().await.unwrap());
    assert_eq!(processes_with(&format!("sleep\0{mark}")), [] as [u32; 0]);
    let mut line = String::new();
    worker.report.read_line(&mut line).unwrap();
    assert_eq!(line, "reaped\n");
    witness.signal(0).await.unwrap();
    assert!(root.signal(9).await.is_err(), "it is dead");
    root.kill_tree().await.unwrap();
    witness.signal(0).await.unwrap();
}

#[tokio::test]
async fn only_processes_of_the_cell_can_be_adopted() {
    let launcher = CellLauncher::start().await.unwrap();
    let cell = launcher.cell(&CellSpec::strict()).await.unwrap();
    for pid in [std::process::id(), cell.pid(), 0, u32::MAX] {
        assert!(cell.adopt(pid).await.is_err(), "{pid}");
    }
    // With the same tree registered twice, killing one root would kill the other.
    let worker = enter(&launcher, &cell, &unique_sleep()).await;
    let _root = cell.adopt(worker.pid).await.unwrap();
    assert!(cell.adopt(worker.pid).await.is_err());
}
