//! What layers add to a warm run, the time of a scan, and a listing over several places.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use code_sandboxes::{
    Backend, CallContext, Capabilities, CreateSpec, Health, Instance, IsolationMode, Layer as _,
    ListQuery, Manager, Page, Registry, Result, Sandbox, SandboxEnvironment, SandboxId,
    SandboxInfo, SnapshotInfo, Variant,
};
use sandbox_layers::{
    AuditLayer, AuditLog, AuditPolicy, BreakerLayer, BreakerPolicy, CircuitBreaker, RetryLayer,
    RetryPolicy, ScanLanguage, ScanLayer, ScanPolicy, scan,
};

use crate::row::{Bar, Row, Yardstick};
use crate::sample::{Measured, alone, compare, since, text};
use crate::sandboxes;
use crate::setup::Setup;

/// A thousand lines as programs have them.
const PARAGRAPH: &str = "import json, os.path
def load(path):
    with open(path) as file:
        rows = [json.loads(line) for line in file if line.strip()]
    total = sum(row['value'] * 2 for row in rows)
    names = sorted({row['name'].lower() for row in rows}, key=len)
    if total > 100 and names:
        print(f'{len(names)} names, {total:.2f} in all')
    return {'total': total, 'names': names, 'where': os.path.basename(path)}
x = load('data.jsonl')
";

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    vec![
        Row::compared(
            "warm run_code through audit, scan, breaker and retry",
            layered(setup).await,
            Bar::RatioAnd(1.0, 0.1),
        ),
        Row::plain("scan of 1,000 lines", "ms", scanned(setup).await, Bar::Below(2.0)),
        Row::compared("list over eight places", listed(setup).await, Bar::Ratio(1.1)),
    ]
}

/// Both in cells, which are alike but for the layers.
async fn layered(setup: &Setup) -> Measured<(f64, Yardstick)> {
    let directory = tempfile::tempdir().map_err(text)?;
    let log =
        AuditLog::open(directory.path().join("audit"), AuditPolicy::default()).map_err(text)?;
    let cells: Arc<dyn Backend> = Registry::new().backend(Variant::LOCAL_EVAL).map_err(text)?;
    let mut stack = RetryLayer::new(RetryPolicy::default()).layer(cells);
    stack = BreakerLayer::new(CircuitBreaker::new(BreakerPolicy::default())).layer(stack);
    stack = ScanLayer::new(ScanPolicy::warn()).layer(stack);
    stack = AuditLayer::new(log).layer(stack);
    let bare = sandboxes::warm(Setup::builder(IsolationMode::Strict)).await?;
    let layered: Sandbox =
        sandboxes::warm(Setup::builder(IsolationMode::Strict).backend(stack)).await?;
    let ours = async || sandboxes::run(&layered).await;
    compare(setup.samples(), "without layers", ours, async || sandboxes::run(&bare).await).await
}

/// A place that takes its time to list.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn Backend>,
    variant: Variant,
    delay: Duration,
}

#[async_trait]
impl Backend for Slow {
    fn variant(&self) -> Variant {
        self.variant
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        self.inner.create(call, spec).await
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        self.inner.attach(call, id).await
    }

    async fn list(&self, _: &CallContext, _: ListQuery) -> Result<Page<SandboxInfo>> {
        tokio::time::sleep(self.delay).await;
        Ok(Page::last(Vec::new()))
    }

    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        self.inner.environments(call).await
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        self.inner.health(call).await
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        self.inner.list_snapshots(call).await
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        self.inner.delete_snapshot(call, name).await
    }
}

/// Places that take 3 to 24 ms, beside the slowest of them alone.
async fn listed(setup: &Setup) -> Measured<(f64, Yardstick)> {
    const NAMES: [&str; 8] =
        ["bench-1", "bench-2", "bench-3", "bench-4", "bench-5", "bench-6", "bench-7", "bench-8"];
    let cells = Registry::new().backend(Variant::LOCAL_EVAL).map_err(text)?;
    let mut places: Vec<Arc<dyn Backend>> = Vec::new();
    for (name, milliseconds) in NAMES.into_iter().zip((3..).step_by(3)) {
        let (inner, variant) = (Arc::clone(&cells), Variant::register(name).map_err(text)?);
        let delay = Duration::from_millis(milliseconds);
        places.push(Arc::new(Slow { inner, variant, delay }));
    }
    let slowest = Arc::clone(&places[NAMES.len() - 1]);
    let manager = Manager::new(places).map_err(text)?;
    let ours = async || {
        let began = Instant::now();
        let listing = manager.list_all(ListQuery::default()).await;
        let took = since(began);
        listing.errors.first().map_or(Ok(took), |(_, error)| Err(error.to_string()))
    };
    let alone = async || {
        let began = Instant::now();
        slowest.list(&CallContext::new(), ListQuery::default()).await.map_err(text)?;
        Ok(since(began))
    };
    // A pair takes 48 ms, whatever the machine: hundreds of them would take half a minute.
    compare(setup.slow_samples(), "the slowest alone", ours, alone).await
}

async fn scanned(setup: &Setup) -> Measured {
    let (code, policy) = (PARAGRAPH.repeat(100), ScanPolicy::warn());
    alone(setup.samples(), async || {
        let began = Instant::now();
        let findings = scan(&code, ScanLanguage::Python, &policy);
        let took = since(began);
        if findings.is_empty() { Ok(took) } else { Err(format!("{:?}", findings[0])) }
    })
    .await
}
