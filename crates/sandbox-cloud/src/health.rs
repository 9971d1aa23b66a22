//! What `doctor` reports of a provider.

use sandbox_core::{Check, Error, Health};

/// Returns a check that succeeded.
pub fn passed(name: &str, detail: impl Into<String>) -> Check {
    Check { name: name.to_owned(), ok: true, detail: detail.into(), fix: None }
}

/// Returns a check that failed, with the hint of the error as its fix.
pub fn failed(name: &str, error: &Error) -> Check {
    let fix = error.hint().map(str::to_owned);
    Check { name: name.to_owned(), ok: false, detail: error.to_string(), fix }
}

/// Returns the health of a provider: usable when all checks succeeded, and otherwise with the first that failed.
/// `description` names a provider that is usable.
pub fn health(description: &str, checks: Vec<Check>) -> Health {
    let mut health = Health::default();
    let broken = checks.iter().find(|check| !check.ok);
    health.usable = broken.is_none();
    health.fix = broken.and_then(|check| check.fix.clone());
    health.detail = broken.map_or_else(
        || description.to_owned(),
        |check| format!("{}: {}", check.name, check.detail),
    );
    health.checks = checks;
    health
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;

    use super::*;

    #[test]
    fn the_first_failure_is_what_to_mend() {
        let error = Error::new(ErrorKind::Unauthenticated, "health", "no key").with_hint("set one");
        let checks = vec![passed("service", "up"), failed("credentials", &error)];
        let broken = health("sandboxes in the cloud", checks);
        assert_eq!((broken.usable, &*broken.detail), (false, "credentials: no key"));
        assert_eq!((broken.fix.as_deref(), broken.checks.len()), (Some("set one"), 2));
        let usable = health("sandboxes in the cloud", vec![passed("service", "up")]);
        assert_eq!((usable.usable, &*usable.detail), (true, "sandboxes in the cloud"));
    }
}
