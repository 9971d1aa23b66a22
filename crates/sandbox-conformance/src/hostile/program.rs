//! The hostile suite as a program: this executable once more, with an environment that is worth stealing.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use libtest_mimic::Arguments;

use super::canary::{Canaries, SECRET};
use crate::runner::{execute, failed};
use crate::target::Target;
use crate::{host, owner};

/// As many cases run at once.
const THREADS: usize = 4;

/// Runs the hostile suite with the arguments of this process, for a test without the standard harness.
///
/// The suite runs in a process of its own: with a secret in its environment, and with a directory for temporary files
/// that is used by nothing else, so that every file that is left is found. With `--test-threads 1`, what is left is counted
/// after each case, otherwise after all of them.
///
/// The exit status is as that of [`main`](crate::main).
pub fn hostile(target: Target) -> ExitCode {
    if owner::is_one() {
        return owner::own(&target);
    }
    if host::secret().is_none() {
        return again().unwrap_or_else(|error| failed(&format!("no place to run: {error}")));
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let canaries = match Canaries::start(&std::env::temp_dir()) {
        Ok(canaries) => Arc::new(canaries),
        Err(error) => return failed(&format!("no canaries: {error}")),
    };
    match execute(target, &arguments, Some(canaries)) {
        Ok((conclusion, _)) => conclusion.exit_code(),
        Err(why) => failed(&why),
    }
}

/// The same program with another environment.
fn again() -> std::io::Result<ExitCode> {
    let place = Place::make()?;
    let status = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(SECRET, host::token("secret-of-the-host-"))
        .env("TMPDIR", &place.0)
        .env("XDG_RUNTIME_DIR", &place.0)
        .status()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// A directory of the suite's own, removed when dropped.
struct Place(PathBuf);

impl Place {
    fn make() -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let path = std::env::temp_dir().join(host::token("hostile-"));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// What cannot be removed is left to the cleaner of the directory for temporary files.
fn remove(path: &Path) {
    let _ = std::fs::remove_dir_all(path);
}
