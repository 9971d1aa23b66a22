//! The builder of sandboxes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::layer::Layer;
use crate::model::variant::IntoVariant;
use crate::model::{Mount, NetworkPolicy, Variant};
use crate::path::sandbox_path;
use crate::sandbox::{DEFAULT_TIMEOUT, Sandbox};
use crate::secret::Secret;
use crate::spec::{CreateSpec, IsolationMode, SandboxConfig, SingleUse};
use crate::units::{IntoByteSize, IntoDuration, check_duration};
use crate::unstarted::UnstartedSandbox;

/// Finds the backend of a builder.
pub trait BackendResolver {
    /// The handle that the builder gives.
    type Sandbox: From<Sandbox>;

    /// The backend of a variant, or of the default one.
    ///
    /// # Errors
    /// `Unsupported` when the variant is not available here, with what makes it so.
    fn resolve(&self, variant: Option<Variant>) -> Result<Arc<dyn Backend>>;
}

/// One backend and no choice.
#[derive(Clone, Debug)]
pub struct SingleBackend(pub(crate) Arc<dyn Backend>);

impl BackendResolver for SingleBackend {
    type Sandbox = Sandbox;

    fn resolve(&self, variant: Option<Variant>) -> Result<Arc<dyn Backend>> {
        match variant {
            Some(variant) if variant != self.0.variant() => Err(Error::unsupported(
                "create",
                format!("this builder makes {} sandboxes, not {variant}", self.0.variant()),
            )),
            _ => Ok(Arc::clone(&self.0)),
        }
    }
}

/// A backend, alone or shared.
pub trait IntoBackend {
    /// Shares it.
    fn into_backend(self) -> Arc<dyn Backend>;
}

impl<B: Backend> IntoBackend for B {
    fn into_backend(self) -> Arc<dyn Backend> {
        Arc::new(self)
    }
}

impl<B: Backend> IntoBackend for Arc<B> {
    fn into_backend(self) -> Arc<dyn Backend> {
        self
    }
}

impl IntoBackend for Arc<dyn Backend> {
    fn into_backend(self) -> Arc<dyn Backend> {
        self
    }
}

/// Collects what a sandbox shall be like. Nothing starts before [`create`](SandboxBuilder::create);
/// the first wrong value is reported there, with its field and what is allowed.
///
/// A clone makes another sandbox of the same description.
#[must_use = "nothing happens until create() or build()"]
pub struct SandboxBuilder<R> {
    resolver: R,
    backend: Option<Arc<dyn Backend>>,
    variant: Option<Variant>,
    timeout: Duration,
    pub(crate) spec: CreateSpec,
    layers: Vec<Arc<dyn Layer>>,
    problem: Option<Error>,
}

impl<R: Clone> Clone for SandboxBuilder<R> {
    fn clone(&self) -> Self {
        Self {
            resolver: self.resolver.clone(),
            backend: self.backend.clone(),
            variant: self.variant,
            timeout: self.timeout,
            spec: self.spec.clone(),
            layers: self.layers.clone(),
            problem: self.problem.as_ref().map(Error::duplicate),
        }
    }
}

