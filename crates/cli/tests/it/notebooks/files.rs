//! `--save-outputs DIR`

use std::fs;

use serde_json::json;

use super::Desk;
use crate::support::{python, run};

#[test]
fn every_displayed_object_becomes_a_file_and_is_listed() {
    let desk = Desk::with(&[]);
    let code = "print('no file')\n\
        display({'image/png': 'aGVsbG8=', 'text/plain': '<Figure>'}, raw=True)\n\
        display({'text/html': '<b>é</b>', 'text/markdown': '# a', 'text/latex': '$x$'}, raw=True)\n\
        display({'image/svg+xml': '<svg/>', 'application/json': {'a': 1}}, raw=True)\n6*7";
    let call = python(code).arg("--save-outputs").arg("new/out").directory(desk.path());
    let outcome = call.output();
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let names = [
        "output-1.png",
        "output-2.html",
        "output-2.md",
        "output-2.tex",
        "output-3.json",
        "output-3.svg",
        "output-4.txt",
    ];
    assert_eq!(desk.names("new/out"), names);
    for name in names {
        let listed = format!("sandboxes: note: saved: new/out/{name}\n");
        assert!(outcome.stderr.contains(&listed), "{outcome:?}");
    }
    assert_eq!(fs::read(desk.file("new/out/output-1.png")).unwrap(), b"hello");
    assert_eq!(fs::read(desk.file("new/out/output-2.html")).unwrap(), "<b>é</b>".as_bytes());
    assert_eq!(fs::read(desk.file("new/out/output-4.txt")).unwrap(), b"42");
}

#[test]
fn a_second_run_overwrites_only_with_the_flag() {
    let desk = Desk::with(&[json!("x = 1"), json!("import os; os.environ['V']")]);
    let value = |value: &str, more: &[&str]| {
        let arguments = ["-e", value, "-q", "--save-outputs", "out"];
        let arguments = arguments.iter().chain(more).chain(&["in.ipynb"]);
        run(arguments).directory(desk.path()).output().status
    };
    let saved = || fs::read_to_string(desk.file("out/cell-2-output-1.txt")).unwrap();
    assert_eq!((value("V=1", &[]), saved().as_str()), (0, "'1'"));
    assert_eq!((value("V=2", &[]), saved().as_str()), (2, "'1'"));
    assert_eq!((value("V=3", &["--overwrite"]), saved().as_str()), (0, "'3'"));
    assert_eq!(desk.names("out"), ["cell-2-output-1.txt"]);
}

#[test]
fn types_from_code_do_not_choose_the_paths_of_files() {
    let desk = Desk::with(&[]);
    let code =
        "display({'../../../escape': 'x', '/tmp/escape': 'y', 'image/../../x': 'AAAA'}, raw=True)";
    let call = python(code).arg("--save-outputs").arg("out").directory(desk.path());
    let outcome = call.output();
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert_eq!(desk.names("."), ["in.ipynb", "out"]);
    assert!(desk.names("out").iter().all(|name| name.starts_with("output-1")), "{outcome:?}");
}

#[test]
fn without_displayed_objects_there_is_no_directory() {
    let desk = Desk::with(&[]);
    let call = python("print(1)").arg("--save-outputs").arg("out").directory(desk.path());
    let outcome = call.output();
    outcome.assert(0, "1\n");
    assert_eq!(outcome.stderr, "sandboxes: note: nothing was displayed, so no file was saved\n");
    assert!(!desk.file("out").exists());
}
