//! Tests of how cells start and end.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sandbox_isolation::{Cell, CellLauncher, CellSpec, Error};

use crate::support::{
    eventually, is_alive, output, private_directory, processes_with, shell, start_until_line,
    status_field, strict_cell, unique_sleep,
};

#[tokio::test]
async fn fifty_cells_at_once() {
    let launcher = CellLauncher::start().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..50 {
        let launcher = launcher.clone();
        tasks.spawn(async move {
            let cell = launcher.cell(&CellSpec::strict()).await.unwrap();
            let script = format!("echo {number} > n; sleep 0.05; cat n");
            assert_eq!(output(&cell, shell(&script)).await, format!("{number}\n"));
            cell
        });
    }
    let cells = tasks.join_all().await;
    let mut pids: Vec<_> = cells.iter().map(Cell::pid).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 50);
    drop(cells);
    eventually(Duration::from_secs(5), "all are gone", || !pids.iter().any(|pid| is_alive(*pid)))
        .await;
}

#[tokio::test]
async fn dropping_the_last_handle_ends_the_cell() {
    let launcher = CellLauncher::start().await.unwrap();
    let cell = launcher.cell(&CellSpec::strict()).await.unwrap();
    let mark = unique_sleep();
    let (process, _) =
        start_until_line(&cell, shell(&format!("echo ready; exec sleep {mark}"))).await;
    let clone = cell.clone();
    drop(cell);
    assert_eq!(output(&clone, shell("echo alive")).await, "alive\n");
    let pid = clone.pid();
    drop(clone);
    assert!(matches!(process.wait().await, Err(Error::Closed)));
    assert!(matches!(process.kill_tree().await, Err(Error::Closed)));
    eventually(Duration::from_secs(2), "all is gone", || {
        !Path::new(&format!("/proc/{pid}")).exists() && processes_with(&mark).is_empty()
    })
    .await;
}

