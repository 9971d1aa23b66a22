//! Whose turn it is to make a sandbox with some key: one at a time, among all processes of a user on this computer.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use sandbox_core::{CallContext, Error, ErrorKind, Result};
use sha2::{Digest as _, Sha256};
use tokio::time::{sleep, timeout_at};

use crate::config::DatalayerConfig;
use crate::notes::Notes;

/// How soon whoever waits looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Turns that one call has. They are over when this is dropped, and when its process ends.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    _held: Vec<Turn>,
}

impl Turns {
    /// Waits for the turn of each of `keys`, in that order. Without a place for locks there are none.
    ///
    /// # Errors
    /// `Timeout` when the call is over before.
    pub(crate) async fn of(
        config: &DatalayerConfig,
        call: &CallContext,
        operation: &'static str,
        keys: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let notes = Notes::of(config);
        let Some(directory) = notes.directory() else { return Ok(Self::default()) };
        let mut held = Vec::new();
        for key in keys {
            let turn = Turn::of(directory, &key);
            let turn = match call.deadline {
                Some(deadline) => timeout_at(deadline.into(), turn).await.map_err(|_| {
                    Error::new(ErrorKind::Timeout, operation, "another one of these is at work")
                })?,
                None => turn.await,
            };
            held.extend(
                turn.inspect_err(|error| tracing::warn!(%error, key, "nothing is kept apart")),
            );
        }
        Ok(Self { _held: held })
    }
}

#[derive(Debug)]
struct Turn {
    path: PathBuf,
    _locked: File,
}

impl Turn {
    /// Waits for the turn of `key`. The future may be dropped at any time.
    ///
    /// # Errors
    /// When nothing can be written below that directory.
    async fn of(directory: &Path, key: &str) -> io::Result<Self> {
        let directory = directory.join("turns");
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let path = directory.join(name(key));
        loop {
            if let Some(turn) = Self::now(&path)? {
                return Ok(turn);
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    fn now(path: &Path) -> io::Result<Option<Self>> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // Whoever had it before has removed what it locked.
        let is_that_file = fs::metadata(path).is_ok_and(|there| {
            file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino()))
        });
        Ok(is_that_file.then(|| Self { path: path.to_owned(), _locked: file }))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Still locked, so that nobody else has a file of that name.
        let _ = fs::remove_file(&self.path);
    }
}

/// A file name for whatever is in a key.
fn name(key: &str) -> String {
    Sha256::digest(key).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn one_at_a_time_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let at_work = Arc::new(AtomicU32::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let (path, at_work) = (folder.path().to_owned(), Arc::clone(&at_work));
            tasks.spawn(async move {
                let turn = Turn::of(&path, "a key/with: anything").await.unwrap();
                assert_eq!(at_work.fetch_add(1, Ordering::SeqCst), 0);
                sleep(Duration::from_millis(2)).await;
                at_work.fetch_sub(1, Ordering::SeqCst);
                drop(turn);
            });
        }
        tasks.join_all().await;
        let held = Turn::of(folder.path(), "one").await.unwrap();
        Turn::of(folder.path(), "another").await.unwrap();
        drop(held);
        assert_eq!(fs::read_dir(folder.path().join("turns")).unwrap().count(), 0);
    }
}
