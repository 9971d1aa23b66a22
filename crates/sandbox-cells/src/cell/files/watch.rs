//! Watches a directory, and with it everything below.
//!
//! The kernel watches inodes and not paths, so another mount namespace does not matter. A path is only shown; every
//! watched directory was opened below the root, through no link.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use sandbox_core::{ErrorKind, FileKind, Result, WatchEvent, WatchEventKind, unix_now};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::names;
use super::path::CellPath;
use super::path::RootDir;
use super::pool;
use super::walk::Walk;
use crate::cell::streams;
use sandbox_engine::host::WatchStream;

/// Maximum number of directories of one watch. All programs of a user share the limit of a host.
const MAX_DIRECTORIES: usize = 8192;

/// Maximum length of the path of a watched directory. The kernel accepts no longer one, but such a path exists where
/// directories are made in each other.
const MAX_PATH_LENGTH: usize = 4096;

/// Maximum number of events that are taken at once.
const MAX_BATCH: usize = 4096;

/// Maximum number of bytes of events about files that came with their directory, and what each takes beside its path.
const MAX_FOUND_BYTES: usize = 8 << 20;
const OVERHEAD: usize = 128;

/// Interval of checking whether the directory itself still exists. The kernel reports its end only when no process has it
/// open, and this process does.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How long the second half of a rename may take to arrive.
const HALF_RENAME: Duration = Duration::from_millis(2);

/// What is watched, and what was reported of it.
struct Watching {
    target: CellPath,
    recursive: bool,
    events: OwnedFd,
    root: OwnedFd,
    /// Paths below the root by watch.
    directories: HashMap<i32, Vec<u8>>,
    /// Paths that were reported as new when their directory was found; the kernel's own event for them is dropped.
    told: HashSet<Vec<u8>>,
    /// Bytes that may still be reported of what is found. `None`: it was too much, and everything has to be looked at
    /// again.
    room: Option<usize>,
    /// Set when there was more than was taken at once.
    more: bool,
    over: bool,
}

/// One event of the kernel.
struct Said {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Vec<u8>,
}

