//! The place of a supervisor: the lock that it has for life, and the socket where clients look for it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::time::Duration;

use crate::client::{Address, ENDING};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use sandbox_core::Result;

use super::failed as host_failed;

/// How long the lock of one that is about to end is waited for.
const SUCCESSION: Duration = Duration::from_secs(10);

/// Which file it is, whatever its name.
type Identity = (u64, u64);

/// The place of the one supervisor.
#[derive(Debug)]
pub(super) struct Seat {
    address: Address,
    lock: File,
    listener: UnixListener,
    socket: Identity,
}

impl Seat {
    /// Takes the place. `None` when another one serves.
    pub(super) async fn take(address: Address) -> Result<Option<Self>> {
        let Some(lock) = become_the_one(&address).await? else { return Ok(None) };
        let failed = |error| host_failed("listening", error);
        write_pid(&lock, "").map_err(failed)?;
        let (listener, socket) = listen(&address).map_err(failed)?;
        Ok(Some(Self { address, lock, listener, socket }))
    }

    /// The next client.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }

    /// Takes the place again when somebody has cleared it away. Whoever has it now keeps it.
    pub(super) fn keep(&mut self) {
        if identity(&self.address.socket()) == Some(self.socket) && self.has_lock() {
            return;
        }
        match self.restore() {
            Ok(()) => warn!("the socket was gone and is there again"),
            Err(error) => debug!(%error, "the socket is gone"),
        }
    }

    fn has_lock(&self) -> bool {
        let own = self.lock.metadata().ok().map(|own| (own.dev(), own.ino()));
        identity(&self.address.lock()) == own
    }

    fn restore(&mut self) -> io::Result<()> {
        if !self.has_lock() {
            // The directory may have been removed, too.
            self.address = Address::of_this_user().map_err(io::Error::other)?;
            let lock = open(&self.address)?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            write_pid(&lock, "")?;
            self.lock = lock;
        }
        (self.listener, self.socket) = listen(&self.address)?;
        Ok(())
    }

    /// From here on nobody finds us; whoever comes waits for the lock, which is given back.
    pub(super) fn hide(self) -> File {
        let noted = write_pid(&self.lock, ENDING);
        let socket = self.address.socket();
        let is_ours = identity(&socket) == Some(self.socket);
        let removed = is_ours.then(|| fs::remove_file(socket));
        debug!(?noted, ?removed, "supervised");
        self.lock
    }
}

fn identity(path: &Path) -> Option<Identity> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Says in the lock whose it is, for clients that find no socket.
fn write_pid(mut lock: &File, more: &str) -> io::Result<()> {
    lock.set_len(0)?;
    let text = format!("{}{more}\n", std::process::id());
    lock.write_all_at(text.as_bytes(), 0)?;
    lock.flush()
}

fn open(address: &Address) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).open(address.lock())
}

/// Takes the lock that a supervisor has for life. `None` when another one serves.
async fn become_the_one(address: &Address) -> Result<Option<File>> {
    let failed = |error: io::Error| host_failed("locking", error);
    let file = open(address).map_err(failed)?;
    let wait = async {
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(true),
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed(error.into())),
            }
            if UnixStream::connect(address.socket()).await.is_ok() {
                return Ok(false);
            }
            // It is about to begin, or to end.
            sleep(Duration::from_millis(10)).await;
        }
    };
    match timeout(SUCCESSION, wait).await {
        Ok(is_ours) => Ok(is_ours?.then_some(file)),
        Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}

/// Listens where clients look. A socket that is there belongs to one that died: we have its lock.
fn listen(address: &Address) -> io::Result<(UnixListener, Identity)> {
    let socket = address.socket();
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdListener::bind(&socket)?;
    fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    let identity = identity(&socket).ok_or(io::ErrorKind::NotFound)?;
    Ok((UnixListener::from_std(listener)?, identity))
}
