//! Unix sockets that nobody else can reach, for the library to connect to.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::UnixListener;

use crate::connection::Endpoint;
use crate::session::random_hex;

/// A folder of our own, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct PrivateFolder {
    path: PathBuf,
    next: AtomicU64,
}

/// A socket in the folder, removed when this is dropped.
#[derive(Debug)]
pub(super) struct PrivateSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

impl PrivateFolder {
    /// Makes a folder that only this user can enter.
    pub(crate) fn new() -> io::Result<Self> {
        Self::named(&format!("jupyter-{}", random_hex(8)), candidates())
    }

    /// The same with a path that is as short as can be, for the sockets of kernels: xeus takes no more than 23 bytes.
    #[cfg(feature = "manager")]
    pub(crate) fn short() -> io::Result<Self> {
        let mut places = candidates();
        places.sort_by_key(|place| place.as_os_str().len());
        Self::named(&format!(".k-{}", random_hex(6)), places)
    }

    fn named(name: &str, places: Vec<PathBuf>) -> io::Result<Self> {
        let fits =
            |folder: &PathBuf| folder.as_os_str().len() + name.len() + 24 < Endpoint::MAX_PATH;
        let mut candidates = places.into_iter().filter(fits);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        loop {
            let Some(folder) = candidates.next() else { return Err(last) };
            let path = folder.join(name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, next: AtomicU64::new(0) }),
                Err(error) => last = error,
            }
        }
    }

    /// Where it is.
    #[cfg(feature = "manager")]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A new socket.
    pub(super) fn socket(&self) -> io::Result<PrivateSocket> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(number.to_string());
        Ok(PrivateSocket { listener: UnixListener::bind(&path)?, path })
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // What is left over is a folder in a place for temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl PrivateSocket {
    /// What the library connects to.
    pub(super) fn endpoint(&self) -> String {
        Endpoint::Ipc { path: self.path.clone() }.to_string()
    }
}

impl Drop for PrivateSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Places for short-lived files, the best first.
fn candidates() -> Vec<PathBuf> {
    let runtime =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let mut places: Vec<PathBuf> = runtime.into_iter().collect();
    places.push(std::env::temp_dir());
    places.push(Path::new("/tmp").to_owned());
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[cfg(feature = "manager")]
    #[test]
    fn sockets_of_kernels_have_short_paths() {
        let folder = PrivateFolder::short().unwrap();
        let path = folder.path().join("k");
        // Where there is the usual place for temporary files.
        assert!(!Path::new("/tmp").is_dir() || path.as_os_str().len() <= 23, "{path:?}");
        assert_eq!(fs::metadata(folder.path()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[tokio::test]
    async fn nothing_is_left_and_nobody_else_can_enter() {
        let folder = PrivateFolder::new().unwrap();
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
