//! Commands that run without a reader.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sandbox_core::{
    Command, CommandEvent, CommandInfo, CommandOutcome, ErrorKind, FailureKind, OutputStream,
    Sandbox,
};

use super::commands::{finish, read_until};
use crate::case::{Case, Checked, Failure, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{SLACK, WAIT_TIMEOUT, eventually, is_usable, refused, run, within};

pub(super) fn cases() -> Vec<Case> {
    cases!("background", [commands, command_background], {
        it_goes_on_when_nobody_listens;
        it_is_not_held_back_by_who_never_reads;
        it_is_held_back_by_who_stalls_only_for_a_while;
        who_reads_misses_nothing;
        output_is_bounded_and_counts_are_true;
        who_comes_late_is_told_what_is_missing;
        the_order_of_streams_is_kept;
        several_listen_at_once;
        its_state_is_listed;
        a_signal_is_listed;
        a_timeout_holds_and_is_listed;
        a_foreground_command_is_listed_while_it_runs;
        a_foreground_command_is_not_connected_to;
        an_unknown_one_is_not_found;
        it_is_written_to_by_who_connects needs command_stdin;
        it_is_signalled_by_who_connects;
        it_survives_the_interpreter needs run_code;
        a_script_runs_in_it;
        the_last_ones_are_remembered;
        a_reset_ends_and_forgets_it needs run_code, restart;
        the_end_of_the_sandbox_ends_it needs local;
        who_listens_hears_of_the_end_of_the_sandbox;
        it_keeps_the_sandbox_from_being_idle needs idle_timeout;
    })
}

async fn start(sandbox: &Sandbox, line: &str) -> Checked<Command> {
    Ok(sandbox.commands().run(line).background().start().await?)
}

/// What the listing says of a command.
async fn listed(sandbox: &Sandbox, id: &str) -> Checked<CommandInfo> {
    let all = sandbox.commands().list().await?;
    let found = all.iter().find(|info| info.id == id).cloned();
    found.ok_or_else(|| Failure::new(format!("{id} is not listed: {all:?}")))
}

/// Waits until it has ended.
async fn until_ended(sandbox: &Sandbox, id: &str) -> Checked<CommandInfo> {
    let over = async || Ok(listed(sandbox, id).await?.exit_code.is_some());
    eventually("the end of the command", WAIT_TIMEOUT, over).await?;
    listed(sandbox, id).await
}

/// Bytes heard and bytes told to be missing, of standard output.
async fn count(mut command: Command) -> Checked<(u64, u64, CommandOutcome)> {
    let (mut heard, mut skipped) = (0, 0);
    while let Some(event) = within(WAIT_TIMEOUT, command.events.next()).await? {
        match event {
            CommandEvent::Output { data, .. } => heard += data.len() as u64,
            CommandEvent::Skipped { bytes, .. } => skipped += bytes,
            CommandEvent::Finished(outcome) => return Ok((heard, skipped, outcome)),
            other => ensure!(false, "unknown event {other:?}"),
        }
    }
    Err(Failure::new("the events ended without an end of the command"))
}

async fn it_goes_on_when_nobody_listens(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    drop(start(&sandbox, "sleep 0.3; head -c 3000000 /dev/zero; echo done >mark").await?);
    let there = async || Ok(sandbox.commands().run("cat mark").await?.stdout == "done\n");
    eventually("the end of the command", WAIT_TIMEOUT, there).await
}

async fn it_is_not_held_back_by_who_never_reads(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = start(&sandbox, "head -c 20000000 /dev/zero; echo done >mark").await?;
    let began = Instant::now();
    until_ended(&sandbox, &command.id).await?;
    ensure!(began.elapsed() < SLACK, "it took {:?}", began.elapsed());
    let (heard, skipped, _) = count(command).await?;
    ensure_eq!(heard + skipped, 20_000_000);
    Ok(())
}

async fn it_is_held_back_by_who_stalls_only_for_a_while(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut stalled = start(&sandbox, "head -c 5000000 /dev/zero; exit 3").await?;
    ensure!(within(WAIT_TIMEOUT, stalled.events.next()).await?.is_some(), "no first event");
    let info = until_ended(&sandbox, &stalled.id).await?;
    ensure_eq!((info.exit_code, info.stdout.bytes_total), (Some(3), 5_000_000));
    let (_, skipped, outcome) = count(stalled).await?;
    ensure!(skipped > 0, "nothing is said to be missing");
    ensure_eq!(outcome.exit_code, 3);
    Ok(())
}

async fn who_reads_misses_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = start(&sandbox, "head -c 30000000 /dev/zero").await?;
    let (heard, skipped, outcome) = count(command).await?;
    ensure_eq!((heard, skipped, outcome.exit_code), (30_000_000, 0, 0));
    Ok(())
}

