//! The runtime of what all sandboxes of a process share.
//!
//! The maker of cells and the warm interpreters outlive the runtime that happened to ask for them first, such as that of
//! a single test. So they have a runtime of their own: one thread, asleep when nothing is created.

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use sandbox_core::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

fn handle() -> Result<Handle> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    let started = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("code-sandboxes")
        .enable_all()
        .build()
        .map_err(|error| {
            Error::new(ErrorKind::ResourceExhausted, "create", "no thread for sandboxes")
                .with_source(error)
        })?;
    Ok(runtime.insert(started).handle().clone())
}

/// Calls a function in the shared runtime, for what belongs to the runtime in which it is made. Where there is no thread
/// for that one, in the caller's.
pub(crate) fn inside<T>(make: impl FnOnce() -> T) -> T {
    let handle = handle();
    let _inside = handle.as_ref().ok().map(Handle::enter);
    make()
}

/// Runs a task on the shared runtime, whether or not anything polls the one that this is called on.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
    inside(|| tokio::spawn(task)).abort_handle()
}

/// Runs a future on the shared runtime, also when nobody waits for it any more.
///
/// # Errors
/// `ResourceExhausted` when there is no thread for it, `Unexpected` when the future panicked.
pub async fn background<F>(future: F) -> Result<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    handle()?.spawn(future).await.map_err(|error| {
        Error::new(ErrorKind::Unexpected, "create", "a background task failed").with_source(error)
    })
}
