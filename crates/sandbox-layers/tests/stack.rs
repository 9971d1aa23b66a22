//! Retries and breakers around real cells, with a place that fails on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use backend_eval::EvalBackend;
use sandbox_core::{
    Backend, BackendWrapper, CallContext, Capabilities, CreateSpec, Effect, Error, ErrorKind,
    Instance, InstanceWrapper, Layer, ListQuery, Page, Result, Retry, RunCode, Sandbox,
    SandboxInfo, wrap_backend, wrap_instance,
};
use sandbox_layers::{
    BreakerLayer, BreakerPolicy, BreakerState, CircuitBreaker, RetryLayer, RetryPolicy,
};

/// A place whose next operations fail, and which counts those that reach it.
#[derive(Debug)]
struct Flaky {
    inner: Arc<dyn Backend>,
    failures: AtomicUsize,
    reached: AtomicUsize,
    effect: Effect,
    idempotent: bool,
    /// What the error asks to wait.
    retry_after: Option<Duration>,
    /// The time that each listing takes.
    delay: Duration,
}

impl Flaky {
    fn new(failures: usize, effect: Effect) -> Arc<Self> {
        let inner = Arc::new(EvalBackend::default());
        let (failures, reached) = (failures.into(), 0.into());
        let (retry_after, delay) = (None, Duration::ZERO);
        Arc::new(Self { inner, failures, reached, effect, idempotent: true, retry_after, delay })
    }

    fn reach(&self, operation: &'static str) -> Result<()> {
        self.reached.fetch_add(1, Ordering::Relaxed);
        let fails = |left: usize| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails).is_err() {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Unavailable, operation, "the place is down")
            .with_retry(Retry::Temporary)
            .with_effect(self.effect);
        Err(match self.retry_after {
            Some(after) => error.with_retry_after(after),
            None => error,
        })
    }

    fn reached(&self) -> usize {
        self.reached.load(Ordering::Relaxed)
    }
}

/// The layer that is under test, around that place.
fn around(flaky: &Arc<Flaky>, layer: &dyn Layer) -> Arc<dyn Backend> {
    layer.layer(wrap_backend(Arc::clone(flaky)))
}

#[async_trait]
impl BackendWrapper for Flaky {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { idempotent_create: self.idempotent, ..self.inner.capabilities() }
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        self.reach("create")?;
        self.inner.create(call, spec).await
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        self.reach("list")?;
        tokio::time::sleep(self.delay).await;
        self.inner.list(call, query).await
    }
}

fn quick() -> RetryPolicy {
    RetryPolicy::default().delays(Duration::from_millis(1), Duration::from_millis(2))
}

#[tokio::test]
async fn what_is_harmless_is_repeated_until_it_works_or_the_attempts_are_used_up() {
    let (flaky, seen) = (Flaky::new(2, Effect::Unknown), Arc::new(AtomicUsize::new(0)));
    let counting = {
        let seen = Arc::clone(&seen);
        quick().on_retry(move |notice| seen.store(notice.retry, Ordering::Relaxed))
    };
    let backend = around(&flaky, &RetryLayer::new(counting));
    backend.list(&CallContext::new(), ListQuery::default()).await.unwrap();
    assert_eq!((flaky.reached(), seen.load(Ordering::Relaxed)), (3, 2));

    let flaky = Flaky::new(usize::MAX, Effect::Unknown);
    let backend = around(&flaky, &RetryLayer::new(quick().max_retries(2)));
    let error = backend.list(&CallContext::new(), ListQuery::default()).await.unwrap_err();
    assert_eq!((error.retry(), flaky.reached()), (Retry::Exhausted, 3));
    assert!(error.context().contains(&("attempts", "3".to_owned())), "{error:?}");
}

#[tokio::test]
async fn a_create_is_repeated_only_when_it_cannot_happen_twice() {
    let create = async |flaky: &Arc<Flaky>, call: CallContext| {
        let backend = around(flaky, &RetryLayer::new(quick()));
        backend.create(&call, CreateSpec::default()).await.map(drop)
    };
    // The answer was lost, and nothing says whether there is a sandbox.
    let lost = Flaky::new(1, Effect::Unknown);
    create(&lost, CallContext::new()).await.unwrap_err();
    assert_eq!(lost.reached(), 1);
    let keyed = Flaky::new(1, Effect::Unknown);
    create(&keyed, CallContext::new().with_idempotency_key("k")).await.unwrap();
    assert_eq!(keyed.reached(), 2);
    let refused = Flaky::new(1, Effect::NotSent);
    create(&refused, CallContext::new()).await.unwrap();
    assert_eq!(refused.reached(), 2);
}

