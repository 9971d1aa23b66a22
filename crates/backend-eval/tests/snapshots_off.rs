//! What stores the variables of an interpreter without isolation.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_eval::{EvalBackend, EvalConfig};
use sandbox_core::{Backend as _, CallContext, ExecutionResult, IsolationMode, Sandbox};

/// Long enough for whatever is not meant to take time.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

async fn run(sandbox: &Sandbox, code: &str) -> ExecutionResult {
    sandbox.run_code(code).timeout(WAIT_TIMEOUT).await.unwrap()
}

async fn text(sandbox: &Sandbox, code: &str) -> String {
    let result = run(sandbox, code).await;
    result.text().unwrap_or_else(|| panic!("{result:?}")).to_owned()
}

/// An interpreter there adopts orphans, and its copy is an orphan that it must not adopt.
#[tokio::test]
async fn without_isolation_the_copy_that_stores_is_no_child_and_lives_as_long_as_its_interpreter() {
    let state = tempfile::tempdir().unwrap();
    let mut config = EvalConfig::default();
    config.snapshot_directory = Some(state.path().join("snapshots"));
    let backend = Arc::new(EvalBackend::new(config));
    let off = || {
        let builder = Sandbox::builder(Arc::<EvalBackend>::clone(&backend));
        builder.isolation(IsolationMode::Off)
    };
    let sandbox = off().create().await.unwrap();
    let adopts = "import ctypes, os, time\nfound = ctypes.c_int()\n\
                  assert ctypes.CDLL(None).prctl(37, ctypes.byref(found), 0, 0, 0) == 0\nfound.value";
    assert_eq!(text(&sandbox, adopts).await, "1");
    let code = "class Waits:\n    def __reduce__(self):\n        \
                with open('pid', 'w') as file: file.write(str(os.getpid()) + '.')\n        \
                while not os.path.exists('go'): time.sleep(0.01)\n        return (int, ())\n\
                waits, x = Waits(), 1";
    let copy = async |sandbox: &Sandbox| -> u32 {
        let began = Instant::now();
        loop {
            let said = sandbox.files().read_text("pid").await.unwrap_or_default();
            if let Some(pid) = said.strip_suffix('.') {
                return pid.parse().unwrap();
            }
            assert!(began.elapsed() < WAIT_TIMEOUT, "it is never stored");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let exists = |pid: u32| std::fs::exists(format!("/proc/{pid}")).unwrap();
    let until_gone = async |pid: u32| {
        let began = Instant::now();
        while exists(pid) {
            assert!(began.elapsed() < WAIT_TIMEOUT, "the copy stays");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let no_child = "try: os.wait()\nexcept ChildProcessError: r = 'none'\nr";
    // What a copy is made of has one thread, and then two.
    for threads in [
        "1",
        "import threading; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    ] {
        run(&sandbox, code).await;
        run(&sandbox, threads).await;
        let taking = tokio::spawn({
            let sandbox = sandbox.clone();
            async move { sandbox.create_snapshot("one").await }
        });
        let pid = copy(&sandbox).await;
        assert_eq!(text(&sandbox, no_child).await, "'none'");
        assert_eq!(text(&sandbox, adopts).await, "1");
        // The end of another interpreter is not its end.
        let other = off().create().await.unwrap();
        run(&other, "1").await;
        other.kill().await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(exists(pid), "it ended with somebody else");
        run(&sandbox, "open('go', 'w').close()").await;
        assert_eq!(taking.await.unwrap().unwrap().variables, ["default"]);
        until_gone(pid).await;
        run(&sandbox, "os.remove('go'); os.remove('pid')").await;
        backend.delete_snapshot(&CallContext::new(), "one").await.unwrap();
    }
    run(&sandbox, code).await;
    let taking = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.create_snapshot("one").await }
    });
    let pid = copy(&sandbox).await;
    sandbox.kill().await.unwrap();
    until_gone(pid).await;
    drop(taking.await);
}
