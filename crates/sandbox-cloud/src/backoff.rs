//! Pauses between questions about what a provider cannot report by itself.

use std::time::Duration;

use sandbox_core::CallContext;
use tokio::time::{Instant, sleep};

use crate::http::within_deadline;

const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Pauses of 50 ms at first, each twice as long as the one before, and of a second at most, until a time limit has passed.
#[derive(Debug)]
pub struct Backoff {
    pause: Duration,
    end: Instant,
}

impl Backoff {
    /// Starts a wait of at most that long.
    pub fn new(limit: Duration) -> Self {
        Self { pause: MIN_PAUSE, end: Instant::now() + limit }
    }

    /// Waits for the next pause and returns true; false, at once, when the limit has passed or the deadline of the call
    /// comes before the end of the pause.
    pub async fn wait(&mut self, call: &CallContext) -> bool {
        if Instant::now() >= self.end || !within_deadline(call, self.pause) {
            return false;
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_the_limit() {
        let began = Instant::now();
        let mut backoff = Backoff::new(Duration::from_secs(4));
        let mut ends = Vec::new();
        while backoff.wait(&CallContext::new()).await {
            ends.push(began.elapsed().as_millis());
        }
        assert_eq!(ends, [50, 150, 350, 750, 1550, 2550, 3550, 4550]);
    }

    #[tokio::test]
    async fn a_pause_does_not_pass_the_deadline_of_the_call() {
        let soon = std::time::Instant::now() + Duration::from_millis(10);
        let mut backoff = Backoff::new(Duration::from_secs(4));
        assert!(!backoff.wait(&CallContext::new().with_deadline(soon)).await);
    }
}
