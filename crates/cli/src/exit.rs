//! Exit statuses of `sandboxes` itself; otherwise the exit status is that of the program that ran.

use code_sandboxes::{ErrorKind, ExecutionResult, FailureKind};

/// Success.
pub(crate) const SUCCESS: u8 = 0;
/// The code raised an exception, or `doctor` found the variant unusable.
pub(crate) const FAILED: u8 = 1;
/// Wrong usage of the command line.
pub(crate) const USAGE: u8 = 2;
/// The time limit was exceeded.
pub(crate) const TIMEOUT: u8 = 124;
/// The sandbox failed, not the program.
pub(crate) const SANDBOX: u8 = 125;
/// The program cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// Interrupted with Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;
/// The reader of the output has closed it: 128 + SIGPIPE, as a shell reports it.
pub(crate) const BROKEN_PIPE: u8 = 141;

/// Base of the exit statuses of programs that a signal ended.
const SIGNAL_BASE: i32 = 128;
const SIGKILL: i32 = 9;

/// The table of `--help`.
pub(crate) const HELP: &str = "\
Exit status:
  The exit status of the program, or:
    1  the code raised an exception
    2  wrong usage
  124  the time limit was exceeded
  125  the sandbox failed
  126  the program cannot be executed
  127  the program was not found
  130  interrupted with Ctrl-C
  128+n  signal n ended the program";

/// Returns the exit status of a result.
pub(crate) fn for_result(result: &ExecutionResult) -> u8 {
    if result.interrupted {
        return INTERRUPTED;
    }
    if let Some(failure) = &result.failure {
        let died = || result.exit_code.or(failure.signal.map(|signal| SIGNAL_BASE + signal));
        return match failure.kind {
            FailureKind::Timeout | FailureKind::CpuTime => TIMEOUT,
            FailureKind::KernelDied => died().map_or(SANDBOX, low_byte),
            FailureKind::OutOfMemory => low_byte(died().unwrap_or(SIGNAL_BASE + SIGKILL)),
            // Regardless of its own status: the program may have ended before the limit was noticed.
            FailureKind::OutputLimit => for_signal(SIGKILL),
            _ => SANDBOX,
        };
    }
    match (&result.code_error, result.execution_ok) {
        (Some(_), _) => FAILED,
        (None, true) => low_byte(result.exit_code.unwrap_or(0)),
        (None, false) => SANDBOX,
    }
}

/// Returns the exit status of an error of the library.
pub(crate) fn for_error(kind: ErrorKind, operation: &str) -> u8 {
    match (kind, operation) {
        (ErrorKind::InvalidArgument, _) => USAGE,
        (ErrorKind::NotFound, "start_command") => NOT_FOUND,
        (ErrorKind::PermissionDenied, "start_command") => NOT_EXECUTABLE,
        (ErrorKind::Timeout, "prepare" | "start_command") => TIMEOUT,
        (ErrorKind::Cancelled, _) => INTERRUPTED,
        _ => SANDBOX,
    }
}

/// Returns the exit status of this process when a signal ends it.
pub(crate) fn for_signal(number: i32) -> u8 {
    low_byte(SIGNAL_BASE + number)
}

/// Returns the part of an exit status that the operating system keeps.
fn low_byte(status: i32) -> u8 {
    status.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use code_sandboxes::{CodeError, Failure};

    use super::*;

    fn ended(exit_code: Option<i32>) -> ExecutionResult {
        ExecutionResult { execution_ok: true, exit_code, ..Default::default() }
    }

    fn failed(kind: FailureKind, signal: Option<i32>) -> ExecutionResult {
        let failure = Some(Failure { kind, message: String::new(), signal });
        ExecutionResult { failure, ..Default::default() }
    }

    #[test]
    fn every_end_has_its_status() {
        let raised = ExecutionResult { code_error: Some(CodeError::default()), ..ended(None) };
        let interrupted = ExecutionResult { interrupted: true, ..raised.clone() };
        let status_9 =
            ExecutionResult { exit_code: Some(9), ..failed(FailureKind::KernelDied, None) };
        for (result, status) in [
            (ended(None), 0),
            (ended(Some(3)), 3),
            (ended(Some(256)), 0),
            (ended(Some(-1)), 255),
            (raised, 1),
            (interrupted, 130),
            (failed(FailureKind::Timeout, Some(9)), 124),
            (failed(FailureKind::KernelDied, Some(11)), 139),
            (status_9, 9),
            (failed(FailureKind::OutOfMemory, None), 137),
            (failed(FailureKind::OutputLimit, None), 137),
            (ExecutionResult { exit_code: Some(0), ..failed(FailureKind::OutputLimit, None) }, 137),
            (failed(FailureKind::ConnectionLost, None), 125),
            (ExecutionResult::default(), 125),
        ] {
            assert_eq!(for_result(&result), status, "{result:?}");
        }
    }

    #[test]
    fn a_command_that_did_not_start_has_the_status_of_its_error() {
        for (kind, status) in [
            (ErrorKind::Timeout, 124),
            (ErrorKind::PermissionDenied, 126),
            (ErrorKind::NotFound, 127),
            (ErrorKind::Unavailable, 125),
        ] {
            assert_eq!(for_error(kind, "start_command"), status, "{kind:?}");
        }
        assert_eq!(for_error(ErrorKind::Timeout, "create"), 125);
    }
}
