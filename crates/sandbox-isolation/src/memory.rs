//! A limit on the memory of a whole cell where no control group keeps it: a thread adds up what the processes have,
//! ten times a second, and ends the largest.
//!
//! One process alone cannot get past the limit meanwhile, because it has a limit of its own in the kernel. What is
//! added up is private memory, shared by as many as have it, and shared memory or files, whichever is more: a file that
//! is mapped would otherwise count twice.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, fstatfs, openat};
use rustix::process::{Signal, pidfd_send_signal};

/// How often memory is added up.
const PAUSE: Duration = Duration::from_millis(100);

/// Adding up may take that part of the time, so that many large processes do not keep a processor busy.
const SHARE: u32 = 10;

/// How long processes are looked at exactly when there may be too much. What is left then counts for what it has at most.
const PATIENCE: Duration = Duration::from_millis(100);

/// A cell that takes longer than this to look at waits alone for what it took more, so that none keeps the others from
/// being looked at.
const QUICK: Duration = Duration::from_millis(1);

/// Ended processes that nobody has asked about. Who does not ask in time is not told.
const REMEMBERED: usize = 1024;

/// The first process of a cell.
const FIRST: u32 = 1;

/// A cell whose memory is added up.
#[derive(Debug)]
pub(crate) struct Watched {
    limit: u64,
    processes: OwnedFd,
    /// The file systems in memory of the cell.
    files: Vec<OwnedFd>,
    ended: Mutex<BTreeSet<u32>>,
    /// When it may be looked at again.
    next: Mutex<Instant>,
    /// Its memory is being counted exactly, by a thread of its own.
    counting: AtomicBool,
}

/// What one process has, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Has {
    pid: u32,
    private: u64,
    shared: u64,
}

impl Has {
    fn all(self) -> u64 {
        self.private.saturating_add(self.shared)
    }
}

impl Watched {
    /// Begins to watch the cell with this root directory.
    pub(crate) fn begin(limit: u64, root: impl AsFd) -> io::Result<Arc<Self>> {
        let watched = Arc::new(Self::new(limit, root)?);
        list().add(&watched)?;
        Ok(watched)
    }

    fn new(limit: u64, root: impl AsFd) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &str| openat(&root, path, flags, Mode::empty());
        Ok(Self {
            limit,
            processes: open("proc")?,
            files: vec![open(".")?, open("dev/shm")?],
            ended: Mutex::default(),
            next: Mutex::new(Instant::now()),
            counting: AtomicBool::new(false),
        })
    }

    /// Whether this process, as the cell counts, was ended for its memory. Says so once.
    pub(crate) fn has_ended(&self, pid: u32) -> bool {
        self.ended().remove(&pid)
    }

    fn ended(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the cell if it is time to. How long that took others who wait for it.
    fn visit(self: &Arc<Self>) -> Duration {
        let begin = Instant::now();
        if *self.next() > begin || self.counting.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        // What is gone is no longer held by its handle, and so leaves the list.
        if self.may_have_too_much().unwrap_or(false) {
            self.count_aside();
        }
        self.rest(begin.elapsed()).min(QUICK)
    }

    /// Keeps away from the cell for as long as is fair after having been busy with it.
    fn rest(&self, busy: Duration) -> Duration {
        *self.next() = Instant::now() + busy.saturating_sub(QUICK) * SHARE;
        busy
    }

    fn next(&self) -> MutexGuard<'_, Instant> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An error means that the cell is gone.
    fn may_have_too_much(&self) -> io::Result<bool> {
        Ok(total(&self.all(read_roughly)?, self.used()?) > self.limit)
    }

    /// Counts exactly on a thread of its own: code can make that slow.
    fn count_aside(self: &Arc<Self>) {
        self.counting.store(true, Ordering::Release);
        let watched = Arc::clone(self);
        let count = move || {
            let begin = Instant::now();
            let _ = watched.end_what_is_too_much();
            watched.rest(begin.elapsed());
            watched.counting.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("memory-count".to_owned()).spawn(count).is_err() {
            let _ = self.end_what_is_too_much();
            self.counting.store(false, Ordering::Release);
        }
    }

    /// Ends the largest processes when there is too much. An error means that the cell is gone.
    fn end_what_is_too_much(&self) -> io::Result<()> {
        let (files, begin) = (self.used()?, Instant::now());
        // Code decides how long that takes; meanwhile it goes on to take memory.
        let mut all = self.all(|processes, pid| match begin.elapsed() < PATIENCE {
            true => read_exactly(processes, pid),
            false => read_roughly(processes, pid),
        })?;
        all.sort_by_key(|has| has.all());
        while total(&all, files) > self.limit {
            let Some(largest) = all.pop() else { return Ok(()) };
            self.end(largest.pid);
        }
        Ok(())
    }

    /// Bytes in the files of the cell.
    fn used(&self) -> io::Result<u64> {
        self.files.iter().map(used).sum()
    }

    fn end(&self, pid: u32) {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A directory of a process stands for that process, and for no later one with the same number.
        let process = openat(&self.processes, pid.to_string(), flags, Mode::empty());
        let mut ended = self.ended();
        if ended.len() >= REMEMBERED {
            ended.pop_first();
        }
        ended.insert(pid);
        let killed = process.is_ok_and(|process| pidfd_send_signal(process, Signal::KILL).is_ok());
        if !killed {
            ended.remove(&pid);
        }
    }

    fn all(&self, read: impl Fn(&OwnedFd, u32) -> Option<Has>) -> io::Result<Vec<Has>> {
        let mut all = Vec::new();
        for entry in Dir::read_from(&self.processes)? {
            let name = entry?;
            let pid = name.file_name().to_str().ok().and_then(|name| name.parse().ok());
            let pid = pid.filter(|pid| *pid != FIRST);
            all.extend(pid.and_then(|pid| read(&self.processes, pid)));
        }
        Ok(all)
    }
}

/// What processes and files come to.
fn total(all: &[Has], files: u64) -> u64 {
    let private: u64 = all.iter().map(|has| has.private).sum();
    let shared: u64 = all.iter().map(|has| has.shared).sum();
    private.saturating_add(shared.max(files))
}

/// Bytes that a file system in memory has.
fn used(files: impl AsFd) -> io::Result<u64> {
    let state = fstatfs(files)?;
    let size = u64::try_from(state.f_bsize).unwrap_or(0);
    Ok(state.f_blocks.saturating_sub(state.f_bfree).saturating_mul(size))
}

/// The field with what a process has of page tables: a page of memory for each 2 MiB that it has only looked at.
const PAGE_TABLES: &str = "VmPTE:";

/// What a process has, or more: what it shares with others counts for each. Reading that takes little.
fn read_roughly(processes: &OwnedFd, pid: u32) -> Option<Has> {
    let text = read(processes, &format!("{pid}/status"))?;
    let private = field(&text, "RssAnon:") + field(&text, "VmSwap:") + field(&text, PAGE_TABLES);
    Some(Has { pid, private, shared: field(&text, "RssShmem:") })
}

/// What a process has, its part of what it shares with others.
fn read_exactly(processes: &OwnedFd, pid: u32) -> Option<Has> {
    // A process may forbid to be looked into, and then counts for what it has at most.
    let Some(text) = read(processes, &format!("{pid}/smaps_rollup")) else {
        return read_roughly(processes, pid);
    };
    let tables = read(processes, &format!("{pid}/status")).map(|text| field(&text, PAGE_TABLES));
    let private = field(&text, "Pss_Anon:") + field(&text, "SwapPss:") + tables.unwrap_or(0);
    Some(Has { pid, private, shared: field(&text, "Pss_Shmem:") })
}

fn read(processes: &OwnedFd, path: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(processes, path, flags, Mode::empty()).ok()?;
    let mut text = String::new();
    File::from(file).read_to_string(&mut text).ok()?;
    Some(text)
}

/// A field that the kernel gives in KiB.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0).saturating_mul(1024)
}

