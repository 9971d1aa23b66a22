//! Whose a sandbox in a cloud is: tags of its owner and its end, and the end of sandboxes that nothing owns any more.
//!
//! An attached sandbox ends with the process that made it. When that process dies without a word, the provider does not
//! know, and the sandbox costs money until its lifetime is over. Its tags tell a later process that its owner is gone.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{
    Backend, BackendWrapper, CallContext, CreateSpec, Error, ErrorKind, Instance, InstanceWrapper,
    Layer, ListQuery, Page, Result, SandboxId, SandboxInfo, SandboxStatus, Tags, Variant, unix_now,
    wrap_backend, wrap_instance,
};

use crate::Registry;

/// The tag that says that a sandbox was made by this library.
const MANAGED_TAG: &str = "managed-by";
const MANAGED: &str = "code-sandboxes";

/// The tag with the owner of a sandbox: `HOST_PID-START` for the process that it ends with, `HOST` for one that outlives its
/// process, and `shared` for one that belongs to every process with its idempotency key.
pub const OWNER_TAG: &str = "sandboxes-owner";

/// The owner of a sandbox that was made with an idempotency key: the same in every process.
const SHARED: &str = "shared";

/// The tag with the end of a sandbox, in unix seconds.
const EXPIRES_TAG: &str = "sandboxes-expires-at";

/// Tags that users do not see.
const OWN_TAGS: [&str; 3] = [MANAGED_TAG, OWNER_TAG, EXPIRES_TAG];

/// Lifetime of a sandbox whose request names none.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Time after its end for which a sandbox is left to its owner and its provider.
const GRACE: f64 = 60.0;

/// Gives each sandbox the tags by which [`reap`] knows whose it is, and hides them from its user.
///
/// The [`Registry`] puts it around every backend whose sandboxes run elsewhere. A create with an idempotency key belongs to
/// every process that uses the key, so its owner is `shared`, and its end is the one that the provider tells.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnershipLayer;

impl Layer for OwnershipLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        wrap_backend(Arc::new(Owning { inner, own: Tags::new() }))
    }
}

#[derive(Debug)]
struct Owning<T: ?Sized> {
    inner: Arc<T>,
    /// The tags of a sandbox that users do not see.
    own: Tags,
}

impl<T: ?Sized> Owning<T> {
    fn wrap(&self, inner: Arc<dyn Instance>) -> Arc<dyn Instance> {
        let (own, _) = split(inner.info().tags);
        wrap_instance(Arc::new(Owning { inner, own }))
    }
}

/// Divides tags into those of this layer and those of the user.
fn split(tags: Tags) -> (Tags, Tags) {
    // A tag of the user may have the general name.
    let is_ours = tags.contains_key(OWNER_TAG);
    tags.into_iter().partition(|(key, value)| {
        is_ours && OWN_TAGS.contains(&key.as_str()) && (key != MANAGED_TAG || value == MANAGED)
    })
}

fn without_own(info: SandboxInfo) -> SandboxInfo {
    let (_, tags) = split(info.tags);
    SandboxInfo { tags, ..info }
}

#[async_trait]
impl BackendWrapper for Owning<dyn Backend> {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn create(&self, call: &CallContext, mut spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        if call.idempotency_key.is_some() {
            // Two such creates are one, in any process, so both must ask for the same tags.
            spec.tags.entry(MANAGED_TAG.to_owned()).or_insert_with(|| MANAGED.to_owned());
            spec.tags.insert(OWNER_TAG.to_owned(), SHARED.to_owned());
            return self.inner.create(call, spec).await.map(|made| self.wrap(made));
        }
        let lifetime = spec.detached.or(spec.lifetime);
        let capabilities = self.inner.capabilities();
        spec.tags.entry(MANAGED_TAG.to_owned()).or_insert_with(|| MANAGED.to_owned());
        let is_detached = spec.detached.is_some();
        let owner = if is_detached { host().to_owned() } else { this_process().to_owned() };
        spec.tags.insert(OWNER_TAG.to_owned(), owner);
        // An end that changes later and cannot be written down then would be wrong.
        if capabilities.set_tags || !capabilities.set_lifetime {
            let end = expiry(lifetime.unwrap_or(DEFAULT_LIFETIME));
            spec.tags.insert(EXPIRES_TAG.to_owned(), end);
        }
        self.inner.create(call, spec).await.map(|made| self.wrap(made))
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        self.inner.attach(call, id).await.map(|found| self.wrap(found))
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let Page { items, next } = self.inner.list(call, query).await?;
        Ok(Page { items: items.into_iter().map(without_own).collect(), next })
    }
}

#[async_trait]
impl InstanceWrapper for Owning<dyn Instance> {
    fn inner(&self) -> &Arc<dyn Instance> {
        &self.inner
    }

    fn info(&self) -> SandboxInfo {
        without_own(self.inner.info())
    }

    async fn set_tags(&self, call: &CallContext, mut tags: Tags) -> Result<()> {
        let (own, _) = split(self.inner.info().tags);
        let own = if own.is_empty() { self.own.clone() } else { own };
        tags.extend(own);
        self.inner.life().set_tags(call, tags).await
    }