async fn output_is_bounded_and_counts_are_true(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "seq 1 1000000; head -c 1000 /dev/zero >&2";
    let id = start(&sandbox, line).await?.id;
    let info = until_ended(&sandbox, &id).await?;
    ensure_eq!(info.stdout.bytes_total, 6_888_896);
    ensure!(info.stdout.truncated() && info.stdout.bytes_kept <= 1 << 20, "{:?}", info.stdout);
    ensure_eq!((info.stderr.bytes_total, info.stderr.bytes_kept), (1000, 1000));
    let (heard, skipped, _) = count(sandbox.commands().connect(&id).await?).await?;
    ensure_eq!(heard, info.stdout.bytes_kept + 1000);
    ensure_eq!(skipped, info.stdout.bytes_total - info.stdout.bytes_kept);
    Ok(())
}

async fn who_comes_late_is_told_what_is_missing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let id = start(&sandbox, "seq 1 1000000").await?.id;
    until_ended(&sandbox, &id).await?;
    let mut command = sandbox.commands().connect(&id).await?;
    let (mut parts, mut gaps) = (vec![Vec::new()], 0);
    while let Some(event) = within(WAIT_TIMEOUT, command.events.next()).await? {
        match event {
            CommandEvent::Output { data, .. } => parts[gaps].extend_from_slice(&data),
            CommandEvent::Skipped { stream, .. } => {
                ensure_eq!(stream, OutputStream::Stdout);
                gaps += 1;
                parts.push(Vec::new());
            }
            _ => {}
        }
    }
    ensure_eq!(gaps, 1, "gaps");
    let whole: Vec<u8> = (1..=1_000_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    ensure!(whole.starts_with(&parts[0]) && parts[0].len() > 100_000, "the beginning is wrong");
    ensure!(whole.ends_with(&parts[1]) && parts[1].len() > 100_000, "the end is wrong");
    Ok(())
}

async fn the_order_of_streams_is_kept(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // The pauses are long enough for a busy machine to read one pipe before the other has more.
    let line = "for i in 1 2 3; do echo o$i; sleep 0.3; echo e$i >&2; sleep 0.3; done";
    let id = start(&sandbox, line).await?.id;
    until_ended(&sandbox, &id).await?;
    let mut command = sandbox.commands().connect(&id).await?;
    let mut heard = String::new();
    while let Some(event) = within(WAIT_TIMEOUT, command.events.next()).await? {
        if let CommandEvent::Output { stream, data } = event {
            let text = String::from_utf8_lossy(&data).into_owned();
            let expected = if stream == OutputStream::Stdout { 'o' } else { 'e' };
            ensure!(text.starts_with(expected), "{text:?} came from {stream:?}");
            heard.push_str(&text);
        }
    }
    ensure_eq!(heard, "o1\ne1\no2\ne2\no3\ne3\n");
    Ok(())
}

