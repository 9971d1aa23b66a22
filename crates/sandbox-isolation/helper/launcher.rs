//! The launcher: forks the first process of every cell, and trusted programs beside the cells.

use core::ffi::CStr;

use crate::cell::{self, Start};
use crate::confine;
use crate::fmt::{Line, number};
use crate::gate;
use crate::identity::{self, ID_BASE, LAUNCHER_ID};
use crate::kill_tree::sleep_briefly;
use crate::protocol::{MAX_DESCRIPTORS, MAX_PACKET_SIZE, from_launcher, stage, to_launcher};
use crate::spawn::{self, Program, Refusal};
use crate::subreaper::Snapshot;
use crate::sys::{self, AT_FDCWD, EAGAIN, EINTR, EINVAL, EPERM, POLLIN, Poll, Result};
use crate::wire::{Packet, Reader, Received, receive};

/// The argument of a launcher that already has its user namespace.
const MAPPED: &CStr = c"mapped";
/// The argument of a launcher that makes only cells without isolation.
const PLAIN: &CStr = c"plain";
/// Descriptor of the launcher's socket. Standard input, output and error are `/dev/null`.
const CONTROL: i32 = 3;
const MAX_CHILDREN: usize = 32 * 1024;
/// Maximum number of trees to kill before unkillable ones are abandoned.
const MAX_KILLS: u32 = 4 * 1024;
/// Timeout for cells without isolation to clean up after the host has gone.
const CLEANUP_TIMEOUT_MS: u32 = 30_000;

const CLONE_PIDFD: usize = 0x1000;
const CLONE_NEWUSER: usize = 0x1000_0000;
/// NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWPID and NEWNET.
const CELL_NAMESPACES: usize =
    0x2_0000 | 0x200_0000 | 0x400_0000 | 0x800_0000 | 0x2000_0000 | 0x4000_0000;

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Mode {
    /// In a user namespace of its own.
    User = 0,
    Root = 1,
    /// With the rights of the host process, for cells without isolation.
    Plain = 2,
}

/// A child process of the launcher.
#[derive(Clone, Copy)]
struct Child {
    /// Zero marks a free slot.
    pid: i32,
    /// True for the first process of a cell, false for a program.
    is_cell: bool,
}

struct CellLauncher {
    mode: Mode,
    deaths: i32,
    children: &'static mut [Child],
    /// Only without isolation, where trees are found by parents.
    snapshot: Option<Snapshot>,
}

/// Runs until the socket closes.
pub fn run(argument: &CStr) -> ! {
    match start(argument) {
        Ok(mut launcher) => launcher.serve(),
        Err((step, errno)) => {
            let mut packet = Packet::new(from_launcher::FAILED);
            packet.errno(errno).put(step).put(&[0]);
            let _ = packet.send(CONTROL, None);
            sys::exit(1)
        }
    }
}

