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

use self::accounting::{Process, Share, charge, max_kernel_memory};
use self::processes::{FIRST, MemoryUse, read, total};
use self::scan_budget::ScanBudget;
use self::sockets::{SocketUsage, Sockets};
use self::stop_guard::StopGuard;

mod accounting;
mod descriptors;
pub(crate) mod processes;
mod scan_budget;
mod sockets;
mod stop_guard;

/// How often memory is added up.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Adding up may take that part of the time, so that many large processes do not keep a processor busy.
const IDLE_RATIO: u32 = 10;

/// A cell that takes longer than this to look at waits alone for what it took more, so that none keeps the others from
/// being looked at.
const QUICK_SCAN: Duration = Duration::from_millis(1);

/// How often a cell is looked at in a row. One process can follow another so quickly that its number leads nowhere by the
/// time it is read, or by the time it is to be ended.
const SCAN_ATTEMPTS: usize = 4;

/// Ended processes that nobody has asked about. Who does not ask in time is not told.
const MAX_ENDED_RECORDS: usize = 1024;

/// Where only what is counted for the user is looked at, that is enough; a cell that could have too much is looked at as
/// often as others.
const SHARED_USER_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// What may wait in sockets for interfaces where a control group counts all else, in bytes. An answer takes a few thousand.
const MAX_NETLINK_MEMORY: u64 = 8 << 20;

/// What is watched of a cell.
#[derive(Debug)]
pub(crate) struct MonitorSpec {
    /// Its limit of memory, and the socket by which the kernel tells of its sockets. Without one, a control group keeps the
    /// limit, and only what waits in sockets for interfaces is counted.
    pub(crate) memory: Option<(u64, Option<OwnedFd>)>,
    /// Its user is a user of the host.
    pub(crate) shares_user: bool,
}

/// A cell whose memory is added up, or what the kernel counts for its user, or both.
#[derive(Debug)]
pub(crate) struct MemoryMonitor {
    memory: Option<MemoryLimit>,
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
    paused: tokio::sync::Mutex<bool>,
    /// Its memory is being counted exactly, by a thread of its own.
    counting: AtomicBool,
}

/// A limit of memory, in bytes, and the way to ask for sockets; none where those for interfaces alone count.
#[derive(Debug)]
struct MemoryLimit {
    limit: u64,
    sockets: Option<Sockets>,
}

impl MemoryLimit {
    fn new((limit, kernel): (u64, Option<OwnedFd>)) -> io::Result<Self> {
        let sockets = kernel.map(Sockets::new).transpose()?;
        let limit = if sockets.is_some() { limit } else { limit.min(MAX_NETLINK_MEMORY) };
        Ok(Self { limit, sockets })
    }

    fn count_sockets(&self, processes: &OwnedFd) -> io::Result<SocketUsage> {
        match &self.sockets {
            Some(sockets) => sockets.count(processes),
            None => Ok(sockets::count_netlink(processes)),
        }
    }
}

/// What a cell has at most.
#[derive(Clone, Copy, Debug, Default)]
struct UsageEstimate {
    /// It has more memory than its limit.
    memory: bool,
    /// Its descriptors, of which several can be the same.
    descriptors: u64,
}

impl MemoryMonitor {
    /// Begins to watch the cell with this root directory.
    pub(crate) fn start(spec: MonitorSpec, root: impl AsFd) -> io::Result<Arc<Self>> {
        let watched = Arc::new(Self::new(spec, root)?);
        list().add(&watched)?;
        Ok(watched)
    }

