//! Whose a container is, and whether they are still there.
//!
//! A container ends with its owner. What can stay behind is one that was made and never started, so each says who made
//! it, and whoever makes containers later removes those of the dead.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// The label with the sandbox's id.
pub(crate) const ID_LABEL: &str = "code-sandboxes.id";

/// The label with the owner.
pub(crate) const OWNER_LABEL: &str = "code-sandboxes.owner";

/// A process of one host and one process namespace. Only another one of the same can tell whether it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    boot: String,
    namespace: u64,
    pid: u32,
    start: u64,
}

impl Owner {
    /// This process.
    pub(crate) fn this_process() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
        let pid = std::process::id();
        Some(Self { boot: boot.trim().to_owned(), namespace, pid, start: start_of(pid)? })
    }

    /// From the text of a label.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let boot = parts.next()?.to_owned();
        let namespace = parts.next()?.parse().ok()?;
        let pid = parts.next()?.parse().ok()?;
        let start = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(Self { boot, namespace, pid, start })
    }

    /// Whether it is known to be dead. Of others than our own kind nobody here can tell.
    pub(crate) fn is_dead(&self) -> bool {
        let Some(own) = Self::this_process() else { return false };
        let comparable = own.boot == self.boot && own.namespace == self.namespace;
        comparable && start_of(self.pid) != Some(self.start)
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}:{}", self.boot, self.namespace, self.pid, self.start)
    }
}

/// When a process started, in ticks since the boot. No other process of its number has the same.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_others_are_told_apart() {
        let own = Owner::this_process().unwrap();
        assert!(!own.is_dead());
        assert_eq!(Owner::parse(&own.to_string()), Some(own.clone()));
        assert!(Owner { start: own.start + 1, ..own.clone() }.is_dead());
        let elsewhere = Owner { namespace: own.namespace + 1, start: own.start + 1, ..own };
        assert!(!elsewhere.is_dead());
        assert_eq!(Owner::parse("a:1:2"), None);
    }
}
