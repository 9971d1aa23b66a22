//! Transfers large files of a sandbox on this kernel as open descriptors of the agent's process, to be read here.
//!
//! Content of the connection goes through everything that carries it, such as a container engine. An open file is taken
//! at once. The agent opens it, so files that the agent may not read stay unread; and what it sends about the file is a
//! claim of a hostile sandbox. So descriptors are taken only from the process that has proven to be the agent, and only
//! regular files are read, of file systems where reading waits for no program.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, future};
use rustix::fs::{FileType, Stat, fstat, fstatfs};
use rustix::io::pread;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use sandbox_core::{ByteRange, ByteStream, Result, random_hex};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::call::Call;
use crate::connection::Connection;
use crate::error::TargetExt as _;
use sandbox_engine::files::Target;
use sandbox_engine::files::chunks::{chunks, step};
use sandbox_engine::files::pool;
use sandbox_engine::files::reader::FileReader;

/// How long to look for the process. Files come over the connection then.
const SCAN_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of bytes of the nonce by which the process is recognized.
const WORD: usize = 32;

/// File systems whose files are read without waiting for a program, as FUSE would, or for another host, and that do not
/// show the kernel.
const ORDINARY: [u64; 5] = [
    0x0102_1994, // tmpfs
    0x794c_7630, // overlayfs
    0xef53,      // ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
];

/// Locates the process of an agent on this host.
#[async_trait]
pub trait LocateProcess: fmt::Debug + Send + Sync + 'static {
    /// Returns the supposed process id on this host, if it is known. The process has to prove that it is the agent.
    async fn pid(&self) -> Option<u32>;
}

/// The agent's process, where it is on this kernel and can be accessed. It is located when it is first needed.
#[derive(Debug)]
pub(crate) struct FdTransfer {
    find: Arc<dyn LocateProcess>,
    /// `None`: it cannot be accessed.
    process: OnceCell<Option<Arc<OwnedFd>>>,
}

impl FdTransfer {
    pub(crate) fn new(find: Arc<dyn LocateProcess>) -> Self {
        Self { find, process: OnceCell::new() }
    }

    /// Returns true while it is not known that the process cannot be accessed.
    pub(crate) fn may_be_there(&self) -> bool {
        !matches!(self.process.get(), Some(None))
    }

    /// Returns the content of the file that the agent offers. `None`: the file cannot be taken, for whatever reason.
    pub(crate) async fn take(
        &self,
        connection: &Arc<Connection>,
        offer: &[Vec<u8>],
        target: &Target,
        range: ByteRange,
    ) -> Option<ByteStream> {
        let offer = FdOffer::from_fields(offer)?;
        let process = Arc::clone(self.process(connection).await?);
        let about = target.about.clone();
        let taking = pool::run(None, move || {
            let (file, status) = open_file(&process, offer.number)?;
            offer.is_of(&status).then(|| step(FileReader::new(file, &status, about, range)))
        });
        let first = taking.await.ok().flatten()?;
        let content = chunks(target.about.clone(), None, first);
        Some(while_open(content, Arc::clone(connection), target.clone()))
    }

    async fn process(&self, connection: &Arc<Connection>) -> Option<&Arc<OwnedFd>> {
        let look = || async {
            let found = timeout(SCAN_TIMEOUT, look(&*self.find, connection)).await;
            found.ok().flatten().map(Arc::new)
        };
        self.process.get_or_init(look).await.as_ref()
    }
}

/// The offer of an agent: a file that it has opened.
struct FdOffer {
    number: RawFd,
    device: u64,
    inode: u64,
}

impl FdOffer {
    fn from_fields(fields: &[Vec<u8>]) -> Option<Self> {
        let [number, device, inode] = fields else { return None };
        let whole = |field: &Vec<u8>| Some(u64::from_le_bytes(field.as_slice().try_into().ok()?));
        Some(Self { number: number_in(number)?, device: whole(device)?, inode: whole(inode)? })
    }

    /// Returns true for the offered file. The agent may have closed it meanwhile, and have another one by the same
    /// number.
    fn is_of(&self, status: &Stat) -> bool {
        (status.st_dev, status.st_ino) == (self.device, self.inode)
    }
}

/// Reads a descriptor. Negative ones have meanings of their own, none of which is an open file.
fn number_in(field: &[u8]) -> Option<RawFd> {
    let number = i64::from_le_bytes(field.try_into().ok()?);
    RawFd::try_from(number).ok().filter(|number| *number >= 0)
}

