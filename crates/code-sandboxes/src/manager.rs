//! Several backends as one: failover, and listings over all of them.
//!
//! ```
//! use code_sandboxes::{Manager, Registry, Sandbox, Variant};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> code_sandboxes::Result<()> {
//! let manager = Manager::new([Registry::new().backend(Variant::LOCAL_EVAL)?])?;
//! let sandbox = Sandbox::builder().backend(manager.clone()).create().await?;
//! assert_eq!(sandbox.run_code("6 * 7").await?.text(), Some("42"));
//! let listing = manager.list_all(Default::default()).await;
//! assert!(listing.errors.is_empty());
//! sandbox.terminate().await
//! # }
//! ```

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use futures_util::future::join_all;
use sandbox_core::{
    Backend, CallContext, Capabilities, Check, CreateSpec, Error, ErrorKind, Health, Instance,
    Layer, ListQuery, NetworkMode, NetworkPolicy, Page, Result, SandboxEnvironment, SandboxId,
    SandboxInfo, SnapshotInfo, Tags, Variant,
};

use crate::{Registry, Sandbox, lacks_credentials};

/// Several places as one backend. Cheap to clone.
///
/// A create goes to the default place, and then, one after the other, to the fallbacks. It only goes to a place that offers
/// what was asked for: isolation is never weaker, the network never wider, and every required capability is there. It only
/// goes on after an error that another place can mend, so a bad argument is reported at once. A sandbox stays where it was
/// made, and its id names the place.
///
/// The capabilities are those of all places together; each create is checked against the place that it goes to.
#[derive(Clone, Debug)]
pub struct Manager {
    places: Arc<[Arc<dyn Backend>]>,
    /// Places of a create, in this order, by index.
    chain: Arc<[usize]>,
    required: Capabilities,
}

/// Lets a create go on to other places: `Sandbox::builder().layer(Fallback::to([..])?)`.
///
/// It makes a [`Manager`] of the backend of the builder and these, in this order.
#[derive(Clone, Debug)]
pub struct Fallback(Vec<Arc<dyn Backend>>);

impl Fallback {
    /// Takes variants of this build as the places to go on to.
    ///
    /// # Errors
    /// `Unsupported` for a variant that this build does not have.
    pub fn to(variants: impl IntoIterator<Item = Variant>) -> Result<Self> {
        let backends = variants.into_iter().map(|variant| Registry::new().backend(variant));
        backends.collect::<Result<_>>().map(Self)
    }

    /// Takes backends as the places to go on to, such as ones with layers of their own around them.
    pub fn new(places: impl IntoIterator<Item = Arc<dyn Backend>>) -> Self {
        Self(places.into_iter().collect())
    }
}

impl Layer for Fallback {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        let mut places = vec![inner];
        for place in &self.0 {
            // A place that failed is not tried again.
            if places.iter().all(|other| other.variant() != place.variant()) {
                places.push(Arc::clone(place));
            }
        }
        let chain = (0..places.len()).collect();
        Arc::new(Manager { places: places.into(), chain, required: Capabilities::default() })
    }
}

/// Sandboxes of all places, and the errors of those that could not be asked.
#[derive(Debug, Default)]
pub struct Listing {
    /// The sandboxes, by place.
    pub items: Vec<SandboxInfo>,
    /// The places that failed, with the reasons.
    pub errors: Vec<(Variant, Error)>,
}

impl Manager {
    /// Manages backends. The first one is the default; there is no fallback.
    ///
    /// # Errors
    /// `InvalidArgument` without a backend, or with two of one variant.
    pub fn new(places: impl IntoIterator<Item = Arc<dyn Backend>>) -> Result<Self> {
        let places: Vec<_> = places.into_iter().collect();
        if places.is_empty() {
            return Err(Error::invalid("places", "must not be empty: name at least one backend"));
        }
        for (index, place) in places.iter().enumerate() {
            let variant = place.variant();
            if places[..index].iter().any(|other| other.variant() == variant) {
                return Err(Error::invalid("places", format!("has {variant} twice")));
            }
        }
        let (places, chain) = (places.into(), [0].into());
        Ok(Self { places, chain, required: Capabilities::default() })
    }

    /// Sets the places of a create: the default, then the fallbacks in the order in which they are tried.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty list, a variant that is not managed, or one that comes twice.
    pub fn with_chain(mut self, variants: impl IntoIterator<Item = Variant>) -> Result<Self> {
        let mut chain = Vec::new();
        for variant in variants {
            let index = self.index(variant)?;
            if chain.contains(&index) {
                return Err(Error::invalid("fallback", format!("has {variant} twice")));
            }
            chain.push(index);
        }
        if chain.is_empty() {
            return Err(Error::invalid("fallback", "must name at least one variant"));
        }
        self.chain = chain.into();
        Ok(self)
    }

