//! Creates and runs at a place that fails at random, through the whole stack: no run is executed twice, none is lost without
//! its caller being told, and nothing is left.
//!
//! 120 creates, and 1,000 with `SANDBOX_TEST_FULL=1`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use backend_eval::EvalBackend;
use futures_util::StreamExt as _;
use sandbox_core::{
    Backend, BackendWrapper, CallContext, CreateSpec, Effect, Error, ErrorKind, EventKind,
    EventStream, Failure, FailureKind, Instance, InstanceWrapper, Layer, ListQuery, Page, Result,
    Retry, RunCode, RunOutcome, Sandbox, SandboxInfo, wrap_backend, wrap_instance,
};
use sandbox_layers::{
    AuditLayer, AuditLog, AuditPolicy, BreakerLayer, BreakerPolicy, CircuitBreaker, RetryLayer,
    RetryPolicy, ScanLayer, ScanPolicy,
};

/// A source of faults, the same in every run of the test.
#[derive(Debug)]
struct Dice(AtomicU64);

impl Dice {
    /// Returns true for one call in `sides`.
    fn hits(&self, sides: u64) -> bool {
        // xorshift64*
        let next = |mut x: u64| {
            x ^= x >> 12;
            x ^= x << 25;
            x ^= x >> 27;
            Some(x)
        };
        let x = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(1);
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).is_multiple_of(sides)
    }
}

/// What happened at the place.
#[derive(Debug, Default)]
struct Truth {
    /// Times that each run was executed, by its id.
    executed: Mutex<HashMap<String, u32>>,
}

impl Truth {
    fn executed(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.executed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Faulty<T: ?Sized> {
    inner: Arc<T>,
    dice: Arc<Dice>,
    truth: Arc<Truth>,
}

fn fault(operation: &'static str, effect: Effect) -> Error {
    Error::new(ErrorKind::Unavailable, operation, "the place is down")
        .with_retry(Retry::Temporary)
        .with_effect(effect)
}

#[async_trait]
impl BackendWrapper for Faulty<dyn Backend> {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        if self.dice.hits(6) {
            return Err(fault("create", Effect::NotSent));
        }
        let inner = self.inner.create(call, spec).await?;
        if self.dice.hits(12) {
            // The answer is lost. The place ends what was made, since it is attached.
            return Err(fault("create", Effect::Unknown));
        }
        let (dice, truth) = (Arc::clone(&self.dice), Arc::clone(&self.truth));
        Ok(wrap_instance(Arc::new(Faulty { inner, dice, truth })))
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        if self.dice.hits(4) {
            return Err(fault("list", Effect::NotSent));
        }
        self.inner.list(call, query).await
    }
}

#[async_trait]
impl InstanceWrapper for Faulty<dyn Instance> {
    fn inner(&self) -> &Arc<dyn Instance> {
        &self.inner
    }

    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        if self.dice.hits(8) {
            return Err(fault("run_code", Effect::NotSent));
        }
        let id = call.run_id.clone().unwrap_or_default();
        *self.truth.executed().entry(id).or_default() += 1;
        let events = self.inner.code()?.run_code(call, request).await?;
        if self.dice.hits(10) {
            // It was executed, and its answer is lost.
            drop(events.collect::<Vec<_>>().await);
            return Err(fault("run_code", Effect::Unknown));
        }
        if self.dice.hits(10) {
            // The connection breaks in the middle, and the end says so.
            return Ok(Box::pin(events.map(|mut event| {
                if let EventKind::Finished(outcome) = &mut event.kind {
                    let message = "the connection broke".to_owned();
                    let kind = FailureKind::ConnectionLost;
                    *outcome = RunOutcome {
                        failure: Some(Failure { kind, message, signal: None }),
                        ..RunOutcome::default()
                    };
                }
                event
            })));
        }
        Ok(events)
    }

    async fn terminate(&self, call: &CallContext) -> Result<()> {
        if self.dice.hits(5) {
            return Err(fault("terminate", Effect::Unknown));
        }
        self.inner.life().terminate(call).await
    }
}

/// What the caller of a run was told.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Done,
    Failed,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_run_is_executed_twice_or_lost_silently_and_nothing_is_left() {
    let count =
        if std::env::var("SANDBOX_TEST_FULL").is_ok_and(|full| full == "1") { 1000 } else { 120 };
    let cells: Arc<dyn Backend> = Arc::new(EvalBackend::default());
    let truth = Arc::new(Truth::default());
    let dice = Arc::new(Dice(AtomicU64::new(0x9e37_79b9_7f4a_7c15)));
    let faulty: Arc<dyn Backend> = wrap_backend(Arc::new(Faulty {
        inner: Arc::clone(&cells),
        dice,
        truth: Arc::clone(&truth),
    }));
    let directory = tempfile::tempdir().unwrap();
    let log = AuditLog::open(directory.path().join("audit"), AuditPolicy::default()).unwrap();
    let delays = (Duration::from_millis(1), Duration::from_millis(3));
    let retry = RetryPolicy::default().max_retries(5).delays(delays.0, delays.1);
    let breaker = CircuitBreaker::new(BreakerPolicy {
        failure_threshold: 20,
        recovery_time: Duration::from_millis(20),
        ..BreakerPolicy::default()
    });
    let mut stack = RetryLayer::new(retry).layer(faulty);
    stack = BreakerLayer::new(breaker).layer(stack);
    stack = ScanLayer::new(ScanPolicy::warn()).layer(stack);
    stack = AuditLayer::new(log.clone()).layer(stack);

    let (mut told, mut created, mut refused) = (HashMap::new(), 0, 0);
    for number in 0..count {
        let sandbox = match Sandbox::builder(Arc::clone(&stack)).create().await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                refused += 1;
                continue;
            }
        };
        created += 1;
        for run in 0..2 {
            let id = format!("run-{number}-{run}");
            let answer = match sandbox.run_code("6 * 7").run_id(&id).await {
                Ok(result) if result.success() && result.text() == Some("42") => Told::Done,
                Ok(result) => {
                    assert_eq!(
                        result.failure.map(|failure| failure.kind),
                        Some(FailureKind::ConnectionLost)
                    );
                    Told::Failed
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                    Told::Failed
                }
            };
            told.insert(id, answer);
        }
        // The end may fail too; dropping the last handle ends what is left.
        let _ = sandbox.terminate().await;
    }
    assert!(created > count / 2 && refused > 0, "{created} created, {refused} refused");
    let executed = truth.executed().clone();
    let twice: Vec<_> = executed.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "executed twice: {twice:?}");
    let count_of = |what| told.values().filter(|one| **one == what).count();
    assert!(count_of(Told::Failed) > 0 && count_of(Told::Done) > created, "{told:?}");
    for (id, answer) in &told {
        if *answer == Told::Done {
            assert_eq!(executed.get(id), Some(&1), "{id} was told to be done");
        }
    }
    assert!(executed.keys().all(|id| told.contains_key(id)), "a run that nothing was told of");

    let mut left = usize::MAX;
    for _ in 0..100 {
        let page = cells.list(&CallContext::new(), ListQuery::default()).await.unwrap();
        left = page.items.len();
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(left, 0, "sandboxes that are left");
    log.flush().await;
    let report = AuditLog::verify(directory.path().join("audit")).unwrap();
    assert_eq!(report.problem, None);
    assert!(report.lines > count as u64 * 4, "{report:?}");
}