async fn several_listen_at_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "echo first; sleep 0.5; seq 1 50000; echo last";
    let first = start(&sandbox, line).await?;
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(sandbox.commands().connect(&first.id).await?);
    }
    all.push(first);
    let wanted: String = (1..=50_000).map(|i| format!("{i}\n")).collect();
    let wanted = format!("first\n{wanted}last\n");
    for heard in futures_util::future::join_all(all.into_iter().map(finish)).await {
        let (output, outcome) = heard?;
        ensure!(output == wanted, "{} of {} bytes", output.len(), wanted.len());
        ensure_eq!(outcome.exit_code, 0);
    }
    Ok(())
}

async fn its_state_is_listed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut command = start(&sandbox, "echo ready; read x </dev/zero; sleep 1; exit 9").await?;
    read_until(&mut command, "ready").await?;
    let info = listed(&sandbox, &command.id).await?;
    ensure!(info.background && info.exit_code.is_none() && info.ended_at.is_none(), "{info:?}");
    ensure!(info.command.contains("exit 9") && info.pid.is_some(), "{info:?}");
    command.control.signal(15, true).await?;
    finish(command).await?;
    let quick = start(&sandbox, "exit 9").await?.id;
    let info = until_ended(&sandbox, &quick).await?;
    ensure_eq!((info.exit_code, info.signal, info.failure.clone()), (Some(9), None, None));
    ensure!(info.ended_at.is_some_and(|at| at >= info.started_at), "{info:?}");
    Ok(())
}

async fn a_signal_is_listed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let id = start(&sandbox, "kill -9 $$").await?.id;
    let info = until_ended(&sandbox, &id).await?;
    ensure_eq!((info.exit_code, info.signal), (Some(137), Some(9)));
    Ok(())
}

