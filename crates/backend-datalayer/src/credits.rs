//! The lifetime of a runtime, as the credits that are reserved for it.

use std::time::Duration;

use sandbox_core::{CreateSpec, Error, ErrorKind, Result};

/// Lifetime of a runtime that is created without one: it costs, and its owner may die without ending it.
pub(crate) const DEFAULT_LIFETIME: Duration = Duration::from_secs(600);

/// Returns the lifetime that a create asks for: the shorter one of `lifetime` and `detached`.
pub(crate) fn lifetime(spec: &CreateSpec) -> Duration {
    let asked = [spec.lifetime, spec.detached].into_iter().flatten().min();
    asked.unwrap_or(DEFAULT_LIFETIME)
}

/// Returns the credits that last for that long at this rate, in credits per second.
///
/// # Errors
/// `Unsupported` at a rate at which credits never end: nothing else ends a runtime.
pub(crate) fn credits(rate: f64, lifetime: Duration) -> Result<f64> {
    if rate <= 0.0 {
        let message = "the environment costs nothing, so the service would never end the sandbox";
        return Err(Error::new(ErrorKind::Unsupported, "create", message).with_hint(
            "choose an environment with a price; `Backend::environments()` lists them",
        ));
    }
    // The order of the provider's own client, so that its numbers are ours.
    Ok(rate * 60.0 * (lifetime.as_secs_f64() / 60.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_those_of_the_provider_s_client() {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        assert_eq!(credits(0.00025, minutes(10)).unwrap(), 0.15);
        assert_eq!(credits(0.01, minutes(10)).unwrap(), 6.0);
        assert_eq!(credits(0.00025, minutes(60)).unwrap(), 0.899_999_999_999_999_9);
        credits(0.0, minutes(1)).unwrap_err();
    }

    #[test]
    fn the_shorter_time_counts() {
        let spec = |lifetime: Option<u64>, detached: Option<u64>| {
            let mut spec = CreateSpec::default();
            spec.lifetime = lifetime.map(Duration::from_secs);
            spec.detached = detached.map(Duration::from_secs);
            super::lifetime(&spec).as_secs()
        };
        assert_eq!(spec(None, None), 600);
        assert_eq!(spec(Some(60), None), 60);
        assert_eq!(spec(Some(60), Some(30)), 30);
        assert_eq!(spec(None, Some(7200)), 7200);
    }
}
