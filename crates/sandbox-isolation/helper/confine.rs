//! Confinement of a program besides the cell around it: where it may write, and which system calls it may make.

use core::ffi::CStr;

use crate::arch::number as nr;
use crate::sys::{
    self, AT_FDCWD, EACCES, EINVAL, ENOENT, ENOSYS, EPERM, O_DIRECTORY, O_PATH, Result, call2,
    call3, call4,
};
use crate::wire::Reader;

/// Descriptor of the ruleset in a new process, until its program starts.
pub const RULESET: i32 = 4;

// Calls with the same number on every architecture.
const CLONE3: usize = 435;
const LANDLOCK_CREATE_RULESET: usize = 444;
const LANDLOCK_ADD_RULE: usize = 445;
const LANDLOCK_RESTRICT_SELF: usize = 446;

const PR_GET_NO_NEW_PRIVS: usize = 39;
const PR_GET_SECCOMP: usize = 21;
const SECCOMP_MODE_FILTER: usize = 2;
/// Size of one instruction of a filter.
const INSTRUCTION: usize = 8;

/// Rights that apply to files: execute, write, read, truncate, control devices, connect.
const OF_FILES: u64 = 1 | 2 | 4 | 1 << 14 | 1 << 15 | 1 << 16;

/// The right to list a directory.
const READ_DIRECTORY: u64 = 1 << 3;

/// A path that every ruleset forbids to create, in a directory that is otherwise writable.
const UNWRITABLE: &CStr = c"/.unwritable";

/// Confinement of every program of a cell.
#[derive(Clone, Copy)]
pub struct Confinement {
    /// The system call filter; empty for none.
    pub filter: &'static [u8],
    /// The Landlock ruleset, if there is one.
    pub ruleset: Option<Ruleset>,
}

#[derive(Clone, Copy)]
pub struct Ruleset {
    descriptor: i32,
    /// True when only the ruleset protects files: it then covers reading as well.
    exclusive: bool,
}

impl Ruleset {
    /// Tests that the ruleset refuses an access that only it can refuse.
    fn holds(&self) -> bool {
        if self.exclusive {
            // Without a ruleset every user may list the root directory, while few may write there.
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

    /// Applies the confinement permanently, and verifies it. The ruleset is already at [`RULESET`].
    pub fn apply(&self) -> Result<()> {
        if self.ruleset.is_some() {
            call2(LANDLOCK_RESTRICT_SELF, RULESET as usize, 0)?;
        }
        if !self.filter.is_empty() {
            install(self.filter)?;
        }
        self.verify()
    }

    /// Tests calls that the kernel must refuse.
    fn verify(&self) -> Result<()> {
        let mut holds = sys::prctl(PR_GET_NO_NEW_PRIVS, 0, 0)? == 1;
        if !self.filter.is_empty() {
            // Without a filter, a kernel with this call returns an error about its arguments.
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
    // On every supported machine, the count is the lower part of the first word.
    let program = [count, filter.as_ptr() as usize];
    call3(nr::SECCOMP, SET_MODE_FILTER, 0, program.as_ptr() as usize).map(drop)
}

/// Returns this kernel's Landlock version, 0 for none.
pub fn version() -> u32 {
    const VERSION: usize = 1;
    call3(LANDLOCK_CREATE_RULESET, 0, 0, VERSION).unwrap_or(0) as u32
}

/// Makes the ruleset of a plan.
pub fn ruleset(plan: &mut Reader<'_>) -> Result<Ruleset> {
    let (handled, scopes, count) = (plan.u64()?, plan.u64()?, plan.u32()?);
    // Files, network, scopes. A kernel without the later ones accepts them while they are zero.
    let attributes = [handled, 0, scopes];
    let (at, size) = (attributes.as_ptr() as usize, size_of_val(&attributes));
    let ruleset = call3(LANDLOCK_CREATE_RULESET, at, size, 0)? as i32;
    for _ in 0..count {
        let rights = plan.u64()?;
        add(ruleset, rights, plan.text()?)?;
    }
    // Above the descriptors that have fixed numbers.
    let descriptor = sys::dup_above(ruleset, RULESET + 1)?;
    sys::close(ruleset);
    Ok(Ruleset { descriptor, exclusive: handled & READ_DIRECTORY != 0 })
}

fn add(ruleset: i32, rights: u64, path: &CStr) -> Result<()> {
    const PATH_BENEATH: usize = 1;
    let place = match sys::open(AT_FDCWD, path, O_PATH, 0) {
        Ok(place) => place,
        // A missing path needs no rights.
        Err(ENOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let add = |rights: u64| {
        let rule = [rights, place as u64];
        call4(LANDLOCK_ADD_RULE, ruleset as usize, PATH_BENEATH, rule.as_ptr() as usize, 0)
    };
    let outcome = match add(rights) {
        // The path is not a directory, and some of the rights apply only to directories.
        Err(EINVAL) => add(rights & OF_FILES),
        outcome => outcome,
    };
    sys::close(place);
    outcome.map(drop)
}
