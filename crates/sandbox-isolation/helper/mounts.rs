//! System calls on mounts.

use core::ffi::CStr;

use crate::arch::number as nr;
use crate::sys::{AT_FDCWD, O_CLOEXEC, Result, address, call, call2, call3};

const AT_EMPTY_PATH: usize = 0x1000;
const AT_RECURSIVE: usize = 0x8000;
const OPEN_TREE: usize = 428;
const MOVE_MOUNT: usize = 429;
const MOUNT_SETATTR: usize = 442;

pub fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: u64, options: &CStr) -> Result {
    let (source, target, kind) = (address(source), address(target), address(kind));
    call(nr::MOUNT, [source, target, kind, flags as usize, address(options), 0])
}

pub fn detach(path: &CStr) -> Result {
    const MNT_DETACH: usize = 2;
    call2(nr::UMOUNT2, address(path), MNT_DETACH)
}

pub fn pivot_root(new: &CStr, old: &CStr) -> Result {
    call2(nr::PIVOT_ROOT, address(new), address(old))
}

/// Makes a detached copy of the mount at a path, and with `recursive` of the mounts below it.
pub fn copy_tree(dir: i32, path: &CStr, recursive: bool) -> Result<i32> {
    const OPEN_TREE_CLONE: usize = 1;
    let below = if recursive { AT_RECURSIVE } else { 0 };
    let flags = OPEN_TREE_CLONE | O_CLOEXEC | AT_EMPTY_PATH | below;
    call3(OPEN_TREE, dir as usize, address(path), flags).map(|fd| fd as i32)
}

/// Adds attributes to every mount of a copied tree.
pub fn restrict_tree(tree: i32, attributes: u64) -> Result {
    set_attributes(tree, c"", AT_EMPTY_PATH | AT_RECURSIVE, attributes)
}

/// Adds attributes to the single mount whose root is at a path.
pub fn restrict(path: &CStr, attributes: u64) -> Result {
    set_attributes(AT_FDCWD, path, 0, attributes)
}

/// Maps the owners of files in a copied tree through a user namespace.
pub fn map_owners(tree: i32, namespace: i32) -> Result {
    const MOUNT_ATTR_IDMAP: u64 = 0x10_0000;
    change(tree, c"", AT_EMPTY_PATH | AT_RECURSIVE, [MOUNT_ATTR_IDMAP, 0, 0, namespace as u64])
}

fn set_attributes(dir: i32, path: &CStr, flags: usize, attributes: u64) -> Result {
    const MS_PRIVATE: u64 = 1 << 18;
    change(dir, path, flags, [attributes, 0, MS_PRIVATE, 0])
}

/// `struct mount_attr`: attributes to set and to clear, propagation, and a user namespace.
fn change(dir: i32, path: &CStr, flags: usize, change: [u64; 4]) -> Result {
    let (at, size) = (change.as_ptr() as usize, size_of_val(&change));
    call(MOUNT_SETATTR, [dir as usize, address(path), flags, at, size, 0])
}

/// Attaches a detached tree at a path.
pub fn place_tree(tree: i32, target: &CStr) -> Result {
    const MOVE_MOUNT_F_EMPTY_PATH: usize = 4;
    let (from, to) = (address(c""), address(target));
    let flags = MOVE_MOUNT_F_EMPTY_PATH;
    call(MOVE_MOUNT, [tree as usize, from, AT_FDCWD as usize, to, flags, 0])
}
