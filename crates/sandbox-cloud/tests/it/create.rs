//! Creates whose answer is lost or whose caller is gone.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use sandbox_cloud::{CreateGuard, create_or_find};
use sandbox_core::{Effect, Error, ErrorKind, Result, Retry};

fn lost() -> Error {
    let error = Error::new(ErrorKind::ConnectionLost, "create", "the connection broke");
    error.with_retry(Retry::Temporary).with_effect(Effect::Unknown)
}

/// Runs a create that fails in this way each time, and finds what `find` gives at each lookup.
async fn run(
    error: fn() -> Error,
    find: fn(u32) -> Result<Option<u32>>,
) -> (Result<u32>, u32, u32) {
    let (creates, finds) = (AtomicU32::new(0), AtomicU32::new(0));
    let create = || async {
        creates.fetch_add(1, Ordering::SeqCst);
        Err(error())
    };
    let find = || async { find(finds.fetch_add(1, Ordering::SeqCst)) };
    let done = create_or_find(create, find, "look at the list").await;
    (done, creates.into_inner(), finds.into_inner())
}

#[tokio::test]
async fn a_create_whose_answer_was_lost_is_looked_for() {
    let (done, creates, finds) = run(lost, |lookup| Ok((lookup == 1).then_some(7))).await;
    assert_eq!((done.unwrap(), creates, finds), (7, 1, 2));
    // What did nothing is not looked for.
    let refused = || Error::new(ErrorKind::QuotaExceeded, "create", "no credits");
    let (done, creates, finds) = run(refused, |_| Ok(None)).await;
    assert_eq!((done.unwrap_err().kind(), creates, finds), (ErrorKind::QuotaExceeded, 1, 0));
    // What may exist and cannot be looked for is not sent again.
    let (done, creates, finds) = run(lost, |_| Err(lost())).await;
    assert_eq!((done.unwrap_err().hint(), creates, finds), (Some("look at the list"), 1, 3));
    // What does not exist is, a few times.
    let (done, creates, finds) = run(lost, |_| Ok(None)).await;
    assert_eq!((done.unwrap_err().kind(), creates, finds), (ErrorKind::ConnectionLost, 3, 9));
    let (done, creates, _) = run(|| lost().with_retry(Retry::Never), |_| Ok(None)).await;
    assert_eq!((done.unwrap_err().kind(), creates), (ErrorKind::ConnectionLost, 1));
}

/// The sandboxes that exist.
type Sandboxes = Arc<Mutex<u32>>;

fn guard(
    sandboxes: &Sandboxes,
    start: Duration,
    held: impl Send + 'static,
) -> CreateGuard<Sandboxes> {
    let sandboxes = Arc::clone(sandboxes);
    CreateGuard::start(
        move |mut cancellation| async move {
            // The request has an answer, whatever becomes of the caller.
            tokio::time::sleep(Duration::from_millis(50)).await;
            *sandboxes.lock().unwrap() += 1;
            let started = cancellation.guard(async {
                tokio::time::sleep(start).await;
                Ok(())
            });
            match started.await {
                Ok(()) => Ok(sandboxes),
                Err(error) => {
                    *sandboxes.lock().unwrap() -= 1;
                    Err(error)
                }
            }
        },
        |sandboxes| {
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                *sandboxes.lock().unwrap() -= 1;
            })
        },
        held,
    )
}

#[tokio::test]
async fn a_create_that_is_dropped_leaves_nothing() {
    let sandboxes = Sandboxes::default();
    let (held, released) = mpsc::channel::<()>();
    guard(&sandboxes, Duration::from_millis(50), held).finish().await.unwrap();
    assert_eq!(*sandboxes.lock().unwrap(), 1, "the control: one that is taken stays");
    assert!(released.recv().is_err());
    *sandboxes.lock().unwrap() = 0;

    // Before the answer, before the sandbox is ready, and when the result is there already.
    for (dropped_after, start) in [(0, 60_000), (200, 60_000), (200, 0)] {
        let (held, released) = mpsc::channel::<()>();
        let pending = guard(&sandboxes, Duration::from_millis(start), held);
        tokio::time::sleep(Duration::from_millis(dropped_after)).await;
        let dropped = Instant::now();
        drop(pending);
        assert_eq!(*sandboxes.lock().unwrap(), 0, "{dropped_after} {start}");
        assert!(dropped.elapsed() < Duration::from_secs(5), "{:?}", dropped.elapsed());
        assert!(released.try_recv().is_err_and(|error| error == mpsc::TryRecvError::Disconnected));
    }
}

/// As at the end of a program, whose runtime polls nothing any more.
#[test]
fn a_create_outlives_the_runtime_of_its_caller() {
    let sandboxes = Sandboxes::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pending = runtime.block_on(async { guard(&sandboxes, Duration::from_secs(60), ()) });
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(*sandboxes.lock().unwrap(), 1, "the control: it was created");
    drop(runtime);
    drop(pending);
    assert_eq!(*sandboxes.lock().unwrap(), 0);
}
