//! Several places as one: failover to what offers the same, and listings with errors beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use code_sandboxes::{
    Backend, CallContext, Capabilities, CreateSpec, Error, ErrorKind, Fallback, Health, Instance,
    Layer, ListQuery, Manager, NetworkMode, Page, Registry, Result, Sandbox, SandboxEnvironment,
    SandboxId, SandboxInfo, SnapshotInfo, Variant,
};
use sandbox_layers::{BreakerLayer, BreakerPolicy, CircuitBreaker};

/// A place under another name: it fails with an error, or makes cells of this host.
#[derive(Debug)]
struct Place {
    variant: Variant,
    capabilities: Capabilities,
    fails: Option<ErrorKind>,
    delay: Duration,
    creates: AtomicUsize,
    cells: Arc<dyn Backend>,
    last: std::sync::Mutex<Option<CreateSpec>>,
    /// A sandbox that outlives its process here.
    has: Option<Arc<dyn Instance>>,
}

impl Place {
    fn new(name: &str, fails: Option<ErrorKind>) -> Arc<Self> {
        let cells = Registry::new().backend(Variant::LOCAL_EVAL).expect("cells");
        Arc::new(Self {
            variant: Variant::register(name).expect("a name"),
            capabilities: cells.capabilities(),
            fails,
            delay: Duration::ZERO,
            creates: AtomicUsize::new(0),
            cells,
            last: std::sync::Mutex::default(),
            has: None,
        })
    }

    fn answer(&self, operation: &'static str) -> Result<()> {
        match self.fails {
            Some(kind) => Err(Error::new(kind, operation, format!("{} says no", self.variant))),
            None => Ok(()),
        }
    }

