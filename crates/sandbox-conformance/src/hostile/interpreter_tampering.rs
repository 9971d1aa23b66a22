//! Code that takes the interpreter's own machinery apart.

use std::time::{Duration, Instant};

use sandbox_core::{ErrorKind, FailureKind, InterpreterState};

use super::support::{attack, attack_for};
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{SLACK, WAIT_TIMEOUT, describe, is_usable, ok, run, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("interpreter_tampering", [run_code, local], {
        f136_half_a_message_byte_by_byte;
        f137_values_that_are_deep needs variables;
        f139_the_control_stream_becomes_another;
        f144_everything_that_the_collector_knows_is_emptied;
        f147_recursion_in_c;
        f149_a_crash_is_told_at_once;
        f156_finalizers_that_sleep;
        f157_an_alarm_ends_it;
        f162_the_collector_is_turned_against_it;
        f166_nothing_of_the_working_directory_is_started;
        threads_in_every_state;
        the_interpreter_is_finalized;
        signals_at_every_moment needs contained;
        modules_that_shadow_the_library;
        a_fork_server_of_its_own;
        descriptors_of_its_own_are_passed_away;
        memory_of_the_driver_is_overwritten;
        objects_that_end_the_world_when_shown;
        a_main_thread_that_is_not_the_main_thread;
        streams_that_are_replaced_below;
        exits_from_everywhere;
        thread_switches_without_end;
        environment_that_is_destroyed;
    })
}

/// Each may spoil its own run and cost the interpreter, at once or when the next run begins. That is told, and the run
/// after that is one like any other.
async fn survives_all(f: &Fixture, codes: &[&str]) -> Checked {
    for code in codes {
        let sandbox = f.sandbox().await?;
        let result = attack(&sandbox, code).await?;
        let mut next = run(&sandbox, "1+1").await?;
        if let Some(failure) = &next.failure {
            // Damage that shows later.
            ensure_eq!(failure.kind, FailureKind::KernelDied, "after {code:?}");
            ensure_eq!(next.state, InterpreterState::Lost, "after {code:?}");
            next = is_usable(&sandbox).await?;
            ensure!(next.restarted, "after {code:?}: {}", describe(&next));
        }
        ensure_eq!(next.text(), Some("2"), "after {code:?}: {}", describe(&next));
        ensure_eq!(next.stdout_trimmed(), "", "output after {code:?}");
        ensure!(
            result.state == InterpreterState::Kept || next.restarted,
            "the loss was not told after {code:?}: {}",
            describe(&result)
        );
        sandbox.kill().await?;
    }
    Ok(())
}

const SOCKETS: &str = "
import os, socket, stat, time
def sockets():
    for name in os.listdir('/proc/self/fd'):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode): yield int(name)
        except OSError: pass
";

async fn f136_half_a_message_byte_by_byte(f: Fixture) -> Checked {
    let lines = [
        "for fd in sockets(): os.write(fd, b'\\xff\\xff\\xff\\xff')",
        "for fd in sockets(): os.write(fd, b'\\x00')",
        "for fd in sockets(): os.write(fd, b'\\x10\\x00\\x00\\x00abc')",
        "while True:\n    for fd in sockets(): os.write(fd, b'\\x01')\n    time.sleep(0.05)",
    ];
    let codes = lines.map(|line| format!("{SOCKETS}{line}"));
    survives_all(&f, &codes.each_ref().map(String::as_str)).await
}

async fn f137_values_that_are_deep(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
deep = []
for _ in range(100_000): deep = [deep]
wide = {str(n): n for n in range(300_000)}
circle = []; circle.append(circle)
class Lies(dict):
    def items(self): raise SystemExit(9)
    def __iter__(self): raise KeyboardInterrupt
lies = Lies(a=1)
huge = 10 ** 6000
nan = [float('nan'), float('inf')]
surrogate = '\\ud800'";
    ok(&sandbox, code).await?;
    for name in ["deep", "circle", "lies", "huge", "nan", "surrogate", "wide"] {
        // A value or an error, and soon.
        let answer =
            tokio::time::timeout(WAIT_TIMEOUT, sandbox.get_variable::<serde_json::Value>(name))
                .await;
        ensure!(answer.is_ok(), "{name} hangs");
        is_usable(&sandbox).await?;
    }
    let mut deep = serde_json::Value::Null;
    for _ in 0..5_000 {
        deep = serde_json::Value::Array(vec![deep]);
    }
    let answer = sandbox.set_variable("deep", &deep).await;
    // Its own destructor would go as deep.
    while let serde_json::Value::Array(mut inner) = deep {
        deep = inner.pop().unwrap_or_default();
    }
    ensure!(
        answer.as_ref().err().is_none_or(|e| e.kind() == ErrorKind::InvalidArgument),
        "{answer:?}"
    );
    is_usable(&sandbox).await?;
    Ok(())
}

