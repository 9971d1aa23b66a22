//! The usage of a sandbox, as its agent reads it from the kernel.

use std::sync::Arc;
use std::time::Duration;

use sandbox_core::{Error, ErrorKind, Metrics, Result};

use crate::call::Call;
use crate::connection::Connection;

/// The usage of a container. It does not keep the container alive.
#[derive(Clone, Debug)]
pub struct AgentUsage {
    connection: Arc<Connection>,
}

impl AgentUsage {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    /// Measures what all of its processes use, the agent included. Disk is the size of its files in memory.
    ///
    /// # Errors
    /// `Unavailable` when the agent does not answer, `Terminated` when the sandbox has ended.
    pub async fn metrics(&self) -> Result<Metrics> {
        let failed = || match self.connection.is_closed() {
            true => self.connection.lost(),
            false => Error::new(ErrorKind::Unavailable, "metrics", "the usage cannot be read"),
        };
        let answer = Call::begin(&self.connection, "usage", &[])?.answer().await;
        let answer = answer.map_err(|_| failed())?;
        let figures: Option<Vec<u64>> = answer.iter().map(|field| figure(field)).collect();
        match figures.as_deref() {
            Some(&[cpu, memory, disk, processes]) => Ok(Metrics {
                cpu_time: Duration::from_micros(cpu).as_secs_f64(),
                memory,
                disk,
                processes: u32::try_from(processes).unwrap_or(u32::MAX),
            }),
            _ => Err(failed()),
        }
    }
}

fn figure(field: &[u8]) -> Option<u64> {
    u64::try_from(i64::from_le_bytes(field.try_into().ok()?)).ok()
}
