//! Rich results: the `_repr_*_` methods, `display()`, limits.

use sandbox_engine::{Encoding, MimeData, Reply, WireDisplayKind};

use crate::{Case, harness::Worker};

pub(crate) const CASES: &[Case] = &[
    ("methods", methods),
    ("mimebundles", mimebundles),
    ("broken_formatters_are_left_out", broken_formatters_are_left_out),
    ("display_function", display_function),
    ("display_is_live", display_is_live),
    ("marks_part_the_text", marks_part_the_text),
    ("marks_survive_what_code_does_to_its_streams", marks_survive_what_code_does_to_its_streams),
    ("limits", limits),
    ("values_that_lie_about_their_class", values_that_lie_about_their_class),
    ("display_from_threads", display_from_threads),
    ("display_of_ipython_is_ours", display_of_ipython_is_ours),
    ("what_is_published_by_ipython_is_shown", what_is_published_by_ipython_is_shown),
];

fn item(mime: &str, encoding: Encoding, data: &str) -> MimeData {
    MimeData { mime: mime.into(), encoding, data: data.into() }
}

fn methods() {
    let mut worker = Worker::new();
    let code = "
class All:
    def __repr__(self): return 'all'
    def _repr_html_(self): return '<b>'
    def _repr_markdown_(self): return '*m*'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'\\x89PNG'
    def _repr_jpeg_(self): return 'AQID'
    def _repr_json_(self): return {'a': [1, None]}
    def _repr_latex_(self): return '$x$'
    def _repr_javascript_(self): return 'f()'
    def _repr_pdf_(self): return b'%PDF', {'pages': 1}
All()";
    let outcome = worker.run(code);
    let (kind, bundle) = outcome.displays().next().expect("a display");
    assert_eq!(kind, WireDisplayKind::Result);
    let mut bundle = bundle.to_vec();
    assert_eq!(bundle.remove(0), item("text/plain", Encoding::Text, "all"));
    bundle.sort_by(|a, b| a.mime.cmp(&b.mime));
    assert_eq!(
        bundle,
        [
            item("application/javascript", Encoding::Text, "f()"),
            item("application/json", Encoding::Json, r#"{"a":[1,null]}"#),
            item("application/pdf", Encoding::Base64, "JVBERg=="),
            item("image/jpeg", Encoding::Base64, "AQID"),
            item("image/png", Encoding::Base64, "iVBORw=="),
            item("image/svg+xml", Encoding::Text, "<svg/>"),
            item("text/html", Encoding::Text, "<b>"),
            item("text/latex", Encoding::Text, "$x$"),
            item("text/markdown", Encoding::Text, "*m*"),
        ]
    );
    let Some(Reply::Display { metadata, .. }) = outcome.replies.first() else { panic!() };
    assert_eq!(metadata, r#"{"application/pdf":{"pages":1}}"#);
    // A class is not one of its own instances.
    let class = worker.run("All");
    assert_eq!(class.displays().next().expect("a display").1.len(), 1);
}

fn mimebundles() {
    let mut worker = Worker::new();
    let code = "
class B:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/plain': 'plain', 'application/vnd.x+json': {'k': 1}, 'image/gif': b'G'}, {'image/gif': {'w': 2}}
B()";
    let outcome = worker.run(code);
    let (_, bundle) = outcome.displays().next().expect("a display");
    assert_eq!(
        bundle,
        [
            item("text/plain", Encoding::Text, "plain"),
            item("application/vnd.x+json", Encoding::Json, r#"{"k":1}"#),
            item("image/gif", Encoding::Base64, "Rw=="),
        ]
    );
}

fn broken_formatters_are_left_out() {
    let mut worker = Worker::new();
    let code = "
class Bad:
    def __repr__(self): return 'bad'
    def _repr_html_(self): raise ValueError('no html')
    def _repr_png_(self): return None
    def _repr_json_(self): return object()
    def _repr_latex_(self): return '$ok$'
Bad()";
    let outcome = worker.run(code);
    let (_, bundle) = outcome.displays().next().expect("a display");
    assert_eq!(
        bundle,
        [item("text/plain", Encoding::Text, "bad"), item("text/latex", Encoding::Text, "$ok$")]
    );
    assert!(
        outcome.stderr().contains("_repr_html_ failed: ValueError: no html"),
        "{}",
        outcome.stderr()
    );
    assert!(outcome.stderr().contains("application/json dropped"), "{}", outcome.stderr());
    let failing = worker.run("class R:\n    def __repr__(self): 1/0\nR()");
    assert_eq!(failing.error().expect("an error").0, "ZeroDivisionError");
}

fn display_function() {
    let mut worker = Worker::new();
    let outcome = worker.run(
        "display(1, 'two')\ndisplay({'text/html': '<i>'}, raw=True, metadata={'m': 1})\nh = display(3, display_id='me')\nh.update(4)\nupdate_display(5, display_id='me')\nclear_output()\nclear_output(wait=True)",
    );
    assert_eq!(outcome.error(), None);
    let seen: Vec<_> = outcome
        .replies
        .iter()
        .map(|reply| match reply {
            Reply::Display { kind, bundle, display_id, metadata, .. } => {
                format!("{kind:?} {} {} {display_id} {metadata}", bundle[0].mime, bundle[0].data)
            }
            Reply::ClearOutput { wait, .. } => format!("clear {wait}"),
            _ => "done".into(),
        })
        .collect();
    assert_eq!(
        seen,
        [
            "Display text/plain 1  {}",
            "Display text/plain 'two'  {}",
            r#"Display text/html <i>  {"m":1}"#,
            "Display text/plain 3 me {}",
            "Update text/plain 4 me {}",
            "Update text/plain 5 me {}",
            "clear false",
            "clear true",
            "done",
        ]
    );
    let named = worker.run("a = display(1, display_id=True); b = display(1, display_id=True)\na.display_id != b.display_id, display(1)");
    assert_eq!(named.text(), Some("(True, None)"));
}

fn display_is_live() {
    let mut worker = Worker::new();
    worker.start(&crate::harness::cell("display(1)\nimport time; time.sleep(30)"), None);
    let Some(Reply::Display { .. }) = worker.reply() else { panic!("no display") };
}

fn marks_part_the_text() {
    let mut worker = Worker::new();
    let places = |worker: &mut Worker, code: &str| {
        let outcome = worker.run(code);
        assert_eq!(outcome.error(), None, "{code}");
        outcome.marked.places
    };
    let code = "import os, sys\nprint('a', end='')\ndisplay(1)\nos.write(1, b'b')\nclear_output()\n\
                os.system('printf c')\nprint('d')\ndisplay(2, display_id='x')\nupdate_display(3, display_id='x');";
    assert_eq!(places(&mut worker, code), ["a", "b", "cd\n", "", ""]);
    // Many lines at once are written in blocks.
    let code = "for i in range(6):\n    for _ in range(500): print(i)\n    display(i)";
    let expected: Vec<_> =
        (0..6).map(|i| format!("{i}\n").repeat(500)).chain([String::new()]).collect();
    assert_eq!(places(&mut worker, code), expected);
    assert_eq!(places(&mut worker, "print(1)\n2"), ["1\n"]);
    // A copy of the interpreter shows nothing, and marks nothing.
    let code = "import os\npid = os.fork()\ndisplay(1)\nif not pid: os._exit(0)\nos.waitpid(pid, 0)\nprint('x')";
    assert_eq!(places(&mut worker, code), ["", "x\n"]);
}

fn marks_survive_what_code_does_to_its_streams() {
    let file = "/tmp/code-sandboxes-marks";
    for (code, expected) in [
        ("import sys, io\nsys.stdout = io.StringIO()\nprint('a')\nsys.stdout = None", ["b", "c"]),
        ("import sys\nsys.stdout.close()", ["b", "c"]),
        ("import sys\nsys.stdout.detach()", ["b", "c"]),
        ("import os\nos.set_blocking(1, False)", ["b", "c"]),
        // What the code leads into a file, marks included, would be nobody's.
        (
            "import os\nnull = os.open('/tmp/code-sandboxes-marks', os.O_CREAT | os.O_RDWR)\nos.dup2(null, 1)",
            ["", ""],
        ),
    ] {
        let mut worker = Worker::new();
        let code = format!("{code}\nimport os\nos.write(1, b'b')\ndisplay(1)\nos.write(1, b'c');");
        let outcome = worker.run(&code);
        assert_eq!((outcome.error(), outcome.displays().count()), (None, 1), "{code}");
        assert_eq!(outcome.marked.places, expected, "{code}");
        assert_eq!(worker.run("print('d'); display(2)").marked.places, ["d\n", ""], "{code}");
    }
    assert_eq!(std::fs::read(file).expect("the file"), b"bc");
    std::fs::remove_file(file).expect("the file");
    // Without the pipes there are no marks, and no display waits for one.
    let mut worker = Worker::new();
    let outcome =
        worker.run("import os\nos.closerange(101, 110)\nprint('a')\ndisplay(1)\nprint('b')");
    assert_eq!((outcome.displays().count(), outcome.stdout()), (1, "a\nb\n".into()));
    assert_eq!(outcome.marked.marks.iter().map(|(_, marks)| *marks).collect::<Vec<_>>(), [[0, 0]]);
}

fn limits() {
    let mut worker = Worker::new();
    let code = "
class Big:
    def __init__(self, size): self.size = size
    def __repr__(self): return 'big'
    def _repr_html_(self): return 'h' * self.size
Big((16 << 20) + 1)";
    let outcome = worker.run(code);
    let (_, bundle) = outcome.displays().next().expect("a display");
    assert_eq!(bundle, [item("text/plain", Encoding::Text, "big")]);
    assert!(
        outcome.stderr().contains("text/html of 16777217 bytes dropped"),
        "{}",
        outcome.stderr()
    );
    let many = worker.run("for i in range(6): display(Big(15 << 20))");
    let html = many.displays().filter(|(_, bundle)| bundle.len() == 2).count();
    assert_eq!((html, many.displays().count()), (4, 6));
    assert!(many.stderr().contains("for one run"), "{}", many.stderr());
    // The next run starts anew.
    assert_eq!(worker.run("Big(15 << 20)").displays().next().expect("a display").1.len(), 2);
}

fn values_that_lie_about_their_class() {
    let mut worker = Worker::new();
    let lying = worker
        .run("class L:\n    @property\n    def __class__(self): raise ValueError('who')\nL()");
    assert!(lying.error().is_some() || lying.text().is_some());
    // Answers to every name, so nothing it answers counts.
    let proxy = worker.run("class P:\n    def __getattr__(self, name): return lambda *a, **k: 'x'\n    def __repr__(self): return 'p'\nP()");
    assert_eq!(
        proxy.displays().next().expect("a display").1,
        [item("text/plain", Encoding::Text, "p")]
    );
    assert_eq!(worker.run("1").text(), Some("1"));
}

fn display_from_threads() {
    let mut worker = Worker::new();
    let outcome = worker.run("import threading\nts = [threading.Thread(target=lambda: [display(i) for i in range(50)]) for _ in range(4)]\n[t.start() for t in ts]; [t.join() for t in ts];");
    assert_eq!(outcome.displays().count(), 200);
    // A thread that outlives its run has no run to show anything in.
    worker.run("import time\ndef late():\n    time.sleep(0.2)\n    display('late')\nthreading.Thread(target=late).start()");
    std::thread::sleep(std::time::Duration::from_millis(400));
    let next = worker.run("1");
    assert_eq!(next.displays().count(), 1);
    let before = next.marked.before_start.as_deref();
    assert!(before.is_some_and(|before| before.contains("'late'")), "{before:?}");
}

/// IPython's own functions only print outside of an IPython shell.
fn display_of_ipython_is_ours() {
    let dir = tempfile::tempdir().expect("directory");
    let core = dir.path().join("IPython/core");
    std::fs::create_dir_all(&core).expect("mkdir");
    let functions =
        "def display(*a, **k): print('printed')\nclear_output = update_display = display";
    std::fs::write(core.join("display_functions.py"), functions).expect("write");
    let facade = "from IPython.core.display_functions import *";
    std::fs::write(dir.path().join("IPython/display.py"), facade).expect("write");
    let mut fork = crate::harness::plain_fork();
    fork.work_dir = dir.path().to_str().expect("UTF-8").into();
    let mut worker = Worker::fork(&crate::harness::WARM, &fork).expect("worker");
    let outcome =
        worker.run("from IPython.display import display, clear_output\ndisplay(1)\nclear_output()");
    assert_eq!((outcome.displays().count(), outcome.replies.len()), (1, 3), "{outcome:?}");
    assert_eq!(outcome.stdout(), "");
}

/// Libraries find a shell of IPython, though none runs.
fn what_is_published_by_ipython_is_shown() {
    let dir = tempfile::tempdir().expect("directory");
    let core = dir.path().join("IPython/core");
    std::fs::create_dir_all(&core).expect("mkdir");
    for (name, text) in [
        ("core/display_functions.py", "def publish_display_data(*a, **k): print('printed')"),
        ("core/getipython.py", "def get_ipython(): return None"),
        (
            "core/displaypub.py",
            "class DisplayPublisher:\n    def publish(self, *a, **k): print('printed')\n    clear_output = publish",
        ),
        (
            "__init__.py",
            "from IPython.core.getipython import get_ipython\nfrom IPython.core import display_functions as display",
        ),
    ] {
        std::fs::write(dir.path().join("IPython").join(name), text).expect("write");
    }
    let mut fork = crate::harness::plain_fork();
    fork.work_dir = dir.path().to_str().expect("UTF-8").into();
    let mut worker = Worker::fork(&crate::harness::WARM, &fork).expect("worker");
    for publish in [
        "from IPython.display import publish_display_data as publish",
        "import IPython; publish = IPython.get_ipython().display_pub.publish",
        "from IPython.core.displaypub import DisplayPublisher; publish = DisplayPublisher().publish",
    ] {
        let publish = publish.replace("IPython.display", "IPython.core.display_functions");
        let code = format!(
            "{publish}\npublish({{'text/html': '<b>'}}, {{'own': 1}}, transient={{'display_id': 'x'}})"
        );
        let outcome = worker.run(&code);
        assert_eq!((outcome.error(), outcome.stdout().as_str()), (None, ""), "{publish}");
        let shown: Vec<_> = outcome.displays().collect();
        assert_eq!(shown.len(), 1, "{publish}: {outcome:?}");
        assert_eq!(
            (shown[0].0, shown[0].1[0].mime.as_str()),
            (WireDisplayKind::Display, "text/html")
        );
    }
    let around = "import IPython\nIPython.get_ipython().events.register('post_execute', lambda: print('after'))";
    worker.run(around);
    assert_eq!(worker.run("print('cell')").stdout(), "cell\nafter\n");
}
