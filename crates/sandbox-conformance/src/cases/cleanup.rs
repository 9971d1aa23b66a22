//! Nothing is left: processes, descriptors, mounts, files.

use std::path::Path;
use std::time::{Duration, Instant};

use sandbox_core::{FailureKind, IsolationMode, Sandbox};

use crate::case::{Case, Checked, Failure, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::leak_check::ResourceSnapshot;
use crate::owner::Owner;
use crate::support::{
    SLACK, WAIT_TIMEOUT, eventually, failed_with, is_usable, ok, run, until_executing,
};

pub(super) fn cases() -> Vec<Case> {
    let all = cases!("cleanup", [run_code, local], {
        nothing_is_left_after_terminate;
        nothing_is_left_after_kill;
        nothing_is_left_after_the_last_handle_is_dropped needs attached;
        nothing_is_left_after_a_dropped_create;
        nothing_is_left_after_an_error_in_scope;
        nothing_is_left_of_what_went_into_the_background;
        nothing_runs_when_terminate_returns;
        terminate_takes_no_time;
        nothing_is_left_after_deaths_and_timeouts;
        nothing_is_left_after_commands needs commands;
        nothing_is_left_after_many;
        nothing_is_left_after_the_owner_is_killed needs attached;
        nothing_is_left_in_the_file_system;
    });
    all.into_iter().map(Case::alone).collect()
}

/// Makes a sandbox with work in it.
async fn busy(f: &Fixture) -> Checked<Sandbox> {
    let sandbox = f.builder().create().await?;
    let code = "import os, subprocess\nopen('file', 'w').write('x' * 1000)\np = subprocess.Popen(['sleep', '300'])";
    ok(&sandbox, code).await?;
    Ok(sandbox)
}

async fn nothing_is_left_after_terminate(f: Fixture) -> Checked {
    let before = ResourceSnapshot::take(&f).await?;
    busy(&f).await?.terminate().await?;
    before.is_restored().await
}

async fn nothing_is_left_after_kill(f: Fixture) -> Checked {
    let before = ResourceSnapshot::take(&f).await?;
    busy(&f).await?.kill().await?;
    before.is_restored().await
}

async fn nothing_is_left_after_the_last_handle_is_dropped(f: Fixture) -> Checked {
    let before = ResourceSnapshot::take(&f).await?;
    let sandbox = busy(&f).await?;
    let clone = sandbox.clone();
    drop(sandbox);
    is_usable(&clone).await?;
    drop(clone);
    before.is_restored().await
}

async fn nothing_is_left_after_a_dropped_create(f: Fixture) -> Checked {
    let before = ResourceSnapshot::take(&f).await?;
    for round in 0..60_u64 {
        let create = f.builder().create();
        // Given up at many different moments; one that was quicker is dropped at once.
        let _ = tokio::time::timeout(Duration::from_micros(round * 150), create).await;
    }
    before.is_restored().await
}

async fn nothing_is_left_after_an_error_in_scope(f: Fixture) -> Checked {
    let before = ResourceSnapshot::take(&f).await?;
    let outcome: Result<(), Failure> = f
        .builder()
        .scope(async |sandbox| {
            ok(sandbox, "import subprocess; p = subprocess.Popen(['sleep', '300'])").await?;
            Err(Failure::new("on purpose"))
        })
        .await;
    ensure!(outcome.is_err(), "the error was lost");
    before.is_restored().await
}

async fn nothing_is_left_of_what_went_into_the_background(f: Fixture) -> Checked {
    let before = ResourceSnapshot::take(&f).await?;
    let token = host::token("daemon-");
    let sandbox = f.builder().create().await?;
    let code = format!(
        "
import os, subprocess, time
for n in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 3)
            os.execl('/bin/sh', 'sh', '-c', 'trap \"\" 1 2 15; while :; do sleep 1; done', '{token}')
        os._exit(0)
for _ in range(5): os.wait()"
    );
    ok(&sandbox, &code).await?;
    eventually("five daemons", WAIT_TIMEOUT, async || Ok(host::running_with(&token)?.len() >= 5))
        .await?;
    is_over_when_terminated(&sandbox, &token).await?;
    before.is_restored().await
}

/// Nothing is left when `terminate` has returned. Of a strict sandbox nothing can run any more then, and soon nothing is left.
async fn is_over_when_terminated(sandbox: &Sandbox, token: &str) -> Checked {
    let isolation = sandbox.info().isolation.unwrap_or_default();
    sandbox.terminate().await?;
    ensure_eq!(host::able_to_run_with(token)?.len(), 0, "processes that run after terminate");
    if isolation.mode != IsolationMode::Strict {
        ensure_eq!(host::running_with(token)?.len(), 0, "processes after terminate");
    }
    eventually("their end", SLACK, async || Ok(host::running_with(token)?.is_empty())).await
}

