//! Code that fails: exceptions, exits, deaths. Each is a result, and each is told apart.

use sandbox_core::{ExecutionResult, FailureKind, InterpreterState, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, describe, failed_with, is_usable, ok, raises, reported, run, text};
use crate::target::Unreported;

pub(super) fn cases() -> Vec<Case> {
    cases!("errors", [run_code], {
        an_exception_keeps_output_and_state;
        a_traceback_shows_the_code_alone;
        a_traceback_reaches_into_earlier_runs;
        a_traceback_tells_of_causes;
        a_syntax_error_shows_the_place;
        syntax_that_only_functions_may_have;
        exceptions_of_every_shape;
        deep_recursion_is_an_exception;
        an_exception_whose_text_raises_keeps_the_state;
        a_traceback_of_very_many_frames_is_told;
        too_much_memory_at_once_is_an_exception;
        exit_statuses;
        an_exit_message_goes_to_stderr;
        an_exit_keeps_state;
        an_exit_in_a_thread_is_ignored;
        a_hard_exit_is_not_a_success;
        deaths_by_signal;
        a_segmentation_fault;
        after_a_death_files_are_kept;
        an_exception_in_a_thread_is_not_the_result;
        a_keyboard_interrupt_of_its_own;
        a_cancelled_error_of_its_own;
        warnings_go_to_stderr;
        a_missing_module_is_named;
    })
}

async fn an_exception_keeps_output_and_state(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result =
        raises(&sandbox, "x = 1\nprint('before')\n1/0\nx = 2", "ZeroDivisionError").await?;
    ensure_eq!(result.stdout_trimmed(), "before");
    ensure_eq!(result.code_error.map(|error| error.value).as_deref(), Some("division by zero"));
    ensure_eq!(result.exit_code, None);
    ensure_eq!(text(&sandbox, "x").await?, "1");
    Ok(())
}

fn traceback(result: ExecutionResult) -> String {
    result.code_error.map(|error| error.traceback).unwrap_or_default()
}

async fn a_traceback_shows_the_code_alone(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "def inner():\n    return missing_name\n\ninner()";
    let shown = traceback(raises(&sandbox, code, "NameError").await?);
    for part in
        ["line 4", "line 2", "in inner", "return missing_name", "NameError: name 'missing_name'"]
    {
        ensure!(shown.contains(part), "no {part:?} in {shown}");
    }
    for part in ["driver", "zygote", "worker.py", "exec(", "runpy"] {
        ensure!(!shown.contains(part), "{part:?} of the driver is in {shown}");
    }
    Ok(())
}

async fn an_exception_whose_text_raises_keeps_the_state(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "kept = 'kept'").await?;
    for what in ["ValueError('no text')", "SystemExit(3)"] {
        let code = format!(
            "class Odd(Exception):\n    def __str__(self): raise {what}\nprint('before')\nraise Odd()"
        );
        let result = raises(&sandbox, &code, "Odd").await?;
        ensure_eq!(result.stdout_trimmed(), "before");
        ensure_eq!(text(&sandbox, "kept").await?, as_shown("'kept'"), "{}", describe(&result));
    }
    Ok(())
}

async fn a_traceback_of_very_many_frames_is_told(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import sys
sys.setrecursionlimit(300_000)
def even(n): return odd(n - 1) if n else 1 / 0
def odd(n): return even(n - 1) if n else 1 / 0
# Older ones have a frame of C for each of Python.
even(100_000 if sys.version_info >= (3, 11) else 5000)";
    let result = raises(&sandbox, code, "ZeroDivisionError").await?;
    let shown = traceback(result);
    ensure!(shown.contains(" more frames]"), "{} characters", shown.len());
    ensure!(shown.contains("line 7") && shown.ends_with("division by zero\n"), "{shown:.200}");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_traceback_reaches_into_earlier_runs(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "\n\ndef earlier(d):\n    return d['no such key']").await?;
    let shown = traceback(raises(&sandbox, "earlier({})", "KeyError").await?);
    ensure!(shown.contains("line 4") && shown.contains("return d['no such key']"), "{shown}");
    Ok(())
}

