//! A background thread for deletions and timers, which must not depend on the runtime of a caller.
//!
//! The last handle of a sandbox may be dropped when the caller's runtime is about to end, which would never run a new
//! task. A kernel that is not deleted keeps running, at a cost.

use std::future::Future;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};

fn handle() -> Option<&'static Handle> {
    static KEEPER: OnceLock<Option<Handle>> = OnceLock::new();
    KEEPER.get_or_init(start).as_ref()
}

fn start() -> Option<Handle> {
    let (send, receive) = mpsc::channel();
    let body = move || {
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
        if send.send(runtime.handle().clone()).is_ok() {
            runtime.block_on(std::future::pending::<()>());
        }
    };
    let started = thread::Builder::new().name("kernel-keeper".into()).spawn(body);
    if let Err(error) = started {
        tracing::error!(%error, "the background thread could not be started");
        return None;
    }
    receive.recv().ok()
}

/// Runs work in the background.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    if let Some(handle) = handle() {
        handle.spawn(work);
    }
}

/// Runs work in the background, and blocks this thread until the work is done or the timeout has passed. The work
/// continues after the timeout.
pub fn finish(timeout: Duration, work: impl Future<Output = ()> + Send + 'static) {
    let (send, receive) = mpsc::channel::<()>();
    spawn(async move {
        work.await;
        drop(send);
    });
    // The background thread cannot wait for itself.
    if thread::current().name() != Some("kernel-keeper") {
        let _ = receive.recv_timeout(timeout);
    }
}
