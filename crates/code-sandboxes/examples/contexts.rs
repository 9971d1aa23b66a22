//! Contexts are processes: each has variables, a working directory and a death of its own.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use code_sandboxes::Sandbox;

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    let sandbox = Sandbox::builder().env("PROJECT", "demo").create().await?;
    sandbox.create_context(Some("first")).await?;
    sandbox.create_context(Some("second")).await?;

    // They run at the same time.
    let (first, second) = tokio::join!(
        sandbox.run_code("import os, time; time.sleep(0.1); v = 1; os.getpid()").context("first"),
        sandbox.run_code("import os, time; time.sleep(0.1); v = 2; os.getpid()").context("second"),
    );
    let (first, second) = (first?, second?);
    println!("processes {} and {}", first.text().unwrap_or("?"), second.text().unwrap_or("?"));

    // One that hangs is ended; the other keeps its variables.
    let stuck = "import signal, time\nsignal.signal(2, signal.SIG_IGN)\ntime.sleep(60)";
    let ended =
        sandbox.run_code(stuck).context("first").timeout(Duration::from_millis(200)).await?;
    println!("first: {}", ended.execution_error.unwrap_or_default());
    let kept = sandbox.run_code("v").context("second").await?;
    println!("second still has v = {}", kept.text().unwrap_or("?"));

    // A variable of the environment for one run.
    let run = sandbox
        .run_code("import os; os.environ['PROJECT'], os.environ['MODE']")
        .env("MODE", "test");
    println!("environment {}", run.await?.text().unwrap_or("?"));
    sandbox.terminate().await
}
