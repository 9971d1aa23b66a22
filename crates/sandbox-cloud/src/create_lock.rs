//! Per-key create locks, shared by all processes of this user on this computer.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use sandbox_core::{CallContext, Error, ErrorKind, Result};
use sha2::{Digest as _, Sha256};
use tokio::time::{sleep, timeout_at};

use crate::state_store::create_private;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The locks of one call. They are released when this is dropped, and when its process ends.
#[derive(Debug, Default)]
pub struct CreateLocks {
    _held: Vec<CreateLock>,
}

impl CreateLocks {
    /// Acquires the lock of each of `keys`, in that order, below `directory`. Without a directory that can be written to,
    /// nothing is locked.
    ///
    /// # Errors
    /// `Timeout` when the deadline of the call is over before.
    pub async fn acquire(
        directory: Option<&Path>,
        call: &CallContext,
        operation: &'static str,
        keys: impl IntoIterator<Item = String>,
    ) -> Result<Self> {
        let Some(directory) = directory else { return Ok(Self::default()) };
        let mut held = Vec::new();
        for key in keys {
            let lock = CreateLock::acquire(directory, &key);
            let lock = match call.deadline {
                Some(deadline) => timeout_at(deadline.into(), lock).await.map_err(|_| {
                    let message =
                        format!("timed out waiting for another `{operation}` with this key");
                    Error::new(ErrorKind::Timeout, operation, message)
                })?,
                None => lock.await,
            };
            held.extend(lock.inspect_err(|error| tracing::warn!(%error, key, "no lock")));
        }
        Ok(Self { _held: held })
    }
}

#[derive(Debug)]
struct CreateLock {
    path: PathBuf,
    _locked: File,
}

impl CreateLock {
    /// Acquires the lock of `key`. The future may be dropped at any time.
    async fn acquire(directory: &Path, key: &str) -> io::Result<Self> {
        let directory = directory.join("locks");
        create_private(&directory)?;
        let path = directory.join(file_name(key));
        loop {
            if let Some(lock) = Self::try_acquire(&path)? {
                return Ok(lock);
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    fn try_acquire(path: &Path) -> io::Result<Option<Self>> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // The holder before removes the file that it has locked.
        let is_current = fs::metadata(path).is_ok_and(|there| {
            file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino()))
        });
        Ok(is_current.then(|| Self { path: path.to_owned(), _locked: file }))
    }
}

impl Drop for CreateLock {
    fn drop(&mut self) {
        // Still locked, so that no other process has a file of that name.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns a file name for any key.
fn file_name(key: &str) -> String {
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
                let lock = CreateLock::acquire(&path, "a key/with: anything").await.unwrap();
                assert_eq!(at_work.fetch_add(1, Ordering::SeqCst), 0);
                sleep(Duration::from_millis(2)).await;
                at_work.fetch_sub(1, Ordering::SeqCst);
                drop(lock);
            });
        }
        tasks.join_all().await;
        let held = CreateLock::acquire(folder.path(), "one").await.unwrap();
        CreateLock::acquire(folder.path(), "another").await.unwrap();
        drop(held);
        assert_eq!(fs::read_dir(folder.path().join("locks")).unwrap().count(), 0);
    }
}
