//! Starts programs: the steps of the new process between fork and exec.

use core::ffi::CStr;

use crate::confine::{Confinement, RULESET};
use crate::identity;
use crate::protocol::{MAX_DESCRIPTORS, SPAWN_TERMINAL, stage};
use crate::sys::{self, AT_FDCWD, EACCES, EINVAL, ENOENT, ENOTDIR, Errno, Limit, O_RDWR, Result};
use crate::wire::Reader;

/// Descriptor to which [`place_standard`] moves the report pipe of a new process, until its program starts.
pub const REPORT: i32 = 3;
const RLIMIT_COUNT: u32 = 16;

/// A refusal, and the stage at which it occurred.
pub struct Refusal {
    pub stage: u32,
    pub errno: Errno,
}

/// Adds the stage to an error.
fn at<T>(stage: u32, result: Result<T>) -> core::result::Result<T, Refusal> {
    result.map_err(|errno| Refusal { stage, errno })
}

/// A program to start, as received from the host.
pub struct Program<'a> {
    pub payload: &'a [u8],
    pub flags: u32,
    pub limits: &'a [(u32, Limit)],
    /// The privileges to drop, and to verify as dropped, before the program starts.
    pub sealed: Option<Sealing>,
}

/// The privileges that a program drops.
#[derive(Clone, Copy)]
pub struct Sealing {
    /// Drops every capability.
    pub strict: bool,
    pub confinement: Confinement,
}

/// Reports a refusal to the parent and ends this process.
pub fn refuse(report_to: i32, refusal: &Refusal) -> ! {
    let mut report = [0_u8; 8];
    report[..4].copy_from_slice(&refusal.errno.0.to_le_bytes());
    report[4..].copy_from_slice(&refusal.stage.to_le_bytes());
    let _ = sys::write(report_to, &report);
    sys::exit(127)
}

/// Moves the three standard descriptors, the report pipe and an optional ruleset to their numbers, and closes all
/// others.
///
/// The given descriptors are above [`REPORT`], because the caller keeps 0 to 3 in use.
pub fn place_standard(
    standard: &[i32],
    report: i32,
    ruleset: Option<i32>,
) -> core::result::Result<(), Refusal> {
    at(stage::PREPARE, place_standard_inner(standard, report, ruleset))
}

fn place_standard_inner(standard: &[i32], report: i32, ruleset: Option<i32>) -> Result<()> {
    sys::dup3(report, REPORT, sys::O_CLOEXEC)?;
    for (number, fd) in (0..).zip(standard) {
        sys::dup3(*fd, number, 0)?;
    }
    let Some(ruleset) = ruleset else { return sys::close_from(REPORT + 1).map(drop) };
    if ruleset != RULESET {
        sys::dup3(ruleset, RULESET, sys::O_CLOEXEC)?;
    }
    sys::close_from(RULESET + 1).map(drop)
}

/// Moves each descriptor to its number; all others close when the program starts. Returns the new number of the report
/// pipe.
pub fn place_numbered(pairs: &[(i32, i32)], report: i32) -> core::result::Result<i32, Refusal> {
    at(stage::PREPARE, place_numbered_inner(pairs, report))
}

fn place_numbered_inner(pairs: &[(i32, i32)], report: i32) -> Result<i32> {
    let highest = pairs.iter().map(|pair| pair.1).max().unwrap_or(0).max(REPORT);
    let first_free = highest.checked_add(1).ok_or(EINVAL)?;
    let mut copies = [(0, 0); MAX_DESCRIPTORS];
    let report = sys::dup_above(report, first_free)?;
    for (copy, (fd, target)) in copies.iter_mut().zip(pairs) {
        *copy = (sys::dup_above(*fd, first_free)?, *target);
    }
    sys::close_all_on_exec()?;
    let null = sys::open(AT_FDCWD, c"/dev/null", O_RDWR, 0)?;
    let null = sys::dup_above(null, first_free)?;
    for standard in 0..3 {
        sys::dup3(null, standard, 0)?;
    }
    for (fd, target) in &copies[..pairs.len()] {
        sys::dup3(*fd, *target, 0)?;
    }
    Ok(report)
}

/// Executes the program. Returns only a refusal.
pub fn become_program(program: &Program<'_>) -> Refusal {
    match prepare_and_execute(program) {
        Ok(never) => match never {},
        Err(refusal) => refusal,
    }
}

enum Never {}

fn prepare_and_execute(program: &Program<'_>) -> core::result::Result<Never, Refusal> {
    let mut reader = Reader::new(program.payload);
    let payload = at(stage::PREPARE, Payload::read(&mut reader))?;
    at(stage::PREPARE, prepare(program.flags))?;
    at(stage::LIMIT, apply_limits(program.limits))?;
    at(stage::LIMIT, payload.apply_limits())?;
    at(stage::DIRECTORY, enter(payload.directory))?;
    if let Some(Sealing { strict, confinement }) = &program.sealed {
        let strict = *strict || !confinement.filter.is_empty();
        at(stage::SEAL, identity::seal_program(strict, confinement))?;
    }
    Err(Refusal { stage: stage::PROGRAM, errno: payload.execute() })
}

