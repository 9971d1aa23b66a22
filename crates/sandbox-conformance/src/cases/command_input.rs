//! Commands that are written to while they run, and programs that are given as text.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use sandbox_core::{CommandEvent, ErrorKind};

use super::commands::{finish, read_until};
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, ok, refused, within};

pub(super) fn cases() -> Vec<Case> {
    cases!("commands", [commands], {
        an_interactive_one_is_written_to needs command_stdin;
        the_given_input_comes_first needs command_stdin;
        its_input_is_closed needs command_stdin;
        writers_take_turns needs command_stdin;
        a_closed_input_takes_nothing needs command_stdin;
        an_ended_one_takes_nothing needs command_stdin;
        one_that_closes_its_input_takes_nothing needs command_stdin;
        a_writer_waits_for_the_reader needs command_stdin;
        a_writer_hears_of_the_end needs command_stdin;
        an_interactive_one_is_not_awaited needs command_stdin;
        given_input_is_all_there_is;
        one_that_closes_its_output_lives_on;
        not_executable_in_a_shell_is_126 needs run_code;
        signals_that_do_not_exist_are_refused;
        a_signal_after_the_end_is_no_error;
        a_script_has_its_arguments needs run_code;
        a_script_reads_its_input needs run_code, command_stdin;
        a_script_has_its_own_status needs run_code;
        a_script_names_its_interpreter;
        a_long_script_is_whole needs run_code;
        a_script_without_interpreter_is_127;
        scripts_that_cannot_be_are_refused;
    })
}

async fn an_interactive_one_is_written_to(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let run = sandbox.commands().run("while read x; do echo got $x; done; echo bye");
    let mut command = run.interactive().start().await?;
    for word in ["one", "two", "three"] {
        command.control.write_stdin(format!("{word}\n").into()).await?;
        read_until(&mut command, &format!("got {word}\n")).await?;
    }
    command.control.close_stdin().await?;
    let (output, outcome) = finish(command).await?;
    ensure_eq!((output.as_str(), outcome.exit_code), ("bye\n", 0));
    Ok(())
}

async fn the_given_input_comes_first(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let given = "x".repeat(300_000);
    let run = sandbox.commands().run("sleep 0.3; cat | tail -c 5");
    let command = run.stdin(given).interactive().start().await?;
    command.control.write_stdin("later".into()).await?;
    command.control.close_stdin().await?;
    ensure_eq!(finish(command).await?.0, "later");
    Ok(())
}

async fn its_input_is_closed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("cat; exit 4").interactive().start().await?;
    command.control.close_stdin().await?;
    command.control.close_stdin().await?;
    ensure_eq!(finish(command).await?.1.exit_code, 4);
    let dropped = sandbox.commands().run("cat; exit 5").interactive().start().await?;
    let mut events = dropped.events;
    drop(dropped.control);
    let end = within(WAIT_TIMEOUT, events.next()).await?;
    let fine = matches!(&end, Some(CommandEvent::Finished(outcome)) if outcome.exit_code == 5);
    ensure!(fine, "after its control was dropped: {end:?}");
    Ok(())
}

async fn writers_take_turns(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("sort | uniq -c").interactive().start().await?;
    let writes = (0..8).map(|writer| {
        let (control, line) = (Arc::clone(&command.control), format!("{writer}").repeat(50_000));
        async move { control.write_stdin(format!("{line}\n").into()).await }
    });
    for written in futures_util::future::join_all(writes).await {
        written?;
    }
    command.control.close_stdin().await?;
    let (output, _) = finish(command).await?;
    ensure_eq!(output.lines().count(), 8, "lines");
    Ok(())
}

async fn a_closed_input_takes_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("cat; sleep 300").interactive().start().await?;
    command.control.close_stdin().await?;
    refused(command.control.write_stdin("x".into()).await, ErrorKind::NotFound)?;
    Ok(())
}

async fn an_ended_one_takes_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("exit 2").interactive().start().await?;
    let control = Arc::clone(&command.control);
    ensure_eq!(finish(command).await?.1.exit_code, 2);
    refused(control.write_stdin("x".into()).await, ErrorKind::ConnectionLost)?;
    control.close_stdin().await?;
    Ok(())
}

async fn one_that_closes_its_input_takes_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let run = sandbox.commands().run("exec 0<&-; echo closed; sleep 300");
    let mut command = run.interactive().start().await?;
    read_until(&mut command, "closed").await?;
    refused(command.control.write_stdin("x".into()).await, ErrorKind::ConnectionLost)?;
    Ok(())
}

async fn a_writer_waits_for_the_reader(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let run = sandbox.commands().run("sleep 0.5; wc -c");
    let command = run.interactive().start().await?;
    let data = vec![b'x'; 8 << 20];
    let began = std::time::Instant::now();
    within(WAIT_TIMEOUT, command.control.write_stdin(data.into())).await??;
    ensure!(began.elapsed() > Duration::from_millis(300), "it took {:?}", began.elapsed());
    command.control.close_stdin().await?;
    ensure_eq!(finish(command).await?.0.trim(), (8 << 20).to_string());
    Ok(())
}

async fn a_writer_hears_of_the_end(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("sleep 0.5").interactive().start().await?;
    let control = Arc::clone(&command.control);
    let write = control.write_stdin(vec![b'x'; 8 << 20].into());
    let (written, finished) = tokio::join!(within(WAIT_TIMEOUT, write), finish(command));
    refused(written?, ErrorKind::ConnectionLost)?;
    ensure_eq!(finished?.1.exit_code, 0);
    Ok(())
}

