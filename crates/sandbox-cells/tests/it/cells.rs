//! Cells: values, names that stay, `await`, errors, shell commands.

use crate::{
    Case,
    harness::{HOME, Outcome, Worker, cell},
};
use sandbox_engine::{Run, WireFailureKind};

pub(crate) const CASES: &[Case] = &[
    ("values", values),
    ("errors", errors),
    ("code_that_raises_runs_once", code_that_raises_runs_once),
    ("awaits", awaits),
    ("variables_of_the_context_outlive_cells", variables_of_the_context_outlive_cells),
    ("tasks_take_their_first_steps", tasks_take_their_first_steps),
    ("exits", exits),
    ("shell_commands", shell_commands),
    ("valid_python_is_never_a_command", valid_python_is_never_a_command),
    ("settings_of_one_run", settings_of_one_run),
    ("a_run_that_cannot_start", a_run_that_cannot_start),
    ("a_trivial_run_is_one_write", a_trivial_run_is_one_write),
    ("threads_are_counted", threads_are_counted),
    (
        "the_start_of_a_run_is_marked_where_others_may_write",
        the_start_of_a_run_is_marked_where_others_may_write,
    ),
    ("imports_come_from_the_working_directory", imports_come_from_the_working_directory),
    ("a_lost_working_directory_is_made_again", a_lost_working_directory_is_made_again),
    ("large_code", large_code),
];

/// Runs cells in one worker and compares the text of each value.
fn expect_texts(cells: &[(&str, Option<&str>)]) {
    let mut worker = Worker::new();
    for (code, text) in cells {
        let outcome = worker.run(code);
        assert_eq!(outcome.error(), None, "{code}");
        assert_eq!(outcome.text(), *text, "{code}");
    }
}

fn values() {
    expect_texts(&[
        ("1+1", Some("2")),
        ("x = 5\nx * 2", Some("10")),
        ("x", Some("5")),
        ("None", None),
        ("x;", None),
        ("(x\n) ; # quiet", None),
        ("x # not; quiet", Some("5")),
        ("'a;'", Some("'a;'")),
        ("", None),
        ("# only a comment", None),
        ("x = 6", None),
        ("if x: 7", None),
        ("'\\ud800'", Some("'\\ud800'")),
        ("\u{feff}x", Some("6")),
        ("__name__", Some("'__main__'")),
        ("sorted(name for name in dir() if not name.startswith('_'))", Some("['x']")),
        ("from __future__ import annotations", None),
        ("def f(a: undefined): pass\nf.__annotations__", Some("{'a': 'undefined'}")),
        (
            "class C:\n    def add(self, n):\n        return self\nC().add(3) is not None",
            Some("True"),
        ),
        ("import sys; sys.modules['__main__'].x", Some("6")),
        ("import sys; sys.argv", Some("['']")),
        ("__builtins__ is __import__('builtins')", Some("True")),
    ]);
    let mut worker = Worker::new();
    let long = worker.run("'x' * (2 << 20)");
    let text = long.text().expect("a value");
    assert!(text.len() < (1 << 20) + 100 && text.ends_with("characters in all]"), "{}", text.len());
}

fn check_error(outcome: &Outcome, name: &str, value: &str, traceback: &[&str]) {
    let (found_name, found_value, found) = outcome.error().expect("an error");
    assert_eq!((found_name, found_value), (name, value));
    for part in traceback {
        assert!(found.contains(part), "{part:?} is not in\n{found}");
    }
    assert!(!found.contains("<sandbox"), "frames of the driver in\n{found}");
    assert!(!found.contains("/dev/fd"), "frames of the zygote in\n{found}");
}