fn prepare(flags: u32) -> Result<()> {
    const TIOCSCTTY: usize = 0x540e;
    sys::setsid()?;
    if flags & SPAWN_TERMINAL != 0 {
        sys::ioctl(0, TIOCSCTTY, 0)?;
    }
    // The launcher has reset every signal to its default action; only the mask was changed since.
    sys::set_signal_mask(0)?;
    sys::umask(0o022);
    Ok(())
}

fn enter(directory: &CStr) -> Result<()> {
    if directory.is_empty() { Ok(()) } else { sys::chdir(directory).map(drop) }
}

/// Applies limits. They can only be lowered: this process's own limits stay the maximum.
fn apply_limits(limits: &[(u32, Limit)]) -> Result<()> {
    for (resource, wanted) in limits {
        apply_limit(*resource, *wanted)?;
    }
    Ok(())
}

fn apply_limit(resource: u32, wanted: Limit) -> Result<()> {
    if resource >= RLIMIT_COUNT {
        return Err(EINVAL);
    }
    let hard = wanted.hard.min(sys::limit(resource, None)?.hard);
    let soft = wanted.soft.min(hard);
    sys::limit(resource, Some(&Limit { soft, hard })).map(drop)
}

struct Payload<'a> {
    directory: &'a CStr,
    limits: Reader<'a>,
    limit_count: u32,
    argument_count: usize,
    environment_count: usize,
    texts: &'a [u8],
}

impl<'a> Payload<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self> {
        let argument_count = reader.u32()? as usize;
        let environment_count = reader.u32()? as usize;
        let limit_count = reader.u32()?;
        let limits = Reader::new(reader.take(limit_count as usize * 20)?);
        let directory = reader.text()?;
        let texts = reader.rest();
        if argument_count == 0 {
            return Err(EINVAL);
        }
        Ok(Self { directory, limits, limit_count, argument_count, environment_count, texts })
    }

    fn apply_limits(&self) -> Result<()> {
        let mut reader = Reader::new(self.limits.rest());
        for _ in 0..self.limit_count {
            let resource = reader.u32()?;
            apply_limit(resource, Limit { soft: reader.u64()?, hard: reader.u64()? })?;
        }
        Ok(())
    }

    fn execute(&self) -> Errno {
        match self.execute_inner() {
            Ok(errno) | Err(errno) => errno,
        }
    }

    fn execute_inner(&self) -> Result<Errno> {
        let mut texts = Reader::new(self.texts);
        let (count, total) = (self.argument_count, self.environment_count);
        let pointers = count.checked_add(total).and_then(|n| n.checked_add(2)).ok_or(EINVAL)?;
        if pointers > self.texts.len() + 2 {
            return Err(EINVAL);
        }
        // SAFETY: zero is a number.
        let table = unsafe { sys::table::<usize>(pointers) }?;
        let mut search = DEFAULT_PATH;
        for slot in &mut table[..count] {
            *slot = texts.text()?.as_ptr() as usize;
        }
        for slot in &mut table[count + 1..count + 1 + total] {
            let variable = texts.text()?;
            if let Some(path) = variable.to_bytes().strip_prefix(b"PATH=") {
                search = path;
            }
            *slot = variable.as_ptr() as usize;
        }
        let name = Reader::new(self.texts).text()?;
        let (argv, env) = (table.as_ptr(), table[count + 1..].as_ptr());
        // SAFETY: both arrays were zeroed and one slot after each part was left so.
        Ok(search_and_execute(name, search, |path| unsafe { sys::execve(path, argv, env) }))
    }
}

const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// Tries the directories of a search path like a shell: a file that cannot be executed is reported only when no later
/// directory has the program.
fn search_and_execute(name: &CStr, search: &[u8], execute: impl Fn(&CStr) -> Errno) -> Errno {
    if name.to_bytes().contains(&b'/') {
        return execute(name);
    }
    let mut found = ENOENT;
    if name.is_empty() {
        return found;
    }
    for directory in search.split(|byte| *byte == b':') {
        let mut path = [0_u8; 4097];
        let length = directory.len() + 1 + name.count_bytes();
        if length >= path.len() {
            continue;
        }
        path[..directory.len()].copy_from_slice(directory);
        path[directory.len()] = b'/';
        // An empty entry means the current directory.
        let start = if directory.is_empty() { 1 } else { 0 };
        path[directory.len() + 1..length].copy_from_slice(name.to_bytes());
        let Ok(path) = CStr::from_bytes_until_nul(&path[start..]) else { continue };
        match execute(path) {
            ENOENT | ENOTDIR => {}
            EACCES => found = EACCES,
            other => return other,
        }
    }
    found
}