impl<R: fmt::Debug> fmt::Debug for SandboxBuilder<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxBuilder")
            .field("variant", &self.variant)
            .field("timeout", &self.timeout)
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl<R: BackendResolver> SandboxBuilder<R> {
    /// A builder that finds its backend with `resolver`.
    pub fn new(resolver: R) -> Self {
        Self {
            resolver,
            backend: None,
            variant: None,
            timeout: DEFAULT_TIMEOUT,
            spec: CreateSpec::default(),
            layers: Vec::new(),
            problem: None,
        }
    }

    fn note(&mut self, problem: Error) {
        self.problem.get_or_insert(problem);
    }

    /// Takes a value that may be wrong, and notes the problem in its place.
    fn noted<T>(&mut self, value: Result<T>) -> Option<T> {
        value.map_err(|problem| self.note(problem)).ok()
    }

    /// Sets the variant: [`Variant::LOCAL_EVAL`], `"local-eval"`, `"eval"` ..
    pub fn variant(mut self, variant: impl IntoVariant) -> Self {
        match variant.into_variant() {
            Ok(variant) => self.variant = Some(variant),
            Err(error) => self.note(error),
        }
        self
    }

    /// Takes this backend, configured or of the program's own, instead of the one that the variant stands for.
    ///
    /// A variant that is set too must be that of the backend.
    pub fn backend(mut self, backend: impl IntoBackend) -> Self {
        self.backend = Some(backend.into_backend());
        self
    }

    /// Sets how long a run may take by default: a [`Duration`], or text such as `"90s"`. Default 30 s.
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Self {
        let timeout = timeout.into_duration("timeout");
        let timeout = timeout.and_then(|timeout| check_duration("timeout", timeout));
        if let Some(timeout) = self.noted(timeout) {
            self.timeout = timeout;
        }
        self
    }

    /// Sets how long the sandbox lives at most: a [`Duration`], or text such as `"2h"`. At least 0.1 s. Default 24 hours.
    pub fn lifetime(mut self, lifetime: impl IntoDuration) -> Self {
        self.spec.lifetime = self.noted(lifetime.into_duration("lifetime"));
        self
    }

    /// Sets how long it may be unused before it ends: a [`Duration`], or text such as `"10m"`. At least 0.1 s. Default: no
    /// limit.
    pub fn idle_timeout(mut self, idle: impl IntoDuration) -> Self {
        self.spec.idle_timeout = self.noted(idle.into_duration("idle_timeout"));
        self
    }

    /// Names it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.spec.name = Some(name.into());
        self
    }

    /// Chooses an environment.
    pub fn environment(mut self, name: impl Into<String>) -> Self {
        self.spec.environment = Some(name.into());
        self
    }

    /// Chooses an image.
    pub fn image(mut self, name: impl Into<String>) -> Self {
        self.spec.image = Some(name.into());
        self
    }

    /// Sets the working directory inside. A relative one is below the backend's own, such as `/workspace`.
    pub fn working_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.spec.working_dir = self.noted(sandbox_path("working_dir", path.as_ref()));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.env.insert(name.into(), value.into());
        self
    }

    /// Sets environment variables: a map, or pairs of anything.
    pub fn envs<K: Into<String>, V: Into<String>>(
        mut self,
        envs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let envs = envs.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.spec.env.extend(envs);
        self
    }

    /// Sets an environment variable that is never shown.
    pub fn secret(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.spec.secrets.insert(name.into(), value.into());
        self
    }

    /// Sets a tag, also called label.
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.tags.insert(key.into(), value.into());
        self
    }

    /// Sets tags, also called labels: a map, or pairs of anything.
    pub fn tags<K: Into<String>, V: Into<String>>(
        mut self,
        tags: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let tags = tags.into_iter().map(|(key, value)| (key.into(), value.into()));
        self.spec.tags.extend(tags);
        self
    }

    /// Limits its memory: a [`ByteSize`](crate::ByteSize), or text such as `"512m"`.
    pub fn memory(mut self, memory: impl IntoByteSize) -> Self {
        self.spec.memory = self.noted(memory.into_byte_size("memory"));
        self
    }

    /// Limits its CPU cores.
    pub fn cpu(mut self, cores: f64) -> Self {
        self.spec.cpu = Some(cores);
        self
    }

    /// Limits its disk: a [`ByteSize`](crate::ByteSize), or text such as `"2g"`. Default of local-eval: 1 GiB.
    pub fn disk(mut self, disk: impl IntoByteSize) -> Self {
        self.spec.disk = self.noted(disk.into_byte_size("disk"));
        self
    }

    /// Limits the number of its processes and threads, its own first process included. At least 4. Default of
    /// local-eval: 256.
    pub fn processes(mut self, most: u32) -> Self {
        self.spec.processes = Some(most);
        self
    }

    /// Limits the number of files and directories on its disk. At least 1,024. Default of local-eval: 262,144.
    pub fn disk_files(mut self, most: u64) -> Self {
        self.spec.disk_files = Some(most);
        self
    }

    /// Limits the descriptors that each of its processes may have open, at least 128. Default of local-eval: 1,024, which code may raise
    /// to 4,096.
    pub fn open_files(mut self, most: u32) -> Self {
        self.spec.open_files = Some(most);
        self
    }

    /// Limits what each run and each command may put out. Whatever puts out more is ended, and what it put out before is
    /// kept. Default: no limit, because results keep the ends of long output and streams hold the code back.
    pub fn output_limit(mut self, limit: impl IntoByteSize) -> Self {
        self.spec.output_limit = self.noted(limit.into_byte_size("output_limit"));
        self
    }

    /// Asks for a GPU: [`GpuType::T4`](crate::GpuType) or a name.
    pub fn gpu(mut self, gpu: impl Into<String>) -> Self {
        self.spec.gpu = Some(gpu.into());
        self
    }

    /// Sets the network policy.
    pub fn network(mut self, policy: NetworkPolicy) -> Self {
        self.spec.network = policy;
        self
    }

    /// Sets how hard the code is kept in. Default strict.
    pub fn isolation(mut self, mode: IsolationMode) -> Self {
        self.spec.isolation = mode;
        self
    }

    /// Gives it a file or a directory of the host, read-only unless [`Mount::writable`] says otherwise. May be repeated.
    pub fn mount(mut self, mount: Mount) -> Self {
        self.spec.mounts.push(mount);
        self
    }

    /// Starts from a snapshot, by its name: see [`Sandbox::create_snapshot`](crate::Sandbox::create_snapshot).
    pub fn snapshot_name(mut self, name: impl Into<String>) -> Self {
        self.spec.snapshot = Some(name.into());
        self
    }

    /// Lets it outlive this process, for at most `ttl`: a [`Duration`], or text such as `"1h"`.
    pub fn detached(mut self, ttl: impl IntoDuration) -> Self {
        self.spec.detached = self.noted(ttl.into_duration("detached"));
        self
    }

    /// Returns true when the sandbox is to outlive this process.
    pub fn is_detached(&self) -> bool {
        self.spec.detached.is_some()
    }

    /// Returns what is asked for so far.
    pub fn spec(&self) -> &CreateSpec {
        &self.spec
    }

    /// Says that it is made for one thing alone, so that nothing is prepared for a second one.
    pub fn single_use(mut self, purpose: SingleUse) -> Self {
        self.spec.single_use = Some(purpose);
        self
    }

    /// Sets an option of the backend. Unknown ones are refused.
    pub fn provider_option(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.spec.provider_options.insert(key.into(), value.into());
        self
    }

    /// Takes these settings in place of everything set before.
    pub fn with_spec(mut self, spec: CreateSpec) -> Self {
        self.spec = spec;
        self
    }

    /// Takes a configuration of the Python library this one supersedes, in place of everything set before.
    pub fn config(mut self, config: SandboxConfig) -> Self {
        match config.into_spec() {
            Ok((timeout, spec)) => (self.timeout, self.spec) = (timeout, spec),
            Err(error) => self.note(error),
        }
        self
    }

    /// Wraps the backend. The first layer is the innermost.
    pub fn layer(mut self, layer: impl Layer + 'static) -> Self {
        self.layers.push(Arc::new(layer));
        self
    }

    /// Checks the description, and gives a sandbox that is not started: see [`UnstartedSandbox::start`].
    ///
    /// # Errors
    /// `InvalidArgument` with the field; `Unsupported` for what the variant cannot do or enforce.
    pub fn build(self) -> Result<UnstartedSandbox<R::Sandbox>> {
        let (backend, spec, timeout) = self.checked()?;
        Ok(UnstartedSandbox::new(backend, spec, timeout))
    }

    /// Returns the backend, with its layers, and the checked spec, for a program that makes sandboxes of its own from them.
    ///
    /// # Errors
    /// As [`SandboxBuilder::build`].
    pub fn into_parts(self) -> Result<(Arc<dyn Backend>, CreateSpec)> {
        self.checked().map(|(backend, spec, _)| (backend, spec))
    }

    /// The backend, and what is asked of it.
    pub(crate) fn checked(self) -> Result<(Arc<dyn Backend>, CreateSpec, Duration)> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        self.spec.validate()?;
        let mut backend = match self.backend {
            Some(backend) => SingleBackend(backend).resolve(self.variant)?,
            None => self.resolver.resolve(self.variant)?,
        };
        for layer in self.layers {
            backend = layer.layer(backend);
        }
        let variant = backend.variant();
        backend
            .capabilities()
            .check(&self.spec)
            .map_err(|error| error.with_context("variant", variant.as_str()))?;
        Ok((backend, self.spec, self.timeout))
    }

    /// Makes the sandbox and starts it.
    ///
    /// # Errors
    /// As [`SandboxBuilder::build`], and whatever keeps the backend from creating it.
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    pub async fn create(self) -> Result<R::Sandbox> {
        self.build()?.start().await
    }

    /// Makes the sandbox, lends it to `body`, and terminates it whatever comes of that.
    ///
    /// # Errors
    /// Those of [`SandboxBuilder::create`], of `body`, and of terminating.
    ///
    /// # Cancellation
    /// Dropping the future kills the sandbox.
    pub async fn scope<T, E, F>(self, body: F) -> Result<T, E>
    where
        R::Sandbox: AsRef<Sandbox>,
        F: AsyncFnOnce(&R::Sandbox) -> Result<T, E>,
        E: From<Error>,
    {
        let sandbox = self.create().await?;
        let outcome = body(&sandbox).await;
        let ended = sandbox.as_ref().terminate().await;
        let value = outcome?;
        ended?;
        Ok(value)
    }
}

impl AsRef<Self> for Sandbox {
    fn as_ref(&self) -> &Self {
        self
    }
}
