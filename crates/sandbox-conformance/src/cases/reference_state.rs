//! The cases of the reference's own suite that are about sandboxes and models. `REFERENCE.md` maps all forty.

use std::time::Duration;

use sandbox_core::{
    CodeError, ErrorKind, ExecutionResult, Logs, OutputMessage, SandboxStatus, Variant, system_time,
};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{SLACK, WAIT_TIMEOUT, ok, refused, reported, run, until_executing, within};
use crate::target::Unreported;

pub(super) fn cases() -> Vec<Case> {
    cases!("reference", [run_code], {
        case_01_a_built_sandbox_is_not_started;
        case_02_a_started_sandbox_has_an_id;
        case_03_a_stopped_sandbox_runs_nothing;
        case_04_a_scope_starts_and_stops;
        case_21_before_start_nothing_runs;
        case_23_contexts_have_their_own_variables needs contexts;
        case_25_without_network_the_result_says_so needs strict, network_none;
        case_26_is_executing_follows_the_run;
        case_27_interrupt_of_nothing_is_false needs interrupt;
        case_28_interrupt_of_a_loop_keeps_state needs interrupt;
        case_33_a_failed_execution_is_no_success;
        case_34_success_and_duration;
        case_35_logs_join_lines;
        case_36_variants_and_configuration;
    })
}

async fn case_01_a_built_sandbox_is_not_started(f: Fixture) -> Checked {
    let sandbox = f.builder().build()?;
    // It has no id, no status and nothing that runs code: only what it will be.
    ensure_eq!(sandbox.variant(), f.backend().variant());
    ensure!(sandbox.capabilities().run_code, "it will not run code");
    let sandbox = sandbox.start().await?;
    f.keep(&sandbox);
    ensure!(sandbox.is_started(), "it is not started");
    Ok(())
}

async fn case_02_a_started_sandbox_has_an_id(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let info = sandbox.info();
    ensure_eq!((info.status, info.variant), (SandboxStatus::Running, f.backend().variant()));
    ensure!(!info.id.is_empty(), "the id is empty");
    sandbox.start().await?;
    ensure_eq!(sandbox.id(), info.id);
    Ok(())
}

async fn case_03_a_stopped_sandbox_runs_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.stop().await?;
    ensure!(!sandbox.is_started(), "it is started");
    ensure_eq!(sandbox.status(), SandboxStatus::Stopped);
    refused(sandbox.run_code("1").await, ErrorKind::NotStarted)?;
    Ok(())
}

async fn case_04_a_scope_starts_and_stops(f: Fixture) -> Checked {
    let kept = f
        .builder()
        .scope(async |sandbox| {
            ok(sandbox, "1 + 1").await?;
            ensure!(sandbox.is_started(), "it is not started");
            Checked::Ok(sandbox.clone())
        })
        .await?;
    ensure!(!kept.is_started(), "it is still started");
    Ok(())
}

async fn case_21_before_start_nothing_runs(f: Fixture) -> Checked {
    let sandbox = f.builder().build()?.start().await?;
    f.keep(&sandbox);
    sandbox.stop().await?;
    refused(sandbox.run_code("1").await, ErrorKind::NotStarted)?;
    Ok(())
}

async fn case_23_contexts_have_their_own_variables(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for (context, value) in [("c1", 1), ("c2", 2)] {
        sandbox.create_context(Some(context)).await?;
        sandbox.run_code(format!("x = {value}")).context(context).await?;
    }
    for (context, value) in [("c1", "1"), ("c2", "2")] {
        ensure_eq!(sandbox.run_code("x").context(context).await?.text(), Some(value));
    }
    Ok(())
}

async fn case_25_without_network_the_result_says_so(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.network(sandbox_core::NetworkPolicy::none())).await?;
    let code = "import socket; socket.create_connection(('example.com', 80))";
    let result = run(&sandbox, code).await?;
    ensure!(result.code_error.is_some(), "it connected");
    let hint = result.hint.unwrap_or_default();
    ensure!(hint.to_lowercase().contains("network"), "hint {hint:?}");
    Ok(())
}

async fn case_26_is_executing_follows_the_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure!(!sandbox.is_executing(), "it executes before the run");
    let running = sandbox.clone();
    let run = tokio::spawn(async move { running.run_code("import time; time.sleep(0.5)").await });
    until_executing(&sandbox).await?;
    run.await??;
    ensure!(!sandbox.is_executing(), "it executes after the run");
    Ok(())
}

async fn case_27_interrupt_of_nothing_is_false(f: Fixture) -> Checked {
    ensure!(!f.sandbox().await?.interrupt().await?, "something was interrupted");
    Ok(())
}

async fn case_28_interrupt_of_a_loop_keeps_state(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "x = 5").await?;
    let running = sandbox.clone();
    let run =
        tokio::spawn(
            async move { running.run_code("while True: pass").timeout(WAIT_TIMEOUT).await },
        );
    until_executing(&sandbox).await?;
    ensure!(sandbox.interrupt().await?, "nothing was interrupted");
    let result = within(SLACK, run).await???;
    ensure!(result.interrupted, "it is not marked as interrupted");
    let raised = reported(Unreported::Interruption, Some("KeyboardInterrupt"));
    ensure_eq!(result.code_error.as_ref().map(|error| &*error.name), raised);
    ensure_eq!(ok(&sandbox, "x").await?.text(), Some("5"));
    Ok(())
}

async fn case_33_a_failed_execution_is_no_success(_: Fixture) -> Checked {
    let json = r#"{"execution_ok": false, "execution_error": "Connection timeout"}"#;
    let result: ExecutionResult = serde_json::from_str(json)?;
    ensure!(!result.success(), "it is a success");
    ensure_eq!(result.code_error, None);
    Ok(())
}

async fn case_34_success_and_duration(_: Fixture) -> Checked {
    let fine = ExecutionResult { execution_ok: true, ..ExecutionResult::default() };
    ensure!(fine.success(), "a plain result is no success");
    ensure!(!ExecutionResult { interrupted: true, ..fine.clone() }.success(), "interrupted");
    ensure!(ExecutionResult { exit_code: Some(0), ..fine.clone() }.success(), "status 0");
    ensure!(!ExecutionResult { exit_code: Some(1), ..fine.clone() }.success(), "status 1");
    let error = Some(CodeError::default());
    ensure!(!ExecutionResult { code_error: error, ..fine.clone() }.success(), "an exception");
    let timed = ExecutionResult {
        started_at: Some(system_time(1000.0)),
        completed_at: Some(system_time(1001.5)),
        ..fine
    };
    ensure_eq!(timed.duration(), Some(Duration::from_millis(1500)));
    Ok(())
}

async fn case_35_logs_join_lines(_: Fixture) -> Checked {
    let line = |text: &str| OutputMessage {
        line: text.into(),
        timestamp: 0.0,
        error: false,
        terminated: true,
    };
    let logs = Logs { stdout: vec![line("line1"), line("line2")], stderr: Vec::new() };
    ensure_eq!(logs.stdout_text(), "line1\nline2");
    Ok(())
}

async fn case_36_variants_and_configuration(f: Fixture) -> Checked {
    refused(f.builder().variant("invalid-variant").build(), ErrorKind::InvalidArgument)?;
    for variant in Variant::well_known() {
        for name in variant.names() {
            ensure_eq!(name.to_uppercase().replace('-', "_").parse::<Variant>()?, variant);
        }
    }
    let sandbox = f.builder().timeout(Duration::from_secs(90)).build()?;
    ensure_eq!(sandbox.timeout(), Duration::from_secs(90));
    Ok(())
}
