//! Scripts: what `python file.py` would do.

use sandbox_engine::Run;

use crate::{
    Case,
    harness::{Worker, memory_file, script},
};

pub(crate) const CASES: &[Case] = &[
    ("a_script_is_a_program", a_script_is_a_program),
    ("names_do_not_stay", names_do_not_stay),
    ("errors_and_exits", errors_and_exits),
    ("threads_and_exit_functions_finish", threads_and_exit_functions_finish),
    ("standard_input", standard_input),
];

use std::os::fd::AsFd;

fn a_script_is_a_program() {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::write(dir.path().join("beside.py"), "value = 'beside'").expect("write");
    let file = dir.path().join("main.py").to_str().expect("UTF-8").to_owned();
    let mut worker = Worker::new();
    let code = "import sys, beside\n1 + 1\nprint(__name__, __file__ == sys.argv[0], sys.argv[1:], beside.value)\nif __name__ == '__main__':\n    print(sys.modules['__main__'].beside is beside)";
    let run = Run { filename: file.clone(), argv: vec![file, "a".into()], ..script(code) };
    let outcome = worker.run_with(&run);
    assert_eq!(outcome.stdout(), "__main__ True ['a'] beside\nTrue\n", "{outcome:?}");
    assert_eq!(outcome.displays().count(), 0);
    assert_eq!(worker.run("import sys; sys.path[0]").text(), Some("''"));
    let awaiting = worker.run_with(&script("import asyncio\nawait asyncio.sleep(0)"));
    assert_eq!(awaiting.error().expect("an error").0, "SyntaxError");
}

fn names_do_not_stay() {
    let mut worker = Worker::new();
    worker.run("a = 1");
    assert_eq!(worker.run_with(&script("print('a' in globals()); b = 2")).stdout(), "False\n");
    assert_eq!(
        worker.run("a, 'b' in globals(), __import__('__main__').a").text(),
        Some("(1, False, 1)")
    );
}

fn errors_and_exits() {
    let mut worker = Worker::new();
    let outcome = worker
        .run_with(&Run { filename: "/some/app.py".into(), ..script("def f():\n    1/0\nf()") });
    let (name, _, traceback) = outcome.error().expect("an error");
    assert_eq!(name, "ZeroDivisionError");
    assert!(traceback.contains("File \"/some/app.py\", line 2, in f\n    1/0\n"), "{traceback}");
    assert_eq!(worker.run_with(&script("raise SystemExit(9)")).exit(), Some(9));
    let broken = worker.run_with(&script("x = = 1"));
    assert!(broken.error().expect("an error").2.contains("File \"<stdin>\", line 1"));
}

fn threads_and_exit_functions_finish() {
    let mut worker = Worker::new();
    let code = "import atexit, threading, time\natexit.register(print, 'bye')\nthreading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\nprint('main')";
    assert_eq!(worker.run_with(&script(code)).stdout(), "main\nthread\nbye\n");
    assert_eq!(worker.run_with(&script("print('again')")).stdout(), "again\n");
}

fn standard_input() {
    let mut worker = Worker::new();
    let code = "import sys, subprocess\nprint(input(), sys.stdin.readline(), end='')\nprint(sys.stdin.read())";
    worker.start(&script(code), Some(memory_file("one\ntwo\nthree").as_fd()));
    assert_eq!(worker.finish().expect("alive").stdout(), "one two\nthree\n");
    let after = worker.run("input()");
    assert_eq!(after.error().expect("an error").0, "EOFError");
    // Children read it as well, and a closed one is no obstacle.
    worker.start(
        &script("import os; os.system('cat'); import sys; sys.stdin.close()"),
        Some(memory_file("x").as_fd()),
    );
    assert_eq!(worker.finish().expect("alive").stdout(), "x");
    worker.start(&script("print(input())"), Some(memory_file("y\n").as_fd()));
    assert_eq!(worker.finish().expect("alive").stdout(), "y\n");
}
