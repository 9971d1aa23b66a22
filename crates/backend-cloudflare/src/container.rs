//! The container of a sandbox: how it starts, and how a program finds that the container was started again and has lost what it
//! had. A container that is known has a mark, a file that goes with it.

use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use sandbox_core::{CallContext, Error, Result};
use sandbox_engine::background_runtime::{self, background};
use sandbox_shell::{ScriptOutput, ShellHost as _};

use crate::create::WORKSPACE;
use crate::error::container_lost;
use crate::programs::{Input, Programs};

/// A file that is there as long as a container is: one that was started again has lost it.
macro_rules! mark {
    () => {
        "/tmp/.code-sandboxes-container"
    };
}

/// The line of a container that was started again.
pub(crate) const LOST: &[u8] = b"code-sandboxes: lost";

/// Runs a program. Its arguments: a FIFO for the input or `-`, a note by which a later process finds the program or `-`, then
/// the program.
macro_rules! start {
    () => {
        "fifo=$1; shift 2; [ \"$fifo\" = - ] || { mkfifo \"$fifo\" || exit 1; exec <>\"$fifo\"; }; exec \"$@\""
    };
}

/// Runs a program in a container that has lost nothing.
const GUARD: &str =
    concat!("[ -e ", mark!(), " ] || { echo 'code-sandboxes: lost' >&2; exit 0; }; ", start!());

/// Runs the first program in a container, which is marked.
const FIRST: &str = concat!("[ -e ", mark!(), " ] || : >", mark!(), "; ", start!());

/// Makes the working directory, and marks the container.
const PREPARE: &str = concat!("mkdir -p -- \"$1\" && : >", mark!());

impl Programs {
    /// Starts the container and makes the working directory. The container is marked as known, or by its first program.
    ///
    /// # Errors
    /// `InvalidArgument` for a directory that cannot be made; what kept the container from starting.
    pub(crate) async fn prepare(&self, operation: &'static str) -> Result<()> {
        let own = self.own()?;
        let made = background(async move {
            let cwd = own.cwd.clone();
            if cwd == WORKSPACE && own.api(operation)?.start_container(operation, &own.id).await? {
                return Ok(ScriptOutput::default());
            }
            own.run_script(operation, Input::Nothing, PREPARE.to_owned(), vec![cwd], false).await
        });
        let made = made.await??;
        if made.status == 0 {
            return Ok(());
        }
        let message =
            format!("cannot be made in the sandbox, got {:?}: {}", self.cwd, made.last_error());
        Err(Error::invalid("working_dir", message))
    }

    /// Returns true when the container was started again while this handle had it.
    pub(crate) fn has_lost_container(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Takes note that the container was started again. Returns the error that says so.
    pub(crate) fn note_loss(&self, operation: &'static str) -> BoxFuture<'_, Error> {
        Box::pin(async move {
            if self.records.directory().is_some() && self.records.read(&self.id).is_none() {
                // Ended by another handle: the request has started a container that nothing needs.
                self.end();
                if let Ok(api) = self.api(operation) {
                    let _ = api.delete(&CallContext::new(), operation, &self.id).await;
                }
                return self.lost(operation);
            }
            self.channel.close();
            tracing::warn!(id = self.id, "the container was started again, and has lost its files");
            self.lost.store(true, Ordering::SeqCst);
            let is_fresh = self.cwd == WORKSPACE;
            self.fresh.store(is_fresh, Ordering::SeqCst);
            self.records.change_known(&self.id, |record| {
                (record.lost, record.fresh) = (true, is_fresh);
            });
            self.prepare(operation).await.err().unwrap_or_else(|| container_lost(operation))
        })
    }

    /// Returns the script that runs a program in the container.
    pub(crate) fn guard(&self) -> &'static str {
        if !self.fresh.load(Ordering::SeqCst) {
            return GUARD;
        }
        // Another process may have run one meanwhile.
        let is_fresh = self.records.read(&self.id).is_none_or(|record| record.fresh);
        self.fresh.store(is_fresh, Ordering::SeqCst);
        if is_fresh { FIRST } else { GUARD }
    }

    /// Takes note that the container is marked: a program has run.
    pub(crate) fn note_mark(&self) {
        if self.fresh.swap(false, Ordering::SeqCst) {
            let (records, id) = (self.records.clone(), self.id.clone());
            background_runtime::spawn(async move {
                records.change_known(&id, |record| record.fresh = false);
            });
        }
    }

    /// Returns the error of a channel that broke: that of its container, where it was started again.
    pub(crate) async fn explain_loss(&self, error: Error) -> Error {
        match self.run_in_background("command", ":", &[]).await {
            Err(explained) if self.has_lost_container() || self.is_over() => explained,
            _ => error,
        }
    }
}
