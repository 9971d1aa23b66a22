//! Tests of cells without isolation.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;
use std::time::Duration;

use sandbox_isolation::{CellLauncher, CellSpec, Error, ExitStatus, Privilege, ProcessSpec};

use crate::support::{
    cell, eventually, is_alive, output, private_directory, processes_with, python, shell,
    start_until_line, unique_sleep,
};

#[tokio::test]
async fn the_directory_is_removed_whatever_is_in_it() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("precious"), "kept").unwrap();
    std::fs::set_permissions(outside.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
    let cell = cell(&CellSpec::off()).await;
    let directory = private_directory(&cell);
    symlink(outside.path(), directory.join("link")).unwrap();
    let script = "import os\n\
         os.makedirs('a/b/c'); open('a/b/c/f', 'w').close(); os.symlink('/', 'a/root')\n\
         os.mkfifo('a/pipe'); os.mkdir('locked'); open('locked/f', 'w').close(); os.chmod('locked', 0)\n\
         os.mkdir('many')\n\
         for i in range(3000): open('many/%d' % i, 'w').close()\n\
         for i in range(1500): os.mkdir('d'); os.chdir('d')\n\
         open('deep', 'w').close(); os.chmod('.', 0o500)\n";
    output(&cell, python(script)).await;
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o500)).unwrap();
    drop(cell);
    eventually(Duration::from_secs(10), "the directory is gone", || !directory.exists()).await;
    assert_eq!(std::fs::read_to_string(outside.path().join("precious")).unwrap(), "kept");
    let mode = std::fs::metadata(outside.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750, "a link is not followed to change what it leads to");
}

/// Workers recreate their directory when code has removed it, and they may be late.
#[tokio::test]
async fn a_late_worker_recreates_nothing() {
    let cell = cell(&CellSpec::off()).await;
    let directory = cell.work_dir().to_owned();
    output(&cell, shell("rmdir \"$PWD\"")).await;
    std::fs::create_dir(&directory).unwrap();
    drop(cell);
    eventually(Duration::from_secs(10), "the directory is gone", || !directory.exists()).await;
    eventually(Duration::from_secs(10), "the one above too", || {
        std::fs::create_dir(&directory).is_err()
    })
    .await;
    assert!(!directory.parent().unwrap().exists());
}