#[tokio::test]
async fn killing_is_idempotent_and_fails_pending_calls() {
    let cell = strict_cell().await;
    let (process, _) = start_until_line(&cell, shell("echo ready; exec sleep 100")).await;
    let waiting = tokio::spawn(async move { process.wait().await });
    tokio::task::yield_now().await;
    cell.kill();
    cell.kill();
    cell.closed().await;
    cell.closed().await;
    assert!(matches!(waiting.await.unwrap(), Err(Error::Closed)));
    assert!(matches!(cell.spawn(shell("true")).await, Err(Error::Closed)));
    assert!(matches!(cell.adopt(1).await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_dead_first_process_is_noticed() {
    let cell = strict_cell().await;
    let (process, _) = start_until_line(&cell, shell("echo ready; exec sleep 100")).await;
    let pid = rustix::process::Pid::from_raw(cell.pid().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert!(matches!(process.wait().await, Err(Error::Closed)));
    cell.closed().await;
    assert!(matches!(cell.spawn(shell("true")).await, Err(Error::Closed)));
}

#[tokio::test]
async fn an_unresponsive_first_process_is_killed() {
    let cell = strict_cell().await;
    let mark = unique_sleep();
    let script = format!("echo ready; exec sleep {mark}");
    let (_process, _) = start_until_line(&cell, shell(&script)).await;
    let pid = rustix::process::Pid::from_raw(cell.pid().try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    tokio::time::timeout(Duration::from_secs(5), cell.end()).await.expect("it ends");
    assert!(processes_with(&mark).is_empty());
}

#[tokio::test]
async fn strict_cells_die_with_their_launcher() {
    let cell = strict_cell().await;
    let launcher: i32 = status_field(cell.pid(), "PPid:").unwrap().parse().unwrap();
    let launcher = rustix::process::Pid::from_raw(launcher).unwrap();
    rustix::process::kill_process(launcher, rustix::process::Signal::KILL).unwrap();
    tokio::time::timeout(Duration::from_secs(2), cell.closed()).await.expect("the cell ends");
}

#[tokio::test]
async fn the_launcher_ends_with_its_last_handle() {
    let launcher = CellLauncher::start().await.unwrap();
    let cell = launcher.cell(&CellSpec::strict()).await.unwrap();
    let pid: u32 = status_field(cell.pid(), "PPid:").unwrap().parse().unwrap();
    drop(launcher);
    assert_eq!(output(&cell, shell("echo the cell keeps it")).await, "the cell keeps it\n");
    drop(cell);
    let path = format!("/proc/{pid}");
    eventually(Duration::from_secs(2), "no process, no zombie", || !Path::new(&path).exists())
        .await;
}

#[tokio::test]
async fn dropped_futures_leave_nothing_behind() {
    let launcher = CellLauncher::start().await.unwrap();
    for micros in (0..3000).step_by(150) {
        let limit = Duration::from_micros(micros);
        let _ = tokio::time::timeout(limit, launcher.cell(&CellSpec::strict())).await;
        let _ = tokio::time::timeout(limit, launcher.cell(&CellSpec::off())).await;
    }
    let cell = launcher.cell(&CellSpec::strict()).await.unwrap();
    let mark = unique_sleep();
    for micros in (0..1500).step_by(50) {
        let spec = shell(&format!("sleep {mark} & exec sleep {mark}"));
        let spawned = tokio::time::timeout(Duration::from_micros(micros), cell.spawn(spec)).await;
        if let Ok(process) = spawned {
            process.unwrap().kill_tree().await.unwrap();
        }
    }
    eventually(Duration::from_secs(2), "no program is left", || processes_with(&mark).is_empty())
        .await;
    let launcher_pid = status_field(cell.pid(), "PPid:").unwrap();
    let children = format!("/proc/{launcher_pid}/task/{launcher_pid}/children");
    eventually(Duration::from_secs(2), "one cell is left", || {
        std::fs::read_to_string(&children).unwrap().split_whitespace().count() == 1
    })
    .await;
}

#[tokio::test]
async fn nothing_accumulates_in_this_process() {
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
    let launcher = CellLauncher::start().await.unwrap();
    let warm = launcher.cell(&CellSpec::strict()).await.unwrap();
    warm.kill();
    warm.closed().await;
    drop(warm);
    let (launcher_fds, own_mounts) = (launcher_descriptors(&launcher).await, mounts());
    for _ in 0..20 {
        let cell = launcher.cell(&CellSpec::strict()).await.unwrap();
        output(&cell, shell("true")).await;
        cell.kill();
        cell.closed().await;
    }
    assert_eq!(launcher_descriptors(&launcher).await, launcher_fds);
    assert_eq!(mounts(), own_mounts);
    // Other tests of this process open and close descriptors too; a leak would be twenty times two.
    assert!(count() < 1000);
}

/// Returns the number of the launcher's descriptors, if they may be listed.
async fn launcher_descriptors(launcher: &CellLauncher) -> Option<usize> {
    let cell = launcher.cell(&CellSpec::strict()).await.unwrap();
    let pid = status_field(cell.pid(), "PPid:").unwrap();
    let count = std::fs::read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count);
    cell.kill();
    cell.closed().await;
    count
}

const ROLE: &str = "SANDBOX_ISOLATION_TEST_HOST";

/// Runs in a second process, which the test then kills.
#[expect(clippy::print_stdout, reason = "the first process reads it")]
async fn be_the_host(mark: &str) {
    let launcher = CellLauncher::start().await.unwrap();
    let strict = launcher.cell(&CellSpec::strict()).await.unwrap();
    let off = launcher.cell(&CellSpec::off()).await.unwrap();
    for cell in [&strict, &off] {
        let script = format!("(setsid sleep {mark} &) ; sleep {mark} & echo ready; wait");
        let (process, _) = start_until_line(cell, shell(&script)).await;
        std::mem::forget(process);
    }
    let launcher_pid = status_field(strict.pid(), "PPid:").unwrap();
    println!(
        "host {} {} {launcher_pid} {}",
        strict.pid(),
        off.pid(),
        private_directory(&off).display()
    );
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_host_leaves_nothing() {
    if let Ok(mark) = std::env::var(ROLE) {
        return be_the_host(&mark).await;
    }
    let mark = unique_sleep();
    let mut host = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "life::a_killed_host_leaves_nothing", "--nocapture"])
        .env(ROLE, &mark)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(host.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.into_iter().find_map(|line| Some(line.split_once("host ")?.1.to_owned()));
    let line = line.expect("the second host reports");
    let words: Vec<_> = line.split(' ').collect();
    let pids: Vec<u32> = words[..3].iter().map(|word| word.parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    eventually(Duration::from_secs(5), "all run", || {
        processes_with(&format!("sleep\0{mark}")).len() == 4
    })
    .await;
    host.kill().unwrap();
    host.wait().unwrap();
    let started = Instant::now();
    eventually(Duration::from_secs(1), "nothing is left", || {
        !pids.iter().any(|pid| is_alive(*pid))
            && processes_with(&mark).is_empty()
            && !Path::new(words[3]).exists()
    })
    .await;
    println!("gone {:?} after the host", started.elapsed());
}