    fn new(spec: MonitorSpec, root: impl AsFd) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &str| openat(&root, path, flags, Mode::empty());
        Ok(Self {
            memory: spec.memory.map(MemoryLimit::new).transpose()?,
            share: spec.shares_user.then(Share::for_this_host),
            processes: open("proc")?,
            files: vec![open(".")?, open("dev/shm")?],
            ended: Mutex::default(),
            memory_ends: AtomicU64::new(0),
            next: Mutex::new(Instant::now()),
            paused: tokio::sync::Mutex::new(false),
            counting: AtomicBool::new(false),
        })
    }

    /// Whether its processes are held still, for who has them stopped or go on. Nothing else does meanwhile.
    pub(crate) fn paused(&self) -> &tokio::sync::Mutex<bool> {
        &self.paused
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
    fn poll(self: &Arc<Self>) -> Duration {
        let begin = Instant::now();
        if *self.next() > begin || self.counting.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        // What is gone is no longer held by its handle, and so leaves the list.
        let rough = self.estimate().unwrap_or_default();
        let exceeded = |count| self.share.is_some_and(|share| share.may_be_exceeded_by(count));
        if rough.memory || exceeded(rough.descriptors) {
            self.enforce_in_background();
        }
        let busy = self.rest(begin.elapsed());
        if self.memory.is_none() && !exceeded(rough.descriptors.saturating_mul(2)) {
            *self.next() = begin + SHARED_USER_POLL_INTERVAL;
        }
        busy.min(QUICK_SCAN)
    }

    /// Keeps away from the cell for as long as is fair after having been busy with it.
    fn rest(&self, busy: Duration) -> Duration {
        *self.next() = Instant::now() + busy.saturating_sub(QUICK_SCAN) * IDLE_RATIO;
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
    fn estimate(&self) -> io::Result<UsageEstimate> {
        let in_sockets = match &self.memory {
            Some(memory) => memory.count_sockets(&self.processes)?.total(),
            None => 0,
        };
        let mut most = UsageEstimate::default();
        let counts_all = self.counts_all();
        if let Some(memory) = self.memory.as_ref().filter(|_| !counts_all) {
            most.memory = in_sockets > memory.limit;
            if self.share.is_none() {
                return Ok(most);
            }
        }
        for _ in 0..SCAN_ATTEMPTS {
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
                let held = in_sockets.saturating_add(max_kernel_memory(descriptors));
                most.memory |= total(&all, self.used()?).saturating_add(held) > memory.limit;
            }
            if gone == 0 || most.memory {
                break;
            }
        }
        Ok(most)
    }

    /// Counts exactly on a thread of its own: code can make that slow.
    fn enforce_in_background(self: &Arc<Self>) {
        self.counting.store(true, Ordering::Release);
        let watched = Arc::clone(self);
        let count = move || {
            let (begin, before) = (Instant::now(), watched.memory_ends());
            let _ = watched.enforce();
            let busy = begin.elapsed();
            watched.rest(busy);
            if watched.memory_ends() > before {
                // Where there was too much there soon is again.
                *watched.next() = Instant::now() + busy;
            }
            watched.counting.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("memory-count".to_owned()).spawn(count).is_err() {
            let _ = self.enforce();
            self.counting.store(false, Ordering::Release);
        }
    }

    /// Ends the largest processes when there is too much. Where what has it is another process each time, all are stopped
    /// meanwhile; and when that cannot be done, all are ended. An error means that the cell is gone.
    fn enforce(&self) -> io::Result<()> {
        for _ in 0..SCAN_ATTEMPTS {
            if self.end_the_largest()? {
                return Ok(());
            }
        }
        // On a thread of ours, which may wait.
        let paused = self.paused.blocking_lock();
        let stopped = (!*paused).then(|| StopGuard::stop_all(&self.processes)).transpose()?;
        if !self.end_the_largest()? && !stopped.is_some_and(|stopped| stopped.is_whole()) {
            self.end_for_memory(FIRST);
        }
        Ok(())
    }

    /// `false`: some had gone before they were looked at, or before they could be ended.
    fn end_the_largest(&self) -> io::Result<bool> {
        // Meanwhile code goes on to take memory. What is not looked at in time counts for what it has at most.
        let budget = ScanBudget::start();
        let mut all: Vec<MemoryUse> = Vec::new();
        let counts_all = self.counts_all();
        let gone = processes::each(&self.processes, |pid| {
            // At once: what has gone by then is shared by fewer, and what it had may be another one's.
            let has = match budget.is_spent() {
                _ if !counts_all => Some(MemoryUse { pid, ..MemoryUse::default() }),
                false => processes::read_exactly(&self.processes, pid),
                true => processes::read_roughly(&self.processes, pid),
            };
            all.extend(has);
            has.is_some()
        })?;
        let budget = ScanBudget::start();
        let max_watches = Share::max_watches_counted(self.share);
        let open =
            all.iter().map(|has| Process::scan(&self.processes, has.pid, budget, max_watches));
        let mut open: Vec<_> = open.collect();
        if let Some(share) = self.share {
            for pid in share.select_excess(&open) {
                self.end(pid);
                open.retain(|process| process.pid != pid);
                all.retain(|has| has.pid != pid);
            }
        }
        let Some(memory) = &self.memory else { return Ok(true) };
        let files = if counts_all { self.used()? } else { 0 };
        let sockets = memory.count_sockets(&self.processes)?;
        if !counts_all {
            open.iter_mut().for_each(Process::keep_sockets_only);
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
        if ended.len() >= MAX_ENDED_RECORDS {
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
    cells: Vec<Weak<MemoryMonitor>>,
    running: bool,
}

static LIST: Mutex<List> = Mutex::new(List { cells: Vec::new(), running: false });

fn list() -> MutexGuard<'static, List> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

impl List {
    fn add(&mut self, watched: &Arc<MemoryMonitor>) -> io::Result<()> {
        if !self.running {
            thread::Builder::new().name("memory-watch".to_owned()).spawn(run)?;
            self.running = true;
        }
        self.cells.push(Arc::downgrade(watched));
        Ok(())
    }

    /// The next time's work; `None` when there is no more.
    fn next(&mut self) -> Option<Vec<Weak<MemoryMonitor>>> {
        self.cells.retain(|cell| cell.strong_count() > 0);
        self.running = !self.cells.is_empty();
        self.running.then(|| self.cells.clone())
    }
}

fn run() {
    loop {
        let Some(cells) = list().next() else { return };
        let cells = cells.iter().filter_map(Weak::upgrade);
        let busy: Duration = cells.map(|cell| cell.poll()).sum();
        thread::sleep(POLL_INTERVAL.max(busy * IDLE_RATIO));
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
        let spec = MonitorSpec { memory: Some((u64::MAX, Some(kernel))), shares_user: false };
        let cell = Arc::new(MemoryMonitor::new(spec, &host).unwrap());
        cell.rest(QUICK_SCAN);
        assert!(*cell.next() <= Instant::now(), "as often as any other");
        let second = Duration::from_secs(1);
        cell.rest(second);
        assert!(*cell.next() > Instant::now() + second * (IDLE_RATIO - 1));
        let next = *cell.next();
        assert_eq!(cell.poll(), Duration::ZERO);
        assert_eq!(*cell.next(), next, "it was not looked at");
        *cell.next() = Instant::now();
        let busy = cell.poll();
        assert!(!busy.is_zero() && busy <= QUICK_SCAN, "{busy:?}");
    }
}