    async fn set_lifetime(&self, call: &CallContext, lifetime: Duration) -> Result<()> {
        self.inner.life().set_lifetime(call, lifetime).await?;
        let mut tags = self.inner.info().tags;
        if !tags.contains_key(EXPIRES_TAG) || !self.inner.capabilities().set_tags {
            return Ok(());
        }
        tags.insert(EXPIRES_TAG.to_owned(), expiry(lifetime));
        self.inner.life().set_tags(call, tags).await
    }

    async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>> {
        self.inner.life().fork(call).await.map(|copy| self.wrap(copy))
    }
}

fn expiry(lifetime: Duration) -> String {
    format!("{:.0}", unix_now() + lifetime.as_secs_f64())
}

/// Returns a name of this computer, the same until it is started again, in characters that every provider takes.
fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let name = read("/proc/sys/kernel/hostname");
        let boot = read("/proc/sys/kernel/random/boot_id");
        let plain = |text: &str, most| -> String {
            text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(most).collect()
        };
        // Processes are told apart within one namespace of process ids, and seen by their own user for certain.
        let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let space: String = space.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        let user = fs::metadata("/proc/self").map(|own| own.uid()).unwrap_or_default();
        let boot = plain(&boot.replace('-', ""), 8);
        format!("{}.{boot}.{space}.{user}", plain(&name, 12))
    })
}

fn this_process() -> &'static str {
    static PROCESS: OnceLock<String> = OnceLock::new();
    PROCESS.get_or_init(|| {
        let pid = std::process::id();
        format!("{}_{pid}-{}", host(), start_of(pid).unwrap_or_default())
    })
}

/// Returns when a process of this computer was started, in ticks since the computer was. `None`: there is no such process.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    // The name, in parentheses, may itself contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let is_dead = matches!(*fields.first()?, "Z" | "X" | "x");
    if is_dead { None } else { fields.get(19)?.parse().ok() }
}

/// Why a sandbox is to be ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overdue {
    /// The process that it ends with is gone.
    OwnerGone,
    /// Its end has passed.
    Expired,
}

/// Returns why a sandbox of a list with all tags is to be ended. `None`: it is not ours, or has an owner, or its owner is on
/// another computer and its end has not come.
pub fn overdue(info: &SandboxInfo) -> Option<Overdue> {
    let owner = info.tags.get(OWNER_TAG)?;
    if matches!(info.status, SandboxStatus::Terminated) {
        return None;
    }
    if let Some((computer, process)) = owner.rsplit_once('_')
        && computer == host()
        && let Some((pid, start)) = process.split_once('-')
        && let (Ok(pid), Ok(start)) = (pid.parse::<u32>(), start.parse::<u64>())
        && start_of(pid) != Some(start)
    {
        return Some(Overdue::OwnerGone);
    }
    let told = info.tags.get(EXPIRES_TAG).and_then(|end| end.parse::<f64>().ok());
    let end = match (told, info.end_at) {
        // What the provider says of the end counts more.
        (Some(told), Some(known)) => known.max(told),
        (None, Some(known)) if owner == SHARED => known,
        (told, _) => told?,
    };
    (end + GRACE < unix_now()).then_some(Overdue::Expired)
}

/// A sandbox that is to be ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reaped {
    /// The sandbox.
    pub info: SandboxInfo,
    /// Why it is to be ended.
    pub reason: Overdue,
    /// What came of it. `None` when nothing was ended.
    pub ended: Option<Result<()>>,
}

/// Ends the sandboxes of a variant that this library made and nothing owns any more, from the list of the provider. Without
/// `ends` it only finds them.
///
/// A sandbox ends when the process that owned it is gone from this computer, or when its end has passed by a minute. What was
/// made by others, has an owner, or is owned by a process of another computer stays.
///
/// # Errors
/// What keeps the provider from listing its sandboxes. That one cannot be ended is in its entry.
pub async fn reap(variant: Variant, ends: bool) -> Result<Vec<Reaped>> {
    reap_from(Registry::new().plain_backend(variant)?, ends).await
}

async fn reap_from(backend: Arc<dyn Backend>, ends: bool) -> Result<Vec<Reaped>> {
    let call = CallContext::new();
    let (mut query, mut found) = (ListQuery::default(), BTreeMap::new());
    loop {
        let page = backend.list(&call, query.clone()).await?;
        let due = page.items.into_iter().filter_map(|info| Some((overdue(&info)?, info)));
        found.extend(due.map(|(reason, info)| (info.id.clone(), (reason, info))));
        match page.next {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    let mut all = Vec::new();
    for (reason, info) in found.into_values() {
        let ended = if ends { Some(end(&*backend, &info.id).await) } else { None };
        all.push(Reaped { info: without_own(info), reason, ended });
    }
    Ok(all)
}

async fn end(backend: &dyn Backend, id: &str) -> Result<()> {
    let (call, id) = (CallContext::new(), id.parse()?);
    let gone = |error: &Error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Terminated);
    match backend.attach(&call, &id).await {
        Ok(instance) => instance.life().terminate(&call).await,
        Err(error) if gone(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(all(test, feature = "eval"))]
mod tests;
