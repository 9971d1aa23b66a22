//! The first process of a cell: sets the cell up, then starts, monitors and kills its programs.

use crate::exit_events::{
    CONTROL, answer, read_pipe, read_starts, reap, send_refusal, send_socket,
};
use crate::gate;
use crate::kill_tree;
use crate::namespaces;
use crate::pause::{PauseState, Scope};
use crate::plan::{self, Failure, Prepared};
use crate::processes;
use crate::protocol::{MAX_PACKET_SIZE, SPAWN_PAYLOAD_FILE, from_cell, stage, to_cell};
use crate::remove_dir;
use crate::roots::{MAX_ROOTS, Phase, Root, Roots};
use crate::spawn::{self, Program, REPORT, Refusal, Sealing};
use crate::subreaper::{self, Snapshot};
use crate::sys::{
    self, AT_FDCWD, EBUSY, EINTR, EINVAL, ESRCH, Errno, O_DIRECTORY, O_PATH, O_RDWR, POLLIN, Poll,
    Result,
};
use crate::wire::{Packet, Reader, Received, receive};

const PLAN: i32 = 4;
const CLONE_NEWUTS: usize = 0x400_0000;
const CLONE_NEWCGROUP: usize = 0x200_0000;

/// Initial descriptors of a cell, and the length of its plan.
pub struct Start<'a> {
    pub control: i32,
    pub plan: i32,
    pub length: usize,
    /// The `cgroup.procs` files of its control groups.
    pub groups: &'a [i32],
}

struct Cell {
    prepared: Prepared,
    deaths: i32,
    roots: Roots,
    polls: &'static mut [Poll],
    snapshot: Option<Snapshot>,
    pause_state: PauseState,
    /// The tag of this process itself, which no root may have.
    own_tag: u32,
    pid: i32,
}

/// Sets the cell up and serves it until the host closes its end of the socket.
pub fn run(start: &Start<'_>, root_mode: bool, strict: bool) -> ! {
    match set_up(start, root_mode, strict) {
        Ok(mut cell) => cell.serve(),
        Err(failure) => {
            let mut packet = Packet::new(from_cell::FAILED);
            packet.errno(failure.errno).put(failure.step);
            if !failure.detail.is_empty() {
                packet.put(b" ").put(failure.detail);
            }
            let _ = packet.put(&[0]).send(CONTROL, None);
            sys::exit(1)
        }
    }
}

fn set_up(start: &Start<'_>, root_mode: bool, strict: bool) -> core::result::Result<Cell, Failure> {
    let at = |step: &'static [u8]| move |errno| Failure { step, detail: b"", errno };
    enter_groups(start.groups).map_err(at(b"enter control groups"))?;
    let plan = take_over(start).map_err(at(b"take over"))?;
    let prepared = plan::carry_out(plan, root_mode, strict)?;
    let cell = Cell::new(prepared).map_err(at(b"prepare to serve"))?;
    cell.report_ready().map_err(at(b"report"))?;
    Ok(cell)
}

/// Enters the control groups of the cell. Inside the cell they appear as the root groups.
fn enter_groups(entrances: &[i32]) -> Result<()> {
    for entrance in entrances {
        sys::write(*entrance, b"0")?;
    }
    if entrances.is_empty() { Ok(()) } else { sys::unshare(CLONE_NEWCGROUP).map(drop) }
}

