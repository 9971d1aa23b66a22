//! A layer that prints each run and command, and the error of one that did not start.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;

use code_sandboxes::{
    Backend, Error, Hooks, Layer, Observer, Operation, OperationEvent, OperationRequest, Result,
    Sandbox, intercept_backend,
};

#[derive(Debug)]
struct Audit;

impl Layer for Audit {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        intercept_backend(inner, Arc::new(Self))
    }
}

#[async_trait::async_trait]
impl Hooks for Audit {
    async fn before(&self, operation: &Operation<'_>) -> Result<Box<dyn Observer>> {
        match operation.request {
            OperationRequest::RunCode { code, .. } => println!("run: {code}"),
            OperationRequest::StartCommand { command, .. } => println!("command: {command}"),
            _ => {}
        }
        Ok(Box::new(Line(operation.name)))
    }
}

struct Line(&'static str);

#[async_trait::async_trait]
impl Observer for Line {
    async fn failed(&mut self, error: Error) -> Error {
        println!("{}: {error}", self.0);
        error
    }

    fn event(&mut self, _: OperationEvent<'_>) -> Result<()> {
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let sandbox = Sandbox::builder().layer(Audit).create().await?;
    sandbox.run_code("6 * 7").await?;
    sandbox.commands().run("echo hi").await?;
    sandbox.commands().run(["no-such-program"]).await.expect_err("there is none");
    sandbox.terminate().await
}
