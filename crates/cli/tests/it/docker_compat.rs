//! Command lines from shells and container engines: they work, or the error names the equivalent here.

use std::fs;

use crate::copies::Desk;
use crate::support::run;

#[test]
fn times_have_units() {
    run(["-t", "5m", "--lifetime", "1h30m", "--cpu-time", "90s", "echo fine"])
        .output()
        .assert(0, "fine\n");
    run(["-t", "200ms", "sleep 20"]).output().assert(124, "");
    let outcome = run(["-t", "soon", "ls"]).output();
    assert_eq!(outcome.status, 2);
    assert!(
        outcome.stderr.contains("1h30m") && outcome.stderr.contains("--tty"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn errors_about_flags_of_container_engines_name_the_equivalent() {
    for (arguments, message) in [
        (&["-v", "/etc:/data", "ls"][..], "--mount /etc:/data"),
        (&["--rm", "ls"], "the sandbox ends with its run"),
        (&["--detach", "ls"], "sandboxes exec -d"),
    ] {
        let outcome = run(arguments).output();
        assert_eq!((outcome.status, outcome.text()), (2, ""), "{arguments:?}");
        assert!(outcome.stderr.contains(message), "{arguments:?}: {}", outcome.stderr);
    }
    let error = &run(["--json", "-v", "/etc:/data", "ls"]).output().json()["error"];
    assert!(error["hint"].as_str().unwrap().contains("--mount /etc:/data"), "{error}");
}

#[test]
fn a_command_in_the_background_is_found_again() {
    let desk = Desk::new();
    let outcome = desk.run("sandboxes exec -d --json v 'sleep 0.3; echo later; exit 3'");
    assert_eq!(outcome.status, 0, "{}", outcome.transcript());
    let started = outcome.json();
    assert!(started["command_id"].is_string() && started["pid"].is_number(), "{started}");
    assert_eq!(started["id"], started["sandbox_id"]);
    let logs = "for i in 1 2 3 4 5 6 7 8 9; do sleep 0.3; sandboxes logs v | grep -q ' exit 3' && break; done; sandboxes logs v";
    let logs = desk.run(logs);
    assert!(logs.text().contains("stdout later"), "{}", logs.transcript());
    assert!(logs.text().contains("exit 3"), "{}", logs.transcript());
    let outcome = desk.run(
        "sandboxes exec -d v 'sleep 20' >id; grep -c . id; sandboxes exec -d v --lang python 1",
    );
    assert!(outcome.stderr.contains("sandboxes logs --follow v"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("--detach is for commands"), "{}", outcome.stderr);
    outcome.assert(2, "1\n");
}

/// Runs a command line that fails, and asserts that its hint, on standard error and in the JSON result, contains a text.
#[track_caller]
fn advises(desk: &Desk, arguments: &str, message: &str) {
    let outcome = desk.run(&format!("cd p && sandboxes {arguments}"));
    assert_ne!(outcome.status, 0, "{arguments}");
    let hints: Vec<_> =
        outcome.stderr.lines().filter(|line| line.starts_with("sandboxes: hint")).collect();
    assert_eq!(hints.len(), 1, "{arguments}: {}", outcome.stderr);
    assert!(hints[0].contains(message), "{arguments}: {hints:?}");
    let (command, rest) = arguments.split_once(' ').unwrap();
    let object = desk.run(&format!("cd p && sandboxes {command} --json {rest}")).json();
    let hint = object["hint"].as_str().or(object["error"]["hint"].as_str()).unwrap_or_default();
    assert!(hint.contains(message), "{arguments}: {object}");
}

#[test]
fn errors_about_files_of_this_host_name_the_flag_that_copies_them() {
    let desk = Desk::new();
    // A separate directory, because the desk's has the socket of its supervisor.
    let here = desk.0.path().join("p");
    fs::create_dir(&here).unwrap();
    fs::write(here.join("script.py"), "import helper\nprint(open('data.csv').read())\n").unwrap();
    fs::write(here.join("helper.py"), "").unwrap();
    fs::write(here.join("data.csv"), "1,2\n").unwrap();
    fs::write(here.join("main.js"), "console.log(require('./util').x)").unwrap();
    fs::write(here.join("util.js"), "exports.x = 42").unwrap();
    advises(&desk, "run script.py", "sandboxes run --file script.py");
    advises(&desk, "exec v ./script.py a", "sandboxes exec v --file ./script.py");
    advises(&desk, "run python3 script.py", "--with .");
    advises(&desk, "run 'cat data.csv'", "--with .");
    advises(&desk, "run --file script.py", "--with .");
    desk.run("cd p && sandboxes run --with . --file script.py").assert(0, "1,2\n\n");
    desk.run("cd p && sandboxes run --with data.csv cat data.csv").assert(0, "1,2\n");
    desk.run("cd p && sandboxes exec --with . v 'cat data.csv'").assert(0, "1,2\n");
    if desk.run("command -v node").status == 0 {
        advises(&desk, "run --file main.js", "--with .");
        desk.run("cd p && sandboxes run --with . --file main.js").assert(0, "42\n");
    }
}

#[test]
fn scripts_that_cannot_run_are_errors_with_the_reason() {
    let desk = Desk::new();
    // A separate directory, because the desk's has the socket of its supervisor.
    let here = desk.0.path().join("p");
    fs::create_dir(&here).unwrap();
    fs::write(here.join("windows.sh"), "if true; then\r\n  echo x\r\nfi\r\n").unwrap();
    fs::write(here.join("plain"), "#!/usr/bin/env python3\nprint(6 * 7)\n").unwrap();
    fs::write(here.join("foreign"), "#!/opt/nowhere/ruby\nputs 1\n").unwrap();
    fs::write(here.join("carriage"), "#!/bin/sh\r\necho x\r\n").unwrap();
    desk.run("cd p && chmod +x foreign carriage; sandboxes cp foreign carriage v:bin/")
        .assert(0, "");
    desk.run("cd p && sandboxes run --file plain").assert(0, "42\n");
    advises(&desk, "run --file windows.sh", "line ends of Windows");
    advises(&desk, "exec v bin/foreign x", "/opt/nowhere/ruby is not in the sandbox");
    advises(&desk, "exec v bin/carriage", "line ends of Windows");
    advises(&desk, "run -- 'ls -la'", "leave `--` out");
}

#[test]
fn a_full_disk_is_reported_with_its_flag() {
    let desk = Desk::new();
    fs::create_dir(desk.0.path().join("p")).unwrap();
    advises(&desk, "run --disk 16m 'head -c 40m /dev/zero > x'", "--disk SIZE");
    let code = "run --disk 16m --lang python 'open(\"x\", \"wb\").write(bytes(40 << 20))'";
    advises(&desk, code, "--disk SIZE");
}