async fn f139_the_control_stream_becomes_another(f: Fixture) -> Checked {
    let lines = [
        "for fd in sockets(): os.dup2(1, fd)",
        "for fd in sockets(): os.dup2(os.open('/dev/zero', os.O_RDWR), fd)",
        "for fd in sockets(): os.close(fd)",
        "for fd in sockets(): socket.socket(fileno=fd).shutdown(socket.SHUT_RDWR)",
        "for fd in sockets(): socket.socket(fileno=fd).shutdown(socket.SHUT_WR)",
        "for fd in sockets(): socket.socket(fileno=fd).shutdown(socket.SHUT_RD)",
        "a, b = socket.socketpair()\nfor fd in sockets(): os.dup2(a.fileno(), fd) if fd not in (a.fileno(), b.fileno()) else None",
        "for fd in sockets(): os.set_blocking(fd, not os.get_blocking(fd))",
        "for fd in sockets():\n    s = socket.socket(fileno=os.dup(fd)); s.setsockopt(1, 7, 1); s.setsockopt(1, 8, 1)",
    ];
    let codes = lines.map(|line| format!("{SOCKETS}{line}"));
    survives_all(&f, &codes.each_ref().map(String::as_str)).await
}

async fn f144_everything_that_the_collector_knows_is_emptied(f: Fixture) -> Checked {
    survives_all(
        &f,
        &[
            "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'serve' in o: o.clear()",
            "import gc\nfor o in gc.get_objects():\n    if type(o) is list: o.clear()",
            "import gc\nfor o in gc.get_objects():\n    if type(o) is dict: o.clear()",
            "import gc, types\nfor o in gc.get_objects():\n    if isinstance(o, types.FunctionType):\n        try: o.__code__ = (lambda *a, **k: None).__code__\n        except BaseException: pass",
            "import gc\nfor o in gc.get_objects():\n    if isinstance(o, type):\n        for n in list(vars(o)):\n            try: delattr(o, n)\n            except BaseException: pass",
            "import sys\nf = sys._getframe()\nwhile f:\n    for n in list(f.f_globals): f.f_globals[n] = None\n    f = f.f_back",
            "import sys\nfor m in list(sys.modules.values()): vars(m).clear()",
        ],
    )
    .await
}

async fn f147_recursion_in_c(f: Fixture) -> Checked {
    survives_all(
        &f,
        &[
            "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
            "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
            "import sys, threading\nthreading.stack_size(32768)\nsys.setrecursionlimit(10**9)\ndef f(): f()\nt = threading.Thread(target=f); t.start(); t.join()",
            "x = None\nfor _ in range(10**6): x = (x,)\ndel x",
            "eval('(' * 10**5 + ')' * 10**5)",
            "eval('-' * 10**6 + '1')",
            "class A:\n    def __getattr__(self, n): return getattr(self, n + 'x')\nA().y",
            "def f():\n    try: f()\n    finally: f()\nf()",
            "import json\njson.loads('[' * 10**6)",
            "import ast\nast.literal_eval('+' * 10**5 + '1')",
        ],
    )
    .await
}

async fn f149_a_crash_is_told_at_once(f: Fixture) -> Checked {
    let mut quickest = Duration::MAX;
    for (code, exit) in [
        ("import ctypes; ctypes.string_at(0)", 139),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", 132),
        ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", 135),
        ("import ctypes; ctypes.CDLL(None).abort()", 134),
    ] {
        let sandbox = f.sandbox().await?;
        is_usable(&sandbox).await?;
        let began = Instant::now();
        let result = attack_for(&sandbox, code, WAIT_TIMEOUT).await?;
        ensure_eq!(result.exit_code, Some(exit), "{code}: {}", describe(&result));
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(2), "it was told after {took:?}");
        quickest = quickest.min(took);
        ensure!(is_usable(&sandbox).await?.restarted, "after {code}");
    }
    // What waits for a time limit of its own would be late each time; a busy machine is not.
    ensure!(quickest < Duration::from_millis(200), "at the soonest after {quickest:?}");
    Ok(())
}

