//! Processes and threads that code leaves behind in the interpreter.

use std::time::Duration;

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::cases::driver::survives;
use crate::fixture::Fixture;
use crate::support::{SLACK, as_shown, describe, is_usable, ok, reported, text, within};
use crate::target::Unreported;

pub(super) fn cases() -> Vec<Case> {
    cases!("driver", [run_code], {
        a_forked_child_never_answers;
        a_cloned_child_never_answers;
        a_child_that_outlives_its_parent_never_answers;
        a_fork_in_a_thread;
        multiprocessing_works;
        threads_that_go_on;
        a_child_that_holds_the_streams;
        an_orphan_flood;
    })
}

async fn a_forked_child_never_answers(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os\nparent = os.getpid()\npid = os.fork()\n'parent' if os.getpid() == parent else 'child'";
    for _ in 0..20 {
        let result = survives(&sandbox, code).await?;
        ensure_eq!(result.text(), Some(as_shown("'parent'")), "{}", describe(&result));
        ensure_eq!(result.results.len(), 1, "results");
    }
    // The children ended instead of waiting for work.
    let children = "import os, time\ndone = 0\ntry:\n    while os.waitpid(-1, 0): done += 1\nexcept ChildProcessError: pass\n'all gone'";
    ensure_eq!(text(&sandbox, children).await?, as_shown("'all gone'"));
    Ok(())
}

async fn a_cloned_child_never_answers(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // A raw fork passes by every handler of the interpreter.
    let code = "import ctypes, os, platform\nnumber = 56 if platform.machine() == 'x86_64' else 220\nparent = os.getpid()\npid = ctypes.CDLL(None).syscall(number, 17, 0, 0, 0, 0)\n'parent' if pid != 0 else 'child'";
    let result = survives(&sandbox, code).await?;
    ensure!(result.text() != Some(as_shown("'child'")), "{}", describe(&result));
    Ok(())
}

async fn a_child_that_outlives_its_parent_never_answers(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os, time\nif os.fork() == 0:\n    time.sleep(0.3)\n    print('late child')\nelse:\n    os._exit(5)";
    let result = survives(&sandbox, code).await?;
    ensure_eq!(result.exit_code, reported(Unreported::InterpreterExit, Some(5)));
    tokio::time::sleep(Duration::from_millis(600)).await;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_fork_in_a_thread(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code =
        "import os, threading\nt = threading.Thread(target=os.fork)\nt.start(); t.join()\n'main'";
    let result = survives(&sandbox, code).await?;
    ensure_eq!(result.text(), Some(as_shown("'main'")));
    Ok(())
}

async fn multiprocessing_works(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import multiprocessing\ndef square(x): return x * x\nwith multiprocessing.get_context('fork').Pool(2) as pool:\n    out = pool.map(square, range(5))\nout";
    ensure_eq!(text(&sandbox, code).await?, "[0, 1, 4, 9, 16]");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn threads_that_go_on(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import threading, time\ncount = 0\ndef work():\n    global count\n    while True:\n        count += 1\n        time.sleep(0.01)\nthreading.Thread(target=work).start()";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(result.background_threads, reported(Unreported::Threads, 1));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let grown: u64 = text(&sandbox, "count").await?.parse().unwrap_or(0);
    ensure!(grown > 3, "the thread stands still: {grown}");
    within(SLACK, sandbox.terminate()).await??;
    Ok(())
}

async fn a_child_that_holds_the_streams(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import subprocess\np = subprocess.Popen(['sleep', '60'])\n'went on'";
    let result = within(Duration::from_secs(10), ok(&sandbox, code)).await??;
    ensure_eq!(result.text(), Some(as_shown("'went on'")));
    Ok(())
}

async fn an_orphan_flood(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os\nfor _ in range(300):\n    pid = os.fork()\n    if pid == 0:\n        os.fork()\n        os._exit(0)\n    os.waitpid(pid, 0)\n'done'";
    ensure_eq!(text(&sandbox, code).await?, as_shown("'done'"));
    is_usable(&sandbox).await?;
    Ok(())
}
