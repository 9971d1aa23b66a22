//! `--notebook FILE`

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use super::{Desk, markdown, streamed, tagged, text};
use crate::signals::interrupt;
use crate::support::{finish, python, run};

#[test]
fn a_run_becomes_a_notebook_of_one_cell() {
    let desk = Desk::with(&[]);
    let code = "print('out')\nimport sys; print('err', file=sys.stderr)\n\
        display({'text/plain': 'a\\nb', 'application/json': {'k': [1]}}, raw=True)\n6*7";
    let call = python(code).arg("--notebook").arg("out.ipynb").directory(desk.path());
    let outcome = call.output();
    outcome.assert(0, "out\na\nb\n42\n");
    assert!(
        outcome.stderr.ends_with("sandboxes: note: notebook written: out.ipynb\n"),
        "{outcome:?}"
    );
    let written = desk.read("out.ipynb");
    assert_eq!((&written["nbformat"], &written["nbformat_minor"]), (&json!(4), &json!(5)));
    assert_eq!(written["metadata"]["language_info"]["name"], "python");
    assert_eq!(written["cells"].as_array().unwrap().len(), 1);
    let cell = &written["cells"][0];
    assert_eq!((text(&cell["source"]).as_str(), &cell["execution_count"]), (code, &json!(1)));
    assert_eq!(
        (streamed(cell, "stdout"), streamed(cell, "stderr")),
        ("out\n".into(), "err\n".into())
    );
    let outputs = cell["outputs"].as_array().unwrap();
    let of_type = |kind: &str| outputs.iter().find(|output| output["output_type"] == kind).unwrap();
    let display = of_type("display_data");
    assert_eq!(
        display["data"],
        json!({"text/plain": ["a\n", "b"], "application/json": {"k": [1]}})
    );
    let value = of_type("execute_result");
    assert_eq!(
        (&value["data"]["text/plain"], &value["execution_count"]),
        (&json!("42"), &json!(1))
    );
}

