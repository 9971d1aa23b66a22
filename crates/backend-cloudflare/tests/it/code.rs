//! Code by the agent, over a terminal, in both generations.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use backend_cloudflare::{CloudflareBackend, CloudflareConfig};
use sandbox_core::{Backend, CallContext, FailureKind, Sandbox, Secret};
use sandbox_test_server::cloudflare::KEY;

use crate::{BOTH, Fixture};

#[tokio::test(flavor = "multi_thread")]
async fn state_stays_and_every_byte_passes() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.builder().env("WORD", "w").create().await.unwrap();
        sandbox.run_code("x = 41; import os").await.unwrap();
        let result =
            sandbox.run_code("print(os.environ['WORD'], os.getcwd())\nx + 1").await.unwrap();
        assert_eq!(result.text(), Some("42"), "{generation:?} {result:?}");
        assert_eq!(result.stdout(), "w /workspace\n");
        let result = sandbox.run_code("1 / 0").await.unwrap();
        assert_eq!(result.error().unwrap().name, "ZeroDivisionError");
        sandbox.create_context(Some("second")).await.unwrap();
        let result = sandbox.run_code("'x' in dir()").context("second").await.unwrap();
        assert_eq!(result.text(), Some("False"));
        // Much of it, in both directions at once.
        let text: String = (0..400_000_u32).map(|n| char::from(b' ' + (n % 95) as u8)).collect();
        sandbox.set_variable("sent", &text).await.unwrap();
        let back: String = sandbox.get_variable("sent").await.unwrap();
        assert!(back == text, "{generation:?}: {} characters", back.len());
        let late = sandbox.run_code("import time; time.sleep(60)").timeout(Duration::from_secs(1));
        let late = late.await.unwrap();
        assert_eq!(late.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
        assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("41"));
        sandbox.terminate().await.unwrap();
    }
}

/// What the other process connects to, and where its records are.
const URL: &str = "SANDBOX_TEST_CLOUDFLARE_URL";
const STATE: &str = "SANDBOX_TEST_CLOUDFLARE_STATE";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "another test runs it as another process"]
async fn the_other_process() {
    let mut config = CloudflareConfig::default();
    config.api_token = Some(Secret::new(KEY));
    config.base_url = Some(std::env::var(URL).unwrap());
    config.state_dir = Some(std::env::var_os(STATE).unwrap().into());
    let backend: Arc<dyn Backend> = Arc::new(CloudflareBackend::new(config));
    let builder = Sandbox::builder(backend).detached(Duration::from_secs(600));
    let sandbox = builder.create().await.unwrap();
    sandbox.run_code("x = 41").await.unwrap();
    sandbox.create_context(Some("second")).await.unwrap();
    sandbox.run_code("y = 'there'").context("second").await.unwrap();
    write!(std::io::stdout(), "<<{}>>", sandbox.id()).unwrap();
    std::process::exit(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_process_finds_variables_and_contexts() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let output = tokio::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "code::the_other_process"])
            .env(URL, f.server.url())
            .env(STATE, f.config.state_dir.as_ref().unwrap())
            .output()
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (_, rest) = text.split_once("<<").unwrap_or_else(|| panic!("{output:?}"));
        let id = rest.split_once(">>").unwrap().0.parse().unwrap();
        let instance = f.backend.attach(&CallContext::new(), &id).await.unwrap();
        let again = Sandbox::from_instance(Arc::clone(&f.backend), instance);
        let contexts = again.list_contexts().await.unwrap();
        let ids: Vec<_> = contexts.iter().map(|context| context.id.as_str()).collect();
        assert_eq!(ids, ["default", "second"]);
        assert_eq!(again.run_code("x + 1").await.unwrap().text(), Some("42"));
        assert_eq!(again.run_code("y").context("second").await.unwrap().text(), Some("'there'"));
        again.terminate().await.unwrap();
    }
}