    fn creates(&self) -> usize {
        self.creates.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Backend for Place {
    fn variant(&self) -> Variant {
        self.variant
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        self.creates.fetch_add(1, Ordering::Relaxed);
        *self.last.lock().expect("no poison") = Some(spec.clone());
        self.answer("create")?;
        self.cells.create(call, spec).await
    }

    async fn attach(&self, _: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        if let Some(instance) = &self.has {
            return Ok(Arc::clone(instance));
        }
        Err(Error::new(ErrorKind::NotFound, "attach", format!("no sandbox {}", id.local())))
    }

    async fn list(&self, _: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        tokio::time::sleep(self.delay).await;
        self.answer("list")?;
        let mut items: Vec<_> = self.has.iter().map(|instance| instance.info()).collect();
        items.retain(|info| query.tags.iter().all(|(key, tag)| info.tags.get(key) == Some(tag)));
        Ok(Page::last(items))
    }

    async fn environments(&self, _: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        Ok(Vec::new())
    }

    async fn health(&self, _: &CallContext) -> Result<Health> {
        let detail = self.variant.to_string();
        Ok(Health { usable: self.fails.is_none(), detail, ..Health::default() })
    }

    async fn list_snapshots(&self, _: &CallContext) -> Result<Vec<SnapshotInfo>> {
        Ok(Vec::new())
    }

    async fn delete_snapshot(&self, _: &CallContext, name: &str) -> Result<()> {
        Err(Error::new(ErrorKind::NotFound, "delete_snapshot", name))
    }
}

fn chain(places: &[&Arc<Place>]) -> Manager {
    let backends = places.iter().map(|place| Arc::clone(place) as Arc<dyn Backend>);
    let variants = places.iter().map(|place| place.variant);
    Manager::new(backends).and_then(|all| all.with_chain(variants)).expect("a chain")
}

async fn create(manager: &Manager, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
    manager.create(&CallContext::new(), spec).await
}

#[tokio::test]
async fn a_create_goes_on_where_another_place_can_mend_it() {
    let down = Place::new("down", Some(ErrorKind::Unavailable));
    let unpaid = Place::new("unpaid", Some(ErrorKind::QuotaExceeded));
    let (works, unused) = (Place::new("works", None), Place::new("unused", None));
    let manager = chain(&[&down, &unpaid, &works, &unused]);
    let made = create(&manager, CreateSpec::default()).await.unwrap();
    assert_eq!((down.creates(), unpaid.creates(), unused.creates()), (1, 1, 0));
    made.life().terminate(&CallContext::new()).await.unwrap();

    // A bad argument is bad everywhere.
    let strict = Place::new("strict", Some(ErrorKind::InvalidArgument));
    let manager = chain(&[&strict, &unused]);
    let error = create(&manager, CreateSpec::default()).await.unwrap_err();
    assert_eq!((error.kind(), unused.creates()), (ErrorKind::InvalidArgument, 0));
}

#[tokio::test]
async fn the_error_of_a_chain_names_every_place_with_its_reason() {
    let down = Place::new("down", Some(ErrorKind::Unavailable));
    let unpaid = Place::new("unpaid", Some(ErrorKind::QuotaExceeded));
    let error = create(&chain(&[&down, &unpaid]), CreateSpec::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(
        error.message(),
        "no place could make the sandbox: down: down says no; unpaid: unpaid says no"
    );
}

#[tokio::test]
async fn a_fallback_offers_at_least_what_was_asked_for() {
    let down = Place::new("down", Some(ErrorKind::Unavailable));
    let mut weak = Place::new("weak", None);
    Arc::get_mut(&mut weak).unwrap().capabilities.isolation_strict = false;
    let error = create(&chain(&[&down, &weak]), CreateSpec::default()).await.unwrap_err();
    assert_eq!(weak.creates(), 0, "isolation is never weaker");
    assert!(error.message().contains("weak: isolation `strict` cannot be enforced"), "{error}");

    let works = Place::new("works", None);
    let required = Capabilities { gpu: true, ..Capabilities::default() };
    let manager = chain(&[&down, &works]).require(required);
    let error = create(&manager, CreateSpec::default()).await.unwrap_err();
    assert!(error.message().contains("works: the required capability `gpu` is missing"), "{error}");
}

#[tokio::test]
async fn a_fallback_never_has_a_wider_network() {
    // The default network of cells is closed, and the one of a cloud is open.
    let cells = Registry::new().backend(Variant::LOCAL_EVAL).unwrap();
    let cloud = Place::new("cloud", None);
    let backends = [cells, Arc::clone(&cloud) as Arc<dyn Backend>];
    let manager = Manager::new(backends).unwrap();
    let manager = manager.with_chain([Variant::LOCAL_EVAL, cloud.variant]).unwrap();
    // Neither has GPUs.
    let mut spec = CreateSpec::default();
    spec.gpu = Some("T4".into());
    create(&manager, spec).await.unwrap_err();
    assert_eq!(cloud.creates(), 0);
    let mut generous = Place::new("generous", None);
    Arc::get_mut(&mut generous).unwrap().capabilities.gpu = true;
    let backends = [
        Registry::new().backend(Variant::LOCAL_EVAL).unwrap(),
        Arc::clone(&generous) as Arc<dyn Backend>,
    ];
    let manager = Manager::new(backends).unwrap();
    let manager = manager.with_chain([Variant::LOCAL_EVAL, generous.variant]).unwrap();
    let mut spec = CreateSpec::default();
    spec.gpu = Some("T4".into());
    let _ = create(&manager, spec).await;
    let asked = generous.last.lock().unwrap().clone().unwrap();
    assert_eq!(asked.network.mode, NetworkMode::None);
}

#[tokio::test]
async fn listings_ask_all_places_at_once_and_tell_errors_beside_the_results() {
    let slow = |name| {
        let mut place = Place::new(name, None);
        Arc::get_mut(&mut place).unwrap().delay = Duration::from_millis(500);
        place
    };
    let places = ["slow-a", "slow-b", "slow-c", "slow-d"].map(slow);
    let down = Place::new("down", Some(ErrorKind::Unavailable));
    let all: Vec<_> = places.iter().chain([&down]).collect();
    let manager = chain(&all);
    let began = Instant::now();
    let listing = manager.list_all(ListQuery::default()).await;
    assert!(began.elapsed() < Duration::from_millis(1500), "one after the other");
    let [(variant, error)] = listing.errors.as_slice() else { panic!("{listing:?}") };
    assert_eq!((*variant, error.kind()), (down.variant, ErrorKind::Unavailable));
    // As a backend it never gives a part for the whole.
    manager.list(&CallContext::new(), ListQuery::default()).await.unwrap_err();
    let health = manager.health(&CallContext::new()).await.unwrap();
    assert!(health.usable && health.checks.iter().any(|check| !check.ok), "{health:?}");
}

#[tokio::test]
async fn a_sandbox_is_found_by_its_labels_in_any_place_though_another_one_is_down() {
    let mut has = Place::new("has", None);
    let mut spec = CreateSpec::default();
    spec.tags.insert("project".into(), "ml".into());
    let made = has.cells.create(&CallContext::new(), spec).await.unwrap();
    Arc::get_mut(&mut has).unwrap().has = Some(Arc::clone(&made));
    let down = Place::new("down", Some(ErrorKind::Unavailable));
    let mut slow = Place::new("slow", None);
    Arc::get_mut(&mut slow).unwrap().delay = Duration::from_millis(200);
    let manager = chain(&[&down, &slow, &has]);
    let found = manager.find([("project", "ml")]).await.unwrap().expect("it is there");
    assert_eq!(found.id(), made.info().id);
    assert_eq!(found.run_code("6 * 7").await.unwrap().text(), Some("42"));

    // "There is none" is said only where every place has answered.
    let error = manager.find([("project", "other")]).await.unwrap_err();
    assert!(error.message().ends_with("down: down says no"), "{error}");
    assert!(chain(&[&slow, &has]).find([("project", "other")]).await.unwrap().is_none());
    made.life().kill(&CallContext::new()).await.unwrap();
}

#[tokio::test]
async fn a_manager_offers_what_any_place_has_and_a_sandbox_stays_where_it_was_made() {
    let mut gpus = Place::new("gpus", None);
    Arc::get_mut(&mut gpus).unwrap().capabilities =
        Capabilities { gpu: true, run_code: true, ..Capabilities::default() };
    let mut has = Place::new("has", None);
    let made = has.cells.create(&CallContext::new(), CreateSpec::default()).await.unwrap();
    Arc::get_mut(&mut has).unwrap().has = Some(Arc::clone(&made));
    let manager = chain(&[&gpus, &has]);
    let all = manager.capabilities();
    assert!(all.gpu && all.files && all.isolation_strict, "{all:?}");
    assert_eq!(manager.variant(), gpus.variant, "its own is that of its default");

    // An id names its place, and no other one is asked.
    let call = CallContext::new();
    let local = made.info().id.parse::<SandboxId>().unwrap().local().to_owned();
    let id = |variant: Variant| format!("{variant}/{local}").parse::<SandboxId>().unwrap();
    assert_eq!(manager.attach(&call, &id(has.variant)).await.unwrap().info().id, made.info().id);
    let elsewhere = manager.attach(&call, &id(gpus.variant)).await.unwrap_err();
    assert_eq!(elsewhere.kind(), ErrorKind::NotFound);
    let unmanaged = manager.attach(&call, &id(Variant::MODAL)).await.unwrap_err();
    assert_eq!(unmanaged.message(), "modal is not managed here; use gpus, has");

    let late = CallContext::new().with_deadline(Instant::now());
    let error = manager.create(&late, CreateSpec::default()).await.unwrap_err();
    assert!(error.message().contains("gpus: the deadline of the call has passed"), "{error}");
    assert_eq!((gpus.creates(), has.creates()), (0, 0));
    made.life().kill(&call).await.unwrap();
}

#[tokio::test]
async fn an_open_breaker_makes_the_chain_go_on_at_once_and_open_ones_everywhere_are_told() {
    let policy = BreakerPolicy { failure_threshold: 1, ..BreakerPolicy::default() };
    let guarded = |place: &Arc<Place>| {
        let breaker = CircuitBreaker::new(policy);
        BreakerLayer::new(breaker).layer(Arc::clone(place) as Arc<dyn Backend>)
    };
    let down = Place::new("down", Some(ErrorKind::Unavailable));
    let works = Place::new("works", None);
    let manager = Manager::new([guarded(&down), guarded(&works)]).unwrap();
    let manager = manager.with_chain([down.variant, works.variant]).unwrap();
    for _ in 0..3 {
        let made = create(&manager, CreateSpec::default()).await.unwrap();
        made.life().kill(&CallContext::new()).await.unwrap();
    }
    assert_eq!((down.creates(), works.creates()), (1, 3), "an open breaker asks nothing");
    let health = manager.health(&CallContext::new()).await.unwrap();
    let state = |name: &str| health.checks.iter().find(|check| check.name == name).unwrap();
    assert!(health.usable && state("works: circuit breaker").ok, "{health:?}");
    assert!(state("down: circuit breaker").detail.starts_with("open for"), "{health:?}");

    let gone = Place::new("gone", Some(ErrorKind::ConnectionLost));
    let manager = Manager::new([guarded(&down), guarded(&gone)]).unwrap();
    let manager = manager.with_chain([down.variant, gone.variant]).unwrap();
    create(&manager, CreateSpec::default()).await.unwrap_err();
    let error = create(&manager, CreateSpec::default()).await.unwrap_err();
    assert_eq!(error.message().matches("the circuit breaker is open").count(), 2, "{error}");
    assert!(error.message().contains("down: ") && error.message().contains("gone: "), "{error}");
}

#[test]
fn a_manager_needs_places_and_knows_only_those() {
    let error = Manager::new([]).unwrap_err();
    assert_eq!(error.message(), "`places` must not be empty: name at least one backend");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let place = Place::new("works", None);
    let manager = chain(&[&place]);
    let error = manager.place(Variant::MODAL).unwrap_err();
    assert_eq!(error.message(), "modal is not managed here; use works");
    let none = manager.clone().with_chain([]).unwrap_err();
    assert_eq!(none.message(), "`fallback` must name at least one variant");
    let unknown = manager.with_chain([place.variant, Variant::MODAL]).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::InvalidArgument);
    let twice = [&place, &place].map(|place| Arc::clone(place) as Arc<dyn Backend>);
    assert_eq!(Manager::new(twice).unwrap_err().message(), "`places` has works twice");
}

#[tokio::test]
async fn a_builder_goes_on_to_its_fallback() {
    // Whatever comes first fails here, so the sandbox is a cell.
    #[derive(Debug)]
    struct Down(Arc<Place>);
    impl Layer for Down {
        fn layer(&self, _: Arc<dyn Backend>) -> Arc<dyn Backend> {
            Arc::clone(&self.0) as Arc<dyn Backend>
        }
    }
    let down = Place::new("down", Some(ErrorKind::Unavailable));
    let builder = Sandbox::builder().layer(Down(Arc::clone(&down)));
    let fallback = Fallback::to([Variant::LOCAL_EVAL]).unwrap();
    let sandbox = builder.layer(fallback).create().await.unwrap();
    assert_eq!(sandbox.run_code("6 * 7").await.unwrap().text(), Some("42"));
    assert_eq!(down.creates(), 1);
    assert!(sandbox.id().starts_with("local-eval/"), "{:?}", sandbox.id());
    sandbox.terminate().await.unwrap();
    let not_built = Variant::register("no-backend-of-this-name").unwrap();
    let error = Fallback::to([not_built]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
