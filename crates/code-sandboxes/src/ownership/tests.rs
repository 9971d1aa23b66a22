//! Tests with cells of this host in the part of a cloud.

use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use backend_eval::EvalBackend;

use super::*;

/// A cloud that lists its sandboxes with all of their tags, and lets any process attach to them.
#[derive(Debug)]
struct Cloud {
    cells: Arc<dyn Backend>,
    made: Mutex<Vec<Arc<dyn Instance>>>,
}

impl Cloud {
    fn new() -> Arc<Self> {
        Arc::new(Self { cells: Arc::new(EvalBackend::default()), made: Mutex::default() })
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn Instance>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn living(&self) -> usize {
        self.made().iter().filter(|one| one.status() == SandboxStatus::Running).count()
    }
}

#[async_trait]
impl BackendWrapper for Cloud {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.cells
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let made = self.cells.create(call, spec).await?;
        self.made().push(Arc::clone(&made));
        Ok(made)
    }

    async fn attach(&self, _: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let id = id.to_string();
        let found = self.made().iter().find(|one| one.info().id == id).cloned();
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, "attach", "no such sandbox"))
    }

    async fn list(&self, _: &CallContext, _: ListQuery) -> Result<Page<SandboxInfo>> {
        Ok(Page::last(self.made().iter().map(|one| one.info()).collect()))
    }
}

async fn create(backend: &Arc<dyn Backend>, tags: &[(&str, &str)]) -> Arc<dyn Instance> {
    let mut spec = CreateSpec::default();
    spec.tags = tags.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    backend.create(&CallContext::new(), spec).await.expect("a sandbox")
}

#[tokio::test]
async fn users_see_their_own_tags_alone() {
    let cloud = Cloud::new();
    let backend = OwnershipLayer.layer(wrap_backend(Arc::clone(&cloud)));
    let sandbox = create(&backend, &[("team", "a"), (MANAGED_TAG, "another")]).await;
    let own = Tags::from([("team".into(), "a".into()), (MANAGED_TAG.into(), "another".into())]);
    assert_eq!(sandbox.info().tags, own);
    let call = CallContext::new();
    let listed = backend.list(&call, ListQuery::default()).await.unwrap();
    assert_eq!(listed.items[0].tags, own);
    let other = Tags::from([("team".into(), "b".into())]);
    sandbox.life().set_tags(&call, other.clone()).await.unwrap();
    assert_eq!(sandbox.info().tags, other);
    // The provider still knows whose it is.
    let known = cloud.made()[0].info().tags;
    assert_eq!(known[OWNER_TAG], this_process());
    let before: f64 = known[EXPIRES_TAG].parse().unwrap();
    sandbox.life().set_lifetime(&call, Duration::from_secs(100)).await.unwrap();
    let after: f64 = cloud.made()[0].info().tags[EXPIRES_TAG].parse().unwrap();
    assert!(after < before && (after - unix_now() - 100.0).abs() < 10.0, "{after}");
    sandbox.life().terminate(&call).await.unwrap();
}

#[tokio::test]
async fn what_processes_share_has_an_owner_too_and_ends_with_its_time() {
    let cloud = Cloud::new();
    let backend = OwnershipLayer.layer(wrap_backend(Arc::clone(&cloud)));
    let call = CallContext::new().with_idempotency_key("k");
    let mut spec = CreateSpec::default();
    spec.tags = Tags::from([("team".into(), "a".into())]);
    for _ in 0..2 {
        let made = backend.create(&call, spec.clone()).await.unwrap();
        assert_eq!(made.info().tags, spec.tags, "users see their own tags alone");
    }
    let known: Vec<_> = cloud.made().iter().map(|one| one.info()).collect();
    assert_eq!(known[0].tags, known[1].tags, "both creates are one, so they ask for the same");
    assert_eq!(known[0].tags[OWNER_TAG], SHARED);
    assert_eq!(overdue(&known[0]), None, "its time has not come");
    let passed = SandboxInfo { end_at: Some(1000.0), ..known[0].clone() };
    assert_eq!(overdue(&passed), Some(Overdue::Expired));
    // Where nothing says when it ends, nothing is ended.
    assert_eq!(overdue(&SandboxInfo { end_at: None, ..passed }), None);
    drop(cloud.made().drain(..));
}

#[tokio::test]
async fn only_what_is_ours_and_without_an_owner_is_reaped() {
    let cloud = Cloud::new();
    let raw = wrap_backend(Arc::clone(&cloud));
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let owner = format!("{}_{}-{}", host(), child.id(), start_of(child.id()).unwrap());
    let elsewhere = format!("elsewhere.1.2.3_{}-1", child.id());
    let (past, future) = ("1000.0", &*expiry(Duration::from_secs(600)));
    let ours = |owner: &str, end: &str| {
        [(MANAGED_TAG, MANAGED), (OWNER_TAG, owner), (EXPIRES_TAG, end)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
    };
    for tags in [
        ours(&owner, future),
        ours(this_process(), future),
        ours(host(), future),
        ours(&elsewhere, future),
    ] {
        let tags: Vec<_> = tags.iter().map(|(key, value)| (&**key, &**value)).collect();
        create(&raw, &tags).await;
    }
    create(&raw, &[("mine", "yes"), (EXPIRES_TAG, past)]).await;
    assert!(reap_from(Arc::clone(&raw), true).await.unwrap().is_empty(), "all have an owner");

    // The owner dies without a word.
    child.kill().unwrap();
    child.wait().unwrap();
    let expired = ours(&elsewhere, past);
    let expired: Vec<_> = expired.iter().map(|(key, value)| (&**key, &**value)).collect();
    let expired = create(&raw, &expired).await;
    // The cell itself has an end of its own, which counts more.
    assert_eq!(overdue(&SandboxInfo { end_at: None, ..expired.info() }), Some(Overdue::Expired));
    assert_eq!(overdue(&expired.info()), None);
    let found = reap_from(Arc::clone(&raw), false).await.unwrap();
    let [Reaped { reason: Overdue::OwnerGone, ended: None, .. }] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(cloud.living(), 6, "nothing was ended");
    let ended = reap_from(Arc::clone(&raw), true).await.unwrap();
    assert!(matches!(ended[0].ended, Some(Ok(()))), "{ended:?}");
    assert_eq!(cloud.living(), 5);
    assert!(reap_from(raw, true).await.unwrap().is_empty());
    for one in cloud.made().drain(..) {
        drop(one);
    }
}