fn errors() {
    let mut worker = Worker::new();
    let mut raises = |code: &str, name: &str, value: &str, traceback: &[&str]| {
        check_error(&worker.run(code), name, value, traceback);
    };
    raises(
        "def f():\n    return 1 / 0\nf()",
        "ZeroDivisionError",
        "division by zero",
        &[
            "Traceback (most recent call last):\n  File \"<cell-1>\", line 3, in <module>\n    f()\n",
            "  File \"<cell-1>\", line 2, in f\n    return 1 / 0\n",
            "\nZeroDivisionError: division by zero\n",
        ],
    );
    // A function of an earlier cell keeps its own name and lines.
    raises(
        "f()",
        "ZeroDivisionError",
        "division by zero",
        &["\"<cell-2>\", line 1", "\"<cell-1>\", line 2"],
    );
    raises(
        "try:\n    f()\nexcept Exception as e:\n    raise KeyError('k') from e",
        "KeyError",
        "'k'",
        &["direct cause", "ZeroDivisionError: division by zero"],
    );
    raises(
        "x = = 1",
        "SyntaxError",
        "invalid syntax (<cell-4>, line 1)",
        &["    x = = 1\n        ^\n"],
    );
    raises(
        "x = 1\nreturn x",
        "SyntaxError",
        "'return' outside function (<cell-5>, line 2)",
        &["    return x\n"],
    );
    raises("yield 1", "SyntaxError", "'yield' outside function (<cell-6>, line 1)", &[]);
    raises("1 +", "SyntaxError", "invalid syntax (<cell-7>, line 1)", &["    1 +\n"]);
    raises("input()", "EOFError", "EOF when reading a line", &[]);
    raises(
        "print('\\ud800')",
        "UnicodeEncodeError",
        "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed",
        &[],
    );
    raises("raise KeyboardInterrupt", "KeyboardInterrupt", "", &[]);
    raises("raise type('a\\nb', (Exception,), {})", "a\\nb", "", &[]);
    raises(
        "def f(): f()\nf()",
        "RecursionError",
        "maximum recursion depth exceeded",
        &["Previous line repeated"],
    );
    let plain = worker.run(
        "import traceback\ntry:\n    1/0\nexcept ZeroDivisionError:\n    traceback.print_exc()",
    );
    assert!(plain.stderr().contains("    1/0\n"), "{}", plain.stderr());
    // The class differs between versions of Python.
    let null = worker.run("'\0'");
    assert_eq!(null.error().expect("an error").1, "source code string cannot contain null bytes");
    assert_eq!(worker.run("2").done().0, 15);
}

fn code_that_raises_runs_once() {
    let mut worker = Worker::new();
    worker.run("n = 0");
    let outcome = worker.run("n += 1; print('once'); 1/0");
    assert_eq!(outcome.stdout(), "once\n");
    assert_eq!(worker.run("n").text(), Some("1"));
}

fn awaits() {
    expect_texts(&[
        (
            "import asyncio\nasync def add(a, b):\n    await asyncio.sleep(0)\n    return a + b",
            None,
        ),
        ("await add(20, 22)", Some("42")),
        ("y = await add(1, 2)\ny * 2", Some("6")),
        ("c = 1\nc += await add(1, 1)", None),
        ("c", Some("3")),
        ("asyncio.run(add(2, 3))", Some("5")),
        (
            "queue = asyncio.Queue(); task = asyncio.ensure_future(queue.get()); await asyncio.sleep(0)",
            None,
        ),
        ("queue.put_nowait(9)\nawait task", Some("9")),
        (
            "async def count(n):\n    for i in range(n):\n        yield i\n[i async for i in count(3)]",
            Some("[0, 1, 2]"),
        ),
    ]);
    let mut worker = Worker::new();
    let outcome = worker.run("import asyncio\nawait asyncio.sleep(0)\nraise ValueError('q')");
    check_error(
        &outcome,
        "ValueError",
        "q",
        &["Traceback (most recent call last):\n  File \"<cell-1>\", line 3"],
    );
    assert_eq!(worker.run("await asyncio.sleep(0); import sys; sys.exit(4)").exit(), Some(4));
    assert_eq!(worker.run("await asyncio.sleep(0, 'fine')").text(), Some("'fine'"));
}

fn variables_of_the_context_outlive_cells() {
    expect_texts(&[
        ("import asyncio, contextvars\nvariable = contextvars.ContextVar('v', default=0)", None),
        ("variable.set(1); await asyncio.sleep(0)", None),
        ("variable.get()", Some("1")),
        ("await asyncio.sleep(0, variable.get())", Some("1")),
        ("variable.set(2); variable.get()", Some("2")),
        (
            "async def change():\n    variable.set(3)\nawait change()\nawait asyncio.create_task(change())",
            None,
        ),
        ("variable.get()", Some("3")),
    ]);
    let mut worker = Worker::new();
    worker.run("import asyncio, contextvars\nvariable = contextvars.ContextVar('v', default=0)");
    worker.run("variable.set(1)\nawait asyncio.sleep(0)\n1 / 0");
    assert_eq!(worker.run("variable.get()").text(), Some("1"));
}

