//! Creates that leave nothing behind: neither when their answer is lost nor when their caller is gone.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::time::Duration;

use sandbox_core::{Effect, Error, ErrorKind, Result, Retry};
use sandbox_engine::background_runtime;
use tokio::sync::oneshot;

/// Requests of one create whose outcome stays unknown, each after the last was looked for.
const MAX_CREATES: u32 = 3;
/// Times that a lost create is looked for, with growing pauses.
const MAX_LOOKUPS: u32 = 3;
const MIN_LOOKUP_DELAY: Duration = Duration::from_millis(250);
/// Maximum time that dropping a pending create blocks for cleanup.
const DROP_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates something with `create`, whose request must not be sent again blindly. When it is unknown if the request had an
/// effect, `find` looks for the thing by a name, a tag or a key that only this create has.
///
/// # Errors
/// Those of `create`. Where the thing may exist and `find` failed too, the error has `left_behind` as its hint.
pub async fn create_or_find<T, C, F>(
    create: impl Fn() -> C,
    find: impl Fn() -> F,
    left_behind: &str,
) -> Result<T>
where
    C: Future<Output = Result<T>>,
    F: Future<Output = Result<Option<T>>>,
{
    let mut attempt = 0;
    loop {
        attempt += 1;
        let error = match create().await {
            Err(error) if error.effect() != Effect::NotSent => error,
            done => return done,
        };
        tracing::info!(%error, "the outcome of a create is unknown; looking for what it made");
        match lookup(&find).await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            // Another request could make a second one.
            Err(lookup_error) => {
                tracing::warn!(%lookup_error, "the result of a create may be left behind");
                return Err(error.with_hint(left_behind));
            }
        }
        if error.retry() != Retry::Temporary || attempt >= MAX_CREATES {
            return Err(error);
        }
    }
}

/// Looks several times: a list may show new things late. The last answer counts when nothing is found.
async fn lookup<T, F>(find: impl Fn() -> F) -> Result<Option<T>>
where
    F: Future<Output = Result<Option<T>>>,
{
    let mut last = Ok(None);
    for attempt in 0..MAX_LOOKUPS {
        tokio::time::sleep(MIN_LOOKUP_DELAY * 2_u32.pow(attempt)).await;
        last = find().await;
        if let Ok(Some(_)) = last {
            break;
        }
    }
    last
}

type Discard<T> = fn(T) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// A pending create. Its work runs on the background runtime and is finished or undone when the guard is dropped.
#[derive(Debug)]
pub struct CreateGuard<T: Send + 'static> {
    result: oneshot::Receiver<Result<T>>,
    discard: Discard<T>,
    /// Dropping it cancels the work.
    cancel: Option<oneshot::Sender<()>>,
    /// Closed when there is nothing left to do.
    done: mpsc::Receiver<()>,
}

/// Tells the work of a create that its caller is gone.
#[derive(Debug)]
pub struct Cancellation(oneshot::Receiver<()>);

impl Cancellation {
    /// Waits for a part of the create that can be given up.
    ///
    /// # Errors
    /// Those of `part`; `Cancelled` as soon as the caller is gone.
    pub async fn guard<T>(&mut self, part: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = part => done,
            _ = &mut self.0 => Err(cancelled()),
        }
    }
}

impl<T: Send + 'static> CreateGuard<T> {
    /// Starts the work of a create. `discard` undoes a result that is not taken. `held`, such as locks, is dropped when
    /// there is nothing left to do.
    pub fn start<F>(
        work: impl FnOnce(Cancellation) -> F,
        discard: Discard<T>,
        held: impl Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (send, result) = oneshot::channel();
        let (cancel, cancelled) = oneshot::channel();
        let (working, done) = mpsc::channel::<()>();
        let work = work(Cancellation(cancelled));
        // Not on the runtime of the caller, which may end before the provider has answered.
        background_runtime::spawn(async move {
            if let Err(Ok(untaken)) = send.send(work.await) {
                discard(untaken).await;
            }
            // The next holder of a lock finds the sandbox, or finds it deleted.
            drop((held, working));
        });
        Self { result, discard, cancel: Some(cancel), done }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// Those of the work.
    pub async fn finish(mut self) -> Result<T> {
        (&mut self.result).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unexpected, "create", "the create was not finished")
                .with_effect(Effect::Unknown))
        })
    }
}

impl<T: Send + 'static> Drop for CreateGuard<T> {
    fn drop(&mut self) {
        drop(self.cancel.take());
        self.result.close();
        if let Ok(Ok(untaken)) = self.result.try_recv() {
            background_runtime::spawn_and_wait(DROP_TIMEOUT, (self.discard)(untaken));
        }
        // The process may be about to end, and what was asked for would stay. Returns at once where nothing is left to do.
        let _ = self.done.recv_timeout(DROP_TIMEOUT);
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "create", "the caller of the create is gone")
}
