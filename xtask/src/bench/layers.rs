//! What layers add to a warm run, the time of a scan, and a listing over several places.

use std::sync::Arc;
use std::time::Instant;

use code_sandboxes::{Backend, IsolationMode, Layer as _, Registry, Sandbox, Variant};
use sandbox_layers::{
    AuditLayer, AuditLog, AuditPolicy, BreakerLayer, BreakerPolicy, CircuitBreaker, RetryLayer,
    RetryPolicy, ScanLanguage, ScanLayer, ScanPolicy, scan,
};

use crate::row::{Bar, Row, Yardstick};
use crate::sample::{Measured, alone, compare, text};
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

async fn scanned(setup: &Setup) -> Measured {
    let (code, policy) = (PARAGRAPH.repeat(100), ScanPolicy::warn());
    alone(setup.samples(), async || {
        let began = Instant::now();
        let findings = scan(&code, ScanLanguage::Python, &policy);
        let took = began.elapsed().as_secs_f64() * 1000.0;
        if findings.is_empty() { Ok(took) } else { Err(format!("{:?}", findings[0])) }
    })
    .await
}
