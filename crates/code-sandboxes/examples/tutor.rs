//! A tutor that runs the code of students: each answer in a sandbox of its own, with limits, scanned before it runs.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use code_sandboxes::pool::SandboxPool;
use code_sandboxes::{ByteSize, ErrorKind, Result, Sandbox};
use sandbox_layers::{ScanLayer, ScanPolicy, ScanRule};

/// Code that checks the function of a student.
const CHECK: &str =
    "assert [fib(n) for n in range(8)] == [0, 1, 1, 2, 3, 5, 8, 13], 'wrong numbers'";

const ANSWERS: [(&str, &str); 5] = [
    ("Ada", "def fib(n):\n    a, b = 0, 1\n    for _ in range(n): a, b = b, a + b\n    return a"),
    ("Bob", "def fib(n): return n"),
    ("Cem", "def fib(n): return fib(n - 1) + fib(n - 2)"),
    ("Dee", "def fib(n):\n    while True: pass"),
    ("Eve", "import os\nos.system('cat /etc/passwd')\ndef fib(n): return 0"),
];

#[tokio::main]
async fn main() -> Result<()> {
    let policy = ScanPolicy::refuse().allow_imports(["math", "json"]).without(ScanRule::Unread);
    let class = move || Sandbox::builder().layer(ScanLayer::new(policy.clone()));
    // Sandboxes are ready before they are needed, and none is used twice.
    let pool = SandboxPool::start(2, class).await?;
    for (student, answer) in ANSWERS {
        let sandbox = pool.acquire().await?;
        let run = sandbox.run_code(format!("{answer}\n{CHECK}"));
        let limits = run.timeout(Duration::from_secs(1)).memory(ByteSize::mib(64));
        let verdict = match limits.await {
            Ok(result) if result.success() => "right".to_owned(),
            Ok(result) => match (result.code_error, result.failure) {
                (Some(error), _) => format!("not yet: {error}"),
                (_, failure) => failure.map_or_else(String::new, |failure| failure.message),
            },
            Err(refused) if refused.kind() == ErrorKind::PermissionDenied => {
                format!("not allowed: {}", refused.message())
            }
            Err(error) => return Err(error),
        };
        println!("{student}: {verdict}");
        assert_eq!(verdict == "right", student == "Ada", "{student}: {verdict}");
        pool.release(sandbox).await?;
    }
    pool.close().await
}
