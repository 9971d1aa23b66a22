//! Standard output and error: exact, in order, live, and fast.

use std::time::{Duration, Instant};

use crate::{
    Case,
    harness::{Worker, cell},
};

pub(crate) const CASES: &[Case] = &[
    ("bytes_are_exact", bytes_are_exact),
    ("lines_are_live", lines_are_live),
    ("order_is_exact", order_is_exact),
    ("a_burst_loses_nothing", a_burst_loses_nothing),
    ("streams_are_what_they_are_on_pipes", streams_are_what_they_are_on_pipes),
    ("streams_taken_apart_are_made_anew", streams_taken_apart_are_made_anew),
    ("c_code_and_children_are_captured", c_code_and_children_are_captured),
];

fn bytes_are_exact() {
    let mut worker = Worker::new();
    for (code, bytes) in [
        ("print('a\\0b')", b"a\0b\n".as_slice()),
        ("import sys; sys.stdout.write('x');", b"x"),
        ("print()", b"\n"),
        ("print('\\r\\n\\u20ac', end='')", b"\r\n\xe2\x82\xac"),
        (
            "for b in '\\u20ac'.encode(): sys.stdout.buffer.write(bytes([b])); sys.stdout.flush()",
            b"\xe2\x82\xac",
        ),
        ("sys.stdout.buffer.write(b'\\xff');", b"\xff"),
        ("import os; os.write(1, b'raw');", b"raw"),
    ] {
        let outcome = worker.run(code);
        assert_eq!(outcome.stdout, bytes, "{code}");
        assert_eq!(outcome.stderr(), "", "{code}");
    }
    let both = worker.run("print('o'); print('e', file=sys.stderr); sys.stdout.encoding, sys.stdout.name, sys.stdout.fileno(), sys.stdout.isatty(), sys.stderr.errors");
    assert_eq!((both.stdout(), both.stderr()), ("o\n".into(), "e\n".into()));
    assert_eq!(both.text(), Some("('utf-8', '<stdout>', 1, False, 'backslashreplace')"));
}

fn streams_are_what_they_are_on_pipes() {
    let mut worker = Worker::new();
    let code = "import io, sys\nfor s in (sys.stdout, sys.stderr):\n    s.reconfigure(encoding='utf-8')\n    \
                try: s.tell()\n    except io.UnsupportedOperation as e: print(e)\n    \
                print(s.seekable(), s.buffer.seekable(), s.buffer.raw.seekable(), s.isatty(), s.fileno(), s.readable(), s.writable(), s.closed, s.errors)\n\
                sys.stdout.reconfigure(line_buffering=True, errors='replace')";
    let pipe = "underlying stream is not seekable\nFalse False False False";
    let expected = format!("{pipe} 1 False True False strict\n{pipe} 2 False True False strict\n");
    assert_eq!(worker.run(code).stdout(), expected);
    let wrap = "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('wrapped', end='')";
    for code in [wrap, "print('wrapped', end='')"] {
        assert_eq!(worker.run(code).stdout(), "wrapped", "{code}");
    }
}

fn streams_taken_apart_are_made_anew() {
    let mut worker = Worker::new();
    worker.run("import sys; own = sys.stdout");
    assert_eq!(worker.run("sys.stdout is own").text(), Some("True"), "a good one is kept");
    for code in [
        "sys.stdout.detach(); sys.stderr.detach(); sys.stdin.detach();",
        "sys.stdout.buffer.detach();",
        "sys.stdout.close(); sys.stderr.buffer.close();",
        "sys.stdout.write = sys.stdout.buffer.write = len",
        "sys.stdout.reconfigure(encoding='ascii'); sys.stderr.reconfigure(errors='strict')",
        "sys.stdout.reconfigure(line_buffering=False)",
    ] {
        worker.run(code);
        let outcome =
            worker.run("print('\\u20ac'); print('\\udc80', file=sys.stderr); sys.stdin.read()");
        assert_eq!(outcome.text(), Some("''"), "{code}: {outcome:?}");
        assert_eq!(outcome.stdout(), "\u{20ac}\n", "{code}");
        assert_eq!(outcome.stderr(), "\\udc80\n", "{code}");
    }
}