/// The loop stands still between cells, and what was just made may begin.
fn tasks_take_their_first_steps() {
    let mut worker = Worker::new();
    let outcome = worker.run(
        "import asyncio\nasync def work():\n    print('begun')\n    await asyncio.sleep(60)\ntask = asyncio.create_task(work())\nprint('made')",
    );
    assert_eq!((outcome.error(), outcome.stdout().as_str()), (None, "made\nbegun\n"));
    let code =
        "task.cancel()\ntry:\n    await task\nexcept asyncio.CancelledError:\n    print('ended')";
    assert_eq!(worker.run(code).stdout(), "ended\n");
    // A program is no cell: nothing runs there unless it says so.
    let script = "import asyncio\nasync def work(): pass\nwork = work()\ntry:\n    asyncio.create_task(work)\nexcept RuntimeError as error:\n    print(error)\nwork.close()";
    assert_eq!(
        worker.run_with(&crate::harness::script(script)).stdout(),
        "no running event loop\n"
    );
}

fn exits() {
    let mut worker = Worker::new();
    for (code, status, stderr) in [
        ("import sys; sys.exit()", 0, ""),
        ("sys.exit(None)", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit(300)", 300, ""),
        ("sys.exit(-1)", -1, ""),
        ("sys.exit(10**30)", -1, ""),
        ("sys.exit(True)", 1, ""),
        ("sys.exit('bad')", 1, "bad\n"),
        ("raise SystemExit([1])", 1, "[1]\n"),
        ("exit(5)", 5, ""),
        ("quit()", 0, ""),
    ] {
        let outcome = worker.run(code);
        assert_eq!(outcome.exit(), Some(status), "{code}");
        assert_eq!(outcome.stderr(), stderr, "{code}");
        assert_eq!(outcome.error(), None, "{code}");
    }
    let thread = worker.run(
        "import threading\nt = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()",
    );
    assert_eq!((thread.exit(), thread.error()), (None, None));
}

fn shell_commands() {
    let mut worker = Worker::new();
    let mut prints = |code: &str, stdout: &str| {
        let outcome = worker.run(code);
        assert_eq!(outcome.error(), None, "{code}");
        assert_eq!(outcome.stdout(), stdout, "{code}");
    };
    let home = HOME.get().expect("a home");
    prints("!echo hello", "hello\n");
    prints(
        "x = 3\nprint('a')\n!echo {x + 1} {undefined} $HOME '{{x}}'\nprint('b')",
        &format!("a\n4 {{undefined}} {home} {{x}}\nb\n"),
    );
    prints("for i in range(2):\n    !echo {i}", "0\n1\n");
    prints("lines = !printf 'a\\nb'\nprint(lines)", "['a', 'b']\n");
    prints("!echo \"unbalanced (\"", "unbalanced (\n");
    let version = worker.run("%pip --version");
    assert!(
        version.stdout().starts_with("pip ") || version.stderr().contains("pip"),
        "{version:?}"
    );
    for (code, name) in [
        ("%%bash\nls", "%%bash"),
        ("%matplotlib notebook", "%matplotlib"),
        ("t = %timeit 1", "%timeit"),
    ] {
        let outcome = worker.run(code);
        let (kind, value, _) = outcome.error().expect("an error");
        assert_eq!(kind, "SyntaxError", "{code}");
        assert!(value.contains(name) && value.contains("jupyter"), "{value}");
    }
    let other = worker.run("!echo no\nx = = 2");
    check_error(&other, "SyntaxError", "invalid syntax (<cell-10>, line 2)", &["    x = = 2\n"]);
    assert_eq!(other.stdout(), "");
}

fn valid_python_is_never_a_command() {
    expect_texts(&[
        ("s = '''\n!ls\n%pip install x\n'''\ns", Some("'\\n!ls\\n%pip install x\\n'")),
        ("s = '''\n!ls\n'''\n!true\ns", Some("'\\n!ls\\n'")),
        ("7 \\\n%4", Some("3")),
        ("(7\n%4)", Some("3")),
    ]);
}

fn settings_of_one_run() {
    let mut worker = Worker::new();
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().canonicalize().expect("path");
    let run = Run {
        cwd: path.to_str().expect("UTF-8").into(),
        env: vec![("HOME".into(), "/other".into()), ("NEW".into(), "1".into())],
        argv: vec!["a".into(), "b c".into()],
        ..cell(
            "import os, sys; print(os.getcwd(), os.environ['HOME'], os.getenv('NEW'), sys.argv)\n!echo $NEW",
        )
    };
    let outcome = worker.run_with(&run);
    assert_eq!(outcome.stdout(), format!("{} /other 1 ['a', 'b c']\n1\n", path.display()));
    let after = worker.run("print(os.getcwd(), os.environ['HOME'], os.getenv('NEW'), sys.argv)");
    let home = HOME.get().expect("a home");
    assert_eq!(after.stdout(), format!("/tmp {home} None ['']\n"));
    // Code that changes directory itself stays there.
    worker.run("os.chdir('/usr')");
    assert_eq!(worker.run("os.getcwd()").text(), Some("'/usr'"));
}

fn a_run_that_cannot_start() {
    let mut worker = Worker::new();
    for run in [
        Run { cwd: "/does/not/exist".into(), ..cell("print('ran')") },
        Run { env: vec![("A=B".into(), "x".into())], ..cell("print('ran')") },
        Run { env: vec![("A".into(), "x\0y".into())], ..cell("print('ran')") },
    ] {
        let outcome = worker.run_with(&run);
        assert_eq!(outcome.failed(), Some(WireFailureKind::Invalid), "{run:?}");
        assert_eq!(outcome.stdout(), "", "{run:?}");
    }
    assert_eq!(worker.run("import os; os.getcwd(), os.getenv('A')").text(), Some("('/tmp', None)"));
}

fn a_trivial_run_is_one_write() {
    let mut worker = Worker::new();
    worker.run("1+1");
    for code in ["1+1", "1/0", "import sys; sys.exit(1)"] {
        let outcome = worker.run(code);
        assert_eq!((outcome.reads, outcome.replies.len()), (1, 2), "{code}");
    }
}

fn threads_are_counted() {
    let mut worker = Worker::new();
    let code = "import threading, time\nstop = threading.Event()\nthreads = [threading.Thread(target=stop.wait) for _ in range(3)]\n[t.start() for t in threads];";
    assert_eq!(worker.run(code).done().2, 3);
    assert_eq!(worker.run("stop.set(); [t.join() for t in threads]; time.sleep(0.05)").done().2, 0);
    assert_eq!(worker.run("for i in range(5000): print(i)").done().2, 0);
}

fn the_start_of_a_run_is_marked_where_others_may_write() {
    let mut worker = Worker::new();
    let alone = worker.run("import subprocess");
    assert_eq!((alone.marked.announces_starts, &alone.marked.before_start), (false, &None));
    let code = "p = subprocess.Popen(['sh', '-c', 'sleep 0.1; echo late'])";
    let with_child = worker.run(code);
    let marked = &with_child.marked;
    assert_eq!((marked.announces_starts, &marked.before_start), (true, &None));
    std::thread::sleep(std::time::Duration::from_millis(500));
    let next = worker.run("print('own', p.wait())");
    assert_eq!(next.marked.before_start.as_deref(), Some("late\n"));
    assert!(next.marked.announces_starts);
    assert_eq!(String::from_utf8_lossy(&next.stdout), "own 0\n");
    // Threads are writers, too.
    let mut worker = Worker::new();
    let code =
        "import threading; stop = threading.Event(); threading.Thread(target=stop.wait).start()";
    assert!(worker.run(code).marked.announces_starts);
    assert_eq!(worker.run("stop.set()").marked.before_start.as_deref(), Some(""));
}

fn imports_come_from_the_working_directory() {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::write(dir.path().join("mine.py"), "value = 3").expect("write");
    for name in ["sitecustomize.py", "usercustomize.py"] {
        std::fs::write(dir.path().join(name), "import os; os._exit(9)").expect("write");
    }
    let mut fork = crate::harness::plain_fork();
    fork.work_dir = dir.path().to_str().expect("UTF-8").into();
    fork.env.push(("PYTHONSTARTUP".into(), "sitecustomize.py".into()));
    let mut worker = Worker::fork(&crate::harness::WARM, &fork).expect("worker");
    assert_eq!(worker.run("import mine; mine.value").text(), Some("3"));
}

fn a_lost_working_directory_is_made_again() {
    let dir = tempfile::tempdir().expect("directory");
    let mut fork = crate::harness::plain_fork();
    fork.work_dir = dir.path().join("work").to_str().expect("UTF-8").into();
    std::fs::create_dir(&fork.work_dir).expect("mkdir");
    let mut worker = Worker::fork(&crate::harness::WARM, &fork).expect("worker");
    worker.run("import os; os.rmdir(os.getcwd())");
    let expected = format!("'{}'", fork.work_dir);
    assert_eq!(worker.run("os.getcwd()").text(), Some(expected.as_str()));
}

fn large_code() {
    let mut worker = Worker::new();
    let code = format!("x = '{}'\nlen(x)", "y".repeat(8 << 20));
    assert_eq!(worker.run(&code).text(), Some("8388608"));
}
