//! Snapshots of an interpreter with 100 MB of its own, against a bare fork of the same process.

use std::time::Instant;

use code_sandboxes::{IsolationMode, Sandbox, SandboxBuilder};

use crate::row::{Bar, Row, Yardstick};
use crate::sample::{Measured, alone, compare, settle, since, text};
use crate::sandboxes::first_result;
use crate::setup::Setup;

/// In pages of 4 KiB, each of which a fork has to look at.
const STATE: &str = "import os, time\nstate = [bytes([n % 251]) * 65536 for n in range(1600)]";

/// Seconds that the process itself is held up by a fork.
const FORK: &str = "began = time.perf_counter()\n\
pid = os.fork()\n\
if pid == 0: os._exit(0)\n\
took = time.perf_counter() - began\n\
os.waitpid(pid, 0)\n\
took";

/// Of files alone.
const FILES: &str = "for n in range(100): open(f'{n}.txt', 'w').write('x' * 10000)";

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    let names = ["create_snapshot holds up 100 MB", "restore_snapshot of it"];
    vec![
        Row::compared(names[0], taking(setup).await, Bar::Ratio(1.5)),
        Row::compared(names[1], restoring(setup).await, Bar::RatioAnd(2.0, 2.0)),
        Row::information("create_snapshot of it, to its end", storing(setup).await),
        Row::information("create from a snapshot of 100 files", starting(setup).await),
        Row::plain(
            "create from a template with numpy and pandas imported",
            "ms",
            from_template(setup).await,
            Bar::Below(20.0),
        ),
    ]
}

/// What a template is prepared with, and what its sandboxes are asked.
const PREPARED: &str = "import numpy, pandas\nprices = pandas.DataFrame({'a': [1, 2, 3]})";
const ASKED: &str = "int(prices.a.sum())";

async fn large() -> Result<Sandbox, String> {
    let sandbox =
        Sandbox::builder().isolation(IsolationMode::Strict).create().await.map_err(text)?;
    let made = sandbox.run_code(STATE).await.map_err(text)?;
    if made.success() { Ok(sandbox) } else { Err(format!("{:?}", made.code_error)) }
}

/// A run with nothing to wait for.
async fn once(sandbox: &Sandbox) -> Measured {
    let began = Instant::now();
    sandbox.run_code("None").await.map_err(text)?;
    Ok(since(began))
}

async fn bare_fork(sandbox: &Sandbox) -> Measured {
    let result = sandbox.run_code(FORK).await.map_err(text)?;
    let took: Option<f64> = result.text().and_then(|text| text.parse().ok());
    settle().await;
    took.map(|seconds| seconds * 1e3).ok_or_else(|| format!("{:?}", result.code_error))
}

fn name() -> String {
    format!("bench-{}", code_sandboxes::random_hex(6))
}

async fn delete(name: &str) -> Result<(), String> {
    Sandbox::delete_snapshot("local-eval", name).await.map_err(text)
}

async fn taking(setup: &Setup) -> Measured<(f64, Yardstick)> {
    let sandbox = large().await?;
    let take = async || {
        let name = name();
        let alone = once(&sandbox).await?;
        let began = Instant::now();
        // The run waits for what the snapshot needs of the interpreter, and no longer.
        let held_up = async {
            once(&sandbox).await?;
            Measured::Ok(since(began) - alone)
        };
        let (info, took) = tokio::join!(sandbox.create_snapshot(&name), held_up);
        let (info, took) = (info.map_err(text)?, took?);
        delete(&name).await?;
        settle().await;
        let whole = info.contexts == ["default"] && info.variables == ["default"];
        if whole { Ok(took) } else { Err(format!("{info:?}")) }
    };
    compare(setup.slow_samples(), "bare fork()", take, async || bare_fork(&sandbox).await).await
}

/// With the variables on disk.
async fn storing(setup: &Setup) -> Measured {
    let sandbox = large().await?;
    alone(setup.slow_samples(), async || {
        let name = name();
        let began = Instant::now();
        sandbox.create_snapshot(&name).await.map_err(text)?;
        let took = since(began);
        delete(&name).await?;
        settle().await;
        Ok(took)
    })
    .await
}

async fn restoring(setup: &Setup) -> Measured<(f64, Yardstick)> {
    let (sandbox, name) = (large().await?, name());
    sandbox.create_snapshot(&name).await.map_err(text)?;
    let restore = async || {
        let began = Instant::now();
        let info = sandbox.restore_snapshot(&name).await.map_err(text)?;
        let took = since(began);
        settle().await;
        if info.contexts == ["default"] { Ok(took) } else { Err(format!("{info:?}")) }
    };
    let fork = async || bare_fork(&sandbox).await;
    let measured = compare(setup.samples(), "bare fork()", restore, fork).await;
    delete(&name).await?;
    measured
}

/// To its first result. None is made ahead, and the interpreter that has the modules is warm.
async fn from_template(setup: &Setup) -> Measured {
    let python = setup.packages_python.to_string_lossy().into_owned();
    let builder =
        || Setup::builder(IsolationMode::Strict).provider_option("python", python.clone());
    let (template, name) = (builder().create().await.map_err(text)?, name());
    let made = template.run_code(PREPARED).await.map_err(text)?;
    if !made.success() {
        return Err(format!("{:?}", made.code_error));
    }
    template.create_snapshot(&name).await.map_err(text)?;
    let mut count = 0;
    let start = async || {
        count += 1;
        let builder = builder().snapshot_name(&name).env("COUNT", count.to_string());
        first_result(builder, ASKED, "6").await
    };
    let measured = alone(setup.samples(), start).await;
    delete(&name).await?;
    measured
}

async fn starting(setup: &Setup) -> Measured {
    let builder = |snapshot: Option<&str>| {
        let builder: SandboxBuilder<_> = Sandbox::builder().isolation(IsolationMode::Strict);
        match snapshot {
            Some(name) => builder.snapshot_name(name),
            None => builder,
        }
    };
    let (sandbox, name) = (builder(None).create().await.map_err(text)?, name());
    sandbox.run_code(FILES).await.map_err(text)?;
    sandbox.create_snapshot(&name).await.map_err(text)?;
    let mut count = 0;
    let start = async || {
        // Unlike the last one, so that none is made ahead.
        count += 1;
        let builder = builder(Some(&name)).env("COUNT", count.to_string());
        let began = Instant::now();
        let other = builder.create().await.map_err(text)?;
        let took = since(began);
        other.kill().await.map_err(text)?;
        settle().await;
        Ok(took)
    };
    let measured = alone(setup.samples(), start).await;
    delete(&name).await?;
    measured
}
