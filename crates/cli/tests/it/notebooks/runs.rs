//! `sandboxes run notebook.ipynb`

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Desk, markdown, tagged};
use crate::support::{run, shell};

#[test]
fn cells_run_in_order_in_one_interpreter_and_prose_is_passed_over() {
    let desk = Desk::with(&[
        json!("x = 40\nprint('first')"),
        markdown("print('no code')"),
        json!({"cell_type": "raw", "source": "1/0", "metadata": {}}),
        json!(""),
        json!({"cell_type": "code", "source": ["def f():\n", "    return x + 2\n", "f()"]}),
        tagged("1/0", "skip-execution"),
    ]);
    for arguments in [&["in.ipynb"][..], &["--file", "in.ipynb"], &["./in.ipynb", "-t", "30"]] {
        let outcome = run(arguments).directory(desk.path()).output();
        outcome.assert(0, "first\n42\n");
        assert!(!outcome.stderr.contains("sandboxes:"), "{}", outcome.stderr);
    }
}

#[test]
fn a_cell_that_fails_ends_the_run_and_is_named() {
    let desk = Desk::with(&[
        json!("print('before')"),
        json!("1/0"),
        markdown("#"),
        json!("print('never')"),
        json!("print('never')"),
    ]);
    let outcome = run(["in.ipynb"]).directory(desk.path()).output();
    outcome.assert(1, "before\n");
    assert!(outcome.stderr.starts_with("Traceback (most recent call last):\n"), "{outcome:?}");
    let ours: Vec<_> =
        outcome.stderr.lines().filter(|line| line.starts_with("sandboxes: ")).collect();
    assert_eq!(
        ours,
        [
            "sandboxes: error: code cell 2 of 4 raised ZeroDivisionError: division by zero; \
             the 2 cells after it did not run",
            "sandboxes: hint: --allow-errors continues after an exception",
        ]
    );
}

#[test]
fn cells_that_may_raise_do_not_end_it() {
    let desk = Desk::with(&[tagged("1/0", "raises-exception"), json!("print('after')")]);
    let outcome = run(["in.ipynb"]).directory(desk.path()).output();
    outcome.assert(0, "after\n");
    assert!(outcome.stderr.contains("ZeroDivisionError"), "{outcome:?}");

    let desk = Desk::with(&[json!("1/0"), json!("import sys; sys.exit(3)"), json!("'after'")]);
    let outcome = run(["in.ipynb", "--allow-errors"]).directory(desk.path()).output();
    outcome.assert(0, "'after'\n");
}

#[test]
fn a_cell_that_exits_is_the_last_one_and_its_status_is_ours() {
    for (status, message) in [
        (3, "sandboxes: error: code cell 1 of 2 exited with status 3; the last cell did not run\n"),
        (0, "sandboxes: note: code cell 1 of 2 exited with status 0; the last cell did not run\n"),
    ] {
        let desk = Desk::with(&[
            json!(format!("import sys; sys.exit({status})")),
            json!("print('never')"),
        ]);
        let outcome = run(["in.ipynb"]).directory(desk.path()).output();
        outcome.assert(status, "");
        assert_eq!(outcome.stderr, message);
    }
    // A run with cells that did not run is not a success, even with status 0 of the code.
    for (code, status) in [("import os; os._exit(9)", 9), ("import os; os._exit(0)", 125)] {
        let desk = Desk::with(&[json!(code), json!("print('never')")]);
        let outcome = run(["in.ipynb", "--allow-errors"]).directory(desk.path()).output();
        outcome.assert(status, "");
        assert!(outcome.stderr.contains("code cell 1 of 2: "), "{outcome:?}");
    }
}