async fn an_interactive_one_is_not_awaited(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    refused(sandbox.commands().run("cat").interactive().await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn given_input_is_all_there_is(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("sleep 300").start().await?;
    refused(command.control.write_stdin("x".into()).await, ErrorKind::Unsupported)?;
    refused(command.control.close_stdin().await, ErrorKind::Unsupported)?;
    Ok(())
}

async fn one_that_closes_its_output_lives_on(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "echo out; exec 1>&- 2>&-; sleep 1; touch lived-on; exit 3";
    let began = std::time::Instant::now();
    let result = within(WAIT_TIMEOUT, sandbox.commands().run(line)).await??;
    ensure_eq!((result.stdout.as_str(), result.exit_code), ("out\n", 3));
    ensure!(began.elapsed() > Duration::from_millis(900), "its end was not waited for");
    ensure!(sandbox.commands().run("test -e lived-on").await?.success(), "it did not live on");
    Ok(())
}

async fn not_executable_in_a_shell_is_126(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "open('plain', 'w').write('x')").await?;
    for (line, status) in [("./plain", 126), ("/tmp", 126), ("./missing", 127), ("nothing-x", 127)]
    {
        ensure_eq!(sandbox.commands().run(line).await?.exit_code, status, "status of {line:?}");
    }
    Ok(())
}

async fn signals_that_do_not_exist_are_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("sleep 300").start().await?;
    for signal in [-1, 0, 65, i32::MAX, i32::MIN] {
        for tree in [false, true] {
            let sent = command.control.signal(signal, tree).await;
            refused(sent, ErrorKind::InvalidArgument)?;
        }
    }
    Ok(())
}

async fn a_signal_after_the_end_is_no_error(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let command = sandbox.commands().run("true").start().await?;
    let control = Arc::clone(&command.control);
    finish(command).await?;
    for (signal, tree) in [(15, false), (15, true), (9, false), (9, true)] {
        control.signal(signal, tree).await?;
    }
    Ok(())
}

async fn a_script_has_its_arguments(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let odd = ["a b", "", "-n", "$HOME", "'\"\\", "é\n🎉"];
    let text = "import sys, json\nprint(json.dumps(sys.argv[1:]), __name__)";
    let result = sandbox.commands().run_script("python", text, odd).await?;
    ensure!(result.success(), "{result:?}");
    let printed = result.stdout.trim_end().strip_suffix(" __main__").unwrap_or_default();
    let seen: Vec<String> = serde_json::from_str(printed).unwrap_or_default();
    ensure_eq!(seen, odd);
    let shell = sandbox.commands().run_script("sh", "for a; do printf '<%s>' \"$a\"; done", odd);
    let wanted: String = odd.iter().map(|a| format!("<{a}>")).collect();
    ensure_eq!(shell.await?.stdout, wanted);
    Ok(())
}

async fn a_script_reads_its_input(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let text = "import sys\nprint(len(sys.stdin.read()))";
    let none = [""; 0];
    let result = sandbox.commands().run_script("python", text, none).stdin("x".repeat(100_000));
    ensure_eq!(result.await?.stdout, "100000\n");
    Ok(())
}

async fn a_script_has_its_own_status(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let none = [""; 0];
    let failed = sandbox.commands().run_script("python", "x = 1\nraise SystemExit(9)", none);
    ensure_eq!(failed.await?.exit_code, 9);
    let killed = sandbox.commands().run_script("sh", "kill -9 $$", none).await?;
    ensure_eq!((killed.exit_code, killed.signal), (137, Some(9)));
    let raised = sandbox.commands().run_script("python", "x = 1\nx / 0", none).await?;
    ensure_eq!(raised.exit_code, 1);
    ensure!(raised.stderr.contains("line 2") && raised.stderr.contains("x / 0"), "{raised:?}");
    Ok(())
}

async fn a_script_names_its_interpreter(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let text = "#!/bin/sh -e\necho \"$1\"\nfalse\necho never";
    let result = sandbox.commands().run_script("", text, ["arg"]).await?;
    ensure_eq!((result.stdout.as_str(), result.exit_code), ("arg\n", 1));
    let line = "#!/usr/bin/env sh";
    let result = sandbox.commands().run_script(line, "echo \"$1 $0\"", ["arg"]).await?;
    ensure!(result.success() && result.stdout.starts_with("arg /"), "{result:?}");
    Ok(())
}

async fn a_long_script_is_whole(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let text =
        format!("x = {:?}\nprint(len(x), hash(x) == hash('é' * len(x)))", "é".repeat(400_000));
    let result = sandbox.commands().run_script("python", &text, [""; 0]).await?;
    ensure_eq!((result.stdout.as_str(), result.stderr.as_str()), ("400000 True\n", ""));
    Ok(())
}

async fn a_script_without_interpreter_is_127(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = sandbox.commands().run_script("#!/no/such/interpreter", "x", [""; 0]).await?;
    ensure!(matches!(result.exit_code, 126 | 127), "{result:?}");
    Ok(())
}

async fn scripts_that_cannot_be_are_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let long = "x".repeat(2 << 20);
    for (language, text) in
        [("cobol", "x"), ("", "no line"), ("sh", "a\0b"), ("sh", long.as_str()), ("#!a\nb", "")]
    {
        let script = sandbox.commands().run_script(language, text, [""; 0]);
        refused(script.await, ErrorKind::InvalidArgument)?;
    }
    Ok(())
}
