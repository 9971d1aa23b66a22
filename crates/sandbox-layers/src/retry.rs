//! Retries of operations that can be repeated.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use backon::{BackoffBuilder as _, ExponentialBuilder};
use sandbox_core::{
    Backend, BackendWrapper, ByteRange, ByteStream, CallContext, CommandInfo, Context, ContextSpec,
    CreateSpec, Effect, Error, ErrorKind, FileInfo, FindFiles, FoundFile, Health, Instance,
    InstanceWrapper, Layer, ListQuery, Metrics, Page, Result, Retry, SandboxEnvironment, SandboxId,
    SandboxInfo, SnapshotInfo, Tags, TunnelInfo, wrap_backend, wrap_instance,
};
use serde_json::Value;
use tokio::time::{sleep, timeout};

type Predicate = Arc<dyn Fn(&Error) -> bool + Send + Sync>;
type Listener = Arc<dyn Fn(&RetryNotice<'_>) + Send + Sync>;

/// How often and how long operations are repeated.
#[derive(Clone)]
pub struct RetryPolicy {
    max_retries: usize,
    initial_delay: Duration,
    max_delay: Duration,
    factor: f32,
    jitter: bool,
    attempt_timeout: Option<Duration>,
    total_timeout: Option<Duration>,
    predicate: Option<Predicate>,
    on_retry: Option<Listener>,
}

impl Default for RetryPolicy {
    /// Three retries after 1, 2 and 4 seconds, each with jitter; delays of at most 30 seconds, and no time limits.
    fn default() -> Self {
        Self {
            max_retries: 3,
            initial_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(30),
            factor: 2.0,
            jitter: true,
            attempt_timeout: None,
            total_timeout: None,
            predicate: None,
            on_retry: None,
        }
    }
}

impl fmt::Debug for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryPolicy")
            .field("max_retries", &self.max_retries)
            .field("initial_delay", &self.initial_delay)
            .field("max_delay", &self.max_delay)
            .field("factor", &self.factor)
            .field("jitter", &self.jitter)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("total_timeout", &self.total_timeout)
            .finish_non_exhaustive()
    }
}

impl RetryPolicy {
    /// Sets the number of further attempts after the first. Zero: none.
    #[must_use]
    pub fn max_retries(mut self, retries: usize) -> Self {
        self.max_retries = retries;
        self
    }

    /// Sets the delay before the first retry, and the largest delay. A delay that the service asks for takes precedence
    /// when it is longer.
    #[must_use]
    pub fn delays(mut self, initial: Duration, max: Duration) -> Self {
        (self.initial_delay, self.max_delay) = (initial, max.max(initial));
        self
    }

    /// Sets the factor by which each delay is longer than the one before. Values below 1 mean 1.
    #[must_use]
    pub fn factor(mut self, factor: f32) -> Self {
        self.factor = if factor.is_finite() { factor.max(1.0) } else { 1.0 };
        self
    }

    /// Sets whether delays are varied at random, so that clients do not come back at the same time.
    #[must_use]
    pub fn jitter(mut self, jitter: bool) -> Self {
        self.jitter = jitter;
        self
    }

    /// Limits the time of one attempt.
    #[must_use]
    pub fn attempt_timeout(mut self, limit: Duration) -> Self {
        self.attempt_timeout = Some(limit);
        self
    }

    /// Limits the time of all attempts, delays included. No attempt begins after it, and a running one is not cut.
    #[must_use]
    pub fn total_timeout(mut self, limit: Duration) -> Self {
        self.total_timeout = Some(limit);
        self
    }

    /// Replaces the choice of errors that are retried, [`Retry::Temporary`] by default. What could happen twice is not
    /// repeated, whatever the predicate says.
    #[must_use]
    pub fn retry_if(mut self, predicate: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.predicate = Some(Arc::new(predicate));
        self
    }

