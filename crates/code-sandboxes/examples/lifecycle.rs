//! Start, stop, start again; tags; lifetimes.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use code_sandboxes::Sandbox;

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    for environment in Sandbox::list_environments("local-eval").await? {
        println!("environment {}: {}", environment.name, environment.title);
    }

    let sandbox = Sandbox::builder()
        .name("demo")
        .tag("project", "demo")
        .lifetime("10m")
        .idle_timeout(Duration::from_secs(60))
        .build()?
        .start()
        .await?;
    println!("{} is {}", sandbox.id(), sandbox.status());

    sandbox.set_tags([("env", "prod")]).await?;
    sandbox.set_timeout(Duration::from_secs(120))?;
    let left = sandbox.info().remaining_time().unwrap_or_default();
    println!("tags {:?}, {} s left", sandbox.tags(), left.as_secs());

    sandbox.run_code("x = 1").await?;
    sandbox.stop().await?;
    println!("stopped: {}", sandbox.status());
    sandbox.start().await?;
    let result = sandbox.run_code("x").await?;
    println!("after a new start: {}", result.code_error.map(|e| e.to_string()).unwrap_or_default());
    sandbox.kill().await
}