type Started<T> = core::result::Result<T, (&'static [u8], sys::Errno)>;

fn step<T>(name: &'static [u8], result: Result<T>) -> Started<T> {
    result.map_err(|errno| (name, errno))
}

fn start(argument: &CStr) -> Started<CellLauncher> {
    let mode = if argument == MAPPED {
        Mode::User
    } else {
        step(b"prepare", detach_from_host())?;
        if argument == PLAIN {
            Mode::Plain
        } else {
            raise_oom_score();
            isolating_mode()?
        }
    };
    step(b"prepare", identity::set_readable(false))?;
    let deaths = step(b"prepare", sys::child_descriptor())?;
    // SAFETY: zero is a number and `false`.
    let children = step(b"prepare", unsafe { sys::table(MAX_CHILDREN) })?;
    let mut snapshot = None;
    // Orphans of a killed program become children of this process, so that no other process can kill or reap them.
    step(b"prepare", identity::adopt_orphans())?;
    if mode == Mode::Plain {
        snapshot = Some(step(b"prepare", Snapshot::new())?);
    }
    let launcher = CellLauncher { mode, deaths, children, snapshot };
    let mut hello = Packet::new(from_launcher::HELLO);
    hello.put(&[mode as u8]).u32(confine::version());
    step(b"send the first message", hello.send(CONTROL, None))?;
    Ok(launcher)
}

/// Makes the kernel kill processes in cells before the host process and others when memory runs out, as container
/// engines do. All child processes inherit this, and only a readable process may set it.
fn raise_oom_score() {
    /// Out of 1000: equivalent to half of the host's memory.
    const SCORE: u64 = 500;
    const FILE: &CStr = c"/proc/self/oom_score_adj";
    let mut now = [0_u8; 16];
    // A kernel without this file has no such preference.
    let Ok(now) = sys::read_file(AT_FDCWD, FILE, &mut now) else { return };
    // Negative values have a sign, which does not parse as a number.
    if number(now.trim_ascii()).is_none_or(|now| now < SCORE) {
        let _ = sys::write_file(AT_FDCWD, FILE, Line::<8>::new().number(SCORE).bytes());
    }
}

fn isolating_mode() -> Started<Mode> {
    // Some containers forbid keyrings, which also holds for the cells.
    let _ = sys::new_keyring();
    if step(b"give up the root account", is_privileged_root())? {
        return Ok(Mode::Root);
    }
    enter_user_namespace()?;
    Ok(Mode::User)
}

/// Takes the socket from standard input, and leaves the host's signals and session.
fn detach_from_host() -> Result<()> {
    sys::dup3(0, CONTROL, 0)?;
    sys::dup3(1, 0, 0)?;
    sys::close_from(CONTROL + 1)?;
    sys::reset_signals();
    sys::setsid()?;
    sys::umask(0o077);
    Ok(())
}

/// Returns true when root can work without a user namespace of its own, which needs ids beyond those of accounts.
///
/// Root without CAP_SYS_ADMIN switches to an unused user: a cell must never run as the host's root.
fn is_privileged_root() -> Result<bool> {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    if sys::geteuid() != 0 {
        return Ok(false);
    }
    let privileged = sys::any_capabilities()? & CAP_SYS_ADMIN != 0;
    if sys::setresuid(ID_BASE, false).is_ok() {
        sys::setresuid(0, false)?;
        if privileged && sys::clear_groups().is_ok() {
            return Ok(true);
        }
        let id = ID_BASE + sys::getpid() as u32;
        let _ = sys::clear_groups();
        sys::setresgid(id)?;
        sys::setresuid(id, true)?;
        return Ok(false);
    }
    if maps_host_root()? { Err(EPERM) } else { Ok(false) }
}

/// Returns true when root here is the machine's root.
fn maps_host_root() -> Result<bool> {
    let mut file = [0_u8; 256];
    let map = sys::read_file(AT_FDCWD, c"/proc/self/uid_map", &mut file)?;
    let mut words = map.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (inside, outer) = (words.next().unwrap_or(b""), words.next().unwrap_or(b""));
    Ok(inside != b"0" || outer == b"0")
}

/// Makes a user namespace in which this user has every capability, and re-executes the helper inside it.
///
/// The new namespace owns the memory of the re-executed process. Only then may other programs of that namespace enter
/// cells through their first process.
fn enter_user_namespace() -> Started<()> {
    let (uid, gid) = (sys::geteuid(), sys::getegid());
    step(b"prepare", identity::set_readable(true))?;
    step(b"make a user namespace", sys::unshare(CLONE_NEWUSER))?;
    let maps = identity::map(c"/proc/self/setgroups", c"/proc/self/uid_map", LAUNCHER_ID, uid)
        .and_then(|()| identity::map(c"", c"/proc/self/gid_map", LAUNCHER_ID, gid));
    step(b"map the user", maps)?;
    step(b"keep capabilities", identity::pass_on_capabilities())?;
    let argv = [c"sandbox-launcher".as_ptr() as usize, MAPPED.as_ptr() as usize, 0];
    // SAFETY: both arrays end with a null pointer.
    let errno = unsafe { sys::execve(c"/proc/self/exe", argv.as_ptr(), argv[2..].as_ptr()) };
    Err((b"re-execute in the user namespace", errno))
}

impl CellLauncher {
    fn serve(&mut self) -> ! {
        let Ok(buffer) = sys::allocate(MAX_PACKET_SIZE) else { sys::exit(71) };
        loop {
            let mut ready = [
                Poll { fd: CONTROL, events: POLLIN, revents: 0 },
                Poll { fd: self.deaths, events: POLLIN, revents: 0 },
            ];
            match sys::poll(&mut ready, None) {
                Ok(_) => {}
                Err(EINTR) => continue,
                Err(_) => self.end(),
            }
            if ready[1].revents != 0 {
                self.reap();
            }
            if ready[0].revents != 0 {
                match receive(CONTROL, buffer) {
                    Ok(received) if !received.bytes.is_empty() => {
                        let outcome = self.answer(&received);
                        received.close_descriptors();
                        if outcome.is_err() {
                            self.end();
                        }
                    }
                    _ => self.end(),
                }
            }
        }
    }

    /// Ends the launcher, its cells and its programs after the host has gone.
    fn end(&mut self) -> ! {
        if self.snapshot.is_none() {
            for child in self.children.iter().filter(|child| child.pid != 0) {
                let _ = sys::kill(child.pid, sys::SIGKILL);
            }
            sys::exit(0)
        }
        // Cells without isolation detect the host's end themselves, and clean up.
        self.kill_all_but(|child| child.is_cell);
        for _ in 0..CLEANUP_TIMEOUT_MS {
            if !self.children.iter().any(|child| child.pid != 0) {
                break;
            }
            sleep_briefly();
            self.reap();
        }
        self.kill_all_but(|_| false);
        sys::exit(0)
    }

    fn reap(&mut self) {
        let mut drained = [0_u8; 128];
        while sys::read(self.deaths, &mut drained).is_ok() {}
        // A cell that ended by itself has left nothing behind.
        if reap_dead(self.children) {
            self.kill_all_but(|_| true);
        }
    }

    /// Without isolation, kills the trees of all children, including adopted orphans, except the launcher's own
    /// children to keep.
    fn kill_all_but(&mut self, keep: impl Fn(&Child) -> bool) {
        let own = sys::getpid();
        for _ in 0..MAX_KILLS {
            let Some(snapshot) = &mut self.snapshot else { return };
            let kept = |pid| self.children.iter().any(|child| child.pid == pid && keep(child));
            let Ok(Some(pid)) = snapshot.child_of(own, kept) else { return };
            // Orphans of this tree become children of this process, for the next round.
            let _ = snapshot.kill_from(pid);
            sleep_briefly();
            reap_dead(self.children);
        }
    }

    /// Handles a message. An error means that the message is malformed, so the socket cannot be trusted.
    fn answer(&mut self, received: &Received<'_>) -> Result<()> {
        let mut reader = Reader::new(received.bytes);
        let kind = reader.u8()?;
        let request = reader.u32()?;
        let outcome = match kind {
            to_launcher::GATE => return gate_for(&mut reader, received.descriptors()),
            to_launcher::CELL => self.cell(&mut reader, received.descriptors())?,
            to_launcher::PROCESS => self.process(&mut reader, received.descriptors())?,
            _ => return Err(EINVAL),
        };
        match outcome {
            Ok((pid, pidfd)) => {
                let mut packet = Packet::new(from_launcher::CREATED);
                packet.u32(request).u32(pid as u32);
                let sent = packet.send(CONTROL, Some(pidfd));
                sys::close(pidfd);
                sent.map(drop)
            }
            Err(refusal) => {
                let mut packet = Packet::new(from_launcher::REFUSED);
                packet.u32(request).errno(refusal.errno).u32(refusal.stage);
                packet.send(CONTROL, None).map(drop)
            }
        }
    }

    fn cell(&mut self, reader: &mut Reader<'_>, descriptors: &[i32]) -> Result<Outcome> {
        let strict = reader.u8()? != 0;
        let length = reader.u32()? as usize;
        let [control, plan, groups @ ..] = descriptors else { return Err(EINVAL) };
        let start = Start { control: *control, plan: *plan, length, groups };
        if strict == (self.mode == Mode::Plain) {
            return Err(EINVAL);
        }
        if self.is_full() {
            return Ok(Err(Refusal { stage: stage::FORK, errno: EAGAIN }));
        }
        let flags = if strict { CLONE_PIDFD | CELL_NAMESPACES } else { CLONE_PIDFD };
        let mut pidfd = -1;
        match sys::fork(flags, Some(&mut pidfd)) {
            Ok(0) => cell::run(&start, self.mode == Mode::Root, strict),
            Ok(pid) => {
                self.remember(pid, true);
                Ok(Ok((pid, pidfd)))
            }
            Err(errno) => Ok(Err(Refusal { stage: stage::FORK, errno })),
        }
    }

    fn process(&mut self, reader: &mut Reader<'_>, descriptors: &[i32]) -> Result<Outcome> {
        let in_file = reader.u8()? != 0;
        let length = reader.u32()? as usize;
        let count = reader.u32()? as usize;
        let (file, given) = descriptors.split_at_checked(usize::from(in_file)).ok_or(EINVAL)?;
        if count != given.len() || count > MAX_DESCRIPTORS {
            return Err(EINVAL);
        }
        let mut pairs = [(0, 0); MAX_DESCRIPTORS];
        for (pair, fd) in pairs.iter_mut().zip(given) {
            *pair = (*fd, i32::try_from(reader.u32()?).map_err(|_| EINVAL)?);
        }
        let payload = match file.first() {
            Some(fd) => sys::map_file(*fd, length)?,
            None => reader.take(length)?,
        };
        let outcome = self.start_program(payload, &pairs[..count]);
        if in_file {
            sys::unmap(payload);
        }
        Ok(outcome)
    }

    fn start_program(&mut self, payload: &[u8], pairs: &[(i32, i32)]) -> Outcome {
        let forked = |errno| Refusal { stage: stage::FORK, errno };
        if self.is_full() {
            return Err(forked(EAGAIN));
        }
        let [report, report_to] = sys::pipe().map_err(forked)?;
        let mut pidfd = -1;
        let launcher = sys::getpid();
        let pid = match sys::fork(CLONE_PIDFD, Some(&mut pidfd)) {
            Ok(0) => run_program(payload, pairs, report_to, launcher),
            Ok(pid) => pid,
            Err(errno) => {
                sys::close(report);
                sys::close(report_to);
                return Err(forked(errno));
            }
        };
        sys::close(report_to);
        self.remember(pid, false);
        // Only trusted code runs between here and exec: it starts the program or reports a refusal without delay.
        let mut bytes = [0_u8; 8];
        let count = sys::read(report, &mut bytes);
        sys::close(report);
        match count {
            Ok(0) => Ok((pid, pidfd)),
            Ok(8) => {
                sys::close(pidfd);
                let mut reader = Reader::new(&bytes);
                let errno = sys::Errno(reader.u32().map_err(forked)? as i32);
                Err(Refusal { stage: reader.u32().map_err(forked)?, errno })
            }
            _ => {
                let _ = sys::kill(pid, sys::SIGKILL);
                sys::close(pidfd);
                Err(forked(EINVAL))
            }
        }
    }

    fn is_full(&self) -> bool {
        self.children.iter().all(|child| child.pid != 0)
    }

    fn remember(&mut self, pid: i32, is_cell: bool) {
        if let Some(slot) = self.children.iter_mut().find(|slot| slot.pid == 0) {
            *slot = Child { pid, is_cell };
        }
    }
}

/// Reaps all dead children. Returns true if one of them may have left processes behind.
fn reap_dead(children: &mut [Child]) -> bool {
    let mut left_some = false;
    while let Ok(Some(death)) = sys::wait(sys::WNOHANG) {
        let mut cleaned_up = false;
        if let Some(child) = children.iter_mut().find(|child| child.pid == death.pid) {
            cleaned_up = child.is_cell && death.status == 0;
            child.pid = 0;
        }
        left_some |= !cleaned_up;
    }
    left_some
}

/// A new process with its pidfd, or the refusal.
type Outcome = core::result::Result<(i32, i32), Refusal>;

fn run_program(payload: &[u8], pairs: &[(i32, i32)], report: i32, launcher: i32) -> ! {
    let report = match spawn::place_numbered(pairs, report) {
        Ok(report) => report,
        Err(refusal) => spawn::refuse(report, &refusal),
    };
    if let Err(errno) = identity::die_with(launcher) {
        spawn::refuse(report, &Refusal { stage: stage::PREPARE, errno });
    }
    let program = Program { payload, flags: 0, limits: &[], sealed: None };
    spawn::refuse(report, &spawn::become_program(&program))
}

/// Opens a gate in a network namespace that does not belong to a cell.
fn gate_for(reader: &mut Reader<'_>, descriptors: &[i32]) -> Result<()> {
    let [network, answer] = *descriptors else { return Err(EINVAL) };
    let (routes, rules) = (reader.bytes()?, reader.bytes()?);
    let outcome = gate_inside(network, routes, rules);
    let errno = outcome.as_ref().err().copied().unwrap_or(sys::Errno(0));
    let sockets = outcome.as_ref().map_or(&[][..], |sockets| &sockets[..]);
    // The caller may be gone by now.
    let _ = Packet::new(0).errno(errno).send_with(answer, sockets);
    sockets.iter().for_each(|socket| sys::close(*socket));
    Ok(())
}

fn gate_inside(network: i32, routes: &[u8], rules: &[u8]) -> Result<[i32; gate::SOCKETS]> {
    const CLONE_NEWNET: usize = 0x4000_0000;
    let own = sys::open(AT_FDCWD, c"/proc/self/ns/net", sys::O_RDONLY, 0)?;
    let entered = sys::enter(network, CLONE_NEWNET);
    let outcome = entered.and_then(|_| gate::open(routes, rules));
    if entered.is_ok() && sys::enter(own, CLONE_NEWNET).is_err() {
        // The launcher must not continue in a foreign namespace: its cells would be part of it.
        sys::exit(71)
    }
    sys::close(own);
    outcome
}