impl Watching {
    fn open(tree: &RootDir, target: CellPath, recursive: bool) -> Result<Self> {
        let root = target.open_directory(tree)?;
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|errno| too_many(&target, errno))?;
        let root_watch =
            add_watch(&events, root.as_fd()).map_err(|errno| too_many(&target, errno))?;
        let mut watching = Self {
            target,
            recursive,
            events,
            root,
            directories: HashMap::from([(root_watch, Vec::new())]),
            told: HashSet::new(),
            room: Some(MAX_FOUND_BYTES),
            more: false,
            over: false,
        };
        watching.add_all()?;
        Ok(watching)
    }

    fn open_below(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat2(&self.root, path, flags, Mode::empty(), resolve)
    }

    fn add(&mut self, directory: BorrowedFd<'_>, path: &[u8]) -> Result<()> {
        self.check_path(path)?;
        if self.directories.len() >= MAX_DIRECTORIES {
            let message = "has more than 8192 directories to watch";
            let kind = ErrorKind::ResourceExhausted;
            return Err(self.target.about.error(kind, "too_many", message));
        }
        let watch =
            add_watch(&self.events, directory).map_err(|errno| too_many(&self.target, errno))?;
        self.directories.insert(watch, path.to_vec());
        Ok(())
    }

    fn check_path(&self, path: &[u8]) -> Result<()> {
        if path.len() <= MAX_PATH_LENGTH {
            return Ok(());
        }
        let message = "has a directory below it whose path is longer than 4096 bytes";
        Err(self.target.about.error(ErrorKind::ResourceExhausted, "too_long", message))
    }

    /// Watches every directory that there is.
    fn add_all(&mut self) -> Result<()> {
        self.add_below(&[], &mut |_| true)
    }

    /// Watches every directory below a path, and reports what is found there until `tell` returns false.
    fn add_below(&mut self, path: &[u8], tell: &mut dyn FnMut(&[u8]) -> bool) -> Result<()> {
        if !self.recursive {
            return Ok(());
        }
        let directory = match self.open_below(path) {
            Ok(directory) => directory,
            // It is gone, or cannot be read, and then its changes cannot be watched.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::XDEV) => {
                return Ok(());
            }
            Err(errno) => return Err(self.target.about.failed(errno)),
        };
        if !path.is_empty() {
            self.add(directory.as_fd(), path)?;
        }
        let mut walk = Walk::new(self.target.about.clone(), directory)?;
        while let Some(found) = walk.next()? {
            let below = join(path, &found.path);
            if !tell(&below) {
                return Ok(());
            }
            if found.kind() == FileKind::Directory
                && walk.enter(&found)?
                && let Some(directory) = walk.directory()
            {
                self.add(directory, &below)?;
            }
        }
        Ok(())
    }

    /// Takes the events so far. Never waits for more than the second half of a rename.
    fn take(&mut self) -> Result<Vec<WatchEvent>> {
        let mut said = self.read()?;
        if said.last().is_some_and(|last| last.flags.contains(ReadFlags::MOVED_FROM)) {
            std::thread::sleep(HALF_RENAME);
            said.extend(self.read()?);
        }
        self.room = Some(MAX_FOUND_BYTES);
        let mut told = Vec::new();
        let mut said = said.into_iter().peekable();
        while let Some(one) = said.next() {
            let is_other_half =
                |next: &Said| next.flags.contains(ReadFlags::MOVED_TO) && next.cookie == one.cookie;
            let is_rename = one.flags.contains(ReadFlags::MOVED_FROM);
            let other = if is_rename { said.next_if(is_other_half) } else { None };
            self.tell(&one, other.as_ref(), &mut told)?;
        }
        if self.room.is_none() {
            told.push(self.event(WatchEventKind::Overflow, &[]));
            // Directories may have come meanwhile.
            self.add_all()?;
        }
        told.dedup_by(|next, before| {
            next.kind == WatchEventKind::Modify
                && before.kind == next.kind
                && before.path == next.path
        });
        if !self.over && !self.more && fstat(&self.root).is_ok_and(|root| root.st_nlink == 0) {
            told.push(self.event(WatchEventKind::Delete, &[]));
            self.over = true;
        }
        Ok(told)
    }

    fn read(&mut self) -> Result<Vec<Said>> {
        self.more = false;
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = inotify::Reader::new(&self.events, &mut buffer);
        let mut said = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => said.push(Said {
                    watch: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event
                        .file_name()
                        .map(|name| name.to_bytes().to_vec())
                        .unwrap_or_default(),
                }),
                Err(Errno::AGAIN) => return Ok(said),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.target.about.failed(errno)),
            }
            if said.len() >= MAX_BATCH && reader.is_buffer_empty() {
                self.more = true;
                return Ok(said);
            }
        }
    }

    fn tell(
        &mut self,
        said: &Said,
        other: Option<&Said>,
        told: &mut Vec<WatchEvent>,
    ) -> Result<()> {
        if said.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.room = None;
            return Ok(());
        }
        if said.flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&said.watch);
            return Ok(());
        }
        let Some(directory) = self.directories.get(&said.watch) else { return Ok(()) };
        let path = join(directory, &said.name);
        let is_directory = said.flags.contains(ReadFlags::ISDIR);
        if let Some(new) = other.and_then(|other| {
            let directory = self.directories.get(&other.watch)?;
            Some(join(directory, &other.name))
        }) {
            self.told.remove(&path);
            let mut event = self.event(WatchEventKind::Rename, &path);
            event.new_path = Some(self.shown(&new));
            told.push(event);
            self.moved(&path, &new)?;
        } else if said.flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
            self.told.remove(&path);
            told.push(self.event(WatchEventKind::Delete, &path));
            if is_directory {
                self.forget(&path);
            }
        } else if said.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            self.created(path, is_directory, told)?;
        } else if !said.name.is_empty() {
            told.push(self.event(WatchEventKind::Modify, &path));
        }
        Ok(())
    }

    fn created(
        &mut self,
        path: Vec<u8>,
        is_directory: bool,
        told: &mut Vec<WatchEvent>,
    ) -> Result<()> {
        if self.told.remove(&path) {
            return Ok(());
        }
        told.push(self.event(WatchEventKind::Create, &path));
        let Some(mut room) = self.room.filter(|_| is_directory) else { return Ok(()) };
        let (mut found, mut heard_all) = (Vec::new(), true);
        self.add_below(&path, &mut |below| {
            let left = room.checked_sub(below.len() + OVERHEAD);
            heard_all = left.is_some();
            room = left.unwrap_or(0);
            if heard_all {
                found.push(below.to_vec());
            }
            heard_all
        })?;
        self.room = heard_all.then_some(room);
        for below in found {
            told.push(self.event(WatchEventKind::Create, &below));
            self.told.insert(below);
        }
        if self.told.len() > MAX_DIRECTORIES {
            self.told.clear();
        }
        Ok(())
    }

    /// Updates the paths of a directory that was moved, and of everything below.
    fn moved(&mut self, old: &[u8], new: &[u8]) -> Result<()> {
        let mut longest = Vec::new();
        for path in self.directories.values_mut() {
            if let Some(rest) = below(path, old) {
                *path = [new, rest].concat();
                if path.len() > longest.len() {
                    longest.clone_from(path);
                }
            }
        }
        self.check_path(&longest)
    }

    /// Removes a directory that is no longer here, though it may be somewhere else.
    fn forget(&mut self, path: &[u8]) {
        let gone: Vec<i32> = self
            .directories
            .iter()
            .filter(|(_, directory)| below(directory, path).is_some())
            .map(|(watch, _)| *watch)
            .collect();
        for watch in gone {
            self.directories.remove(&watch);
            // Fails when the directory is gone, and so its watch.
            let _ = inotify::remove_watch(&self.events, watch);
        }
    }

    fn shown(&self, path: &[u8]) -> String {
        if path.is_empty() {
            return self.target.shown.clone();
        }
        format!("{}/{}", self.target.shown.trim_end_matches('/'), names::to_text(path))
    }

    fn event(&self, kind: WatchEventKind, path: &[u8]) -> WatchEvent {
        WatchEvent { kind, path: self.shown(path), timestamp: unix_now(), new_path: None }
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    match (directory.is_empty(), name.is_empty()) {
        (true, _) => name.to_vec(),
        (_, true) => directory.to_vec(),
        _ => [directory, b"/", name].concat(),
    }
}

