//! The shortest program: one sandbox, two calls.

use std::time::{Duration, Instant};

use code_sandboxes::Sandbox;

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    for _ in 0..5 {
        let begin = Instant::now();
        let sandbox = Sandbox::builder().timeout(Duration::from_secs(60)).create().await?;
        println!("create {:?}", begin.elapsed());
        sandbox.run_code("x = 40").await?;
        println!("first {:?}", begin.elapsed());
        let result = sandbox
            .run_code("print('hello')\nx + 2")
            .on_stdout(|m| println!("> {}", m.line))
            .await?;
        println!("{:?} {}", result.text(), serde_json::to_string(&result).unwrap());
        let t = Instant::now();
        for _ in 0..1000 {
            sandbox.run_code("1+1").await?;
        }
        println!("warm {:?}", t.elapsed() / 1000);
        println!("{:?}", sandbox.commands().run("id; ls -la /; ls -la /proc/self/fd; env; cat /proc/self/status | grep -E 'Cap|NoNew|NSpid'").await?.stdout);
        println!("{:?}", sandbox.info());
        sandbox.terminate().await?;
    }
    Ok(())
}
