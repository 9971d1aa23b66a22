//! Private Unix sockets, to which the ZeroMQ library connects.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::UnixListener;

use crate::connection::Endpoint;

/// Maximum number of random names to try in one directory.
const MAX_ATTEMPTS: usize = 100;

/// A private directory, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct IpcDir {
    path: PathBuf,
    next: AtomicU64,
}

/// A socket in the directory, removed when it is dropped.
#[derive(Debug)]
pub(super) struct IpcSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

impl IpcDir {
    /// Creates a directory that only this user can enter.
    pub(crate) fn new() -> io::Result<Self> {
        Self::create_in(candidates())
    }

    fn create_in(candidates: Vec<PathBuf>) -> io::Result<Self> {
        let fits = |folder: &PathBuf| folder.as_os_str().len() + 32 < Endpoint::MAX_PATH;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for folder in candidates.into_iter().filter(fits) {
            for _ in 0..MAX_ATTEMPTS {
                let path = folder.join(new_name());
                match DirBuilder::new().mode(0o700).create(&path) {
                    Ok(()) => return Ok(Self { path, next: AtomicU64::new(0) }),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
                    Err(error) => {
                        last = error;
                        break;
                    }
                }
            }
        }
        Err(last)
    }

    /// Returns the path of the directory.
    #[cfg(feature = "manager")]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a socket.
    pub(super) fn socket(&self) -> io::Result<IpcSocket> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(number.to_string());
        Ok(IpcSocket { listener: UnixListener::bind(&path)?, path })
    }
}

impl Drop for IpcDir {
    fn drop(&mut self) {
        // Leftovers are in a directory for temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl IpcSocket {
    /// Returns the address for the library.
    pub(super) fn endpoint(&self) -> String {
        Endpoint::Ipc { path: self.path.clone() }.to_string()
    }
}

impl Drop for IpcSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns a random short name. Some kernels take at most 23 bytes for the path before the number of a channel, of
/// which `/run/user/1000/` takes 15. An existing name shows when the directory is created.
fn new_name() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut random = [0; 5];
    getrandom::fill(&mut random).expect("the system provides random numbers");
    let letters = random.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)]));
    std::iter::once('k').chain(letters).collect()
}

/// Returns directories for short-lived files, best first.
fn candidates() -> Vec<PathBuf> {
    let runtime =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let mut parents: Vec<PathBuf> = runtime.into_iter().collect();
    parents.push(std::env::temp_dir());
    parents.push(Path::new("/tmp").to_owned());
    parents
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn paths_are_short_enough_for_every_kernel() {
        let parent = tempfile::tempdir().unwrap();
        let folder = IpcDir::create_in(vec![parent.path().to_owned()]).unwrap();
        let sockets = folder.path.join("k");
        let name = sockets.strip_prefix(parent.path()).unwrap();
        assert!("/run/user/1000/".len() + name.as_os_str().len() <= 23, "{name:?}");
    }

    #[test]
    fn unusable_directories_are_skipped() {
        let parent = tempfile::tempdir().unwrap();
        let parents = vec![parent.path().join("nowhere"), parent.path().to_owned()];
        let folder = IpcDir::create_in(parents).unwrap();
        assert_eq!(folder.path.parent(), Some(parent.path()));
        IpcDir::create_in(vec![parent.path().join("nowhere")]).unwrap_err();
    }

    #[tokio::test]
    async fn the_directory_is_private_and_removed() {
        let folder = IpcDir::new().unwrap();
        let path = folder.path.clone();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let socket = folder.socket().unwrap();
        assert!(socket.endpoint().starts_with("ipc:///"));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        drop(socket);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        drop(folder);
        assert!(!path.exists());
    }
}
