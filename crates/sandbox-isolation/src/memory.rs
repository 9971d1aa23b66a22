//! A limit on the memory of a whole cell where no control group keeps it: a thread adds up what the processes have,
//! ten times a second, and ends the largest.
//!
//! One process alone cannot get past the limit meanwhile, because it has a limit of its own in the kernel. Where each of
//! them is gone before it can be ended, and has left its memory to the next, all are stopped and looked at then. What is
//! added up is private memory, shared by as many as have it, shared memory or files, whichever is more, because a file that
//! is mapped would otherwise count twice; and what the kernel holds for processes: what waits in sockets and pipes, and
//! what epolls watch.
//!
//! Some of the latter the kernel counts for each user of the host. Where the cell's user is one, the same thread sees to it
//! that the others have some left.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{Signal, pidfd_send_signal};

use self::held::{Process, Share, at_most, charge};
use self::patience::Patience;
use self::processes::{FIRST, Has, read, total};
use self::sockets::{Counted, Sockets};
use self::stopped::Stopped;

mod descriptors;
mod held;
mod patience;
pub(crate) mod processes;
mod sockets;
mod stopped;

/// How often memory is added up.
const PAUSE: Duration = Duration::from_millis(100);

/// Adding up may take that part of the time, so that many large processes do not keep a processor busy.
const SHARE: u32 = 10;

/// A cell that takes longer than this to look at waits alone for what it took more, so that none keeps the others from
/// being looked at.
const QUICK: Duration = Duration::from_millis(1);

/// How often a cell is looked at in a row. One process can follow another so quickly that its number leads nowhere by the
/// time it is read, or by the time it is to be ended.
const LOOKS: usize = 4;

/// Ended processes that nobody has asked about. Who does not ask in time is not told.
const REMEMBERED: usize = 1024;

/// Where only what is counted for the user is looked at, that is enough; a cell that could have too much is looked at as
/// often as others.
const SELDOM: Duration = Duration::from_secs(1);

/// What may wait in sockets for interfaces where a control group counts all else, in bytes. An answer takes a few thousand.
const MAX_IN_NETLINK: u64 = 8 << 20;

/// What is watched of a cell.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Its limit of memory, and the socket by which the kernel tells of its sockets. Without one, a control group keeps the
    /// limit, and only what waits in sockets for interfaces is counted.
    pub(crate) memory: Option<(u64, Option<OwnedFd>)>,
    /// Its user is a user of the host.
    pub(crate) shares_user: bool,
}

/// A cell whose memory is added up, or what the kernel counts for its user, or both.
#[derive(Debug)]
pub(crate) struct Watched {
    memory: Option<Limited>,
    share: Option<Share>,
    processes: OwnedFd,
    /// The file systems in memory of the cell.
    files: Vec<OwnedFd>,
    ended: Mutex<BTreeSet<u32>>,
    /// How many processes were ended for their memory.
    memory_ends: AtomicU64,
    /// When it may be looked at again.
    next: Mutex<Instant>,
    /// Whether all of its processes are held still. Locked while they are being stopped, so that they go on as they were.
    still: tokio::sync::Mutex<bool>,
    /// Its memory is being counted exactly, by a thread of its own.
    counting: AtomicBool,
}

/// A limit of memory, in bytes, and the way to ask for sockets; none where those for interfaces alone count.
#[derive(Debug)]
struct Limited {
    limit: u64,
    sockets: Option<Sockets>,
}

impl Limited {
    fn new((limit, kernel): (u64, Option<OwnedFd>)) -> io::Result<Self> {
        let sockets = kernel.map(Sockets::new).transpose()?;
        let limit = if sockets.is_some() { limit } else { limit.min(MAX_IN_NETLINK) };
        Ok(Self { limit, sockets })
    }

    fn count_sockets(&self, processes: &OwnedFd) -> io::Result<Counted> {
        match &self.sockets {
            Some(sockets) => sockets.count(processes),
            None => Ok(sockets::count_netlink(processes)),
        }
    }
}

/// What a cell has at most.
#[derive(Clone, Copy, Debug, Default)]
struct Rough {
    /// It has more memory than its limit.
    memory: bool,
    /// Its descriptors, of which several can be the same.
    descriptors: u64,
}

