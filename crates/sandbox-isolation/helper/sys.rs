//! Wrappers of the system calls that the helper uses.
//!
//! The helper is one thread without an allocator. Descriptors are plain numbers; comments state which function closes
//! them where it matters.

use core::ffi::CStr;
use core::mem::MaybeUninit;

pub use crate::arch::{O_DIRECTORY, O_NOFOLLOW};
use crate::arch::{number as nr, syscall};

/// An error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

pub type Result<T = usize> = core::result::Result<T, Errno>;

pub const EPERM: Errno = Errno(1);
pub const ENOENT: Errno = Errno(2);
pub const ESRCH: Errno = Errno(3);
pub const EINTR: Errno = Errno(4);
pub const EAGAIN: Errno = Errno(11);
pub const EACCES: Errno = Errno(13);
pub const EBUSY: Errno = Errno(16);
pub const EEXIST: Errno = Errno(17);
pub const ENOTDIR: Errno = Errno(20);
pub const EINVAL: Errno = Errno(22);
pub const ENOSYS: Errno = Errno(38);
pub const EOPNOTSUPP: Errno = Errno(95);
pub const ESTALE: Errno = Errno(116);

pub const AT_FDCWD: i32 = -100;
pub const O_RDONLY: usize = 0;
pub const O_WRONLY: usize = 1;
pub const O_RDWR: usize = 2;
pub const O_CREAT: usize = 0o100;
pub const O_EXCL: usize = 0o200;
pub const O_NONBLOCK: usize = 0o4000;
pub const O_CLOEXEC: usize = 0o2_000_000;
pub const O_PATH: usize = 0o10_000_000;
pub const SIGKILL: i32 = 9;
pub const SIGCHLD: i32 = 17;
pub const SIGCONT: i32 = 18;
pub const SIGSTOP: i32 = 19;
pub const POLLIN: i16 = 1;
pub const WNOHANG: usize = 1;

// Calls with the same number on every architecture.
const PIDFD_SEND_SIGNAL: usize = 424;
const CLOSE_RANGE: usize = 436;
const OPENAT2: usize = 437;

pub fn call(number: usize, arguments: [usize; 6]) -> Result {
    // SAFETY: every wrapper below passes numbers, or pointers to live memory of the size it states.
    let result = unsafe { syscall(number, arguments) };
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

fn call1(number: usize, a: usize) -> Result {
    call(number, [a, 0, 0, 0, 0, 0])
}

pub fn call2(number: usize, a: usize, b: usize) -> Result {
    call(number, [a, b, 0, 0, 0, 0])
}

pub fn call3(number: usize, a: usize, b: usize, c: usize) -> Result {
    call(number, [a, b, c, 0, 0, 0])
}

pub fn call4(number: usize, a: usize, b: usize, c: usize, d: usize) -> Result {
    call(number, [a, b, c, d, 0, 0])
}

pub fn address(text: &CStr) -> usize {
    text.as_ptr() as usize
}

pub fn exit(status: i32) -> ! {
    loop {
        let _ = call1(nr::EXIT_GROUP, status as usize);
    }
}

pub fn read(fd: i32, buffer: &mut [u8]) -> Result {
    call3(nr::READ, fd as usize, buffer.as_mut_ptr() as usize, buffer.len())
}

pub fn write(fd: i32, bytes: &[u8]) -> Result {
    call3(nr::WRITE, fd as usize, bytes.as_ptr() as usize, bytes.len())
}

pub fn close(fd: i32) {
    let _ = call1(nr::CLOSE, fd as usize);
}

/// Closes every descriptor from `first` on.
pub fn close_from(first: i32) -> Result {
    call3(CLOSE_RANGE, first as usize, u32::MAX as usize, 0)
}

/// Marks every descriptor to be closed when a program starts.
pub fn close_all_on_exec() -> Result {
    const CLOSE_RANGE_CLOEXEC: usize = 4;
    call3(CLOSE_RANGE, 0, u32::MAX as usize, CLOSE_RANGE_CLOEXEC)
}

/// Allocates zeroed memory, which costs nothing until it is touched. It lives as long as the process unless it is
/// unmapped.
pub fn allocate(bytes: usize) -> Result<&'static mut [u8]> {
    const READ_WRITE: usize = 3;
    const PRIVATE_ANONYMOUS_NORESERVE: usize = 0x4022;
    let at = call(nr::MMAP, [0, bytes, READ_WRITE, PRIVATE_ANONYMOUS_NORESERVE, usize::MAX, 0])?;
    // SAFETY: the kernel gave this new, zeroed range to this call only.
    Ok(unsafe { core::slice::from_raw_parts_mut(at as *mut u8, bytes) })
}

