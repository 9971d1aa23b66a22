//! Removes a directory and everything in it.
//!
//! Links are never followed, and the depth of the tree does not matter: a nested directory is first moved to the top,
//! so at most two are open at a time.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use crate::fmt::Line;
use crate::processes::Entries;
use crate::sys::{self, AT_FDCWD, O_DIRECTORY, O_NOFOLLOW, O_PATH, O_RDONLY, Result};

/// Removes the directory open as `top` and its entry at `path`. No other process may be working in it.
pub fn remove_dir(top: i32, path: &CStr) {
    let mut moved = 0_u64;
    let _ = sys::chmod(top, c".", 0o700);
    while empty_once(top, &mut moved).is_ok_and(|removed| removed > 0) {}
    let _ = sys::unlink(AT_FDCWD, path, true);
}

/// Makes one pass over the top directory; returns how many entries were removed.
fn empty_once(top: i32, moved: &mut u64) -> Result<u64> {
    let mut removed = 0;
    for_each(top, |name| {
        if sys::unlink(top, name, false).is_ok() || remove_subdirectory(top, name, moved) {
            removed += 1;
        }
    })?;
    Ok(removed)
}

fn remove_subdirectory(top: i32, name: &CStr, moved: &mut u64) -> bool {
    if sys::unlink(top, name, true).is_ok() {
        return true;
    }
    let flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW;
    if !allow(top, name) {
        return false;
    }
    let Ok(directory) = sys::open(top, name, flags, 0) else { return false };
    let mut before = u64::MAX;
    loop {
        let mut left = 0;
        let _ = for_each(directory, |entry| {
            if sys::unlink(directory, entry, false).is_err()
                && sys::unlink(directory, entry, true).is_err()
                && !lift(directory, entry, top, moved)
            {
                left += 1;
            }
        });
        // Entries can be skipped while others are removed: repeat until nothing changes.
        if sys::unlink(top, name, true).is_ok() {
            sys::close(directory);
            return true;
        }
        if left >= before {
            sys::close(directory);
            return false;
        }
        before = left;
    }
}

/// Moves a directory to the top under a generated name.
fn lift(from: i32, name: &CStr, top: i32, moved: &mut u64) -> bool {
    *moved += 1;
    let mut new = Line::<48>::new();
    new.text(b".removed-").number(*moved);
    if sys::rename(from, name, top, new.c_text()).is_ok() {
        return true;
    }
    allow(from, name) && sys::rename(from, name, top, new.c_text()).is_ok()
}

/// Restores every permission on a directory. Other files are left unchanged: changing the mode of a link would change
/// its target.
fn allow(dir: i32, name: &CStr) -> bool {
    let Ok(probe) = sys::open(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW, 0) else {
        return false;
    };
    sys::close(probe);
    sys::chmod(dir, name, 0o700).is_ok()
}

fn for_each(directory: i32, mut visit: impl FnMut(&CStr)) -> Result<()> {
    // A new descriptor reads from the start.
    let fresh = sys::open(directory, c".", O_RDONLY | O_DIRECTORY, 0)?;
    let mut place = MaybeUninit::<[u8; 8192]>::uninit();
    let buffer = sys::scratch(&mut place);
    let outcome = loop {
        match sys::directory_entries(fresh, buffer) {
            Ok(0) => break Ok(()),
            Ok(count) => {
                for name in Entries::new(&buffer[..count]).filter(|name| !is_dots(name)) {
                    let mut text = Line::<257>::new();
                    visit(text.text(name).c_text());
                }
            }
            Err(errno) => break Err(errno),
        }
    };
    sys::close(fresh);
    outcome
}

fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}
