//! Records of this computer about things in a cloud: what the provider cannot keep.
//!
//! One file for each record. A record that is lost loses what it says, and nothing that runs.

use std::fs;
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use sandbox_core::random_hex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::auth::{EnvLookup, home_directory};

/// Age at which a record that was not written since is pruned.
pub const MAX_RECORD_AGE: Duration = Duration::from_secs(30 * 24 * 3600);
/// The file that is locked while a record is changed.
const LOCK: &str = ".lock";
const MAX_RECORD_SIZE: u64 = 1 << 20;

/// Returns the directory for records of a provider: `$XDG_STATE_HOME/code-sandboxes/PROVIDER`.
pub fn state_directory(provider: &str, env: EnvLookup<'_>) -> Option<PathBuf> {
    let state = env("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(home_directory(env)?.join(".local/state")));
    Some(state?.join("code-sandboxes").join(provider))
}

/// Records of one kind, by id. Without a directory there are none, and nothing is kept.
#[derive(Debug)]
pub struct StateStore<T> {
    directory: Option<PathBuf>,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for StateStore<T> {
    fn clone(&self) -> Self {
        Self { directory: self.directory.clone(), kind: PhantomData }
    }
}

impl<T: Clone + Serialize + DeserializeOwned> StateStore<T> {
    /// Opens the records of a directory, which is created with the first record.
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self { directory, kind: PhantomData }
    }

    /// Returns the directory of the records.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// Reads the record of an id. There is none where another user could have written it.
    pub fn read(&self, id: &str) -> Option<T> {
        let path = self.path(id)?;
        let meta = fs::symlink_metadata(&path).ok()?;
        let is_own = meta.uid() == rustix::process::geteuid().as_raw()
            && meta.mode() & 0o022 == 0
            && meta.len() <= MAX_RECORD_SIZE;
        let text = (is_own && meta.is_file()).then(|| fs::read(path).ok())??;
        serde_json::from_slice(&text).ok()
    }

    /// Replaces the record of an id. A record that cannot be written is logged and not kept.
    pub fn write(&self, id: &str, record: &T) {
        if let Err(error) = self.try_write(id, record) {
            tracing::warn!(%error, id, "what the service cannot keep is not kept");
        }
    }

    /// Changes the record of an id, under a lock that all processes of this user respect, and returns the changed record.
    /// Where there is no record, `known` is changed.
    pub fn change(&self, id: &str, known: &T, change: impl FnOnce(&mut T)) -> T {
        let lock = self.lock().inspect_err(|error| tracing::debug!(%error, id, "no lock"));
        let mut record = self.read(id).unwrap_or_else(|| known.clone());
        change(&mut record);
        self.write(id, &record);
        drop(lock);
        record
    }

    /// Changes the record of an id as [`StateStore::change`] does. Without a record nothing is done, as for a sandbox that has
    /// ended.
    pub fn change_known(&self, id: &str, change: impl FnOnce(&mut T)) {
        let lock = self.lock().inspect_err(|error| tracing::debug!(%error, id, "no lock"));
        if let Some(mut record) = self.read(id) {
            change(&mut record);
            self.write(id, &record);
        }
        drop(lock);
    }

    /// Removes the record of an id, if there is one.
    pub fn remove(&self, id: &str) {
        if let Some(path) = self.path(id) {
            let _ = fs::remove_file(path);
        }
    }

    /// Returns all records, with their ids, ordered by id.
    pub fn all(&self) -> Vec<(String, T)> {
        let id =
            |file: PathBuf| file.file_name()?.to_str()?.strip_suffix(".json").map(str::to_owned);
        let mut ids: Vec<_> = self.files().filter_map(id).collect();
        ids.sort_unstable();
        ids.into_iter()
            .filter_map(|id| Some((self.read(&id)?, id)))
            .map(|(record, id)| (id, record))
            .collect()
    }

    /// Removes records that were not written for [`MAX_RECORD_AGE`].
    pub fn prune(&self) {
        let oldest =
            SystemTime::now().checked_sub(MAX_RECORD_AGE).unwrap_or(SystemTime::UNIX_EPOCH);
        for file in self.files().filter(|file| !file.ends_with(LOCK)) {
            let changed = fs::symlink_metadata(&file).and_then(|meta| meta.modified());
            if changed.is_ok_and(|changed| changed < oldest) {
                let _ = fs::remove_file(file);
            }
        }
    }

    fn files(&self) -> impl Iterator<Item = PathBuf> {
        let entries = self.directory.as_ref().and_then(|path| fs::read_dir(path).ok());
        entries.into_iter().flatten().flatten().map(|entry| entry.path())
    }

    /// Locks the directory, for as long as it takes to write a small file.
    fn lock(&self) -> io::Result<Option<fs::File>> {
        let Some(directory) = &self.directory else { return Ok(None) };
        create_private(directory)?;
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600);
        let file = file.open(directory.join(LOCK))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Some(file))
    }

    fn try_write(&self, id: &str, record: &T) -> io::Result<()> {
        let (Some(directory), Some(path)) = (&self.directory, self.path(id)) else { return Ok(()) };
        create_private(directory)?;
        let temporary = directory.join(format!(".{}", random_hex(8)));
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let text = serde_json::to_vec(record).map_err(io::Error::other)?;
        let written = file.write_all(&text).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn path(&self, id: &str) -> Option<PathBuf> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let is_good = !id.is_empty() && id.len() <= 128 && id.chars().all(is_plain);
        is_good.then(|| Some(self.directory.as_ref()?.join(format!("{id}.json"))))?
    }
}