/// Allocates a table of `count` zeroed entries.
///
/// # Safety
/// All zero bytes must be a value of `T`.
pub unsafe fn table<T>(count: usize) -> Result<&'static mut [T]> {
    let memory = allocate(count * size_of::<T>())?;
    // SAFETY: pages are aligned for any type; zero is a value by the caller's guarantee.
    Ok(unsafe { core::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), count) })
}

/// Maps `length` bytes of a file for reading.
pub fn map_file<'a>(fd: i32, length: usize) -> Result<&'a [u8]> {
    const PRIVATE: usize = 2;
    if length == 0 {
        return Ok(&[]);
    }
    let at = call(nr::MMAP, [0, length, 1, PRIVATE, fd as usize, 0])?;
    // SAFETY: the kernel mapped this range; the sender of the file has sealed or finished it.
    Ok(unsafe { core::slice::from_raw_parts(at as *const u8, length) })
}

/// Unmaps a [`table`].
pub fn unmap_table<T>(table: &'static mut [T]) {
    let _ = call2(nr::MUNMAP, table.as_ptr() as usize, size_of_val(table));
}

/// Unmaps memory of [`map_file`] or [`allocate`]. The caller must hold no other reference to it.
pub fn unmap(memory: &[u8]) {
    let _ = call2(nr::MUNMAP, memory.as_ptr() as usize, memory.len());
}

/// Resets every signal to its default action and unblocks all.
pub fn reset_signals() {
    let default = [0_u64; 4];
    for signal in 1..=64 {
        let _ = call4(nr::RT_SIGACTION, signal, default.as_ptr() as usize, 0, 8);
    }
    let _ = set_signal_mask(0);
}

pub fn set_signal_mask(mask: u64) -> Result {
    const SIG_SETMASK: usize = 2;
    call4(nr::RT_SIGPROCMASK, SIG_SETMASK, &raw const mask as usize, 0, 8)
}

/// Makes a descriptor that is readable when a child has died; the signal itself is blocked.
pub fn child_descriptor() -> Result<i32> {
    let mask = 1_u64 << (SIGCHLD - 1);
    set_signal_mask(mask)?;
    let flags = O_CLOEXEC | O_NONBLOCK;
    call4(nr::SIGNALFD4, usize::MAX, &raw const mask as usize, 8, flags).map(|fd| fd as i32)
}

pub fn ioctl(fd: i32, request: usize, argument: usize) -> Result {
    call3(nr::IOCTL, fd as usize, request, argument)
}

pub fn getpid() -> i32 {
    call1(nr::GETPID, 0).unwrap_or(0) as i32
}

pub fn getppid() -> i32 {
    call1(nr::GETPPID, 0).unwrap_or(0) as i32
}

pub fn geteuid() -> u32 {
    call1(nr::GETEUID, 0).unwrap_or(usize::MAX) as u32
}

pub fn getegid() -> u32 {
    call1(nr::GETEGID, 0).unwrap_or(usize::MAX) as u32
}

/// Sets the effective user id, and with `all` the real and saved ones too.
pub fn setresuid(id: u32, all: bool) -> Result {
    let other = if all { id as usize } else { usize::MAX };
    call3(nr::SETRESUID, other, id as usize, other)
}

pub fn setresgid(id: u32) -> Result {
    call3(nr::SETRESGID, id as usize, id as usize, id as usize)
}

