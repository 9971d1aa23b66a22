//! What a run and a command may put out, and what becomes of one that puts out more.

use futures_util::StreamExt as _;
use sandbox_core::{
    ByteSize, CommandEvent, ErrorKind, Event, EventKind, ExecutionResult, FailureKind,
    InterpreterState,
};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, describe, failed_with, is_usable, ok, refused};

pub(super) fn cases() -> Vec<Case> {
    cases!("limits_output", [limit_output], {
        a_run_that_puts_out_more_is_ended needs run_code;
        what_is_within_the_limit_is_not_touched needs run_code;
        a_run_that_has_ended_by_itself_was_over_the_limit_all_the_same needs run_code;
        code_that_ignores_the_end_is_killed needs run_code;
        both_streams_and_children_count needs run_code, local;
        displays_count needs run_code, rich_results;
        a_stream_ends_with_the_reason needs run_code;
        a_command_that_puts_out_more_is_ended needs commands;
        a_command_in_the_background_is_ended needs commands, command_background;
        the_limit_of_the_sandbox_holds_for_each needs run_code, commands;
        nothing_is_no_limit needs run_code;
    })
}

const LIMIT: ByteSize = ByteSize::kib(10);

fn was_ended(result: &ExecutionResult) -> Checked {
    failed_with(result, FailureKind::OutputLimit)?;
    let message = result.failure.as_ref().map(|failure| failure.message.clone());
    ensure!(message.is_some_and(|message| message.contains("10 KiB")), "{}", describe(result));
    Ok(())
}

async fn a_run_that_puts_out_more_is_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "kept = 7").await?;
    let code = "import os\nwhile True: os.write(1, b'0123456789' * 100)";
    let result = sandbox.run_code(code).output_limit(LIMIT).timeout(WAIT_TIMEOUT).await?;
    was_ended(&result)?;
    ensure_eq!(result.logs.stdout_exact().len(), 10 << 10, "what was within the limit is there");
    ensure_eq!(result.stdout_totals.bytes_total, 10 << 10, "{:?}", result.stdout_totals);
    ensure_eq!(result.state, InterpreterState::Kept, "{}", describe(&result));
    ensure_eq!(is_usable(&sandbox).await?.restarted, false);
    ensure_eq!(ok(&sandbox, "kept").await?.text(), Some("7"));
    Ok(())
}

async fn what_is_within_the_limit_is_not_touched(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = format!("import os; _ = os.write(1, b'x' * {})", LIMIT.as_u64());
    let result = sandbox.run_code(code).output_limit(LIMIT).timeout(WAIT_TIMEOUT).await?;
    ensure!(result.success(), "exactly the limit: {}", describe(&result));
    let result = sandbox.run_code("print('x')").output_limit(LIMIT).timeout(WAIT_TIMEOUT).await?;
    ensure!(result.success(), "each run counts anew: {}", describe(&result));
    Ok(())
}

async fn a_run_that_has_ended_by_itself_was_over_the_limit_all_the_same(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os; _ = os.write(1, b'x' * 10241)";
    for _ in 0..20 {
        let result = sandbox.run_code(code).output_limit(LIMIT).timeout(WAIT_TIMEOUT).await?;
        was_ended(&result)?;
        ensure_eq!(result.stdout_totals.bytes_total, 10 << 10, "{}", describe(&result));
    }
    is_usable(&sandbox).await?;
    Ok(())
}

async fn code_that_ignores_the_end_is_killed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code =
        "import os, signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True: os.write(1, b'x' * 1000)";
    let result = sandbox.run_code(code).output_limit(LIMIT).timeout(WAIT_TIMEOUT).await?;
    was_ended(&result)?;
    ensure_eq!(result.state, InterpreterState::Lost, "{}", describe(&result));
    ensure_eq!(result.logs.stdout_exact().len(), 10 << 10);
    ensure!(is_usable(&sandbox).await?.restarted, "the next run says so");
    Ok(())
}

