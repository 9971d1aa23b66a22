//! Mounts whose file owner is mapped to the user of the cell.
//!
//! A cell made by root runs as a user without an account, which owns nothing of the host. In its host mounts, that user
//! is mapped to the owner of the mounted directory, in both directions: it has the owner's rights, and its new files
//! belong to the owner. Files of other users there belong to an unmapped user.

use crate::fmt::Line;
use crate::identity::OuterIds;
use crate::mounts;
use crate::sys::{self, AT_FDCWD, O_RDONLY, Result};

const CLONE_NEWUSER: usize = 0x1000_0000;

/// Maps an owner to the cell's user in a detached tree.
pub fn idmap_mount(tree: i32, (uid, gid): (u32, u32), cell: OuterIds) -> Result<()> {
    let [wait, go] = sys::pipe()?;
    let namespace = match sys::fork(CLONE_NEWUSER, None) {
        Ok(0) => {
            // This process only holds the namespace, until the maps are written and the parent has opened it.
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

/// Writes the maps of a process's user namespace, in which the owner's ids become the cell's outer ids, and opens it.
fn mapped(pid: i32, (uid, gid): (u32, u32), cell: OuterIds) -> Result<i32> {
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
