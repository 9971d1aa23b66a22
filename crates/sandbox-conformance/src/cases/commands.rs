//! Commands beside the interpreter.

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use sandbox_core::{Command, CommandEvent, CommandOutcome, FailureKind, OutputStream, PtySize};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{
    SLACK, WAIT_TIMEOUT, as_shown, is_usable, ok, run, text, until_executing, within,
};

pub(super) fn cases() -> Vec<Case> {
    cases!("commands", [commands], {
        a_line_runs_in_a_shell;
        a_program_runs_without_a_shell;
        exit_statuses_are_exact;
        streams_are_exact;
        env_and_cwd needs run_code;
        the_sandbox_s_env_is_seen;
        stdin_is_read needs command_stdin;
        stdin_is_streamed needs command_stdin;
        stdin_is_at_its_end_by_default;
        events_come_while_it_runs;
        it_is_written_to_while_it_runs needs command_stdin;
        a_signal_reaches_it;
        a_signal_reaches_the_tree;
        files_are_those_of_the_code needs run_code;
        it_runs_beside_busy_code needs run_code;
        it_survives_the_interpreter needs run_code;
        many_at_once;
        many_one_after_another;
        callbacks_hear_lines;
        a_terminal needs command_pty;
        a_background_command_is_connected_to needs command_background;
        a_background_command_is_listed needs command_background;
    })
}

async fn a_line_runs_in_a_shell(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = sandbox.commands().run("X=1; echo $((X + 41)) | cat && echo done").await?;
    ensure!(result.success(), "{result:?}");
    ensure_eq!(result.stdout, "42\ndone\n");
    let duration = result.duration;
    ensure!(!duration.is_zero() && duration.as_secs() < 30, "duration {duration:?}");
    Ok(())
}

async fn many_one_after_another(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for number in 0..1100 {
        let result = sandbox.commands().run(["true"]).await;
        ensure!(
            result.as_ref().is_ok_and(|result| result.success()),
            "command {number}: {result:?}"
        );
    }
    Ok(())
}

async fn a_program_runs_without_a_shell(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let odd = "$HOME `id` ; echo 'x' \"y\" \\ * \n é 🎉";
    let result = sandbox.commands().run(["printf", "%s|", odd, "", "-n"]).await?;
    ensure_eq!(result.stdout, format!("{odd}||-n|"));
    Ok(())
}

async fn exit_statuses_are_exact(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for (line, status, signal) in [
        ("true", 0, None),
        ("false", 1, None),
        ("exit 7", 7, None),
        ("exit 255", 255, None),
        ("no-such-program-x", 127, None),
        ("kill -9 $$", 137, Some(9)),
        ("kill -15 $$", 143, Some(15)),
        ("exit 300", 44, None),
    ] {
        let result = sandbox.commands().run(line).await?;
        ensure_eq!((result.exit_code, result.signal), (status, signal), "status of {line:?}");
        ensure_eq!(result.failure, None, "failure of {line:?}");
        ensure_eq!(result.success(), status == 0, "success of {line:?}");
    }
    Ok(())
}

async fn streams_are_exact(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = sandbox.commands().run("printf 'o1\\no2'; printf 'e1' >&2").await?;
    ensure_eq!((result.stdout.as_str(), result.stderr.as_str()), ("o1\no2", "e1"));
    let result =
        sandbox.commands().run("head -c 50000000 /dev/zero | tr '\\0' x; echo end >&2").await?;
    ensure_eq!(result.stdout_totals.bytes_total, 50_000_000);
    ensure!(
        result.stdout_totals.truncated() && result.stdout.len() < 4 << 20,
        "kept {}",
        result.stdout.len()
    );
    ensure_eq!(result.stderr, "end\n");
    Ok(())
}

async fn env_and_cwd(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import os; os.mkdir('sub')").await?;
    let odd = "a 'b' \"c\" $d\nnext";
    let result =
        sandbox.commands().run("printf '%s' \"$ODD\"; pwd >&2").env("ODD", odd).cwd("sub").await?;
    ensure_eq!(result.stdout, odd);
    ensure!(result.stderr.trim_end().ends_with("/sub"), "directory {:?}", result.stderr);
    let next = sandbox.commands().run("echo \"[$ODD]\"").await?;
    ensure_eq!(next.stdout, "[]\n", "a variable of one command is seen by the next");
    Ok(())
}

async fn the_sandbox_s_env_is_seen(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.env("PLAIN", "p").secret("KEY", "k").env("OVER", "old")).await?;
    let result = sandbox.commands().run("echo $PLAIN$KEY$OVER").env("OVER", "new").await?;
    ensure_eq!(result.stdout, "pknew\n");
    Ok(())
}

