//! Reads what the package manager knows of files in `/etc`: which of them packages own, and their checksums as delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use md5::{Digest as _, Md5};
use memchr::memmem;

/// Larger files are not compared with their packages.
const MAX_BYTES: u64 = 16 << 20;

/// The records of dpkg and its tool `ucf`.
#[derive(Debug, Default)]
pub(super) struct PackageRecords {
    /// MD5 in hexadecimal digits by path below `/etc`, as dpkg and `ucf` have it.
    checksums: BTreeMap<PathBuf, String>,
    /// False on systems without such records.
    exist: bool,
}

impl PackageRecords {
    /// Reads the records below this directory, which is `/var/lib` on a host.
    pub(super) fn read(records: &Path) -> Self {
        let Ok(status) = fs::read(records.join("dpkg/status")) else { return Self::default() };
        let mut found = Self { exist: true, ..Self::default() };
        let start = b"\nConffiles:\n";
        for at in memmem::find_iter(&status, start) {
            let rest = &status[at + start.len()..];
            for line in rest.split(|byte| *byte == b'\n').map_while(|line| line.strip_prefix(b" "))
            {
                let line = String::from_utf8_lossy(line);
                let mut words = line.split(' ');
                // A file that the package no longer has is marked so.
                if !line.ends_with(" obsolete")
                    && let (Some(path), Some(checksum)) = (words.next(), words.next())
                {
                    found.add(path, checksum);
                }
            }
        }
        let copies = fs::read_to_string(records.join("ucf/hashfile")).unwrap_or_default();
        for line in copies.lines() {
            if let Some((checksum, path)) = line.split_once(char::is_whitespace) {
                found.add(path.trim_start(), checksum);
            }
        }
        found
    }

    fn add(&mut self, path: &str, checksum: &str) {
        if let Ok(name) = Path::new(path).strip_prefix("/etc") {
            self.checksums.insert(name.to_owned(), checksum.to_owned());
        }
    }

    /// Returns the names below `etc` that packages own; without records, those that begin like one of these.
    pub(super) fn names(&self, etc: &Path, common: &[&str]) -> BTreeSet<String> {
        if !self.exist {
            let entries = fs::read_dir(etc).into_iter().flatten().flatten();
            let known = entries.filter_map(|entry| entry.file_name().into_string().ok());
            return known.filter(|name| common.iter().any(|own| name.starts_with(own))).collect();
        }
        let first =
            |path: &PathBuf| Some(path.components().next()?.as_os_str().to_str()?.to_owned());
        self.checksums.keys().filter_map(first).collect()
    }

    /// Returns true when the file is byte for byte as its package delivered it. `name` is its path below `/etc`.
    pub(super) fn is_unchanged(&self, name: &Path, file: &Path) -> bool {
        let Some(expected) = self.checksums.get(name) else { return false };
        let is_small = fs::metadata(file).is_ok_and(|metadata| metadata.len() <= MAX_BYTES);
        let Some(content) = is_small.then(|| fs::read(file).ok()).flatten() else { return false };
        let digits =
            Md5::digest(content).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        digits == *expected
    }
}