#[tokio::test]
async fn killing_the_cell_kills_everything_and_removes_the_directory() {
    let cell = cell(&CellSpec::off()).await;
    let (directory, init) = (private_directory(&cell), cell.pid());
    let mark = unique_sleep();
    let script = format!("(setsid sleep {mark} &) ; setsid sleep {mark} & echo ready; wait");
    let (process, _) = start_until_line(&cell, shell(&script)).await;
    eventually(Duration::from_secs(5), "all run", || {
        processes_with(&format!("sleep\0{mark}")).len() == 2
    })
    .await;
    cell.kill();
    cell.kill();
    cell.closed().await;
    assert_eq!(processes_with(&mark), [] as [u32; 0]);
    assert!(!directory.exists() && !is_alive(init));
    assert!(matches!(process.wait().await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_killed_first_process_leaves_nothing_either() {
    let cell = cell(&CellSpec::off()).await;
    let mark = unique_sleep();
    let (process, _) =
        start_until_line(&cell, shell(&format!("echo ready; exec sleep {mark}"))).await;
    let status = Command::new("kill").args(["-9", &cell.pid().to_string()]).status().unwrap();
    assert!(status.success());
    cell.closed().await;
    assert!(matches!(process.wait().await, Err(Error::Closed)));
    assert!(!private_directory(&cell).exists());
    eventually(Duration::from_secs(2), "the program is gone", || processes_with(&mark).is_empty())
        .await;
}

#[tokio::test]
async fn a_killed_subreaper_is_reported_as_the_programs_end() {
    let cell = cell(&CellSpec::off()).await;
    let mark = unique_sleep();
    let (process, _) =
        start_until_line(&cell, shell(&format!("echo ready; exec sleep {mark}"))).await;
    let subreaper = crate::support::status_field(process.pid(), "PPid:").unwrap();
    Command::new("kill").args(["-9", &subreaper]).status().unwrap();
    assert_eq!(process.wait().await.unwrap().status, ExitStatus::Signal(9));
    assert_eq!(output(&cell, shell("echo usable")).await, "usable\n");
    eventually(Duration::from_secs(2), "the program is gone", || processes_with(&mark).is_empty())
        .await;
}

#[tokio::test]
async fn a_launcher_without_isolation_makes_nothing_else() {
    let launcher = CellLauncher::start_off().await.unwrap();
    assert_eq!(launcher.privilege(), Privilege::Plain);
    let outcome = launcher.cell(&CellSpec::strict()).await;
    assert!(matches!(outcome, Err(Error::Invalid(_))), "{outcome:?}");
    let cell = launcher.cell(&CellSpec::off()).await.unwrap();
    let groups = output(&cell, shell("id -G")).await;
    let own = Command::new("id").arg("-G").output().unwrap().stdout;
    assert_eq!(groups.into_bytes(), own, "the rights of the host process");
}

/// A trusted program with a child, a daemon, and a daemon of a child that adopts orphans, like a warm parent of
/// workers.
const WITH_DESCENDANTS: &str = "
import ctypes, os, sys, time
mark = sys.argv[1]
def sleep(session):
    if os.fork() == 0:
        if session: os.setsid()
        os.execl('/bin/sleep', 'sleep', mark)
sleep(False)
if os.fork() == 0:
    sleep(True)
    os._exit(0)
if os.fork() == 0:
    libc = ctypes.CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)
    libc.prctl(1, 9, 0, 0, 0)
    sleep(False)
    if os.fork() == 0:
        sleep(True)
        os._exit(0)
    time.sleep(1000)
time.sleep(1000)
";

fn with_descendants(mark: &str) -> ProcessSpec {
    let argv = [crate::support::PYTHON, "-I", "-S", "-c", WITH_DESCENDANTS, mark];
    let argv = argv.iter().map(Into::into).collect();
    ProcessSpec { argv, env: Vec::new(), cwd: None, fds: Vec::new() }
}

#[tokio::test]
async fn descendants_of_a_killed_program_are_killed() {
    let launcher = CellLauncher::start_off().await.unwrap();
    let cell = launcher.cell(&CellSpec::off()).await.unwrap();
    let (mark, kept) = (unique_sleep(), unique_sleep());
    let sleeps = |mark: &str| processes_with(&format!("sleep\0{mark}")).len();
    let script = format!("setsid sleep {kept} & echo ready");
    start_until_line(&cell, shell(&script)).await;
    let program = launcher.start_process(with_descendants(&mark)).await.unwrap();
    eventually(Duration::from_secs(5), "all run", || sleeps(&mark) == 4).await;
    drop(program);
    eventually(Duration::from_secs(5), "all are gone", || processes_with(&mark).is_empty()).await;
    assert_eq!(sleeps(&kept), 1, "what is in a cell has nothing to do with it");
    assert_eq!(output(&cell, shell("echo usable")).await, "usable\n");
}

#[tokio::test]
async fn nothing_of_a_program_outlives_the_launcher() {
    let launcher = CellLauncher::start_off().await.unwrap();
    let cell = launcher.cell(&CellSpec::off()).await.unwrap();
    let (directory, mark) = (private_directory(&cell), unique_sleep());
    let script = format!("setsid sleep {mark} & echo ready");
    start_until_line(&cell, shell(&script)).await;
    let program = launcher.start_process(with_descendants(&mark)).await.unwrap();
    let launcher_pid =
        crate::support::status_field(program.pid(), "PPid:").unwrap().parse().unwrap();
    let sleeps = || processes_with(&format!("sleep\0{mark}")).len();
    eventually(Duration::from_secs(5), "all run", || sleeps() == 5).await;
    // All handles at once, as when the host dies.
    drop((program, cell, launcher));
    eventually(Duration::from_secs(5), "the launcher is gone", || !is_alive(launcher_pid)).await;
    assert_eq!(processes_with(&mark), [] as [u32; 0]);
    assert!(!directory.exists(), "the cell had time to clean up");
}