async fn a_timeout_holds_and_is_listed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let limit = Duration::from_secs(1);
    let command = sandbox.commands().run("echo begun; sleep 300").background().timeout(limit);
    let id = command.start().await?.id;
    let began = Instant::now();
    let info = until_ended(&sandbox, &id).await?;
    ensure!(began.elapsed() < SLACK, "it took {:?}", began.elapsed());
    ensure_eq!(info.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    let (output, outcome) = finish(sandbox.commands().connect(&id).await?).await?;
    ensure_eq!(output, "begun\n");
    ensure_eq!(outcome.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    Ok(())
}

async fn a_foreground_command_is_listed_while_it_runs(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut command = sandbox.commands().run("echo ready; sleep 300").start().await?;
    read_until(&mut command, "ready").await?;
    let info = listed(&sandbox, &command.id).await?;
    ensure!(!info.background && info.exit_code.is_none(), "{info:?}");
    let id = command.id.clone();
    drop(command);
    let gone = async || Ok(sandbox.commands().list().await?.iter().all(|info| info.id != id));
    eventually("its end", WAIT_TIMEOUT, gone).await
}

async fn a_foreground_command_is_not_connected_to(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut command = sandbox.commands().run("echo ready; sleep 300").start().await?;
    read_until(&mut command, "ready").await?;
    refused(sandbox.commands().connect(&command.id).await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn an_unknown_one_is_not_found(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for id in ["", "no-such", "../x", "0"] {
        refused(sandbox.commands().connect(id).await, ErrorKind::NotFound)?;
    }
    Ok(())
}

async fn it_is_written_to_by_who_connects(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let run = sandbox.commands().run("while read x; do echo got $x; done; echo end");
    let first = run.background().interactive().start().await?;
    let id = first.id.clone();
    first.control.write_stdin("one\n".into()).await?;
    drop(first);
    let mut again = sandbox.commands().connect(&id).await?;
    again.control.write_stdin("two\n".into()).await?;
    read_until(&mut again, "got one\ngot two\n").await?;
    again.control.close_stdin().await?;
    let (output, outcome) = finish(again).await?;
    ensure_eq!((output.as_str(), outcome.exit_code), ("end\n", 0));
    Ok(())
}

async fn it_is_signalled_by_who_connects(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let id = start(&sandbox, line).await?.id;
    let mut command = sandbox.commands().connect(&id).await?;
    read_until(&mut command, "ready").await?;
    command.control.signal(15, false).await?;
    let (output, outcome) = finish(command).await?;
    ensure_eq!((output.as_str(), outcome.exit_code), ("caught\n", 7));
    Ok(())
}

async fn it_survives_the_interpreter(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let id = start(&sandbox, "sleep 1; echo survived").await?.id;
    run(&sandbox, "import os; os._exit(1)").await?;
    let (output, outcome) = finish(sandbox.commands().connect(&id).await?).await?;
    ensure_eq!((output.as_str(), outcome.exit_code), ("survived\n", 0));
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_script_runs_in_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let script = sandbox.commands().run_script("sh", "echo \"$1\"; sleep 0.2; exit 5", ["a b"]);
    let id = script.background().start().await?.id;
    let (output, outcome) = finish(sandbox.commands().connect(&id).await?).await?;
    ensure_eq!((output.as_str(), outcome.exit_code), ("a b\n", 5));
    Ok(())
}

async fn the_last_ones_are_remembered(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let running = start(&sandbox, "sleep 300").await?.id;
    let mut ids = Vec::new();
    for number in 0..300 {
        let (output, _) = finish(start(&sandbox, &format!("echo {number}")).await?).await?;
        ensure_eq!(output, format!("{number}\n"));
        let all = sandbox.commands().list().await?;
        ids.extend(all.last().map(|info| info.id.clone()));
    }
    let all = sandbox.commands().list().await?;
    ensure!((10..300).contains(&all.len()), "{} commands are remembered", all.len());
    ensure!(all.iter().any(|info| info.id == running), "the running one is forgotten");
    let last = finish(sandbox.commands().connect(&ids[299]).await?).await?;
    ensure_eq!(last.0, "299\n");
    refused(sandbox.commands().connect(&ids[0]).await, ErrorKind::NotFound)?;
    Ok(())
}

async fn a_reset_ends_and_forgets_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut command = start(&sandbox, "echo ready; sleep 300").await?;
    read_until(&mut command, "ready").await?;
    sandbox.reset().await?;
    let (_, outcome) = finish(command).await?;
    ensure_eq!(outcome.signal, Some(9));
    ensure_eq!(sandbox.commands().list().await?.len(), 0);
    is_usable(&sandbox).await?;
    Ok(())
}

async fn the_end_of_the_sandbox_ends_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let token = host::token("background-");
    let line = format!("setsid sh -c 'trap \"\" 1 2 15; while :; do sleep 1; done' {token} & wait");
    drop(start(&sandbox, &line).await?);
    let there = async || Ok(host::running_with(&token)?.len() >= 2);
    eventually("its child", WAIT_TIMEOUT, there).await?;
    within(WAIT_TIMEOUT, sandbox.terminate()).await??;
    let gone = async || Ok(host::running_with(&token)?.is_empty());
    eventually("the end of the tree", SLACK, gone).await?;
    refused(sandbox.commands().list().await, ErrorKind::Terminated)?;
    Ok(())
}

async fn who_listens_hears_of_the_end_of_the_sandbox(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut command = start(&sandbox, "echo ready; sleep 300").await?;
    read_until(&mut command, "ready").await?;
    within(WAIT_TIMEOUT, sandbox.terminate()).await??;
    let (_, outcome) = finish(command).await?;
    ensure!(outcome.exit_code != 0, "{outcome:?}");
    Ok(())
}

async fn it_keeps_the_sandbox_from_being_idle(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.idle_timeout(Duration::from_millis(700))).await?;
    drop(start(&sandbox, "sleep 2; echo done >mark").await?);
    tokio::time::sleep(Duration::from_millis(2200)).await;
    ensure_eq!(sandbox.commands().run("cat mark").await?.stdout, "done\n");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    refused(sandbox.commands().run("true").await, ErrorKind::Terminated)?;
    Ok(())
}
