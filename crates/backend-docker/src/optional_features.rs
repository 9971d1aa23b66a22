//! Optional engine features: requested from an engine until it refuses them.
//!
//! Engines do not announce what they refuse. An engine without privileges cannot raise the limits that it has itself, and the
//! kernel of an engine on another host, or in a virtual machine of this host, may lack what the kernel here has.

use std::sync::{Mutex, PoisonError};

/// A part of a request that an engine may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionalFeature {
    /// Limits of open files. Without them a container has the engine's limits, and the agent lowers them inside.
    OpenFileLimits,
    /// IPv4 and IPv6 on the loopback. Without it the loopback has IPv6 only where the engine enables that by default.
    DualStackLoopback,
}

/// The features that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionalFeatures {
    pub(crate) open_file_limits: bool,
    pub(crate) dual_stack_loopback: bool,
}

impl Default for OptionalFeatures {
    fn default() -> Self {
        Self { open_file_limits: true, dual_stack_loopback: true }
    }
}

impl OptionalFeatures {
    /// Finds the requested feature that an engine's refusal is about.
    pub(crate) fn find_refused(self, refusal: &str) -> Option<OptionalFeature> {
        let refusal = refusal.to_ascii_lowercase();
        let is_about = |words: &[&str]| words.iter().any(|word| refusal.contains(word));
        if self.dual_stack_loopback && is_about(&["disable_ipv6", "sysctl"]) {
            return Some(OptionalFeature::DualStackLoopback);
        }
        if self.open_file_limits && is_about(&["rlimit", "ulimit", "nofile"]) {
            return Some(OptionalFeature::OpenFileLimits);
        }
        None
    }

    /// Returns the features without one that was refused.
    pub(crate) fn without(self, refused: OptionalFeature) -> Self {
        match refused {
            OptionalFeature::OpenFileLimits => Self { open_file_limits: false, ..self },
            OptionalFeature::DualStackLoopback => Self { dual_stack_loopback: false, ..self },
        }
    }
}

/// The features that one engine has not refused so far, shared by all sandboxes of a backend.
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
    fn a_refused_feature_is_found_by_the_words_of_the_engine() {
        let all = OptionalFeatures::default();
        let files = "OCI runtime create failed: runc create failed: unable to start container process: error during \
                     container init: error setting rlimits for ready process: error setting rlimit type 7: operation not permitted";
        let loopback = "error during container init: open /proc/sys/net/ipv6/conf/lo/disable_ipv6: no such file or directory";
        let podman = "crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted";
        let without_files = all.without(OptionalFeature::OpenFileLimits);
        assert_eq!(without_files, OptionalFeatures { open_file_limits: false, ..all });
        assert_eq!(all.find_refused(files), Some(OptionalFeature::OpenFileLimits));
        assert_eq!(all.find_refused(podman), Some(OptionalFeature::OpenFileLimits));
        assert_eq!(without_files.find_refused(files), None, "it was not requested");
        assert_eq!(all.find_refused(loopback), Some(OptionalFeature::DualStackLoopback));
        assert_eq!(without_files.find_refused(loopback), Some(OptionalFeature::DualStackLoopback));
        let neither = without_files.without(OptionalFeature::DualStackLoopback);
        assert_eq!(
            neither,
            OptionalFeatures { open_file_limits: false, dual_stack_loopback: false }
        );
        assert_eq!(all.find_refused("no space left on device"), None);
    }
}
