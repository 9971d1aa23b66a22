//! Mounts in which the owner of files is the user of the cell.
//!
//! A cell made by root has a user that no account is, so that it owns nothing of the host. In what it is given, that user
//! stands for the owner of what was mounted, in both directions: it has the owner's rights, and what it makes belongs to
//! the owner. Everybody else's files there belong to nobody it could be.

use crate::identity::Outside;
use crate::mounts;
use crate::sys::{self, AT_FDCWD, O_RDONLY, Result};
use crate::fmt::Line;

const CLONE_NEWUSER: usize = 0x1000_0000;

/// Lets the cell's user stand for an owner in a detached tree.
pub fn idmap_mount(tree: i32, (uid, gid): (u32, u32), cell: Outside) -> Result<()> {
    let [wait, go] = sys::pipe()?;
    let namespace = match sys::fork(CLONE_NEWUSER, None) {
        Ok(0) => {
            // It lives for the namespace alone, until the maps are written and somebody holds it.
            sys::close(go);
            let _ = sys::read(wait, &mut [0]);
            sys::exit(0)
        }
        Ok(pid) => {
            let namespace = mapped(pid, (uid, gid), cell);
            sys::close(go);
            let _ = sys::wait(0);
            namespace
        }
        Err(errno) => {
            sys::close(go);
            Err(errno)
        }
    };
    sys::close(wait);
    let namespace = namespace?;
    let outcome = mounts::map_owners(tree, namespace);
    sys::close(namespace);
    outcome.map(drop)
}

/// The user namespace of a process, in which the owner's ids are the cell's outside.
fn mapped(pid: i32, (uid, gid): (u32, u32), cell: Outside) -> Result<i32> {
    for (file, from, to) in [(&b"uid_map"[..], uid, cell.uid), (&b"gid_map"[..], gid, cell.gid)] {
        let mut line = Line::<64>::new();
        line.number(from.into()).text(b" ").number(to.into()).text(b" 1\n");
        sys::write_file(AT_FDCWD, of_process(pid, file).c_text(), line.bytes())?;
    }
    sys::open(AT_FDCWD, of_process(pid, b"ns/user").c_text(), O_RDONLY, 0)
}

fn of_process(pid: i32, file: &[u8]) -> Line<64> {
    let mut path = Line::new();
    path.text(b"/proc/").number(pid as u64).text(b"/").text(file);
    path
}
