//! What the service cannot keep of a sandbox, written down on this computer: tags, terms, and which kernel is which.
//!
//! One file for each sandbox. Losing it loses the tags and nothing that runs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use sandbox_core::{IsolationMode, NetworkMode, Tags, random_hex};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::access::variable;
use crate::config::DatalayerConfig;

/// Notes of sandboxes that nobody has seen for so long are thrown away.
const MOST_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The file that whoever changes a note locks.
const LOCK: &str = ".lock";
const MOST_BYTES: u64 = 1 << 20;

/// What is noted of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Note {
    pub(crate) tags: Tags,
    /// The idempotency key of its create.
    pub(crate) key: Option<String>,
    /// It ends with the process that made it.
    pub(crate) transient: bool,
    /// What was asked for at create.
    pub(crate) terms: Map<String, Value>,
    pub(crate) isolation: IsolationMode,
    pub(crate) network: NetworkMode,
    /// The type of GPU that was asked for.
    pub(crate) gpu: Option<String>,
    /// Kernels by context.
    pub(crate) kernels: BTreeMap<String, String>,
    /// Where code begins.
    pub(crate) cwd: Option<String>,
    /// Environment variables of everything that runs in it. Never a secret one.
    pub(crate) env: BTreeMap<String, String>,
}

/// What is noted of one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotNote {
    /// The one that it was taken of.
    pub(crate) sandbox_id: String,
}

/// Where notes of one kind are.
#[derive(Clone, Debug)]
pub(crate) struct Notes<T = Note> {
    directory: Option<PathBuf>,
    kind: PhantomData<fn() -> T>,
}

impl Notes {
    /// Those of sandboxes.
    pub(crate) fn of(config: &DatalayerConfig) -> Self {
        Self { directory: directory(config), kind: PhantomData }
    }
}

impl Notes<SnapshotNote> {
    /// Those of snapshots.
    pub(crate) fn of_snapshots(config: &DatalayerConfig) -> Self {
        let directory = directory(config).map(|directory| directory.join("snapshots"));
        Self { directory, kind: PhantomData }
    }
}

impl<T: Clone + Serialize + DeserializeOwned> Notes<T> {
    /// The directory they are in, if there is one.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// What is noted under an id. Nothing where there is no note, or one that others could have written.
    pub(crate) fn read(&self, id: &str) -> Option<T> {
        let path = self.path(id)?;
        let meta = fs::symlink_metadata(&path).ok()?;
        let own = meta.uid() == rustix::process::geteuid().as_raw()
            && meta.mode() & 0o022 == 0
            && meta.len() <= MOST_BYTES;
        let text = (own && meta.is_file()).then(|| fs::read(path).ok())??;
        serde_json::from_slice(&text).ok()
    }

    /// Replaces a note. Without a place for it, it is not kept beyond this process.
    pub(crate) fn write(&self, id: &str, note: &T) {
        if let Err(error) = self.try_write(id, note) {
            tracing::warn!(%error, id, "what the service cannot keep is not kept");
        }
    }

    /// Changes a note, which no other process does meanwhile, and gives what it is then. `known` where there is none.
    pub(crate) fn change(&self, id: &str, known: &T, change: impl FnOnce(&mut T)) -> T {
        let locked = self.lock().inspect_err(|error| tracing::debug!(%error, id, "no lock"));
        let mut note = self.read(id).unwrap_or_else(|| known.clone());
        change(&mut note);
        self.write(id, &note);
        drop(locked);
        note
    }

    /// Held for as long as it takes to write a small file.
    fn lock(&self) -> io::Result<Option<fs::File>> {
        let Some(directory) = &self.directory else { return Ok(None) };
        create(directory)?;
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600);
        let file = file.open(directory.join(LOCK))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Some(file))
    }

    fn try_write(&self, id: &str, note: &T) -> io::Result<()> {
        let (Some(directory), Some(path)) = (&self.directory, self.path(id)) else { return Ok(()) };
        create(directory)?;
        let temporary = directory.join(format!(".{}", random_hex(8)));
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let text = serde_json::to_vec(note).map_err(io::Error::other)?;
        let written = file.write_all(&text).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Throws a note away.
    pub(crate) fn forget(&self, id: &str) {
        if let Some(path) = self.path(id) {
            let _ = fs::remove_file(path);
        }
    }

    /// Throws away what has not been touched for long.
    pub(crate) fn tidy(&self) {
        let Some(entries) = self.directory.as_ref().and_then(|path| fs::read_dir(path).ok()) else {
            return;
        };
        let oldest = SystemTime::now().checked_sub(MOST_AGE).unwrap_or(SystemTime::UNIX_EPOCH);
        for entry in entries.flatten().filter(|entry| entry.file_name() != LOCK) {
            let changed = entry.metadata().and_then(|meta| meta.modified());
            if changed.is_ok_and(|changed| changed < oldest) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn path(&self, id: &str) -> Option<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let good = !id.is_empty() && id.len() <= 128 && id.chars().all(plain);
        good.then(|| Some(self.directory.as_ref()?.join(format!("{id}.json"))))?
    }
}

fn create(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

fn directory(config: &DatalayerConfig) -> Option<PathBuf> {
    if config.state_dir.is_some() {
        return config.state_dir.clone();
    }
    let state = variable("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(Path::new(&variable("HOME")?).join(".local/state"));
    Some(state.or_else(home)?.join("code-sandboxes/datalayer"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn changes_of_many_are_all_there() {
        let folder = tempfile::tempdir().unwrap();
        let state_dir = Some(folder.path().to_owned());
        let config = DatalayerConfig { state_dir, ..Default::default() };
        std::thread::scope(|scope| {
            for id in 0..8 {
                let notes = Notes::of(&config);
                scope.spawn(move || {
                    for number in 0..20 {
                        notes.change("01ABC", &Note::default(), |note| {
                            note.kernels.insert(format!("{id}-{number}"), String::new());
                        });
                    }
                });
            }
        });
        assert_eq!(Notes::of(&config).read("01ABC").unwrap().kernels.len(), 160);
    }

    #[test]
    fn a_note_is_kept_and_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let config =
            DatalayerConfig { state_dir: Some(folder.path().join("a/b")), ..Default::default() };
        let notes = Notes::of(&config);
        let note = Note { tags: Tags::from([("a".into(), "b".into())]), ..Note::default() };
        assert_eq!(notes.read("01ABC"), None);
        notes.write("01ABC", &note);
        assert_eq!(notes.read("01ABC"), Some(note.clone()));
        let file = folder.path().join("a/b/01ABC.json");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(notes.read("01ABC"), None, "anybody could have written it");
        notes.forget("01ABC");
        assert!(!file.exists());
        notes.write("../x", &note);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
