//! Code that breaks the interpreter around it. The driver must not lie and must not hang.

use std::time::Duration;

use sandbox_core::{ErrorKind, ExecutionResult, FailureKind, InterpreterState, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{
    SLACK, as_shown, describe, failed_with, is_usable, ok, raises, run, text, within,
};

pub(super) fn cases() -> Vec<Case> {
    cases!("driver", [run_code], {
        broken_builtins_do_not_matter;
        broken_modules_do_not_matter;
        missing_modules_do_not_matter;
        broken_streams_are_restored;
        closed_standard_descriptors;
        a_trace_function_ends_with_the_run;
        an_audit_hook_that_raises;
        an_audit_hook_that_forbids_some_things;
        streams_that_nothing_brings_back;
        a_tiny_recursion_limit;
        an_endless_recursion_limit;
        garbage_on_every_descriptor;
        an_oversized_frame_on_every_descriptor;
        closed_descriptors;
        replaced_descriptors;
        emptied_driver_state;
        weird_exception_classes;
        exceptions_that_cannot_be_shown;
        objects_that_lie_about_their_class;
        finalizers_and_collectors_that_raise;
        replaced_exception_hooks;
        a_main_module_that_is_gone;
        faulthandler_noise_is_only_noise;
        startup_files_are_not_run;
        driver_names_are_not_in_the_way;
        a_changed_event_loop_policy;
        code_that_is_not_text;
    })
}

/// Runs hostile code. It may spoil its own result, but it must end, and the sandbox must work afterwards.
pub(super) async fn survives(sandbox: &Sandbox, code: &str) -> Checked<ExecutionResult> {
    let limit = Duration::from_secs(3);
    let run = sandbox.run_code(code).timeout(limit);
    let result = within(limit + 2 * SLACK, run).await??;
    let next = is_usable(sandbox).await?;
    ensure_eq!(next.results.len(), 1, "results of the run after {code:?}");
    ensure_eq!(next.stdout_trimmed(), "", "output of the run after {code:?}");
    Ok(result)
}

/// Runs hostile code that must not cost the interpreter.
async fn shrugs_off(sandbox: &Sandbox, code: &str) -> Checked {
    ok(sandbox, "marker = 'kept'").await?;
    let result = survives(sandbox, code).await?;
    ensure!(result.failure.is_none(), "{code:?}: {}", describe(&result));
    ensure_eq!(text(sandbox, "marker").await?, as_shown("'kept'"), "state after {code:?}");
    let error = raises(sandbox, "print('out')\n1/0", "ZeroDivisionError").await?;
    ensure_eq!(error.stdout_trimmed(), "out", "output after {code:?}");
    Ok(())
}

async fn broken_builtins_do_not_matter(f: Fixture) -> Checked {
    for names in [
        "compile exec eval",
        "len isinstance type",
        "repr str bytes dict list",
        "open getattr hasattr",
        "BaseException Exception KeyboardInterrupt SystemExit",
        "__import__",
        "__build_class__",
    ] {
        let sandbox = f.sandbox().await?;
        let code = format!(
            "import builtins\nfor name in '{names}'.split(): setattr(builtins, name, None)"
        );
        survives(&sandbox, &code).await?;
        sandbox.kill().await?;
    }
    let sandbox = f.sandbox().await?;
    survives(&sandbox, "import builtins\nbuiltins.__dict__.clear()").await?;
    Ok(())
}

async fn broken_modules_do_not_matter(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for module in [
        "json",
        "struct",
        "socket",
        "traceback",
        "linecache",
        "ast",
        "io",
        "base64",
        "types",
        "codeop",
        "tokenize",
        "signal",
        "threading",
    ] {
        let code = format!(
            "import {module} as m\nfor name in list(vars(m)):\n    if not name.startswith('__') and callable(vars(m)[name]): setattr(m, name, lambda *a, **k: 1/0)"
        );
        shrugs_off(&sandbox, &code).await?;
    }
    Ok(())
}

async fn missing_modules_do_not_matter(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    survives(&sandbox, "import sys\nsys.modules.clear()").await?;
    let sandbox = f.sandbox().await?;
    survives(
        &sandbox,
        "import sys\nsys.path.clear(); sys.meta_path.clear(); sys.path_hooks.clear()",
    )
    .await?;
    Ok(())
}

async fn broken_streams_are_restored(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in [
        "import sys; sys.stdout = None",
        "sys.stdout = sys.stderr = sys.stdin = 5",
        "del sys.stdout, sys.stderr",
        "class S:\n    def __getattr__(self, name): raise RuntimeError(name)\nsys.stdout = sys.stderr = S()",
        "sys.stdout.close()",
        "sys.stdout.detach()",
        "sys.stderr.detach(); sys.stdin.detach()",
        "sys.stdout.buffer.detach()",
        "sys.stdout.buffer.write = lambda *a: 1/0",
        "sys.stdout.write = lambda *a: 1/0",
        "sys.stdout.reconfigure(encoding='ascii', errors='strict')",
    ] {
        survives(&sandbox, &format!("import sys\n{code}")).await?;
        let result = ok(&sandbox, "import sys\nprint('o ä')\nprint('e', file=sys.stderr)").await?;
        ensure_eq!(
            (result.stdout_trimmed(), result.stderr_trimmed()),
            ("o ä".into(), "e".into()),
            "after {code:?}"
        );
    }
    Ok(())
}

async fn closed_standard_descriptors(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    survives(&sandbox, "import os\nfor fd in (0, 1, 2): os.close(fd)").await?;
    let sandbox = f.sandbox().await?;
    survives(
        &sandbox,
        "import os\nn = os.open('/dev/null', os.O_RDWR)\nfor fd in (0, 1, 2): os.dup2(n, fd)",
    )
    .await?;
    Ok(())
}

async fn a_trace_function_ends_with_the_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for name in ["settrace", "setprofile"] {
        survives(&sandbox, &format!("import sys\nsys.{name}(lambda *a: 1/0)")).await?;
        ensure_eq!(text(&sandbox, "def f(): return 5\nf()").await?, "5", "after {name}");
    }
    Ok(())
}

