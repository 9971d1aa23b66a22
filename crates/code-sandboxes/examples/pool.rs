//! Sandboxes that are ready before they are needed, for a program whose users shall not wait.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use code_sandboxes::Sandbox;
use code_sandboxes::pool::SandboxPool;

#[tokio::main]
async fn main() -> code_sandboxes::Result<()> {
    let pool = SandboxPool::start(3, || Sandbox::builder().variant("local-eval")).await?;
    println!("ready: {}", pool.status().available);

    // Three tasks that an agent works on at the same time.
    let tasks = ["sum(range(100))", "'-'.join('abc')", "2 ** 100"];
    let answers = tasks.map(|code| {
        let pool = pool.clone();
        tokio::spawn(async move {
            let sandbox = pool.acquire().await?;
            let result = sandbox.run_code(code).await?;
            // It is ended; the next owner gets another one.
            pool.release(sandbox).await?;
            Ok::<_, code_sandboxes::Error>(result.text().map(str::to_owned))
        })
    });
    for (code, answer) in tasks.iter().zip(answers) {
        match answer.await {
            Ok(answer) => println!("{code} = {}", answer?.unwrap_or_default()),
            Err(broken) => println!("{code}: {broken}"),
        }
    }
    println!("in use: {}", pool.status().in_use);
    pool.close().await
}
