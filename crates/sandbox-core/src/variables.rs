//! Variables that backends read: values that this program has set, and after these the environment.

use std::collections::BTreeMap;
use std::env;
use std::sync::{PoisonError, RwLock};

use crate::secret::Secret;

/// Values that take precedence over the environment.
static CONFIGURED: RwLock<BTreeMap<String, Secret>> = RwLock::new(BTreeMap::new());

/// Sets a variable such as `E2B_API_KEY` for the backends of this process, in place of the one of the environment, which
/// stays as it is. Nothing that runs in a sandbox sees the value, nor does a child process.
pub fn set_variable(name: impl Into<String>, value: impl Into<Secret>) {
    let mut configured = CONFIGURED.write().unwrap_or_else(PoisonError::into_inner);
    configured.insert(name.into(), value.into());
}

/// Removes a variable that was set with [`set_variable`]. The one of the environment counts again.
pub fn clear_variable(name: &str) {
    CONFIGURED.write().unwrap_or_else(PoisonError::into_inner).remove(name);
}

/// Returns a variable as backends read it. A blank value counts as unset.
pub fn variable(name: &str) -> Option<String> {
    let configured = CONFIGURED.read().unwrap_or_else(PoisonError::into_inner);
    let own = configured.get(name).map(|value| value.expose().to_owned());
    drop(configured);
    own.or_else(|| env::var(name).ok()).filter(|value| !value.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_counts_before_the_environment() {
        let home = variable("PATH").expect("a PATH");
        set_variable("PATH", "elsewhere");
        assert_eq!(variable("PATH").as_deref(), Some("elsewhere"));
        clear_variable("PATH");
        assert_eq!(variable("PATH"), Some(home));
        set_variable("VARIABLE_OF_A_TEST", " ");
        assert_eq!(variable("VARIABLE_OF_A_TEST"), None, "a blank value counts as unset");
    }
}