/// A sandbox whose runs always fail on their way.
#[derive(Debug)]
struct Unlucky(Arc<dyn Instance>, AtomicUsize);

#[async_trait]
impl InstanceWrapper for Unlucky {
    fn inner(&self) -> &Arc<dyn Instance> {
        &self.0
    }

    async fn run_code(&self, _: &CallContext, _: RunCode) -> Result<sandbox_core::EventStream> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Err(Error::new(ErrorKind::Unavailable, "run_code", "down").with_retry(Retry::Temporary))
    }
}

/// A place of such sandboxes.
#[derive(Debug)]
struct UnluckyPlace(Arc<dyn Backend>, std::sync::Mutex<Option<Arc<Unlucky>>>);

#[async_trait]
impl BackendWrapper for UnluckyPlace {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.0
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let made = self.0.create(call, spec).await?;
        let unlucky = Arc::new(Unlucky(made, AtomicUsize::new(0)));
        *self.1.lock().expect("no poison") = Some(Arc::clone(&unlucky));
        Ok(wrap_instance(unlucky))
    }
}

#[tokio::test]
async fn a_run_is_never_repeated() {
    let place =
        Arc::new(UnluckyPlace(Arc::new(EvalBackend::default()), std::sync::Mutex::new(None)));
    let place_backend = wrap_backend(Arc::clone(&place));
    let backend = RetryLayer::new(quick()).layer(place_backend);
    let sandbox = Sandbox::builder(backend).create().await.unwrap();
    sandbox.run_code("1").await.unwrap_err();
    let unlucky = place.1.lock().expect("no poison").clone().expect("a sandbox");
    assert_eq!(unlucky.1.load(Ordering::Relaxed), 1);
    // Everything else of the sandbox works.
    sandbox.files().write("x", "1").await.unwrap();
    assert_eq!(sandbox.files().read("x").await.unwrap(), "1");
    sandbox.terminate().await.unwrap();
}

#[tokio::test]
async fn a_delay_that_does_not_fit_the_deadline_ends_the_attempts() {
    let flaky = Flaky::new(usize::MAX, Effect::Unknown);
    let slow = RetryPolicy::default().delays(Duration::from_secs(600), Duration::from_secs(600));
    let backend = around(&flaky, &RetryLayer::new(slow.jitter(false)));
    let call = CallContext::new().with_deadline(Instant::now() + Duration::from_secs(60));
    let error = backend.list(&call, ListQuery::default()).await.unwrap_err();
    assert_eq!((error.retry(), flaky.reached()), (Retry::Exhausted, 1));
}

#[tokio::test]
async fn attempts_have_a_time_limit_each_and_one_together() {
    let mut slow = Flaky::new(0, Effect::Unknown);
    Arc::get_mut(&mut slow).unwrap().delay = Duration::from_secs(60);
    let limited = quick().max_retries(2).attempt_timeout(Duration::from_millis(30));
    let backend = around(&slow, &RetryLayer::new(limited));
    let began = Instant::now();
    let error = backend.list(&CallContext::new(), ListQuery::default()).await.unwrap_err();
    assert_eq!((error.kind(), slow.reached()), (ErrorKind::Timeout, 3));
    assert!(began.elapsed() < Duration::from_secs(30), "{error}");

    // The second attempt would begin after the time for all.
    let down = Flaky::new(usize::MAX, Effect::Unknown);
    let patient = RetryPolicy::default().delays(Duration::from_secs(60), Duration::from_secs(60));
    let bounded = patient.jitter(false).total_timeout(Duration::from_secs(5));
    let backend = around(&down, &RetryLayer::new(bounded));
    let error = backend.list(&CallContext::new(), ListQuery::default()).await.unwrap_err();
    assert_eq!((error.retry(), down.reached()), (Retry::Exhausted, 1));
}

