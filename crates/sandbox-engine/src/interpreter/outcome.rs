//! The outcome of a run, from what was done to it and how its process ended.

use sandbox_core::{ByteSize, Failure, FailureKind, InterpreterState, RunOutcome};

use super::watchdog::Cause;
use crate::host::Exit;
use crate::process::EndReason;

/// Sets the outcome of a run whose interpreter lives. `limit` is the wall-clock limit in words.
pub fn alive(outcome: &mut RunOutcome, cause: Option<Cause>, limit: &str) {
    outcome.state = InterpreterState::Kept;
    match cause {
        None => {}
        Some(Cause::Interrupt) => {}
        Some(cause) => {
            outcome.interrupted = false;
            outcome.failure = Some(failure_of(cause, limit));
        }
    }
}

/// The signal by which an interpreter ends when its connection to the host is lost.
const LOST: i32 = 64;

/// Sets the outcome of a run whose interpreter is dead. `ended` is the end reason of the sandbox.
pub fn dead(
    outcome: &mut RunOutcome,
    exit: Option<Exit>,
    cause: Option<Cause>,
    ended: &EndReason,
    limit: &str,
) {
    outcome.state = InterpreterState::Lost;
    outcome.exit_code = exit.filter(Exit::is_known).map(|exit| exit.status());
    outcome.interrupted = cause == Some(Cause::Interrupt);
    let mut failure = match (ended.get(), cause) {
        (Some(FailureKind::Expired), _) => {
            plain(FailureKind::Expired, "the sandbox reached the end of its lifetime or idle time")
        }
        // Nothing less than the whole sandbox was enough.
        (
            Some(FailureKind::Terminated),
            Some(cause @ (Cause::Timeout | Cause::CpuTime | Cause::Memory | Cause::OutputLimit)),
        ) => {
            let mut failure = failure_of(cause, limit);
            failure.message += WITH_IT;
            failure
        }
        (Some(kind), _) => plain(kind, &ended.explain("the sandbox was ended during the run")),
        (None, Some(Cause::Interrupt) | None) => plain(FailureKind::KernelDied, &death(exit)),
        (None, Some(cause)) => failure_of(cause, limit),
    };
    failure.signal = exit.and_then(|exit| exit.signal);
    outcome.failure = Some(failure);
    if exit.is_some_and(|exit| exit.signal == Some(LOST)) {
        let why =
            "the interpreter lost its connection with its host, so how the code ended is not known";
        died_of(outcome, FailureKind::ConnectionLost, why.to_owned());
        outcome.hint = Some(
            "code that closes descriptors must spare those that it did not open: from 100 on they are the interpreter's"
                .to_owned(),
        );
    }
}

/// Added to the message where the whole sandbox had to be killed.
const WITH_IT: &str = "; the sandbox had to be ended with it";

/// Adds that something continues which belongs to another program, though the sandbox was killed.
pub(crate) fn goes_on(outcome: &mut RunOutcome, what: Option<&str>) {
    if let Some(failure) = &mut outcome.failure
        && let Some(what) = what
        && failure.message.ends_with(WITH_IT)
    {
        failure.message = failure.message.replace(WITH_IT, &format!("; {what}"));
    }
}

/// Sets the known cause of a death: memory, or a lost connection, after which the end of the code is unknown.
pub fn died_of(outcome: &mut RunOutcome, kind: FailureKind, why: String) {
    if let Some(failure) = &mut outcome.failure
        && failure.kind == FailureKind::KernelDied
    {
        (failure.kind, failure.message) = (kind, why);
        if kind == FailureKind::ConnectionLost {
            (failure.signal, outcome.exit_code) = (None, None);
        }
    }
}

/// Sets the failure of a run with more output than `limit`, whatever the code did then. The end of the sandbox comes
/// first.
pub(crate) fn over_output_limit(outcome: &mut RunOutcome, limit: ByteSize) {
    let failure =
        outcome.failure.get_or_insert_with(|| failure_of(Cause::OutputLimit, Default::default()));
    if failure.kind == FailureKind::OutputLimit {
        failure.message = format!("code execution was ended: it put out more than {limit}");
    }
}

/// The failure of a run with more memory than it may have.
const OVER_MEMORY: &str = "code execution used more memory than it may";

/// Adds the limit to the failure of a run that exceeded it.
pub(crate) fn over_memory_limit(outcome: &mut RunOutcome, limit: ByteSize) {
    if let Some(failure) = &mut outcome.failure
        && let Some(more) = failure.message.strip_prefix(OVER_MEMORY)
    {
        failure.message = format!(
            "code execution was ended: its memory grew by more than the {limit} that this run may take{more}"
        );
    }
}

/// Sets the failure of an interpreter that had explained its exit.
pub(crate) fn gave_up(outcome: &mut RunOutcome, why: &str) {
    if let Some(failure) = &mut outcome.failure
        && failure.kind == FailureKind::KernelDied
    {
        failure.message = format!("the interpreter gave up: {why}");
        // This status was not chosen by code.
        outcome.exit_code = None;
    }
}

/// Sets the failure of an interpreter that sent a malformed message and was killed.
pub fn broken(outcome: &mut RunOutcome, exit: Option<Exit>, problem: &str) {
    outcome.state = InterpreterState::Lost;
    outcome.exit_code = exit.filter(Exit::is_known).map(|exit| exit.status());
    let message = format!("the interpreter broke its protocol and was ended: {problem}");
    outcome.failure = Some(plain(FailureKind::Protocol, &message));
}

fn failure_of(cause: Cause, limit: &str) -> Failure {
    match cause {
        Cause::Timeout => {
            plain(FailureKind::Timeout, &format!("code execution timed out after {limit}"))
        }
        Cause::CpuTime => plain(FailureKind::CpuTime, "code execution used up its CPU time"),
        Cause::Memory => plain(FailureKind::OutOfMemory, OVER_MEMORY),
        Cause::OutputLimit => {
            plain(FailureKind::OutputLimit, "code execution put out more than it may")
        }
        Cause::Cancelled | Cause::Interrupt => {
            plain(FailureKind::Cancelled, "code execution was cancelled")
        }
    }
}

fn plain(kind: FailureKind, message: &str) -> Failure {
    Failure { kind, message: message.to_owned(), signal: None }
}

fn death(exit: Option<Exit>) -> String {
    match exit {
        Some(Exit { signal: Some(signal), .. }) => {
            format!("the interpreter was killed by signal {signal} ({})", signal_name(signal))
        }
        Some(Exit { code: Some(code), .. }) => {
            format!("the interpreter process exited with status {code} during the run")
        }
        _ => "the interpreter process died during the run".to_owned(),
    }
}

/// Returns the name of a signal of Linux, such as `SIGKILL`.
pub fn signal_name(signal: i32) -> &'static str {
    const NAMES: [&str; 32] = [
        "signal 0",
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    usize::try_from(signal).ok().and_then(|n| NAMES.get(n).copied()).unwrap_or("real-time signal")
}
