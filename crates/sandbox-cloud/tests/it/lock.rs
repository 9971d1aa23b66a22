//! Create locks among processes.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sandbox_cloud::CreateLocks;
use sandbox_core::{CallContext, ErrorKind};

/// The directory of the locks, for the other process.
const DIRECTORY: &str = "SANDBOX_TEST_LOCKS";
const KEYS: [&str; 2] = ["key:a", "name:b"];

async fn acquire(
    directory: &Path,
    limit: Duration,
    keys: &[&str],
) -> sandbox_core::Result<CreateLocks> {
    let call = CallContext::new().with_deadline(Instant::now() + limit);
    let keys = keys.iter().map(|key| (*key).to_owned());
    CreateLocks::acquire(Some(directory), &call, "create", keys).await
}

#[tokio::test]
#[ignore = "the other process of `one_process_at_a_time_has_a_lock`, which starts it"]
async fn hold_until_killed() {
    let directory = std::env::var_os(DIRECTORY).expect("the test that starts this process sets it");
    let _locks = acquire(directory.as_ref(), Duration::from_secs(20), &KEYS).await.unwrap();
    println!("\nheld");
    std::thread::sleep(Duration::from_secs(60));
}

fn holder(directory: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "lock::hold_until_killed", "--ignored", "--nocapture"]);
    let mut child = command.env(DIRECTORY, directory).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "held"), "the other process has the locks");
    child
}

#[tokio::test]
async fn one_process_at_a_time_has_a_lock() {
    let folder = tempfile::tempdir().unwrap();
    let mut other = holder(folder.path());
    let short = Duration::from_millis(300);
    for key in KEYS {
        let error = acquire(folder.path(), short, &[key]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{key}");
        assert!(error.message().contains("another `create` with this key"), "{error}");
    }
    // The control: another key is free.
    acquire(folder.path(), short, &["name:c"]).await.unwrap();
    // A process that is killed has no locks any more.
    other.kill().unwrap();
    other.wait().unwrap();
    let locks = acquire(folder.path(), Duration::from_secs(20), &KEYS).await.unwrap();
    drop(locks);
    assert_eq!(std::fs::read_dir(folder.path().join("locks")).unwrap().count(), 0);
}