async fn a_traceback_tells_of_causes(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code =
        "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise ValueError('second') from e";
    let shown = traceback(raises(&sandbox, code, "ValueError").await?);
    ensure!(shown.contains("ZeroDivisionError") && shown.contains("direct cause"), "{shown}");
    Ok(())
}

async fn a_syntax_error_shows_the_place(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let shown = traceback(raises(&sandbox, "x = 1\nif if if", "SyntaxError").await?);
    ensure!(shown.contains("line 2") && shown.contains("if if if"), "{shown}");
    raises(&sandbox, "x", "NameError").await?;
    for (code, class) in [
        ("def f():\nreturn 1", "IndentationError"),
        ("print('open", "SyntaxError"),
        ("(1, 2", "SyntaxError"),
        ("1 +", "SyntaxError"),
    ] {
        raises(&sandbox, code, class).await?;
    }
    is_usable(&sandbox).await?;
    Ok(())
}

async fn syntax_that_only_functions_may_have(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in ["return 5", "yield 1", "def f(): await g()", "break", "nonlocal x"] {
        raises(&sandbox, code, "SyntaxError").await?;
    }
    Ok(())
}

async fn exceptions_of_every_shape(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for (code, class, value) in [
        ("raise ValueError", "ValueError", ""),
        ("raise KeyError('k')", "KeyError", "'k'"),
        ("class Own(Exception): pass\nraise Own('a', 2)", "Own", "('a', 2)"),
        ("raise OSError(2, 'nope', 'f.txt')", "FileNotFoundError", "[Errno 2] nope: 'f.txt'"),
        ("raise StopIteration(3)", "StopIteration", "3"),
        ("assert 1 == 2, 'math'", "AssertionError", "math"),
        ("raise BaseException('base')", "BaseException", "base"),
        ("raise GeneratorExit", "GeneratorExit", ""),
        ("raise 5", "TypeError", "exceptions must derive from BaseException"),
    ] {
        let error = raises(&sandbox, code, class).await?.code_error.unwrap_or_default();
        ensure_eq!(error.value, value, "value of {code:?}");
    }
    Ok(())
}

async fn deep_recursion_is_an_exception(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = raises(&sandbox, "def f(): return f()\nf()", "RecursionError").await?;
    let length = traceback(result).len();
    ensure!(length < 100_000, "a traceback of {length} bytes");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn too_much_memory_at_once_is_an_exception(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "x = 'kept'").await?;
    raises(&sandbox, "bytearray(1 << 50)", "MemoryError").await?;
    ensure_eq!(text(&sandbox, "x").await?, as_shown("'kept'"));
    Ok(())
}

