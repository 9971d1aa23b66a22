//! The background runtime of the library: for what all sandboxes of a process share, and for work that a caller's runtime
//! cannot be relied on for, such as deletions and timers.
//!
//! Cell launchers and warm interpreters outlive the runtime that first asked for them, such as that of a single test. So
//! they have a runtime of their own: one thread, asleep while nothing is created.

use std::future::Future;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use sandbox_core::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

const THREAD_NAME: &str = "code-sandboxes";

static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

fn handle() -> Result<Handle> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*runtime {
        return Ok(runtime.handle().clone());
    }
    let started = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(THREAD_NAME)
        .enable_all()
        .build()
        .map_err(|error| {
            Error::new(ErrorKind::ResourceExhausted, "create", "no thread for sandboxes")
                .with_source(error)
        })?;
    Ok(runtime.insert(started).handle().clone())
}

/// Calls a function in the background runtime, for objects that belong to the runtime in which they are made. Without a
/// thread for it, calls the function in the caller's runtime.
pub(crate) fn inside<T>(make: impl FnOnce() -> T) -> T {
    let handle = handle();
    let _inside = handle.as_ref().ok().map(Handle::enter);
    make()
}

/// Runs a task on the background runtime, whether or not the caller's runtime is polled. Without a thread for it, the
/// task runs on the caller's runtime; outside of any runtime, returns `None` and drops the task.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
    match handle().or_else(|_| Handle::try_current()) {
        Ok(handle) => Some(handle.spawn(task).abort_handle()),
        Err(error) => {
            tracing::error!(%error, "no thread for a background task");
            None
        }
    }
}

/// Runs a future on the background runtime. The future continues when the caller is cancelled.
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

/// Runs a task on the background runtime and blocks this thread until the task has ended or `limit` has passed. After
/// that the task continues.
///
/// This is for destructors: the caller's runtime may be about to end, and a task on that runtime would never run.
pub fn spawn_and_wait(limit: Duration, task: impl Future<Output = ()> + Send + 'static) {
    let (sender, receiver) = mpsc::channel::<()>();
    spawn(async move {
        task.await;
        drop(sender);
    });
    // A thread of the runtime cannot wait for the runtime.
    if thread::current().name() != Some(THREAD_NAME) {
        let _ = receiver.recv_timeout(limit);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_destructor_waits_for_its_work_and_not_for_long() {
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        spawn_and_wait(Duration::from_secs(20), async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            is_done.store(true, Ordering::SeqCst);
        });
        assert!(done.load(Ordering::SeqCst));
        let started = Instant::now();
        spawn_and_wait(Duration::from_millis(50), std::future::pending());
        assert!((50..5000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
    }

    #[test]
    fn work_of_the_runtime_does_not_wait_for_itself() {
        let (sender, receiver) = mpsc::channel();
        spawn(async move {
            let started = Instant::now();
            spawn_and_wait(Duration::from_secs(60), std::future::pending());
            let _ = sender.send(started.elapsed());
        });
        let waited = receiver.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(waited < Duration::from_secs(20), "{waited:?}");
    }
}
