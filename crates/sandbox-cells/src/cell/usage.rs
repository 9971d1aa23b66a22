//! Measures and pauses a cell.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandbox_core::{Error, ErrorKind, Metrics, Result};
use sandbox_isolation::Error as Cause;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::CellHost;

/// How long the kernel may take to report the usage of a cell.
const USAGE_TIMEOUT: Duration = Duration::from_secs(20);

/// The processor time that was reported last, in microseconds. The time of ended processes that is not known any more
/// does not lower it.
#[derive(Debug, Default)]
pub(super) struct Used(AtomicU64);

impl Used {
    fn or_more(&self, now: Duration) -> Duration {
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.0.fetch_max(now, Ordering::AcqRel).max(now))
    }
}

impl CellHost {
    /// Measures what its processes use, from the kernel's figures.
    ///
    /// # Errors
    /// `Terminated` when the cell has ended; `Unavailable` when the kernel does not answer in time.
    pub async fn metrics(&self) -> Result<Metrics> {
        let (living, gone) = self.workers.usage();
        let cell = self.cell.clone();
        let failed = |message: String| Error::new(ErrorKind::Unavailable, "metrics", message);
        let looked = timeout(USAGE_TIMEOUT, spawn_blocking(move || cell.usage(&living)));
        let usage = match looked.await {
            Ok(Ok(Ok(usage))) => usage,
            Ok(Ok(Err(error))) => {
                return Err(failed("the usage of the sandbox cannot be read".to_owned())
                    .with_source(error)
                    .with_hint("ask again, or end the sandbox"));
            }
            Ok(Err(error)) => {
                return Err(failed("the runtime is ending".to_owned()).with_source(error));
            }
            Err(_) => {
                let message = format!(
                    "the kernel has not reported the usage of the sandbox within {USAGE_TIMEOUT:?}"
                );
                return Err(failed(message).with_hint("ask again, or end the sandbox"));
            }
        };
        Ok(Metrics {
            cpu_time: self.usage.or_more(usage.cpu + gone).as_secs_f64(),
            memory: usage.memory,
            disk: usage.files,
            processes: usage.processes,
        })
    }

    /// Pauses everything in the cell; see [`Cell::pause`](sandbox_isolation::Cell::pause).
    ///
    /// # Errors
    /// `Unavailable` when something does not stop, and then everything continues; `Terminated` when the cell has ended.
    pub async fn pause(&self) -> Result<()> {
        self.cell.pause().await.map_err(|error| not_held("pause", error))
    }

    /// Resumes everything in the cell, but for what had been stopped before.
    ///
    /// # Errors
    /// `Terminated` when the cell has ended.
    pub async fn resume(&self) -> Result<()> {
        self.cell.resume().await.map_err(|error| not_held("resume", error))
    }
}

fn not_held(operation: &'static str, error: Cause) -> Error {
    if matches!(error, Cause::Closed) {
        return Error::new(ErrorKind::Terminated, operation, "the sandbox has ended");
    }
    let message = "the processes of the sandbox cannot be stopped or continued".to_owned();
    Error::new(ErrorKind::Unavailable, operation, message)
        .with_source(error)
        .with_hint("try again, or end what runs there")
}
