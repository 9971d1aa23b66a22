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
        .lifetime(Duration::from_secs(600))
        .idle_timeout(Duration::from_secs(60))
        .build()?;
    assert!(!sandbox.is_started());
    sandbox.start().await?;
    println!("{} is {}", sandbox.id().unwrap_or_default(), sandbox.status().as_str());

    sandbox.set_tags([("env", "prod")]).await?;
    sandbox.set_timeout(Duration::from_secs(120))?;
    let left = sandbox.info().and_then(|info| info.remaining_time()).unwrap_or_default();
    println!("tags {:?}, {left:.0} s left", sandbox.tags());

    sandbox.run_code("x = 1").await?;
    sandbox.stop().await?;
    println!("stopped: {}", sandbox.status().as_str());
    sandbox.start().await?;
    let result = sandbox.run_code("x").await?;
    println!("after a new start: {}", result.code_error.map(|e| e.to_string()).unwrap_or_default());
    sandbox.kill().await
}
