//! `--json` and `--stream-json`.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::detached::{World, kill};
use crate::support::{python, run, sandboxes, wait};

fn keys(value: &Value) -> String {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys.join(" ")
}

#[test]
fn a_result_has_every_field() {
    let outcome = python("print('out'); 6*7").arg("--json").output();
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""));
    let result = outcome.json();
    insta::assert_snapshot!(keys(&result), @"background_threads code_error completed_at context_id duration execution_count execution_error execution_ok exit_code failure hint id interrupted language logs network_denied restarted results results_dropped run_id sandbox_id started_at state stderr stderr_totals stdout stdout_totals success text usage variant");
    assert_eq!(result["success"], true);
    assert_eq!(result["text"], "42");
    assert_eq!(result["stdout"], "out");
    assert_eq!(result["stderr"], "");
    assert_eq!(result["exit_code"], Value::Null);
    assert_eq!(result["language"], "python");
    assert_eq!(result["variant"], "local-eval");
    assert_eq!(result["context_id"], "default");
    assert_eq!(result["stdout_totals"]["bytes_total"], 4);
    assert!(result["sandbox_id"].as_str().unwrap().starts_with("local-eval/"));
    assert_eq!(result["id"], result["sandbox_id"]);
    assert!(result["duration"].as_f64().unwrap() > 0.0);
}

#[test]
fn commands_and_programs_have_the_same_shape() {
    let cell = keys(&python("1").arg("--json").output().json());
    let outcome = run(["--json", "echo out; echo err >&2; exit 3"]).output();
    assert_eq!((outcome.status, outcome.stderr.as_str()), (3, ""));
    let result = outcome.json();
    assert_eq!(keys(&result), cell);
    assert_eq!((&result["stdout"], &result["stderr"]), (&"out".into(), &"err".into()));
    assert_eq!((&result["exit_code"], &result["success"]), (&3.into(), &false.into()));
    assert_eq!((&result["execution_ok"], &result["failure"]), (&true.into(), &Value::Null));
    assert_eq!((&result["language"], &result["text"]), (&"sh".into(), &Value::Null));
    let program = run(["--json", "--lang", "bash", "echo $BASH"]).output().json();
    assert_eq!(keys(&program), cell);
    assert_eq!(program["language"], "bash");
}

#[test]
fn failures_are_in_the_result() {
    let outcome = python("print('before'); 1/0").arg("--json").output();
    assert_eq!((outcome.status, outcome.stderr.as_str()), (1, ""));
    let result = outcome.json();
    assert_eq!(result["stdout"], "before");
    assert_eq!(result["code_error"]["name"], "ZeroDivisionError");
    assert_eq!((&result["execution_ok"], &result["success"]), (&true.into(), &false.into()));

    for code in [&["sleep 30"][..], &["--lang", "python", "import time; time.sleep(30)"]] {
        let outcome = run(code).arg("--json").arg("-t").arg("0.3").output();
        assert_eq!((outcome.status, outcome.stderr.as_str()), (124, ""), "{code:?}");
        let result = outcome.json();
        assert_eq!(result["failure"]["kind"], "timeout", "{code:?}");
        assert_eq!(result["execution_ok"], false, "{code:?}");
    }
}

#[test]
fn a_broken_program_is_not_a_broken_object() {
    let result = run(["--json", "printf 'a\\377\"\\\\\\n\\033[0m'"]).output().json();
    assert_eq!(result["stdout"], "a\u{fffd}\"\\\n\u{1b}[0m");
}

#[test]
fn events_are_lines_and_the_result_is_last() {
    let code = "import sys\nprint('é')\nprint('err', file=sys.stderr)\n5";
    let outcome = python(code).arg("--stream-json").output();
    assert_eq!(outcome.status, 0);
    let lines: Vec<Value> =
        outcome.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let types: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(types.first(), Some(&"started"), "{types:?}");
    assert!(types.ends_with(&["finished", "result"]), "{types:?}");
    let text = |stream: &str| -> String {
        let of_stream = lines.iter().filter(|line| line["stream"] == stream);
        of_stream.map(|line| line["text"].as_str().unwrap()).collect()
    };
    assert_eq!((text("stdout").as_str(), text("stderr").as_str()), ("é\n", "err\n"));
    let display = lines.iter().find(|line| line["type"] == "display").unwrap();
    assert_eq!(display["item"]["data"]["text/plain"], "5");
    let result = lines.last().unwrap();
    assert_eq!((&result["success"], &result["text"]), (&true.into(), &"5".into()));
    assert_eq!(lines[0]["run_id"], result["run_id"]);
}