    /// Sets capabilities that a place must have to be used for a create.
    #[must_use]
    pub fn require(mut self, capabilities: Capabilities) -> Self {
        self.required = capabilities;
        self
    }

    /// Returns the managed variants.
    pub fn variants(&self) -> Vec<Variant> {
        self.places.iter().map(|place| place.variant()).collect()
    }

    /// Returns the backend of a variant.
    ///
    /// # Errors
    /// `InvalidArgument` when the variant is not managed.
    pub fn place(&self, variant: Variant) -> Result<&Arc<dyn Backend>> {
        self.index(variant).map(|index| &self.places[index])
    }

    fn index(&self, variant: Variant) -> Result<usize> {
        let found = self.places.iter().position(|place| place.variant() == variant);
        found.ok_or_else(|| {
            let names: Vec<_> = self.variants().iter().map(ToString::to_string).collect();
            let message = format!("{variant} is not managed here; use {}", names.join(", "));
            Error::new(ErrorKind::InvalidArgument, "create", message)
                .with_context("variant", variant.as_str())
        })
    }

    /// Lists the sandboxes of all places at the same time. It takes as long as the slowest one.
    pub async fn list_all(&self, query: ListQuery) -> Listing {
        let call = CallContext::new();
        let listed = join_all(self.places.iter().map(|place| pages(place, &call, query.clone())));
        let mut listing = Listing::default();
        for (place, listed) in self.places.iter().zip(listed.await) {
            match listed {
                Ok(items) => listing.items.extend(items),
                Err(error) => listing.errors.push((place.variant(), error)),
            }
        }
        listing
    }

    /// Finds a running sandbox with all these tags that outlives its process, in all places at the same time. Of several
    /// places the first one counts, and the oldest sandbox there.
    ///
    /// # Errors
    /// Where none was found and a place could not be asked: an error that names each such place with its reason.
    pub async fn find<K: Into<String>, V: Into<String>>(
        &self,
        tags: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Option<Sandbox>> {
        let tags: Tags = tags.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        find(&self.places, &tags).await
    }

    /// Checks the health of all places at the same time.
    pub async fn health_all(&self) -> Vec<(Variant, Result<Health>)> {
        let call = CallContext::new();
        let checks =
            self.places.iter().map(|place| async { (place.variant(), place.health(&call).await) });
        join_all(checks).await
    }

    /// Adapts a request to a place, so that it gets no more there than at the places before it.
    fn adapted(&self, index: usize, spec: &CreateSpec) -> Result<CreateSpec> {
        let (place, mut spec) = (&self.places[index], spec.clone());
        let before = self.chain.iter().take_while(|other| **other != index);
        let was_closed = before.map(|other| &self.places[*other]).any(is_closed);
        if spec.network.mode == NetworkMode::Inherit && was_closed && !is_closed(place) {
            // The network of a place before is closed by default, and the one of this place need not be.
            spec.network = NetworkPolicy { mode: NetworkMode::None, ..spec.network };
        }
        let capabilities = place.capabilities();
        let required = self.required.entries();
        let missing = required
            .iter()
            .zip(capabilities.entries())
            .find(|(required, had)| required.1 && !had.1);
        if let Some(((name, _), _)) = missing {
            let message = format!("the required capability `{name}` is missing");
            return Err(Error::unsupported("create", message));
        }
        capabilities.check(&spec)?;
        Ok(spec)
    }
}

/// Returns true where code has no network by default.
fn is_closed(place: &Arc<dyn Backend>) -> bool {
    place.variant().is_local() && place.capabilities().isolation_strict
}

/// Returns true for a failure that another place need not have.
fn is_mended_elsewhere(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::InvalidArgument | ErrorKind::AlreadyExists | ErrorKind::Cancelled
    )
}

/// Finds a sandbox by its tags in places that are asked at the same time. A place without credentials has none.
pub(crate) async fn find(places: &[Arc<dyn Backend>], tags: &Tags) -> Result<Option<Sandbox>> {
    let asked = join_all(places.iter().map(|place| sandbox_core::Sandbox::find(place, tags)));
    let mut failed = Vec::new();
    for (place, answer) in places.iter().zip(asked.await) {
        match answer {
            Ok(Some(found)) => return Ok(Some(found.into())),
            Ok(None) => {}
            Err(error) if lacks_credentials(&error) => {}
            Err(error) => failed.push((place.variant(), error)),
        }
    }
    if failed.is_empty() {
        return Ok(None);
    }
    Err(together("find", "no place has it, and not every place could be asked", failed))
}

/// Lists the sandboxes of one place, over all pages.
pub(crate) async fn pages(
    place: &Arc<dyn Backend>,
    call: &CallContext,
    mut query: ListQuery,
) -> Result<Vec<SandboxInfo>> {
    let mut all = Vec::new();
    loop {
        let page = place.list(call, query.clone()).await?;
        all.extend(page.items);
        match page.next {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(all),
        }
    }
}

