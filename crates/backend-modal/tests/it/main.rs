//! The backend against a service of the tests.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[expect(dead_code, reason = "more comes")]
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use backend_modal::ModalBackend;
use sandbox_core::Sandbox;
use support::Service;

#[tokio::test(flavor = "multi_thread")]
async fn code_runs() {
    let service = Service::start();
    let backend = Arc::new(ModalBackend::new(service.config()));
    let sandbox = Sandbox::builder(backend).create().await.unwrap();
    assert_eq!(sandbox.run_code("6 * 7").await.unwrap().text(), Some("42"));
    sandbox.terminate().await.unwrap();
    assert!(service.running().is_empty());
}
