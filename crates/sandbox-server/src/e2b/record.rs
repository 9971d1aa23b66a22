//! One sandbox of the server: its instance, what was asked for it, and when it ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sandbox_core::{Backend, CallContext, CreateSpec, Error, ErrorKind, Instance, Result};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::log::{Level, SandboxLog};
use super::metrics::keep_figures;
use super::process::ProcessTable;
use super::user::User;
use super::watchers::Watchers;
use crate::AccessKey;

/// One sandbox.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) template: String,
    /// What has made the sandbox, and makes its forks.
    pub(super) backend: Arc<dyn Backend>,
    pub(super) instance: Arc<dyn Instance>,
    /// The spec of the sandbox, from which a fork is made.
    pub(super) spec: CreateSpec,
    pub(super) user: User,
    pub(super) started_at: DateTime<Utc>,
    pub(super) metadata: BTreeMap<String, String>,
    /// The token that every call to envd needs; none where the client asked for an open sandbox.
    pub(super) envd_token: Option<AccessKey>,
    /// The token that requests to its ports need, where they are not public.
    pub(super) traffic_token: Option<AccessKey>,
    /// The wish about the network, as it was sent.
    pub(super) network: Value,
    pub(super) allow_internet_access: Option<bool>,
    pub(super) pauses_at_end: bool,
    pub(super) auto_resume: bool,
    pub(super) log: SandboxLog,
    pub(super) processes: ProcessTable,
    pub(super) watchers: Watchers,
    /// Variables that processes get besides those of the sandbox.
    pub(super) envs: Mutex<BTreeMap<String, String>>,
    /// CPU seconds and time of the last measurement, for the share since then.
    pub(super) measured: Mutex<Option<(f64, Instant)>>,
    /// The last measurement, as clients get it. A paused sandbox is not measured.
    pub(super) last_figures: Mutex<Option<Value>>,
    /// Numbers of the last runs, by context.
    pub(super) execution_counts: Mutex<BTreeMap<String, u64>>,
    pub(super) clock: Clock,
}

/// The end of a sandbox.
#[derive(Debug)]
pub(super) struct Clock {
    state: Mutex<ClockState>,
    changed: Notify,
}

#[derive(Debug)]
struct ClockState {
    end: Instant,
    end_at: DateTime<Utc>,
    lifetime: Duration,
    paused: bool,
    over: bool,
}

