//! Code that is set on the driver: what it breaks must show, and nothing may lie or hang.

use sandbox_engine::{FrameReader, Reply, WireError};

use crate::{
    Case,
    harness::{Worker, cell, eventually},
};

pub(crate) const CASES: &[Case] = &[
    ("a_worker_survives", a_worker_survives),
    ("copies_never_answer", copies_never_answer),
    ("copies_end_like_programs", copies_end_like_programs),
    ("deaths_are_seen", deaths_are_seen),
    ("garbage_on_every_descriptor", garbage_on_every_descriptor),
    ("an_audit_hook_that_raises", an_audit_hook_that_raises),
    ("broken_builtins_still_compute", broken_builtins_still_compute),
    ("streams_come_back", streams_come_back),
    ("streams_come_back_from_between_two_runs", streams_come_back_from_between_two_runs),
    ("driver_state_has_no_name", driver_state_has_no_name),
];

/// After each of these the worker still tells the truth.
fn a_worker_survives() {
    for code in [
        "import json; json.dumps = json.loads = json.JSONEncoder = None",
        "import struct, socket, traceback, ast, io\nfor m in (struct, socket, traceback, ast, io):\n    [m.__dict__.__setitem__(k, None) for k in list(vars(m)) if not k.startswith('__')]",
        "import os\nfor k in ('write', 'read', 'getpid', '_exit', 'environ', 'getcwd'): setattr(os, k, None)",
        "import sys; sys.settrace(lambda *a: 1/0); (lambda: 1)()",
        "import sys; sys.settrace(lambda *a: 1/0)",
        "import sys; sys.setprofile(lambda *a: 1/0)",
        "import sys; sys.setrecursionlimit(60)",
        "import sys; sys.setrecursionlimit(10**9)",
        "import gc; gc.disable(); gc.unfreeze(); gc.callbacks.append(lambda *a: 1/0)\nclass C: pass\nfor _ in range(10000):\n    c = C(); c.c = c\ngc.collect()",
        "import faulthandler; faulthandler.dump_traceback_later(1000, repeat=True)",
        "import sys; sys.modules.clear()",
        "import sys; sys.path.clear(); sys.meta_path.clear(); sys.argv = None",
        "import sys; sys.modules['__main__'] = 3",
        "import sys; sys.excepthook = sys.displayhook = None",
        "import builtins; del builtins.display, builtins.repr",
        "import codecs; codecs.register_error('backslashreplace', lambda e: 1/0)",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "import atexit, time; atexit.register(lambda: time.sleep(99))",
        "globals().clear()",
        "class M(type):\n    __name__ = property(lambda s: 1/0)\n    __qualname__ = __module__ = __name__\nclass E(Exception, metaclass=M):\n    def __str__(self): 1/0\n    __repr__ = __str__\nraise E",
        "class E(Exception):\n    __class__ = property(lambda s: 1/0)\n    __cause__ = __context__ = __traceback__ = property(lambda s: 1/0)\nraise E",
        "raise SystemExit(type('S', (), {'__str__': lambda s: 1/0})())",
        "class S(SystemExit):\n    code = property(lambda s: 1/0)\nraise S",
        "class S(str): encode = lambda s, *a: b'\\xff' * 9\nclass E(Exception): pass\nE.__name__ = S('n'); raise E(S('v'))",
        "class N(int): to_bytes = lambda s, *a, **k: b'x'\nraise SystemExit(N(3))",
        "raise BaseException('base')",
        "raise GeneratorExit",
        "import linecache; linecache.cache = None; linecache.getlines = None\n1/0",
        "import _thread; _thread.start_new_thread = None\nfor i in range(1000): print(i)",
        "import asyncio; await asyncio.sleep(0); asyncio.get_event_loop().stop()",
        "import asyncio; await asyncio.sleep(0); asyncio.get_running_loop().call_soon(asyncio.get_running_loop().stop); await asyncio.sleep(5)",
        "import os; [os.close(n) for n in (0, 1, 2)]",
        "import sys; sys.stdin.close(); sys.stdout.close(); sys.stderr.close()",
        "import sys; del sys.stdout, sys.stderr, sys.stdin",
    ] {
        let mut worker = Worker::new();
        worker.start(&cell(code), None);
        worker.finish().unwrap_or_else(|outcome| panic!("{code}: died, {outcome:?}"));
        let sum = worker.run("20 + 22");
        assert_eq!(sum.text(), Some("42"), "after {code}: {sum:?}");
        let error = worker.run("1 / 0");
        let (name, _, _) = error.error().expect("an error");
        assert_eq!(name, "ZeroDivisionError", "after {code}");
        let waits = worker.run("await __import__('asyncio').sleep(0, 7)");
        assert!(waits.text() == Some("7") || waits.error().is_some(), "after {code}: {waits:?}");
    }
}

