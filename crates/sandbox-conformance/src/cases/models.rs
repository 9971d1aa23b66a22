//! What results and descriptions of a real sandbox look like as data.

use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::StreamExt as _;
use sandbox_core::{EventKind, SandboxId, unix_now};
use serde_json::Value;

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, ok, raises, run};

pub(super) fn cases() -> Vec<Case> {
    cases!("models", [run_code], {
        a_result_has_the_reference_field_names;
        an_exception_has_name_value_and_traceback;
        times_are_wall_clock_seconds;
        runs_are_counted_per_context;
        run_ids_are_unique_or_as_given;
        events_are_numbered_and_end_once;
        info_describes_the_sandbox;
        info_round_trips_through_json;
        a_command_result_has_the_reference_field_names needs commands;
    })
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default()
}

async fn a_result_has_the_reference_field_names(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = ok(&sandbox, "print('out')\n40 + 2").await?;
    let json = serde_json::to_value(&result)?;
    for field in [
        "results",
        "logs",
        "execution_ok",
        "execution_error",
        "code_error",
        "execution_count",
        "context_id",
        "started_at",
        "completed_at",
        "interrupted",
        "exit_code",
    ] {
        ensure!(keys(&json).contains(&field), "{field} is missing in {json}");
    }
    ensure_eq!(json["results"][0]["data"]["text/plain"], "42");
    ensure_eq!(json["results"][0]["is_main_result"], true);
    ensure_eq!(json["logs"]["stdout"][0]["line"], "out");
    ensure_eq!(json["logs"]["stdout"][0]["error"], false);
    ensure_eq!(json["context_id"], "default");
    ensure_eq!(json["state"], "kept");
    Ok(())
}

async fn an_exception_has_name_value_and_traceback(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = raises(&sandbox, "raise ValueError('no good')", "ValueError").await?;
    let json = serde_json::to_value(&result)?;
    ensure_eq!(json["code_error"]["name"], "ValueError");
    ensure_eq!(json["code_error"]["value"], "no good");
    let traceback = json["code_error"]["traceback"].as_str().unwrap_or_default();
    ensure!(traceback.contains("no good"), "traceback: {traceback:?}");
    Ok(())
}

fn seconds(time: Option<SystemTime>) -> f64 {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.unwrap_or_default().as_secs_f64()
}

async fn times_are_wall_clock_seconds(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let before = unix_now();
    let result = ok(&sandbox, "import time; time.sleep(0.2)").await?;
    let after = unix_now();
    let (started, completed) = (seconds(result.started_at), seconds(result.completed_at));
    ensure!(
        before - 1.0 <= started && completed <= after + 1.0,
        "{before} <= {started} .. {completed} <= {after}"
    );
    let duration = result.duration().unwrap_or_default().as_secs_f64();
    ensure!((0.19..5.0).contains(&duration), "a sleep of 0.2 s took {duration}");
    Ok(())
}

async fn runs_are_counted_per_context(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let first = ok(&sandbox, "1").await?.execution_count;
    let second = run(&sandbox, "1/0").await?.execution_count;
    let third = ok(&sandbox, "1").await?.execution_count;
    ensure_eq!([second, third], [first + 1, first + 2]);
    Ok(())
}

async fn run_ids_are_unique_or_as_given(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let one = ok(&sandbox, "1").await?.run_id;
    let two = ok(&sandbox, "1").await?.run_id;
    ensure!(!one.is_empty() && one != two, "run ids {one:?} and {two:?}");
    let given = sandbox.run_code("1").run_id("my-run").await?;
    ensure_eq!(given.run_id, "my-run");
    Ok(())
}

async fn events_are_numbered_and_end_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "print('a')\nimport sys; print('b', file=sys.stderr)\n3";
    let events: Vec<_> =
        sandbox.run_code(code).run_id("r1").timeout(WAIT_TIMEOUT).stream().await?.collect().await;
    for (position, event) in events.iter().enumerate() {
        ensure_eq!(event.seq, position as u64, "sequence number");
        ensure_eq!(event.run_id, "r1");
        ensure!(event.timestamp > 1e9, "timestamp {}", event.timestamp);
    }
    ensure!(
        matches!(events.first().map(|event| &event.kind), Some(EventKind::Started { .. })),
        "the first event is {:?}",
        events.first()
    );
    let ends = |event: &sandbox_core::Event| matches!(event.kind, EventKind::Finished(_));
    ensure!(events.last().is_some_and(ends), "the last event is {:?}", events.last());
    ensure_eq!(events.iter().filter(|event| ends(event)).count(), 1, "ends");
    Ok(())
}

async fn info_describes_the_sandbox(f: Fixture) -> Checked {
    let before = unix_now();
    let sandbox = f.create(|b| b.name("my-box").tag("team", "blue")).await?;
    let info = sandbox.info();
    let id: SandboxId = info.id.parse()?;
    ensure_eq!(id.variant(), f.backend().variant());
    ensure_eq!(info.variant, f.backend().variant());
    ensure_eq!(info.name.as_deref(), Some("my-box"));
    ensure_eq!(info.tags.get("team").map(String::as_str), Some("blue"));
    ensure!((before - 1.0..unix_now() + 1.0).contains(&info.created_at), "{}", info.created_at);
    let mode = info.isolation.map(|isolation| isolation.mode);
    ensure_eq!(mode, Some(f.target().isolation), "isolation");
    Ok(())
}

async fn info_round_trips_through_json(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let info = sandbox.info();
    let text = serde_json::to_string(&info)?;
    let back: sandbox_core::SandboxInfo = serde_json::from_str(&text)?;
    ensure_eq!(back, info);
    Ok(())
}

async fn a_command_result_has_the_reference_field_names(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = sandbox.commands().run("echo out; echo err >&2; exit 3").await?;
    let json = serde_json::to_value(&result)?;
    ensure_eq!(json["exit_code"], 3);
    ensure_eq!(json["stdout"], "out\n");
    ensure_eq!(json["stderr"], "err\n");
    ensure!(json["duration"].as_f64().is_some_and(|seconds| seconds > 0.0), "{json}");
    Ok(())
}
