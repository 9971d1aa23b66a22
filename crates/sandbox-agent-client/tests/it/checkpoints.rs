//! Checkpoints of workers that wait, and how they end.

use std::time::{Duration, Instant};

use sandbox_engine::Request;
use sandbox_engine::host::{ProcessHost as _, SideChannel, WorkerIo, WorkerSpec};

use crate::support::TestBox;

const READY: u8 = 16;
const KILL: i32 = 9;
const STOP: i32 = 19;

/// How long the agent may take to see an end.
const TIMEOUT: Duration = Duration::from_secs(20);

async fn worker(test: &TestBox) -> WorkerIo {
    let cwd = test.home.path().to_string_lossy().into_owned();
    let worker = test.pipe.start_worker(WorkerSpec { env: [].into(), cwd }).await;
    let worker = worker.expect("a worker");
    is_ready(&worker).await;
    worker
}

/// Waits for the first message of a worker.
async fn is_ready(worker: &WorkerIo) {
    let mut said = vec![0; 5];
    std::future::poll_fn(|cx| worker.control.poll_readable(cx)).await.expect("a stream");
    assert_eq!(worker.control.try_read(&mut said).expect("a frame"), 5);
    assert_eq!(said[4], READY, "it refuses to be a worker");
}

fn hold(worker: &WorkerIo, channel: &SideChannel) {
    let mut request = Vec::new();
    Request::Checkpoint { id: 1 }.encode(&mut request).expect("it is short");
    let sent = worker.control.try_write_with_fd(&request, channel);
    assert_eq!(sent.expect("it is sent"), request.len());
}

/// Returns every process below the agent.
fn below(agent: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    children.flat_map(|pid| std::iter::once(pid).chain(below(pid))).collect()
}

async fn until_nothing_is_below(agent: u32) {
    let began = Instant::now();
    while !below(agent).is_empty() {
        assert!(began.elapsed() < TIMEOUT, "{:?} are left", below(agent));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_copy_outlives_its_worker_and_is_one_as_often_as_it_is_asked() {
    let test = TestBox::start().await;
    let agent = test.agent.id().expect("it runs");
    let first = worker(&test).await;
    let (expected, channel) =
        test.pipe.begin_checkpoint().await.unwrap().expect("there are copies");
    hold(&first, &channel);
    let held = expected.ready().await.unwrap();
    first.process.kill_tree().await.unwrap();
    drop(first);
    let mut pids = Vec::new();
    for _ in 0..3 {
        assert!(held.is_alive(), "it went with the tree that it came from");
        let woken = held.restore().await.unwrap();
        is_ready(&woken).await;
        pids.push(woken.process.pid());
        woken.process.kill_tree().await.unwrap();
        assert_eq!(woken.process.exit().await.unwrap().signal, Some(KILL));
    }
    pids.dedup();
    assert_eq!(pids.len(), 3, "each is a process of its own: {pids:?}");
    assert!(held.is_alive() && !below(agent).is_empty());
    drop(held);
    until_nothing_is_below(agent).await;
}

#[tokio::test]
async fn a_copy_that_died_is_told() {
    let test = TestBox::start().await;
    let first = worker(&test).await;
    let (expected, channel) =
        test.pipe.begin_checkpoint().await.unwrap().expect("there are copies");
    hold(&first, &channel);
    let held = expected.ready().await.unwrap();
    let agent = test.agent.id().expect("it runs");
    for pid in below(agent).into_iter().filter(|pid| *pid != first.process.pid()) {
        // It may be a process that existed for a moment.
        if let Some(pid) = rustix::process::Pid::from_raw(pid.try_into().unwrap()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    let began = Instant::now();
    while held.is_alive() {
        assert!(began.elapsed() < TIMEOUT, "a dead copy counts as alive");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(held.restore().await.unwrap_err().kind(), sandbox_core::ErrorKind::NotFound);
    // The worker is not affected.
    assert!(!first.process.is_dead());
}

#[tokio::test]
async fn a_worker_that_dies_meanwhile_leaves_no_copy_and_nobody_who_waits() {
    let test = TestBox::start().await;
    let first = worker(&test).await;
    first.process.signal(STOP).unwrap();
    let (expected, channel) =
        test.pipe.begin_checkpoint().await.unwrap().expect("there are copies");
    hold(&first, &channel);
    let made = tokio::spawn(expected.ready());
    // It has what it was sent, and never reads it.
    tokio::time::sleep(Duration::from_millis(50)).await;
    first.process.kill_tree().await.unwrap();
    made.await.unwrap().unwrap_err();
    until_nothing_is_below(test.agent.id().expect("it runs")).await;
}
