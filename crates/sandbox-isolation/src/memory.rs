//! Limits the memory of a whole cell where no control group does: a thread adds up the memory of its processes ten
//! times a second, and kills the largest.
//!
//! Between two scans a single process cannot exceed the limit, because the kernel limits each process. If processes
//! exit before they can be killed, and leave their memory to the next ones, all are stopped and scanned then. The sum
//! contains private memory; shared memory or files, whichever is larger, because mapped files would count twice, with
//! each process charged its share; and memory that the kernel holds for processes: data in sockets and pipes, and epoll
//! watches.
//!
//! The kernel counts pipes and epoll watches per user of the host. Where the cell runs as such a user, the same thread
//! leaves some of that quota to the user's other processes.

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

/// Interval between two scans.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Idle time per scan time, so that many large processes do not keep a processor busy.
const IDLE_RATIO: u32 = 10;

/// A scan within this time is not throttled. Time beyond it delays only the next scan of the same cell, not those of
/// other cells.
const QUICK_SCAN: Duration = Duration::from_millis(1);

/// Maximum number of consecutive scans. Processes can succeed each other so quickly that a process id is stale by the
/// time it is read or killed.
const SCAN_ATTEMPTS: usize = 4;

/// Maximum number of records of killed processes whose exit no caller has asked about; older ones are dropped.
const MAX_ENDED_RECORDS: usize = 1024;

/// Interval between scans that only check the quota of the user; a cell that may be close to it is scanned more often.
const SHARED_USER_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Limit on data in netlink sockets where a control group counts everything else, in bytes. An answer takes a few
/// thousand.
const MAX_NETLINK_MEMORY: u64 = 8 << 20;

/// Resources of a cell to monitor.
#[derive(Debug)]
pub(crate) struct MonitorSpec {
    /// The cell's memory limit, and the socket that lists the cell's sockets. Without that socket, a control group
    /// enforces the limit, and only data in netlink sockets is counted.
    pub(crate) memory: Option<(u64, Option<OwnedFd>)>,
    /// True when the cell runs as a user of the host.
    pub(crate) shares_user: bool,
}

/// Monitors the memory of a cell, its use of the user's quota, or both.
#[derive(Debug)]
pub(crate) struct MemoryMonitor {
    memory: Option<MemoryLimit>,
    share: Option<Share>,
    processes: OwnedFd,
    /// The in-memory file systems of the cell.
    files: Vec<OwnedFd>,
    ended: Mutex<BTreeSet<u32>>,
    /// Number of processes killed for the memory limit.
    memory_ends: AtomicU64,
    /// Earliest time of the next scan.
    next: Mutex<Instant>,
    /// True while the cell is paused. Locked while processes are being stopped, so that each returns to its previous
    /// state.
    paused: tokio::sync::Mutex<bool>,
    /// True while a thread of its own measures the memory exactly.
    counting: AtomicBool,
}

/// A memory limit, in bytes, and the source of socket memory; `None` where only netlink sockets count.
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

/// Upper bounds of a cell's use.
#[derive(Clone, Copy, Debug, Default)]
struct UsageEstimate {
    /// True when the bound exceeds the memory limit.
    memory: bool,
    /// Number of descriptors, duplicates included.
    descriptors: u64,
}