async fn an_audit_hook_that_raises(f: Fixture) -> Checked {
    // It cannot be removed, so the interpreter is lost, and the run that did it hears that.
    for hook in [
        "lambda *a: 1/0",
        "lambda event, args: 1/0 if event == 'compile' else None",
        "lambda event, args: 1/0 if event == 'exec' else None",
        "lambda *a: exit(5)",
    ] {
        let sandbox = f.sandbox().await?;
        let code = format!("import sys\nprint('before')\nsys.addaudithook({hook})");
        let result = run(&sandbox, &code).await?;
        failed_with(&result, FailureKind::KernelDied)?;
        ensure_eq!(result.state, InterpreterState::Lost, "state after {hook}");
        ensure_eq!(result.stdout_trimmed(), "before");
        let message = result.failure.map(|failure| failure.message).unwrap_or_default();
        ensure!(message.contains("audit hook"), "{hook}: {message}");
        ensure!(is_usable(&sandbox).await?.restarted, "the next run does not say `restarted`");
    }
    Ok(())
}

async fn streams_that_nothing_brings_back(f: Fixture) -> Checked {
    // The copies of the three streams are from 102 on. Without one of them there is no place for what code prints.
    for code in [
        "os.close(1); os.close(103)",
        "null = os.open(os.devnull, 1); os.dup2(null, 103); os.dup2(null, 1)",
    ] {
        let sandbox = f.sandbox().await?;
        run(&sandbox, &format!("import os\n{code}")).await?;
        let next = run(&sandbox, "print('really')").await?;
        if next.success() {
            ensure_eq!(next.stdout_trimmed(), "really", "after {code}");
        } else {
            ensure_eq!(next.state, InterpreterState::Lost, "after {code}: {}", describe(&next));
        }
        is_usable(&sandbox).await?;
    }
    Ok(())
}

async fn an_audit_hook_that_forbids_some_things(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sys\ndef hook(event, args):\n    if event == 'os.system': raise PermissionError(event)\nsys.addaudithook(hook)";
    shrugs_off(&sandbox, code).await?;
    raises(&sandbox, "import os; os.system('true')", "PermissionError").await?;
    ensure_eq!(text(&sandbox, "marker").await?, as_shown("'kept'"));
    Ok(())
}

async fn a_tiny_recursion_limit(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for limit in [60, 20, 5] {
        let code =
            format!("import sys\ntry: sys.setrecursionlimit({limit})\nexcept RecursionError: pass");
        survives(&sandbox, &code).await?;
    }
    Ok(())
}

