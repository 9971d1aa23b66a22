//! Commands on a terminal.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sandbox_core::{Command, CommandEvent, ErrorKind, FailureKind, OutputStream, PtySize, Sandbox};

use super::commands::{finish, read_until};
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{
    SLACK, WAIT_TIMEOUT, eventually, is_usable, refused, until_executing, within,
};

const SIZE: PtySize = PtySize { columns: 80, rows: 24 };

pub(super) fn cases() -> Vec<Case> {
    cases!("terminal", [commands, command_pty], {
        it_has_the_size_that_was_asked_for;
        a_change_of_size_is_told;
        ctrl_c_interrupts needs run_code;
        ctrl_backslash_quits needs run_code;
        the_end_of_input_ends_a_reader;
        the_end_of_input_in_a_line_keeps_the_line;
        input_is_echoed;
        bytes_are_raw_both_ways;
        both_streams_are_one;
        it_has_a_name_of_its_own;
        it_is_the_controlling_one;
        the_last_output_is_there;
        what_closes_it_may_open_it_again;
        an_awaited_one_has_no_input;
        given_input_is_typed;
        the_kind_of_terminal_is_told;
        a_size_of_nothing_is_refused;
        no_terminal_has_no_size;
        many_at_once;
        it_works_beside_busy_code needs run_code;
        a_timeout_ends_it;
        a_dropped_one_ends needs local;
        it_is_connected_to_again needs command_background;
    })
}

async fn start(sandbox: &Sandbox, line: &str) -> Checked<Command> {
    Ok(sandbox.commands().run(line).pty(SIZE).start().await?)
}

async fn it_has_the_size_that_was_asked_for(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let size = PtySize { columns: 91, rows: 27 };
    let result = sandbox.commands().run("test -t 0 && test -t 1 && stty size").pty(size).await?;
    ensure_eq!((result.stdout.as_str(), result.exit_code), ("27 91\r\n", 0));
    Ok(())
}

async fn a_change_of_size_is_told(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut command = start(&sandbox, line).await?;
    read_until(&mut command, "ready").await?;
    command.control.resize(PtySize { columns: 40, rows: 10 }).await?;
    let (output, outcome) = finish(command).await?;
    ensure!(output.contains("10 40"), "after the change: {output:?}");
    ensure_eq!(outcome.exit_code, 4);
    Ok(())
}

async fn ends_by(f: Fixture, key: &'static [u8], signal: i32) -> Checked {
    let sandbox = f.sandbox().await?;
    // No shell: one that has not yet begun to wait for its program forgets the signal.
    let command = sandbox.commands().run(["cat"]).pty(SIZE).start().await?;
    command.control.write_stdin(key.into()).await?;
    let (_, outcome) = finish(command).await?;
    ensure_eq!(outcome.exit_code, 128 + signal);
    is_usable(&sandbox).await?;
    Ok(())
}

async fn ctrl_c_interrupts(f: Fixture) -> Checked {
    ends_by(f, b"\x03", 2).await
}

async fn ctrl_backslash_quits(f: Fixture) -> Checked {
    ends_by(f, b"\x1c", 3).await
}

async fn the_end_of_input_ends_a_reader(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = start(&sandbox, "stty -echo; cat; echo end").await?;
    command.control.write_stdin("one\n".into()).await?;
    command.control.close_stdin().await?;
    let (output, outcome) = finish(command).await?;
    ensure!(output.ends_with("one\r\nend\r\n"), "output {output:?}");
    ensure_eq!(outcome.exit_code, 0);
    Ok(())
}

async fn the_end_of_input_in_a_line_keeps_the_line(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut command = start(&sandbox, "stty -echo; echo ready; cat | wc -c").await?;
    read_until(&mut command, "ready").await?;
    command.control.write_stdin("half".into()).await?;
    command.control.close_stdin().await?;
    let (output, _) = finish(command).await?;
    ensure_eq!(output.trim(), "4");
    Ok(())
}