async fn both_streams_and_children_count(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code =
        "import subprocess\nsubprocess.run('while :; do echo a; echo b >&2; done', shell=True)";
    let result = sandbox.run_code(code).output_limit(LIMIT).timeout(WAIT_TIMEOUT).await?;
    was_ended(&result)?;
    let (out, err) = (result.stdout_totals.bytes_total, result.stderr_totals.bytes_total);
    ensure_eq!(out + err, 10 << 10, "{out} and {err}");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn displays_count(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "while True: display('x' * 1000)";
    let result = sandbox.run_code(code).output_limit(LIMIT).timeout(WAIT_TIMEOUT).await?;
    was_ended(&result)?;
    ensure!((1..=10).contains(&result.results.len()), "{} displays", result.results.len());
    Ok(())
}

async fn a_stream_ends_with_the_reason(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "while True: print('x' * 99)";
    let events = sandbox.run_code(code).output_limit(LIMIT).timeout(WAIT_TIMEOUT).stream().await?;
    let events: Vec<Event> = events.collect().await;
    let size = |event: &Event| match &event.kind {
        EventKind::Output { data, .. } => data.len(),
        _ => 0,
    };
    ensure_eq!(events.iter().map(size).sum::<usize>(), 10 << 10);
    let Some(EventKind::Finished(end)) = events.last().map(|event| &event.kind) else {
        return Err(crate::case::Failure::new("no end"));
    };
    ensure_eq!(end.failure.as_ref().map(|failure| failure.kind), Some(FailureKind::OutputLimit));
    Ok(())
}

async fn a_command_that_puts_out_more_is_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "while :; do echo 0123456789; echo 0123456789 >&2; done";
    let command = sandbox.commands().run(line).output_limit(LIMIT).timeout(WAIT_TIMEOUT).await?;
    let failure = command.failure.as_ref();
    ensure_eq!(failure.map(|failure| failure.kind), Some(FailureKind::OutputLimit), "{failure:?}");
    ensure_eq!(command.stdout_totals.bytes_total + command.stderr_totals.bytes_total, 10 << 10);
    ensure_eq!(command.exit_code, 137);
    let within = sandbox.commands().run("echo x").output_limit(LIMIT).await?;
    ensure!(within.success() && within.stdout == "x\n", "{within:?}");
    Ok(())
}

async fn a_command_in_the_background_is_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let builder = sandbox.commands().run("while :; do echo x; done").output_limit(LIMIT);
    let mut command = builder.background().start().await?;
    let mut end = None;
    while let Some(event) = command.events.next().await {
        if let CommandEvent::Finished(outcome) = event {
            end = outcome.failure.map(|failure| failure.kind);
        }
    }
    ensure_eq!(end, Some(FailureKind::OutputLimit));
    Ok(())
}

async fn the_limit_of_the_sandbox_holds_for_each(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.output_limit(LIMIT)).await?;
    let code = "while True: print('x' * 99)";
    was_ended(&sandbox.run_code(code).timeout(WAIT_TIMEOUT).await?)?;
    // A run may ask for less, and not for more.
    let more = sandbox.run_code(code).output_limit(ByteSize::gib(1)).timeout(WAIT_TIMEOUT).await?;
    was_ended(&more)?;
    let less =
        sandbox.run_code(code).output_limit(ByteSize::bytes(3)).timeout(WAIT_TIMEOUT).await?;
    ensure_eq!(less.logs.stdout_exact(), "xxx");
    let command = sandbox.commands().run("yes").timeout(WAIT_TIMEOUT).await?;
    let failure = command.failure.map(|failure| failure.kind);
    ensure_eq!(failure, Some(FailureKind::OutputLimit));
    Ok(())
}

async fn nothing_is_no_limit(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let none = sandbox.run_code("1").output_limit(ByteSize::bytes(0)).await;
    refused(none, ErrorKind::InvalidArgument)?;
    let none = f.builder().output_limit(ByteSize::bytes(0)).create().await;
    refused(none, ErrorKind::InvalidArgument)?;
    Ok(())
}