#[test]
fn a_notebook_keeps_other_cells_and_gets_new_outputs() {
    let saved = json!({
        "cell_type": "code", "source": "1/0 if x else x", "metadata": {"k": "v"}, "outputs":
        [{"output_type": "stream", "name": "stdout", "text": "stale"}], "execution_count": 99,
        "id": "never",
    });
    let desk = Desk::with(&[json!("x = 1"), markdown("# Prose"), saved.clone(), saved]);
    let before = fs::read(desk.file("in.ipynb")).unwrap();
    let outcome =
        run(["in.ipynb", "--notebook", "out.ipynb", "-q"]).directory(desk.path()).output();
    outcome.assert(1, "");
    let written = desk.read("out.ipynb");
    let cells = written["cells"].as_array().unwrap();
    let ids: Vec<_> = cells.iter().map(|cell| cell["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["part-1", "prose", "never", "part-2"]);
    assert_eq!(text(&cells[1]["source"]), "# Prose");
    assert_eq!(
        (&cells[1]["metadata"], &cells[2]["metadata"]),
        (&json!({"own": 1}), &json!({"k": "v"}))
    );
    assert_eq!(cells[0]["execution_count"], 1);
    let error = &cells[2]["outputs"][0];
    assert_eq!(
        (&error["output_type"], &error["ename"]),
        (&json!("error"), &json!("ZeroDivisionError"))
    );
    assert_eq!(error["evalue"], "division by zero");
    let traceback = error["traceback"].as_array().unwrap();
    assert_eq!(traceback[0], "Traceback (most recent call last):");
    assert_eq!(traceback.last().unwrap(), "ZeroDivisionError: division by zero");
    // A cell that did not run has no execution count and no outputs.
    assert_eq!((&cells[3]["outputs"], &cells[3]["execution_count"]), (&json!([]), &json!(null)));
    assert_eq!(fs::read(desk.file("in.ipynb")).unwrap(), before);
}

#[test]
fn updates_and_clearing_are_as_on_the_screen_of_a_front_end() {
    let show =
        |text: &str| format!("h = display({{'text/plain': '{text}'}}, raw=True, display_id='h')");
    let update = |text: &str| show(text).replace("display_id='h'", "display_id='h', update=True");
    let cleared =
        [&show("a"), "clear_output()", &show("b"), "clear_output(wait=True)", &update("c")];
    let desk = Desk::with(&[
        json!([show("one"), show("one")].join("\n")),
        json!(update("two")),
        json!([&cleared[..], &["display('left')"]].concat().join("\n")),
        // Printed text takes another path than displayed objects.
        json!("import time; print('gone', flush=True); time.sleep(0.3)\nclear_output(wait=True)"),
        json!(
            "print('gone', flush=True); time.sleep(0.3); clear_output(wait=True); time.sleep(0.3)\n\
               print('left')"
        ),
    ]);
    let outcome = run(["in.ipynb", "--notebook", "out.ipynb"]).directory(desk.path()).output();
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let cells = desk.read("out.ipynb")["cells"].clone();
    let displayed = |cell: usize| -> Vec<_> {
        let outputs = cells[cell]["outputs"].as_array().unwrap();
        outputs.iter().map(|output| output["data"]["text/plain"].clone()).collect()
    };
    assert_eq!(displayed(0), ["c", "c"]);
    assert_eq!(cells[1]["outputs"], json!([]));
    assert_eq!(displayed(2), ["'left'"]);
    assert_eq!(streamed(&cells[3], "stdout"), "gone\n");
    assert_eq!(streamed(&cells[4], "stdout"), "left\n");
}

#[test]
fn a_run_that_was_ended_is_marked_in_the_notebook() {
    let desk = Desk::with(&[json!("print('before', flush=True)\nimport time; time.sleep(30)")]);
    let call = run(["in.ipynb", "-t", "0.7", "--notebook", "out.ipynb"]).directory(desk.path());
    assert_eq!(call.output().status, 124);
    let cell = desk.read("out.ipynb")["cells"][0].clone();
    assert_eq!(streamed(&cell, "stdout"), "before\n");
    let last = cell["outputs"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["output_type"], &last["ename"]), (&json!("error"), &json!("timeout")));
}

#[test]
fn the_notebook_itself_is_replaced_when_it_is_named() {
    let desk = Desk::with(&[tagged("print('new')", "own")]);
    fs::set_permissions(desk.file("in.ipynb"), fs::Permissions::from_mode(0o640)).unwrap();
    let call = run(["in.ipynb", "--notebook", "./in.ipynb"]).directory(desk.path());
    call.output().assert(0, "new\n");
    let cell = desk.read("in.ipynb")["cells"][0].clone();
    assert_eq!(streamed(&cell, "stdout"), "new\n");
    assert_eq!(cell["metadata"], json!({"tags": ["own"]}));
    let mode = desk.file("in.ipynb").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(desk.names("."), ["in.ipynb"]);
}

#[test]
fn a_notebook_is_written_when_the_output_is_unread() {
    let desk = Desk::with(&[json!("print('x' * 100_000)"), json!("print('y' * 1_000_000)")]);
    let line = "\"$0\" run in.ipynb --notebook out.ipynb | head -c 1 >/dev/null";
    let program = fs::canonicalize(crate::support::binary()).unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", line]).arg(program).current_dir(desk.path());
    assert!(shell.status().unwrap().success());
    assert_eq!(desk.read("out.ipynb")["cells"].as_array().unwrap().len(), 2);
}

#[test]
fn json_has_the_paths_of_results_and_the_failures() {
    let desk = Desk::with(&[json!("display({'image/png': 'AAAA'}, raw=True)\n1")]);
    let arguments = ["in.ipynb", "--json", "--notebook", "out.ipynb", "--save-outputs", "files"];
    let result = run(arguments).directory(desk.path()).output().json();
    assert_eq!(result["notebook"], "out.ipynb");
    assert_eq!(result["saved"], json!(["files/cell-1-output-1.png", "files/cell-1-output-2.txt"]));
    assert!(result.get("not_saved").is_none());

    // Another process creates the file during the run.
    let desk = Desk::with(&[json!("print('ready', flush=True)\nimport time; time.sleep(1)\n5")]);
    let mut child = run(["in.ipynb", "--stream-json", "--save-outputs", "files"])
        .directory(desk.path())
        .spawn();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("ready")).unwrap();
    fs::create_dir(desk.file("files")).unwrap();
    fs::write(desk.file("files/cell-1-output-1.txt"), "theirs").unwrap();
    let result: Value = serde_json::from_str(&lines.last().unwrap()).unwrap();
    assert_eq!(finish(child).status, 125);
    assert_eq!((&result["success"], &result["saved"]), (&json!(true), &json!([])));
    let why = result["not_saved"][0].as_str().unwrap();
    assert!(why.starts_with("files/cell-1-output-1.txt not saved: "), "{why}");
    assert_eq!(fs::read(desk.file("files/cell-1-output-1.txt")).unwrap(), b"theirs");
}

