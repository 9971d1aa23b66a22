//! What is asked of an engine beyond what every engine has, as long as it does not refuse it.
//!
//! Engines do not say beforehand what they refuse: one without privileges cannot raise the limits it has itself, and the
//! kernel of one that is elsewhere, or in a virtual machine here, may lack what this one has.

use std::sync::{Mutex, PoisonError};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionalFeatures {
    /// Limits of open files. Otherwise they are what the engine gives, and lowered inside.
    pub(crate) open_files: bool,
    /// Both kinds of addresses on the loopback. Otherwise the newer kind is there if the engine has it so.
    pub(crate) both_addresses: bool,
}

impl Default for OptionalFeatures {
    fn default() -> Self {
        Self { open_files: true, both_addresses: true }
    }
}

impl OptionalFeatures {
    /// What can be asked for after the engine has refused something in these words. `None` when it was something else.
    pub(crate) fn without(self, refusal: &str) -> Option<Self> {
        let refusal = refusal.to_ascii_lowercase();
        let is_about = |words: &[&str]| words.iter().any(|word| refusal.contains(word));
        if self.both_addresses && is_about(&["disable_ipv6", "sysctl"]) {
            return Some(Self { both_addresses: false, ..self });
        }
        if self.open_files && is_about(&["rlimit", "ulimit", "nofile"]) {
            return Some(Self { open_files: false, ..self });
        }
        None
    }
}

/// What the engine has refused.
#[derive(Debug, Default)]
pub(crate) struct SupportedFeatures(Mutex<OptionalFeatures>);

impl SupportedFeatures {
    pub(crate) fn get(&self) -> OptionalFeatures {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, features: OptionalFeatures) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = features;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_not_asked_for_again() {
        let first = OptionalFeatures::default();
        let files = "OCI runtime create failed: runc create failed: unable to start container process: error during \
                     container init: error setting rlimits for ready process: error setting rlimit type 7: operation not permitted";
        let loopback = "error during container init: open /proc/sys/net/ipv6/conf/lo/disable_ipv6: no such file or directory";
        let podman = "crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted";
        let without_files = OptionalFeatures { open_files: false, ..first };
        assert_eq!(first.without(files), Some(without_files));
        assert_eq!(first.without(podman), Some(without_files));
        assert_eq!(without_files.without(files), None, "it was not asked for");
        assert_eq!(
            first.without(loopback),
            Some(OptionalFeatures { both_addresses: false, ..first })
        );
        let neither = OptionalFeatures { open_files: false, both_addresses: false };
        assert_eq!(without_files.without(loopback), Some(neither));
        assert_eq!(first.without("no space left on device"), None);
    }
}