/// One error for several places, which names each with its reason. The kind and the advice are those of the first.
fn together(operation: &'static str, what: &str, failed: Vec<(Variant, Error)>) -> Error {
    let reasons: Vec<_> =
        failed.iter().map(|(variant, error)| format!("{variant}: {error}")).collect();
    let message = format!("{what}: {}", reasons.join("; "));
    let first = failed.into_iter().next().map(|(_, error)| error);
    let kind = first.as_ref().map_or(ErrorKind::Unavailable, Error::kind);
    let mut error = Error::new(kind, operation, message);
    if let Some(first) = first {
        error = error.with_retry(first.retry()).with_effect(first.effect());
        if let Some(hint) = first.hint() {
            error = error.with_hint(hint);
        }
    }
    error
}

#[async_trait]
impl Backend for Manager {
    /// The default place.
    fn variant(&self) -> Variant {
        self.places[self.chain[0]].variant()
    }

    fn capabilities(&self) -> Capabilities {
        let all = self.places.iter().map(|place| place.capabilities());
        all.fold(Capabilities::default(), Capabilities::union)
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let mut failed = Vec::new();
        for &index in self.chain.iter() {
            let place = &self.places[index];
            if call.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let message = "the deadline of the call has passed";
                failed.push((place.variant(), Error::new(ErrorKind::Timeout, "create", message)));
                break;
            }
            let made = match self.adapted(index, &spec) {
                Ok(spec) => place.create(call, spec).await,
                Err(unfit) => Err(unfit),
            };
            match made {
                Ok(instance) => return Ok(instance),
                Err(error) if self.chain.len() == 1 => return Err(error),
                Err(error) => {
                    tracing::debug!(place = %place.variant(), %error, "a place has not made the sandbox");
                    let goes_on = is_mended_elsewhere(&error);
                    failed.push((place.variant(), error));
                    if !goes_on {
                        break;
                    }
                }
            }
        }
        Err(together("create", "no place could make the sandbox", failed))
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        self.place(id.variant())?.attach(call, id).await
    }

    /// All sandboxes of all places, on one page. An error when a place cannot be asked; [`Manager::list_all`] gives the
    /// others then.
    async fn list(&self, _: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let Listing { items, errors } = self.list_all(query).await;
        if errors.is_empty() {
            return Ok(Page::last(items));
        }
        Err(together("list", "not every place could be asked", errors))
    }

    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let places = self.places.iter().filter(|place| place.capabilities().environments);
        let all = join_all(places.map(|place| place.environments(call))).await;
        all.into_iter().collect::<Result<Vec<_>>>().map(|all| all.concat())
    }

    /// Usable when the default place or one of its fallbacks is. The checks are the places, each followed by its own
    /// checks.
    async fn health(&self, _: &CallContext) -> Result<Health> {
        let mut checks = Vec::new();
        for (variant, health) in self.health_all().await {
            let name = variant.to_string();
            let mut own = Vec::new();
            checks.push(match health {
                Ok(Health { usable, detail, fix, checks }) => {
                    own = checks;
                    Check { name, ok: usable, detail, fix }
                }
                Err(error) => {
                    let (detail, fix) = (error.to_string(), error.hint().map(str::to_owned));
                    Check { name, ok: false, detail, fix }
                }
            });
            checks.extend(own.into_iter().map(|check| {
                let name = format!("{variant}: {}", check.name);
                Check { name, ..check }
            }));
        }
        let in_chain = |check: &&Check| {
            self.chain.iter().any(|index| self.places[*index].variant().as_str() == check.name)
        };
        let usable: Vec<_> = checks.iter().filter(in_chain).filter(|check| check.ok).collect();
        let detail = match usable.as_slice() {
            [] => "no place is usable".to_owned(),
            usable => {
                let names: Vec<_> = usable.iter().map(|check| check.name.as_str()).collect();
                format!("usable: {}", names.join(", "))
            }
        };
        let is_usable = !usable.is_empty();
        let fix = checks.iter().find(|check| !check.ok).and_then(|check| check.fix.clone());
        Ok(Health { usable: is_usable, detail, fix: fix.filter(|_| !is_usable), checks })
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        let places = self.places.iter().filter(|place| place.capabilities().snapshot);
        let all = join_all(places.map(|place| place.list_snapshots(call))).await;
        all.into_iter().collect::<Result<Vec<_>>>().map(|all| all.concat())
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        for place in self.places.iter().filter(|place| place.capabilities().snapshot) {
            match place.delete_snapshot(call, name).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                deleted => return deleted,
            }
        }
        let message = format!("no place has a snapshot {name:?}");
        Err(Error::new(ErrorKind::NotFound, "delete_snapshot", message))
    }
}
