//! Files of this computer to a sandbox and back.
//!
//! The local side is read and written by a thread of its own for each transfer, because reading a file blocks and the
//! core has no runtime whose threads it could use. A few pieces lie between that thread and the sandbox; when they are
//! full, the faster side waits. So a transfer of any size takes a few megabytes.

mod channel;
mod download;
mod local;
mod merge;
mod pack;
mod skipped;
mod unpack;
mod upload;

pub use channel::wait_for_transfers;

use std::fmt;
use std::future::IntoFuture;
use std::path::{Path, PathBuf};

use futures_core::future::BoxFuture;

use self::download::Arrival;
use self::local::Access;
use crate::error::{Error, ErrorKind, Result};
use crate::files::Files;
use crate::path::sandbox_path;
use crate::units::ByteSize;

/// The progress of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes so far. Of a directory, those of the archive that it travels as.
    pub bytes: u64,
    /// Bytes in the end, where that is known: for single files.
    pub total: Option<u64>,
}

/// The result of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transferred {
    /// Bytes of all files together.
    pub bytes: u64,
    /// Regular files.
    pub files: u64,
    /// What was left out of a directory, by its path below it: links that lead out of it; and of a sandbox's, FIFOs, sockets
    /// and devices.
    pub skipped: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    Upload,
    Download,
}

type OnProgress<'a> = Box<dyn FnMut(Progress) + Send + 'a>;

/// The most bytes of a transfer.
#[derive(Clone, Copy)]
struct SizeLimit(u64);

impl SizeLimit {
    fn check(self, operation: &'static str, bytes: u64) -> Result<()> {
        if bytes <= self.0 {
            return Ok(());
        }
        let message = format!("the transfer is more than {} bytes", self.0);
        Err(Error::new(ErrorKind::ResourceExhausted, operation, message)
            .with_context("cause", "too_large"))
    }
}

/// A transfer, done by awaiting it. Dropping it before its end leaves neither side changed, except for directories that
/// were made above the target.
#[must_use = "a transfer does nothing unless awaited"]
pub struct Transfer<'a> {
    files: Files<'a>,
    direction: Direction,
    local: PathBuf,
    path: Result<String>,
    progress: Option<OnProgress<'a>>,
    most: Option<ByteSize>,
    arrival: Arrival,
}

impl fmt::Debug for Transfer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("direction", &self.direction)
            .field("local", &self.local)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl<'a> Transfer<'a> {
    fn new(files: Files<'a>, direction: Direction, local: &Path, path: &Path) -> Self {
        let (local, path) = (local.to_owned(), sandbox_path("path", path));
        let arrival = Arrival { merges: false, access: Access::Owner };
        Self { files, direction, local, path, progress: None, most: None, arrival }
    }

    /// Is called with how far it is, from the task that awaits it, now and then and once at the end.
    pub fn progress(mut self, call: impl FnMut(Progress) + Send + 'a) -> Self {
        self.progress = Some(Box::new(call));
        self
    }

    /// Ends the transfer with `ResourceExhausted` once it is more than that; neither side is changed then. Of a directory,
    /// what counts is the archive that it travels as. Default: no limit but the room there is.
    pub fn at_most(mut self, most: ByteSize) -> Self {
        self.most = Some(most);
        self
    }
}

impl Transfer<'_> {
    /// Merges a directory of the sandbox into the one that is there on this computer, as `cp -r` does: files replace files
    /// and links of their name, and nothing is written through a link. Without a directory there it changes nothing.
    pub fn merge(mut self) -> Self {
        self.arrival.merges = true;
        self
    }

    /// Gives what is new on this computer the permissions that it has in the sandbox, as far as the umask of this process
    /// lets new files have them. Default: it is for its owner alone, and a program stays one.
    pub fn keep_permissions(mut self) -> Self {
        self.arrival.access = Access::Kept;
        self
    }
}

impl<'a> IntoFuture for Transfer<'a> {
    type Output = Result<Transferred>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { files, direction, local, path, progress, most, arrival } = self;
        let progress = progress.unwrap_or_else(|| Box::new(|_| {}));
        let path = match path {
            Ok(path) => path,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        let most = SizeLimit(most.map_or(u64::MAX, ByteSize::as_u64));
        match direction {
            Direction::Upload => Box::pin(upload::upload(files, local, path, progress, most)),
            Direction::Download => {
                Box::pin(download::download(files, local, path, progress, most, arrival))
            }
        }
    }
}

impl<'a> Files<'a> {
    /// Copies a file or a directory of this computer to `path`, which is its new name.
    ///
    /// A file replaces one that is there, atomically, with missing directories made above it. What is in a directory is
    /// added to the one that is there, or to a new one, all or nothing. Links within a directory stay links; those that
    /// lead out of it are left out and named in the result. Permissions and times of last change are kept. A FIFO, a socket or a device is an error.
    ///
    /// # Errors
    /// Those of the local side, with `local` in their context: `NotFound`, `PermissionDenied`, `InvalidArgument`. Otherwise
    /// as [`Files::write_stream`] and [`Files::write_archive`].
    pub fn upload(&self, local: impl AsRef<Path>, path: impl AsRef<Path>) -> Transfer<'a> {
        Transfer::new(*self, Direction::Upload, local.as_ref(), path.as_ref())
    }

    /// Copies a file or a directory of the sandbox to `local`, which is its new name on this computer.
    ///
    /// Nothing that the sandbox chooses decides where anything is written: names that would lead out are refused, and no
    /// link is written through. A file replaces a regular file that is there, atomically; a link there is refused. For a
    /// directory nothing may be there yet, unless it is [merged](Transfer::merge). Times of last change are kept. What is
    /// new can be read by its owner alone, unless its [permissions are kept](Transfer::keep_permissions); a program stays one.
    /// Links that lead out of a directory, or could do so through others (`a/../b`), and FIFOs, sockets and devices in it, are left
    /// out and named in the result.
    ///
    /// # Errors
    /// Those of the local side, with `local` in their context: `AlreadyExists`, `PermissionDenied`, `ResourceExhausted`
    /// when the disk is full. Otherwise as [`Files::stream`] and [`Files::read_archive`].
    pub fn download(&self, path: impl AsRef<Path>, local: impl AsRef<Path>) -> Transfer<'a> {
        Transfer::new(*self, Direction::Download, local.as_ref(), path.as_ref())
    }
}

#[cfg(test)]
mod tests;