/// Returns what follows `directory` in a path that is it or below it.
fn below<'a>(path: &'a [u8], directory: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(directory)?;
    (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
}

fn add_watch(events: &OwnedFd, directory: BorrowedFd<'_>) -> rustix::io::Result<i32> {
    let wanted = WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::MOVE
        | WatchFlags::ONLYDIR
        | WatchFlags::EXCL_UNLINK;
    inotify::add_watch(events, format!("/proc/self/fd/{}", directory.as_raw_fd()), wanted)
}

/// Makes the error of too many watches, which all programs of a user share.
fn too_many(target: &CellPath, errno: Errno) -> sandbox_core::Error {
    match errno {
        Errno::NOSPC | Errno::MFILE => {
            let message = "this host watches as many directories as its limit allows";
            target
                .about
                .error(ErrorKind::ResourceExhausted, "watches", message)
                .with_hint("raise fs.inotify.max_user_watches and max_user_instances")
        }
        other => target.about.failed(other),
    }
}

struct Stream {
    /// Taken by the thread that reads. `None`: the watch has ended.
    watching: Option<Watching>,
    ready: AsyncFd<OwnedFd>,
    waiting: std::vec::IntoIter<WatchEvent>,
}

pub(crate) async fn watch(
    tree: Arc<RootDir>,
    target: CellPath,
    recursive: bool,
) -> Result<WatchStream> {
    let (about, user) = (target.about.clone(), tree.user);
    let watching = pool::run(user, move || Watching::open(&tree, target, recursive))
        .await
        .map_err(|error| about.unexpected(error))??;
    let twin = watching.events.try_clone().map_err(|error| about.unexpected(error))?;
    let ready =
        streams::watch(twin, Interest::READABLE).map_err(|error| about.unexpected(error))?;
    let state = Stream { watching: Some(watching), ready, waiting: Vec::new().into_iter() };
    let events = stream::unfold(state, move |mut state| {
        let about = about.clone();
        async move {
            loop {
                if let Some(event) = state.waiting.next() {
                    return Some((Ok(event), state));
                }
                let mut watching = state.watching.take()?;
                if watching.over {
                    return None;
                }
                if !watching.more {
                    match timeout(POLL_INTERVAL, state.ready.readable()).await {
                        // Before it is read: what comes later makes it ready again.
                        Ok(Ok(mut guard)) => guard.clear_ready(),
                        Ok(Err(error)) => return Some((Err(about.unexpected(error)), state)),
                        Err(_) => {}
                    }
                }
                let taken = pool::run(user, move || {
                    let events = watching.take();
                    (watching, events)
                });
                match taken.await {
                    Ok((watching, Ok(events))) => {
                        state.waiting = events.into_iter();
                        state.watching = Some(watching);
                    }
                    Ok((_, Err(error))) => return Some((Err(error), state)),
                    Err(error) => return Some((Err(about.unexpected(error)), state)),
                }
            }
        }
    });
    Ok(Box::pin(events))
}