async fn input_is_echoed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut command = start(&sandbox, "echo ready; exec cat >/dev/null").await?;
    read_until(&mut command, "ready").await?;
    command.control.write_stdin("typed".into()).await?;
    read_until(&mut command, "typed").await?;
    command.control.signal(9, false).await?;
    ensure_eq!(finish(command).await?.1.signal, Some(9));
    Ok(())
}

async fn bytes_are_raw_both_ways(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut command = start(&sandbox, "stty raw -echo; printf ready; head -c 2560; :").await?;
    read_until(&mut command, "ready").await?;
    let all: Vec<u8> = (0..=255).cycle().take(2560).collect();
    command.control.write_stdin(all.clone().into()).await?;
    let mut output = Vec::new();
    while let Some(event) = within(WAIT_TIMEOUT, command.events.next()).await? {
        if let CommandEvent::Output { data, .. } = event {
            output.extend_from_slice(&data);
        }
    }
    ensure!(output == all, "{} bytes came back changed", output.len());
    Ok(())
}

async fn both_streams_are_one(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut command = start(&sandbox, "for i in 1 2 3; do echo o$i; echo e$i >&2; done").await?;
    let mut output = Vec::new();
    while let Some(event) = within(WAIT_TIMEOUT, command.events.next()).await? {
        if let CommandEvent::Output { stream, data } = event {
            ensure_eq!(stream, OutputStream::Stdout);
            output.extend_from_slice(&data);
        }
    }
    let text = String::from_utf8_lossy(&output).into_owned();
    ensure_eq!(text, "o1\r\ne1\r\no2\r\ne2\r\no3\r\ne3\r\n");
    Ok(())
}

async fn it_has_a_name_of_its_own(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "t=$(tty) && echo $t && test -O $t && echo mine >$t && stat -c %a $t";
    let result = sandbox.commands().run(line).pty(SIZE).await?;
    ensure!(result.success() && result.stdout.starts_with("/dev/"), "{result:?}");
    ensure!(result.stdout.contains("mine\r\n6"), "its name leads elsewhere: {result:?}");
    Ok(())
}

async fn it_is_the_controlling_one(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "exec 3>&1 </dev/null >/dev/null 2>&1; echo seen >/dev/tty";
    let result = sandbox.commands().run(line).pty(SIZE).await?;
    ensure_eq!((result.stdout.as_str(), result.exit_code), ("seen\r\n", 0));
    Ok(())
}

async fn the_last_output_is_there(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for _ in 0..10 {
        let result = sandbox.commands().run("seq 1 20000").pty(SIZE).await?;
        let wanted: String = (1..=20_000).map(|i| format!("{i}\r\n")).collect();
        ensure!(result.stdout == wanted, "{} of {} bytes", result.stdout.len(), wanted.len());
    }
    Ok(())
}

async fn what_closes_it_may_open_it_again(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "exec </dev/null >/dev/null 2>&1; sleep 0.3; echo back >/dev/tty; exit 6";
    let (output, outcome) = finish(start(&sandbox, line).await?).await?;
    ensure_eq!((output.as_str(), outcome.exit_code), ("back\r\n", 6));
    Ok(())
}

async fn an_awaited_one_has_no_input(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = within(WAIT_TIMEOUT, sandbox.commands().run("cat; echo end").pty(SIZE)).await??;
    ensure_eq!(result.stdout, "end\r\n");
    Ok(())
}

async fn given_input_is_typed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "stty -echo; sleep 0.2; read a; read b; echo \"$b$a\"; cat";
    let run = sandbox.commands().run(line).pty(SIZE).stdin("x\ny\n");
    let result = within(WAIT_TIMEOUT, run).await??;
    ensure!(result.stdout.ends_with("yx\r\n"), "output {:?}", result.stdout);
    let command = sandbox.commands().run("cat").pty(SIZE).stdin("x\n").start().await?;
    refused(command.control.write_stdin("more".into()).await, ErrorKind::Unsupported)?;
    Ok(())
}

async fn the_kind_of_terminal_is_told(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let run = || sandbox.commands().run("echo $TERM");
    ensure_eq!(run().pty(SIZE).await?.stdout, "xterm-256color\r\n");
    ensure_eq!(run().env("TERM", "dumb").pty(SIZE).await?.stdout, "dumb\r\n");
    Ok(())
}

