//! A circuit breaker: refuses work at once for a backend that fails again and again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandbox_core::{
    Backend, BackendWrapper, CallContext, Check, Error, ErrorKind, Health, Hooks, Layer, Observer,
    Operation, OperationEvent, Result, Retry, intercept_backend, wrap_backend,
};

/// Operations that a breaker never refuses and never counts: what ends a sandbox must get through.
const EXEMPT: [&str; 2] = ["terminate", "kill"];

/// When a breaker opens, and when it closes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Failures in a row that open the breaker. Default 5, at least 1.
    pub failure_threshold: u32,
    /// Time for which an open breaker refuses everything. Default 60 seconds.
    pub recovery_time: Duration,
    /// Operations at a time that a half-open breaker lets through to try the backend. Default 1, at least 1.
    pub half_open_probes: u32,
    /// Successes of such operations that close the breaker. Default 1, at least 1.
    pub success_threshold: u32,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failure_threshold: 5,
            recovery_time: Duration::from_secs(60),
            half_open_probes: 1,
            success_threshold: 1,
        }
    }
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BreakerState {
    /// Everything is let through.
    Closed,
    /// Everything is refused, for that long from now.
    Open(Duration),
    /// Some operations are let through, to try the backend.
    HalfOpen,
}

/// A circuit breaker for one backend, shared by all its clones. Its state is that of this process.
///
/// It counts failures of the place: [`Unavailable`](ErrorKind::Unavailable), [`ConnectionLost`](ErrorKind::ConnectionLost),
/// [`Protocol`](ErrorKind::Protocol) and [`Timeout`](ErrorKind::Timeout). Code that fails, bad arguments and missing files
/// are successes: the backend has answered.
#[derive(Clone, Debug)]
pub struct CircuitBreaker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    policy: BreakerPolicy,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Closed { failures: u32 },
    Open { since: Instant },
    HalfOpen { in_flight: u32, successes: u32 },
}

impl CircuitBreaker {
    /// Makes a closed breaker.
    pub fn new(policy: BreakerPolicy) -> Self {
        let state = Mutex::new(State::Closed { failures: 0 });
        Self(Arc::new(Shared { policy, state }))
    }

    /// Returns the state now.
    pub fn state(&self) -> BreakerState {
        match *self.lock() {
            State::Closed { .. } => BreakerState::Closed,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
            State::Open { since } => match self.remaining(since) {
                Some(remaining) => BreakerState::Open(remaining),
                None => BreakerState::HalfOpen,
            },
        }
    }

    /// Returns the state for people, as a check of [`Health`].
    fn check(&self) -> Check {
        let failures = match *self.lock() {
            State::Closed { failures } => failures,
            _ => 0,
        };
        let state = self.state();
        let detail = match state {
            BreakerState::Closed if failures == 0 => "closed".to_owned(),
            BreakerState::Closed => {
                format!("closed, {failures} of {} failures", self.0.policy.failure_threshold.max(1))
            }
            BreakerState::HalfOpen => "half-open: the next operation tries the backend".to_owned(),
            BreakerState::Open(remaining) => {
                format!("open for {:.0} s more", remaining.as_secs_f64().ceil())
            }
        };
        let name = "circuit breaker".to_owned();
        Check { name, ok: state == BreakerState::Closed, detail, fix: None }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remaining(&self, since: Instant) -> Option<Duration> {
        self.0.policy.recovery_time.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
    }

    /// Lets an operation through. The permit reports how it ended.
    fn permit(&self, operation: &'static str) -> Result<Permit> {
        let mut state = self.lock();
        if let State::Open { since } = *state {
            if let Some(remaining) = self.remaining(since) {
                return Err(refusal(operation, "is open after repeated failures", remaining));
            }
            *state = State::HalfOpen { in_flight: 0, successes: 0 };
        }
        let is_probe = match &mut *state {
            State::HalfOpen { in_flight, .. } => {
                if *in_flight >= self.0.policy.half_open_probes.max(1) {
                    let message = "tries the backend with another operation";
                    return Err(refusal(operation, message, Duration::from_secs(1)));
                }
                *in_flight += 1;
                true
            }
            _ => false,
        };
        Ok(Permit { breaker: self.clone(), is_probe, is_reported: false })
    }
}

fn refusal(operation: &'static str, what: &str, retry_after: Duration) -> Error {
    Error::new(ErrorKind::Unavailable, operation, format!("the circuit breaker {what}"))
        .with_retry(Retry::Temporary)
        .with_retry_after(retry_after)
        .with_context("cause", "circuit_open")
        .with_hint("wait, or use another variant")
}

fn is_failure_of_the_place(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable
            | ErrorKind::ConnectionLost
            | ErrorKind::Protocol
            | ErrorKind::Timeout
    )
}

/// One operation that was let through. A permit that is dropped without a report counts as neither.
#[derive(Debug)]
struct Permit {
    breaker: CircuitBreaker,
    is_probe: bool,
    is_reported: bool,
}

impl Permit {
    fn report(&mut self, failed: bool) {
        if std::mem::replace(&mut self.is_reported, true) && !failed {
            return;
        }
        let breaker = self.breaker.clone();
        let policy = breaker.0.policy;
        let mut state = breaker.lock();
        let next = match (&mut *state, failed) {
            (State::Closed { failures }, true) => {
                *failures += 1;
                (*failures >= policy.failure_threshold.max(1))
                    .then(|| State::Open { since: Instant::now() })
            }
            (State::Closed { failures }, false) => {
                *failures = 0;
                None
            }
            // An operation from before the breaker opened says nothing about the backend now.
            (State::HalfOpen { .. }, _) if !self.is_probe => None,
            (State::HalfOpen { .. }, true) => Some(State::Open { since: Instant::now() }),
            (State::HalfOpen { successes, .. }, false) => {
                *successes += 1;
                (*successes >= policy.success_threshold.max(1))
                    .then_some(State::Closed { failures: 0 })
            }
            (State::Open { .. }, _) => None,
        };
        if let Some(next) = next {
            *state = next;
        }
        self.release(&mut state);
    }

