//! Shell commands: streams, statuses, limits, and leftovers.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{run, wait};

#[test]
fn the_status_of_the_command_is_ours() {
    for (command, status) in [
        ("true", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -TERM $$", 128 + 15),
        ("kill -KILL $$", 128 + 9),
        ("no-such-program", 127),
        ("/etc/passwd", 126),
        ("false || exit 3", 3),
    ] {
        let outcome = run([command]).output();
        assert_eq!((outcome.status, outcome.text()), (status, ""), "{command}: {outcome:?}");
        assert!(!outcome.stderr.contains("sandboxes:"), "{command}: {outcome:?}");
    }
}

#[test]
fn a_directory_that_code_cannot_make_gets_advice() {
    let outcome = run(["mkdir /app"]).output();
    assert_eq!(outcome.status, 1, "{outcome:?}");
    assert!(outcome.stderr.contains("such as `./app`, or `/tmp/app`"), "{outcome:?}");
    let allowed = run(["mkdir app /tmp/app"]).output();
    assert_eq!((allowed.status, allowed.stderr.as_str()), (0, ""));
}

#[test]
fn flags_of_ours_behind_a_command_get_a_note_when_it_fails() {
    let outcome = run(["ls", "--json"]).output();
    assert_eq!(outcome.status, 2, "{outcome:?}");
    assert!(outcome.stderr.contains("as in `sandboxes run --json ls`"), "{outcome:?}");
    let outcome = run(["ls", "--timeout", "5"]).output();
    assert!(outcome.stderr.contains("as in `sandboxes run --timeout 5 ls`"), "{outcome:?}");
    let other = run(["ls", "--no-such-flag"]).output();
    assert!(!other.stderr.contains("go before the first word"), "{other:?}");
}

#[test]
fn operations_are_reported_with_their_times() {
    let outcome = run(["-v", "--env", "KEY=hunter2", "echo hunter2"]).output();
    assert_eq!(outcome.status, 0, "{outcome:?}");
    for operation in ["create", "start_command"] {
        let named = format!("operation=\"{operation}\"");
        let line = outcome.stderr.lines().find(|line| {
            line.contains(&named) && line.contains("ended") && line.contains("milliseconds=")
        });
        assert!(line.is_some(), "{operation}: {}", outcome.stderr);
    }
}

#[test]
fn words_after_dashes_are_a_command_without_a_shell() {
    run(["--", "printf", "%s|", "a b", "$HOME"]).output().assert(0, "a b|$HOME|");
}

#[test]
fn several_words_are_a_program_and_its_arguments() {
    run(["printf", "%s|", "-t", "a b", "$HOME", "--", "--json"])
        .output()
        .assert(0, "-t|a b|$HOME|--|--json|");
    let listed = run(["ls", "-la", "/proc/self/status"]).output();
    assert!(listed.text().starts_with("-r--r--r--"), "{listed:?}");
    let line = run(["printf 'a b'", "-t", "5", "--json"]).output();
    assert_eq!(line.json()["stdout"], "a b");
}

#[test]
fn bytes_pass_through_as_they_are() {
    let every: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    let outcome = run(["cat"]).stdin(every.clone()).output();
    assert!(outcome.status == 0 && outcome.stdout == every, "{} bytes", outcome.stdout.len());
    let outcome = run(["printf 'a\\377\\000b'; printf 'c\\376' >&2"]).output();
    assert_eq!(outcome.stdout, b"a\xff\0b");
    assert_eq!(outcome.stderr, "c\u{fffd}");
}

#[test]
fn a_file_as_standard_input_is_read_to_its_end() {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &b"line\n".repeat(100_000)).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    let outcome = run(["wc -l"]).stdin_file(file).output();
    assert_eq!(outcome.text().trim(), "100000");
}

#[test]
fn output_arrives_while_the_command_runs() {
    let start = Instant::now();
    let mut child = run(["echo first; sleep 3; echo second"]).spawn();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "first");
    assert!(start.elapsed() < Duration::from_millis(2500), "{:?}", start.elapsed());
    assert_eq!(lines.next().unwrap().unwrap(), "second");
    assert_eq!(wait(&mut child), 0);
}

#[test]
fn a_reader_that_goes_away_ends_the_command() {
    for arguments in [&["yes"][..], &["--lang", "python", "while True: print('y')"]] {
        let mut child = run(arguments).spawn();
        let mut first = [0; 2];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        assert_eq!(&first, b"y\n");
        assert_eq!(wait(&mut child), 141);
        let mut message = String::new();
        child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        assert_eq!(message, "");
    }
}

#[test]
fn the_time_limit_holds_while_output_is_unread() {
    let marker = 864_213 + std::process::id() % 100_000;
    let command = format!("sleep {marker} & yes");
    let mut child = run(["-t", "1", &command]).spawn();
    let unread = child.stdout.take().unwrap();
    assert!(appears(marker), "the command runs");
    assert!(vanishes(marker), "the limit passed, and the command still runs");
    drop(unread);
    assert!([124, 141].contains(&wait(&mut child)));
}