#[test]
fn an_interrupted_notebook_has_the_outputs_so_far() {
    let stubborn = "import time\nprint('ready', flush=True)\nwhile True:\n    try:\n        \
        time.sleep(30)\n    except KeyboardInterrupt:\n        pass";
    let polite = "import time\nprint('ready', flush=True)\ntime.sleep(30)";
    for (code, times, last) in [(polite, 1, "KeyboardInterrupt"), (stubborn, 2, "cancelled")] {
        let desk = Desk::with(&[json!(code), json!("print('never')")]);
        let call = run(["in.ipynb", "--notebook", "out.ipynb"]).directory(desk.path());
        let (outcome, _) = interrupt(call, times);
        outcome.assert(130, "");
        let note = "sandboxes: note: interrupted in code cell 1 of 2; the last cell did not run\n";
        assert!(outcome.stderr.ends_with(note), "{outcome:?}");
        let cell = desk.read("out.ipynb")["cells"][0].clone();
        assert_eq!(streamed(&cell, "stdout"), "ready\n");
        let outputs = cell["outputs"].as_array().unwrap();
        assert_eq!(outputs.last().unwrap()["ename"], last, "{outputs:?}");
    }
}

#[test]
fn a_notebook_is_written_when_something_ran_or_nothing_was_to_run() {
    let desk = Desk::with(&[markdown("# Prose")]);
    run(["in.ipynb", "--notebook", "out.ipynb"]).directory(desk.path()).output().assert(0, "");
    assert_eq!(text(&desk.read("out.ipynb")["cells"][0]["source"]), "# Prose");
    for code in [&["in.ipynb"][..], &["--lang", "python", "1"]] {
        let arguments = ["--gpu", "T4", "--notebook", "none.ipynb", "--save-outputs", "files"];
        let outcome = run(arguments.iter().chain(code)).directory(desk.path()).output();
        assert_eq!(outcome.status, 125, "{outcome:?}");
        assert_eq!(desk.names("."), ["in.ipynb", "out.ipynb"]);
    }
}

#[test]
fn a_known_display_id_updates_the_output_of_an_earlier_cell() {
    let desk = Desk::with(&[
        json!("display('old', display_id='x')\nplace = display(display_id=True)"),
        json!("display('new', display_id='x')\nplace.update('filled')"),
    ]);
    let outcome = run(["in.ipynb", "--notebook", "out.ipynb"]).directory(desk.path()).output();
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let written = desk.read("out.ipynb");
    let shown = |cell: usize| -> Vec<String> {
        let outputs = written["cells"][cell]["outputs"].as_array().unwrap();
        outputs.iter().map(|output| text(&output["data"]["text/plain"])).collect()
    };
    assert_eq!(
        (shown(0), shown(1)),
        (vec!["'new'".into(), "'filled'".into()], vec!["'new'".into()])
    );
}

#[test]
fn the_states_of_widgets_are_saved() {
    let library = "
import sys, types
class Widget:
    @staticmethod
    def get_manager_state(drop_defaults=False):
        return {'version_major': 2, 'version_minor': 0, 'state': {'m1': {'model_name': 'Own'}}}
sys.modules['ipywidgets'] = types.ModuleType('ipywidgets')
sys.modules['ipywidgets'].Widget = Widget
view = {'application/vnd.jupyter.widget-view+json': {'model_id': 'm1'}, 'text/plain': 'view'}";
    let show = "display(view, raw=True)";
    let desk = Desk::with(&[json!(library), json!(show)]);
    let notebook = run(["in.ipynb", "--notebook", "out.ipynb"]).directory(desk.path());
    notebook.output().assert(0, "view\n");
    let code = format!("{library}\n{show}");
    let inline = python(&code).args(["--notebook", "inline.ipynb"]).directory(desk.path());
    inline.output().assert(0, "view\n");
    for name in ["out.ipynb", "inline.ipynb"] {
        let states = &desk.read(name)["metadata"]["widgets"];
        let states = &states["application/vnd.jupyter.widget-state+json"];
        assert_eq!(states["state"]["m1"]["model_name"], "Own", "{name}: {states}");
    }
    // Widget states of an earlier run are dropped when no output shows them.
    let quiet = Desk::with(&[]);
    let mut before = super::notebook(&[json!("1")]);
    before["metadata"]["widgets"] = json!({"old": {}});
    quiet.write("in.ipynb", &before);
    let call = run(["in.ipynb", "--notebook", "in.ipynb"]).directory(quiet.path());
    call.output().assert(0, "1\n");
    assert_eq!(quiet.read("in.ipynb")["metadata"]["widgets"], Value::Null);
}
