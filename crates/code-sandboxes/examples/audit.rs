//! A layer that prints each run and command, and the error of one that did not start.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use code_sandboxes::{OperationLayer, OperationRequest, Result, Sandbox};

#[tokio::main]
async fn main() -> Result<()> {
    let audit = OperationLayer::new(|operation| match operation.request {
        OperationRequest::RunCode { code, .. } => println!("run: {code}"),
        OperationRequest::StartCommand { command, .. } => println!("command: {command}"),
        _ => {}
    })
    .on_error(|name, error| println!("{name}: {error}"));

    let sandbox = Sandbox::builder().layer(audit).create().await?;
    sandbox.run_code("6 * 7").await?;
    sandbox.commands().run("echo hi").await?;
    sandbox.commands().run(["no-such-program"]).await.expect_err("there is none");
    sandbox.terminate().await
}
