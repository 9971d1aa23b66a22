//! Programs of any language run beside the interpreter, in the same files.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use code_sandboxes::Sandbox;

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    let sandbox = Sandbox::builder().create().await?;
    sandbox.run_code("open('numbers.txt', 'w').write('3\\n1\\n2\\n')").await?;

    let result = sandbox.commands().run("sort numbers.txt").await?;
    println!("sorted: {}", result.stdout.replace('\n', " "));

    // No shell, so no quoting.
    let result = sandbox.commands().run(["echo", "it's", "$HOME"]).await?;
    println!("echoed: {}", result.stdout.trim_end());

    let result = sandbox.commands().run("tr a-z A-Z").stdin("from standard input").await?;
    println!("{}", result.stdout);

    let result = sandbox.commands().run("sleep 60").timeout(Duration::from_millis(100)).await?;
    println!("{}", result.failure.map(|failure| failure.message).unwrap_or_default());
    sandbox.terminate().await
}
