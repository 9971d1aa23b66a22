//! What sandboxes of every variant are asked for, with the milliseconds it took.

use std::time::Instant;

use code_sandboxes::pool::SandboxPool;
use code_sandboxes::{Registry, Sandbox, SandboxBuilder};

use crate::sample::{Measured, settle, since, text};

/// Runs before the first that counts.
const WARMING: usize = 200;

/// A sandbox that has run enough for what is done once to be over.
pub(crate) async fn warm(builder: SandboxBuilder<Registry>) -> Measured<Sandbox> {
    let sandbox = builder.create().await.map_err(text)?;
    for _ in 0..WARMING {
        run(&sandbox).await?;
    }
    Ok(sandbox)
}

/// A run of next to nothing.
pub(crate) async fn run(sandbox: &Sandbox) -> Measured {
    run_of(sandbox, "1+1", "2").await
}

async fn run_of(sandbox: &Sandbox, code: &str, expected: &str) -> Measured {
    let began = Instant::now();
    let result = sandbox.run_code(code).await.map_err(text)?;
    let took = since(began);
    if result.text() == Some(expected) { Ok(took) } else { Err(format!("{result:?}")) }
}

/// Creates one and runs code in it. The caller ends it, off the clock.
pub(crate) async fn create(
    builder: SandboxBuilder<Registry>,
    code: &str,
    expected: &str,
) -> Measured<(f64, Sandbox)> {
    let began = Instant::now();
    let sandbox = builder.create().await.map_err(text)?;
    run_of(&sandbox, code, expected).await?;
    Ok((since(began), sandbox))
}

/// From nothing to a first result. The end of the sandbox is off the clock, and so is what happens between one sandbox
/// and the next: the next one may be made ahead by then.
pub(crate) async fn first_result(
    builder: SandboxBuilder<Registry>,
    code: &str,
    expected: &str,
) -> Measured {
    let (took, sandbox) = create(builder, code, expected).await?;
    sandbox.kill().await.map_err(text)?;
    drop(sandbox);
    settle().await;
    Ok(took)
}

/// From a pool to a first result.
pub(crate) async fn pooled(pool: &SandboxPool) -> Measured {
    let began = Instant::now();
    let sandbox = pool.acquire().await.map_err(text)?;
    run(&sandbox).await?;
    let took = since(began);
    pool.release(sandbox).await.map_err(text)?;
    Ok(took)
}

/// A command that does nothing.
pub(crate) async fn command(sandbox: &Sandbox) -> Measured {
    let began = Instant::now();
    let result = sandbox.commands().run(["/bin/true"]).await.map_err(text)?;
    let took = since(began);
    if result.success() { Ok(took) } else { Err(format!("{result:?}")) }
}

/// A file of 1 KiB, written and read.
pub(crate) async fn small_file(sandbox: &Sandbox) -> Measured {
    let content = [b'x'; 1024];
    let began = Instant::now();
    sandbox.files().write("small", content.to_vec()).await.map_err(text)?;
    let read = sandbox.files().read("small").await.map_err(text)?;
    let took = since(began);
    if *read == content { Ok(took) } else { Err("another content".to_owned()) }
}
