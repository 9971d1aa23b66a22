//! A reviewer that runs a test suite against a proposed change, and writes down what it ran.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use code_sandboxes::{ByteSize, Result, Sandbox};
use sandbox_layers::{AuditLayer, AuditLog, AuditPolicy};

const TESTS: &str = "
import unittest
from prices import total

class Total(unittest.TestCase):
    def test_sum(self): self.assertEqual(total([1, 2]), 3)
    def test_nothing(self): self.assertEqual(total([]), 0)
    def test_discount(self): self.assertEqual(total([100], discount=0.5), 50)
";

const BEFORE: &str = "def total(prices): return sum(prices)";
const AFTER: &str = "def total(prices, discount=0): return sum(prices) * (1 - discount)";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("review-{}", std::process::id()));
    let log = AuditLog::open(&directory, AuditPolicy::default())?;
    for (name, code, passes) in [("before", BEFORE, false), ("after", AFTER, true)] {
        let builder = Sandbox::builder().layer(AuditLayer::new(log.clone()));
        let builder = builder.memory(ByteSize::mib(256)).lifetime(Duration::from_secs(60));
        let result = builder
            .scope(async |sandbox| {
                sandbox.files().write("prices.py", code).await?;
                sandbox.files().write("test_prices.py", TESTS).await?;
                let tests = sandbox.commands().run("python3 -m unittest -q");
                tests.timeout(Duration::from_secs(20)).await
            })
            .await?;
        let verdict = if result.success() { "approve" } else { "ask for changes" };
        println!("{name}: {verdict}\n{}", result.stderr.trim_end());
        assert_eq!(result.success(), passes, "{result:?}");
    }
    log.flush().await;
    let report = AuditLog::verify(&directory)?;
    println!("{} lines in the audit log, whole: {}", report.lines, report.problem.is_none());
    std::fs::remove_dir_all(&directory).ok();
    Ok(())
}
