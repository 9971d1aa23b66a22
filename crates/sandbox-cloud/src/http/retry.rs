//! Retries that cannot do anything twice.

use std::future::Future;
use std::time::{Duration, Instant};

use backon::{ExponentialBuilder, Retryable as _};
use sandbox_core::{CallContext, Effect, Error, Result, Retry};

/// Attempts, counting the first one.
const MAX_ATTEMPTS: usize = 4;
/// Longest wait that a service can ask for between two attempts. A longer one is the caller's to wait for.
pub const MAX_RETRY_WAIT: Duration = Duration::from_secs(30);
const MIN_DELAY: Duration = Duration::from_millis(250);
const MAX_DELAY: Duration = Duration::from_secs(8);

/// Returns true when trying again may help and cannot do the same thing twice.
pub fn may_repeat(is_idempotent: bool, error: &Error) -> bool {
    error.retry() == Retry::Temporary && (is_idempotent || error.effect() == Effect::NotSent)
}

/// Returns true when the call is not yet over after that wait.
pub fn within_deadline(call: &CallContext, wait: Duration) -> bool {
    call.deadline.is_none_or(|deadline| Instant::now() + wait < deadline)
}

/// Does `attempt` up to four times, as long as [`may_repeat`] allows, with growing random pauses or those that the
/// service asks for.
///
/// HTTP requests of a [`Client`](super::Client) do this already; this is for other transports.
///
/// # Errors
/// The last error. Its retry is `Exhausted` where a repetition was allowed and came too late.
pub async fn retry_by_effect<T, F>(
    call: &CallContext,
    operation: &'static str,
    is_idempotent: bool,
    attempt: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let delays = ExponentialBuilder::new()
        .with_jitter()
        .with_min_delay(MIN_DELAY)
        .with_max_delay(MAX_DELAY)
        .with_max_times(MAX_ATTEMPTS - 1);
    let wait = |error: &Error, delay: Option<Duration>| {
        let wait = error.retry_after().or(delay)?;
        (delay.is_some() && wait <= MAX_RETRY_WAIT && within_deadline(call, wait)).then_some(wait)
    };
    attempt
        .retry(delays)
        .sleep(tokio::time::sleep)
        .when(|error| may_repeat(is_idempotent, error))
        .adjust(wait)
        .notify(|error, wait| tracing::debug!(%error, operation, ?wait, "trying again"))
        .await
        .map_err(|error| {
            let is_exhausted = may_repeat(is_idempotent, &error);
            if is_exhausted { error.with_retry(Retry::Exhausted) } else { error }
        })
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;

    use super::*;

    async fn attempts(is_idempotent: bool, error: fn() -> Error) -> (u32, Error) {
        let (call, mut count) = (CallContext::new(), 0);
        let failed = retry_by_effect::<(), _>(&call, "test", is_idempotent, || {
            count += 1;
            async move { Err(error().with_retry_after(Duration::ZERO)) }
        });
        let error = failed.await.unwrap_err();
        (count, error)
    }

    fn temporary(effect: Effect) -> Error {
        let error = Error::new(ErrorKind::Unavailable, "test", "busy");
        error.with_retry(Retry::Temporary).with_effect(effect)
    }

    #[tokio::test]
    async fn what_may_have_happened_is_repeated_only_where_that_is_harmless() {
        let (count, error) = attempts(false, || temporary(Effect::Unknown)).await;
        assert_eq!((count, error.retry()), (1, Retry::Temporary));
        let (count, error) = attempts(true, || temporary(Effect::Unknown)).await;
        assert_eq!((count, error.retry()), (4, Retry::Exhausted));
        let (count, error) = attempts(false, || temporary(Effect::NotSent)).await;
        assert_eq!((count, error.retry()), (4, Retry::Exhausted));
        let (count, error) =
            attempts(true, || temporary(Effect::NotSent).with_retry(Retry::Never)).await;
        assert_eq!((count, error.retry()), (1, Retry::Never));
    }

    #[tokio::test]
    async fn pauses_grow_and_end_with_the_call() {
        let started = Instant::now();
        let call = CallContext::new();
        let failed = retry_by_effect::<(), _>(&call, "test", true, || async {
            Err(temporary(Effect::NotSent))
        });
        failed.await.unwrap_err();
        let waited = started.elapsed();
        // 250, 500 and 1000 ms, each up to twice as long; the machine may be busy.
        assert!((1750..=6000).contains(&waited.as_millis()), "{waited:?}");

        let soon = CallContext::new().with_deadline(Instant::now() + Duration::from_millis(100));
        let mut count = 0;
        let failed = retry_by_effect::<(), _>(&soon, "test", true, || {
            count += 1;
            async { Err(temporary(Effect::NotSent)) }
        });
        let error = failed.await.unwrap_err();
        assert_eq!((error.retry(), count), (Retry::Exhausted, 1));
    }

    #[tokio::test]
    async fn a_wait_that_is_too_long_is_left_to_the_caller() {
        let (call, mut count) = (CallContext::new(), 0);
        let failed = retry_by_effect::<(), _>(&call, "test", true, || {
            count += 1;
            async { Err(temporary(Effect::NotSent).with_retry_after(Duration::from_secs(31))) }
        });
        let error = failed.await.unwrap_err();
        assert_eq!((count, error.retry()), (1, Retry::Exhausted));
        assert_eq!(error.retry_after(), Some(Duration::from_secs(31)));
    }
}
