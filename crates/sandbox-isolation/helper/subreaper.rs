//! Process trees when isolation is off.
//!
//! Each program is started below a *subreaper*, a process that adopts the orphans of its descendants. So even a daemon
//! stays a descendant of its subreaper, and the tree can be found by parents.

use crate::identity;
use crate::kill_tree::sleep_briefly;
use crate::processes::{self, Process};
use crate::protocol::stage;
use crate::roots::Root;
use crate::spawn::{self, Program, REPORT, Refusal};
use crate::sys::{self, EAGAIN, EBUSY, EINTR, Errno, Result};
use crate::wire::Reader;

/// Descriptor of the report pipe in a subreaper.
const REPORT_PIPE: i32 = 4;
const MAX_ROUNDS: u32 = 2000;
pub const MAX_PROCESSES: usize = 128 * 1024;

/// A report of a subreaper.
pub enum Report {
    Started {
        pid: i32,
    },
    Refused(Refusal),
    Exited {
        status: i32,
        user_us: u64,
        system_us: u64,
        peak_kib: u64,
    },
    /// The subreaper has ended, or sent a malformed report, which counts as its end.
    Gone,
}

const STARTED: u32 = 1;
const REFUSED: u32 = 2;
const EXITED: u32 = 3;
const REPORT_SIZE: usize = 36;

/// Reads one report from a non-blocking pipe; EAGAIN when there is none yet.
pub fn read_report(pipe: i32) -> Result<Report> {
    let mut bytes = [0_u8; REPORT_SIZE];
    match sys::read(pipe, &mut bytes) {
        Ok(REPORT_SIZE) => parse(&bytes),
        Ok(_) => Ok(Report::Gone),
        Err(EINTR) => Err(EAGAIN),
        Err(errno) => Err(errno),
    }
}

fn parse(bytes: &[u8]) -> Result<Report> {
    let mut reader = Reader::new(bytes);
    let (kind, first, second) = (reader.u32()?, reader.u32()?, reader.u32()?);
    let (user_us, system_us, peak_kib) = (reader.u64()?, reader.u64()?, reader.u64()?);
    Ok(match kind {
        STARTED => Report::Started { pid: first as i32 },
        REFUSED => Report::Refused(Refusal { errno: Errno(first as i32), stage: second }),
        EXITED => Report::Exited { status: first as i32, user_us, system_us, peak_kib },
        _ => Report::Gone,
    })
}

fn report(kind: u32, first: u32, second: u32, rest: [u64; 3]) {
    let mut bytes = [0_u8; REPORT_SIZE];
    for (place, value) in bytes.chunks_exact_mut(4).zip([kind, first, second]) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    for (place, value) in bytes[12..].chunks_exact_mut(8).zip(rest) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    let _ = sys::write(REPORT_PIPE, &bytes);
}

/// Runs a subreaper: starts the program, reports its exit, waits for all its descendants.
pub fn run(program: &Program<'_>, standard: &[i32], pipe: i32, parent: i32) -> ! {
    let outcome = prepare(pipe, parent).and_then(|()| start(program, standard));
    let child = match outcome {
        Ok(child) => child,
        Err(refusal) => {
            report(REFUSED, refusal.errno.0 as u32, refusal.stage, [0; 3]);
            sys::exit(127)
        }
    };
    // The program's descriptors must close when the program closes them, so the subreaper keeps none.
    for fd in 0..REPORT_PIPE {
        sys::close(fd);
    }
    let _ = sys::close_from(REPORT_PIPE + 1);
    report(STARTED, child as u32, 0, [0; 3]);
    loop {
        match sys::wait(0) {
            Ok(Some(death)) if death.pid == child => {
                let usage = [death.user_us, death.system_us, death.peak_kib];
                report(EXITED, death.status as u32, 0, usage);
            }
            Ok(_) | Err(EINTR) => {}
            Err(_) => sys::exit(0),
        }
    }
}

fn prepare(pipe: i32, parent: i32) -> core::result::Result<(), Refusal> {
    let at = |errno| Refusal { stage: stage::PREPARE, errno };
    sys::dup3(pipe, REPORT_PIPE, sys::O_CLOEXEC).map_err(at)?;
    identity::die_with(parent).map_err(at)?;
    identity::adopt_orphans().map_err(at)
}

/// Forks the program, and waits until it runs or is refused.
fn start(program: &Program<'_>, standard: &[i32]) -> core::result::Result<i32, Refusal> {
    let forked = |errno| Refusal { stage: stage::FORK, errno };
    let [handshake, handshake_to] = sys::pipe().map_err(forked)?;
    let subreaper = sys::getpid();
    let pid = sys::fork(0, None).map_err(forked)?;
    if pid == 0 {
        let ruleset = program.sealed.and_then(|sealing| sealing.confinement.ruleset_descriptor());
        if let Err(refusal) = spawn::place_standard(standard, handshake_to, ruleset) {
            spawn::refuse(handshake_to, &refusal);
        }
        if let Err(errno) = identity::die_with(subreaper) {
            spawn::refuse(REPORT, &Refusal { stage: stage::PREPARE, errno });
        }
        spawn::refuse(REPORT, &spawn::become_program(program))
    }
    sys::close(handshake_to);
    let mut bytes = [0_u8; 8];
    loop {
        match sys::read(handshake, &mut bytes) {
            Ok(0) => return Ok(pid),
            Err(EINTR) => {}
            _ => break,
        }
    }
    let mut reader = Reader::new(&bytes);
    let errno = Errno(reader.u32().map_err(forked)? as i32);
    Err(Refusal { errno, stage: reader.u32().map_err(forked)? })
}

