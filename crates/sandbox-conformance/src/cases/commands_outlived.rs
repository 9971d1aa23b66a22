//! What a command or a cell leaves behind, with its streams.

use std::time::Duration;

use sandbox_core::Sandbox;

use crate::case::{Case, Checked, cases, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, eventually, ok, within};

pub(super) fn cases() -> Vec<Case> {
    let mut all = cases!("commands", [commands, files], {
        what_its_helpers_put_out_last_is_there;
        a_server_that_it_leaves_behind_goes_on;
    });
    all.extend(cases!("orphans", [run_code, files], {
        one_that_writes_between_runs_goes_on_and_is_not_heard;
    }));
    all
}

/// More than a pipe holds, which ends at a pipe that nothing reads, and waits in one that is not read.
const FLOOD: &str = "head -c 300000 /dev/zero && echo late && echo yes >went-on";

async fn went_on(sandbox: &Sandbox) -> Checked {
    let files = sandbox.files();
    eventually("what was left behind goes on", WAIT_TIMEOUT, async || {
        Ok(files.exists("went-on").await?)
    })
    .await
}

async fn what_its_helpers_put_out_last_is_there(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = "mkfifo way; (while read -r line; do sleep 0.1; echo \"[$line]\"; done <way) & \
                exec >way; echo one; echo two";
    let result = sandbox.commands().run(line).await?;
    ensure_eq!((result.stdout.as_str(), result.exit_code), ("[one]\n[two]\n", 0));
    Ok(())
}

async fn a_server_that_it_leaves_behind_goes_on(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let line = format!("(sleep 1; {FLOOD}) & echo started");
    let result = within(Duration::from_secs(10), sandbox.commands().run(line)).await??;
    ensure_eq!((result.stdout.as_str(), result.exit_code), ("started\n", 0));
    let next = sandbox.commands().run("sleep 1; echo next").await?;
    ensure_eq!(next.stdout, "next\n", "what comes later is in no other command");
    went_on(&sandbox).await
}

async fn one_that_writes_between_runs_goes_on_and_is_not_heard(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // Twice: the second time another run came in between.
    for _ in 0..2 {
        let code = format!(
            "import subprocess\nchild = subprocess.Popen(['sh', '-c', 'sleep 0.5; {FLOOD}'])\nprint('first')"
        );
        ensure_eq!(ok(&sandbox, &code).await?.stdout_trimmed(), "first");
        went_on(&sandbox).await?;
        let next =
            ok(&sandbox, "import os\nos.remove('went-on')\nprint('next', child.wait())").await?;
        ensure_eq!(next.stdout_trimmed(), "next 0", "what came in between is in no run");
    }
    Ok(())
}
