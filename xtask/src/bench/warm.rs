//! One more run in an interpreter that is there.

use code_sandboxes::{IsolationMode, Sandbox};

use crate::echo::{Echo, SERIES};
use crate::row::{Bar, Row, Yardstick};
use crate::sample::{Measured, alone, compare, median, text};
use crate::sandboxes;
use crate::setup::Setup;

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    vec![
        Row::information("warm run_code (0.15 ms expected)", by_itself(setup).await),
        Row::compared(
            "warm run_code, in a cell",
            in_a_cell(setup).await,
            Bar::RatioAnd(1.0, 0.015),
        ),
        Row::compared("warm run_code beside an echo", beside_echo(setup).await, Bar::Ratio(3.0)),
        Row::information("warm run_code, threads of a runtime", on_threads(setup)),
    ]
}

async fn by_itself(setup: &Setup) -> Measured {
    let sandbox = warm(IsolationMode::Strict).await?;
    alone(setup.samples(), async || sandboxes::run(&sandbox).await).await
}

/// Keeps an interpreter to the last processor it may use.
const STAY: &str = "import os\nos.sched_setaffinity(0, {max(os.sched_getaffinity(0))})";

/// What isolation adds to a run. Both are on the same processor: how far it is from one to the next differs by more than that.
async fn in_a_cell(setup: &Setup) -> Measured<(f64, Yardstick)> {
    let (strict, off) = (warm(IsolationMode::Strict).await?, warm(IsolationMode::Off).await?);
    for sandbox in [&strict, &off] {
        let placed = sandbox.run_code(STAY).await.map_err(text)?;
        if !placed.success() {
            return Err(format!("{:?}", placed.code_error));
        }
    }
    let (samples, rounds) = if setup.quick { (400, 1) } else { (2000, 3) };
    let ours = async || sandboxes::run(&strict).await;
    compare((samples, rounds), "isolation off", ours, async || sandboxes::run(&off).await).await
}

/// Both in one interpreter. Without isolation, which changes nothing about a run that has its interpreter.
async fn beside_echo(setup: &Setup) -> Measured<(f64, Yardstick)> {
    let sandbox = warm(IsolationMode::Off).await?;
    let mut echo = Echo::connect(&sandbox).await?;
    let runs = async || {
        let mut last = Err("no run".to_owned());
        for _ in 0..SERIES {
            last = sandboxes::run(&sandbox).await;
        }
        last
    };
    compare(setup.samples(), "bare echo", runs, async || echo.last_of_series().await).await
}

/// The same as a task of a runtime with several threads, as in a large program.
fn on_threads(setup: &Setup) -> Measured {
    let work = best_of(setup.samples());
    let run = move || -> Measured {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.enable_all().build().map_err(text)?;
        runtime.block_on(runtime.spawn(work)).map_err(text)?
    };
    std::thread::spawn(run).join().map_err(|_| "it panicked".to_owned())?
}

/// A future that any thread can go on with, which one that borrows a closure is not.
async fn best_of((samples, rounds): (usize, usize)) -> Measured {
    let sandbox = warm(IsolationMode::Strict).await?;
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let mut found = Vec::new();
        for _ in 0..samples {
            found.push(sandboxes::run(&sandbox).await?);
        }
        best = best.min(median(&mut found));
    }
    Ok(best)
}

async fn warm(isolation: IsolationMode) -> Measured<Sandbox> {
    sandboxes::warm(Setup::builder(isolation)).await
}