/// All processes of the machine, at one moment.
pub struct Snapshot {
    table: &'static mut [Process],
    count: usize,
}

impl Snapshot {
    pub fn new() -> Result<Self> {
        // SAFETY: zero numbers and `false` are a process.
        Ok(Self { table: unsafe { sys::table(MAX_PROCESSES) }?, count: 0 })
    }

    /// Returns the number of processes.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn get(&self, at: usize) -> Process {
        self.table[at]
    }

    /// Returns the number of ancestors of a process.
    pub fn depth(&self, pid: i32) -> usize {
        let (mut at, mut depth) = (self.parent_of(pid), 0);
        while at > 1 && depth < self.count {
            (at, depth) = (self.parent_of(at), depth + 1);
        }
        depth
    }

    /// Releases the memory.
    pub fn free(self) {
        sys::unmap_table(self.table);
    }

    pub fn take(&mut self) -> Result<()> {
        self.count = 0;
        processes::for_each(|pid| {
            if let Some(process) = processes::read(pid)
                && self.count < self.table.len()
            {
                self.table[self.count] = process;
                self.count += 1;
            }
        })
    }

    fn parent_of(&self, pid: i32) -> i32 {
        let found = self.table[..self.count].iter().find(|process| process.pid == pid);
        found.map_or(0, |process| process.parent)
    }

    pub fn is_below(&self, pid: i32, ancestor: i32) -> bool {
        let mut at = self.parent_of(pid);
        for _ in 0..self.count {
            if at <= 1 || at == ancestor {
                break;
            }
            at = self.parent_of(at);
        }
        at == ancestor
    }

    /// Signals every running process below `ancestor`; returns how many there were. Skips processes for which `spare`
    /// returns true.
    pub fn signal_below(
        &mut self,
        ancestor: i32,
        signal: i32,
        spare: impl Fn(i32) -> bool,
    ) -> Result<u32> {
        self.take()?;
        let mut count = 0;
        for at in 0..self.count {
            let process = self.table[at];
            if !process.dead && self.is_below(process.pid, ancestor) && !spare(process.pid) {
                let _ = sys::kill(process.pid, signal);
                count += 1;
            }
        }
        Ok(count)
    }

    /// Kills everything below a process, after stopping it, so that no new process appears meanwhile.
    pub fn kill_below(
        &mut self,
        ancestor: i32,
        spare: impl Fn(i32) -> bool + Copy,
        mut reap: impl FnMut(),
    ) -> Result<()> {
        let mut stopped = 0;
        for _ in 0..MAX_ROUNDS {
            let now = self.signal_below(ancestor, sys::SIGSTOP, spare)?;
            if now == stopped {
                break;
            }
            stopped = now;
        }
        for _ in 0..MAX_ROUNDS {
            if self.signal_below(ancestor, sys::SIGKILL, spare)? == 0 {
                return Ok(());
            }
            reap();
            sleep_briefly();
        }
        Err(EBUSY)
    }

    /// Returns a running child of a process for which `spare` returns false.
    pub fn child_of(&mut self, parent: i32, spare: impl Fn(i32) -> bool) -> Result<Option<i32>> {
        self.take()?;
        let mut all = self.table[..self.count].iter();
        let found = all.find(|one| one.parent == parent && !one.dead && !spare(one.pid));
        Ok(found.map(|process| process.pid))
    }

    /// Kills a process and everything below it.
    pub fn kill_from(&mut self, pid: i32) -> Result<()> {
        let _ = sys::kill(pid, sys::SIGSTOP);
        let below = self.kill_below(pid, |_| false, || ());
        let _ = sys::kill(pid, sys::SIGKILL);
        below
    }

    /// Kills the tree of one root, the root last.
    pub fn kill(&mut self, root: &Root, reap: impl FnMut()) -> Result<()> {
        if root.is_adopted() && processes::is_gone(root.pidfd) {
            // Its descendants have other parents, and its process id may be reused by now.
            return Ok(());
        }
        self.kill_below(root.pid, |_| false, reap)?;
        if root.is_adopted() {
            let _ = sys::pidfd_signal(root.pidfd, sys::SIGKILL);
        } else {
            // It ends by itself, unless it was stopped.
            let _ = sys::kill(root.pid, sys::SIGCONT);
        }
        Ok(())
    }
}
