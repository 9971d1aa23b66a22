//! What keeps a program in besides the cell around it: where it may write, and which system calls it
//! may make.

use core::ffi::CStr;

use crate::arch::number as nr;
use crate::sys::{
    self, AT_FDCWD, EACCES, EINVAL, ENOENT, ENOSYS, EPERM, O_DIRECTORY, O_PATH, Result, call2, call3,
    call4,
};
use crate::wire::Reader;

/// Where a new process keeps the ruleset until its program starts.
pub const RULESET: i32 = 4;

// Calls with the same number everywhere.
const CLONE3: usize = 435;
const LANDLOCK_CREATE_RULESET: usize = 444;
const LANDLOCK_ADD_RULE: usize = 445;
const LANDLOCK_RESTRICT_SELF: usize = 446;

const PR_GET_NO_NEW_PRIVS: usize = 39;
const PR_GET_SECCOMP: usize = 21;
const SECCOMP_MODE_FILTER: usize = 2;
/// One instruction of a filter.
const INSTRUCTION: usize = 8;

/// The rights that a file can have: execute, write, read, truncate, control devices, connect.
const OF_FILES: u64 = 1 | 2 | 4 | 1 << 14 | 1 << 15 | 1 << 16;

/// The right to list a directory.
const READ_DIRECTORY: u64 = 1 << 3;

/// A place that no ruleset lets anybody write, in a directory that everybody could write otherwise.
const UNWRITABLE: &CStr = c"/.unwritable";

/// What every program of a cell gets.
#[derive(Clone, Copy)]
pub struct Confinement {
    /// A filter of system calls; empty for none.
    pub filter: &'static [u8],
    /// A ruleset of Landlock, if there is one.
    pub ruleset: Option<Ruleset>,
}

#[derive(Clone, Copy)]
pub struct Ruleset {
    descriptor: i32,
    /// It is all that there is around the program: it is about reading as well.
    alone: bool,
}

impl Ruleset {
    /// Whether it refuses what nothing else does.
    fn holds(&self) -> bool {
        if self.alone {
            // Everybody may list the root of a system, and few may write there.
            return sys::open(AT_FDCWD, c"/", O_DIRECTORY, 0) == Err(EACCES);
        }
        sys::mkdir(UNWRITABLE, 0o700) == Err(EACCES)
    }
}

impl Confinement {
    pub const NONE: Self = Self { filter: &[], ruleset: None };

    pub fn ruleset_descriptor(&self) -> Option<i32> {
        self.ruleset.map(|ruleset| ruleset.descriptor)
    }

    /// Takes effect, for good, and shows that it has. The ruleset is at [`RULESET`] by now.
    pub fn apply(&self) -> Result<()> {
        if self.ruleset.is_some() {
            call2(LANDLOCK_RESTRICT_SELF, RULESET as usize, 0)?;
        }
        if !self.filter.is_empty() {
            install(self.filter)?;
        }
        self.verify()
    }

    /// Asks the kernel for what it should refuse.
    fn verify(&self) -> Result<()> {
        let mut holds = sys::prctl(PR_GET_NO_NEW_PRIVS, 0, 0)? == 1;
        if !self.filter.is_empty() {
            // Without a filter, a kernel that has the call finds fault with its arguments.
            holds &= sys::prctl(PR_GET_SECCOMP, 0, 0)? == SECCOMP_MODE_FILTER
                && call2(CLONE3, 0, 0) == Err(ENOSYS);
        }
        if let Some(ruleset) = self.ruleset {
            holds &= ruleset.holds();
        }
        if holds { Ok(()) } else { Err(EPERM) }
    }
}

fn install(filter: &[u8]) -> Result<()> {
    const SET_MODE_FILTER: usize = 1;
    let count = filter.len() / INSTRUCTION;
    if count * INSTRUCTION != filter.len() || count > usize::from(u16::MAX) {
        return Err(EINVAL);
    }
    // On every machine that we run on, the count is the lower part of the first word.
    let program = [count, filter.as_ptr() as usize];
    call3(nr::SECCOMP, SET_MODE_FILTER, 0, program.as_ptr() as usize).map(drop)
}

/// The version of Landlock that this kernel has, 0 for none.
pub fn version() -> u32 {
    const VERSION: usize = 1;
    call3(LANDLOCK_CREATE_RULESET, 0, 0, VERSION).unwrap_or(0) as u32
}

/// Makes the ruleset that a plan describes.
pub fn ruleset(plan: &mut Reader<'_>) -> Result<Ruleset> {
    let (handled, scopes, count) = (plan.u64()?, plan.u64()?, plan.u32()?);
    // Files, network, scopes. A kernel that does not know the later ones takes them as long as they are zero.
    let attributes = [handled, 0, scopes];
    let (at, size) = (attributes.as_ptr() as usize, size_of_val(&attributes));
    let ruleset = call3(LANDLOCK_CREATE_RULESET, at, size, 0)? as i32;
    for _ in 0..count {
        let rights = plan.u64()?;
        add(ruleset, rights, plan.text()?)?;
    }
    // Out of the way of what has a number of its own.
    let descriptor = sys::dup_above(ruleset, RULESET + 1)?;
    sys::close(ruleset);
    Ok(Ruleset { descriptor, alone: handled & READ_DIRECTORY != 0 })
}

fn add(ruleset: i32, rights: u64, path: &CStr) -> Result<()> {
    const PATH_BENEATH: usize = 1;
    let place = match sys::open(AT_FDCWD, path, O_PATH, 0) {
        Ok(place) => place,
        // What is not there needs no rights.
        Err(ENOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let add = |rights: u64| {
        let rule = [rights, place as u64];
        call4(LANDLOCK_ADD_RULE, ruleset as usize, PATH_BENEATH, rule.as_ptr() as usize, 0)
    };
    let outcome = match add(rights) {
        // It is no directory, and some of the rights are for those alone.
        Err(EINVAL) => add(rights & OF_FILES),
        outcome => outcome,
    };
    sys::close(place);
    outcome.map(drop)
}