#[tokio::test]
async fn a_longer_delay_that_the_service_asks_for_is_kept() {
    let mut busy = Flaky::new(1, Effect::Unknown);
    Arc::get_mut(&mut busy).unwrap().retry_after = Some(Duration::from_millis(300));
    let backend = around(&busy, &RetryLayer::new(quick()));
    let began = Instant::now();
    backend.list(&CallContext::new(), ListQuery::default()).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    assert_eq!(busy.reached(), 2);
}

#[tokio::test]
async fn a_predicate_chooses_the_errors_that_are_retried() {
    let flaky = Flaky::new(1, Effect::Unknown);
    let none = quick().retry_if(|error| error.kind() == ErrorKind::RateLimited);
    let backend = around(&flaky, &RetryLayer::new(none));
    let error = backend.list(&CallContext::new(), ListQuery::default()).await.unwrap_err();
    assert_eq!((error.kind(), flaky.reached()), (ErrorKind::Unavailable, 1));
    // What could happen twice is not repeated, whatever the predicate says.
    let lost = Flaky::new(1, Effect::Unknown);
    let backend = around(&lost, &RetryLayer::new(quick().retry_if(|_| true)));
    backend.create(&CallContext::new(), CreateSpec::default()).await.map(drop).unwrap_err();
    assert_eq!(lost.reached(), 1);
}

#[tokio::test]
async fn the_health_has_the_state_of_the_breaker_and_an_open_one_asks_nothing() {
    let flaky = Flaky::new(0, Effect::Unknown);
    let policy = BreakerPolicy { failure_threshold: 2, ..BreakerPolicy::default() };
    let backend = around(&flaky, &BreakerLayer::new(CircuitBreaker::new(policy)));
    let check = async || {
        let health = backend.health(&CallContext::new()).await.unwrap();
        let found = health.checks.into_iter().find(|check| check.name == "circuit breaker");
        (health.usable, found.unwrap())
    };
    let (usable, closed) = check().await;
    assert!(usable && closed.ok && closed.detail == "closed", "{closed:?}");
    flaky.failures.store(2, Ordering::Relaxed);
    for _ in 0..2 {
        backend.list(&CallContext::new(), ListQuery::default()).await.unwrap_err();
    }
    let (usable, open) = check().await;
    assert!(!usable && !open.ok && open.detail.starts_with("open for "), "{open:?}");
}

#[tokio::test]
async fn what_code_breaks_in_its_sandbox_does_not_open_the_breaker_of_a_server() {
    let place =
        Arc::new(UnluckyPlace(Arc::new(EvalBackend::default()), std::sync::Mutex::new(None)));
    let policy = BreakerPolicy { failure_threshold: 2, ..BreakerPolicy::default() };
    let breaker = CircuitBreaker::new(policy);
    let layer = BreakerLayer::new(breaker.clone());
    let backend = layer.backend_only().layer(wrap_backend(Arc::clone(&place)));
    let sandbox = Sandbox::builder(backend).create().await.unwrap();
    for _ in 0..4 {
        sandbox.run_code("1").await.unwrap_err();
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
    sandbox.terminate().await.unwrap();
}

#[tokio::test]
async fn a_breaker_refuses_at_once_and_still_lets_sandboxes_end() {
    let flaky = Flaky::new(0, Effect::Unknown);
    let policy = BreakerPolicy { failure_threshold: 3, ..BreakerPolicy::default() };
    let breaker = CircuitBreaker::new(policy);
    let backend = around(&flaky, &BreakerLayer::new(breaker.clone()));
    let sandbox = Sandbox::builder(Arc::clone(&backend)).create().await.unwrap();
    // Code that fails and files that are missing are answers.
    for _ in 0..4 {
        assert!(!sandbox.run_code("1/0").await.unwrap().success());
        sandbox.files().read("nothing").await.unwrap_err();
    }
    assert_eq!(breaker.state(), BreakerState::Closed);

    flaky.failures.store(usize::MAX, Ordering::Relaxed);
    let list = async || backend.list(&CallContext::new(), ListQuery::default()).await;
    for _ in 0..3 {
        list().await.unwrap_err();
    }
    let reached = flaky.reached();
    let refused = list().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.retry_after().is_some(), "{refused:?}");
    assert_eq!(flaky.reached(), reached, "an open breaker asks the place for nothing");
    sandbox.run_code("1").await.unwrap_err();
    sandbox.terminate().await.unwrap();
}