/// All cells that are watched, by one thread as long as there are any.
#[derive(Debug)]
struct List {
    cells: Vec<Weak<Watched>>,
    running: bool,
}

static LIST: Mutex<List> = Mutex::new(List { cells: Vec::new(), running: false });

fn list() -> MutexGuard<'static, List> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

impl List {
    fn add(&mut self, watched: &Arc<Watched>) -> io::Result<()> {
        if !self.running {
            thread::Builder::new().name("memory-watch".to_owned()).spawn(work)?;
            self.running = true;
        }
        self.cells.push(Arc::downgrade(watched));
        Ok(())
    }

    /// The next time's work; `None` when there is no more.
    fn next(&mut self) -> Option<Vec<Weak<Watched>>> {
        self.cells.retain(|cell| cell.strong_count() > 0);
        self.running = !self.cells.is_empty();
        self.running.then(|| self.cells.clone())
    }
}

fn work() {
    loop {
        let Some(cells) = list().next() else { return };
        let cells = cells.iter().filter_map(Weak::upgrade);
        let busy: Duration = cells.map(|cell| cell.visit()).sum();
        thread::sleep(PAUSE.max(busy * SHARE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_from_files_counts_once() {
        let has = |private, shared| Has { pid: 2, private, shared };
        assert_eq!(total(&[], 7), 7);
        assert_eq!(total(&[has(10, 5), has(1, 0)], 3), 16);
        assert_eq!(total(&[has(10, 5), has(1, 0)], 8), 19);
        assert_eq!(total(&[has(u64::MAX, 1)], 1), u64::MAX);
    }

    #[test]
    fn a_cell_that_takes_long_waits_and_holds_nobody_up() {
        let host = File::open("/").unwrap();
        let cell = Arc::new(Watched::new(u64::MAX, &host).unwrap());
        cell.rest(QUICK);
        assert!(*cell.next() <= Instant::now(), "as often as any other");
        let second = Duration::from_secs(1);
        cell.rest(second);
        assert!(*cell.next() > Instant::now() + second * (SHARE - 1));
        let next = *cell.next();
        assert_eq!(cell.visit(), Duration::ZERO);
        assert_eq!(*cell.next(), next, "it was not looked at");
        *cell.next() = Instant::now();
        let busy = cell.visit();
        assert!(!busy.is_zero() && busy <= QUICK, "{busy:?}");
    }

    #[test]
    fn fields_of_the_kernel_are_read_in_bytes() {
        let text = "Name:\tx\nRssAnon:\t    12 kB\nRssShmem:\t0 kB\n";
        assert_eq!((field(text, "RssAnon:"), field(text, "RssShmem:")), (12 * 1024, 0));
        assert_eq!(field(text, "RssFile:"), 0);
    }
}
