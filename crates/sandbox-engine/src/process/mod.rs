//! What interpreters and commands share about processes: the end reason, killing a process tree, standard input.

mod stdin;

use std::io;
use std::sync::OnceLock;

use sandbox_core::FailureKind;
use tokio::time::timeout;

pub use self::stdin::write_all;
pub(crate) use self::stdin::{StdinCounter, feed, feed_open};
use crate::host::{Process, ProcessHost};

/// The reason why a whole sandbox ended, for the runs that were active then. The first reason stands.
#[derive(Debug, Default)]
pub struct EndReason(OnceLock<(FailureKind, String)>);

impl EndReason {
    /// Makes an end reason that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the reason: `Terminated` or `Expired`.
    pub fn set(&self, kind: FailureKind) {
        let _ = self.0.set((kind, String::new()));
    }

    /// Sets the reason that the host reports for its end, or `Terminated` when it reports none.
    pub fn set_gone(&self, host: &dyn ProcessHost) {
        let reason = host.end_reason();
        let _ = self.0.set(reason.unwrap_or((FailureKind::Terminated, String::new())));
    }

    /// Returns the reason.
    pub fn get(&self) -> Option<FailureKind> {
        self.0.get().map(|(kind, _)| *kind)
    }

    /// Adds the explanation of the host to a sentence about the end.
    pub fn explain(&self, sentence: &str) -> String {
        match self.0.get() {
            Some((_, why)) if !why.is_empty() => format!("{sentence}: {why}"),
            _ => sentence.to_owned(),
        }
    }
}

/// Ends a process and whatever it started. When that fails or takes too long, or the host is paused from outside, ends
/// the whole host instead, sets its reason in `ended`, and returns `false`.
pub(crate) async fn kill_tree(
    process: &dyn Process,
    host: &dyn ProcessHost,
    ended: &EndReason,
) -> bool {
    let killing = timeout(process.kill_timeout(), process.kill_tree());
    let killed = tokio::select! {
        biased;
        killed = killing => matches!(killed, Ok(Ok(()))),
        () = host.paused_by_others() => false,
    };
    if !killed {
        host.kill();
        ended.set_gone(host);
    }
    killed
}

/// Returns true for an error that means that a stream has nothing at the moment.
pub fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
