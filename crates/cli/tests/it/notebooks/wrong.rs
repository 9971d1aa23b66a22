//! Notebooks that cannot be run, and flags that do not fit.

use std::fs;

use serde_json::json;

use super::{Desk, notebook};
use crate::support::run;

#[test]
fn what_is_no_notebook_of_format_4_is_refused_with_a_way_out() {
    let desk = Desk::with(&[]);
    for (content, why, hint) in [
        (&b""[..], "in.ipynb is not a notebook: the file is empty", "the file that Jupyter saves"),
        (b"print(1)", "in.ipynb is not valid JSON: expected value", "the JSON that Jupyter saves"),
        (b"{\"cells\": [", "in.ipynb is not valid JSON: EOF", "ends too early"),
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
    sandboxes: error: the notebook is in r, and the sandbox runs python
    sandboxes: hint: a Jupyter kernel of its language runs it: `-p local-jupyter --kernel ir`; `sandboxes environments -p local-jupyter` lists them
    ");
    assert!(!desk.file("out.ipynb").exists(), "nothing ran");
}

#[test]
fn large_and_strange_notebooks_run_or_say_why_not() {
    let desk = Desk::with(&[]);
    let call = || run(["in.ipynb"]).directory(desk.path()).output();
    desk.write("in.ipynb", &notebook(&[json!(format!("#{}\nprint(1)", "x".repeat(30 << 20)))]));
    call().assert(0, "1\n");
    desk.write("in.ipynb", &notebook(&[json!("1"), json!("#".repeat(100 << 20))]));
    let outcome = call();
    assert_eq!((outcome.status, outcome.text()), (2, ""));
    assert!(outcome.stderr.contains("code cell 2 of in.ipynb has more than 60 MiB"), "{outcome:?}");
    // Outputs that it was saved with are of no interest, however they look.
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
fn flags_that_do_not_fit_are_refused_before_anything_runs() {
    let desk = Desk::with(&[json!("print('ran')")]);
    fs::write(desk.file("there.ipynb"), "old").unwrap();
    fs::create_dir(desk.file("results")).unwrap();
    fs::write(desk.file("results/cell-1-output-1.png"), "old").unwrap();
    for (arguments, said) in [
        (&["in.ipynb", "a"][..], "a notebook takes no arguments"),
        (&["--file", "in.ipynb", "a"], "a notebook takes no arguments"),
        (&["--file", "in.ipynb", "--lang", "python"], "--lang is not for notebooks"),
        (&["--file", "in.ipynb", "--deps"], "--deps is not for notebooks"),
        (&["none.ipynb"], "none.ipynb cannot be read"),
        (&["in.ipynb", "--notebook", "there.ipynb"], "there.ipynb is there already"),
        (&["in.ipynb", "--notebook", "in.ipynb/out.ipynb"], "in.ipynb is no directory"),
        (&["in.ipynb", "-P", "x"], "it is written NAME=VALUE"),
        (&["in.ipynb", "-P", "a b=1"], "no name of a variable"),
        (&["--lang", "python", "-P", "x=1", "1"], "-P is for notebooks"),
        (&["in.ipynb", "--notebook", "results"], "results is a directory"),
        (&["in.ipynb", "--notebook", "-"], "standard output is the program's"),
        (&["in.ipynb", "--save-outputs", "results"], "results of an earlier run"),
        (&["in.ipynb", "--save-outputs", "there.ipynb"], "is no directory"),
        (&["in.ipynb", "--overwrite"], "--overwrite says nothing without"),
        (&["--notebook", "x.ipynb", "ls"], "--notebook is for code of the interpreter"),
        (&["--save-outputs", "x", "ls"], "--save-outputs is for code of the interpreter"),
        (&["--allow-errors", "--lang", "python", "1"], "--allow-errors is for notebooks"),
    ] {
        let outcome = run(arguments).directory(desk.path()).output();
        assert_eq!((outcome.status, outcome.text()), (2, ""), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(said), "{arguments:?}: {}", outcome.stderr);
    }
    assert_eq!(fs::read(desk.file("there.ipynb")).unwrap(), b"old");
    let outcome = run(["in.ipynb", "a", "--json"]).directory(desk.path()).output();
    assert_eq!(outcome.status, 2);
}