impl Clock {
    /// Starts a clock for that time.
    pub(super) fn new(lifetime: Duration) -> Self {
        let state = ClockState {
            end: Instant::now() + lifetime,
            end_at: Utc::now() + lifetime,
            lifetime,
            paused: false,
            over: false,
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, ClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of the end.
    pub(super) fn end_at(&self) -> DateTime<Utc> {
        self.state().end_at
    }

    /// Lets the sandbox live for that long from now; with `only_longer`, if that is later than its end.
    /// Returns false when nothing has changed.
    fn set(&self, lifetime: Duration, only_longer: bool) -> bool {
        {
            let mut state = self.state();
            let end = Instant::now() + lifetime;
            if only_longer && end <= state.end && !state.paused {
                return false;
            }
            (state.end, state.end_at) = (end, Utc::now() + lifetime);
            state.lifetime = lifetime;
        }
        self.changed.notify_waiters();
        true
    }

    fn set_paused(&self, paused: bool) {
        {
            let mut state = self.state();
            if state.paused == paused {
                return;
            }
            state.paused = paused;
            if paused {
                state.end_at = Utc::now();
            }
        }
        self.changed.notify_waiters();
    }

    /// Stops the clock for good.
    pub(super) fn finish(&self) {
        self.state().over = true;
        self.changed.notify_waiters();
    }

    /// Waits until the time is over. `false`: the sandbox has ended otherwise. A paused sandbox has no end.
    pub(super) async fn wait(&self) -> bool {
        loop {
            let changed = self.changed.notified();
            let (end, paused, over) = {
                let state = self.state();
                (state.end, state.paused, state.over)
            };
            if over {
                return false;
            }
            if paused {
                changed.await;
                continue;
            }
            if end <= Instant::now() {
                return true;
            }
            tokio::select! {
                () = changed => {}
                () = sleep_until(end) => {}
            }
        }
    }
}

impl Record {
    pub(super) fn is_paused(&self) -> bool {
        self.clock.state().paused
    }

    /// Returns true when a request wakes the sandbox.
    pub(super) fn resumes_by_itself(&self) -> bool {
        self.auto_resume
    }

    /// Holds the sandbox. `false`: it was held already.
    ///
    /// # Errors
    /// `Unsupported`, and whatever keeps the backend from holding it.
    pub(super) async fn pause(&self) -> Result<bool> {
        if self.is_paused() {
            return Ok(false);
        }
        if !self.instance.capabilities().pause {
            let variant = self.instance.info().variant;
            return Err(Error::unsupported("pause", format!("{variant} cannot pause sandboxes")));
        }
        if let Err(error) = keep_figures(self).await {
            tracing::debug!(id = self.id, %error, "a sandbox is paused unmeasured");
        }
        self.instance.life().pause(&CallContext::new()).await?;
        self.clock.set_paused(true);
        self.log.add(Level::Info, "Sandbox paused", json!({}));
        Ok(true)
    }

    /// Lets the sandbox live for that long from now; with `only_longer`, if that is later than its end. A sandbox that
    /// outlives the server is told, too.
    ///
    /// # Errors
    /// Whatever keeps the backend from changing its end.
    pub(super) async fn set_lifetime(&self, lifetime: Duration, only_longer: bool) -> Result<()> {
        let is_set = self.clock.set(lifetime, only_longer);
        if is_set {
            let fields = json!({ "seconds": lifetime.as_secs().to_string() });
            self.log.add(Level::Info, "Sandbox timeout set", fields);
        }
        if is_set && self.spec.detached.is_some() {
            self.instance.life().set_lifetime(&CallContext::new(), lifetime).await?;
        }
        Ok(())
    }

    /// Resumes the sandbox for that long, or for as long as was asked for last. `false`: it was not held.
    ///
    /// # Errors
    /// Whatever keeps the backend from resuming it.
    pub(super) async fn resume(&self, lifetime: Option<Duration>) -> Result<bool> {
        let was_paused = self.is_paused();
        if was_paused {
            match self.instance.life().resume(&CallContext::new()).await {
                // Another request was faster.
                Err(error) if error.kind() == ErrorKind::InvalidArgument => {}
                other => other?,
            }
        }
        let last = self.clock.state().lifetime;
        if was_paused || lifetime.is_some() {
            self.set_lifetime(lifetime.unwrap_or(last), true).await?;
        }
        self.clock.set_paused(false);
        if was_paused {
            self.log.add(Level::Info, "Sandbox resumed", json!({}));
        }
        Ok(was_paused)
    }

    /// Ends the sandbox and everything in it.
    ///
    /// # Errors
    /// Whatever keeps the backend from ending it.
    pub(super) async fn kill(&self) -> Result<()> {
        self.clock.finish();
        let ended = self.instance.life().kill(&CallContext::new()).await;
        self.processes.close();
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_runs_unless_it_is_paused() {
        let clock = Clock::new(Duration::from_secs(10));
        let begin = Instant::now();
        assert!(clock.wait().await);
        assert_eq!(begin.elapsed().as_secs(), 10);

        let clock = Clock::new(Duration::from_secs(10));
        assert!(!clock.set(Duration::from_secs(5), true));
        assert!(clock.set(Duration::from_secs(20), true));
        let begin = Instant::now();
        assert!(clock.wait().await);
        assert_eq!(begin.elapsed().as_secs(), 20, "only longer");

        let clock = Clock::new(Duration::from_secs(1));
        clock.set_paused(true);
        let waited = tokio::time::timeout(Duration::from_secs(100), clock.wait()).await;
        assert!(waited.is_err(), "a paused sandbox has no end");
        clock.finish();
        assert!(!clock.wait().await);
    }
}