#[test]
fn the_time_limit_is_for_each_cell() {
    let pause = json!("import time; time.sleep(0.8)");
    let cells = [pause.clone(), pause, json!("print('here'); time.sleep(30)"), json!("1")];
    let desk = Desk::with(&cells);
    let start = Instant::now();
    let outcome = run(["in.ipynb", "-t", "1.5"]).directory(desk.path()).output();
    outcome.assert(124, "here\n");
    assert!(outcome.stderr.contains("sandboxes: error: code cell 3 of 4: "), "{outcome:?}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn json_has_the_result_of_every_cell_that_ran() {
    let desk = Desk::with(&[json!("print('out'); 5"), markdown("#"), json!("1/0"), json!("6")]);
    let outcome = run(["in.ipynb", "--json"]).directory(desk.path()).output();
    assert_eq!((outcome.status, outcome.stderr.as_str()), (1, ""));
    let result = outcome.json();
    assert_eq!(result["success"], false);
    assert_eq!((&result["stopped_at"], &result["cells_total"]), (&json!(2), &json!(3)));
    assert_eq!(result["code_error"]["name"], "ZeroDivisionError");
    assert_eq!((&result["language"], &result["variant"]), (&json!("python"), &json!("local-eval")));
    let cells = result["cells"].as_array().unwrap();
    let cell = |n: usize| (&cells[n]["cell"], &cells[n]["success"], &cells[n]["stdout"]);
    assert_eq!(cells.len(), 2);
    assert_eq!(cell(0), (&json!(1), &json!(true), &json!("out")));
    assert_eq!(cell(1), (&json!(2), &json!(false), &json!("")));
    assert_eq!(cells[0]["text"], "5");

    let desk = Desk::with(&[]);
    let result = run(["in.ipynb", "--json"]).directory(desk.path()).output().json();
    assert_eq!((&result["success"], &result["cells"]), (&json!(true), &json!([])));
}

#[test]
fn events_have_the_index_of_their_cell() {
    let desk = Desk::with(&[json!("print('a')"), json!("print('b')")]);
    let outcome = run(["in.ipynb", "--stream-json"]).directory(desk.path()).output();
    let lines: Vec<Value> =
        outcome.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (result, events) = lines.split_last().unwrap();
    assert_eq!((&result["type"], &result["success"]), (&json!("result"), &json!(true)));
    let printed = |text: &str| {
        events.iter().find(|event| event["text"] == text).map(|event| event["cell"].clone())
    };
    assert_eq!((printed("a\n"), printed("b\n")), (Some(json!(1)), Some(json!(2))));
    assert!(events.iter().all(|event| event["cell"].is_u64()), "{events:?}");
}

#[test]
fn a_sandbox_that_stays_runs_notebooks_too() {
    let desk = Desk::with(&[json!("x = x + 1"), json!("print(x)")]);
    let line = "sandboxes create --name lab >/dev/null
        sandboxes exec lab --lang python 'x = 41' && sandboxes exec lab in.ipynb
        sandboxes exec lab in.ipynb --notebook out.ipynb -q
        sandboxes rm lab >/dev/null";
    std::fs::create_dir(desk.file("bin")).unwrap();
    let program = std::fs::canonicalize(crate::support::binary()).unwrap();
    std::os::unix::fs::symlink(program, desk.file("bin/sandboxes")).unwrap();
    shell(line, desk.path()).assert(0, "42\n43\n");
    assert_eq!(super::streamed(&desk.read("out.ipynb")["cells"][1], "stdout"), "43\n");
}

#[test]
fn a_shell_line_that_ends_like_a_notebook_is_still_one() {
    let desk = Desk::with(&[json!("1")]);
    let call = |arguments: &[&str]| run(arguments).directory(desk.path()).output();
    call(&["echo a.ipynb"]).assert(0, "a.ipynb\n");
    call(&["echo", "a.ipynb"]).assert(0, "a.ipynb\n");
    assert_eq!(call(&["--", "in.ipynb"]).status, 127);
    std::fs::rename(desk.file("in.ipynb"), desk.file("in it.ipynb")).unwrap();
    call(&["in it.ipynb"]).assert(0, "1\n");
}

#[test]
fn parameters_take_the_place_of_defaults() {
    let shown = "print(repr(name), count + 1, ratio, flag, nothing)";
    let desk = Desk::with(&[
        json!("import sys"),
        tagged("name, count, ratio, flag, nothing = 'default', 1, 0.5, False, 0", "parameters"),
        json!(shown),
    ]);
    run(["in.ipynb"]).directory(desk.path()).output().assert(0, "'default' 2 0.5 False 0\n");
    let given = ["-P", "name=say \"x\"", "-P", "count=41", "-P", "ratio=2.5", "-P", "flag=True"];
    let outcome = run(["in.ipynb", "--notebook", "made/of/out.ipynb", "-P", "nothing=None"])
        .args(given)
        .directory(desk.path())
        .output();
    outcome.assert(0, "'say \"x\"' 42 2.5 True None\n");
    // The written notebook runs again, with other values in the same place.
    let written = desk.read("made/of/out.ipynb");
    assert_eq!(written["cells"][2]["metadata"]["tags"], json!(["injected-parameters"]));
    let again = run(["made/of/out.ipynb", "-P", "count=1"]).directory(desk.path()).output();
    again.assert(0, "'default' 2 0.5 False 0\n");
}
