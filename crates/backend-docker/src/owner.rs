//! Owner of a container, by a label: the process that created it.
//!
//! A container ends with its owner. One that was created and never started can be left, so each names its owner, and later
//! creates remove the containers of dead owners.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// Label with the id of the sandbox.
pub(crate) const ID_LABEL: &str = "code-sandboxes.id";

/// Label with the name of the image: the engine gets only its id.
pub(crate) const IMAGE_LABEL: &str = "code-sandboxes.image";

/// Label with the owner.
pub(crate) const OWNER_LABEL: &str = "code-sandboxes.owner";

/// A process of one host and one process namespace. Only a process of the same namespace can tell whether it is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    boot: String,
    namespace: u64,
    pid: u32,
    start: u64,
}

impl Owner {
    /// Returns this process.
    pub(crate) fn this_process() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
        let pid = std::process::id();
        Some(Self { boot: boot.trim().to_owned(), namespace, pid, start: start_time(pid)? })
    }

    /// Parses the text of a label.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let boot = parts.next()?.to_owned();
        let namespace = parts.next()?.parse().ok()?;
        let pid = parts.next()?.parse().ok()?;
        let start = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(Self { boot, namespace, pid, start })
    }

    /// Returns true for an owner that is known to be dead. An owner in another namespace, or a hidden one, counts as alive.
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

/// Returns true if the process has ended: no process has that number, or one that started at another time. A hidden process
/// may be alive: `/proc` can hide those of other users.
fn is_gone(pid: u32, start: u64) -> bool {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    match test_kill_process(number) {
        Err(Errno::SRCH) => true,
        _ => start_time(pid).is_some_and(|found| found != start),
    }
}

/// Returns the start of a process in ticks since the boot, which no other process of that number shares.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive_and_others_are_told_apart() {
        let own = Owner::this_process().unwrap();
        assert!(!own.is_dead());
        assert_eq!(Owner::parse(&own.to_string()), Some(own.clone()));
        assert!(Owner { start: own.start + 1, ..own.clone() }.is_dead());
        let elsewhere = Owner { namespace: own.namespace + 1, start: own.start + 1, ..own.clone() };
        assert!(!elsewhere.is_dead());
        assert_eq!(Owner::parse("a:1:2"), None);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let of_child = Owner { pid: child.id(), start: start_time(child.id()).unwrap(), ..own };
        child.wait().unwrap();
        assert!(of_child.is_dead());
    }
}