/// Runs code that prints `lines` lines and then sleeps; says how long the last one took.
fn delay(worker: &mut Worker, code: &str, length: usize) -> Duration {
    let start = Instant::now();
    worker.start(&cell(code), None);
    let outcome = worker.finish().expect("alive");
    let (at, _) = outcome
        .progress
        .iter()
        .find(|(_, so_far)| *so_far == length)
        .unwrap_or_else(|| panic!("never {length} bytes: {}", outcome.stdout.len()));
    *at - start
}

fn lines_are_live() {
    let mut worker = Worker::new();
    for (code, length) in [
        ("print('x'); import sys, time; time.sleep(1)", 2),
        ("for i in range(40): print('x')\ntime.sleep(1)", 80),
        ("for i in range(5000): print('x')\ntime.sleep(1)", 10000),
        ("for i in range(5000): print('x')\n!sleep 1", 10000),
        ("print('x', end='', flush=True); time.sleep(1)", 1),
        ("print('x', end=''); time.sleep(1)", 1),
        ("sys.stdout.buffer.write(b'x'); time.sleep(1)", 1),
        ("print('x', end='', file=sys.stderr); print('y', end=''); time.sleep(1)", 1),
        ("for i in range(5000): print('x', end=' ')\ntime.sleep(1)", 10000),
    ] {
        let took = delay(&mut worker, code, length);
        assert!(took < Duration::from_millis(600), "{code}: {took:?}");
    }
}

fn order_is_exact() {
    let mut worker = Worker::new();
    for count in [1, 50, 500, 5000] {
        for other in [
            "os.system('echo mark')",
            "subprocess.run(['echo', 'mark'])",
            "os.waitpid(os.posix_spawn('/bin/echo', ['echo', 'mark'], {}), 0)",
        ] {
            let code = format!(
                "import os, subprocess\nfor i in range({count}): print('line')\n{other};\nprint('end')"
            );
            let expected = format!("{}mark\nend\n", "line\n".repeat(count));
            assert_eq!(worker.run(&code).stdout(), expected, "{count} {other}");
        }
    }
    let fork = "for i in range(500): print('line')\nprint('part', end='')\npid = os.fork()\nif pid == 0: os._exit(0)\nos.waitpid(pid, 0);";
    assert_eq!(worker.run(fork).stdout(), format!("{}part", "line\n".repeat(500)));
    let raw = worker.run("for i in range(20):\n    print('a'); os.write(1, b'b\\n')");
    assert_eq!(raw.stdout(), "a\nb\n".repeat(20));
}

fn a_burst_loses_nothing() {
    let mut worker = Worker::new();
    let expected: String = (0..100_000).map(|n| format!("{n}\n")).collect();
    for _ in 0..3 {
        assert_eq!(worker.run("for i in range(100_000): print(i)").stdout(), expected);
    }
    // Lines of many threads, with pauses that end and begin bursts.
    let code = "import threading, time\ndef work(n):\n    for i in range(2000):\n        print(f'{n}-{i}\\n', end='')\n        if i % 500 == 0: time.sleep(0.05)\nts = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n[t.start() for t in ts]; [t.join() for t in ts];";
    let outcome = worker.run(code);
    let mut lines: Vec<_> = outcome.stdout().lines().map(str::to_owned).collect();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), 8000);
    assert_eq!(outcome.done().2, 0);
}

fn c_code_and_children_are_captured() {
    let mut worker = Worker::new();
    let outcome = worker.run("import ctypes, subprocess\nlibc = ctypes.CDLL(None)\nlibc.puts(b'from C'); libc.fflush(None)\nsubprocess.run(['sh', '-c', 'echo child; echo wrong >&2']);");
    assert_eq!((outcome.stdout(), outcome.stderr()), ("from C\nchild\n".into(), "wrong\n".into()));
}
