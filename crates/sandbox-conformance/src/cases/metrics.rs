//! What a sandbox uses is what code in it has used.

use sandbox_core::{ErrorKind, Metrics, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, eventually, ok, refused};

pub(super) fn cases() -> Vec<Case> {
    cases!("metrics", [metrics, run_code], {
        cpu_time_is_counted;
        memory_is_counted;
        files_are_counted needs files;
        processes_are_counted needs command_background;
        a_sandbox_that_has_ended_has_none;
    })
}

const MIB: u64 = 1 << 20;

/// What it uses, and what it uses when that code has run.
async fn before_and_after(f: &Fixture, code: &str) -> Checked<(Metrics, Metrics)> {
    let sandbox = f.sandbox().await?;
    let before = sandbox.metrics().await?;
    ok(&sandbox, code).await?;
    Ok((before, sandbox.metrics().await?))
}

async fn cpu_time_is_counted(f: Fixture) -> Checked {
    let code = "import time\nwhile time.process_time() < 1: pass";
    let (before, after) = before_and_after(&f, code).await?;
    let used = after.cpu_time - before.cpu_time;
    // The interpreter has used some of that second before.
    ensure!(used > 0.3, "{used} s, of {after:?}");
    Ok(())
}

async fn memory_is_counted(f: Fixture) -> Checked {
    let (before, after) = before_and_after(&f, "kept = b'x' * (100 << 20)").await?;
    let used = after.memory.saturating_sub(before.memory);
    ensure!((90 * MIB..200 * MIB).contains(&used), "{used} bytes, of {after:?}");
    Ok(())
}

async fn files_are_counted(f: Fixture) -> Checked {
    let code = "_ = open('large', 'wb').write(b'x' * (20 << 20))";
    let (before, after) = before_and_after(&f, code).await?;
    let used = after.disk.saturating_sub(before.disk);
    ensure!((20 * MIB..21 * MIB).contains(&used), "{used} bytes, of {after:?}");
    Ok(())
}

async fn processes(sandbox: &Sandbox) -> Checked<u32> {
    Ok(sandbox.metrics().await?.processes)
}

async fn processes_are_counted(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // Its interpreter may start when it is needed.
    ok(&sandbox, "1").await?;
    let before = processes(&sandbox).await?;
    ensure!(before > 0, "it has none");
    let command = sandbox.commands().run(["sleep", "300"]).background().start().await?;
    ensure_eq!(processes(&sandbox).await?, before + 1);
    command.control.signal(9, true).await?;
    let is_gone = async || Ok(processes(&sandbox).await? == before);
    eventually("its end", WAIT_TIMEOUT, is_gone).await
}

async fn a_sandbox_that_has_ended_has_none(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.terminate().await?;
    refused(sandbox.metrics().await, ErrorKind::Terminated)?;
    Ok(())
}
