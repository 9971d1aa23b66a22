//! The single instance of a supervisor: the lock that it holds while it lives, and the socket on which clients find it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::time::Duration;

use crate::client::{ENDING, SupervisorPaths};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use sandbox_core::Result;

use super::host_error;

/// Maximum time to wait for the lock of a supervisor that is about to end.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
const ACQUIRE_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Device and inode of a file, which identify it under any name.
type FileId = (u64, u64);

/// The lock and the socket of the one supervisor of this user.
#[derive(Debug)]
pub(super) struct SingletonLock {
    paths: SupervisorPaths,
    lock: File,
    listener: UnixListener,
    socket: FileId,
}

impl SingletonLock {
    /// Acquires the lock and listens on the socket. Returns `None` when another supervisor serves.
    pub(super) async fn acquire(paths: SupervisorPaths) -> Result<Option<Self>> {
        let Some(lock) = acquire_lock(&paths).await? else { return Ok(None) };
        let failed = |error| host_error("listening", error);
        write_pid(&lock, "").map_err(failed)?;
        let (listener, socket) = listen(&paths).map_err(failed)?;
        Ok(Some(Self { paths, lock, listener, socket }))
    }

    /// Accepts the next client.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }

    /// Recreates lock and socket after another program has deleted them. Another supervisor that has them now keeps them.
    pub(super) fn restore(&mut self) {
        if file_id(&self.paths.socket()) == Some(self.socket) && self.has_lock() {
            return;
        }
        match self.recreate() {
            Ok(()) => warn!("the socket was deleted and has been created again"),
            Err(error) => debug!(%error, "the socket was deleted"),
        }
    }

    fn has_lock(&self) -> bool {
        let own = self.lock.metadata().ok().map(|own| (own.dev(), own.ino()));
        file_id(&self.paths.lock()) == own
    }

    fn recreate(&mut self) -> io::Result<()> {
        if !self.has_lock() {
            // The directory may have been deleted, too.
            self.paths = SupervisorPaths::for_current_user().map_err(io::Error::other)?;
            let lock = open(&self.paths)?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            write_pid(&lock, "")?;
            self.lock = lock;
        }
        (self.listener, self.socket) = listen(&self.paths)?;
        Ok(())
    }

    /// Removes the socket, so that no client connects any more, and returns the lock. New supervisors wait for the lock.
    pub(super) fn release(self) -> File {
        let noted = write_pid(&self.lock, ENDING);
        let socket = self.paths.socket();
        let is_ours = file_id(&socket) == Some(self.socket);
        let removed = is_ours.then(|| fs::remove_file(socket));
        debug!(?noted, ?removed, "released the socket");
        self.lock
    }
}

fn file_id(path: &Path) -> Option<FileId> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Writes the process id into the lock, for clients that find no socket.
fn write_pid(mut lock: &File, more: &str) -> io::Result<()> {
    lock.set_len(0)?;
    let text = format!("{}{more}\n", std::process::id());
    lock.write_all_at(text.as_bytes(), 0)?;
    lock.flush()
}

fn open(paths: &SupervisorPaths) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).open(paths.lock())
}

/// Acquires the lock that a supervisor holds while it lives. Returns `None` when another supervisor serves.
async fn acquire_lock(paths: &SupervisorPaths) -> Result<Option<File>> {
    let failed = |error: io::Error| host_error("locking", error);
    let file = open(paths).map_err(failed)?;
    let wait = async {
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(true),
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed(error.into())),
            }
            if UnixStream::connect(paths.socket()).await.is_ok() {
                return Ok(false);
            }
            // The owner of the lock is starting or ending.
            sleep(ACQUIRE_POLL_INTERVAL).await;
        }
    };
    match timeout(ACQUIRE_TIMEOUT, wait).await {
        Ok(is_ours) => Ok(is_ours?.then_some(file)),
        Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}

/// Listens on the socket. An existing socket belongs to a supervisor that died, because this process holds the lock.
fn listen(paths: &SupervisorPaths) -> io::Result<(UnixListener, FileId)> {
    let socket = paths.socket();
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdListener::bind(&socket)?;
    fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    let file_id = file_id(&socket).ok_or(io::ErrorKind::NotFound)?;
    Ok((UnixListener::from_std(listener)?, file_id))
}