async fn an_endless_recursion_limit(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sys\nsys.setrecursionlimit(2**31 - 1)\nclass D:\n    def __getattr__(self, name): return getattr(self, name + 'x')\nD().y";
    let result = survives(&sandbox, code).await?;
    ensure!(!result.success(), "endless recursion succeeded");
    Ok(())
}

/// Everything but the standard streams: whatever the driver talks over is among them.
const EVERY_DESCRIPTOR: &str =
    "import os\nfds = [int(n) for n in os.listdir('/proc/self/fd') if int(n) > 2]\n";

async fn on_every_descriptor(f: &Fixture, action: &str) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = format!(
        "{EVERY_DESCRIPTOR}for fd in fds:\n    try: {action}\n    except OSError: pass\n'forged'"
    );
    let result = survives(&sandbox, &code).await?;
    ensure!(result.text() != Some("2"), "another run's value: {}", describe(&result));
    Ok(())
}

async fn garbage_on_every_descriptor(f: Fixture) -> Checked {
    on_every_descriptor(&f, "os.write(fd, b'\\xff' * 64)").await?;
    on_every_descriptor(&f, "os.write(fd, b'\\0' * 4096)").await?;
    on_every_descriptor(&f, "os.write(fd, os.urandom(100000))").await
}

async fn an_oversized_frame_on_every_descriptor(f: Fixture) -> Checked {
    on_every_descriptor(&f, "os.write(fd, b'\\xff\\xff\\xff\\xff')").await?;
    on_every_descriptor(&f, "os.write(fd, b'\\0\\0\\0\\4\\1' + b'x' * 1000)").await?;
    on_every_descriptor(&f, "os.write(fd, b'\\5')").await
}

async fn closed_descriptors(f: Fixture) -> Checked {
    on_every_descriptor(&f, "os.close(fd)").await?;
    let sandbox = f.sandbox().await?;
    let result =
        survives(&sandbox, "import os; os.closerange(3, 4096)\nimport time; time.sleep(1); 'late'")
            .await?;
    ensure!(!result.success(), "a run without a way to answer succeeded: {}", describe(&result));
    Ok(())
}

async fn replaced_descriptors(f: Fixture) -> Checked {
    on_every_descriptor(&f, "os.dup2(1, fd)").await?;
    on_every_descriptor(&f, "os.dup2(os.open('/dev/zero', os.O_RDWR), fd)").await?;
    on_every_descriptor(&f, "os.dup2(os.pipe()[0], fd)").await
}

async fn emptied_driver_state(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    survives(&sandbox, "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and ('serve' in o or 'run_cell' in o or 'control' in o): o.clear()").await?;
    let sandbox = f.sandbox().await?;
    survives(&sandbox, "globals().clear()").await?;
    let sandbox = f.sandbox().await?;
    survives(&sandbox, "import gc\nfor o in gc.get_objects():\n    if isinstance(o, (dict, list, set)):\n        try: o.clear()\n        except BaseException: pass").await?;
    Ok(())
}

async fn weird_exception_classes(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in [
        "raise type('\\x00\\n', (Exception,), {})('x')",
        "raise type('\\ud800', (Exception,), {})('\\ud800')",
        "raise type('N' * 100000, (Exception,), {})('v' * (10 << 20))",
        "class M(type):\n    __name__ = property(lambda self: 1/0)\nclass E(Exception, metaclass=M): pass\nraise E",
        "class E(Exception):\n    __module__ = 5\nraise E('m')",
    ] {
        let result = survives(&sandbox, code).await?;
        ensure!(!result.success(), "{code:?} succeeded");
        serde_json::to_string(&result)?;
    }
    Ok(())
}

async fn exceptions_that_cannot_be_shown(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in [
        "class E(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise E",
        "class E(Exception):\n    def __str__(self): return 5\nraise E",
        "class E(Exception):\n    @property\n    def __traceback__(self): 1/0\n    @property\n    def __cause__(self): 1/0\n    @property\n    def args(self): 1/0\nraise E",
        "class E(Exception):\n    def __getattribute__(self, name): raise RuntimeError(name)\nraise E",
        "e = ValueError('loop')\ne.__cause__ = e\ne.__context__ = e\nraise e",
    ] {
        let result = survives(&sandbox, code).await?;
        ensure!(!result.success() && result.failure.is_none(), "{code:?}: {}", describe(&result));
        ensure!(result.code_error.is_some(), "{code:?} has no error");
    }
    Ok(())
}