pub fn clear_groups() -> Result {
    call2(nr::SETGROUPS, 0, 0)
}

pub fn setsid() -> Result {
    call1(nr::SETSID, 0)
}

pub fn umask(mask: usize) {
    let _ = call1(nr::UMASK, mask);
}

pub fn prctl(option: usize, a: usize, b: usize) -> Result {
    call(nr::PRCTL, [option, a, b, 0, 0, 0])
}

pub fn kill(pid: i32, signal: i32) -> Result {
    call2(nr::KILL, pid as isize as usize, signal as usize)
}

pub fn pidfd_signal(pidfd: i32, signal: i32) -> Result {
    call4(PIDFD_SEND_SIGNAL, pidfd as usize, signal as usize, 0, 0)
}

/// Forks with clone flags; stores a pidfd if CLONE_PIDFD is among them.
pub fn fork(flags: usize, pidfd: Option<&mut i32>) -> Result<i32> {
    let place = pidfd.map_or(0, |place| &raw mut *place as usize);
    call(nr::CLONE, [flags | SIGCHLD as usize, 0, place, 0, 0, 0]).map(|pid| pid as i32)
}

/// Enters a namespace of that kind.
pub fn enter(namespace: i32, kind: usize) -> Result {
    call2(nr::SETNS, namespace as usize, kind)
}

pub fn unshare(flags: usize) -> Result {
    call1(nr::UNSHARE, flags)
}

/// The kernel's report of a dead child.
#[derive(Clone, Copy)]
pub struct ChildExit {
    pub pid: i32,
    pub status: i32,
    pub user_us: u64,
    pub system_us: u64,
    pub peak_kib: u64,
}

/// Reaps one dead child; `None` when none is dead yet, ECHILD when there are no children.
pub fn wait(flags: usize) -> Result<Option<ChildExit>> {
    let mut status = 0_i32;
    let mut usage = [0_i64; 18];
    let pid =
        call4(nr::WAIT4, usize::MAX, &raw mut status as usize, flags, usage.as_mut_ptr() as usize)?;
    if pid == 0 {
        return Ok(None);
    }
    Ok(Some(ChildExit {
        pid: pid as i32,
        status,
        user_us: (usage[0] * 1_000_000 + usage[1]) as u64,
        system_us: (usage[2] * 1_000_000 + usage[3]) as u64,
        peak_kib: usage[4] as u64,
    }))
}

