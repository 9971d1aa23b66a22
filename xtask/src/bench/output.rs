//! Output: many lines, and many bytes.

use std::process::Command;
use std::time::Instant;

use code_sandboxes::{IsolationMode, Sandbox};

use crate::memory::{forget_peak, peak};
use crate::row::{Bar, Row};
use crate::sample::{Measured, apart, compare, median, since, text, whole};
use crate::setup::Setup;

const LINES: &str = "for i in range(10000): print(i)";
const LINE_BYTES: u64 = 48_890;

const LARGE: &str = "import sys\nfor _ in range(100): n = sys.stdout.write('x' * 1_000_000)";
const LARGE_BYTES: u64 = 100_000_000;

/// Megabytes that the host may need for it. The output itself is larger.
const MAX_GROWTH: f64 = 64.0;

/// Printed lines, collected, against an interpreter that prints them into a pipe.
pub(crate) async fn lines(setup: &Setup) -> Row {
    let measured = async {
        let sandbox = sandbox().await?;
        compare(
            setup.samples(),
            "python3 into a pipe",
            async || printed(&sandbox, LINES, LINE_BYTES).await,
            async || whole(Command::new(&setup.python).args(["-c", LINES])),
        )
        .await
    };
    Row::compared("10,000 printed lines", measured.await, Bar::Ratio(1.5))
}

/// Speed, and what the host needs for it.
pub(crate) async fn bytes(setup: &Setup) -> Vec<Row> {
    let (speed, growth) = apart(large(if setup.quick { 5 } else { 20 }).await);
    vec![
        Row::plain("100 MB of stdout", "MB/s", speed, Bar::Least(300.0)),
        Row::plain("100 MB of stdout, peak of the host", "MB", growth, Bar::Below(MAX_GROWTH)),
    ]
}

async fn sandbox() -> Measured<Sandbox> {
    Setup::builder(IsolationMode::Strict).create().await.map_err(text)
}

/// Milliseconds of a run that prints so many bytes.
async fn printed(sandbox: &Sandbox, code: &str, bytes: u64) -> Measured {
    let began = Instant::now();
    let result = sandbox.run_code(code).await.map_err(text)?;
    let took = since(began);
    let came = result.stdout_totals.bytes_total;
    if came == bytes { Ok(took) } else { Err(format!("{came} bytes came, not {bytes}")) }
}

/// MB/s, and the MB that this process needed on top at most.
async fn large(samples: usize) -> Measured<(f64, f64)> {
    let sandbox = sandbox().await?;
    forget_peak()?;
    let before = peak()?;
    let mut times = Vec::new();
    for _ in 0..samples {
        times.push(printed(&sandbox, LARGE, LARGE_BYTES).await?);
    }
    let growth = peak()?.saturating_sub(before);
    let seconds = median(&mut times) / 1e3;
    Ok((LARGE_BYTES as f64 / 1e6 / seconds, growth as f64 / 1e6))
}
