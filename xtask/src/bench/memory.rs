//! Memory of many sandboxes that are alive, and of this process.

use std::collections::BTreeMap;
use std::fs;

use code_sandboxes::{IsolationMode, Sandbox};

use crate::row::{Bar, Row};
use crate::sample::{Measured, settle, text};
use crate::setup::Setup;

/// Megabytes that a sandbox may have for itself.
const MAX_EACH: f64 = 2.0;

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    let count = if setup.quick { 40 } else { 200 };
    let name = format!("{count} sandboxes alive, private memory of each");
    let found = match alive(count).await {
        Ok(found) => found,
        Err(why) => return vec![Row::plain(name, "MB", Err(why), Bar::Below(MAX_EACH))],
    };
    let mut rows = vec![Row::plain(name, "MB", Ok(found.each), Bar::Below(MAX_EACH))];
    let information = |name: String, value| Row::plain(name, "MB", Ok(value), Bar::Information);
    rows.push(information("  in the host process, for each".to_owned(), found.host));
    let shared = found.shared.into_iter();
    rows.extend(shared.map(|(name, size)| information(format!("  shared by all: {name}"), size)));
    rows
}

/// All in megabytes.
struct Found {
    each: f64,
    host: f64,
    /// The processes that serve all sandboxes, by name.
    shared: Vec<(String, f64)>,
}

async fn alive(count: usize) -> Measured<Found> {
    // The first one brings up what all of them share.
    let first = used().await?;
    let host = status("VmRSS:")?;
    let shared_with_first = descendants()?;
    first.kill().await.map_err(text)?;
    drop(first);
    settle().await;
    let mut sandboxes = Vec::new();
    for _ in 0..count {
        sandboxes.push(used().await?);
    }
    let now = descendants()?;
    let grown = status("VmRSS:")?.saturating_sub(host);
    drop(sandboxes);
    let (shared, own): (Vec<_>, Vec<_>) =
        now.into_iter().partition(|(pid, _)| shared_with_first.contains_key(pid));
    if own.len() < count {
        return Err(format!("{} processes for {count} sandboxes", own.len()));
    }
    let private: u64 = own.iter().map(|(_, process)| process.private).sum();
    let each = |bytes: u64| bytes as f64 / 1e6 / count as f64;
    let megabytes = |process: Process| (process.name, process.private as f64 / 1e6);
    Ok(Found {
        each: each(private),
        host: each(grown),
        shared: shared.into_iter().map(|(_, process)| megabytes(process)).collect(),
    })
}

/// A sandbox that has run something.
async fn used() -> Measured<Sandbox> {
    let sandbox = Setup::builder(IsolationMode::Strict).create().await.map_err(text)?;
    sandbox.run_code("1+1").await.map_err(text)?;
    Ok(sandbox)
}

pub(crate) struct Process {
    name: String,
    /// Bytes that no other process has.
    private: u64,
}

/// Every process that descends from this one, by id.
pub(crate) fn descendants() -> Measured<BTreeMap<u32, Process>> {
    descendants_of(std::process::id())
}

/// Every process that descends from another one, by id.
pub(crate) fn descendants_of(pid: u32) -> Measured<BTreeMap<u32, Process>> {
    let mut found = BTreeMap::new();
    let mut open = children(pid);
    while let Some(pid) = open.pop() {
        open.extend(children(pid));
        let process = Process { name: name(pid)?, private: private_memory(pid)? };
        found.insert(pid, process);
    }
    Ok(found)
}

impl Process {
    /// Bytes that no other process has.
    pub(crate) fn private(&self) -> u64 {
        self.private
    }
}

/// What a process calls itself: the first word of its command line.
fn name(pid: u32) -> Measured<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).map_err(text)?;
    let first = line.split(|byte| *byte == 0 || *byte == b' ').next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    Ok(first.rsplit('/').next().unwrap_or_default().to_owned())
}

/// Children of every thread of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let lists = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| pids(&list)).collect()
}

fn pids(list: &str) -> Vec<u32> {
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Bytes of a process that no other process has.
pub(crate) fn private_memory(pid: u32) -> Measured<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let rollup = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    Ok(private_bytes(&rollup))
}

fn private_bytes(rollup: &str) -> u64 {
    let private = rollup
        .lines()
        .filter(|line| line.starts_with("Private_Clean:") || line.starts_with("Private_Dirty:"));
    private.filter_map(kibibytes).sum::<u64>() << 10
}

fn kibibytes(line: &str) -> Option<u64> {
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Makes the present the peak of this process's memory.
pub(crate) fn forget_peak() -> Measured<()> {
    forget_peak_of(std::process::id())
}

/// The same of another process.
pub(crate) fn forget_peak_of(pid: u32) -> Measured<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5").map_err(text)
}

/// The most memory that this process ever had, in bytes.
pub(crate) fn peak() -> Measured<u64> {
    status("VmHWM:")
}

/// A size in bytes that the kernel tells of this process.
fn status(field: &str) -> Measured<u64> {
    status_of(std::process::id(), field)
}

/// The same of another process.
pub(crate) fn status_of(pid: u32, field: &str) -> Measured<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(text)?;
    let line = status.lines().find(|line| line.starts_with(field)).and_then(kibibytes);
    line.map(|kib| kib << 10).ok_or_else(|| format!("no {field}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_is_clean_and_dirty_and_nothing_else() {
        let rollup =
            "Rss: 900 kB\nPrivate_Clean: 3 kB\nPrivate_Dirty: 4 kB\nPrivate_Hugetlb: 64 kB\n";
        assert_eq!(private_bytes(rollup), 7 << 10);
    }

    #[test]
    fn children_are_found() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let found = descendants();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.unwrap().contains_key(&child.id()));
    }

    #[test]
    fn a_peak_stays_until_it_is_forgotten() {
        forget_peak().unwrap();
        let before = peak().unwrap();
        drop(std::hint::black_box(vec![1u8; 64 << 20]));
        assert!(peak().unwrap() > before + (48 << 20));
    }
}
