//! Commands that cannot run, or do not end.

use std::time::{Duration, Instant};

use sandbox_core::{ErrorKind, FailureKind};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{SLACK, WAIT_TIMEOUT, eventually, is_usable, ok, refused, within};

pub(super) fn cases() -> Vec<Case> {
    cases!("commands", [commands], {
        a_missing_program_is_not_found needs run_code;
        a_file_without_rights_is_denied needs run_code;
        a_directory_is_no_program;
        a_missing_interpreter_is_an_error needs run_code;
        an_empty_command_is_refused;
        arguments_with_nul_are_refused;
        arguments_that_are_too_long_are_an_error needs run_code;
        many_arguments_work;
        a_missing_directory_is_an_error;
        bad_variables_are_refused;
        a_timeout_ends_it;
        a_timeout_ends_the_tree needs local;
        a_timeout_ends_what_ignores_signals;
        a_dropped_command_ends_the_tree needs run_code, local;
        a_child_that_holds_the_streams_does_not_hold_it;
        terminate_ends_it;
    })
}

async fn a_missing_program_is_not_found(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for program in ["no-such-program-x", "/no/such/program", "./no-such"] {
        let error = refused(sandbox.commands().run([program, "a"]).await, ErrorKind::NotFound)?;
        ensure!(error.to_string().contains(program), "{program} is not named: {error}");
    }
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_file_without_rights_is_denied(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "open('script.sh', 'w').write('#!/bin/sh\\necho ran\\n')").await?;
    refused(sandbox.commands().run(["./script.sh"]).await, ErrorKind::PermissionDenied)?;
    ok(&sandbox, "import os; os.chmod('script.sh', 0o755)").await?;
    ensure_eq!(sandbox.commands().run(["./script.sh"]).await?.stdout, "ran\n", "control");
    Ok(())
}

async fn a_directory_is_no_program(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    refused(sandbox.commands().run(["/tmp"]).await, ErrorKind::PermissionDenied)?;
    Ok(())
}

async fn a_missing_interpreter_is_an_error(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(
        &sandbox,
        "import os\nopen('s', 'w').write('#!/no/such/interpreter\\n')\nos.chmod('s', 0o755)",
    )
    .await?;
    refused(sandbox.commands().run(["./s"]).await, ErrorKind::NotFound)?;
    Ok(())
}

async fn an_empty_command_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    refused(sandbox.commands().run([""; 0]).await, ErrorKind::InvalidArgument)?;
    refused(sandbox.commands().run(["", "a"]).await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn arguments_with_nul_are_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    refused(sandbox.commands().run(["echo", "a\0b"]).await, ErrorKind::InvalidArgument)?;
    refused(sandbox.commands().run("echo a\0b").await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn arguments_that_are_too_long_are_an_error(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let long = "x".repeat(3 << 20);
    let Err(error) = sandbox.commands().run(["true", long.as_str()]).await else {
        return Err("an argument of 3 MiB was accepted".to_owned().into());
    };
    ensure!(
        matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::ResourceExhausted),
        "kind of {error:.300?}"
    );
    ensure!(error.to_string().len() < 10_000, "the argument is in the message");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn many_arguments_work(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut argv = vec!["sh".to_owned(), "-c".into(), "echo $#".into(), "sh".into()];
    argv.extend((0..50_000).map(|i| i.to_string()));
    ensure_eq!(sandbox.commands().run(argv).await?.stdout, "50000\n");
    Ok(())
}

async fn a_missing_directory_is_an_error(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let error =
        refused(sandbox.commands().run("pwd").cwd("/no/such/dir").await, ErrorKind::NotFound)?;
    ensure!(error.to_string().contains("/no/such/dir"), "the directory is not named: {error}");
    refused(sandbox.commands().run("pwd").cwd("a\0").await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn bad_variables_are_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A\n", "x"), ("A", "x\0")] {
        refused(sandbox.commands().run("true").env(name, value).await, ErrorKind::InvalidArgument)?;
    }
    Ok(())
}

async fn a_timeout_ends_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let began = Instant::now();
    let command = sandbox.commands().run("echo begun; sleep 300").timeout(Duration::from_secs(1));
    let result = within(SLACK * 2, command).await??;
    ensure_eq!(result.failure.as_ref().map(|failure| failure.kind), Some(FailureKind::Timeout));
    ensure!(!result.success(), "a timeout is no success");
    ensure_eq!(result.stdout, "begun\n");
    let took = began.elapsed();
    ensure!((Duration::from_secs(1)..SLACK).contains(&took), "it took {took:?}");
    Ok(())
}

async fn a_timeout_ends_the_tree(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let token = host::token("tree-");
    let line = format!(
        "setsid sh -c 'trap \"\" 1 2 15; while :; do sleep 1; done' {token} & (sh -c 'while :; do sleep 1; done' {token} &); sleep 300"
    );
    let command = sandbox.commands().run(line).timeout(Duration::from_secs(2));
    let watch = eventually("two children", WAIT_TIMEOUT, async || {
        Ok(host::running_with(&token)?.len() >= 2)
    });
    let (result, watched) = tokio::join!(command, watch);
    watched?;
    ensure_eq!(result?.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    eventually("the end of the tree", SLACK, async || Ok(host::running_with(&token)?.is_empty()))
        .await
}

async fn a_timeout_ends_what_ignores_signals(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "trap '' 1 2 15; while :; do sleep 0.1; done";
    let command = sandbox.commands().run(line).timeout(Duration::from_secs(1));
    let result = within(SLACK * 2, command).await??;
    ensure_eq!(result.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    Ok(())
}

async fn a_dropped_command_ends_the_tree(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let token = host::token("dropped-");
    let line = format!("sh -c 'while :; do sleep 1; done' {token} & wait");
    let command = sandbox.commands().run(line).start().await?;
    eventually("its child", WAIT_TIMEOUT, async || Ok(host::running_with(&token)?.len() >= 2))
        .await?;
    drop(command);
    eventually("the end of the tree", WAIT_TIMEOUT, async || {
        Ok(host::running_with(&token)?.is_empty())
    })
    .await?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_child_that_holds_the_streams_does_not_hold_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("sleep 60 & echo started");
    let result = within(Duration::from_secs(10), command).await??;
    ensure_eq!((result.stdout.as_str(), result.exit_code), ("started\n", 0));
    Ok(())
}

async fn terminate_ends_it(f: Fixture) -> Checked {
    // Its own end and that of its sandbox are told by two ways, either of which may be the first.
    for _ in 0..5 {
        let sandbox = f.sandbox().await?;
        let running = sandbox.clone();
        let command = tokio::spawn(async move { running.commands().run("sleep 300").await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        within(WAIT_TIMEOUT, sandbox.terminate()).await??;
        match within(WAIT_TIMEOUT, command).await?? {
            Ok(result) => {
                let told = result.failure.as_ref().map(|failure| failure.kind);
                ensure_eq!(told, Some(FailureKind::Terminated), "{result:?}");
            }
            Err(error) => ensure_eq!(error.kind(), ErrorKind::Terminated),
        }
        refused(sandbox.commands().run("true").await, ErrorKind::Terminated)?;
    }
    Ok(())
}
