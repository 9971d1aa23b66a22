//! Tell apart: it worked, the code failed, the code exited, the run itself failed.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use code_sandboxes::{ExecutionResult, FailureKind, InterpreterState, Sandbox};

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    Sandbox::builder()
        .scope(async |sandbox| {
            report(&sandbox.run_code("6 * 7").await?);
            report(&sandbox.run_code("x = 1 / 0").await?);
            report(&sandbox.run_code("import sys; sys.exit(3)").await?);
            report(&sandbox.run_code("import os; os._exit(7)").await?);

            let stuck =
                "import time\nwhile True:\n  try: time.sleep(9)\n  except BaseException: pass";
            let result = sandbox.run_code(stuck).timeout(Duration::from_millis(200)).await?;
            report(&result);
            assert_eq!(result.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
            assert_eq!(result.state, InterpreterState::Lost);

            // The session goes on with a fresh interpreter, and says so.
            let result = sandbox.run_code("'back'").await?;
            assert!(result.restarted);
            report(&result);
            Ok(())
        })
        .await
}

fn report(result: &ExecutionResult) {
    if !result.execution_ok {
        println!("the run failed: {}", result.execution_error.as_deref().unwrap_or("unknown"));
    } else if let Some(status) = result.exit_code.filter(|status| *status != 0) {
        println!("the code exited with status {status}");
    } else if let Some(error) = &result.code_error {
        println!("the code raised {error}");
    } else {
        let duration = result.duration().unwrap_or_default();
        println!("result {} after {duration:?}", result.text().unwrap_or("none"));
    }
}