async fn nothing_runs_when_terminate_returns(f: Fixture) -> Checked {
    let token = host::token("late-");
    for _ in 0..5 {
        let sandbox = f.builder().create().await?;
        // Memory makes a process take longer to go away.
        let code = format!(
            "
import subprocess, sys
work = 'import os; data = bytearray(4 << 20); print(flush=True)\\nwhile True: data[0] ^= 1 # {token}'
children = [
    subprocess.Popen([sys.executable, '-I', '-S', '-c', work], stdout=subprocess.PIPE, start_new_session=True)
    for _ in range(10)
]
for child in children: child.stdout.readline()"
        );
        ok(&sandbox, &code).await?;
        ensure!(host::running_with(&token)?.len() >= 10, "the control processes do not run");
        is_over_when_terminated(&sandbox, &token).await?;
    }
    Ok(())
}

async fn terminate_takes_no_time(f: Fixture) -> Checked {
    let limit = Duration::from_secs(1);
    let mut quickest = limit;
    for busy in [false, true] {
        for _ in 0..3 {
            let sandbox = f.builder().create().await?;
            is_usable(&sandbox).await?;
            ok(&sandbox, "import subprocess; p = subprocess.Popen(['sleep', '300'])").await?;
            let runner = sandbox.clone();
            let ended = busy.then(|| {
                tokio::spawn(async move { run(&runner, "import time; time.sleep(300)").await })
            });
            if busy {
                until_executing(&sandbox).await?;
            }
            let began = Instant::now();
            sandbox.terminate().await?;
            quickest = quickest.min(began.elapsed());
            if let Some(ended) = ended {
                failed_with(&ended.await??, FailureKind::Terminated)?;
            }
        }
        ensure!(quickest < limit, "terminate took more than {limit:?} (busy: {busy})");
        quickest = limit;
    }
    Ok(())
}

async fn nothing_is_left_after_deaths_and_timeouts(f: Fixture) -> Checked {
    let before = ResourceSnapshot::take(&f).await?;
    let sandbox = f.builder().create().await?;
    for code in [
        "import os; os._exit(1)",
        "import ctypes; ctypes.string_at(0)",
        "import time\nwhile True:\n    try:\n        while True: time.sleep(0)\n    except BaseException: pass",
    ] {
        sandbox.run_code(code).timeout(Duration::from_millis(500)).await?;
    }
    is_usable(&sandbox).await?;
    sandbox.terminate().await?;
    before.is_restored().await
}

async fn nothing_is_left_after_commands(f: Fixture) -> Checked {
    let before = ResourceSnapshot::take(&f).await?;
    let sandbox = f.builder().create().await?;
    for line in ["true", "sleep 300 & true", "exit 3", "no-such-program-x", "(setsid sleep 300 &)"]
    {
        sandbox.commands().run(line).timeout(Duration::from_secs(5)).await?;
    }
    drop(sandbox.commands().run("sleep 300").start().await?);
    sandbox.terminate().await?;
    before.is_restored().await
}

async fn nothing_is_left_after_many(f: Fixture) -> Checked {
    let before = ResourceSnapshot::take(&f).await?;
    for _ in 0..10 {
        let sandboxes = futures_util::future::join_all((0..5).map(|_| busy(&f))).await;
        for sandbox in sandboxes {
            sandbox?.terminate().await?;
        }
    }
    before.is_restored().await
}

async fn nothing_is_left_after_the_owner_is_killed(_: Fixture) -> Checked {
    let mut owner = tokio::task::spawn_blocking(Owner::start).await??;
    ensure!(owner.processes.len() >= 2, "the owner has too few processes to prove anything");
    ensure!(
        owner.processes.iter().all(|process| process.now().is_some()),
        "its processes do not run"
    );
    owner.kill()?;
    let processes = std::mem::take(&mut owner.processes);
    let alive = || processes.iter().filter_map(host::Process::now).collect::<Vec<_>>();
    let gone = eventually("the end of its processes", SLACK, async || Ok(alive().is_empty()));
    gone.await.map_err(|_| Failure::new(format!("still alive: {:?}", alive())))?;
    let directory = Path::new(&owner.directory);
    eventually("the end of its files", SLACK, async || {
        Ok(!directory.join("file").exists() && !is_sandbox_directory(directory))
    })
    .await
}

/// Whether that is a directory of a sandbox on this host. `/workspace` of a cell is none.
fn is_sandbox_directory(path: &Path) -> bool {
    path.components().count() > 2 && path.is_dir()
}

async fn nothing_is_left_in_the_file_system(f: Fixture) -> Checked {
    let sandbox = f.builder().create().await?;
    let token = host::token("left-");
    let code = format!(
        "import os\nos.makedirs('{token}/a/b')\nopen('{token}/a/b/c', 'w').close()\nos.symlink('/etc', '{token}/link')\nos.chmod('{token}/a', 0o500)\nprint(os.getcwd())"
    );
    let directory = ok(&sandbox, &code).await?.stdout_trimmed();
    sandbox.terminate().await?;
    let left = Path::new(&directory).join(&token);
    eventually("the end of its files", SLACK, async || {
        Ok(!left.exists() && !is_sandbox_directory(Path::new(&directory)))
    })
    .await?;
    ensure!(Path::new("/etc/passwd").exists(), "a link was followed");
    Ok(())
}
