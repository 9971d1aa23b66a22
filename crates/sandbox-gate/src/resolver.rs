//! Names of the outside, asked in bounded numbers and remembered for a moment.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    slots: Semaphore,
    limit: Duration,
    known: Mutex<Known>,
}

impl Resolver {
    pub(crate) fn new(outside: Arc<dyn Outside>, limit: Duration) -> Self {
        Self { outside, slots: Semaphore::new(AT_ONCE), limit, known: Mutex::default() }
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
        let _slot = self.slots.acquire().await.map_err(io::Error::other)?;
        let mut found = self.outside.resolve(name).await?;
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