async fn f156_finalizers_that_sleep(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import atexit, signal, time, weakref
atexit.register(time.sleep, 99)
class End:
    def __del__(self): time.sleep(99)
end = End()
for s in range(1, 32):
    try: signal.signal(s, lambda *a: time.sleep(99))
    except (OSError, ValueError): pass";
    ok(&sandbox, code).await?;
    let began = Instant::now();
    sandbox.terminate().await?;
    ensure!(began.elapsed() < Duration::from_secs(1), "terminate took {:?}", began.elapsed());
    Ok(())
}

async fn f157_an_alarm_ends_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let alarm = "import signal, time\nsignal.alarm(1)\ntime.sleep(20)";
    let result = attack_for(&sandbox, alarm, WAIT_TIMEOUT).await?;
    ensure_eq!(result.exit_code, Some(142), "{}", describe(&result));
    // One that goes off between two runs costs the interpreter, and the next run says so or waits it out.
    ok(&sandbox, "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0.3)").await?;
    tokio::time::sleep(Duration::from_millis(800)).await;
    let next = is_usable(&sandbox).await?;
    ensure!(next.restarted, "the loss between two runs was not told: {}", describe(&next));
    Ok(())
}

async fn f162_the_collector_is_turned_against_it(f: Fixture) -> Checked {
    survives_all(
        &f,
        &[
            "import gc\ngc.disable()\nclass C: pass\nfor _ in range(10**6):\n    c = C(); c.c = c",
            "import gc\ngc.callbacks.append(lambda *a: 1/0)\ngc.collect()",
            "import gc, os\ngc.callbacks.append(lambda *a: os._exit(3))\ngc.collect()",
            "import gc\ngc.unfreeze(); gc.set_threshold(1); gc.collect()",
            "import gc\ngc.callbacks.append(lambda *a: gc.get_objects().clear())\ngc.set_threshold(1, 1, 1)",
            "import gc\ngc.set_debug(gc.DEBUG_LEAK | gc.DEBUG_STATS)\ngc.collect()",
        ],
    )
    .await
}

async fn f166_nothing_of_the_working_directory_is_started(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os, site
home = os.path.expanduser('~')
assert site.getusersitepackages().startswith(home), site.getusersitepackages()
evil = 'import os; os.environ[\"EVIL\"] = \"1\"; open(os.path.expanduser(\"~/evil\"), \"w\").close()'
places = ['.', os.path.expanduser('~')] + [p for p in [site.getusersitepackages()]]
for place in places:
    try:
        os.makedirs(place, exist_ok=True)
        for name in ['sitecustomize.py', 'usercustomize.py', 'codecs.py', 'io.py', 'os.py', 'json.py', 'ast.py', 'traceback.py', '.pythonrc', '.pdbrc']:
            open(os.path.join(place, name), 'w').write(evil)
        open(os.path.join(place, 'evil.pth'), 'w').write(evil + '\\n')
    except OSError as e: print(e)
for name in ['PYTHONSTARTUP', 'PYTHONINSPECT']: os.environ[name] = os.path.abspath('sitecustomize.py')
os._exit(0)";
    let planted = attack(&sandbox, code).await?;
    ensure_eq!(planted.exit_code, Some(0), "{}", describe(&planted));
    for _ in 0..2 {
        let seen = text(
            &sandbox,
            "import os\n(os.environ.get('EVIL'), os.path.exists(os.path.expanduser('~/evil')))",
        )
        .await?;
        ensure_eq!(seen, "(None, False)");
        sandbox.restart_context("default").await?;
    }
    Ok(())
}

async fn threads_in_every_state(f: Fixture) -> Checked {
    survives_all(
        &f,
        &[
            "import threading, os\nfor _ in range(20): threading.Thread(target=lambda: [os.write(1, b'') for _ in iter(int, 1)], daemon=True).start()\n5",
            "import _thread, time\n_thread.start_new_thread(lambda: (time.sleep(0.1), _thread.interrupt_main()), ())\n5",
            "import threading, os\nt = threading.Thread(target=os._exit, args=(7,)); t.start(); t.join()",
            "import threading, ctypes\nthreading.Thread(target=lambda: ctypes.string_at(0)).start()\nimport time; time.sleep(1)",
            "import threading, ctypes\nid = threading.main_thread().ident\nthreading.Thread(target=lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(id), ctypes.py_object(SystemExit))).start()\nwhile True: pass",
            "import threading, ctypes, time\nid = threading.main_thread().ident\ndef shoot():\n    for _ in range(300):\n        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(id), ctypes.py_object(KeyboardInterrupt)); time.sleep(0.005)\nthreading.Thread(target=shoot, daemon=True).start()\ntry: time.sleep(0.3)\nexcept BaseException: pass",
            "import ctypes\nctypes.pythonapi.PyGILState_Release(0)",
            "import ctypes\nctypes.PyDLL(None).PyEval_SaveThread()",
            "import ctypes\nctypes.CDLL(None).pthread_exit(0)",
        ],
    )
    .await
}