impl MemoryMonitor {
    /// Starts monitoring the cell with this root directory.
    pub(crate) fn start(spec: MonitorSpec, root: impl AsFd) -> io::Result<Arc<Self>> {
        let monitor = Arc::new(Self::new(spec, root)?);
        list().add(&monitor)?;
        Ok(monitor)
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

    /// Returns the paused state, locked by pause and resume. The monitor stops no process while it is locked.
    pub(crate) fn paused(&self) -> &tokio::sync::Mutex<bool> {
        &self.paused
    }

    /// Returns whether this process, by its id in the cell, was killed for the memory limit. Returns true once per
    /// process.
    pub(crate) fn has_ended(&self, pid: u32) -> bool {
        self.ended().remove(&pid)
    }

    /// Returns whether the whole cell was killed.
    pub(crate) fn has_ended_all(&self) -> bool {
        self.ended().contains(&FIRST)
    }

    /// Returns the number of processes killed for the memory limit.
    pub(crate) fn memory_ends(&self) -> u64 {
        self.memory_ends.load(Ordering::Acquire)
    }

    fn ended(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Scans the cell if a scan is due. Returns the time that the scan took, up to [`QUICK_SCAN`].
    fn poll(self: &Arc<Self>) -> Duration {
        let started = Instant::now();
        if *self.next() > started || self.counting.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        // An error means that the cell has ended; its handle drops the monitor, which then leaves the list.
        let estimate = self.estimate().unwrap_or_default();
        let exceeded = |count| self.share.is_some_and(|share| share.may_be_exceeded_by(count));
        if estimate.memory || exceeded(estimate.descriptors) {
            self.enforce_in_background();
        }
        let busy = self.throttle(started.elapsed());
        if self.memory.is_none() && !exceeded(estimate.descriptors.saturating_mul(2)) {
            *self.next() = started + SHARED_USER_POLL_INTERVAL;
        }
        busy.min(QUICK_SCAN)
    }

    /// Schedules the next scan in proportion to the time of this one.
    fn throttle(&self, busy: Duration) -> Duration {
        *self.next() = Instant::now() + busy.saturating_sub(QUICK_SCAN) * IDLE_RATIO;
        busy
    }

    fn next(&self) -> MutexGuard<'_, Instant> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true when the monitor counts all memory, not only netlink sockets.
    fn counts_all(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.sockets.is_some())
    }

    /// Computes upper bounds cheaply. An error means that the cell is gone.
    fn estimate(&self) -> io::Result<UsageEstimate> {
        let in_sockets = match &self.memory {
            Some(memory) => memory.count_sockets(&self.processes)?.total(),
            None => 0,
        };
        let mut max = UsageEstimate::default();
        let counts_all = self.counts_all();
        if let Some(memory) = self.memory.as_ref().filter(|_| !counts_all) {
            max.memory = in_sockets > memory.limit;
            if self.share.is_none() {
                return Ok(max);
            }
        }
        for _ in 0..SCAN_ATTEMPTS {
            let (mut all, mut descriptors) = (Vec::new(), 0);
            let gone = processes::for_each(&self.processes, |pid| {
                if counts_all {
                    let has = processes::read_estimate(&self.processes, pid);
                    all.extend(has);
                    descriptors += descriptors::count(&self.processes, pid);
                    return has.is_some();
                }
                descriptors += descriptors::count(&self.processes, pid);
                true
            })?;
            max.descriptors = max.descriptors.max(descriptors);
            if let Some(memory) = self.memory.as_ref().filter(|_| counts_all) {
                let held = in_sockets.saturating_add(max_kernel_memory(descriptors));
                max.memory |= total(&all, self.file_bytes()?).saturating_add(held) > memory.limit;
            }
            if gone == 0 || max.memory {
                break;
            }
        }
        Ok(max)
    }

    /// Measures exactly and enforces the limit on a thread of its own: code can make that slow.
    fn enforce_in_background(self: &Arc<Self>) {
        self.counting.store(true, Ordering::Release);
        let monitor = Arc::clone(self);
        let count = move || {
            let (started, before) = (Instant::now(), monitor.memory_ends());
            let _ = monitor.enforce();
            let busy = started.elapsed();
            monitor.throttle(busy);
            if monitor.memory_ends() > before {
                // A cell that exceeded its limit will soon do so again.
                *monitor.next() = Instant::now() + busy;
            }
            monitor.counting.store(false, Ordering::Release);
        };
        if thread::Builder::new().name("memory-count".to_owned()).spawn(count).is_err() {
            let _ = self.enforce();
            self.counting.store(false, Ordering::Release);
        }
    }

    /// Kills the largest processes while the limit is exceeded. If processes succeed each other too quickly, all are
    /// stopped first; if that fails, the whole cell is killed. An error means that the cell is gone.
    fn enforce(&self) -> io::Result<()> {
        for _ in 0..SCAN_ATTEMPTS {
            if self.kill_largest()? {
                return Ok(());
            }
        }
        // This thread may block.
        let paused = self.paused.blocking_lock();
        let stopped = (!*paused).then(|| StopGuard::stop_all(&self.processes)).transpose()?;
        if !self.kill_largest()? && !stopped.is_some_and(|stopped| stopped.is_complete()) {
            self.kill_for_memory(FIRST);
        }
        Ok(())
    }

    /// Kills the largest processes. Returns false if some exited before they could be scanned or killed.
    fn kill_largest(&self) -> io::Result<bool> {
        // Code allocates more memory meanwhile. Processes that are not scanned in time count by their upper bounds.
        let budget = ScanBudget::start();
        let mut all: Vec<MemoryUse> = Vec::new();
        let counts_all = self.counts_all();
        let gone = processes::for_each(&self.processes, |pid| {
            // Read at once: later, exited processes would share memory with fewer others, and a process id could be
            // reused.
            let has = match budget.is_spent() {
                _ if !counts_all => Some(MemoryUse { pid, ..MemoryUse::default() }),
                false => processes::read_exact_use(&self.processes, pid),
                true => processes::read_estimate(&self.processes, pid),
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
                self.kill(pid);
                open.retain(|process| process.pid != pid);
                all.retain(|has| has.pid != pid);
            }
        }
        let Some(memory) = &self.memory else { return Ok(true) };
        let files = if counts_all { self.file_bytes()? } else { 0 };
        let sockets = memory.count_sockets(&self.processes)?;
        if !counts_all {
            open.iter_mut().for_each(Process::keep_sockets_only);
        }
        // A process that has exited hides nothing.
        open.retain(|process| processes::exists(&self.processes, process.pid));
        charge(&mut all, &open, &sockets);
        all.sort_by_key(|has| has.all());
        let mut all_were_there = gone == 0;
        while total(&all, files) > memory.limit {
            let Some(largest) = all.pop() else { break };
            all_were_there &= self.kill_for_memory(largest.pid);
        }
        Ok(all_were_there)
    }

    /// Returns the bytes in the cell's in-memory files.
    fn file_bytes(&self) -> io::Result<u64> {
        self.files.iter().map(processes::used_bytes).sum()
    }

    fn kill_for_memory(&self, pid: u32) -> bool {
        let mut ended = self.ended();
        if ended.len() >= MAX_ENDED_RECORDS {
            ended.pop_first();
        }
        ended.insert(pid);
        // Counted first, so that a caller that learns of the exit finds the kill counted.
        self.memory_ends.fetch_add(1, Ordering::AcqRel);
        let was_there = self.kill(pid);
        if !was_there {
            ended.remove(&pid);
            self.memory_ends.fetch_sub(1, Ordering::AcqRel);
        }
        was_there
    }

    fn kill(&self, pid: u32) -> bool {
        let process = processes::open(&self.processes, pid);
        process.is_some_and(|process| pidfd_send_signal(process, Signal::KILL).is_ok())
    }
}

/// All monitored cells. One thread serves them while there are any.
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
    fn add(&mut self, monitor: &Arc<MemoryMonitor>) -> io::Result<()> {
        if !self.running {
            thread::Builder::new().name("memory-watch".to_owned()).spawn(run)?;
            self.running = true;
        }
        self.cells.push(Arc::downgrade(monitor));
        Ok(())
    }

    /// Returns the cells to scan; `None` when none is left.
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
    fn a_slow_scan_delays_only_its_own_cell() {
        let host = File::open("/").unwrap();
        let domain = rustix::net::AddressFamily::NETLINK;
        let diagnosis = Some(rustix::net::netlink::SOCK_DIAG);
        let kernel = rustix::net::socket(domain, rustix::net::SocketType::RAW, diagnosis).unwrap();
        let spec = MonitorSpec { memory: Some((u64::MAX, Some(kernel))), shares_user: false };
        let cell = Arc::new(MemoryMonitor::new(spec, &host).unwrap());
        cell.throttle(QUICK_SCAN);
        assert!(*cell.next() <= Instant::now(), "a quick scan is not throttled");
        let second = Duration::from_secs(1);
        cell.throttle(second);
        assert!(*cell.next() > Instant::now() + second * (IDLE_RATIO - 1));
        let next = *cell.next();
        assert_eq!(cell.poll(), Duration::ZERO);
        assert_eq!(*cell.next(), next, "it was not scanned");
        *cell.next() = Instant::now();
        let busy = cell.poll();
        assert!(!busy.is_zero() && busy <= QUICK_SCAN, "{busy:?}");
    }
}
