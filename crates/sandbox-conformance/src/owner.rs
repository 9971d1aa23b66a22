//! A process that owns a sandbox and can be killed: this same executable, started once more.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::case::{Checked, Failure};
use crate::fixture::Fixture;
use crate::host::{self, Process};
use crate::support::ok;
use crate::target::Target;

const MARK: &str = "SANDBOX_CONFORMANCE_OWNER";

/// Whether this process is to be an owner instead of a suite.
pub(crate) fn is_one() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Makes a sandbox with work in it, says which processes that took, and waits to be killed.
pub(crate) fn own(target: &Target) -> ExitCode {
    match try_own(target) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The reader shows it as the reason of its own failure.
            let _ = writeln!(io::stdout(), "failed: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn try_own(target: &Target) -> Checked {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let fixture = Fixture::new(Arc::new(target.clone()), (target.make_backend)());
        let sandbox = fixture.sandbox().await?;
        let token = host::token("owned-");
        ok(&sandbox, &START_WORK.replace("TOKEN", &token)).await?;
        let directory = ok(&sandbox, "import os; print(os.getcwd())").await?.stdout_trimmed();
        // A process of an engine is no descendant here, and shows by its arguments.
        let found = [host::descendants()?, host::running_with(&token)?].concat();
        let processes: BTreeSet<String> = found.iter().map(ToString::to_string).collect();
        let processes = Vec::from_iter(processes);
        writeln!(io::stdout(), "{}", processes.join(" "))?;
        writeln!(io::stdout(), "{directory}")?;
        io::stdout().flush()?;
        tokio::time::sleep(Duration::from_secs(300)).await;
        Ok(())
    })
}

/// A child, and a daemon that has left its session.
const START_WORK: &str = "
import subprocess, sys
wait = [sys.executable, '-c', 'import time; time.sleep(300)', 'TOKEN']
subprocess.Popen(wait)
subprocess.Popen(wait, start_new_session=True)
";

/// An owner that runs, and what it said.
pub(crate) struct Owner {
    child: Child,
    /// Every process it started, directly or not.
    pub(crate) processes: Vec<Process>,
    /// The working directory of its sandbox, as the sandbox sees it.
    pub(crate) directory: String,
}

impl Owner {
    pub(crate) fn start() -> Checked<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(MARK, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::new("no output"))?;
        let mut lines = BufReader::new(stdout).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let processes: Vec<Process> = first.split(' ').filter_map(Process::parse).collect();
        let directory = lines.next().transpose()?.unwrap_or_default();
        let owner = Self { child, processes, directory };
        if owner.processes.is_empty() {
            return Err(Failure::new(format!("the owner did not start: {first}")));
        }
        Ok(owner)
    }

    /// Ends it without any chance to clean up.
    pub(crate) fn kill(&mut self) -> Checked {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