async fn the_interpreter_is_finalized(f: Fixture) -> Checked {
    survives_all(
        &f,
        &[
            "import ctypes\nctypes.pythonapi.Py_FinalizeEx()",
            "import ctypes\nctypes.pythonapi.Py_Exit(0)",
            "import ctypes\nctypes.CDLL(None).exit(0)",
            "import ctypes\nctypes.CDLL(None).quick_exit(5)",
            "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'print(1)'])",
            "import os\nos.execv('/bin/sleep', ['sleep', '99'])",
            "import os\nos.execv('/bin/cat', ['cat', '/proc/self/status'])",
            "import os\nos.execv('/usr/bin/yes', ['yes'])",
        ],
    )
    .await
}

async fn signals_at_every_moment(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os, signal, time
if os.fork() == 0:
    os.setsid()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        for s in (signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE, signal.SIGWINCH, signal.SIGURG):
            try: os.kill(os.getppid(), s) if os.getppid() > 1 else os._exit(0)
            except OSError: pass
        time.sleep(0.0005)
    os._exit(0)
for s in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE, signal.SIGWINCH, signal.SIGURG): signal.signal(s, lambda *a: None)
try: time.sleep(0.2)
except KeyboardInterrupt: pass";
    attack(&sandbox, code).await?;
    // Runs that it hits are spoiled, and say so; none hangs, and none is a success that did not happen.
    for n in 0..50 {
        let result = attack_for(&sandbox, &format!("{n} + 1"), WAIT_TIMEOUT).await?;
        let value = result.text().map(str::to_owned);
        ensure!(
            value.is_none() || value == Some((n + 1).to_string()),
            "a value of another run: {}",
            describe(&result)
        );
        ensure!(
            value.is_some() || !result.success(),
            "a success without its value: {}",
            describe(&result)
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn modules_that_shadow_the_library(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
for name in ['json', 'traceback', 'linecache', 'tokenize', 'asyncio', 'inspect', 'base64', 'subprocess', 'ctypes', 'pickle', 'resource', 'types', 'encodings', 'unicodedata', 'matplotlib', 'pandas', 'PIL', 'IPython']:
    open(name + '.py', 'w').write('raise RuntimeError(\"shadow\")')";
    ok(&sandbox, code).await?;
    sandbox.restart_context("default").await?;
    let error = attack_for(&sandbox, "print('é')\n1/0", WAIT_TIMEOUT).await?;
    let name = error.code_error.as_ref().map(|error| error.name.as_str());
    ensure_eq!(name, Some("ZeroDivisionError"), "{}", describe(&error));
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_fork_server_of_its_own(f: Fixture) -> Checked {
    // Children that go on with the driver's loop would be a second interpreter on the same streams.
    survives_all(
        &f,
        &[
            "import os\nfor _ in range(5): os.fork()",
            "import os\nif os.fork(): os._exit(0)",
            "import os\nif os.fork(): raise SystemExit(4)",
            "import os, time\nif os.fork() == 0: time.sleep(0.2)",
            "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nelse: 1/0",
            "import os, threading\nthreading.Thread(target=os.fork).start()",
            "import os\nclass F:\n    def __repr__(self): os.fork(); return 'shown'\nF()",
            "import os\nos.register_at_fork(after_in_child=lambda: None, before=lambda: 1/0)\nos.fork()",
            "import ctypes\nctypes.CDLL(None).fork()",
            "import pty\npty.fork()",
        ],
    )
    .await
}

async fn descriptors_of_its_own_are_passed_away(f: Fixture) -> Checked {
    // A child that keeps every stream of the worker, after the worker is gone.
    let code = format!(
        "{SOCKETS}
import array
a, b = socket.socketpair()
mine = [fd for fd in sockets() if fd not in (a.fileno(), b.fileno())] + [0, 1, 2]
if os.fork() == 0:
    os.setsid()
    _, anc, _, _ = b.recvmsg(1, 1000)
    time.sleep(1)
    for fd in array.array('i', anc[0][2]):
        try: os.write(fd, b'forged' * 10)
        except OSError: pass
    time.sleep(60)
a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', mine))])
os._exit(0)"
    );
    let sandbox = f.sandbox().await?;
    attack(&sandbox, &code).await?;
    for _ in 0..10 {
        let next = is_usable(&sandbox).await?;
        ensure_eq!(next.stdout_trimmed(), "", "output of another run");
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    Ok(())
}

async fn memory_of_the_driver_is_overwritten(f: Fixture) -> Checked {
    survives_all(
        &f,
        &[
            "import ctypes\nctypes.memset(id(None), 0, 16)",
            "import ctypes\nctypes.memset(id(True), 0xff, 24)",
            "import ctypes, sys\nctypes.memset(id(sys.stdout), 0, 200)",
            "import ctypes\nctypes.c_ssize_t.from_address(id('')).value = -5",
            "import ctypes\nctypes.py_object.from_address(id(int) + 8)\nctypes.c_void_p.from_address(id(int) + 48).value = 0\nint(5)",
            "import ctypes, mmap\nfor line in open('/proc/self/maps'):\n    if '[heap]' in line:\n        a, b = (int(x, 16) for x in line.split()[0].split('-'))\n        ctypes.memset(a, 0x41, b - a)",
            "import ctypes\nctypes.CDLL(None).munmap(ctypes.c_void_p(id(print) & ~4095), 4096 * 64)",
        ],
    )
    .await
}

async fn objects_that_end_the_world_when_shown(f: Fixture) -> Checked {
    survives_all(
        &f,
        &[
            "class R:\n    def __repr__(self):\n        import os; os._exit(0)\nR()",
            "class R:\n    def __repr__(self): raise SystemExit(3)\nR()",
            "class R:\n    def __repr__(self): raise KeyboardInterrupt\nR()",
            "class R:\n    def __repr__(self): raise GeneratorExit\nR()",
            "class R:\n    def __repr__(self):\n        while True: pass\nR()",
            "class R(str):\n    def __len__(self): return 10**12\n    def encode(self, *a): raise MemoryError\nclass S:\n    def __repr__(self): return R('x')\nS()",
            "class M(type):\n    def __getattribute__(c, n): raise SystemError(n)\n    def mro(c): return [c, object]\nclass S(metaclass=M): pass\nS()",
            "class S:\n    def __getattribute__(self, n): raise BaseException(n)\nS()",
            "class E(BaseException):\n    def __str__(self): raise self\n    __repr__ = __str__\nraise E",
            "class E(Exception):\n    __cause__ = property(lambda s: s)\n    __context__ = property(lambda s: s)\n    __traceback__ = property(lambda s: 5)\nraise E",
            "e = Exception(); f = Exception(); e.__cause__ = f; f.__cause__ = e\nraise e",
            "e = Exception()\nfor _ in range(5000):\n    n = Exception(); n.__context__ = e; e = n\nraise e",
            "raise type('\\x00\\n\\ud800', (Exception,), {})('\\udfff\\x00')",
            "raise ExceptionGroup('x', [ValueError(n) for n in range(10000)]) if 'ExceptionGroup' in dir(__builtins__) else ValueError",
            "compile('x', '/proc/self/mem', 'exec')\nexec(compile('1/0', '/dev/zero', 'exec'))",
            "import os\nos.path.exists('fifo') or os.mkfifo('fifo')\nexec(compile('1/0', 'fifo', 'exec'))",
            "import linecache\nlinecache.getlines = lambda *a: 1/0\nlinecache.cache = None\n1/0",
            "import sys\nsys.tracebacklimit = 'x'\n1/0",
        ],
    )
    .await
}

async fn a_main_thread_that_is_not_the_main_thread(f: Fixture) -> Checked {
    survives_all(
        &f,
        &[
            "import threading\nthreading._main_thread = None\nthreading._active.clear()",
            "import signal\nsignal.set_wakeup_fd(1, warn_on_full_buffer=False) if False else None\nimport os; r, w = os.pipe2(os.O_NONBLOCK); signal.set_wakeup_fd(w)\nos.close(r); os.kill(os.getpid(), 2)",
            "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
            "import signal\nfor s in signal.valid_signals():\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass",
            "import signal\nfor s in signal.valid_signals():\n    try: signal.siginterrupt(s, False)\n    except (OSError, ValueError): pass",
            "import sys\nsys.setswitchinterval(1e9)",
            "import sys\nsys.set_int_max_str_digits(0) if hasattr(sys, 'set_int_max_str_digits') else None\nsys.setdlopenflags(0)",
            "import faulthandler, sys\nfaulthandler.dump_traceback_later(0.1, exit=True, file=open('/dev/null', 'w'))",
            "import resource\nfor name in ['NOFILE', 'FSIZE', 'STACK', 'DATA', 'CPU']:\n    resource.setrlimit(getattr(resource, 'RLIMIT_' + name), (1, 1))",
            "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))",
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1, 1))",
        ],
    )
    .await
}

async fn streams_that_are_replaced_below(f: Fixture) -> Checked {
    survives_all(
        &f,
        &[
            "import os, fcntl\nfor fd in (0, 1, 2): fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)\nprint('x' * 10**6)",
            "import fcntl\nfcntl.fcntl(1, 1031, 4096)\nprint('x' * 10**6)",
            "import os\nr, w = os.pipe()\nos.dup2(w, 1); os.dup2(w, 2)\nos.close(r)\nprint('x')",
            "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nprint('x' * 10**5)",
            "import os\nos.dup2(os.open('/workspace', os.O_RDONLY) if os.path.exists('/workspace') else os.open('/', 0), 1)\nprint('x' * 10**5)",
            "import os\nos.closerange(0, 100000)",
            "import os\nos.closerange(3, 100000)\nprint('still')",
            "import os\nfor name in os.listdir('/proc/self/fd'):\n    try: os.read(int(name), 0) and None; os.ftruncate(int(name), 0)\n    except OSError: pass",
            "import os, fcntl\nfor name in os.listdir('/proc/self/fd'):\n    try: fcntl.fcntl(int(name), fcntl.F_SETOWN, os.getpid()); fcntl.fcntl(int(name), fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\n    except OSError: pass\nprint('x')",
        ],
    )
    .await
}

async fn exits_from_everywhere(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in [
        "import asyncio\nasync def f(): raise SystemExit(5)\nawait f()",
        "import asyncio\nasyncio.get_event_loop().call_soon(lambda: 1/0) if False else None\nasync def f(): raise KeyboardInterrupt\nawait f()",
        "exec('raise SystemExit(2)')",
        "class C:\n    def __del__(self): raise SystemExit(2)\nC()\n5",
        "raise SystemExit(SystemExit(1))",
        "raise SystemExit(2**70)",
        "raise SystemExit(-1)",
        "raise SystemExit(object())",
        "raise SystemExit('\\ud800')",
        "raise GeneratorExit",
        "import sys; sys.exit(type('X', (), {'__str__': lambda s: 1/0})())",
    ] {
        let result = attack(&sandbox, code).await?;
        ensure!(result.failure.is_none(), "{code}: {}", describe(&result));
        is_usable(&sandbox).await?;
    }
    Ok(())
}

async fn thread_switches_without_end(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os, sys, threading
sys.setswitchinterval(1e-9)
def work():
    while True: sum(range(50))
for _ in range(10): threading.Thread(target=work, daemon=True).start()
'started'";
    let result = attack_for(&sandbox, code, SLACK).await?;
    let told = result.background_threads > 0 || result.failure.is_some();
    ensure!(told, "{}", describe(&result));
    is_usable(&sandbox).await?;
    sandbox.restart_context("default").await?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn environment_that_is_destroyed(f: Fixture) -> Checked {
    survives_all(
        &f,
        &[
            "import os\nos.environ.clear()",
            "import ctypes\nctypes.CDLL(None).clearenv()",
            "import os\nos.environ = None",
            "import os\nos.chdir('/proc/self/fd')",
            "import os\nos.umask(0o777)",
            "import locale\nlocale.setlocale(locale.LC_ALL, 'C')\nimport sys\nsys.stdout.reconfigure(encoding='utf-16')",
            "import time, os\nos.environ['TZ'] = 'x' * 10000; time.tzset()",
            "import os\nos.environ['PYTHONHOME'] = '/nowhere'; os.environ['LD_PRELOAD'] = '/nowhere.so'; os.environ['PATH'] = ''",
        ],
    )
    .await
}
