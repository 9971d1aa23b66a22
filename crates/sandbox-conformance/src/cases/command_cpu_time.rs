//! The limit of the CPU time of a command: what counts, what does not, and what is said.

use std::time::Duration;

use futures_util::StreamExt as _;
use sandbox_core::{CommandEvent, CommandResult, ErrorKind, Failure as Told, FailureKind, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, eventually, refused};

pub(super) fn cases() -> Vec<Case> {
    cases!("command_cpu_time", [commands, limit_command_cpu_time], {
        a_busy_command_is_ended;
        children_count;
        daemons_count;
        processes_of_any_name_count;
        a_sleeping_command_is_not_ended;
        what_others_use_does_not_count;
        a_command_within_its_limit_ends_as_it_likes;
        a_command_in_the_background_is_ended needs command_background;
        a_command_on_a_terminal_is_ended needs command_pty;
        a_command_that_nobody_reads_is_ended;
        the_time_that_passes_is_another_limit;
        nothing_is_no_limit;
    })
}

const LIMIT: Duration = Duration::from_secs(1);

const BUSY: &str = "while :; do :; done";

/// Less than the limit.
const BUSY_FOR_A_WHILE: &str = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";

fn was_ended(failure: Option<&Told>) -> Checked {
    ensure_eq!(failure.map(|failure| failure.kind), Some(FailureKind::CpuTime), "{failure:?}");
    let message = failure.map(|failure| failure.message.as_str()).unwrap_or_default();
    ensure!(message.contains("CPU time of 1 second"), "the limit is named: {message}");
    Ok(())
}

async fn limited(sandbox: &Sandbox, line: &str) -> Checked<CommandResult> {
    let command = sandbox.commands().run(line).cpu_time(LIMIT).timeout(WAIT_TIMEOUT);
    Ok(command.await?)
}

async fn is_ended(sandbox: &Sandbox, line: &str) -> Checked<CommandResult> {
    let result = limited(sandbox, line).await?;
    was_ended(result.failure.as_ref())?;
    ensure!(!result.success(), "a failure is never a success");
    ensure_eq!(result.exit_code, 137, "{result:?}");
    ensure_eq!(sandbox.commands().run("echo x").await?.stdout, "x\n", "the next one works");
    Ok(result)
}

async fn a_busy_command_is_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = is_ended(&sandbox, &format!("echo begun; {BUSY}")).await?;
    ensure_eq!(result.stdout, "begun\n", "what was put out before is there");
    Ok(())
}

async fn children_count(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    is_ended(&sandbox, &format!("sh -c '{BUSY}'; echo over")).await?;
    // One after the other, of which each takes little.
    is_ended(&sandbox, &format!("while :; do sh -c '{BUSY_FOR_A_WHILE}'; done")).await?;
    Ok(())
}

async fn daemons_count(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // Its parent ends at once, and it is in a session of its own.
    let line = format!(
        "sh -c \"setsid sh -c 'echo \\$\\$ >daemon; {BUSY}' >/dev/null 2>&1 &\"; sleep 1000"
    );
    is_ended(&sandbox, &line).await?;
    let is_gone = async || {
        let living = sandbox.commands().run("test -s daemon && kill -0 $(cat daemon)").await?;
        Ok(!living.success())
    };
    eventually("the end of the daemon", WAIT_TIMEOUT, is_gone).await?;
    ensure!(sandbox.commands().run("test -s daemon").await?.success(), "control: it was there");
    Ok(())
}

async fn processes_of_any_name_count(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let named = format!("printf '\\377' >/proc/$$/comm || exit 1; {BUSY}");
    is_ended(&sandbox, &named).await?;
    // One that was known before, and a child without a waiting parent.
    sandbox.files().write("named.sh", format!("sleep 0.3\n{named}\n")).await?;
    is_ended(&sandbox, "sh named.sh & sleep 1000").await?;
    Ok(())
}

async fn a_sleeping_command_is_not_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("sleep 2; echo slept").timeout(WAIT_TIMEOUT);
    let result = command.cpu_time(Duration::from_millis(500)).await?;
    ensure!(result.success() && result.stdout == "slept\n", "{result:?}");
    Ok(())
}

async fn what_others_use_does_not_count(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = format!("n=0; while [ $n -lt 8 ]; do sh -c '{BUSY_FOR_A_WHILE}'; n=$((n+1)); done");
    let other = async {
        for _ in 0..3 {
            let result = sandbox.commands().run(line.as_str()).timeout(WAIT_TIMEOUT).await?;
            ensure!(result.success(), "the other one is not limited: {result:?}");
        }
        Ok(())
    };
    let command = sandbox.commands().run("sleep 3; echo slept").timeout(WAIT_TIMEOUT);
    let command = command.cpu_time(Duration::from_millis(300)).into_future();
    let (other, result) = tokio::join!(other, command);
    other?;
    let result = result?;
    ensure!(result.success() && result.stdout == "slept\n", "{result:?}");
    Ok(())
}

async fn a_command_within_its_limit_ends_as_it_likes(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = format!("{BUSY_FOR_A_WHILE}; echo done; exit 3");
    let command = sandbox.commands().run(line).timeout(WAIT_TIMEOUT);
    let result = command.cpu_time(Duration::from_secs(600)).await?;
    ensure!(result.failure.is_none() && result.exit_code == 3, "{result:?}");
    ensure_eq!(result.stdout, "done\n");
    Ok(())
}

async fn a_command_in_the_background_is_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run(BUSY).cpu_time(LIMIT).timeout(WAIT_TIMEOUT).background();
    let id = command.start().await?.id;
    let mut events = sandbox.commands().connect(&id).await?.events;
    let mut end = None;
    while let Some(event) = events.next().await {
        if let CommandEvent::Finished(outcome) = event {
            end = outcome.failure;
        }
    }
    was_ended(end.as_ref())?;
    let listed = sandbox.commands().list().await?.into_iter().find(|command| command.id == id);
    was_ended(listed.and_then(|command| command.failure).as_ref())
}

async fn a_command_on_a_terminal_is_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run(BUSY).cpu_time(LIMIT).timeout(WAIT_TIMEOUT);
    was_ended(command.pty(Default::default()).await?.failure.as_ref())
}

async fn a_command_that_nobody_reads_is_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = format!("echo $$ >busy; {BUSY}");
    // Without another limit, which would end it as well.
    let command = sandbox.commands().run(line).cpu_time(LIMIT).start().await?;
    let is_there = async || Ok(sandbox.commands().run("test -s busy").await?.success());
    eventually("its start", WAIT_TIMEOUT, is_there).await?;
    let is_gone = async || Ok(!sandbox.commands().run("kill -0 $(cat busy)").await?.success());
    eventually("its end", WAIT_TIMEOUT, is_gone).await?;
    drop(command);
    Ok(())
}

async fn the_time_that_passes_is_another_limit(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("sleep 1000").cpu_time(LIMIT);
    let failure = command.timeout(Duration::from_millis(500)).await?.failure;
    let kind = failure.as_ref().map(|failure| failure.kind);
    ensure_eq!(kind, Some(FailureKind::Timeout), "{failure:?}");
    Ok(())
}

async fn nothing_is_no_limit(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for limit in [Duration::ZERO, Duration::MAX] {
        let answer = sandbox.commands().run("true").cpu_time(limit).await;
        let error = refused(answer, ErrorKind::InvalidArgument)?;
        ensure!(error.to_string().contains("cpu_time"), "{error}");
    }
    Ok(())
}
