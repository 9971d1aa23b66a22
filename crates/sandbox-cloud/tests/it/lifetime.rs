//! Ends of remote sandboxes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandbox_cloud::{Connections, Remote, RemoteLifetime};
use sandbox_core::{Effect, Error, ErrorKind, FailureKind, Result, Retry, unix_now};

/// A sandbox that is only a few numbers, shared with the test.
#[derive(Debug, Default)]
pub(crate) struct Cloud {
    is_gone: Mutex<bool>,
    /// Deletions that fail before one succeeds.
    failing_deletions: AtomicU32,
    failing_renewals: AtomicU32,
    deletions: Mutex<Vec<Connections>>,
    renewals: Mutex<Vec<Duration>>,
    ends: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Sandbox(pub(crate) Arc<Cloud>);

impl Cloud {
    /// Ends the sandbox at its provider.
    pub(crate) fn end(&self) {
        *self.is_gone.lock().unwrap() = true;
    }
}

fn fails(counter: &AtomicU32) -> Result<()> {
    let left = counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    match left {
        Ok(_) => Err(Error::new(ErrorKind::Unavailable, "delete", "busy")
            .with_retry(Retry::Temporary)
            .with_effect(Effect::Unknown)),
        Err(_) => Ok(()),
    }
}

#[async_trait]
impl Remote for Sandbox {
    fn id(&self) -> String {
        "cloud/a".into()
    }

    fn expires_at(&self) -> Option<f64> {
        None
    }

    async fn delete(&self, _: &'static str, connections: Connections) -> Result<()> {
        self.0.deletions.lock().unwrap().push(connections);
        fails(&self.0.failing_deletions)?;
        *self.0.is_gone.lock().unwrap() = true;
        Ok(())
    }

    async fn exists(&self, _: &'static str, _: Connections) -> Result<bool> {
        Ok(!*self.0.is_gone.lock().unwrap())
    }

    async fn renew(&self, lifetime: Duration, _: Connections) -> Result<()> {
        fails(&self.0.failing_renewals)?;
        if *self.0.is_gone.lock().unwrap() {
            return Err(Error::new(ErrorKind::NotFound, "renew", "it is gone"));
        }
        self.0.renewals.lock().unwrap().push(lifetime);
        Ok(())
    }

    fn ended(&self) {
        self.0.ends.fetch_add(1, Ordering::SeqCst);
    }
}

fn sandbox(is_owned: bool) -> (Arc<Cloud>, RemoteLifetime<Sandbox>) {
    let cloud = Arc::<Cloud>::default();
    let lifetime = RemoteLifetime::new(Sandbox(Arc::clone(&cloud)), is_owned);
    (cloud, lifetime)
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn is_gone(cloud: &Cloud) -> bool {
    *cloud.is_gone.lock().unwrap()
}

#[tokio::test]
async fn an_owned_sandbox_ends_with_its_handle_and_another_stays() {
    let (cloud, lifetime) = sandbox(true);
    drop(lifetime);
    assert!(is_gone(&cloud), "before the thread continues");
    assert_eq!(*cloud.deletions.lock().unwrap(), [Connections::Dedicated]);
    let (cloud, lifetime) = sandbox(false);
    drop(lifetime);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!is_gone(&cloud));
    // What was ended is not deleted again.
    let (cloud, lifetime) = sandbox(true);
    lifetime.end("terminate", true).await.unwrap();
    lifetime.end("terminate", true).await.unwrap();
    drop(lifetime);
    assert_eq!(*cloud.deletions.lock().unwrap(), [Connections::Shared]);
    assert_eq!(cloud.ends.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_lifetime_ends_the_sandbox_unless_it_is_changed() {
    let (cloud, lifetime) = sandbox(true);
    lifetime.end_in(Duration::from_millis(200));
    lifetime.end_in(Duration::from_millis(1500));
    tokio::time::sleep(Duration::from_millis(700)).await;
    lifetime.ensure_running("run_code").unwrap();
    until("the later end", || is_gone(&cloud)).await;
    assert_eq!(lifetime.end_reason().get(), Some(FailureKind::Expired));
    let error = lifetime.ensure_running("run_code").unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Terminated, "cloud/a: its lifetime is over")
    );
    // One that its provider ends is only known to have ended.
    let (cloud, lifetime) = sandbox(false);
    lifetime.end_in(Duration::from_millis(100));
    until("the end is noted", || cloud.ends.load(Ordering::SeqCst) == 1).await;
    assert!(lifetime.has_ended() && cloud.deletions.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_deletion_that_fails_is_repeated_in_the_background() {
    let (cloud, lifetime) = sandbox(true);
    cloud.failing_deletions.store(1, Ordering::SeqCst);
    lifetime.end_in_background("kill");
    until("the second attempt", || is_gone(&cloud)).await;
    assert_eq!(*cloud.deletions.lock().unwrap(), [Connections::Dedicated; 2]);
    // The caller of an end gets the error, and can try again.
    let (cloud, lifetime) = sandbox(true);
    cloud.failing_deletions.store(1, Ordering::SeqCst);
    lifetime.end("terminate", true).await.unwrap_err();
    lifetime.ensure_running("run_code").unwrap();
    lifetime.end("terminate", true).await.unwrap();
    let (cloud, lifetime) = sandbox(true);
    cloud.failing_deletions.store(1, Ordering::SeqCst);
    let error = lifetime.discard(Error::new(ErrorKind::Timeout, "create", "late"), "see the list");
    let error = error.await;
    assert_eq!((error.kind(), error.hint()), (ErrorKind::Timeout, Some("see the list")));
    assert!(error.context().contains(&("left_behind", "cloud/a".to_owned())));
}

#[tokio::test]
async fn a_lost_connection_is_the_end_of_the_sandbox_where_it_is_gone() {
    let lost = || Error::new(ErrorKind::ConnectionLost, "run_code", "the connection broke");
    let (cloud, lifetime) = sandbox(true);
    assert_eq!(lifetime.map_error("run_code", lost()).await.kind(), ErrorKind::ConnectionLost);
    *cloud.is_gone.lock().unwrap() = true;
    assert_eq!(lifetime.map_error("run_code", lost()).await.kind(), ErrorKind::Terminated);
    assert_eq!(cloud.ends.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_expiry_at_the_provider_is_renewed_and_never_beyond_the_end() {
    let (cloud, lifetime) = sandbox(true);
    let renewals = || cloud.renewals.lock().unwrap().clone();
    lifetime.end_in(Duration::from_secs(3));
    cloud.failing_renewals.store(1, Ordering::SeqCst);
    lifetime.renew_every(Duration::from_secs(2));
    until("renewals", || renewals().len() >= 3).await;
    assert!(renewals().iter().all(|lifetime| *lifetime <= Duration::from_secs(2)));
    assert!(renewals()[2] < Duration::from_millis(1900), "{:?}", renewals());
    let end = lifetime.end_at().unwrap() - unix_now();
    assert!((0.0..2.0).contains(&end), "{end}");
    drop(lifetime);
    let count = renewals().len();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(renewals().len(), count, "nothing is renewed after the end");
    // One that is gone has ended.
    let (cloud, lifetime) = sandbox(true);
    *cloud.is_gone.lock().unwrap() = true;
    lifetime.renew_every(Duration::from_millis(300));
    until("the end is noted", || lifetime.has_ended()).await;
}