async fn a_size_of_nothing_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for size in [PtySize { columns: 0, rows: 24 }, PtySize { columns: 80, rows: 0 }] {
        let started = sandbox.commands().run("true").pty(size).start().await;
        refused(started, ErrorKind::InvalidArgument)?;
    }
    let mut command = start(&sandbox, "echo ready; sleep 300").await?;
    read_until(&mut command, "ready").await?;
    let nothing = PtySize { columns: 0, rows: 0 };
    refused(command.control.resize(nothing).await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn no_terminal_has_no_size(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("sleep 300").start().await?;
    refused(command.control.resize(SIZE).await, ErrorKind::Unsupported)?;
    let result = sandbox.commands().run("test -t 0 || test -t 1 || echo none").await?;
    ensure_eq!(result.stdout, "none\n");
    Ok(())
}

async fn many_at_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut all = Vec::new();
    for number in 0..12 {
        let mut command = start(&sandbox, "stty -echo; echo ready; read x; echo $x; tty").await?;
        read_until(&mut command, "ready").await?;
        all.push((number, command));
    }
    let mut names = std::collections::BTreeSet::new();
    for (number, command) in all {
        command.control.write_stdin(format!("word{number}\n").into()).await?;
        let (output, _) = finish(command).await?;
        let lines: Vec<_> = output.split_whitespace().map(str::to_owned).collect();
        ensure_eq!(lines.first().cloned(), Some(format!("word{number}")));
        names.extend(lines.last().cloned());
    }
    ensure_eq!(names.len(), 12, "terminals");
    Ok(())
}

async fn it_works_beside_busy_code(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let busy = sandbox.clone();
    let busy =
        tokio::spawn(
            async move { busy.run_code("sum(range(10 ** 13))").timeout(WAIT_TIMEOUT).await },
        );
    until_executing(&sandbox).await?;
    let began = Instant::now();
    let mut command = start(&sandbox, "stty -echo; echo ready; read x; echo got $x").await?;
    read_until(&mut command, "ready").await?;
    command.control.write_stdin("it\n".into()).await?;
    let (output, _) = finish(command).await?;
    ensure!(output.contains("got it"), "output {output:?}");
    ensure!(began.elapsed() < SLACK, "it took {:?}", began.elapsed());
    // That end is not waited for.
    busy.abort();
    Ok(())
}

async fn a_timeout_ends_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let run = sandbox.commands().run("trap '' 1 2 15; echo begun; while :; do sleep 0.1; done");
    let result = within(SLACK * 2, run.pty(SIZE).timeout(Duration::from_secs(1))).await??;
    ensure_eq!(result.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    ensure_eq!(result.stdout, "begun\r\n");
    Ok(())
}

async fn a_dropped_one_ends(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let token = host::token("terminal-");
    let line = format!("sh -c 'trap \"\" 1; while :; do sleep 1; done' {token} & wait");
    let command = start(&sandbox, &line).await?;
    eventually("its child", WAIT_TIMEOUT, async || Ok(host::running_with(&token)?.len() >= 2))
        .await?;
    drop(command);
    let gone = async || Ok(host::running_with(&token)?.is_empty());
    eventually("the end of the tree", WAIT_TIMEOUT, gone).await
}

async fn it_is_connected_to_again(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "stty -echo; echo ready; while read x; do echo got $x; done; echo end";
    let mut first = sandbox.commands().run(line).pty(SIZE).background().start().await?;
    read_until(&mut first, "ready").await?;
    first.control.write_stdin("one\n".into()).await?;
    read_until(&mut first, "got one").await?;
    let id = first.id.clone();
    drop(first);
    let mut again = sandbox.commands().connect(&id).await?;
    read_until(&mut again, "got one").await?;
    again.control.resize(PtySize { columns: 33, rows: 11 }).await?;
    again.control.write_stdin("two\n".into()).await?;
    read_until(&mut again, "got two").await?;
    again.control.close_stdin().await?;
    ensure_eq!(finish(again).await?.1.exit_code, 0);
    Ok(())
}