async fn objects_that_lie_about_their_class(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in [
        "class O:\n    @property\n    def __class__(self): raise RuntimeError('no class')\nO()",
        "class O:\n    def __getattribute__(self, name): raise RuntimeError(name)\nO()",
        "class O:\n    def __getattr__(self, name): return O()\n    def __call__(self, *a, **k): return O()\nO()",
        "class M(type):\n    def __getattribute__(cls, name): raise RuntimeError(name)\nclass O(metaclass=M): pass\nO()",
        "class O:\n    def __repr__(self): return 5\nO()",
        "class S(str):\n    def __len__(self): return 1 << 40\n    def encode(self, *a): return self\nclass O:\n    def __repr__(self): return S('x')\nO()",
        "class O:\n    def __eq__(self, other): raise RuntimeError('eq')\n    def __bool__(self): raise RuntimeError('bool')\nO()",
    ] {
        let result = survives(&sandbox, code).await?;
        ensure!(result.failure.is_none(), "{code:?}: {}", describe(&result));
    }
    Ok(())
}

async fn finalizers_and_collectors_that_raise(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import gc, weakref, atexit
gc.callbacks.append(lambda *a: 1/0)
class D:
    def __del__(self): raise RuntimeError('del')
d = D(); d.self = d; del d
gc.collect()
atexit.register(lambda: 1/0)
gc.disable()";
    shrugs_off(&sandbox, code).await
}

async fn replaced_exception_hooks(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sys\nsys.excepthook = sys.unraisablehook = sys.displayhook = sys.breakpointhook = lambda *a, **k: 1/0";
    shrugs_off(&sandbox, code).await
}

async fn a_main_module_that_is_gone(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    survives(&sandbox, "import sys\ndel sys.modules['__main__']").await?;
    survives(&sandbox, "del __builtins__").await?;
    survives(&sandbox, "__name__ = 5\n__builtins__ = {}").await?;
    Ok(())
}

async fn faulthandler_noise_is_only_noise(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import faulthandler, time\nfaulthandler.dump_traceback_later(0.1, repeat=True, file=open('trace.txt', 'w'))\ntime.sleep(0.4)\nfaulthandler.cancel_dump_traceback_later()\n'end'";
    ensure_eq!(text(&sandbox, code).await?, as_shown("'end'"));
    Ok(())
}

async fn startup_files_are_not_run(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.env("PYTHONSTARTUP", "startup.py")).await?;
    let code = "for name in ('sitecustomize.py', 'usercustomize.py', 'startup.py', 'json.py', 'ast.py'):\n    open(name, 'w').write('open(\"ran\", \"a\").write(__name__)')";
    ok(&sandbox, code).await?;
    failed_with(&run(&sandbox, "import os; os._exit(1)").await?, FailureKind::KernelDied)?;
    ensure_eq!(text(&sandbox, "import os; os.path.exists('ran')").await?, "False");
    Ok(())
}

async fn driver_names_are_not_in_the_way(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let found =
        text(&sandbox, "sorted(name for name in globals() if not name.startswith('__'))").await?;
    ensure_eq!(found, "[]", "names before any code");
    ok(&sandbox, "run = serve = driver = control = sys = os = None").await?;
    ensure_eq!(text(&sandbox, "'fine'").await?, as_shown("'fine'"));
    Ok(())
}

async fn a_changed_event_loop_policy(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import asyncio\nawait asyncio.sleep(0)").await?;
    survives(&sandbox, "asyncio.get_event_loop().close()").await?;
    survives(
        &sandbox,
        "async def f(): asyncio.get_running_loop().stop()\nawait f()\nawait asyncio.sleep(0.01)",
    )
    .await?;
    survives(&sandbox, "asyncio.set_event_loop(None)").await?;
    ensure_eq!(text(&sandbox, "await asyncio.sleep(0, 'fine')").await?, as_shown("'fine'"));
    Ok(())
}

async fn code_that_is_not_text(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    match sandbox.run_code("x = 1\0\ny = 2").await {
        Ok(result) => ensure!(result.code_error.is_some(), "{}", describe(&result)),
        Err(error) => ensure_eq!(error.kind(), ErrorKind::InvalidArgument),
    }
    is_usable(&sandbox).await?;
    Ok(())
}
