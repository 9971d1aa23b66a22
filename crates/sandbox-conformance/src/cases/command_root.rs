//! Commands as root of the sandbox: who they are, what they may and may not do, and that they end like others.

use std::time::Duration;

use sandbox_core::ErrorKind;
use tokio::time::sleep;

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, eventually};

pub(super) fn cases() -> Vec<Case> {
    cases!("command_root", [commands, command_root], {
        it_is_root_and_code_is_not;
        it_shares_the_files_of_code;
        its_tree_ends_with_its_time_limit;
        it_rests_with_the_sandbox needs pause;
    })
}

async fn it_is_root_and_code_is_not(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let root = sandbox.commands().run("id -u; echo $HOME; exit 3").as_root().await?;
    ensure_eq!((root.stdout.as_str(), root.exit_code), ("0\n/root\n", 3), "{root:?}");
    let own = sandbox.commands().run("id -u; echo $HOME").await?;
    ensure!(!own.stdout.starts_with("0\n") && !own.stdout.contains("/root"), "{own:?}");
    let status = sandbox.commands().run("grep -E 'CapEff|NoNewPrivs' /proc/self/status").as_root();
    let status = status.await?.stdout;
    ensure!(status.contains("CapEff:\t0000000000000000"), "no capability of the kernel: {status}");
    ensure!(status.contains("NoNewPrivs:\t1"), "{status}");
    let missing = sandbox.commands().run(["/no/such/program"]).as_root().await;
    ensure_eq!(missing.err().map(|error| error.kind()), Some(ErrorKind::NotFound));
    Ok(())
}

async fn it_shares_the_files_of_code(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("own.txt", "of code").await?;
    let line = "cat own.txt; echo of root >root.txt; stat -c %u root.txt";
    let root = sandbox.commands().run(line).as_root().await?;
    ensure_eq!(root.stdout, "of code0\n", "{root:?}");
    ensure_eq!(sandbox.files().read_text("root.txt").await?, "of root\n");
    Ok(())
}

async fn its_tree_ends_with_its_time_limit(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "sleep 4711 & echo $! >child; wait";
    let command = sandbox.commands().run(line).as_root().timeout(Duration::from_secs(2));
    let result = command.await?;
    ensure!(result.failure.is_some(), "{result:?}");
    let is_gone = async || {
        let alive = sandbox.commands().run("test -s child && kill -0 $(cat child)").as_root();
        Ok(!alive.await?.success())
    };
    eventually("the end of its child", WAIT_TIMEOUT, is_gone).await?;
    ensure!(sandbox.commands().run("test -s child").await?.success(), "control: it was there");
    Ok(())
}

async fn it_rests_with_the_sandbox(f: Fixture) -> Checked {
    const HELD: Duration = Duration::from_millis(1500);
    let sandbox = f.sandbox().await?;
    let line = "while :; do cut -d' ' -f1 /proc/uptime >>beats; sleep 0.05; done";
    let clock = sandbox.commands().run(line).as_root().background().start().await?;
    let beats = async || -> Checked<Vec<f64>> {
        let text = sandbox.files().read_text("beats").await.unwrap_or_default();
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    };
    let more = async |most: usize| -> Checked {
        eventually("a beat", WAIT_TIMEOUT, async || Ok(beats().await?.len() > most)).await
    };
    more(2).await?;
    sandbox.pause().await?;
    sleep(HELD).await;
    sandbox.resume().await?;
    more(beats().await?.len() + 2).await?;
    let times = beats().await?;
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    ensure!(longest > HELD.as_secs_f64() - 0.4, "its longest pause was {longest} s");
    clock.control.signal(9, true).await?;
    Ok(())
}
