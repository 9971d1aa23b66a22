//! Sandboxes of a runtime that nothing polls any more.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::fs;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use backend_eval::EvalBackend;
use sandbox_core::{IsolationMode, Sandbox, SandboxStatus};
use tokio::runtime::{Builder, Runtime};

const ISOLATION: [IsolationMode; 2] = [IsolationMode::Strict, IsolationMode::Off];

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A sandbox with a process that has this argument, and no other process of this host has.
async fn sandbox(isolation: IsolationMode, lifetime: Duration, argument: &str) -> Sandbox {
    let backend = Arc::new(EvalBackend::default());
    let builder = Sandbox::builder(backend).isolation(isolation).lifetime(lifetime);
    let sandbox = builder.create().await.unwrap();
    assert_eq!(sandbox.run_code("1 + 1").await.unwrap().text(), Some("2"));
    sandbox.commands().run(["sleep", argument]).background().start().await.unwrap();
    sandbox
}

fn is_there(argument: &str) -> bool {
    let command = format!("sleep\0{argument}\0");
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        fs::read(entry.path().join("cmdline")).is_ok_and(|found| found == command.as_bytes())
    })
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_is_dropped_ends() {
    for (isolation, argument) in ISOLATION.into_iter().zip(["86421.25", "86421.5"]) {
        let runtime = runtime();
        let sandbox = runtime.block_on(sandbox(isolation, Duration::from_secs(600), argument));
        eventually("control", || is_there(argument));
        drop(sandbox);
        eventually("it lives on", || !is_there(argument));
    }
}

#[test]
fn a_lifetime_ends() {
    for (isolation, argument) in ISOLATION.into_iter().zip(["86422.25", "86422.5"]) {
        let runtime = runtime();
        let sandbox = runtime.block_on(sandbox(isolation, Duration::from_secs(2), argument));
        eventually("it lives on", || !is_there(argument));
        assert_eq!(sandbox.status(), SandboxStatus::Terminated);
    }
}