async fn exit_statuses(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for (code, status) in [
        ("import sys; sys.exit()", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(2)", 2),
        ("sys.exit(None)", 0),
        ("sys.exit(True)", 1),
        ("raise SystemExit(7)", 7),
        ("exit(3)", 3),
        ("quit()", 0),
        ("def f():\n    sys.exit(9)\nf()", 9),
    ] {
        let result = run(&sandbox, code).await?;
        ensure_eq!(result.exit_code, Some(status), "status of {code:?}: {}", describe(&result));
        ensure!(
            result.execution_ok && result.code_error.is_none(),
            "{code:?}: {}",
            describe(&result)
        );
        ensure_eq!(result.success(), status == 0, "success of {code:?}");
        ensure_eq!(result.state, InterpreterState::Kept, "state after {code:?}");
    }
    Ok(())
}

async fn an_exit_message_goes_to_stderr(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = run(&sandbox, "import sys; sys.exit('bad input')").await?;
    ensure_eq!(result.exit_code, Some(1));
    ensure_eq!(result.stderr_trimmed(), "bad input");
    ensure_eq!(result.code_error, None);
    Ok(())
}

async fn an_exit_keeps_state(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    run(&sandbox, "x = 5\nprint('out')\nraise SystemExit(1)\nx = 6").await?;
    let next = ok(&sandbox, "x").await?;
    ensure_eq!(next.text(), Some("5"));
    ensure!(!next.restarted, "an exit restarted the interpreter");
    Ok(())
}

async fn an_exit_in_a_thread_is_ignored(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sys, threading\nt = threading.Thread(target=sys.exit, args=(5,))\nt.start(); t.join()\n'alive'";
    let result = ok(&sandbox, code).await?;
    ensure_eq!((result.text(), result.exit_code), (Some(as_shown("'alive'")), None));
    Ok(())
}

/// Requires that the interpreter died with that status, and that the next run says so.
async fn dies(sandbox: &Sandbox, code: &str, status: i32, signal: Option<i32>) -> Checked {
    let result = run(sandbox, code).await?;
    failed_with(&result, FailureKind::KernelDied)?;
    let reported = |value| reported(Unreported::InterpreterExit, value);
    ensure_eq!(result.exit_code, reported(Some(status)), "status of {code:?}");
    let found = result.failure.and_then(|failure| failure.signal);
    ensure_eq!(found, reported(signal), "signal of {code:?}");
    ensure_eq!(result.state, InterpreterState::Lost, "state after {code:?}");
    ensure!(is_usable(sandbox).await?.restarted, "the run after {code:?} does not say `restarted`");
    ensure!(!is_usable(sandbox).await?.restarted, "`restarted` is said twice after {code:?}");
    Ok(())
}

async fn a_hard_exit_is_not_a_success(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    dies(&sandbox, "import os; os._exit(0)", 0, None).await?;
    dies(&sandbox, "import os; os._exit(7)", 7, None).await
}

async fn deaths_by_signal(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for signal in [9, 15, 1, 13] {
        let code = format!(
            "import os, signal\nsignal.signal({signal}, signal.SIG_DFL) if {signal} != 9 else 0\nos.kill(os.getpid(), {signal})"
        );
        dies(&sandbox, &code, 128 + signal, Some(signal)).await?;
    }
    let alarm = "import signal, time; signal.alarm(1); time.sleep(20)";
    dies(&sandbox, alarm, 142, Some(14)).await?;
    dies(&sandbox, "import os; os.abort()", 134, Some(6)).await
}

async fn a_segmentation_fault(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    dies(&sandbox, "import ctypes; ctypes.string_at(0)", 139, Some(11)).await
}

async fn after_a_death_files_are_kept(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "x = 1\nopen('kept.txt', 'w').write('here')").await?;
    run(&sandbox, "import os; os._exit(1)").await?;
    raises(&sandbox, "x", "NameError").await?;
    ensure_eq!(text(&sandbox, "open('kept.txt').read()").await?, as_shown("'here'"));
    Ok(())
}

async fn an_exception_in_a_thread_is_not_the_result(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code =
        "import threading\nt = threading.Thread(target=lambda: 1/0)\nt.start(); t.join()\n'main'";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(result.text(), Some(as_shown("'main'")));
    ensure!(
        result.stderr_trimmed().contains("ZeroDivisionError"),
        "stderr {:?}",
        result.stderr_trimmed()
    );
    Ok(())
}

async fn a_keyboard_interrupt_of_its_own(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = raises(&sandbox, "raise KeyboardInterrupt", "KeyboardInterrupt").await?;
    ensure!(!result.interrupted, "it was not interrupted");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_cancelled_error_of_its_own(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import asyncio\nasync def f(): raise asyncio.CancelledError\nawait f()";
    raises(&sandbox, code, "CancelledError").await?;
    ensure_eq!(text(&sandbox, "await asyncio.sleep(0, 'fine')").await?, as_shown("'fine'"));
    Ok(())
}

async fn warnings_go_to_stderr(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = ok(&sandbox, "import warnings; warnings.warn('careful')").await?;
    ensure!(result.stderr_trimmed().contains("careful"), "stderr {:?}", result.stderr_trimmed());
    ensure_eq!(result.stdout_trimmed(), "");
    Ok(())
}

async fn a_missing_module_is_named(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = raises(&sandbox, "import no_such_module_x", "ModuleNotFoundError").await?;
    let value = result.code_error.map(|error| error.value).unwrap_or_default();
    ensure!(value.contains("no_such_module_x"), "value {value:?}");
    Ok(())
}