    /// Sets a function that is called before each delay.
    #[must_use]
    pub fn on_retry(mut self, call: impl Fn(&RetryNotice<'_>) + Send + Sync + 'static) -> Self {
        self.on_retry = Some(Arc::new(call));
        self
    }

    fn wants(&self, error: &Error) -> bool {
        match &self.predicate {
            Some(predicate) => predicate(error),
            None => error.retry() == Retry::Temporary,
        }
    }
}

/// A retry that is about to happen.
#[derive(Debug)]
#[non_exhaustive]
pub struct RetryNotice<'a> {
    /// The operation, such as `list`.
    pub operation: &'static str,
    /// Number of the retry, from 1.
    pub retry: usize,
    /// Time until then.
    pub delay: Duration,
    /// The failure of the last attempt.
    pub error: &'a Error,
}

/// Repeats operations of a backend and its sandboxes that failed for a moment.
///
/// Repeated are operations that may happen twice without harm: listings, health, environments, attaching, a create with an
/// idempotency key where the backend honours it, reads before their first byte, attributes of files, tags and lifetimes.
/// Everything else is repeated only when the error says that nothing has reached the backend
/// ([`Effect::NotSent`]). Runs and commands are never repeated, nor is anything that streams content to the sandbox.
///
/// After the last attempt the error has [`Retry::Exhausted`].
#[derive(Clone, Debug, Default)]
pub struct RetryLayer(Arc<RetryPolicy>);

impl RetryLayer {
    /// Uses a policy.
    pub fn new(policy: RetryPolicy) -> Self {
        Self(Arc::new(policy))
    }
}

impl Layer for RetryLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        wrap_backend(Arc::new(Retrying { inner, policy: Arc::clone(&self.0) }))
    }
}

/// Whether an operation may happen twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// Without harm.
    Harmless,
    /// Never: only when nothing reached the backend.
    NotSent,
}

#[derive(Debug)]
struct Retrying<T: ?Sized> {
    inner: Arc<T>,
    policy: Arc<RetryPolicy>,
}

impl<T: ?Sized> Retrying<T> {
    async fn attempts<V, F: Future<Output = Result<V>> + Send>(
        &self,
        operation: &'static str,
        call: &CallContext,
        repeat: Repeat,
        attempt: impl Fn() -> F + Send + Sync,
    ) -> Result<V> {
        let (policy, began) = (&*self.policy, Instant::now());
        let mut backoff = ExponentialBuilder::default()
            .with_min_delay(policy.initial_delay)
            .with_max_delay(policy.max_delay)
            .with_factor(policy.factor)
            .with_max_times(policy.max_retries);
        if policy.jitter {
            backoff = backoff.with_jitter();
        }
        let mut delays = backoff.build();
        let mut retry = 0;
        loop {
            let error = match limited(operation, policy.attempt_timeout, attempt()).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let is_safe = repeat == Repeat::Harmless || error.effect() == Effect::NotSent;
            if !is_safe || !policy.wants(&error) {
                return Err(error);
            }
            let Some(delay) = delays.next() else { return Err(exhausted(error, retry)) };
            let delay = error.retry_after().map_or(delay, |asked| asked.max(delay));
            let at = Instant::now() + delay;
            let is_too_late = policy.total_timeout.is_some_and(|limit| at > began + limit)
                || call.deadline.is_some_and(|deadline| at > deadline);
            if is_too_late {
                return Err(exhausted(error, retry));
            }
            retry += 1;
            tracing::debug!(operation, retry, ?delay, %error, "trying again");
            if let Some(listener) = &policy.on_retry {
                listener(&RetryNotice { operation, retry, delay, error: &error });
            }
            sleep(delay).await;
        }
    }
}

async fn limited<V>(
    operation: &'static str,
    limit: Option<Duration>,
    attempt: impl Future<Output = Result<V>>,
) -> Result<V> {
    let Some(limit) = limit else { return attempt.await };
    timeout(limit, attempt).await.unwrap_or_else(|_| {
        let message = format!("the attempt did not finish within {limit:?}");
        Err(Error::new(ErrorKind::Timeout, operation, message)
            .with_retry(Retry::Temporary)
            .with_effect(Effect::Unknown))
    })
}

fn exhausted(error: Error, retries: usize) -> Error {
    error.with_retry(Retry::Exhausted).with_context("attempts", (retries + 1).to_string())
}

impl Retrying<dyn Backend> {
    fn wrap(&self, inner: Arc<dyn Instance>) -> Arc<dyn Instance> {
        wrap_instance(Arc::new(Retrying { inner, policy: Arc::clone(&self.policy) }))
    }
}