#[test]
fn an_object_that_cannot_be_printed_is_reported() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = std::process::Command::new(crate::support::binary());
    let output = command.args(["run", "--json", "ls"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("the output cannot be written"), "{message}");
}

#[test]
fn characters_split_between_writes_are_whole_in_events() {
    let command = "printf '\\303'; sleep 0.3; printf '\\251'; printf '\\303'";
    let outcome = run(["--stream-json", command]).output();
    let text: String = outcome
        .text()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["type"] == "output")
        .map(|line| line["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, "é\u{fffd}");
}

#[test]
fn events_are_printed_when_they_happen() {
    let start = Instant::now();
    let mut child = run(["--stream-json", "echo first; sleep 3"]).spawn();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.map(Result::unwrap).find(|line| line.contains("first")).unwrap();
    assert!(start.elapsed() < Duration::from_millis(2500), "{:?}: {first}", start.elapsed());
    child.kill().unwrap();
    wait(&mut child);
}

#[test]
fn an_argument_that_is_missing_is_named() {
    for (arguments, named) in [
        (&["exec", "--json"][..], "<SANDBOX>"),
        (&["cp", "--json"], "<FROM>"),
        (&["expose", "--json"], "<PORT>"),
    ] {
        let error = &sandboxes(arguments).output().json()["error"];
        assert!(error["message"].as_str().unwrap().contains(named), "{error}");
    }
}

#[test]
fn stream_and_result_agree_on_an_interrupt() {
    for program in [&["exec sleep 30"][..], &["--lang", "python", "import time; time.sleep(30)"]] {
        let mut child = run(["--stream-json"]).args(program.iter().copied()).spawn();
        std::thread::sleep(Duration::from_millis(1500));
        kill(i32::try_from(child.id()).unwrap(), "INT");
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let lines: Vec<Value> =
            lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        let message: Vec<_> = lines
            .iter()
            .filter(|line| line["type"] == "finished" || line["type"] == "result")
            .map(|line| line["interrupted"].clone())
            .collect();
        assert_eq!(message, [true, true], "{program:?}: {lines:?}");
        assert_eq!(wait(&mut child), 130);
    }
}

#[test]
fn runs_that_did_not_start_are_errors_for_code_and_commands() {
    let world = World::new();
    let id = world.create(&[]);
    let errors = [&["ls"][..], &["--lang", "python", "1"]].map(|what| {
        let outcome = world.run(&[&["exec", "--json", "-w", "/nope", &id], what].concat());
        assert_eq!(outcome.status, 125, "{}", outcome.transcript());
        outcome.json()
    });
    assert_eq!(errors[0], errors[1]);
    assert_eq!(errors[0]["error"]["kind"], "not_found");
}

#[test]
fn a_run_whose_sandbox_ends_is_reported_with_its_time_and_state() {
    let world = World::new();
    let program = [&["sleep 30"][..], &["--lang", "python", "import time; time.sleep(30)"]];
    for (end, kind) in [("rm", "terminated"), ("kill", "connection_lost")] {
        let id = world.create(&[]);
        let running: Vec<_> = program
            .iter()
            .map(|what| world.call(&[&["exec", "--json", &id], *what].concat()).spawn())
            .collect();
        std::thread::sleep(Duration::from_millis(1000));
        match end {
            "rm" => drop(world.run(&["rm", &id])),
            _ => kill(world.supervisor(), "KILL"),
        }
        for child in running {
            let result = crate::support::finish(child).json();
            assert_eq!(result["failure"]["kind"], kind, "{result}");
            assert_eq!(result["state"], "lost", "{result}");
            let duration = result["duration"].as_f64().unwrap();
            assert!((0.5..30.0).contains(&duration), "{result}");
        }
    }
}