/// Creates a directory, and what is above it, that only this user can enter.
pub(crate) fn create_private(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    type Record = BTreeMap<String, String>;

    fn record(key: &str) -> Record {
        Record::from([(key.to_owned(), "value".to_owned())])
    }

    #[test]
    fn changes_of_many_are_all_there() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let store = StateStore::<Record>::new(Some(folder.path().to_owned()));
                scope.spawn(move || {
                    for number in 0..20 {
                        store.change("01ABC", &Record::new(), |record| {
                            record.insert(format!("{writer}-{number}"), String::new());
                        });
                    }
                });
            }
        });
        let store = StateStore::<Record>::new(Some(folder.path().to_owned()));
        assert_eq!(store.read("01ABC").unwrap().len(), 160);
    }

    #[test]
    fn a_record_is_kept_private_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = StateStore::<Record>::new(Some(folder.path().join("a/b")));
        assert_eq!(store.read("01ABC"), None);
        store.write("01ABC", &record("a"));
        store.write("00", &record("b"));
        assert_eq!(store.read("01ABC"), Some(record("a")));
        assert_eq!(
            store.all(),
            [("00".to_owned(), record("b")), ("01ABC".to_owned(), record("a"))]
        );
        let file = folder.path().join("a/b/01ABC.json");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(store.read("01ABC"), None, "another user could have written it");
        store.remove("01ABC");
        assert!(!file.exists());
        store.write("../x", &record("a"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn old_records_are_pruned_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let store = StateStore::<Record>::new(Some(folder.path().to_owned()));
        store.change("old", &record("a"), |_| ());
        store.write("new", &record("a"));
        let before = SystemTime::now() - MAX_RECORD_AGE - Duration::from_secs(60);
        for name in ["old.json", LOCK] {
            let file = fs::OpenOptions::new().write(true).open(folder.path().join(name)).unwrap();
            file.set_modified(before).unwrap();
        }
        store.prune();
        assert_eq!((store.read("old"), store.read("new")), (None, Some(record("a"))));
        assert!(folder.path().join(LOCK).exists(), "a lock that is held must stay");
    }

    #[test]
    fn without_a_directory_nothing_is_kept() {
        let store = StateStore::<Record>::new(None);
        assert_eq!(
            store.change("a", &record("b"), |record| drop(record.remove("b"))),
            Record::new()
        );
        assert_eq!((store.read("a"), store.all().len()), (None, 0));
        store.prune();
    }

    #[test]
    fn the_directory_is_that_of_the_user() {
        let env = |state: Option<&'static str>| {
            move |name: &str| match name {
                "XDG_STATE_HOME" => state.map(str::to_owned),
                "HOME" => Some("/home/x".to_owned()),
                _ => None,
            }
        };
        let directory = |state| state_directory("e2b", &env(state)).unwrap();
        assert_eq!(directory(Some("/s")), Path::new("/s/code-sandboxes/e2b"));
        assert_eq!(directory(Some("s")), Path::new("/home/x/.local/state/code-sandboxes/e2b"));
        assert_eq!(directory(None), Path::new("/home/x/.local/state/code-sandboxes/e2b"));
        assert_eq!(state_directory("e2b", &|_| None), None);
    }
}
