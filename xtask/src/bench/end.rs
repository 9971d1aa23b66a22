//! The end of a sandbox: when it is told, and when nothing is left.

use std::path::Path;
use std::time::{Duration, Instant};

use code_sandboxes::{IsolationMode, Sandbox};
use tokio::time::sleep;

use crate::memory::descendants;
use crate::row::{Bar, Row};
use crate::sample::{Measured, alone, settle, since, text};
use crate::setup::Setup;

/// Children that signals do not end.
const COUNT: usize = 200;

const STUBBORN: &str = "
import os, signal, time
for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, signal.SIG_IGN)
for _ in range(200):
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
";

/// How long nothing may have changed before that is given up.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    let below = |name: String, measured, most| Row::plain(name, "ms", measured, Bar::Below(most));
    vec![
        below("terminate, until it returns".to_owned(), returning(setup).await, 0.3),
        below(
            format!("terminate with {COUNT} stubborn children, until none is left"),
            leaving_nothing(setup).await,
            20.0,
        ),
    ]
}

async fn returning(setup: &Setup) -> Measured {
    alone(setup.samples(), async || {
        let sandbox = Setup::builder(IsolationMode::Strict).create().await.map_err(text)?;
        sandbox.run_code("1+1").await.map_err(text)?;
        // What is made ahead is made by then.
        settle().await;
        let began = Instant::now();
        sandbox.terminate().await.map_err(text)?;
        let took = since(began);
        settle().await;
        Ok(took)
    })
    .await
}

async fn leaving_nothing(setup: &Setup) -> Measured {
    alone(setup.slow_samples(), async || {
        let sandbox = Setup::builder(IsolationMode::Strict).create().await.map_err(text)?;
        let children = stubborn(&sandbox).await?;
        let began = Instant::now();
        sandbox.terminate().await.map_err(text)?;
        while children.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            if began.elapsed() > PATIENCE {
                return Err("some are still there".to_owned());
            }
            sleep(Duration::from_millis(1)).await;
        }
        let took = since(began);
        settle().await;
        Ok(took)
    })
    .await
}

/// Process ids of children that it has started.
async fn stubborn(sandbox: &Sandbox) -> Measured<Vec<u32>> {
    let before = descendants()?;
    let ran = sandbox.run_code(STUBBORN).await.map_err(text)?;
    if let Some(error) = ran.code_error {
        return Err(format!("{error:?}"));
    }
    let children: Vec<_> =
        descendants()?.into_keys().filter(|pid| !before.contains_key(pid)).collect();
    if children.len() < COUNT {
        return Err(format!("{} children and not {COUNT}", children.len()));
    }
    Ok(children)
}