async fn stdin_is_read(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let all: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    let result = sandbox.commands().run("cksum; cat").stdin("").await?;
    ensure_eq!(
        result.stdout.split_whitespace().nth(1),
        Some("0"),
        "an empty input: {:?}",
        result.stdout
    );
    let result = sandbox.commands().run("wc -c").stdin(all).await?;
    ensure_eq!(result.stdout.trim(), (3 << 20).to_string());
    let early = sandbox.commands().run("head -c 1").stdin(vec![b'x'; 5 << 20]).await?;
    ensure_eq!((early.stdout.as_str(), early.exit_code), ("x", 0), "a reader that stops early");
    Ok(())
}

async fn stdin_is_streamed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let pieces = stream::iter(0..5).then(async |i| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(format!("piece {i}\n").into())
    });
    let result = sandbox.commands().run("cat").stdin_stream(Box::pin(pieces)).await?;
    ensure_eq!(result.stdout, (0..5).map(|i| format!("piece {i}\n")).collect::<String>());
    Ok(())
}

async fn stdin_is_at_its_end_by_default(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = within(WAIT_TIMEOUT, sandbox.commands().run("cat; echo end")).await??;
    ensure_eq!(result.stdout, "end\n");
    Ok(())
}

/// Reads a command to its end.
pub(super) async fn finish(mut command: Command) -> Checked<(String, CommandOutcome)> {
    let (mut output, mut end) = (Vec::new(), None);
    while let Some(event) = within(WAIT_TIMEOUT, command.events.next()).await? {
        ensure!(end.is_none(), "an event after the end: {event:?}");
        match event {
            CommandEvent::Output { data, .. } => output.extend_from_slice(&data),
            CommandEvent::Finished(outcome) => end = Some(outcome),
            other => ensure!(false, "unknown event {other:?}"),
        }
    }
    match end {
        Some(outcome) => Ok((String::from_utf8_lossy(&output).into_owned(), outcome)),
        None => Err("the events ended without an end of the command".to_owned().into()),
    }
}

/// Reads until that text has come.
pub(super) async fn read_until(command: &mut Command, wanted: &str) -> Checked<String> {
    let mut output = String::new();
    while !output.contains(wanted) {
        match within(WAIT_TIMEOUT, command.events.next()).await? {
            Some(CommandEvent::Output { data, .. }) => {
                output.push_str(&String::from_utf8_lossy(&data))
            }
            other => ensure!(false, "no {wanted:?} after {output:?}, but {other:?}"),
        }
    }
    Ok(output)
}

async fn events_come_while_it_runs(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut command =
        sandbox.commands().exec(["sh", "-c", "echo first; sleep 1.5; echo second >&2"]).await?;
    ensure!(!command.id.is_empty(), "it has no id");
    read_until(&mut command, "first\n").await?;
    let heard = Instant::now();
    let second = within(WAIT_TIMEOUT, command.events.next()).await?;
    ensure!(
        matches!(&second, Some(CommandEvent::Output { stream: OutputStream::Stderr, data }) if data == "second\n"),
        "the second event is {second:?}"
    );
    ensure!(heard.elapsed() > Duration::from_millis(700), "both lines came together");
    ensure_eq!(finish(command).await?.1.exit_code, 0);
    Ok(())
}

async fn it_is_written_to_while_it_runs(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let (sender, receiver) = tokio::sync::mpsc::channel::<bytes_like::Bytes>(1);
    let input = stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|data| (Ok(data), receiver))
    });
    let run = sandbox.commands().run("while read line; do echo \"got $line\"; done; echo bye");
    let mut command = run.stdin_stream(Box::pin(input)).start().await?;
    for word in ["one", "two"] {
        let sent = sender.send(format!("{word}\n").into()).await;
        ensure!(sent.is_ok(), "the input is closed");
        read_until(&mut command, &format!("got {word}\n")).await?;
    }
    drop(sender);
    ensure_eq!(finish(command).await?.0, "bye\n");
    Ok(())
}

/// The byte type of the core, without a dependency of our own.
mod bytes_like {
    pub(super) type Bytes = <sandbox_core::ByteStream as Unpack>::Bytes;

    pub(super) trait Unpack {
        type Bytes;
    }

    impl<T, S: futures_util::Stream<Item = sandbox_core::Result<T>> + ?Sized> Unpack
        for std::pin::Pin<Box<S>>
    {
        type Bytes = T;
    }
}

async fn a_signal_reaches_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = sandbox.commands().exec(["sh", "-c", line]).await?;
    read_until(&mut command, "ready\n").await?;
    command.control.signal(15, false).await?;
    let (output, outcome) = finish(command).await?;
    ensure_eq!((output.as_str(), outcome.exit_code, outcome.signal), ("caught\n", 9, None));
    Ok(())
}

async fn a_signal_reaches_the_tree(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "sleep 300 & setsid sleep 300 & echo ready; wait";
    let mut command = sandbox.commands().exec(["sh", "-c", line]).await?;
    read_until(&mut command, "ready\n").await?;
    command.control.signal(9, true).await?;
    let (_, outcome) = finish(command).await?;
    ensure_eq!((outcome.exit_code, outcome.signal), (137, Some(9)));
    let count = "ls -d /proc/[0-9]* | while read p; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done | grep -c '^sleep 300' || true";
    if f.target().isolation == sandbox_core::IsolationMode::Strict {
        ensure_eq!(sandbox.commands().run(count).await?.stdout, "0\n", "sleepers left");
    }
    Ok(())
}