fn copies_never_answer() {
    for code in [
        "import os; os.fork();",
        "import os; os.fork(); os.fork(); print(end='')",
        "import os; os.fork(); display(1)",
        "import ctypes; ctypes.CDLL(None).syscall(56, 17, 0, 0, 0, 0);",
        "import os, time\nif os.fork() == 0: time.sleep(0.3)",
        "import os\nif os.fork() == 0: 1/0",
    ] {
        let mut worker = Worker::new();
        let outcome = worker.run(code);
        assert_eq!(outcome.error(), None, "{code}");
        for n in 0..3 {
            assert_eq!(worker.run(&format!("{n}")).text(), Some(format!("{n}").as_str()), "{code}");
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(worker.run("3").text(), Some("3"), "{code}");
    }
}

fn copies_end_like_programs() {
    let mut worker = Worker::new();
    for (child, status) in
        [("pass", 0), ("import sys; sys.exit(3)", 3), ("1/0", 1), ("import os; os._exit(5)", 5)]
    {
        let code = format!(
            "import os\npid = os.fork()\nif pid == 0:\n    print('child', end='')\n    {child}\nelse:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
        );
        let outcome = worker.run(&code);
        let expected = format!("child{status}\n");
        assert_eq!(outcome.stdout(), expected, "{child}");
    }
    let pool = worker.run("from multiprocessing import get_context\ndef square(x): return x * x\nwith get_context('fork').Pool(2) as pool: r = pool.map(square, range(4))\nr");
    assert_eq!(pool.text(), Some("[0, 1, 4, 9]"));
}

fn deaths_are_seen() {
    for (code, status) in [
        ("import os; os._exit(0)", 0),
        ("import os; os._exit(7)", 7 << 8),
        ("import ctypes; ctypes.string_at(0)", 11),
        ("import os; os.kill(os.getpid(), 9)", 9),
        ("import signal, time; signal.alarm(1); time.sleep(20)", 14),
    ] {
        let mut worker = Worker::new();
        worker.start(&cell(code), None);
        assert!(worker.finish().is_err(), "{code}");
        let sandbox_cells::ZygoteReply::Reaped { status: found, .. } = worker.reap() else {
            panic!()
        };
        assert_eq!(found & 0xff7f, status, "{code}");
    }
}

fn garbage_on_every_descriptor() {
    let mut worker = Worker::new();
    worker.start(&cell("import os\nfor n in range(3, 1024):\n    try: os.write(n, b'\\xff' * 64)\n    except OSError: pass"), None);
    // The stream holds garbage now, and 0xffffffff is not a length that is accepted.
    let mut reader = FrameReader::new();
    reader.push(&worker.read_some());
    assert!(matches!(reader.next_frame(), Err(WireError::TooLong { .. })));
    worker.reap();
}

fn an_audit_hook_that_raises() {
    let mut worker = Worker::new();
    let pid = worker.pid;
    worker.start(&cell("import sys; print('before'); sys.addaudithook(lambda *a: 1/0)"), None);
    let outcome = worker.finish().expect_err("the worker ends");
    assert_eq!(outcome.stdout(), "before\n");
    // Nothing removes such a hook: the worker says so and ends.
    let last = outcome.replies.last();
    assert!(matches!(last, Some(Reply::Refused { step, .. }) if step == "audit hook"), "{last:?}");
    worker.reap();
    assert!(!crate::harness::alive(pid), "a worker that cannot run code lives on");
}

fn broken_builtins_still_compute() {
    let mut worker = Worker::new();
    worker.run("import builtins\nfor n in ('print', 'len', 'exec', 'compile', 'eval', 'isinstance', 'type', 'getattr', 'range', 'repr', 'str'): setattr(builtins, n, None)");
    assert_eq!(worker.run("1+1").text(), Some("2"));
    let error = worker.run("raise ValueError('still said')");
    let (name, value, traceback) = error.error().expect("an error");
    assert_eq!((name, value), ("ValueError", "still said"));
    assert!(traceback.contains("line 1, in <module>"), "{traceback}");
    assert_eq!(worker.run("import os; os._exit").error(), None);
}

fn streams_come_back() {
    for code in [
        "import sys, io; sys.stdout = object(); sys.stderr = None",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import os; os.close(1); os.close(2)",
        "import os; n = os.open('/dev/null', 1); os.dup2(n, 1); os.dup2(n, 2)",
    ] {
        let mut worker = Worker::new();
        worker.run(code);
        let outcome = worker.run("import sys; print('out'); print('err', file=sys.stderr)");
        assert_eq!(
            (outcome.stdout(), outcome.stderr()),
            ("out\n".into(), "err\n".into()),
            "{code}"
        );
    }
}

/// Streams are put in order when a run has ended, and handlers of signals are code that runs after that.
fn streams_come_back_from_between_two_runs() {
    for away in [
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = None",
        "del sys.stdout, sys.stderr, sys.__stdout__",
        "n = os.open('/dev/null', 1); os.dup2(n, 1); os.dup2(n, 2)",
    ] {
        let mut worker = Worker::new();
        let gone = std::env::temp_dir().join(format!("streams-gone-{}", worker.pid));
        worker.run(&format!(
            "import os, signal, sys\ndef away(*_):\n    {away}\n    os.mkdir({gone:?})\n\
             signal.signal(signal.SIGALRM, away)\nsignal.setitimer(signal.ITIMER_REAL, 0.1)"
        ));
        eventually("the handler has run", || std::fs::remove_dir(&gone).is_ok());
        let outcome = worker.run("print('out'); print('err', file=sys.stderr)");
        assert_eq!(
            (outcome.stdout(), outcome.stderr()),
            ("out\n".into(), "err\n".into()),
            "{away}"
        );
    }
}

fn driver_state_has_no_name() {
    let mut worker = Worker::new();
    let outcome = worker.run("import sys, builtins\nfound = [n for s in (vars(builtins), globals()) for n, v in s.items() if type(v).__name__ in ('Driver', 'Cells', 'Zygote')]\n(found, [m for m in sys.modules if 'sandbox' in m])");
    assert_eq!(outcome.text(), Some("([], [])"));
    let pid = worker.pid;
    worker.start(&cell("import gc\n[o.clear() for o in gc.get_objects() if isinstance(o, dict) and 'serve' in o]"), None);
    // The driver is destroyed: whatever it still says, it must not hang.
    let _ = worker.finish();
    worker.reap();
    eventually("the worker is gone", || !crate::harness::alive(pid));
}