/// Keeps the socket and the plan, and closes every other descriptor of the launcher.
fn take_over(start: &Start<'_>) -> Result<&'static [u8]> {
    sys::dup3(start.control, CONTROL, sys::O_CLOEXEC)?;
    sys::dup3(start.plan, PLAN, sys::O_CLOEXEC)?;
    sys::close_from(PLAN + 1)?;
    sys::setsid()?;
    let plan = sys::map_file(PLAN, start.length)?;
    sys::close(PLAN);
    Ok(plan)
}

impl Cell {
    fn new(prepared: Prepared) -> Result<Self> {
        if prepared.strict {
            // The host's device, in a file system that is not part of the cell.
            let null = sys::open(AT_FDCWD, c"/dev/null", O_RDWR, 0)?;
            for standard in 0..3 {
                sys::dup3(null, standard, 0)?;
            }
            sys::close(null);
        }
        let own_tag = processes::own_tag().ok_or(EINVAL)?;
        Ok(Self {
            deaths: sys::child_descriptor()?,
            roots: Roots::new()?,
            // SAFETY: zero is a number.
            polls: unsafe { sys::table(MAX_ROOTS + 2) }?,
            snapshot: if prepared.strict { None } else { Some(Snapshot::new()?) },
            pause_state: PauseState::default(),
            own_tag,
            pid: sys::getpid(),
            prepared,
        })
    }

    fn report_ready(&self) -> Result<()> {
        let root = sys::open(AT_FDCWD, c"/", O_PATH | O_DIRECTORY, 0)?;
        let mut packet = Packet::new(from_cell::READY);
        packet.u32(self.prepared.outer_ids.uid).u32(self.prepared.outer_ids.gid);
        let ruleset = self.prepared.confinement.ruleset_descriptor();
        let counts = self.prepared.socket_counts;
        packet.put(&[u8::from(ruleset.is_some()), u8::from(counts.is_some())]);
        if self.prepared.strict {
            for number in namespaces::own()? {
                packet.u64(number);
            }
        }
        let mut descriptors = [root; 3 + gate::SOCKETS];
        let gate = self.prepared.gate.iter().flatten();
        let all = ruleset.iter().chain(&counts).chain(gate);
        let mut count = 1;
        for (place, descriptor) in descriptors[1..].iter_mut().zip(all) {
            *place = *descriptor;
            count += 1;
        }
        let sent = packet.send_with(CONTROL, &descriptors[..count]);
        sys::close(root);
        // Only the host keeps them: when it closes them, nothing leaves the cell.
        let given = self.prepared.gate.iter().flatten().chain(&counts);
        given.for_each(|socket| sys::close(*socket));
        sent.map(drop)
    }

    fn serve(&mut self) -> ! {
        let Ok(buffer) = sys::allocate(MAX_PACKET_SIZE) else { self.end() };
        loop {
            let count = self.fill_polls();
            match sys::poll(&mut self.polls[..count], None) {
                Ok(_) => {}
                Err(EINTR) => continue,
                Err(_) => self.end(),
            }
            let (control, deaths) = (self.polls[0].revents != 0, self.polls[1].revents != 0);
            self.read_pipes(count);
            if deaths {
                let mut drained = [0_u8; 128];
                while sys::read(self.deaths, &mut drained).is_ok() {}
                reap(&mut self.roots, self.prepared.strict);
            }
            if control {
                match receive(CONTROL, buffer) {
                    Ok(received) if !received.bytes.is_empty() => {
                        if self.handle(&received).is_err() {
                            self.end();
                        }
                    }
                    _ => self.end(),
                }
            }
        }
    }

    fn fill_polls(&mut self) -> usize {
        self.polls[0] = Poll { fd: CONTROL, events: POLLIN, revents: 0 };
        self.polls[1] = Poll { fd: self.deaths, events: POLLIN, revents: 0 };
        let mut count = 2;
        for root in self.roots.all() {
            if root.phase != Phase::Free && root.pipe != 0 {
                self.polls[count] = Poll { fd: root.pipe, events: POLLIN, revents: 0 };
                count += 1;
            }
        }
        count
    }

    fn read_pipes(&mut self, count: usize) {
        for at in 2..count {
            let ready = self.polls[at];
            if ready.revents == 0 {
                continue;
            }
            if let Some(index) = self.roots.find(|root| root.pipe == ready.fd) {
                read_pipe(&mut self.roots, index, self.prepared.strict, false);
            }
        }
    }

    /// Ends the cell after the host has gone. A strict cell ends with this process; otherwise this process cleans up
    /// first.
    fn end(&mut self) -> ! {
        if let Some(snapshot) = &mut self.snapshot {
            for index in self.roots.indices() {
                let root = *self.roots.at(index);
                if root.phase != Phase::Free && root.is_adopted() {
                    let _ = snapshot.kill(&root, || ());
                }
            }
            let subreapers = &self.roots;
            let is_subreaper = |pid| subreapers.find(|root| root.pid == pid).is_some();
            let _ = snapshot.kill_below(self.pid, is_subreaper, || {
                while let Ok(Some(_)) = sys::wait(sys::WNOHANG) {}
            });
            let _ = snapshot.kill_below(
                self.pid,
                |_| false,
                || {
                    while let Ok(Some(_)) = sys::wait(sys::WNOHANG) {}
                },
            );
        }
        if let Some((directory, path)) = self.prepared.own_directory {
            remove_dir::remove_dir(directory, path);
        }
        sys::exit(0)
    }

    /// Handles a message. An error means that the message is malformed, so the socket cannot be trusted.
    fn handle(&mut self, received: &Received<'_>) -> Result<()> {
        let mut reader = Reader::new(received.bytes);
        let kind = reader.u8()?;
        let id = reader.u32()?;
        if matches!(kind, to_cell::ADOPT | to_cell::CHECKPOINT) {
            return self.adopt(id, received.descriptors(), kind == to_cell::CHECKPOINT);
        }
        let outcome = match kind {
            to_cell::SPAWN => self.spawn(id, &mut reader, received.descriptors()),
            to_cell::SIGNAL => {
                let (root, signal) = (reader.u32()?, reader.u32()? as i32);
                let outcome = self.signal(root, signal, reader.u8()? != 0);
                answer(id, outcome.map(|()| 0))
            }
            to_cell::KILL_TREE => {
                let outcome = self.kill_tree(reader.u32()?);
                answer(id, outcome.map(u32::from))
            }
            to_cell::RESTORE => {
                let outcome = self.restore(reader.u32()?);
                answer(id, outcome)
            }
            // No process escapes: one that is being forked gets the signal before it runs.
            to_cell::END if self.prepared.strict => {
                answer(id, sys::kill(-1, sys::SIGKILL).map(|_| 0))
            }
            to_cell::SOCKET if self.prepared.strict => send_socket(id, reader.u8()? != 0),
            to_cell::FORGET => self.forget(id),
            to_cell::PAUSE => {
                let outcome = self.pause_all();
                answer(id, outcome)
            }
            to_cell::RESUME => {
                let outcome = self.resume_all();
                answer(id, outcome)
            }
            _ => Err(EINVAL),
        };
        received.close_descriptors();
        outcome
    }

    fn spawn(&mut self, id: u32, reader: &mut Reader<'_>, descriptors: &[i32]) -> Result<()> {
        let flags = reader.u32()?;
        let length = reader.u32()? as usize;
        let in_file = flags & SPAWN_PAYLOAD_FILE != 0;
        if descriptors.len() != 3 + usize::from(in_file) {
            return Err(EINVAL);
        }
        let (standard, file) = descriptors.split_at(3);
        let payload = match file.first() {
            Some(fd) => sys::map_file(*fd, length)?,
            None => reader.take(length)?,
        };
        let limits = self.prepared.limits;
        let limits = &limits[..self.prepared.limit_count];
        let (strict, confinement) = (self.prepared.strict, self.prepared.confinement);
        let sealed = Some(Sealing { strict, confinement });
        let program = Program { payload, flags, limits, sealed };
        let outcome = match self.pause_state.is_paused() {
            // A new program would run beside the paused ones.
            true => Err(EBUSY),
            false => self.fork_root(id, &program, standard),
        };
        if in_file {
            sys::unmap(payload);
        }
        match outcome {
            Ok(()) => Ok(()),
            Err(errno) => send_refusal(id, &Refusal { stage: stage::FORK, errno }),
        }
    }

    fn pause_all(&mut self) -> Result<u32> {
        self.note_adopted_deaths();
        let scope = Scope { strict: self.prepared.strict, own: self.pid, roots: &self.roots };
        self.pause_state.pause(&scope)
    }

    fn resume_all(&mut self) -> Result<u32> {
        let scope = Scope { strict: self.prepared.strict, own: self.pid, roots: &self.roots };
        self.pause_state.resume(&scope);
        Ok(0)
    }

    fn fork_root(&mut self, id: u32, program: &Program<'_>, standard: &[i32]) -> Result<()> {
        if self.roots.is_full() {
            self.forget_ended();
        }
        let [pipe, report_to] = sys::pipe()?;
        let _ = sys::set_nonblocking(pipe);
        let root = Root {
            id,
            pid: 0,
            program: 0,
            tag: 0,
            pipe,
            pidfd: 0,
            phase: Phase::Starting,
            forgotten: false,
        };
        let added = self.roots.add(root);
        let strict = self.prepared.strict;
        let forked = added.and_then(|_| sys::fork(if strict { CLONE_NEWUTS } else { 0 }, None));
        if forked == Ok(0) {
            if strict {
                run_program(program, standard, report_to)
            }
            subreaper::run(program, standard, report_to, self.pid)
        }
        sys::close(report_to);
        match (added, forked) {
            (Ok(index), Ok(pid)) => {
                self.roots.at(index).pid = pid;
                Ok(())
            }
            (Ok(index), Err(errno)) => {
                self.roots.remove(index);
                Err(errno)
            }
            (Err(errno), _) => {
                sys::close(pipe);
                Err(errno)
            }
        }
    }

    fn adopt(&mut self, id: u32, descriptors: &[i32], is_checkpoint: bool) -> Result<()> {
        let [pidfd] = *descriptors else { return Err(EINVAL) };
        let outcome = if is_checkpoint {
            self.add_checkpoint(id, pidfd)
        } else {
            self.adopt_process(id, pidfd)
        };
        if outcome.is_err() {
            sys::close(pidfd);
        }
        let mut packet = Packet::new(from_cell::ADOPTED);
        packet.u32(id).errno(outcome.err().unwrap_or(Errno(0)));
        packet.send(CONTROL, None).map(drop)
    }

    fn adopt_process(&mut self, id: u32, pidfd: i32) -> Result<()> {
        if self.roots.is_full() {
            self.forget_ended();
        }
        let pid = processes::pid_of(pidfd).ok_or(ESRCH)?;
        let tag = if self.prepared.strict { self.take_tag(pid)? } else { 0 };
        let phase = Phase::Running;
        let root = Root { id, pid, program: pid, tag, pipe: 0, pidfd, phase, forgotten: false };
        self.roots.add(root).map(drop)
    }

    /// Returns the tag of a process, and reserves it for the tree of that process.
    fn take_tag(&mut self, pid: i32) -> Result<u32> {
        let tag = processes::tag(pid).ok_or(ESRCH)?;
        self.note_adopted_deaths();
        // A dead process has freed its tag even before it is reaped, which may never happen: its parent may be dead as
        // well.
        for root in self.roots.all().iter_mut().filter(|root| root.tag == tag) {
            if root.phase == Phase::Running && root.is_adopted() && processes::is_dead(root.pidfd) {
                root.phase = Phase::Dead;
            }
        }
        // Without a tag of its own its tree cannot be told from others.
        let taken = self.roots.find(|root| root.tag == tag && root.phase != Phase::Dead);
        if tag == self.own_tag || taken.is_some() {
            return Err(EINVAL);
        }
        self.roots.retire_tag(tag);
        Ok(tag)
    }

    /// Registers a waiting process. It has the tag of the tree it came from, which becomes its own when it is restored
    /// and that tree has ended.
    fn add_checkpoint(&mut self, id: u32, pidfd: i32) -> Result<()> {
        if !self.prepared.strict {
            return Err(EINVAL);
        }
        if self.roots.is_full() {
            self.forget_ended();
        }
        let pid = processes::pid_of(pidfd).ok_or(ESRCH)?;
        if self.roots.find(|root| root.pid == pid && root.phase != Phase::Dead).is_some() {
            return Err(EINVAL);
        }
        let (phase, forgotten) = (Phase::Checkpoint, false);
        let root = Root { id, pid, program: pid, tag: 0, pipe: 0, pidfd, phase, forgotten };
        self.roots.add(root).map(drop)
    }

    fn restore(&mut self, id: u32) -> Result<u32> {
        let index = self.roots.by_id(id).ok_or(ESRCH)?;
        let root = *self.roots.at(index);
        let process = processes::read(root.pid).ok_or(ESRCH)?;
        // This process reports its exit, so it must be a child of this process: the processes it came from are dead.
        if root.phase != Phase::Checkpoint
            || processes::is_gone(root.pidfd)
            || process.parent != self.pid
        {
            return Err(EINVAL);
        }
        let tag = self.take_tag(root.pid)?;
        let root = self.roots.at(index);
        sys::close(root.pidfd);
        (root.pidfd, root.tag, root.phase) = (0, tag, Phase::Running);
        Ok(root.pid as u32)
    }

    fn signal(&mut self, id: u32, signal: i32, whole_tree: bool) -> Result<()> {
        read_starts(&mut self.roots, self.prepared.strict);
        let index = self.roots.by_id(id).ok_or(ESRCH)?;
        let root = *self.roots.at(index);
        if whole_tree {
            let count = match &mut self.snapshot {
                None if root.tag == 0 => 0,
                None => kill_tree::signal(&self.roots, root.tag, signal)?,
                Some(_) if root.is_adopted() && processes::is_gone(root.pidfd) => 0,
                Some(snapshot) => {
                    let below = snapshot.signal_below(root.pid, signal, |_| false)?;
                    let own = root.is_adopted() && sys::pidfd_signal(root.pidfd, signal).is_ok();
                    below + u32::from(own)
                }
            };
            return if count == 0 { Err(ESRCH) } else { Ok(()) };
        }
        if root.is_adopted() {
            return sys::pidfd_signal(root.pidfd, signal).map(drop);
        }
        if root.phase == Phase::Dead || root.program == 0 {
            return Err(ESRCH);
        }
        sys::kill(root.program, signal).map(drop)
    }

    fn kill_tree(&mut self, id: u32) -> Result<bool> {
        let strict = self.prepared.strict;
        read_starts(&mut self.roots, strict);
        let index = self.roots.by_id(id).ok_or(ESRCH)?;
        self.note_adopted_deaths();
        if self.roots.at(index).phase == Phase::Starting && strict {
            // The tag of a root must be known before its tree can be killed.
            let _ = sys::kill(self.roots.at(index).pid, sys::SIGKILL);
            read_pipe(&mut self.roots, index, strict, true);
        }
        let root = *self.roots.at(index);
        if root.phase == Phase::Free {
            return Ok(false);
        }
        match &mut self.snapshot {
            None => kill_tree::kill(&mut self.roots, index, &mut |roots| reap(roots, true)),
            Some(snapshot) => {
                if !root.is_adopted() && root.phase == Phase::Dead {
                    return Ok(false);
                }
                let roots = &mut self.roots;
                snapshot.kill(&root, || reap(roots, false)).map(|()| false)
            }
        }
    }

    fn forget(&mut self, id: u32) -> Result<()> {
        if let Some(index) = self.roots.by_id(id) {
            self.note_adopted_deaths();
            let strict = self.prepared.strict;
            let root = self.roots.at(index);
            if root.phase == Phase::Checkpoint {
                let _ = sys::pidfd_signal(root.pidfd, sys::SIGKILL);
                self.roots.remove(index);
                return Ok(());
            }
            root.forgotten = true;
            if root.phase == Phase::Dead && !strict {
                self.roots.remove(index);
            }
        }
        Ok(())
    }

    fn forget_ended(&mut self) {
        self.note_adopted_deaths();
        if self.prepared.strict {
            kill_tree::forget_ended(&mut self.roots);
        }
    }

    /// Marks adopted processes that have ended. They are not children of this process, so no signal reports their end.
    fn note_adopted_deaths(&mut self) {
        for root in self.roots.all() {
            if root.phase == Phase::Running && root.is_adopted() && processes::is_gone(root.pidfd) {
                root.phase = Phase::Dead;
            }
        }
    }
}

/// Runs in the new process of a strict cell until it executes the program.
fn run_program(program: &Program<'_>, standard: &[i32], report_to: i32) -> ! {
    let ruleset = program.sealed.and_then(|sealing| sealing.confinement.ruleset_descriptor());
    if let Err(refusal) = spawn::place_standard(standard, report_to, ruleset) {
        spawn::refuse(report_to, &refusal);
    }
    match processes::own_tag() {
        Some(tag) => {
            let _ = sys::write(REPORT, &tag.to_le_bytes());
        }
        None => spawn::refuse(REPORT, &Refusal { stage: stage::PREPARE, errno: ESRCH }),
    }
    spawn::refuse(REPORT, &spawn::become_program(program))
}
