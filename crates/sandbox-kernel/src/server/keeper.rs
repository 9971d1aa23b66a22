//! A thread that does what no runtime of a caller can be relied on for: deletions and timers.
//!
//! The last handle of a sandbox may be dropped when the caller's runtime is about to end, and a task of that runtime would
//! never be run. What is not deleted goes on, and may cost.

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
        tracing::error!(%error, "no thread for deletions");
        return None;
    }
    receive.recv().ok()
}

/// Does it some time.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    if let Some(handle) = handle() {
        handle.spawn(work);
    }
}

/// Does it, and blocks this thread until it is done or that time has passed. It goes on then.
pub fn finish(timeout: Duration, work: impl Future<Output = ()> + Send + 'static) {
    let (send, receive) = mpsc::channel::<()>();
    spawn(async move {
        work.await;
        drop(send);
    });
    // The keeper itself cannot wait for itself.
    if thread::current().name() != Some("kernel-keeper") {
        let _ = receive.recv_timeout(timeout);
    }
}
