//! Caching resolver with a bounded number of concurrent lookups.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::upstream::Upstream;

/// Maximum number of concurrent upstream lookups.
const MAX_CONCURRENT: usize = 16;

/// Lifetime of a cached answer: long enough for the connection after a DNS query, short enough to notice changes.
const CACHE_TTL: Duration = Duration::from_secs(20);

/// Maximum number of addresses used of one name: the name's owner decides how many there are, and each is checked.
const MAX_ADDRESSES: usize = 64;

/// Maximum number of cached answers.
const MAX_CACHED: usize = 512;

/// Answers, with the times of their lookups.
type Cache = HashMap<Box<str>, (Instant, Arc<[IpAddr]>)>;

#[derive(Debug)]
pub(crate) struct Resolver {
    upstream: Arc<dyn Upstream>,
    slots: Arc<Semaphore>,
    limit: Duration,
    cache: Mutex<Cache>,
}

impl Resolver {
    pub(crate) fn new(upstream: Arc<dyn Upstream>, limit: Duration) -> Self {
        Self {
            upstream,
            slots: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            limit,
            cache: Mutex::default(),
        }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the addresses of a name, as [`Upstream::resolve`] does.
    pub(crate) async fn resolve(&self, name: &str) -> io::Result<Arc<[IpAddr]>> {
        if let Some((at, found)) = self.cache().get(name)
            && at.elapsed() < CACHE_TTL
        {
            return Ok(Arc::clone(found));
        }
        let found = timeout(self.limit, self.query(name)).await??;
        let mut cache = self.cache();
        if cache.len() >= MAX_CACHED {
            cache.retain(|_, (at, _)| at.elapsed() < CACHE_TTL);
        }
        if cache.len() < MAX_CACHED {
            cache.insert(name.into(), (Instant::now(), Arc::clone(&found)));
        }
        Ok(found)
    }

    async fn query(&self, name: &str) -> io::Result<Arc<[IpAddr]>> {
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(io::Error::other)?;
        let (upstream, name) = (Arc::clone(&self.upstream), name.to_owned());
        let mut lookup = Box::pin(async move {
            let found = upstream.resolve(&name).await;
            drop(slot);
            found
        });
        // A lookup that completes at once needs no task.
        let first_poll = poll_fn(|context| Poll::Ready(lookup.as_mut().poll(context))).await;
        let mut found = match first_poll {
            Poll::Ready(found) => found?,
            // The host's resolver continues after its caller is dropped, and holds its slot until it ends.
            Poll::Pending => tokio::spawn(lookup).await.map_err(io::Error::other)??,
        };
        found.truncate(MAX_ADDRESSES);
        let mut seen = Vec::new();
        found.retain(|address| {
            let new = !seen.contains(address);
            seen.push(*address);
            new
        });
        Ok(found.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use async_trait::async_trait;
    use tokio::net::TcpStream;

    use super::*;

    /// Blocks every lookup until released, and ignores that callers were dropped.
    #[derive(Debug)]
    struct Slow {
        started: AtomicUsize,
        release: Arc<Mutex<mpsc::Receiver<()>>>,
    }

    #[async_trait]
    impl Upstream for Slow {
        async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            self.started.fetch_add(1, Ordering::Relaxed);
            let release = Arc::clone(&self.release);
            let wait =
                move || release.lock().unwrap_or_else(PoisonError::into_inner).recv().is_ok();
            tokio::task::spawn_blocking(wait).await?;
            Ok(Vec::new())
        }

        async fn connect(&self, _: SocketAddr) -> io::Result<TcpStream> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn is_own(&self, _: IpAddr) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn abandoned_lookups_hold_their_slot_until_they_end() {
        let (end, release) = mpsc::channel();
        let slow =
            Arc::new(Slow { started: AtomicUsize::new(0), release: Arc::new(Mutex::new(release)) });
        let resolver = Resolver::new(Arc::<Slow>::clone(&slow), Duration::from_millis(5));
        for n in 0..3 * MAX_CONCURRENT {
            let error = resolver.resolve(&format!("{n}.example")).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(slow.started.load(Ordering::Relaxed), MAX_CONCURRENT);
        drop(end);
        let resolver = Resolver { limit: Duration::from_secs(60), ..resolver };
        assert_eq!(&*resolver.resolve("later.example").await.unwrap(), &[] as &[IpAddr]);
    }
}
