//! The agent is started in the background, or by the verb that needs it: creates and commands wait for nothing of that.

use std::time::{Duration, Instant};

use sandbox_core::{ErrorKind, FailureKind};
use tonic::Code;

use crate::Bench;
use crate::support::FaultKind;

/// Waits until the service was asked that often to start a program.
async fn started(bench: &Bench, count: usize) {
    let begun = Instant::now();
    while bench.service.count("TaskExecStart") < count {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", bench.service.requests());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_four_calls_with_an_agent_and_without_one() {
    const CALLS: [&str; 4] =
        ["TaskExecStart", "TaskExecStdioRead", "TaskExecStdioRead", "TaskExecWait"];
    let bench = Bench::start();
    let sandbox = bench.create().await;
    assert_eq!(bench.service.count("TaskExecStart"), 0, "{:?}", bench.service.requests());
    for is_warm in [false, true] {
        if is_warm {
            assert_eq!(sandbox.run_code("1 + 1").await.unwrap().text(), Some("2"));
        }
        let before = bench.service.requests().len();
        // It has no input, starts where the sandbox does, and no shell of ours stays above it.
        let line = "pwd; cat; cat /proc/$PPID/comm";
        let output = sandbox.commands().run(line).await.unwrap();
        let lines: Vec<_> = output.stdout.lines().collect();
        assert_eq!((lines.len(), lines[0]), (2, "/workspace"), "{output:?}");
        assert_ne!(lines[1], "sh", "{output:?}");
        let mut found = bench.service.requests()[before..].to_vec();
        found.sort();
        // What starts in the background may come in between.
        let found: Vec<_> = match is_warm {
            true => found,
            false => CALLS
                .iter()
                .map(|call| (*call).to_owned())
                .filter(|call| found.contains(call))
                .collect(),
        };
        assert_eq!(found, CALLS);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_ends_all_when_its_owner_is_gone() {
    const GUARD: &str = include_str!("../../src/guard.sh");
    let bench = Bench::start();
    let sandbox = bench.create().await;
    let commands = sandbox.commands();
    let long = commands.run("sleep 60").start().await.unwrap();
    let guard = commands.run(["/bin/sh", "-c", GUARD, "sh", "1"]);
    // The end of its input is the end of the guard alone.
    let ended = commands.run(["/bin/sh", "-c", GUARD, "sh", "1"]).stdin("on\non\n").await.unwrap();
    assert_eq!(ended.exit_code, 0, "{ended:?}");
    let guard = guard.interactive().start().await.unwrap();
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        guard.control.write_stdin("on\n".into()).await.unwrap();
    }
    let begun = Instant::now();
    assert_eq!(long.wait().await.signal, Some(9));
    assert!(begun.elapsed() > Duration::from_millis(500), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_command_without_a_limit_has_a_guard_in_a_sandbox_that_ends_with_its_owner() {
    if std::env::var_os("SANDBOX_TEST_FULL").is_none() {
        eprintln!("skipped: left to `cargo xtask test --full`");
        return;
    }
    let bench = Bench::start();
    let sandbox = bench.create().await;
    let guards = || {
        let all = bench.service.running()[0].programs();
        all.iter().filter(|argv| argv.iter().any(|word| word.contains("kill -KILL -1"))).count()
    };
    let long = sandbox.commands().run("sleep 12").start().await.unwrap();
    let limited = sandbox.commands().run("sleep 12").timeout(Duration::from_secs(60));
    let limited = limited.start().await.unwrap();
    assert_eq!(guards(), 0);
    tokio::time::sleep(Duration::from_millis(10_700)).await;
    assert_eq!(guards(), 1);
    assert_eq!((long.wait().await.exit_code, limited.wait().await.exit_code), (0, 0));
    let begun = Instant::now();
    while guards() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_is_started_once_for_all_who_wait() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    let run = async |code: &str| sandbox.run_code(code).await.unwrap().text().map(str::to_owned);
    let files = async { sandbox.files().write("a", "b").await.unwrap() };
    let set = async { sandbox.set_variable("x", 5).await.unwrap() };
    let (one, two, (), _) = tokio::join!(run("1 + 1"), run("2 + 2"), set, files);
    assert_eq!((one.as_deref(), two.as_deref()), (Some("2"), Some("4")));
    // The look at the sandbox, and the agent.
    assert_eq!(bench.service.count("TaskExecStart"), 2);
    assert_eq!(sandbox.get_variable::<i64>("x").await.unwrap(), 5);
    assert_eq!(sandbox.commands().run("cat a").await.unwrap().stdout, "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_starts_in_the_background_and_not_for_commands_alone() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    started(&bench, 2).await;
    let resident = |argv: &Vec<String>| argv.iter().any(|word| word.contains("python"));
    let begun = Instant::now();
    while !bench.service.running()[0].programs().iter().any(resident) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let calls = bench.service.count("TaskExecStart");
    assert_eq!(sandbox.run_code("1").await.unwrap().text(), Some("1"));
    assert_eq!(bench.service.count("TaskExecStart"), calls, "it is the same agent");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_it_from_starting_is_an_error_of_the_verb_that_needs_it() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    // In the background, then for the run.
    bench.service.fault("TaskExecStart", FaultKind::Refused(Code::InvalidArgument), 2);
    started(&bench, 1).await;
    let error = sandbox.run_code("1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    assert_eq!(sandbox.run_code("1").await.unwrap().text(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_in_between_leaves_nothing() {
    let bench = Bench::start();
    for wait in [0, 55, 90, 150] {
        let sandbox = bench.create().await;
        tokio::time::sleep(Duration::from_millis(wait)).await;
        sandbox.terminate().await.unwrap();
        assert!(bench.service.running().is_empty());
        let error = sandbox.commands().run("echo").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
    }
    // The same while a command and a run wait.
    let sandbox = bench.create().await;
    bench.service.fault("TaskExecStart", FaultKind::Slow(Duration::from_secs(2)), 4);
    let run = async { sandbox.run_code("1").await };
    let command = async { sandbox.commands().run("sleep 60").await };
    let end = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        sandbox.terminate().await.unwrap();
    };
    let (run, command, ()) = tokio::join!(run, command, end);
    if let Ok(result) = run {
        assert_eq!(result.failure.unwrap().kind, FailureKind::Terminated);
    }
    if let Ok(output) = command {
        assert_eq!(output.failure.unwrap().kind, FailureKind::Terminated);
    }
    bench.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_before_the_agent_are_listed_reset_and_keep_the_sandbox() {
    let bench = Bench::start();
    let sandbox = bench.builder().idle_timeout(Duration::from_secs(1)).create().await.unwrap();
    let running = sandbox.commands().run("sleep 3; echo done").start().await.unwrap();
    assert_eq!(sandbox.run_code("1").await.unwrap().text(), Some("1"));
    let listed = sandbox.commands().list().await.unwrap();
    assert!(listed.iter().any(|info| info.command.contains("sleep 3")), "{listed:?}");
    let output = running.wait().await;
    assert_eq!(output.stdout, "done\n", "{output:?}");
    let other = bench.create().await;
    let late = other.commands().run("sleep 60").start().await.unwrap();
    other.reset().await.unwrap();
    let late = late.wait().await;
    assert_eq!(late.signal, Some(9), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn helpers_that_hold_the_streams_do_not_hold_the_command() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    let begun = Instant::now();
    let output = sandbox.commands().run("sleep 20 & echo started; exit 4").await.unwrap();
    assert_eq!((output.stdout.as_str(), output.exit_code), ("started\n", 4));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // Nothing is lost where the reader is slow and the command has ended long before.
    let large = sandbox.commands().run("head -c 30000000 /dev/zero").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let output = large.wait().await;
    assert_eq!(
        (output.stdout_totals.bytes_total, output.exit_code),
        (30_000_000, 0),
        "{:?}",
        output.failure
    );
}