/// Starts a program; returns only on failure.
///
/// # Safety
/// `argv` and `env` must be null-terminated arrays of texts.
pub unsafe fn execve(path: &CStr, argv: *const usize, env: *const usize) -> Errno {
    match call3(nr::EXECVE, address(path), argv as usize, env as usize) {
        Err(errno) => errno,
        Ok(_) => EINVAL,
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Poll {
    pub fd: i32,
    pub events: i16,
    pub revents: i16,
}

/// Waits until a descriptor is ready, or for some microseconds.
pub fn poll(fds: &mut [Poll], microseconds: Option<u32>) -> Result {
    const SECOND: u32 = 1_000_000;
    let time = microseconds.map(|us| [i64::from(us / SECOND), i64::from(us % SECOND) * 1000]);
    let time = time.as_ref().map_or(0, |time| time.as_ptr() as usize);
    call(nr::PPOLL, [fds.as_mut_ptr() as usize, fds.len(), time, 0, 8, 0])
}

pub fn dup3(from: i32, to: i32, flags: usize) -> Result {
    call3(nr::DUP3, from as usize, to as usize, flags)
}

/// Copies a descriptor to the first free number from `minimum` on.
pub fn dup_above(fd: i32, minimum: i32) -> Result<i32> {
    const F_DUPFD_CLOEXEC: usize = 1030;
    call3(nr::FCNTL, fd as usize, F_DUPFD_CLOEXEC, minimum as usize).map(|fd| fd as i32)
}

pub fn pipe() -> Result<[i32; 2]> {
    let mut ends = [0_i32; 2];
    call2(nr::PIPE2, ends.as_mut_ptr() as usize, O_CLOEXEC)?;
    Ok(ends)
}

pub fn set_nonblocking(fd: i32) -> Result {
    const F_SETFL: usize = 4;
    call3(nr::FCNTL, fd as usize, F_SETFL, O_NONBLOCK)
}

/// A soft and a hard limit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Limit {
    pub soft: u64,
    pub hard: u64,
}

pub fn limit(resource: u32, new: Option<&Limit>) -> Result<Limit> {
    let mut old = Limit { soft: 0, hard: 0 };
    let new = new.map_or(0, |limit| &raw const *limit as usize);
    call4(nr::PRLIMIT64, 0, resource as usize, new, &raw mut old as usize)?;
    Ok(old)
}

pub fn open(dir: i32, path: &CStr, flags: usize, mode: u32) -> Result<i32> {
    let flags = flags | O_CLOEXEC;
    call4(nr::OPENAT, dir as usize, address(path), flags, mode as usize).map(|fd| fd as i32)
}

/// Opens a path below `root` as if `root` were `/`: its links cannot leave.
pub fn open_inside(root: i32, path: &CStr) -> Result<i32> {
    const RESOLVE_IN_ROOT: u64 = 0x10;
    let how = [(O_PATH | O_CLOEXEC) as u64, 0, RESOLVE_IN_ROOT];
    call4(OPENAT2, root as usize, address(path), how.as_ptr() as usize, size_of_val(&how))
        .map(|fd| fd as i32)
}

/// Opens a path below `root` that has no links.
pub fn open_exactly(root: i32, path: &CStr) -> Result<i32> {
    const IN_ROOT_NO_SYMLINKS: u64 = 0x10 | 0x04;
    let how = [(O_PATH | O_CLOEXEC) as u64, 0, IN_ROOT_NO_SYMLINKS];
    call4(OPENAT2, root as usize, address(path), how.as_ptr() as usize, size_of_val(&how))
        .map(|fd| fd as i32)
}

/// Returns the identity of a file: major and minor number of its device, and its inode number.
pub fn identity(fd: i32) -> Result<(u32, u32, u64)> {
    const AT_EMPTY_PATH: usize = 0x1000;
    const STATX_INO: usize = 0x100;
    let mut found = [0_u64; 32];
    let (path, at) = (address(c""), found.as_mut_ptr() as usize);
    call(nr::STATX, [fd as usize, path, AT_EMPTY_PATH, STATX_INO, at, 0])?;
    // Two halves of a word, the lower one first on every supported machine.
    Ok((found[17] as u32, (found[17] >> 32) as u32, found[4]))
}

pub fn mkdir(path: &CStr, mode: u32) -> Result {
    call3(nr::MKDIRAT, AT_FDCWD as usize, address(path), mode as usize)
}

pub fn symlink(target: &CStr, path: &CStr) -> Result {
    call3(nr::SYMLINKAT, address(target), AT_FDCWD as usize, address(path))
}

pub fn unlink(dir: i32, path: &CStr, directory: bool) -> Result {
    const AT_REMOVEDIR: usize = 0x200;
    let flags = if directory { AT_REMOVEDIR } else { 0 };
    call3(nr::UNLINKAT, dir as usize, address(path), flags)
}

pub fn rename(from: i32, path: &CStr, to: i32, new: &CStr) -> Result {
    call(nr::RENAMEAT2, [from as usize, address(path), to as usize, address(new), 0, 0])
}

pub fn chmod(dir: i32, path: &CStr, mode: u32) -> Result {
    call3(nr::FCHMODAT, dir as usize, address(path), mode as usize)
}

pub fn chown(path: &CStr, uid: u32, gid: u32) -> Result {
    let (uid, gid) = (uid as usize, gid as usize);
    call(nr::FCHOWNAT, [AT_FDCWD as usize, address(path), uid, gid, 0, 0])
}

pub fn readlink(dir: i32, path: &CStr, buffer: &mut [u8]) -> Result {
    let at = buffer.as_mut_ptr() as usize;
    call4(nr::READLINKAT, dir as usize, address(path), at, buffer.len())
}

pub fn chdir(path: &CStr) -> Result {
    call1(nr::CHDIR, address(path))
}

pub fn directory_entries(fd: i32, buffer: &mut [u8]) -> Result {
    call3(nr::GETDENTS64, fd as usize, buffer.as_mut_ptr() as usize, buffer.len())
}

/// Reads a small file, up to the size of the buffer.
pub fn read_file<'a>(dir: i32, path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
    let fd = open(dir, path, O_RDONLY, 0)?;
    let mut length = 0;
    let outcome = loop {
        match read(fd, &mut buffer[length..]) {
            Ok(0) => break Ok(()),
            Ok(n) => length += n,
            Err(EINTR) => {}
            Err(errno) => break Err(errno),
        }
        if length == buffer.len() {
            break Ok(());
        }
    };
    close(fd);
    outcome.map(|()| &buffer[..length])
}