#[test]
fn the_time_limit_ends_everything_the_command_started() {
    let marker = 753_864 + std::process::id() % 100_000;
    let command = format!("echo before; sleep {marker} & sleep {marker}");
    let outcome = run(["-t", "0.5", &command]).output();
    outcome.assert(124, "before\n");
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("sandboxes: error: "), "{}", outcome.stderr);
    assert!(vanishes(marker));
}

#[test]
fn nothing_is_left_behind() {
    let marker = 642_975 + std::process::id() % 100_000;
    for isolation in ["strict", "off"] {
        let command = format!("setsid sleep {marker} >/dev/null 2>&1 & echo started");
        let outcome = run(["-q", "--isolation", isolation, &command]).output();
        outcome.assert(0, "started\n");
        assert!(vanishes(marker), "a process is left with isolation {isolation}");
    }
}

#[test]
fn limits_are_passed_on() {
    let outcome = run(["--disk", "8m", "head -c 16000000 /dev/zero >file"]).output();
    assert_ne!(outcome.status, 0);
    assert!(outcome.stderr.contains("No space left"), "{}", outcome.stderr);
    run(["--processes", "4", "echo a | tr a b"]).output().assert(0, "b\n");
    let outcome = run(["--processes", "8", "for i in 1 2 3 4 5 6 7 8 9; do sleep 5 & done; wait"]);
    let outcome = outcome.output();
    assert_ne!(outcome.status, 0, "{outcome:?}");
    run(["--open-files", "177", "ulimit -n"]).output().assert(0, "177\n");
    let outcome = run(["--output-limit", "5", "printf 1234567890; sleep 60"]).output();
    outcome.assert(137, "12345");
    assert!(outcome.stderr.contains("it put out more than 5 B"), "{}", outcome.stderr);
}

#[test]
fn cpu_time_of_code_is_limited() {
    let code = "import time\nprint('begun', flush=True)\nwhile True: pass";
    let outcome = run(["--cpu-time", "0.3", "--lang", "python", code]).output();
    outcome.assert(124, "begun\n");
    assert!(outcome.stderr.contains("CPU time"), "{}", outcome.stderr);
    let code = "import time\ntime.sleep(0.6)\nprint('slept')";
    run(["--cpu-time", "0.5", "--lang", "python", code]).output().assert(0, "slept\n");
}

#[test]
fn cpu_time_of_commands_is_limited() {
    let busy = "while :; do :; done";
    let outcome = run(["--cpu-time", "0.5", &format!("echo begun; {busy}")]).output();
    outcome.assert(124, "begun\n");
    assert!(outcome.stderr.contains("CPU time of 0.5 seconds"), "{}", outcome.stderr);
    let outcome = run(["--json", "--cpu-time", "0.5", "--", "sh", "-c", busy]).output();
    assert_eq!(outcome.status, 124, "{outcome:?}");
    let message = String::from_utf8(outcome.stdout).unwrap();
    assert!(message.contains("\"cpu_time\""), "{message}");
    // The message of another language.
    let outcome = run(["--cpu-time", "0.5", "--lang", "bash", busy]).output();
    outcome.assert(124, "");
    run(["--cpu-time", "0.5", "sleep 1; echo slept"]).output().assert(0, "slept\n");
    let outcome = run(["--cpu-time", "0", "ls"]).output();
    outcome.assert(2, "");
    assert!(outcome.stderr.contains("cpu_time"), "{}", outcome.stderr);
}

#[test]
fn a_place_that_is_down_gives_way_to_the_fallback() {
    let call = || run(["-p", "local-docker", "--isolation", "strict"]);
    let down = |call: crate::support::Call| call.env("DOCKER_HOST", "unix:///no/such.sock");
    let alone = down(call().args(["echo hi"])).output();
    assert_eq!(alone.status, 125, "{alone:?}");
    down(call().args(["--fallback", "local-eval", "echo hi"])).output().assert(0, "hi\n");
    // What the fallback cannot have is not given up for it.
    let asked = call().args(["--fallback", "local-eval", "--gpu", "T4", "echo hi"]);
    let refused = down(asked).output();
    assert_eq!(refused.status, 125, "{refused:?}");
    assert!(refused.stderr.contains("local-eval:"), "{refused:?}");
    let unknown = run(["--fallback", "nowhere", "true"]).output();
    assert_eq!(unknown.status, 2, "{unknown:?}");
}

/// Returns true when a `sleep` of that many seconds starts within a few seconds.
fn appears(marker: u32) -> bool {
    soon(|| sleeps(marker))
}

fn vanishes(marker: u32) -> bool {
    soon(|| !sleeps(marker))
}

fn soon(condition: impl Fn() -> bool) -> bool {
    (0..500).any(|_| {
        condition() || {
            thread::sleep(Duration::from_millis(10));
            false
        }
    })
}

fn sleeps(marker: u32) -> bool {
    let wanted = format!("sleep\0{marker}\0");
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.into_iter().any(|process| {
        fs::read(process.path().join("cmdline")).is_ok_and(|line| line == wanted.as_bytes())
    })
}
