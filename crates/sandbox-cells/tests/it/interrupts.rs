//! SIGINT reaches user code of the run it was meant for, and nothing else.

use std::time::Duration;

use crate::{
    Case,
    harness::{Outcome, Worker, cell},
};

pub(crate) const CASES: &[Case] = &[
    ("user_code_is_interrupted", user_code_is_interrupted),
    ("awaits_are_interrupted", awaits_are_interrupted),
    ("an_idle_worker_ignores_it", an_idle_worker_ignores_it),
    ("handlers_are_put_back", handlers_are_put_back),
    ("code_may_catch_it", code_may_catch_it),
    ("it_never_breaks_frames", it_never_breaks_frames),
    ("printing_is_interrupted", printing_is_interrupted),
    ("slow_repr_is_interrupted", slow_repr_is_interrupted),
];

/// Starts a cell, interrupts it when it printed something, and waits for the end.
fn interrupted(worker: &mut Worker, code: &str) -> Outcome {
    worker.start(&cell(&format!("print('go')\n{code}")), None);
    worker.wait_for_output();
    std::thread::sleep(Duration::from_millis(200));
    worker.interrupt();
    worker.finish().unwrap_or_else(|outcome| panic!("{code}: died, {outcome:?}"))
}

fn check(outcome: &Outcome, code: &str) {
    let (name, _, traceback) = outcome.error().unwrap_or_else(|| panic!("{code}: {outcome:?}"));
    assert_eq!(name, "KeyboardInterrupt", "{code}");
    assert!(traceback.contains("<cell-"), "{code}: {traceback}");
    assert!(outcome.done().1, "{code}");
}

fn user_code_is_interrupted() {
    for code in [
        "while True: pass",
        "import time; time.sleep(60)",
        "for i in iter(int, 1): x = [i] * 3",
        "import subprocess; subprocess.run(['sleep', '60'])",
        "!sleep 60",
        "import threading; threading.Event().wait()",
        "import asyncio; asyncio.run(asyncio.sleep(60))",
    ] {
        let mut worker = Worker::new();
        check(&interrupted(&mut worker, code), code);
        let next = worker.run("x = 1; x");
        assert_eq!((next.text(), next.done().1), (Some("1"), false), "{code}");
    }
}

fn awaits_are_interrupted() {
    let mut worker = Worker::new();
    worker.run("import asyncio\nasync def deep(): await asyncio.sleep(60)");
    for code in [
        "await deep()",
        "await asyncio.sleep(0)\nwhile True: pass",
        "await asyncio.gather(deep(), deep())",
    ] {
        check(&interrupted(&mut worker, code), code);
        assert_eq!(worker.run("await asyncio.sleep(0, 5)").text(), Some("5"), "{code}");
    }
    // Clean-up of the code itself runs.
    let cleaned =
        interrupted(&mut worker, "try:\n    await deep()\nfinally:\n    print('cleaned')");
    check(&cleaned, "finally");
    assert_eq!(cleaned.stdout(), "cleaned\n");
}

fn an_idle_worker_ignores_it() {
    let mut worker = Worker::new();
    for _ in 0..20 {
        worker.interrupt();
        let outcome = worker.run("sum(range(10))");
        // The signal may come when the run has started, which is what an interrupt is for.
        assert!(outcome.text() == Some("45") || outcome.done().1, "{outcome:?}");
    }
    worker.interrupt();
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..3 {
        let outcome = worker.run("1");
        assert_eq!((outcome.text(), outcome.done().1), (Some("1"), false));
    }
}

fn handlers_are_put_back() {
    let mut worker = Worker::new();
    worker.run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)");
    check(&interrupted(&mut worker, "while True: pass"), "after SIG_IGN");
}

fn code_may_catch_it() {
    let mut worker = Worker::new();
    let outcome = interrupted(
        &mut worker,
        "try:\n    import time; time.sleep(60)\nexcept KeyboardInterrupt:\n    r = 'caught'\nr",
    );
    assert_eq!((outcome.text(), outcome.done().1), (Some("'caught'"), false));
    let raised = worker.run("raise KeyboardInterrupt");
    assert!(!raised.done().1, "nobody interrupted");
}

fn it_never_breaks_frames() {
    let mut worker = Worker::new();
    for _ in 0..15 {
        worker.start(&cell("while True: display('x' * 1000)"), None);
        std::thread::sleep(Duration::from_millis(20));
        worker.interrupt();
        let outcome = worker.finish().expect("alive");
        assert_eq!(outcome.error().expect("an error").0, "KeyboardInterrupt");
    }
    for delay in 0..40 {
        worker.start(&cell("for i in range(2000): pass\ni"), None);
        std::thread::sleep(Duration::from_micros(delay * 10));
        worker.interrupt();
        let outcome = worker.finish().expect("alive");
        assert!(outcome.text() == Some("1999") || outcome.done().1, "{outcome:?}");
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(worker.run("2").text(), Some("2"));
    }
}

fn printing_is_interrupted() {
    let mut worker = Worker::new();
    for code in [
        "while True: print('x')",
        "import time\nwhile True: print('x'); time.sleep(0.0005)",
        "import threading\nif threading.active_count() == 1: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\nwhile True: print('x')",
    ] {
        for _ in 0..5 {
            worker.start(&cell(code), None);
            worker.wait_for_output();
            let sent = std::time::Instant::now();
            worker.interrupt();
            let outcome = worker.finish().expect("alive");
            check(&outcome, code);
            assert!(sent.elapsed() < Duration::from_secs(3), "{code}: {:?}", sent.elapsed());
            assert!(!worker.run("1").done().1);
        }
    }
}

fn slow_repr_is_interrupted() {
    let mut worker = Worker::new();
    let code = "class S:\n    def __repr__(self):\n        while True: pass\nS()";
    check(&interrupted(&mut worker, code), code);
    let code = "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E";
    let outcome = interrupted(&mut worker, code);
    assert_eq!(outcome.error().expect("an error").0, "E");
}