impl Watched {
    /// Begins to watch the cell with this root directory.
    pub(crate) fn begin(wanted: Wanted, root: impl AsFd) -> io::Result<Arc<Self>> {
        let watched = Arc::new(Self::new(wanted, root)?);
        list().add(&watched)?;
        Ok(watched)
    }

    fn new(wanted: Wanted, root: impl AsFd) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &str| openat(&root, path, flags, Mode::empty());
        Ok(Self {
            memory: wanted.memory.map(Limited::new).transpose()?,
            share: wanted.shares_user.then(Share::of_this_host),
            processes: open("proc")?,
            files: vec![open(".")?, open("dev/shm")?],
            ended: Mutex::default(),
            memory_ends: AtomicU64::new(0),
            next: Mutex::new(Instant::now()),
            still: tokio::sync::Mutex::new(false),
            counting: AtomicBool::new(false),
        })
    }

    /// Whether its processes are held still, for who has them stopped or go on. Nothing else does meanwhile.
    pub(crate) fn still(&self) -> &tokio::sync::Mutex<bool> {
        &self.still
    }

    /// Whether this process, as the cell counts, was ended for its memory. Says so once.
    pub(crate) fn has_ended(&self, pid: u32) -> bool {
        self.ended().remove(&pid)
    }

    /// Whether the whole cell was.
    pub(crate) fn has_ended_all(&self) -> bool {
        self.ended().contains(&FIRST)
    }

    /// How many processes were ended for their memory.
    pub(crate) fn memory_ends(&self) -> u64 {
        self.memory_ends.load(Ordering::Acquire)
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
        let rough = self.look_roughly().unwrap_or_default();
        let exceeded = |count| self.share.is_some_and(|share| share.may_be_exceeded_by(count));
        if rough.memory || exceeded(rough.descriptors) {
            self.count_aside();
        }
        let busy = self.rest(begin.elapsed());
        if self.memory.is_none() && !exceeded(rough.descriptors.saturating_mul(2)) {
            *self.next() = begin + SELDOM;
        }
        busy.min(QUICK)
    }

    /// Keeps away from the cell for as long as is fair after having been busy with it.
    fn rest(&self, busy: Duration) -> Duration {
        *self.next() = Instant::now() + busy.saturating_sub(QUICK) * SHARE;
        busy
    }

    fn next(&self) -> MutexGuard<'_, Instant> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all memory is added up here.
    fn counts_all(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.sockets.is_some())
    }

    /// An error means that the cell is gone.
    fn look_roughly(&self) -> io::Result<Rough> {
        let in_sockets = match &self.memory {
            Some(memory) => memory.count_sockets(&self.processes)?.total(),
            None => 0,
        };
        let mut most = Rough::default();
        let counts_all = self.counts_all();
        if let Some(memory) = self.memory.as_ref().filter(|_| !counts_all) {
            most.memory = in_sockets > memory.limit;
            if self.share.is_none() {
                return Ok(most);
            }
        }
        for _ in 0..LOOKS {
            let (mut all, mut descriptors) = (Vec::new(), 0);
            let gone = processes::each(&self.processes, |pid| {
                if counts_all {
                    let has = processes::read_roughly(&self.processes, pid);
                    all.extend(has);
                    descriptors += descriptors::count(&self.processes, pid);
                    return has.is_some();
                }
                descriptors += descriptors::count(&self.processes, pid);
                true
            })?;
            most.descriptors = most.descriptors.max(descriptors);
            if let Some(memory) = self.memory.as_ref().filter(|_| counts_all) {
                let held = in_sockets.saturating_add(at_most(descriptors));
                most.memory |= total(&all, self.used()?).saturating_add(held) > memory.limit;
            }
            if gone == 0 || most.memory {
                break;
            }
        }
        Ok(most)
    }

    /// Counts exactly on a thread of its own: code can make that slow.
    fn count_aside(self: &Arc<Self>) {
        self.counting.store(true, Ordering::Release);
        let watched = Arc::clone(self);
        let count = move || {
            let (begin, before) = (Instant::now(), watched.memory_ends());
            let _ = watched.end_what_is_too_much();
            let busy = begin.elapsed();
            watched.rest(busy);
            if watched.memory_ends() > before {
                // Where there was too much there soon is again.
                *watched.next() = Instant::now() + busy;
            }
            watched.counting.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("memory-count".to_owned()).spawn(count).is_err() {
            let _ = self.end_what_is_too_much();
            self.counting.store(false, Ordering::Release);
        }
    }

    /// Ends the largest processes when there is too much. Where what has it is another process each time, all are stopped
    /// meanwhile; and when that cannot be done, all are ended. An error means that the cell is gone.
    fn end_what_is_too_much(&self) -> io::Result<()> {
        for _ in 0..LOOKS {
            if self.end_the_largest()? {
                return Ok(());
            }
        }
        // On a thread of ours, which may wait.
        let still = self.still.blocking_lock();
        let stopped = (!*still).then(|| Stopped::all_of(&self.processes)).transpose()?;
        if !self.end_the_largest()? && !stopped.is_some_and(|stopped| stopped.is_whole()) {
            self.end_for_memory(FIRST);
        }
        Ok(())
    }

    /// `false`: some had gone before they were looked at, or before they could be ended.
    fn end_the_largest(&self) -> io::Result<bool> {
        // Meanwhile code goes on to take memory. What is not looked at in time counts for what it has at most.
        let patience = Patience::begin();
        let mut all: Vec<Has> = Vec::new();
        let counts_all = self.counts_all();
        let gone = processes::each(&self.processes, |pid| {
            // At once: what has gone by then is shared by fewer, and what it had may be another one's.
            let has = match patience.is_over() {
                _ if !counts_all => Some(Has { pid, ..Has::default() }),
                false => processes::read_exactly(&self.processes, pid),
                true => processes::read_roughly(&self.processes, pid),
            };
            all.extend(has);
            has.is_some()
        })?;
        let patience = Patience::begin();
        let enough = Share::enough(self.share);
        let open = all.iter().map(|has| Process::look(&self.processes, has.pid, patience, enough));
        let mut open: Vec<_> = open.collect();
        if let Some(share) = self.share {
            for pid in share.too_much(&open) {
                self.end(pid);
                open.retain(|process| process.pid != pid);
                all.retain(|has| has.pid != pid);
            }
        }
        let Some(memory) = &self.memory else { return Ok(true) };
        let files = if counts_all { self.used()? } else { 0 };
        let sockets = memory.count_sockets(&self.processes)?;
        if !counts_all {
            open.iter_mut().for_each(Process::sockets_alone);
        }
        // Whoever has gone hides nothing.
        open.retain(|process| processes::is_there(&self.processes, process.pid));
        charge(&mut all, &open, &sockets);
        all.sort_by_key(|has| has.all());
        let mut all_were_there = gone == 0;
        while total(&all, files) > memory.limit {
            let Some(largest) = all.pop() else { break };
            all_were_there &= self.end_for_memory(largest.pid);
        }
        Ok(all_were_there)
    }

    /// Bytes in the files of the cell.
    fn used(&self) -> io::Result<u64> {
        self.files.iter().map(processes::used).sum()
    }

    fn end_for_memory(&self, pid: u32) -> bool {
        let mut ended = self.ended();
        if ended.len() >= REMEMBERED {
            ended.pop_first();
        }
        ended.insert(pid);
        // Whoever hears of the end finds it counted.
        self.memory_ends.fetch_add(1, Ordering::AcqRel);
        let was_there = self.end(pid);
        if !was_there {
            ended.remove(&pid);
            self.memory_ends.fetch_sub(1, Ordering::AcqRel);
        }
        was_there
    }

    fn end(&self, pid: u32) -> bool {
        let process = processes::open(&self.processes, pid);
        process.is_some_and(|process| pidfd_send_signal(process, Signal::KILL).is_ok())
    }
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
    use std::fs::File;

    use super::*;

    #[test]
    fn a_cell_that_takes_long_waits_and_holds_nobody_up() {
        let host = File::open("/").unwrap();
        let domain = rustix::net::AddressFamily::NETLINK;
        let diagnosis = Some(rustix::net::netlink::SOCK_DIAG);
        let kernel = rustix::net::socket(domain, rustix::net::SocketType::RAW, diagnosis).unwrap();
        let wanted = Wanted { memory: Some((u64::MAX, Some(kernel))), shares_user: false };
        let cell = Arc::new(Watched::new(wanted, &host).unwrap());
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
}