    /// Gives the place of a probe back, once.
    fn release(&mut self, state: &mut State) {
        if std::mem::take(&mut self.is_probe)
            && let State::HalfOpen { in_flight, .. } = state
        {
            *in_flight = in_flight.saturating_sub(1);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let breaker = self.breaker.clone();
        let mut state = breaker.lock();
        self.release(&mut state);
    }
}

/// Puts a circuit breaker around a backend and its sandboxes.
///
/// Without it refusals are slow: each waits for the time limit of a place that is down. Ending a sandbox is never refused.
/// The health of the backend has the state of the breaker among its checks, and an open breaker is asked for its health
/// without asking the backend.
#[derive(Clone, Debug)]
pub struct BreakerLayer {
    breaker: CircuitBreaker,
    backend_only: bool,
}

impl BreakerLayer {
    /// Uses a breaker, which may be shared with other layers for the same place.
    pub fn new(breaker: CircuitBreaker) -> Self {
        Self { breaker, backend_only: false }
    }

    /// Leaves operations of sandboxes alone, so that only those of the backend are counted and refused: create, attach,
    /// listings, health. For servers whose sandboxes have several owners, because code in one sandbox could make its own
    /// operations fail, and so open the breaker for the others.
    #[must_use]
    pub fn backend_only(self) -> Self {
        Self { backend_only: true, ..self }
    }
}

impl Layer for BreakerLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        let inner = intercept_backend(inner, Arc::new(self.clone()));
        wrap_backend(Arc::new(Guarded { inner, breaker: self.breaker.clone() }))
    }
}

/// A backend whose health has the state of its breaker.
#[derive(Debug)]
struct Guarded {
    inner: Arc<dyn Backend>,
    breaker: CircuitBreaker,
}

#[async_trait]
impl BackendWrapper for Guarded {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        let mut health = match self.breaker.state() {
            BreakerState::Open(_) => {
                let detail = "refused for now after repeated failures".to_owned();
                Health { detail, ..Health::default() }
            }
            _ => self.inner.health(call).await?,
        };
        health.checks.push(self.breaker.check());
        Ok(health)
    }
}

#[async_trait]
impl Hooks for BreakerLayer {
    async fn before(&self, operation: &Operation<'_>) -> Result<Box<dyn Observer>> {
        let is_left_alone = self.backend_only && operation.sandbox.is_some();
        if is_left_alone || EXEMPT.contains(&operation.name) {
            return Ok(Box::new(Watching(None)));
        }
        Ok(Box::new(Watching(Some(self.breaker.permit(operation.name)?))))
    }
}

/// Reports the end of one operation to its breaker.
struct Watching(Option<Permit>);

#[async_trait]
impl Observer for Watching {
    async fn failed(&mut self, error: Error) -> Error {
        if let Some(permit) = &mut self.0 {
            permit.report(is_failure_of_the_place(&error));
        }
        error
    }

    fn event(&mut self, event: OperationEvent<'_>) -> Result<()> {
        if let (Some(permit), OperationEvent::Succeeded) = (&mut self.0, event) {
            permit.report(false);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker(recovery: Duration) -> CircuitBreaker {
        CircuitBreaker::new(BreakerPolicy {
            failure_threshold: 2,
            recovery_time: recovery,
            half_open_probes: 1,
            success_threshold: 2,
        })
    }

    fn run(breaker: &CircuitBreaker, failed: bool) -> Result<()> {
        breaker.permit("list").map(|mut permit| permit.report(failed))
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_does_not() {
        let breaker = breaker(Duration::from_secs(60));
        run(&breaker, true).unwrap();
        run(&breaker, false).unwrap();
        run(&breaker, true).unwrap();
        assert_eq!(breaker.state(), BreakerState::Closed);
        run(&breaker, true).unwrap();
        assert!(matches!(breaker.state(), BreakerState::Open(_)));
        let refused = run(&breaker, false).unwrap_err();
        assert_eq!((refused.kind(), refused.retry()), (ErrorKind::Unavailable, Retry::Temporary));
        assert!(refused.retry_after().is_some());
    }

    #[test]
    fn a_half_open_one_lets_probes_through_and_closes_after_enough_successes() {
        let breaker = breaker(Duration::ZERO);
        run(&breaker, true).unwrap();
        run(&breaker, true).unwrap();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        let probe = breaker.permit("list").unwrap();
        run(&breaker, false).unwrap_err();
        // A caller that gives up says nothing, and makes room for the next probe.
        drop(probe);
        run(&breaker, false).unwrap();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        run(&breaker, false).unwrap();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn a_failed_probe_opens_it_again() {
        let breaker = breaker(Duration::from_millis(20));
        run(&breaker, true).unwrap();
        run(&breaker, true).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        run(&breaker, true).unwrap();
        assert!(matches!(breaker.state(), BreakerState::Open(_)));
    }

    #[test]
    fn only_failures_of_the_place_count() {
        for kind in [ErrorKind::NotFound, ErrorKind::InvalidArgument, ErrorKind::Unauthenticated] {
            assert!(!is_failure_of_the_place(&Error::new(kind, "list", "")), "{kind:?}");
        }
    }
}
