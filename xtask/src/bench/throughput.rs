//! Output: many lines, and many bytes.

use std::time::Instant;

use code_sandboxes::{IsolationMode, Sandbox};
use tokio::process::Command;

use crate::Setup;
use crate::memory::own_resident;
use crate::row::{Bar, Row};
use crate::sample::{Measured, compare, compared, median, program, timed};

/// Bytes of the large output.
const LARGE: u64 = 100_000_000;

/// Memory that the host may need for it. The output itself is much larger.
const MOST_GROWTH: f64 = 32.0;

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    let mut rows = vec![lines(setup).await];
    rows.extend(bytes(setup).await);
    rows
}

async fn sandbox(setup: &Setup) -> Measured<Sandbox> {
    setup.builder(IsolationMode::Strict).create().await.map_err(|error| error.to_string())
}

async fn lines(setup: &Setup) -> Row {
    let code = "for i in range(10000): print(i)";
    let measured = async {
        let sandbox = sandbox(setup).await?;
        compare(
            setup.samples(20.0),
            async || timed(async { sandbox.run_code(code).await }).await,
            async || program(Command::new(&setup.python).args(["-c", code])).await,
        )
        .await
    };
    compared("10,000 printed lines", "python3 into a pipe", measured.await, Bar::Ratio(1.5))
}

async fn bytes(setup: &Setup) -> [Row; 2] {
    let measured = large_output(setup, if setup.quick { 3 } else { 15 }).await;
    let (speed, growth) = match measured {
        Ok((speed, growth)) => (Ok(speed), Ok(growth)),
        Err(why) => (Err(why.clone()), Err(why)),
    };
    [
        Row::plain("100 MB of stdout", "MB/s", speed, Bar::Least(300.0)),
        Row::plain("100 MB of stdout, growth of the host", "MB", growth, Bar::Most(MOST_GROWTH)),
    ]
}

/// MB/s, and MB of memory that this process needed on top.
async fn large_output(setup: &Setup, samples: usize) -> Measured<(f64, f64)> {
    let sandbox = sandbox(setup).await?;
    let code = "import sys\nfor _ in range(100): n = sys.stdout.write('x' * 1_000_000)";
    let before = own_resident()?;
    let mut speeds = Vec::new();
    for _ in 0..samples {
        let began = Instant::now();
        let result = sandbox.run_code(code).await.map_err(|error| error.to_string())?;
        let took = began.elapsed().as_secs_f64();
        if result.stdout_totals.bytes_total != LARGE {
            return Err(format!("{} bytes came", result.stdout_totals.bytes_total));
        }
        speeds.push(LARGE as f64 / 1e6 / took);
    }
    let growth = own_resident()?.saturating_sub(before);
    Ok((median(&mut speeds), growth as f64 / 1e6))
}
