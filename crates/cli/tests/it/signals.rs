//! Ctrl-C: the first goes to the program, the second kills.

use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Outcome, binary, finish, python, run, shell};

/// Starts a call and interrupts it when it has printed a line.
pub(crate) fn interrupt(call: crate::support::Call, times: usize) -> (Outcome, Duration) {
    let mut child = call.spawn();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let start = Instant::now();
    for nth in 0..times {
        if nth > 0 {
            std::thread::sleep(Duration::from_millis(300));
        }
        send(&child);
    }
    let rest = std::thread::spawn(move || {
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut stdout, &mut rest).unwrap();
        rest
    });
    let mut outcome = finish(child);
    outcome.stdout = rest.join().unwrap();
    (outcome, start.elapsed())
}

fn send(child: &Child) {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

#[test]
fn the_first_one_interrupts_code() {
    let code = "import time\nprint('ready', flush=True)\ntime.sleep(30)";
    let (outcome, time) = interrupt(python(code), 1);
    outcome.assert(130, "");
    assert!(outcome.stderr.contains("KeyboardInterrupt"), "{}", outcome.stderr);
    assert!(time < Duration::from_secs(5), "{time:?}");
}

#[test]
fn interrupted_code_may_clean_up() {
    let code = "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(30)\nexcept KeyboardInterrupt:\n    print('cleaned up')";
    // Several times, because the interrupt may arrive at any point around the print.
    for _ in 0..10 {
        let (outcome, time) = interrupt(python(code), 1);
        outcome.assert(130, "cleaned up\n");
        assert!(time < Duration::from_secs(5), "{time:?}");
    }
}

#[test]
fn the_first_one_interrupts_a_command() {
    let command = "trap 'echo trapped; exit 3' INT; echo ready; sleep 30 >/dev/null 2>&1 & wait";
    let (outcome, time) = interrupt(run([command]), 1);
    outcome.assert(130, "trapped\n");
    assert!(time < Duration::from_secs(5), "{time:?}");
}

#[test]
fn the_second_one_kills() {
    let code = "import time\nprint('ready', flush=True)\nwhile True:\n    try:\n        time.sleep(30)\n    except KeyboardInterrupt:\n        pass";
    let command = "trap '' INT; echo ready; while :; do sleep 1; done";
    for call in [python(code), run([command])] {
        let (outcome, time) = interrupt(call, 2);
        assert_eq!(outcome.status, 130, "{outcome:?}");
        assert!(time < Duration::from_secs(5), "{time:?}");
    }
}

#[test]
fn json_is_printed_when_interrupted() {
    let child = run(["--json", "sleep 30"]).spawn();
    std::thread::sleep(Duration::from_millis(1500));
    send(&child);
    let outcome = finish(child);
    assert_eq!(outcome.status, 130);
    assert_eq!(outcome.json()["interrupted"], true);
}

#[test]
fn programs_started_with_nohup_outlive_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let line = format!(
        "trap '' HUP; {} run 'sleep 3; echo end' & sleep 1; kill -HUP $!; wait $!",
        binary().display()
    );
    shell(&line, directory.path()).assert(0, "end\n");
}
