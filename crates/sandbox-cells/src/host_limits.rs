//! Limits of this process that are too low for sandboxes: processes inherit the limits, and would end without a message.

use rustix::process::{Resource, Rlimit, getrlimit};
use sandbox_core::{Error, ErrorKind, Result};

/// Interpreters have their own descriptors from 100 on.
const MIN_OPEN_FILES: u64 = 128;

/// The helper program is kept in a file in memory, to which this limit applies as well.
const MIN_FILE_SIZE: u64 = 1 << 20;

/// Checks the limits of this process before it starts any other.
///
/// # Errors
/// `ResourceExhausted` names the limit and how to raise it.
pub(super) fn check() -> Result<()> {
    check_open_files(getrlimit(Resource::Nofile))?;
    check_file_size(getrlimit(Resource::Fsize))
}

fn check_open_files(limit: Rlimit) -> Result<()> {
    let Some(few) = limit.current.filter(|limit| *limit < MIN_OPEN_FILES) else { return Ok(()) };
    let message = format!(
        "no sandbox can be made by a process that may have {few} open files: {MIN_OPEN_FILES} are needed at least"
    );
    Err(Error::new(ErrorKind::ResourceExhausted, "create", message)
        .with_hint("raise the limit of open files before: `ulimit -n 1024`"))
}

fn check_file_size(limit: Rlimit) -> Result<()> {
    let Some(small) = limit.current.filter(|limit| *limit < MIN_FILE_SIZE) else { return Ok(()) };
    let message = format!(
        "no sandbox can be made by a process whose files may have {small} bytes: {MIN_FILE_SIZE} are needed at least"
    );
    Err(Error::new(ErrorKind::ResourceExhausted, "create", message)
        .with_hint("raise the limit of the size of files before: `ulimit -f unlimited`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(current: Option<u64>) -> Rlimit {
        Rlimit { current, maximum: None }
    }

    #[test]
    fn small_limits_are_named_with_their_remedy() {
        for (found, remedy) in [
            (check_open_files(limit(Some(64))), "ulimit -n"),
            (check_file_size(limit(Some(0))), "ulimit -f"),
        ] {
            let error = found.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
            assert!(error.hint().is_some_and(|hint| hint.contains(remedy)), "{error:?}");
        }
        for enough in [None, Some(1 << 20)] {
            assert!(check_open_files(limit(enough)).is_ok());
            assert!(check_file_size(limit(enough)).is_ok());
        }
    }
}
