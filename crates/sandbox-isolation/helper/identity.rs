//! Identity of a cell: its ids outside, its user namespace, and dropping every privilege.

use core::ffi::CStr;

use crate::confine::Confinement;
use crate::fmt::{self, Line};
use crate::sys::{self, AT_FDCWD, EINVAL, ENOENT, EPERM, Limit, Result};

/// Host ids of cells made by root are this number plus the host's process id of the cell's first process.
pub const ID_BASE: u32 = 0x7000_0000;

/// The user and group of a launcher in its own user namespace.
///
/// Not 0: the kernel gives `/proc` entries of an unreadable process to id 0 of the namespace that owns its memory. A
/// first process has the launcher's memory, so if id 0 there were this user, which is also the user of the cell's code,
/// code could open such entries.
pub const LAUNCHER_ID: u32 = 1;

const CLONE_NEWUSER: usize = 0x1000_0000;
const PR_SET_PDEATHSIG: usize = 1;
const PR_SET_DUMPABLE: usize = 4;
const PR_CAPBSET_DROP: usize = 24;
const PR_SET_SECUREBITS: usize = 28;
const PR_SET_CHILD_SUBREAPER: usize = 36;
const PR_SET_NO_NEW_PRIVS: usize = 38;
const PR_CAP_AMBIENT: usize = 47;
const CAP_AMBIENT_RAISE: usize = 2;
const CAP_AMBIENT_CLEAR_ALL: usize = 4;
const RLIMIT_NPROC: u32 = 6;
const RLIMIT_NOFILE: u32 = 7;

/// CAP_SYS_ADMIN, held by a cell's first process, and only in the cell's own user namespace. It serves to give each
/// process tree a UTS namespace of its own, the tag that identifies the tree.
const TAGGING: u64 = 1 << 21;

/// The ids of a cell as numbered in its launcher's user namespace.
#[derive(Clone, Copy)]
pub struct OuterIds {
    pub uid: u32,
    pub gid: u32,
    /// True when they differ from the launcher's.
    pub change: bool,
}

impl OuterIds {
    /// The launcher's own ids.
    pub const LAUNCHER: Self = Self { uid: LAUNCHER_ID, gid: LAUNCHER_ID, change: false };
}

/// Chooses the ids of this cell.
///
/// A cell made by root gets ids that no account uses: a base plus the host's process id of its first process. No two
/// running cells of a machine can have the same, and no table is needed.
pub fn outer_ids(root_mode: bool) -> Result<OuterIds> {
    if !root_mode {
        return Ok(OuterIds::LAUNCHER);
    }
    let mut digits = [0_u8; 16];
    let count = sys::readlink(AT_FDCWD, c"/proc/self", &mut digits)?;
    let pid = fmt::number(&digits[..count]).ok_or(EINVAL)? as u32;
    let id = ID_BASE.checked_add(pid).ok_or(EINVAL)?;
    Ok(OuterIds { uid: id, gid: id, change: true })
}

/// Maximum number of inotify instances of a cell, and of their watches together.
const MAX_INOTIFY_INSTANCES: &[u8] = b"32";
const MAX_INOTIFY_WATCHES: &[u8] = b"16384";

