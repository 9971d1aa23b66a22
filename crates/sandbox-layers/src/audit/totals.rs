//! What ran in each sandbox, added up.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandbox_core::Usage;
use serde_json::{Value, json};

use super::TOOL_CALL;

/// Sandboxes whose totals are kept at one time. Later ones have none.
const MAX_SANDBOXES: usize = 10_000;

/// Totals of every sandbox that has not ended.
#[derive(Debug, Default)]
pub(super) struct AllTotals(Mutex<HashMap<String, Totals>>);

/// Totals of one sandbox.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    runs: u64,
    commands: u64,
    tool_calls: u64,
    /// Seconds, of runs and commands whose usage is known.
    cpu_time: f64,
    /// The highest of all, in bytes.
    peak_memory: u64,
    output_bytes: u64,
    /// Credits, where the provider tells its price.
    credits: f64,
}

impl AllTotals {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Totals>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what a run, a command or a call of a tool used.
    pub(super) fn add(
        &self,
        sandbox: &str,
        operation: &str,
        usage: &Usage,
        output_bytes: u64,
        credits: Option<f64>,
    ) {
        let mut all = self.lock();
        if !all.contains_key(sandbox) && all.len() >= MAX_SANDBOXES {
            return;
        }
        let totals = all.entry(sandbox.to_owned()).or_default();
        match operation {
            TOOL_CALL => totals.tool_calls += 1,
            "start_command" => totals.commands += 1,
            _ => totals.runs += 1,
        }
        totals.cpu_time += usage.cpu_time.unwrap_or_default();
        totals.peak_memory = totals.peak_memory.max(usage.peak_memory.unwrap_or_default());
        totals.output_bytes += output_bytes;
        totals.credits += credits.unwrap_or_default();
    }

    /// Returns the totals of a sandbox that has ended, once.
    pub(super) fn take(&self, sandbox: &str) -> Option<Value> {
        let totals = self.lock().remove(sandbox)?;
        Some(json!({
            "runs": totals.runs, "commands": totals.commands, "tool_calls": totals.tool_calls,
            "cpu_time": totals.cpu_time, "peak_memory": totals.peak_memory,
            "output_bytes": totals.output_bytes, "credits_of_runs": totals.credits,
        }))
    }
}
