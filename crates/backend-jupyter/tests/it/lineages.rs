//! Kernels that are not made like those of IPython: xeus-python, with sockets of another library, and Deno, which speaks TCP
//! alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_jupyter::JupyterBackend;
use sandbox_core::{
    ErrorKind, ExecutionResult, FailureKind, InterpreterState, IsolationMode, Sandbox,
    SandboxBuilder, SingleBackend,
};

use super::support::{config, interpreter};
use super::{jupyter, on};

/// Longer than anything here takes that works.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

fn here(kernel: &str) -> SandboxBuilder<SingleBackend> {
    let backend = Arc::new(JupyterBackend::new(config()));
    Sandbox::builder(backend).provider_option("kernel", kernel)
}

/// What one of them says, in its own language.
struct Words {
    kernel: &'static str,
    state: [&'static str; 2],
    streams: &'static str,
    error: (&'static str, &'static str),
    display: &'static str,
    forever: &'static str,
}

const XEUS: Words = Words {
    kernel: "xpython",
    state: ["x = 41", "x + 1"],
    streams: "import sys; print('out'); print('err', file=sys.stderr)",
    error: ("1/0", "ZeroDivisionError"),
    display: "from IPython.display import display, HTML; display(HTML('<b>bold</b>'))",
    forever: "import time\nfor _ in range(600): time.sleep(0.1)",
};

const DENO: Words = Words {
    kernel: "deno",
    state: ["let x: number = 41; undefined", "x + 1"],
    streams: "console.log('out'); console.error('err')",
    error: ("null.missing", "TypeError"),
    display: "await Deno.jupyter.display({'text/html': '<b>bold</b>', 'text/plain': 'b'}, {raw: true})",
    forever: "await new Promise(done => setTimeout(done, 60_000))",
};

async fn run(sandbox: &Sandbox, code: &str) -> ExecutionResult {
    sandbox.run_code(code).timeout(WAIT_TIMEOUT).await.unwrap()
}

/// Also what a kernel publishes after the word that the code has ended, as Deno does now and then.
async fn prints(sandbox: &Sandbox, words: &Words) {
    for _ in 0..10 {
        let result = run(sandbox, words.streams).await;
        assert_eq!(
            (&*result.stdout_trimmed(), &*result.stderr_trimmed()),
            ("out", "err"),
            "{result:?}"
        );
    }
}

/// Everything that a kernel can do without a program of ours in it.
async fn does_what_kernels_do(sandbox: &Sandbox, words: &Words) {
    let result = run(sandbox, words.state[0]).await;
    assert!(result.success(), "{result:?}");
    let result = run(sandbox, words.state[1]).await;
    assert!(result.text().is_some_and(|text| text.contains("42")), "{result:?}");

    prints(sandbox, words).await;

    let (code, name) = words.error;
    let result = run(sandbox, code).await;
    let error = result.code_error.as_ref().expect("an error");
    assert!(!result.success() && result.failure.is_none(), "{result:?}");
    assert!(error.name.contains(name), "{error:?}");
    let told = format!("{}{}{}", error.name, error.value, error.traceback);
    assert!(!told.contains('\u{1b}') && !told.contains("[0m") && !told.contains("[31m"), "{told}");
    assert_eq!(result.state, InterpreterState::Kept, "{result:?}");

    let result = run(sandbox, words.display).await;
    let html = result.results.iter().any(|shown| format!("{shown:?}").contains("<b>bold</b>"));
    assert!(result.success() && html, "{result:?}");

    let result = run(sandbox, words.state[1]).await;
    assert!(result.text().is_some_and(|text| text.contains("42")), "{result:?}");
    let error = sandbox.get_variable::<serde_json::Value>("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// It hears of the interrupt or is ended, and which of them is told.
async fn ends_in_time_and_tells_the_state(sandbox: &Sandbox, words: &Words) {
    run(sandbox, words.state[0]).await;
    let begun = Instant::now();
    let result = sandbox.run_code(words.forever).timeout(Duration::from_secs(1)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(result.failure.as_ref().unwrap().kind, FailureKind::Timeout, "{result:?}");
    let next = run(sandbox, words.state[1]).await;
    let is_there = next.text().is_some_and(|text| text.contains("42"));
    assert_eq!(is_there, result.state == InterpreterState::Kept, "{result:?} {next:?}");
    assert_eq!(next.restarted, result.state == InterpreterState::Lost, "{result:?} {next:?}");
}

async fn in_a_sandbox(builder: SandboxBuilder<SingleBackend>, words: &Words) {
    let sandbox = builder.create().await.unwrap();
    does_what_kernels_do(&sandbox, words).await;
    ends_in_time_and_tells_the_state(&sandbox, words).await;
    // It works on, whatever became of that.
    prints(&sandbox, words).await;
    sandbox.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn xeus_in_a_cell_over_unix_sockets() {
    if interpreter().is_none() {
        return;
    }
    // With nothing else to fall back to.
    in_a_sandbox(here(XEUS.kernel).provider_option("transport", "ipc"), &XEUS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xeus_in_a_cell_over_tcp() {
    if interpreter().is_none() {
        return;
    }
    in_a_sandbox(here(XEUS.kernel).provider_option("transport", "tcp"), &XEUS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xeus_without_isolation() {
    if interpreter().is_none() {
        return;
    }
    in_a_sandbox(here(XEUS.kernel).isolation(IsolationMode::Off), &XEUS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deno_in_a_cell_is_found_to_speak_tcp() {
    if interpreter().is_none() {
        return;
    }
    in_a_sandbox(here(DENO.kernel), &DENO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deno_on_a_server() {
    let Some(server) = jupyter() else { return };
    in_a_sandbox(on(server).environment(DENO.kernel), &DENO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xeus_on_a_server() {
    let Some(server) = jupyter() else { return };
    in_a_sandbox(on(server).environment(XEUS.kernel), &XEUS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_speaks_tcp_alone_says_so_where_that_was_not_asked_for() {
    if interpreter().is_none() {
        return;
    }
    let error = here(DENO.kernel).provider_option("transport", "ipc").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.hint().unwrap().contains("invalid host"), "{error:?}");
    assert!(!error.hint().unwrap().contains("[0m"), "{error:?}");
}

/// The ports are those of the cell: what listens on the same ones of this host is not reached, and contexts have their own.
#[tokio::test(flavor = "multi_thread")]
async fn contexts_over_tcp_are_kernels_of_their_own() {
    if interpreter().is_none() {
        return;
    }
    let sandbox = here("python3").provider_option("transport", "tcp").create().await.unwrap();
    run(&sandbox, "x = 1").await;
    for name in ["a", "b", "c"] {
        let context = sandbox.create_context(Some(name)).await.unwrap();
        let result = sandbox.run_code("'x' in globals()").context(&context.id).await.unwrap();
        assert_eq!(result.text(), Some("False"), "{result:?}");
    }
    assert_eq!(run(&sandbox, "x").await.text(), Some("1"));
    let code = "import socket; socket.create_connection(('198.51.100.1', 80), 5)";
    let result = run(&sandbox, code).await;
    assert_eq!(result.code_error.expect("no network").name, "OSError");
}
