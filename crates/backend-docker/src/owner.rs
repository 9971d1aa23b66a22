//! Whose a container is, and whether they are still there.
//!
//! A container ends with its owner. What can stay behind is one that was made and never started, so each says who made
//! it, and whoever makes containers later removes those of the dead.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// The label with the sandbox's id.
pub(crate) const ID_LABEL: &str = "code-sandboxes.id";

/// The label with the name of the image, which the engine is asked for by its number.
pub(crate) const IMAGE_LABEL: &str = "code-sandboxes.image";

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

    /// Whether it is known to be dead. Nobody here can tell that of others than our own kind, or of those that are hidden.
    pub(crate) fn is_dead(&self) -> bool {
        let Some(own) = Self::this_process() else { return false };
        let comparable = own.boot == self.boot && own.namespace == self.namespace;
        comparable && is_gone(self.pid, self.start)
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}:{}", self.boot, self.namespace, self.pid, self.start)
    }
}

/// Whether there is no process of that number, or one that started at another time. Without a look at it, it may live:
/// a file system of processes can hide those of other users.
fn is_gone(pid: u32, start: u64) -> bool {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    match test_kill_process(number) {
        Err(Errno::SRCH) => true,
        _ => start_of(pid).is_some_and(|found| found != start),
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
        let elsewhere = Owner { namespace: own.namespace + 1, start: own.start + 1, ..own.clone() };
        assert!(!elsewhere.is_dead());
        assert_eq!(Owner::parse("a:1:2"), None);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let of_child = Owner { pid: child.id(), start: start_of(child.id()).unwrap(), ..own };
        child.wait().unwrap();
        assert!(of_child.is_dead());
    }
}
