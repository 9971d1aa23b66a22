//! The end of a sandbox: when it is told, and when nothing is left.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use code_sandboxes::{IsolationMode, Sandbox};
use tokio::time::sleep;

use crate::memory::descendants;
use crate::row::{Bar, Row, Yardstick};
use crate::sample::{Measured, alone, compare, settle, since, text};
use crate::setup::Setup;

/// Children that signals do not end.
const COUNT: usize = 200;

const STUBBORN: &str = "
import os, signal, subprocess
for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, signal.SIG_IGN)
for _ in range(200):
    subprocess.Popen(['sleep', '1000'], restore_signals=False, start_new_session=True)
";

/// How long nothing may have changed before that is given up.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    vec![
        Row::plain("terminate, until it returns", "ms", returning(setup).await, Bar::Below(0.3)),
        Row::compared(
            "terminate with 200 stubborn children, until none is left",
            leaving_nothing(setup).await,
            Bar::Below(20.0),
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

async fn leaving_nothing(setup: &Setup) -> Measured<(f64, Yardstick)> {
    let ours = async || {
        let sandbox = Setup::builder(IsolationMode::Strict).create().await.map_err(text)?;
        let children = stubborn(&sandbox).await?;
        let began = Instant::now();
        sandbox.terminate().await.map_err(text)?;
        while children.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            if began.elapsed() > WAIT_TIMEOUT {
                return Err("some are still there".to_owned());
            }
            sleep(Duration::from_millis(1)).await;
        }
        let took = since(began);
        settle().await;
        Ok(took)
    };
    compare(setup.slow_samples(), "SIGKILL to as many outside", ours, async || outside()).await
}

/// What the kernel takes for the end of such children alone.
fn outside() -> Measured {
    let start = |_| Command::new("sleep").arg("1000").process_group(0).spawn().map_err(text);
    let mut children = (0..COUNT).map(start).collect::<Measured<Vec<_>>>()?;
    let began = Instant::now();
    children.iter_mut().try_for_each(Child::kill).map_err(text)?;
    for child in &mut children {
        child.wait().map_err(text)?;
    }
    Ok(since(began))
}

/// Process ids of all that is in it once it has started that many children. What is made ahead has namespaces of its own.
async fn stubborn(sandbox: &Sandbox) -> Measured<Vec<u32>> {
    let ran = sandbox.run_code(STUBBORN).await.map_err(text)?;
    if let Some(error) = ran.code_error {
        return Err(format!("{error:?}"));
    }
    let mut namespaces = BTreeMap::<_, Vec<u32>>::new();
    for pid in descendants()?.into_keys() {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/pid")).map_err(text)?;
        namespaces.entry(namespace).or_default().push(pid);
    }
    let largest = namespaces.into_values().max_by_key(Vec::len).unwrap_or_default();
    if largest.len() < COUNT {
        return Err(format!("{} processes and not {COUNT}", largest.len()));
    }
    Ok(largest)
}
