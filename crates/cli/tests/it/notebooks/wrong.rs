//! Notebooks that cannot be run, and flags that do not apply.

use std::fs;

use serde_json::json;

use super::{Desk, notebook};
use crate::support::run;

#[test]
fn other_files_than_notebooks_of_format_4_are_refused_with_a_hint() {
    let desk = Desk::with(&[]);
    for (content, why, hint) in [
        (&b""[..], "in.ipynb is not a notebook: the file is empty", "a file that Jupyter saves"),
        (b"print(1)", "in.ipynb is not valid JSON: expected value", "JSON as Jupyter saves it"),
        (b"{\"cells\": [", "in.ipynb is not valid JSON: EOF", "is truncated"),
        (b"{\"nbformat\": 3, \"worksheets\": []}", "format 3", "jupyter nbconvert --to notebook"),
        (b"{\"nbformat\": 5, \"cells\": []}", "newer than format 4", "save it in format 4"),
        (b"{}", "it has no `cells`", "a notebook is"),
        (b"\xff\xfe{\0", "is not valid JSON", "a notebook is"),
    ] {
        fs::write(desk.file("in.ipynb"), content).unwrap();
        let outcome = run(["in.ipynb"]).directory(desk.path()).output();
        assert_eq!((outcome.status, outcome.text()), (2, ""), "{outcome:?}");
        assert!(outcome.stderr.contains(why), "{why}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(hint), "{hint}: {}", outcome.stderr);
    }
}

#[test]
fn a_notebook_in_another_language_is_refused() {
    let desk = Desk::with(&[]);
    let mut other = notebook(&[json!("1")]);
    other["metadata"] = json!({"kernelspec": {"name": "ir", "display_name": "R", "language": "R"}});
    desk.write("in.ipynb", &other);
    let outcome = run(["in.ipynb", "--notebook", "out.ipynb"]).directory(desk.path()).output();
    insta::assert_snapshot!(outcome.transcript(), @"
    status 125
    [stdout]
    [stderr]
    sandboxes: error: the notebook is in r, but the sandbox runs python
    sandboxes: hint: run it with a Jupyter kernel of its language: `-p local-jupyter --kernel ir`; `sandboxes environments -p local-jupyter` lists the kernels
    ");
    assert!(!desk.file("out.ipynb").exists(), "a cell ran");
}

#[test]
fn large_and_malformed_notebooks_run_or_fail_with_a_reason() {
    let desk = Desk::with(&[]);
    let call = || run(["in.ipynb"]).directory(desk.path()).output();
    desk.write("in.ipynb", &notebook(&[json!(format!("#{}\nprint(1)", "x".repeat(30 << 20)))]));
    call().assert(0, "1\n");
    desk.write("in.ipynb", &notebook(&[json!("1"), json!("#".repeat(100 << 20))]));
    let outcome = call();
    assert_eq!((outcome.status, outcome.text()), (2, ""));
    assert!(outcome.stderr.contains("code cell 2 of in.ipynb has more than 60 MiB"), "{outcome:?}");
    // Saved outputs are ignored, whatever they contain.
    let deep = format!("{}{}", "[".repeat(1 << 20), "]".repeat(1 << 20));
    let text = format!(
        "\u{feff}{{\"cells\": [{{\"cell_type\": \"code\", \"source\": \"6*7\", \"outputs\": {deep}}}]}}"
    );
    fs::write(desk.file("in.ipynb"), text).unwrap();
    call().assert(0, "42\n");
    let text = format!("{{\"metadata\": {deep}, \"cells\": []}}");
    fs::write(desk.file("in.ipynb"), text).unwrap();
    let outcome = call();
    assert_eq!(outcome.status, 2);
    assert!(outcome.stderr.contains("in.ipynb is not"), "{outcome:?}");
}

#[test]
fn flags_that_do_not_apply_are_refused_before_any_cell_runs() {
    let desk = Desk::with(&[json!("print('ran')")]);
    fs::write(desk.file("there.ipynb"), "old").unwrap();
    fs::create_dir(desk.file("results")).unwrap();
    fs::write(desk.file("results/cell-1-output-1.png"), "old").unwrap();
    for (arguments, message) in [
        (&["in.ipynb", "a"][..], "a notebook takes no arguments"),
        (&["--file", "in.ipynb", "a"], "a notebook takes no arguments"),
        (&["--file", "in.ipynb", "--lang", "python"], "--lang is not for notebooks"),
        (&["--file", "in.ipynb", "--deps"], "--deps is not for notebooks"),
        (&["none.ipynb"], "none.ipynb cannot be read"),
        (&["in.ipynb", "--notebook", "there.ipynb"], "there.ipynb exists already"),
        (&["in.ipynb", "--notebook", "in.ipynb/out.ipynb"], "in.ipynb is not a directory"),
        (&["in.ipynb", "-P", "x"], "write NAME=VALUE"),
        (&["in.ipynb", "-P", "a b=1"], "is not the name of a variable"),
        (&["--lang", "python", "-P", "x=1", "1"], "-P is for notebooks"),
        (&["in.ipynb", "--notebook", "results"], "results is a directory"),
        (&["in.ipynb", "--notebook", "-"], "standard output is for the program"),
        (&["in.ipynb", "--save-outputs", "results"], "results of an earlier run"),
        (&["in.ipynb", "--save-outputs", "there.ipynb"], "is not a directory"),
        (&["in.ipynb", "--overwrite"], "--overwrite has no effect without"),
        (&["--notebook", "x.ipynb", "ls"], "--notebook is for code of the interpreter"),
        (&["--save-outputs", "x", "ls"], "--save-outputs is for code of the interpreter"),
        (&["--allow-errors", "--lang", "python", "1"], "--allow-errors is for notebooks"),
    ] {
        let outcome = run(arguments).directory(desk.path()).output();
        assert_eq!((outcome.status, outcome.text()), (2, ""), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(message), "{arguments:?}: {}", outcome.stderr);
    }
    assert_eq!(fs::read(desk.file("there.ipynb")).unwrap(), b"old");
    let outcome = run(["in.ipynb", "a", "--json"]).directory(desk.path()).output();
    assert_eq!(outcome.status, 2);
}