/// Writes a small kernel file in one call.
pub fn write_file(dir: i32, path: &CStr, contents: &[u8]) -> Result {
    let fd = open(dir, path, O_WRONLY, 0)?;
    let outcome = write(fd, contents);
    close(fd);
    outcome
}

pub fn set_hostname(name: &[u8]) -> Result {
    call2(nr::SETHOSTNAME, name.as_ptr() as usize, name.len())
}

pub fn socket(family: usize, kind: usize, protocol: usize) -> Result<i32> {
    call3(nr::SOCKET, family, kind | O_CLOEXEC, protocol).map(|fd| fd as i32)
}

/// Sets a socket option that is a number.
pub fn set_option(socket: i32, level: usize, option: usize, value: i32) -> Result {
    let at = &raw const value as usize;
    call(nr::SETSOCKOPT, [socket as usize, level, option, at, size_of::<i32>(), 0])
}

pub fn bind(socket: i32, address: &[u8]) -> Result {
    call3(nr::BIND, socket as usize, address.as_ptr() as usize, address.len())
}

pub fn listen(socket: i32, backlog: usize) -> Result {
    call2(nr::LISTEN, socket as usize, backlog)
}

/// Leaves the session keyring inherited from the host process.
pub fn new_keyring() -> Result {
    const KEYCTL_JOIN_SESSION_KEYRING: usize = 1;
    call2(nr::KEYCTL, KEYCTL_JOIN_SESSION_KEYRING, 0)
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Sets the effective and permitted capabilities, and the inheritable ones.
pub fn set_capabilities(set: u64, inheritable: u64) -> Result {
    let header = [CAPABILITY_VERSION_3, 0];
    let (low, high) = (set as u32, (set >> 32) as u32);
    let (low_inherited, high_inherited) = (inheritable as u32, (inheritable >> 32) as u32);
    let data = [low, low, low_inherited, high, high, high_inherited];
    call2(nr::CAPSET, header.as_ptr() as usize, data.as_ptr() as usize)
}

/// Returns the union of the effective, permitted and inheritable capabilities.
pub fn any_capabilities() -> Result<u64> {
    let header = [CAPABILITY_VERSION_3, 0];
    let mut data = [0_u32; 6];
    call2(nr::CAPGET, header.as_ptr() as usize, data.as_mut_ptr() as usize)?;
    let low = data[0] | data[1] | data[2];
    let high = data[3] | data[4] | data[5];
    Ok(u64::from(high) << 32 | u64::from(low))
}

pub(crate) fn raw_message(number: Message, fd: i32, header: *mut u8, flags: usize) -> Result {
    let number = match number {
        Message::Send => nr::SENDMSG,
        Message::Receive => nr::RECVMSG,
    };
    call3(number, fd as usize, header as usize, flags)
}

/// Direction of a message.
pub enum Message {
    Send,
    Receive,
}

/// Returns stack memory without clearing it first.
pub fn scratch<const N: usize>(place: &mut MaybeUninit<[u8; N]>) -> &mut [u8; N] {
    // SAFETY: any bytes are a value of a byte array; callers read only what a call wrote.
    unsafe { place.assume_init_mut() }
}