/// Switches to `uid` and `gid` in a new user namespace, in which no nested one can be made.
///
/// Mounts still belong to the outer namespace, so nothing inside can undo them.
pub fn assume(outer_ids: OuterIds, uid: u32, gid: u32, sysctl: i32) -> Result<()> {
    // The soft limit at this point limits all processes of the new namespace together; programs get the cell's own
    // limit.
    raise(RLIMIT_NPROC)?;
    raise(RLIMIT_NOFILE)?;
    // Refused in a container that forbids keyrings; then code inside has none either.
    let _ = sys::new_keyring();
    if outer_ids.change {
        sys::setresgid(outer_ids.gid)?;
        sys::setresuid(outer_ids.uid, true)?;
    }
    // Without this, /proc/self belongs to root and the maps cannot be written.
    sys::prctl(PR_SET_DUMPABLE, 1, 0)?;
    sys::unshare(CLONE_NEWUSER)?;
    map(c"/proc/self/setgroups", c"/proc/self/uid_map", uid, outer_ids.uid)?;
    map(c"", c"/proc/self/gid_map", gid, outer_ids.gid)?;
    // A nested user namespace would give capabilities back, and expose much of the kernel.
    sys::write_file(sysctl, c"user/max_user_namespaces", b"0")?;
    // These also count towards the limits of the host user, and could use them up. A kernel without these settings has
    // no such limits.
    for (setting, most) in [
        (c"user/max_inotify_instances", MAX_INOTIFY_INSTANCES),
        (c"user/max_inotify_watches", MAX_INOTIFY_WATCHES),
    ] {
        match sys::write_file(sysctl, setting, most) {
            Ok(_) | Err(ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    sys::close(sysctl);
    Ok(())
}

/// Maps one id; denies `setgroups` first when its path is given.
pub fn map(setgroups: &CStr, path: &CStr, inside: u32, outer: u32) -> Result<()> {
    if !setgroups.is_empty() {
        sys::write_file(AT_FDCWD, setgroups, b"deny")?;
    }
    let mut line = Line::<64>::new();
    line.number(u64::from(inside)).text(b" ").number(u64::from(outer)).text(b" 1\n");
    sys::write_file(AT_FDCWD, path, line.bytes()).map(drop)
}

/// Drops every privilege but [`TAGGING`] permanently, and verifies it.
pub fn seal() -> Result<()> {
    // No core dump may contain this process or its children.
    sys::write_file(AT_FDCWD, c"/proc/self/coredump_filter", b"0")?;
    sys::prctl(PR_CAP_AMBIENT, CAP_AMBIENT_CLEAR_ALL, 0)?;
    drop_bounding_set()?;
    sys::prctl(PR_SET_SECUREBITS, SECUREBITS, 0)?;
    sys::set_capabilities(TAGGING, 0)?;
    sys::prctl(PR_SET_NO_NEW_PRIVS, 1, 0)?;
    sys::prctl(PR_SET_DUMPABLE, 0, 0)?;
    // After the last change of ids, because that would reset it.
    sys::prctl(PR_SET_PDEATHSIG, sys::SIGKILL as usize, 0)?;
    verify()
}

/// NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE, all locked, and KEEP_CAPS locked off.
const SECUREBITS: usize = 0b1110_1111;

fn drop_bounding_set() -> Result<()> {
    for capability in 0..64 {
        match sys::prctl(PR_CAPBSET_DROP, capability, 0) {
            Ok(_) => {}
            // Past the last capability this kernel knows.
            Err(EINVAL) if capability > 30 => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Checks field by field that the kernel reports the intended state.
fn verify() -> Result<()> {
    let mut place = core::mem::MaybeUninit::<[u8; 4096]>::uninit();
    let status = sys::read_file(AT_FDCWD, c"/proc/self/status", sys::scratch(&mut place))?;
    let hex = |name: &[u8]| fmt::field(status, name).and_then(fmt::hexadecimal);
    let holds = hex(b"CapEff:") == Some(TAGGING)
        && hex(b"CapPrm:") == Some(TAGGING)
        && hex(b"CapBnd:") == Some(0)
        && hex(b"CapInh:") == Some(0)
        && hex(b"CapAmb:") == Some(0)
        && fmt::field(status, b"NoNewPrivs:").and_then(fmt::number) == Some(1)
        && sys::geteuid() != 0
        && sys::getegid() != 0;
    if holds { Ok(()) } else { Err(EPERM) }
}

/// Isolation off: adopts orphans, forbids other processes to read this one, ignores set-user-id files.
pub fn seal_off() -> Result<()> {
    raise(RLIMIT_NOFILE)?;
    sys::prctl(PR_SET_CHILD_SUBREAPER, 1, 0)?;
    sys::prctl(PR_SET_NO_NEW_PRIVS, 1, 0)?;
    sys::prctl(PR_SET_DUMPABLE, 0, 0).map(drop)
}

/// Drops the last capability before a program starts, confines the process, and verifies both.
pub fn seal_program(strict: bool, confinement: &Confinement) -> Result<()> {
    if strict {
        sys::set_capabilities(0, 0)?;
        if sys::any_capabilities()? != 0 {
            return Err(EPERM);
        }
    }
    confinement.apply()
}

/// Makes this process die with its parent; fails when the parent is already gone.
pub fn die_with(parent: i32) -> Result<()> {
    sys::prctl(PR_SET_PDEATHSIG, sys::SIGKILL as usize, 0)?;
    if sys::getppid() == parent { Ok(()) } else { Err(sys::ESRCH) }
}

/// Makes orphans below this process its children.
pub fn adopt_orphans() -> Result<()> {
    sys::prctl(PR_SET_CHILD_SUBREAPER, 1, 0).map(drop)
}

/// Lets programs keep every capability of this process, which is not root in its namespace.
pub fn pass_on_capabilities() -> Result<()> {
    let all = sys::any_capabilities()?;
    sys::set_capabilities(all, all)?;
    for capability in (0..64).filter(|capability| all & 1 << capability != 0) {
        match sys::prctl(PR_CAP_AMBIENT, CAP_AMBIENT_RAISE, capability) {
            Ok(_) => {}
            // Past the last capability this kernel knows.
            Err(EINVAL) if capability > 30 => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Sets whether other processes of the same user may inspect this process.
pub fn set_readable(readable: bool) -> Result<()> {
    sys::prctl(PR_SET_DUMPABLE, usize::from(readable), 0).map(drop)
}

fn raise(resource: u32) -> Result<()> {
    let now = sys::limit(resource, None)?;
    let hard = now.hard;
    if now.soft != hard {
        sys::limit(resource, Some(&Limit { soft: hard, hard }))?;
    }
    Ok(())
}
