//! Twenty thousand lines, each flushed: none is lost, or that some are is told.

use std::sync::Arc;
use std::time::Duration;

use backend_jupyter::JupyterBackend;
use sandbox_core::{ExecutionResult, Sandbox};

use super::running::{Kernel, at};
use super::support::server::JupyterServer;
use super::support::{config, interpreter};
use super::{jupyter, on};

const LINES: u64 = 20_000;
const CODE: &str = "for n in range(20_000): print(n, flush=True)";

async fn flooded(sandbox: &Sandbox) -> ExecutionResult {
    let result = sandbox.run_code(CODE).timeout(Duration::from_secs(240)).await.unwrap();
    assert!(result.failure.is_none(), "{:?}", result.failure);
    // What the kernel is asked next, it answers.
    assert_eq!(sandbox.run_code("6 * 7").await.unwrap().text(), Some("42"));
    result
}

fn lines(result: &ExecutionResult) -> u64 {
    result.stdout_trimmed().lines().count() as u64
}

/// How many messages did not arrive, and of how many: where the kernel counts what it publishes.
fn counted(result: &ExecutionResult) -> Option<[u64; 2]> {
    let told = result.stderr_trimmed();
    let told = told.lines().find(|line| line.contains("messages did not arrive"))?;
    let mut numbers = told.split(|c: char| !c.is_ascii_digit()).filter(|text| !text.is_empty());
    let mut number = || numbers.next().unwrap().parse().unwrap();
    Some([number(), number()])
}

#[tokio::test(flavor = "multi_thread")]
async fn none_is_lost_in_a_cell() {
    if interpreter().is_none() {
        return;
    }
    for transport in ["ipc", "tcp"] {
        let backend = Arc::new(JupyterBackend::new(config()));
        let sandbox = Sandbox::builder(backend).provider_option("transport", transport).create();
        let result = flooded(&sandbox.await.unwrap()).await;
        assert_eq!(
            (lines(&result), result.stderr_trimmed()),
            (LINES, String::new()),
            "{transport}"
        );
    }
}

/// Such a kernel counts nothing, and drops what nobody takes in time. All that can be known is whether it said that it was
/// all.
#[tokio::test(flavor = "multi_thread")]
async fn none_is_lost_without_a_word_by_connection_file() {
    let Some(kernel) = Kernel::start() else { return };
    let result = flooded(&at(&kernel.file).create().await.unwrap()).await;
    let whole = lines(&result) == LINES;
    assert!(
        whole || result.stderr_trimmed().contains("missing here"),
        "{} {}",
        lines(&result),
        result.stderr_trimmed()
    );
}

/// The program in such a kernel counts what it publishes, so whatever is between it and us, the sum is right.
async fn the_sum_is_right(server: &JupyterServer) -> ExecutionResult {
    let result = flooded(&on(server).create().await.unwrap()).await;
    let arrived = lines(&result);
    match counted(&result) {
        None => assert_eq!(arrived, LINES, "{}", result.stderr_trimmed()),
        // A line whose end was published later is two messages: what is missing of it costs one line at the most.
        Some([missing, published]) if published > LINES => {
            assert!(
                missing > 0 && arrived + missing >= LINES,
                "{arrived} {}",
                result.stderr_trimmed()
            );
            assert!(arrived <= LINES, "{arrived} {}", result.stderr_trimmed());
        }
        // Lines that were published together are one message.
        Some([missing, LINES]) => {
            assert_eq!(arrived + missing, LINES, "{}", result.stderr_trimmed())
        }
        Some([missing, published]) => {
            assert!(
                missing > 0 && published < LINES && arrived < LINES,
                "{}",
                result.stderr_trimmed()
            );
            assert!(arrived + missing <= LINES, "{arrived} {}", result.stderr_trimmed());
        }
    }
    result
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sum_is_right_on_a_server_without_limits() {
    let Some(server) = jupyter() else { return };
    the_sum_is_right(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sum_is_right_on_a_server_as_it_is() {
    let Some(server) = JupyterServer::start_limited() else { return };
    // It allows a thousand messages a second, so some are dropped unless the kernel was as slow as that. Where the kernel
    // drops them already, because the server takes nothing for a while, there is no more to say than how many.
    for _ in 0..3 {
        let result = the_sum_is_right(&server).await;
        let dropped = result.stderr_trimmed().contains("the server dropped what came too fast");
        if lines(&result) == LINES || dropped {
            return;
        }
    }
    panic!("lines are missing each time, and the server never said why");
}
