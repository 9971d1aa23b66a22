//! Memory of many sandboxes that are alive.

use std::collections::BTreeMap;
use std::fs;

use code_sandboxes::{IsolationMode, Sandbox};
use futures_util::future::try_join_all;

use crate::Setup;
use crate::row::{Bar, Row};
use crate::sample::Measured;

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    let count = if setup.quick { 50 } else { 200 };
    match alive(setup, count).await {
        Ok(found) => vec![
            Row::plain(
                format!("{count} sandboxes alive, private memory of each"),
                "MB",
                Ok(found.each),
                Bar::Most(2.0),
            ),
            Row::plain(
                "  shared by all: zygote and maker",
                "MB",
                Ok(found.shared),
                Bar::Information,
            ),
            Row::plain("  in this process, for each", "MB", Ok(found.host), Bar::Information),
        ],
        Err(why) => {
            let name = format!("{count} sandboxes alive, private memory of each");
            vec![Row::plain(name, "MB", Err(why), Bar::Most(2.0))]
        }
    }
}

struct Found {
    each: f64,
    shared: f64,
    host: f64,
}

async fn alive(setup: &Setup, count: usize) -> Measured<Found> {
    // The first one brings up what all of them share.
    let first = started(setup).await?;
    first.terminate().await.map_err(|error| error.to_string())?;
    drop(first);
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let (shared, host) = (descendants()?, own_resident()?);
    let sandboxes = try_join_all((0..count).map(|_| started(setup))).await?;
    let now = descendants()?;
    let of_sandboxes = now.iter().filter(|(pid, _)| !shared.contains_key(pid));
    let private: u64 = of_sandboxes.map(|(_, private)| private).sum();
    let grown = own_resident()?.saturating_sub(host);
    drop(sandboxes);
    let each = |bytes: u64| bytes as f64 / 1e6 / count as f64;
    Ok(Found {
        each: each(private),
        shared: now
            .iter()
            .filter(|(pid, _)| shared.contains_key(pid))
            .map(|(_, p)| *p as f64)
            .sum::<f64>()
            / 1e6,
        host: each(grown),
    })
}

async fn started(setup: &Setup) -> Measured<Sandbox> {
    let sandbox = setup.builder(IsolationMode::Strict).create().await;
    let sandbox = sandbox.map_err(|error| error.to_string())?;
    sandbox.run_code("1+1").await.map_err(|error| error.to_string())?;
    Ok(sandbox)
}

/// Private memory in bytes of every process that descends from this one.
fn descendants() -> Measured<BTreeMap<u32, u64>> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").map_err(|error| error.to_string())?.filter_map(Result::ok) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Some(parent) = parent(pid) {
            parents.insert(pid, parent);
        }
    }
    let own = std::process::id();
    let descends = |mut pid: u32| {
        while let Some(parent) = parents.get(&pid) {
            if *parent == own {
                return true;
            }
            pid = *parent;
        }
        false
    };
    let all = parents.keys().copied().filter(|pid| descends(*pid));
    all.map(|pid| Ok((pid, private_memory(pid)?))).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

fn private_memory(pid: u32) -> Measured<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let private = text.lines().filter(|line| line.starts_with("Private_"));
    Ok(private.filter_map(kibibytes).sum::<u64>() << 10)
}

fn kibibytes(line: &str) -> Option<u64> {
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Resident memory of this process in bytes.
pub(crate) fn own_resident() -> Measured<u64> {
    let text = fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).and_then(kibibytes);
    line.map(|kib| kib << 10).ok_or_else(|| "no VmRSS".to_owned())
}