#[async_trait]
impl BackendWrapper for Retrying<dyn Backend> {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let is_one = call.idempotency_key.is_some() && self.inner.capabilities().idempotent_create;
        let repeat = if is_one { Repeat::Harmless } else { Repeat::NotSent };
        let attempt = || self.inner.create(call, spec.clone());
        self.attempts("create", call, repeat, attempt).await.map(|made| self.wrap(made))
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let attempt = || self.inner.attach(call, id);
        let found = self.attempts("attach", call, Repeat::Harmless, attempt).await;
        found.map(|found| self.wrap(found))
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let attempt = || self.inner.list(call, query.clone());
        self.attempts("list", call, Repeat::Harmless, attempt).await
    }

    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let attempt = || self.inner.environments(call);
        self.attempts("environments", call, Repeat::Harmless, attempt).await
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        self.attempts("health", call, Repeat::Harmless, || self.inner.health(call)).await
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        let attempt = || self.inner.list_snapshots(call);
        self.attempts("list_snapshots", call, Repeat::Harmless, attempt).await
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        let attempt = || self.inner.delete_snapshot(call, name);
        self.attempts("delete_snapshot", call, Repeat::NotSent, attempt).await
    }
}

/// Methods of a wrapper that repeat the verb of the wrapped sandbox. What is not here is never repeated.
macro_rules! repeated {
    ($($repeat:ident $access:tt $verb:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl InstanceWrapper for Retrying<dyn Instance> {
            fn inner(&self) -> &Arc<dyn Instance> {
                &self.inner
            }

            async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>> {
                let inner = self.inner.life().fork(call).await?;
                Ok(wrap_instance(Arc::new(Retrying { inner, policy: Arc::clone(&self.policy) })))
            }

            $(
                async fn $verb(&self, call: &CallContext, $($argument: $kind),*) -> Result<$answer> {
                    let attempt = || async {
                        repeated!(@facet self.inner, $access).$verb(call, $(Clone::clone(&$argument)),*).await
                    };
                    self.attempts(stringify!($verb), call, Repeat::$repeat, attempt).await
                }
            )*
        }
    };
    (@facet $inner:expr, [$($access:tt)*]) => { $inner.$($access)* };
}

repeated! {
    Harmless [life()] set_tags(tags: Tags) -> ();
    Harmless [life()] set_lifetime(lifetime: Duration) -> ();
    Harmless [life()] metrics() -> Metrics;
    Harmless [life()] terminate() -> ();
    Harmless [life()] kill() -> ();
    NotSent [life()] pause() -> ();
    NotSent [life()] resume() -> ();
    NotSent [life()] reset() -> ();
    NotSent [code()?] create_context(spec: ContextSpec) -> Context;
    Harmless [code()?] list_contexts() -> Vec<Context>;
    NotSent [code()?] delete_context(id: &str) -> ();
    NotSent [code()?] restart_context(id: &str) -> ();
    Harmless [code()?] get_variable(context: Option<&str>, name: &str) -> Value;
    Harmless [commands()?] list_commands() -> Vec<CommandInfo>;
    Harmless [files()?] read_file(path: &str, range: ByteRange) -> ByteStream;
    Harmless [files()?] list_files(path: &str) -> Vec<FileInfo>;
    Harmless [files()?] stat_file(path: &str) -> FileInfo;
    NotSent [files()?] create_directory(path: &str, parents: bool) -> ();
    NotSent [files()?] remove_file(path: &str, recursive: bool) -> ();
    NotSent [files()?] rename_file(from: &str, to: &str) -> ();
    NotSent [files()?] copy_file(from: &str, to: &str) -> ();
    Harmless [files()?] set_file_mode(path: &str, mode: u32) -> ();
    Harmless [files()?] find_files(query: FindFiles) -> Vec<FoundFile>;
    Harmless [files()?] read_archive(path: &str) -> ByteStream;
    NotSent [snapshots()?] create_snapshot(name: &str, description: &str) -> SnapshotInfo;
    NotSent [ports()?] expose_port(port: u16) -> TunnelInfo;
}
