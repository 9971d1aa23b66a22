//! Kernels that fail to start. These tests do not need Jupyter.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::{Duration, Instant};

use jupyter_protocol::kernelspec::{InstalledKernel, KernelSpec};
use jupyter_protocol::manager::{Kernel, KernelError, KernelOptions};
use serde_json::json;

/// Describes a "kernel" that is a shell script.
fn script(text: &str) -> InstalledKernel {
    program(&json!(["sh", "-c", text, "{connection_file}"]))
}

fn program(argv: &serde_json::Value) -> InstalledKernel {
    let spec = json!({"argv": argv, "display_name": "x", "language": "x"});
    InstalledKernel::new(
        "x",
        "/nowhere",
        KernelSpec::from_json(spec.to_string().as_bytes()).unwrap(),
    )
}

#[tokio::test]
async fn an_early_end_is_explained() {
    let before = Instant::now();
    let error = Kernel::start(&script("echo No module named x >&2; exit 3")).await.unwrap_err();
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    assert_eq!(
        error.to_string(),
        "the kernel ended before it was ready (exit status: 3); it wrote: No module named x"
    );
    let KernelError::Ended { status, .. } = error else { panic!("{error}") };
    assert_eq!(status.unwrap().code(), Some(3));
}

/// A child process may keep the standard error open forever.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn one_that_ends_is_not_waited_for_longer_than_itself() {
    let before = Instant::now();
    let error = Kernel::start(&script("echo why >&2; setsid sleep 30 & sleep 0.2; exit 1")).await;
    assert!(error.unwrap_err().to_string().ends_with("it wrote: why"));
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
}

#[tokio::test]
async fn of_many_words_the_last_are_kept() {
    let error = Kernel::start(&script("seq 1 100000 >&2; exit 1")).await.unwrap_err();
    let KernelError::Ended { stderr, .. } = &error else { panic!("{error}") };
    assert!(stderr.ends_with("\n100000") && stderr.len() <= 16 * 1024, "{}", stderr.len());
    assert!(error.to_string().len() < 200, "{error}");
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let error = Kernel::start(&program(&json!(["/no/such/program"]))).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot start /no/such/program: "), "{error}");
}

#[tokio::test]
async fn one_that_never_answers_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let mut options = KernelOptions::default();
    options.start_timeout = Duration::from_millis(500);
    options.env.push(("FILE".to_owned(), file.display().to_string()));
    let kernel = script("echo $$ > $FILE; echo busy >&2; exec sleep 1000");
    let error = Kernel::start_with(&kernel, options).await.unwrap_err();
    assert!(error.to_string().contains("500ms") && error.to_string().contains("busy"), "{error}");
    let pid = std::fs::read_to_string(file).unwrap();
    let before = Instant::now();
    let is_there = || {
        let mut kill = std::process::Command::new("kill");
        let kill = kill.args(["-0", pid.trim()]).stderr(std::process::Stdio::null());
        kill.status().unwrap().success()
    };
    while is_there() {
        assert!(before.elapsed() < Duration::from_secs(5), "it is left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
