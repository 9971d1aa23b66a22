//! What sandboxes take of the host, counted before and after: processes, descriptors, mounts, namespaces, control groups
//! and files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::case::{Checked, Failure};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{eventually, is_usable};

/// Nothing made ahead is kept longer than that.
const READY_AHEAD: Duration = Duration::from_millis(2500);

/// How long what was given back may take to be gone: large trees of files are on disks that others use too.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// What there was at one moment.
pub(crate) struct ResourceSnapshot {
    processes: BTreeSet<String>,
    /// Of this process and those that it has started, where they can be read.
    descriptors: BTreeMap<String, Vec<PathBuf>>,
    mounts: String,
    /// Those that a process of ours is in, or that a descriptor of ours holds.
    namespaces: BTreeSet<PathBuf>,
    groups: BTreeSet<PathBuf>,
    /// Below the directory for temporary files, when it is this process's alone.
    files: BTreeSet<PathBuf>,
}

impl ResourceSnapshot {
    /// Counts once the backend is warm and has settled.
    pub(crate) async fn take(f: &Fixture) -> Checked<Self> {
        let sandbox = f.builder().create().await?;
        is_usable(&sandbox).await?;
        sandbox.terminate().await?;
        drop(sandbox);
        // A backend may keep a sandbox ready for a moment, for a caller that makes one after the other.
        tokio::time::sleep(READY_AHEAD).await;
        Self::now()
    }

    /// Counts.
    pub(crate) fn now() -> Checked<Self> {
        let family = host::descendants()?;
        let mut census = Self {
            processes: family.iter().map(|p| format!("{p} {}", p.command)).collect(),
            descriptors: BTreeMap::new(),
            mounts: host::mounts()?,
            namespaces: BTreeSet::new(),
            groups: groups(),
            files: BTreeSet::new(),
        };
        census.hold("this process".to_owned(), Path::new("/proc/self"));
        for process in &family {
            census.hold(process.to_string(), &PathBuf::from(format!("/proc/{}", process.pid)));
        }
        if host::secret().is_some() {
            walk(&std::env::temp_dir(), &mut census.files);
        }
        Ok(census)
    }

    /// Notes what a process holds. One that ends meanwhile, or may not be looked at, holds nothing that could be told.
    fn hold(&mut self, name: String, process: &Path) {
        let links = |folder: &str| -> Vec<PathBuf> {
            let entries = fs::read_dir(process.join(folder)).into_iter().flatten().flatten();
            entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
        };
        let descriptors = links("fd");
        let is_namespace = |link: &&PathBuf| {
            ["mnt:[", "net:[", "pid:[", "user:[", "ipc:[", "uts:[", "cgroup:["]
                .iter()
                .any(|kind| link.to_string_lossy().starts_with(kind))
        };
        self.namespaces.extend(descriptors.iter().filter(is_namespace).cloned());
        // Where the next child would go is no place of a process: the zygote of an ordinary user cannot step back
        // out of the last cell, and names another one with the next fork.
        let next = fs::read_link(process.join("ns/pid_for_children")).ok();
        let own = fs::read_link(process.join("ns/pid")).ok();
        self.namespaces.extend(
            links("ns")
                .into_iter()
                .filter(|link| own.as_ref() == Some(link) || next.as_ref() != Some(link)),
        );
        if !descriptors.is_empty() {
            self.descriptors.insert(name, descriptors);
        }
    }

    /// Waits until nothing is left that was not there before.
    pub(crate) async fn is_restored(&self) -> Checked {
        let mut left = Vec::new();
        let waited = eventually("a clean host", WAIT_TIMEOUT, async || {
            left = self.left(&Self::now()?);
            Ok(left.is_empty())
        });
        let waited = waited.await;
        waited.map_err(|_| Failure::new(format!("left behind: {left:?}")))
    }

    /// What is there now and was not before.
    pub(crate) fn left(&self, now: &Self) -> Vec<String> {
        let mut left: Vec<String> = now.processes.difference(&self.processes).cloned().collect();
        for (process, open) in &now.descriptors {
            let before = self.descriptors.get(process);
            if let Some(before) = before.filter(|before| open.len() > before.len()) {
                let (count, had) = (open.len(), before.len());
                let new: Vec<_> = open.iter().filter(|link| !before.contains(link)).collect();
                left.push(format!("{count} descriptors in {process}, {had} before; new: {new:?}"));
            }
        }
        let new = now.mounts.lines().filter(|line| !self.mounts.contains(line));
        let new = new.filter(|line| !is_of_an_engine(line));
        left.extend(new.map(|line| format!("mount {line}")));
        for (now, before) in [
            (&now.namespaces, &self.namespaces),
            (&now.groups, &self.groups),
            (&now.files, &self.files),
        ] {
            left.extend(now.difference(before).map(|path| path.display().to_string()));
        }
        left
    }
}

/// Whether a container engine of this host has mounted it, which goes on with its own: by where engines keep their files
/// unless they are told, or are by what starts them for these tests, and by what they mount elsewhere.
fn is_of_an_engine(line: &str) -> bool {
    let usual = [
        "/var/lib/docker",
        "/run/docker",
        "/var/lib/containers",
        "/run/containerd",
        "/target/docker-engine/",
        "/target/podman-engine/",
    ];
    let place = line.split(' ').nth(4).unwrap_or_default();
    let kind = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next());
    let is_hex = |name: &str| name.len() >= 12 && name.chars().all(|c| c.is_ascii_hexdigit());
    let parts: Vec<&str> = place.rsplit('/').take(3).collect();
    usual.iter().any(|usual| line.contains(usual))
        || match (kind, &parts[..]) {
            (Some("overlay"), ["merged", layer, "overlay2"]) => is_hex(layer),
            (Some("nsfs"), [network, "netns", _]) => is_hex(network),
            _ => false,
        }
}

/// The control groups of this process: their names have its number.
fn groups() -> BTreeSet<PathBuf> {
    let own = format!("-{}-", std::process::id());
    let mut found = BTreeSet::new();
    let mut look = vec![(PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((folder, depth)) = look.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if entry.file_name().to_string_lossy().contains(&own) {
                found.insert(entry.path());
            } else if depth < 2 {
                look.push((entry.path(), depth + 1));
            }
        }
    }
    found
}

/// Everything below a folder.
pub(crate) fn walk(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    for entry in entries.unwrap_or_default() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), found);
        }
        found.insert(entry.path());
    }
}
