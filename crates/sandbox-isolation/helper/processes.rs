//! Reads processes from `/proc`.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use crate::fmt::{self, Line};
use crate::sys::{self, AT_FDCWD, ESRCH, O_DIRECTORY, O_RDONLY, Result};

/// Number of words in `/proc/PID/stat` between the parent and the number of threads.
const THREADS_AFTER_PARENT: usize = 15;

/// The state of a process at one moment.
#[derive(Clone, Copy)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// True for a zombie. A process with a running thread is none, even if its first thread has ended.
    pub dead: bool,
    /// The state letter of its first thread.
    state: u8,
}

impl Process {
    /// Returns true when the process is stopped, by a signal or by a tracer.
    pub fn is_stopped(self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// Returns true when the process is stopped, dead, or waits in the kernel, after which a pending stop takes effect.
    pub fn is_still(self) -> bool {
        self.is_stopped() || matches!(self.state, b'Z' | b'X' | b'x' | b'D')
    }
}

/// Calls `visit` with the id of every process in `/proc`.
pub fn for_each(visit: impl FnMut(i32)) -> Result<()> {
    for_each_below::<8192>(c"/proc", visit)
}

/// Calls `visit` with every number in a directory, read in chunks of `SIZE` bytes.
fn for_each_below<const SIZE: usize>(path: &CStr, mut visit: impl FnMut(i32)) -> Result<()> {
    let directory = sys::open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0)?;
    let mut place = MaybeUninit::<[u8; SIZE]>::uninit();
    let buffer = sys::scratch(&mut place);
    let outcome = loop {
        match sys::directory_entries(directory, buffer) {
            Ok(0) => break Ok(()),
            Ok(count) => {
                for name in Entries::new(&buffer[..count]) {
                    if let Some(pid) = fmt::number(name).and_then(|pid| i32::try_from(pid).ok()) {
                        visit(pid);
                    }
                }
            }
            Err(errno) => break Err(errno),
        }
    };
    sys::close(directory);
    outcome
}

/// Iterates over the names in the kernel's list of a directory.
pub struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        const LENGTH_AT: usize = 16;
        const NAME_AT: usize = 19;
        let length: [u8; 2] = self.rest.get(LENGTH_AT..LENGTH_AT + 2)?.try_into().ok()?;
        let (entry, rest) = self.rest.split_at_checked(u16::from_le_bytes(length) as usize)?;
        self.rest = rest;
        entry.get(NAME_AT..)?.split(|byte| *byte == 0).next()
    }
}

/// Returns the inode number of a process's UTS namespace: the tag of its tree. `None` when the process is dead or
/// unreadable.
pub fn tag(pid: i32) -> Option<u32> {
    let mut path = Line::<48>::new();
    path.text(b"/proc/").number(pid as u64).text(b"/ns/uts");
    tag_at(path.c_text()).or_else(|| tag_of_threads(pid))
}

/// Returns the tag of a process whose first thread has ended before the others.
fn tag_of_threads(pid: i32) -> Option<u32> {
    let mut path = Line::<48>::new();
    path.text(b"/proc/").number(pid as u64).text(b"/task");
    let mut found = None;
    let listed = for_each_below::<512>(path.c_text(), |thread| {
        if found.is_none() && thread != pid {
            let mut path = Line::<64>::new();
            path.text(b"/proc/").number(pid as u64).text(b"/task/").number(thread as u64);
            path.text(b"/ns/uts");
            found = tag_at(path.c_text());
        }
    });
    listed.ok().and(found)
}

/// Returns the tag of this process itself.
pub fn own_tag() -> Option<u32> {
    tag_at(c"/proc/self/ns/uts")
}

fn tag_at(path: &CStr) -> Option<u32> {
    let mut link = [0_u8; 32];
    let count = sys::readlink(AT_FDCWD, path, &mut link).ok()?;
    let digits = link[..count].strip_prefix(b"uts:[")?.strip_suffix(b"]")?;
    fmt::number(digits).and_then(|tag| u32::try_from(tag).ok())
}

/// Reads the state and parent of a process; `None` when there is no such process.
pub fn read(pid: i32) -> Option<Process> {
    let mut path = Line::<48>::new();
    path.text(b"/proc/").number(pid as u64).text(b"/stat");
    let mut file = [0_u8; 512];
    let stat = sys::read_file(AT_FDCWD, path.c_text(), &mut file).ok()?;
    // The name, in parentheses, may itself contain any bytes.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let mut words = stat[end + 1..].split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    let state = words.next()?;
    let parent = fmt::number(words.next()?)?;
    let threads = fmt::number(words.nth(THREADS_AFTER_PARENT)?)?;
    let dead = matches!(state, b"X" | b"x") || state == b"Z" && threads <= 1;
    Some(Process { pid, parent: parent as i32, dead, state: *state.first()? })
}

/// Returns the process id of a pidfd in this process's namespace.
pub fn pid_of(pidfd: i32) -> Option<i32> {
    let mut path = Line::<48>::new();
    path.text(b"/proc/self/fdinfo/").number(pidfd as u64);
    let mut file = [0_u8; 512];
    let info = sys::read_file(AT_FDCWD, path.c_text(), &mut file).ok()?;
    let pid = fmt::number(fmt::field(info, b"Pid:")?)?;
    i32::try_from(pid).ok().filter(|pid| *pid > 0)
}

/// Returns true when a process is dead, reaped or not.
pub fn is_dead(pidfd: i32) -> bool {
    let mut ready = [sys::Poll { fd: pidfd, events: sys::POLLIN, revents: 0 }];
    sys::poll(&mut ready, Some(0)).is_ok_and(|count| count > 0)
}

/// Returns true when a process is dead and reaped. Its process id may then be reused.
pub fn is_gone(pidfd: i32) -> bool {
    sys::pidfd_signal(pidfd, 0) == Err(ESRCH)
}
