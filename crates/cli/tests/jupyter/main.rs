//! Jupyter's own tools on notebooks that `sandboxes` writes, and notebooks in kernels.
//!
//! `SANDBOX_TEST_JUPYTER_PYTHON` names an interpreter that has ipykernel, bash_kernel, nbformat, matplotlib and pandas.
//! Without it these tests are reported as ignored, and fail where `CI` is set.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod desk;

use libtest_mimic::{Arguments, Trial};
use serde_json::json;

use self::desk::{Desk, VARIABLE, python};

const CASES: [(&str, fn()); 5] = [
    ("written_notebooks_are_valid", written_notebooks_are_valid),
    (
        "written_notebooks_run_again_with_the_same_outputs",
        written_notebooks_run_again_with_the_same_outputs,
    ),
    ("written_notebooks_run_in_jupyter", written_notebooks_run_in_jupyter),
    ("kernels_run_notebooks_and_figures_are_files", kernels_run_notebooks_and_figures_are_files),
    ("kernels_run_notebooks_of_their_language", kernels_run_notebooks_of_their_language),
];

fn main() {
    let arguments = Arguments::from_args();
    let missing = python().is_none();
    let needed = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    let trials = CASES.into_iter().map(|(name, case)| {
        let run = move || {
            if python().is_none() {
                return Err(format!("{VARIABLE} is not set").into());
            }
            case();
            Ok(())
        };
        Trial::test(format!("notebooks::{name}"), run).with_ignored_flag(missing && !needed)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

fn written_notebooks_are_valid() {
    let desk = Desk::new();
    let everything = "import sys\nprint('out\\n\\nmore', end='')\nprint('é\\x1b[0m', file=sys.stderr)\n\
        display({'text/plain': 5, 'text/html': ['a'], 'application/json': None,\n\
        'application/vnd.x+json': [1, {'a': 1.5}], 'image/png': 'AAAA', 'a b': 'c', '': 'd'},\n\
        raw=True, metadata={'image/png': {'width': 5}})\n'value'";
    let code = |source: &str| json!({"cell_type": "code", "source": source, "id": "twice"});
    let cells = json!([
        {"cell_type": "markdown", "source": ["# Prose\n", "more"], "metadata": {"own": 1}},
        {"cell_type": "markdown", "source": "", "id": "not valid!", "outputs": [], "x": 1},
        {"cell_type": "raw"},
        {"cell_type": "code", "attachments": {}},
        code(everything),
        {"cell_type": "code", "source": "raise ValueError('a\\nb')",
         "metadata": {"tags": ["raises-exception"]}},
        code("import sys; sys.exit('why')"),
        code("never"),
    ]);
    desk.write("in.ipynb", &json!({"nbformat": 4, "nbformat_minor": 2, "cells": cells, "more": 1}));
    assert_eq!(desk.run(&["in.ipynb", "--notebook", "all.ipynb"]).status, 1);
    desk.write(
        "in.ipynb",
        &json!({"cells": [{"cell_type": "code", "source": "while True: pass"}]}),
    );
    assert_eq!(desk.run(&["in.ipynb", "-t", "0.5", "--notebook", "late.ipynb"]).status, 124);
    let cell = ["--lang", "python", "--notebook", "cell.ipynb", "1/0"];
    assert_eq!(desk.run(&cell).status, 1);
    std::fs::write(desk.file("x.py"), "import sys\nprint(sys.argv)").unwrap();
    let script = desk.run(&["--file", "x.py", "--notebook", "script.ipynb", "a"]);
    script.assert("['x.py', 'a']\n");
    desk.write("in.ipynb", &json!({"cells": [{"cell_type": "markdown"}]}));
    desk.validate(&["all.ipynb", "late.ipynb", "cell.ipynb", "script.ipynb"]);
}

fn sums() -> serde_json::Value {
    json!({"cells": [
        {"cell_type": "code", "source": "x = 20\nprint(x)"},
        {"cell_type": "markdown", "source": "# Prose"},
        {"cell_type": "code", "source": "display({'text/plain': 'shown'}, raw=True)\nx * 2 + 2"},
        {"cell_type": "code", "source": "x"},
    ]})
}

fn written_notebooks_run_again_with_the_same_outputs() {
    let desk = Desk::new();
    desk.write("in.ipynb", &sums());
    for (input, output) in [("in.ipynb", "one.ipynb"), ("one.ipynb", "two.ipynb")] {
        desk.run(&[input, "--notebook", output]).assert("20\nshown\n42\n20\n");
    }
    desk.validate(&["one.ipynb", "two.ipynb"]);
    assert_eq!(desk.read("one.ipynb"), desk.read("two.ipynb"));
}

fn written_notebooks_run_in_jupyter() {
    let desk = Desk::new();
    desk.write("in.ipynb", &sums());
    desk.run(&["in.ipynb", "--notebook", "ours.ipynb"]).assert("20\nshown\n42\n20\n");
    desk.run_in_jupyter("ours.ipynb", "theirs.ipynb");
    desk.validate(&["ours.ipynb", "theirs.ipynb"]);
    let outputs = |name: &str| {
        let notebook = desk.read(name);
        let cells = notebook["cells"].as_array().unwrap().clone();
        cells.into_iter().map(|cell| cell["outputs"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(desk::plain(&outputs("ours.ipynb")), desk::plain(&outputs("theirs.ipynb")));
}

fn kernels_run_notebooks_and_figures_are_files() {
    let desk = Desk::new();
    let code = |source: &str| json!({"cell_type": "code", "source": source});
    desk.write(
        "in.ipynb",
        &json!({"cells": [
            code("%matplotlib inline\nimport matplotlib.pyplot as plt"),
            code("plt.plot([1, 2]);"),
            code("import pandas\npandas.DataFrame({'a': [1, 2]})"),
            code("from IPython.display import clear_output\ndisplay('gone')\nclear_output()\ndisplay('left')"),
            code("h = display('old', display_id=True)"),
            code("h.update('new')"),
        ]}),
    );
    let outcome = desk.run(&[
        "-p",
        "local-jupyter",
        "--notebook",
        "out.ipynb",
        "--save-outputs",
        "files",
        "in.ipynb",
    ]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let files = [
        "cell-2-output-1.chart.json",
        "cell-2-output-1.png",
        "cell-3-output-1.data.json",
        "cell-3-output-1.html",
        "cell-4-output-1.txt",
        "cell-5-output-1.txt",
    ];
    assert_eq!(desk.names("files"), files);
    let image = std::fs::read(desk.file("files/cell-2-output-1.png")).unwrap();
    assert!(image.starts_with(b"\x89PNG"), "{} bytes", image.len());
    let cells = desk.read("out.ipynb")["cells"].clone();
    assert_eq!(cells[3]["outputs"].as_array().map(Vec::len), Some(1));
    assert_eq!(cells[3]["outputs"][0]["data"]["text/plain"], "'left'");
    assert_eq!(cells[4]["outputs"][0]["data"]["text/plain"], "'new'");
    assert_eq!(cells[5]["outputs"], json!([]));
    desk.validate(&["out.ipynb"]);
}

fn kernels_run_notebooks_of_their_language() {
    let desk = Desk::new();
    let kernel = json!({"name": "bash", "display_name": "Bash", "language": "bash"});
    desk.write(
        "in.ipynb",
        &json!({"metadata": {"kernelspec": kernel}, "cells": [
            {"cell_type": "code", "source": "x=41"},
            {"cell_type": "code", "source": "echo $((x + 1))"},
        ]}),
    );
    let run = |environment: &str, output: &str| {
        let kernel = ["-p", "local-jupyter", "--environment", environment];
        desk.run(&[&kernel[..], &["--notebook", output, "in.ipynb"]].concat())
    };
    run("bash", "bash.ipynb").assert("42\n");
    desk.validate(&["bash.ipynb"]);
    let outcome = run("python3", "python.ipynb");
    assert_eq!(outcome.status, 125, "{outcome:?}");
    let why = "the notebook is in bash, but the sandbox runs python";
    assert!(outcome.stderr.contains(why), "{outcome:?}");
}
