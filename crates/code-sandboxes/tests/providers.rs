//! Programs of users over servers with the protocols of the providers, with the variables of the environment that a user sets.
//!
//! The program is `examples/providers.rs`. It runs in a process of its own: this test program again, with the one test that
//! says so.
#![cfg(all(feature = "daytona", feature = "e2b", feature = "modal"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[path = "../../backend-modal/tests/support/mod.rs"]
#[expect(dead_code, reason = "the tests of the backend use the rest")]
mod modal;
#[path = "../examples/providers.rs"]
#[expect(dead_code, reason = "its main function is that of the example")]
mod programs;

use std::process::Command;
use std::sync::Arc;

use backend_eval::EvalBackend;
use code_sandboxes::{Registry, Variant};
use sandbox_server::e2b::{E2bOptions, E2bServer};
use sandbox_test_server::daytona::{DaytonaServer, KEY, Options};

/// The provider that the program has to find by itself.
const EXPECTED: &str = "SANDBOX_TEST_EXPECTED_PROVIDER";

#[tokio::test]
#[ignore = "other tests run it as another process"]
async fn the_program_of_a_user() {
    let provider = Registry::new().detect();
    assert_eq!(provider.as_str(), std::env::var(EXPECTED).unwrap());
    programs::programs(provider).await.unwrap();
}

/// Runs the program with these variables and no other ones of providers.
async fn run(provider: Variant, variables: Vec<(&'static str, String)>) {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "--nocapture", "the_program_of_a_user"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home.path())
        .env("XDG_STATE_HOME", home.path().join("state"))
        .env(EXPECTED, provider.as_str())
        .envs(variables);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Hello from sandbox!\n") && said.contains("found again: "), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn daytona() {
    let server = DaytonaServer::start(Options::default()).await.unwrap();
    let variables =
        vec![("DAYTONA_API_KEY", KEY.to_owned()), ("DAYTONA_API_URL", server.api_url())];
    run(Variant::DAYTONA, variables).await;
    assert_eq!(server.alive(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn modal() {
    let service = modal::Service::start();
    let variables = vec![
        ("MODAL_TOKEN_ID", modal::TOKEN_ID.to_owned()),
        ("MODAL_TOKEN_SECRET", modal::TOKEN_SECRET.to_owned()),
        ("MODAL_SERVER_URL", service.url.clone()),
    ];
    run(Variant::MODAL, variables).await;
    assert!(service.running().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn e2b() {
    let server = E2bServer::start(Arc::new(EvalBackend::default()), E2bOptions::default());
    let server = server.await.unwrap();
    run(Variant::E2B, server.environment().into()).await;
    server.shutdown().await;
}
