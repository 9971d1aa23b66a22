//! Create, run, look at the result: the first program.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use code_sandboxes::Sandbox;

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    let sandbox =
        Sandbox::builder().variant("local-eval").timeout(Duration::from_secs(60)).create().await?;

    sandbox.run_code("x = 1 + 1").await?;
    let result = sandbox.run_code("print(x)").await?;
    println!("printed: {}", result.stdout_trimmed());

    // The last expression of a block is its result.
    let result = sandbox.run_code("x = 10\nx * 2").await?;
    println!("result: {}", result.text().unwrap_or("none"));

    // Variables, imports and definitions stay.
    sandbox.run_code("counter = 1").await?;
    sandbox.run_code("counter += 1").await?;
    println!("counter: {}", sandbox.get_variable::<i64>("counter").await?);

    // Top-level await works.
    let result = sandbox.run_code("import asyncio\nawait asyncio.sleep(0.01)\n'awake'").await?;
    println!("awaited: {}", result.text().unwrap_or("none"));

    sandbox.terminate().await
}
