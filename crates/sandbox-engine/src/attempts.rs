//! Counts attempts to reach a network that is closed, from the kernel's own counters.

use std::fs;
use std::future::Future;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, OnceLock};

/// Counters of datagrams and connections that found no route, or no name server.
const COUNTERS: [(&str, &str); 2] = [("Ip:", "OutNoRoutes"), ("Udp:", "NoPorts")];
const COUNTERS_6: [&str; 2] = ["Ip6OutNoRoutes", "Udp6NoPorts"];

/// Counts what was attempted in a network of a sandbox that leads nowhere.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    /// A process of this host that is in that network. 0: no process is known.
    process: Arc<OnceLock<u32>>,
}

impl Attempts {
    /// Counts in the network of a process, unless this process is in the same network.
    pub fn of_process(process: u32) -> Self {
        let found = if is_elsewhere(process) { process } else { 0 };
        Self { process: Arc::new(found.into()) }
    }

    /// Counts in the network of a process that is still looked for. Until the process is found, nothing is counted.
    pub fn of_process_found_by(find: impl Future<Output = Option<u32>> + Send + 'static) -> Self {
        let attempts = Self::default();
        let process = Arc::downgrade(&attempts.process);
        tokio::spawn(async move {
            let found = find.await.filter(|found| is_elsewhere(*found));
            if let (Some(process), Some(found)) = (process.upgrade(), found) {
                // No other place sets the process.
                let _ = process.set(found);
            }
        });
        attempts
    }

    /// Returns the number of attempts so far, without those over IPv6. `None`: they cannot be counted.
    ///
    /// Reading the counters takes some 50 microseconds.
    pub(crate) fn count(&self) -> Option<u64> {
        Some(in_columns(&self.read("snmp")?))
    }

    /// Returns true when there were attempts over IPv6 so far. A kernel may have no IPv6.
    pub(crate) fn has_ipv6(&self) -> bool {
        self.read("snmp6").is_some_and(|table| in_rows(&table) > 0)
    }

    fn read(&self, table: &str) -> Option<String> {
        let process = self.process.get().copied().filter(|process| *process != 0)?;
        fs::read_to_string(format!("/proc/{process}/net/{table}")).ok()
    }
}

/// Returns true when a process is in another network than this one.
fn is_elsewhere(process: u32) -> bool {
    let network = |process: &str| {
        let found = fs::metadata(format!("/proc/{process}/ns/net"));
        found.map(|found| found.ino()).ok()
    };
    network(&process.to_string()).is_some_and(|its| network("self") != Some(its))
}

/// Adds up the counters of a table whose lines come in pairs: names, and values.
fn in_columns(table: &str) -> u64 {
    let lines: Vec<_> = table.lines().collect();
    let values = lines.windows(2).filter_map(|pair| {
        let (names, values) = (pair[0], pair[1]);
        let (_, counter) = COUNTERS.iter().find(|(group, _)| names.starts_with(group))?;
        let at = names.split(' ').position(|name| name == *counter)?;
        values.split(' ').nth(at)?.parse::<u64>().ok()
    });
    values.sum()
}

/// Adds up the counters of a table with one in each line.
fn in_rows(table: &str) -> u64 {
    let values = table.lines().filter_map(|line| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        COUNTERS_6.contains(&name).then(|| value.trim().parse::<u64>().ok())?
    });
    values.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let table = "Ip: Forwarding OutNoRoutes X\nIp: 1 3 9\nUdp: InDatagrams NoPorts\nUdp: 7 4\n\
                     UdpLite: NoPorts\nUdpLite: 50\n";
        assert_eq!(in_columns(table), 7);
        assert_eq!(in_rows("Ip6OutNoRoutes \t 2\nIp6Out 9\nUdp6NoPorts  5\n"), 7);
        assert_eq!((in_columns(""), in_rows("x")), (0, 0));
    }

    #[test]
    fn the_network_of_this_host_is_not_counted() {
        assert_eq!(Attempts::of_process(std::process::id()).count(), None);
    }
}
