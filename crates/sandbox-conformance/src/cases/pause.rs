//! A sandbox that is held does nothing, is asked nothing, and goes on as it was.

use std::time::{Duration, Instant};

use sandbox_core::{ErrorKind, Sandbox, SandboxStatus};
use tokio::time::sleep;

use crate::case::{Case, Checked, Failure, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, eventually, is_usable, ok, refused, text, within};

pub(super) fn cases() -> Vec<Case> {
    cases!("pause", [pause, run_code, local], {
        it_goes_on_with_its_state;
        nothing_runs_meanwhile needs command_background, files;
        everything_else_is_refused needs files, commands;
        code_that_runs_keeps_it_from_being_paused needs interrupt;
        twice_is_once;
        what_was_stopped_before_stays_so needs command_background;
        it_can_be_ended;
        its_lifetime_goes_on needs lifetime;
        its_idle_time_does_not needs idle_timeout;
    })
}

fn status(sandbox: &Sandbox) -> Option<SandboxStatus> {
    Some(sandbox.info().status)
}

async fn it_goes_on_with_its_state(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "x = 6").await?;
    sandbox.pause().await?;
    ensure_eq!(status(&sandbox), Some(SandboxStatus::Paused));
    sandbox.resume().await?;
    ensure_eq!(status(&sandbox), Some(SandboxStatus::Running));
    ensure_eq!(text(&sandbox, "x * 7").await?, "42");
    Ok(())
}

/// What ticks, and notes when it did.
const TICKS: &str = "
import time
with open('ticks', 'w', buffering=1) as file:
    while True:
        print(time.monotonic(), file=file)
        time.sleep(0.02)
";

async fn nothing_runs_meanwhile(f: Fixture) -> Checked {
    const HELD: Duration = Duration::from_secs(2);
    let sandbox = f.sandbox().await?;
    let clock = sandbox.commands().run(["python3", "-c", TICKS]).background().start().await?;
    let lines = async || -> Checked<Vec<f64>> {
        let text = sandbox.files().read_text("ticks").await.unwrap_or_default();
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    };
    let ticks = async |most: usize| -> Checked {
        eventually("a tick", WAIT_TIMEOUT, async || Ok(lines().await?.len() > most)).await
    };
    ticks(2).await?;
    sandbox.pause().await?;
    sleep(HELD).await;
    sandbox.resume().await?;
    let before = lines().await?.len();
    ticks(before + 2).await?;
    let times = lines().await?;
    let pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
    let longest = pauses.fold(0.0, f64::max);
    ensure!(longest > HELD.as_secs_f64() - 0.5, "its longest pause was {longest} s");
    clock.control.signal(9, true).await?;
    Ok(())
}

async fn everything_else_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.pause().await?;
    let began = Instant::now();
    let error = refused(sandbox.run_code("1").await, ErrorKind::Unavailable)?;
    ensure!(error.to_string().contains("paused"), "{error}");
    ensure!(error.hint().is_some_and(|hint| hint.contains("resume")), "{error:?}");
    refused(sandbox.commands().run("true").await, ErrorKind::Unavailable)?;
    refused(sandbox.files().write("x", "y").await, ErrorKind::Unavailable)?;
    refused(sandbox.files().list(".").await, ErrorKind::Unavailable)?;
    refused(sandbox.set_variable("x", 1).await, ErrorKind::Unavailable)?;
    ensure!(began.elapsed() < WAIT_TIMEOUT, "it took {:?} to refuse", began.elapsed());
    // What asks nothing of what is inside still works.
    sandbox.set_tags([("a", "b")]).await?;
    sandbox.set_lifetime(Duration::from_secs(600)).await?;
    sandbox.resume().await?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn code_that_runs_keeps_it_from_being_paused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "1").await?;
    let runner = sandbox.clone();
    let running = tokio::spawn(async move { runner.run_code("import time; time.sleep(60)").await });
    eventually("the run", WAIT_TIMEOUT, async || Ok(sandbox.is_executing())).await?;
    refused(sandbox.pause().await, ErrorKind::Unavailable)?;
    ensure_eq!(status(&sandbox), Some(SandboxStatus::Running));
    sandbox.interrupt().await?;
    let _ = within(WAIT_TIMEOUT, running).await?;
    sandbox.pause().await?;
    sandbox.resume().await?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn twice_is_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.resume().await?;
    sandbox.pause().await?;
    sandbox.pause().await?;
    ensure_eq!(status(&sandbox), Some(SandboxStatus::Paused));
    sandbox.resume().await?;
    sandbox.resume().await?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn what_was_stopped_before_stays_so(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let sleeper = async || sandbox.commands().run(["sleep", "300"]).background().start().await;
    let (stopped, other) = (sleeper().await?, sleeper().await?);
    let state = async |pid: u32| -> Checked<String> {
        let code = format!("open('/proc/{pid}/stat').read().rsplit(')')[1].split()[0]");
        text(&sandbox, &code).await
    };
    let pids = [stopped.pid, other.pid];
    let [Some(stopped_pid), Some(other_pid)] = pids else {
        return Err(Failure::new(format!("{pids:?}")));
    };
    stopped.control.signal(19, false).await?;
    let is_stopped = async || Ok(state(stopped_pid).await?.contains('T'));
    eventually("that it is stopped", WAIT_TIMEOUT, is_stopped).await?;
    sandbox.pause().await?;
    sandbox.resume().await?;
    ensure!(is_stopped().await?, "it was let go");
    let goes_on = async || Ok(state(other_pid).await?.contains('S'));
    eventually("that the other goes on", WAIT_TIMEOUT, goes_on).await?;
    for command in [stopped, other] {
        command.control.signal(9, true).await?;
    }
    Ok(())
}

async fn it_can_be_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.pause().await?;
    within(WAIT_TIMEOUT, sandbox.terminate()).await??;
    refused(sandbox.resume().await, ErrorKind::Terminated)?;
    refused(sandbox.pause().await, ErrorKind::Terminated)?;
    Ok(())
}

async fn its_lifetime_goes_on(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.pause().await?;
    sandbox.set_lifetime(Duration::from_secs(1)).await?;
    let has_ended = async || Ok(status(&sandbox) == Some(SandboxStatus::Terminated));
    eventually("its end", WAIT_TIMEOUT, has_ended).await?;
    refused(sandbox.resume().await, ErrorKind::Terminated)?;
    Ok(())
}

async fn its_idle_time_does_not(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.idle_timeout(Duration::from_secs(2))).await?;
    sandbox.pause().await?;
    sleep(Duration::from_secs(4)).await;
    sandbox.resume().await?;
    is_usable(&sandbox).await?;
    Ok(())
}