/// Opens the process that has a nonce in the file of that number, which was sent only to the agent of this connection.
/// From then on it is the same process, whatever process gets its id later.
async fn look(find: &dyn LocateProcess, connection: &Arc<Connection>) -> Option<OwnedFd> {
    let pid = Pid::from_raw(find.pid().await?.try_into().ok()?)?;
    let word = random_hex(WORD).into_bytes();
    let asked = Call::begin(connection, "prove", std::slice::from_ref(&word)).ok()?;
    let (answer, _shown) = asked.answered().await;
    let number = number_in(answer.ok()?.first()?)?;
    let looking = pool::run(None, move || {
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let (file, _) = open_file(&process, number)?;
        let mut found = vec![0; word.len()];
        let count = pread(file, &mut found, 0).ok()?;
        (count == word.len() && found == word).then_some(process)
    });
    looking.await.ok()?
}

/// Takes an open file of a process, if it is one to read.
fn open_file(process: impl AsFd, number: RawFd) -> Option<(OwnedFd, Stat)> {
    let file = pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()?;
    let status = fstat(&file).ok()?;
    let is_regular = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    let is_ordinary = ORDINARY.contains(&(fstatfs(&file).ok()?.f_type as u64));
    (is_regular && is_ordinary).then_some((file, status))
}

/// Ends content with its connection, as any other content from there. Nothing follows an error.
fn while_open(
    content: impl Stream<Item = Result<Bytes>> + Send + 'static,
    connection: Arc<Connection>,
    target: Target,
) -> ByteStream {
    Box::pin(content.scan(false, move |is_over, piece| {
        let piece = match connection.is_closed() {
            true => Err(target.failed(&connection.lost_error())),
            false => piece,
        };
        let is_last = piece.is_err();
        future::ready((!std::mem::replace(is_over, is_last)).then_some(piece))
    }))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

    use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
    use rustix::process::getpid;

    use super::*;

    /// Opens a process that may always be accessed.
    fn own() -> OwnedFd {
        pidfd_open(getpid(), PidfdFlags::empty()).unwrap()
    }

    #[test]
    fn nothing_is_taken_that_a_read_could_wait_for_or_that_shows_the_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        let both_ways = File::options().read(true).write(true).open(&fifo).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let taken = |file: &File| open_file(own(), file.as_raw_fd()).is_some();
        assert!(taken(&File::open(&path).unwrap()), "the control");
        assert!(!taken(&both_ways));
        for other in
            ["/dev/zero", "/proc/self/environ", "/proc/cmdline", "/sys/kernel/uevent_seqnum"]
        {
            assert!(!taken(&File::open(other).unwrap()), "{other}");
        }
        assert!(!taken(&File::open(folder.path()).unwrap()), "a directory");
        assert!(open_file(own(), 1 << 20).is_none(), "a number that no file has");
        // A descriptor that only names a file cannot be read. The first read fails.
        let only_named = File::options()
            .read(true)
            .custom_flags(OFlags::PATH.bits() as i32)
            .open(&path)
            .unwrap();
        let read =
            open_file(own(), only_named.as_raw_fd()).map(|(file, _)| pread(file, &mut [0; 1], 0));
        assert!(!matches!(read, Some(Ok(_))), "{read:?}");
    }

    #[test]
    fn a_number_that_has_become_another_file_is_not_the_one_that_was_offered() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"x").unwrap();
        let status = file.metadata().unwrap();
        let (_, found) = open_file(own(), file.as_raw_fd()).unwrap();
        let offered = |device: u64, inode: u64| {
            let fields = [3, device, inode].map(|field| field.to_le_bytes().to_vec());
            FdOffer::from_fields(&fields).unwrap().is_of(&found)
        };
        assert!(offered(status.dev(), status.ino()));
        assert!(!offered(status.dev(), status.ino() + 1));
        assert!(!offered(status.dev() + 1, status.ino()));
    }

    #[test]
    fn an_offer_without_meaning_is_none() {
        let field = |value: i64| value.to_le_bytes().to_vec();
        assert!(FdOffer::from_fields(&[field(3), field(1), field(2)]).is_some());
        for fields in [
            vec![],
            vec![field(3), field(1)],
            vec![field(3), field(1), field(2), field(2)],
            vec![field(i64::MAX), field(1), field(2)],
            vec![field(-1), field(1), field(2)],
            vec![field(-100), field(1), field(2)],
            vec![vec![3], field(1), field(2)],
            vec![field(3), vec![], field(2)],
        ] {
            assert!(FdOffer::from_fields(&fields).is_none(), "{fields:?}");
        }
    }
}
