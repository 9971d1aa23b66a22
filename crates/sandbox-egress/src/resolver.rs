//! Names of the outside, asked in bounded numbers and remembered for a moment.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::outside::Outside;

/// Questions to the outside at one time.
const AT_ONCE: usize = 16;

/// How long an answer counts. The connection that follows a question finds it; what changes is soon seen.
const FRESH: Duration = Duration::from_secs(20);

/// Addresses of one name that are looked at: whoever answers for a name decides how many it has, and each is judged.
const MOST_ADDRESSES: usize = 64;

/// Answers that are remembered.
const MOST: usize = 512;

/// Answers, and when they came.
type Known = HashMap<Box<str>, (Instant, Arc<[IpAddr]>)>;

#[derive(Debug)]
pub(crate) struct Resolver {
    outside: Arc<dyn Outside>,
    slots: Arc<Semaphore>,
    limit: Duration,
    known: Mutex<Known>,
}

impl Resolver {
    pub(crate) fn new(outside: Arc<dyn Outside>, limit: Duration) -> Self {
        Self { outside, slots: Arc::new(Semaphore::new(AT_ONCE)), limit, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of a name, as [`Outside::resolve`] has them.
    pub(crate) async fn addresses(&self, name: &str) -> io::Result<Arc<[IpAddr]>> {
        if let Some((at, found)) = self.known().get(name)
            && at.elapsed() < FRESH
        {
            return Ok(Arc::clone(found));
        }
        let found = timeout(self.limit, self.ask(name)).await??;
        let mut known = self.known();
        if known.len() >= MOST {
            known.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        if known.len() < MOST {
            known.insert(name.into(), (Instant::now(), Arc::clone(&found)));
        }
        Ok(found)
    }

    async fn ask(&self, name: &str) -> io::Result<Arc<[IpAddr]>> {
        let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(io::Error::other)?;
        let (outside, name) = (Arc::clone(&self.outside), name.to_owned());
        let mut asked = Box::pin(async move {
            let found = outside.resolve(&name).await;
            drop(slot);
            found
        });
        // What is answered at once needs no task.
        let at_once = poll_fn(|context| Poll::Ready(asked.as_mut().poll(context))).await;
        let mut found = match at_once {
            Poll::Ready(found) => found?,
            // The resolver of a host goes on when nobody waits for it any more, and has its place until it ends.
            Poll::Pending => tokio::spawn(asked).await.map_err(io::Error::other)??,
        };
        found.truncate(MOST_ADDRESSES);
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

    /// Answers nothing until all may go on, and does not notice that nobody waits any more.
    #[derive(Debug)]
    struct Slow {
        begun: AtomicUsize,
        go_on: Arc<Mutex<mpsc::Receiver<()>>>,
    }

    #[async_trait]
    impl Outside for Slow {
        async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
            self.begun.fetch_add(1, Ordering::Relaxed);
            let go_on = Arc::clone(&self.go_on);
            let wait = move || go_on.lock().unwrap_or_else(PoisonError::into_inner).recv().is_ok();
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
    async fn questions_that_nobody_waits_for_have_their_place_until_they_end() {
        let (end, go_on) = mpsc::channel();
        let slow =
            Arc::new(Slow { begun: AtomicUsize::new(0), go_on: Arc::new(Mutex::new(go_on)) });
        let resolver = Resolver::new(Arc::<Slow>::clone(&slow), Duration::from_millis(5));
        for n in 0..3 * AT_ONCE {
            let error = resolver.addresses(&format!("{n}.example")).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(slow.begun.load(Ordering::Relaxed), AT_ONCE);
        drop(end);
        let resolver = Resolver { limit: Duration::from_secs(60), ..resolver };
        assert_eq!(&*resolver.addresses("later.example").await.unwrap(), &[] as &[IpAddr]);
    }
}