async fn files_are_those_of_the_code(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "open('from-code', 'w').write('code')").await?;
    ensure_eq!(
        sandbox.commands().run("cat from-code; printf cmd > from-command").await?.stdout,
        "code"
    );
    ensure_eq!(text(&sandbox, "open('from-command').read()").await?, as_shown("'cmd'"));
    let same = text(&sandbox, "import os; (os.getuid(), os.getcwd())").await?;
    let command = sandbox.commands().run("printf \"($(id -u), '%s')\" \"$(pwd)\"").await?;
    ensure_eq!(command.stdout, same, "(user, directory)");
    Ok(())
}

async fn it_runs_beside_busy_code(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let busy = sandbox.clone();
    let busy =
        tokio::spawn(
            async move { busy.run_code("sum(range(10 ** 13))").timeout(WAIT_TIMEOUT).await },
        );
    until_executing(&sandbox).await?;
    let began = Instant::now();
    ensure_eq!(
        within(WAIT_TIMEOUT, sandbox.commands().run("echo beside")).await??.stdout,
        "beside\n"
    );
    ensure!(began.elapsed() < SLACK, "it waited {:?} for the code", began.elapsed());
    // That end is not waited for.
    busy.abort();
    Ok(())
}

async fn it_survives_the_interpreter(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut command =
        sandbox.commands().exec(["sh", "-c", "echo ready; sleep 1; echo survived"]).await?;
    read_until(&mut command, "ready\n").await?;
    run(&sandbox, "import os; os._exit(1)").await?;
    let (output, outcome) = finish(command).await?;
    ensure_eq!((output.as_str(), outcome.exit_code), ("survived\n", 0));
    is_usable(&sandbox).await?;
    Ok(())
}

async fn many_at_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let runs = (0..40).map(|i| {
        let sandbox = sandbox.clone();
        async move { sandbox.commands().run(format!("echo {i}; exit {i}")).await }
    });
    for (i, result) in futures_util::future::join_all(runs).await.into_iter().enumerate() {
        let result = result?;
        ensure_eq!((result.stdout, result.exit_code), (format!("{i}\n"), i as i32));
    }
    Ok(())
}

async fn callbacks_hear_lines(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    sandbox
        .commands()
        .run("echo a; echo b >&2")
        .on_stdout(|message| out.push(message.line.clone()))
        .on_stderr(|message| err.push(message.line.clone()))
        .await?;
    ensure_eq!((out, err), (vec!["a".to_owned()], vec!["b".to_owned()]));
    Ok(())
}

async fn a_terminal(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let size = PtySize { columns: 91, rows: 27 };
    let command =
        sandbox.commands().run("test -t 0 && test -t 1 && stty size").pty(size).start().await?;
    let (output, outcome) = finish(command).await?;
    ensure_eq!((output.trim(), outcome.exit_code), ("27 91", 0));
    let mut command =
        sandbox.commands().run("echo ready; read x; stty size").pty(size).start().await?;
    read_until(&mut command, "ready").await?;
    command.control.resize(PtySize { columns: 40, rows: 10 }).await?;
    command.control.write_stdin("go\n".into()).await?;
    let (output, _) = finish(command).await?;
    ensure!(output.contains("10 40"), "size after resize: {output:?}");
    // No shell: one that has not yet begun to wait for its program forgets the signal.
    let ended = sandbox.commands().run(["cat"]).pty(size).start().await?;
    ended.control.write_stdin("\u{3}".into()).await?;
    ensure_eq!(finish(ended).await?.1.exit_code, 130, "Ctrl-C");
    Ok(())
}

async fn a_background_command_is_connected_to(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "echo early; sleep 1; echo late; exit 5";
    let started = sandbox.commands().run(line).background().start().await?;
    let id = started.id.clone();
    drop(started);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (output, outcome) = finish(sandbox.commands().connect(&id).await?).await?;
    ensure_eq!((output.as_str(), outcome.exit_code), ("early\nlate\n", 5));
    let (again, _) = finish(sandbox.commands().connect(&id).await?).await?;
    ensure_eq!(again, "early\nlate\n", "retained output");
    Ok(())
}

async fn a_background_command_is_listed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let running = sandbox.commands().run("sleep 300").background().start().await?;
    let listed = sandbox.commands().list().await?;
    let found = listed.iter().find(|command| command.id == running.id);
    ensure!(found.is_some_and(|command| command.exit_code.is_none()), "listed: {listed:?}");
    running.control.signal(9, true).await?;
    let (_, outcome) = finish(running).await?;
    ensure_eq!((outcome.exit_code, outcome.failure.map(|f| f.kind)), (137, None::<FailureKind>));
    Ok(())
}
