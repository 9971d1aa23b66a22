//! The roots of a cell: processes registered with the host, each with the tree that grows below it.

use crate::sys::{self, EAGAIN, EEXIST, Result};

pub const MAX_ROOTS: usize = 1024;

/// Phase in the life of a root. All zero is [`Phase::Free`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    Free = 0,
    /// Forked, before its program is known to run.
    Starting,
    Running,
    /// Waits to be restored, and belongs to no tree until then.
    Checkpoint,
    /// Dead and reaped; its descendants may be alive.
    Dead,
}

/// One root. Zero stands for no descriptor: zero itself is always in use.
#[derive(Clone, Copy)]
pub struct Root {
    pub id: u32,
    /// Strict: the process. Isolation off: its subreaper, or the process if it was adopted.
    pub pid: i32,
    /// Isolation off: the process itself.
    pub program: i32,
    /// The UTS namespace of its tree; zero when isolation is off.
    pub tag: u32,
    /// The pipe on which the starting process, or the subreaper, reports.
    pub pipe: i32,
    /// The pidfd of an adopted process, which is not a child of this process, or of a checkpoint.
    pub pidfd: i32,
    pub phase: Phase,
    /// True once the host has dropped its handle.
    pub forgotten: bool,
}

impl Root {
    pub fn is_adopted(&self) -> bool {
        self.pidfd != 0
    }

    pub fn close_pipe(&mut self) {
        if self.pipe != 0 {
            sys::close(self.pipe);
            self.pipe = 0;
        }
    }
}

/// All roots of a cell.
pub struct Roots {
    table: &'static mut [Root],
    /// Slots from here on were never used.
    used: usize,
}

impl Roots {
    pub fn new() -> Result<Self> {
        // SAFETY: all zero bytes are a free root: its phase is `Free`, `false` is zero.
        Ok(Self { table: unsafe { sys::table(MAX_ROOTS) }?, used: 0 })
    }

    pub fn all(&mut self) -> &mut [Root] {
        &mut self.table[..self.used]
    }

    /// Returns the indices of roots that are in use.
    pub fn indices(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.used
    }

    pub fn get(&self, index: usize) -> &Root {
        &self.table[index]
    }

    pub fn at(&mut self, index: usize) -> &mut Root {
        &mut self.table[index]
    }

    pub fn find(&self, matches: impl Fn(&Root) -> bool) -> Option<usize> {
        self.table[..self.used].iter().position(|root| root.phase != Phase::Free && matches(root))
    }

    pub fn by_id(&self, id: u32) -> Option<usize> {
        self.find(|root| root.id == id)
    }

    /// Stores a root; EAGAIN when the table is full, EEXIST when the host reuses an id.
    pub fn add(&mut self, root: Root) -> Result {
        if self.by_id(root.id).is_some() {
            return Err(EEXIST);
        }
        let free = self.table.iter().position(|slot| slot.phase == Phase::Free);
        let index = free.ok_or(EAGAIN)?;
        self.table[index] = root;
        self.used = self.used.max(index + 1);
        Ok(index)
    }

    /// Clears a tag of dead roots. The kernel reuses a namespace number once the namespace is empty, so the trees of
    /// dead roots with this tag have ended, and must not be confused with its new tree.
    pub fn retire_tag(&mut self, tag: u32) {
        for root in self.all() {
            if root.tag == tag {
                root.tag = 0;
            }
        }
    }

    pub fn is_full(&self) -> bool {
        self.table.iter().all(|slot| slot.phase != Phase::Free)
    }

    pub fn remove(&mut self, index: usize) {
        let root = &mut self.table[index];
        root.close_pipe();
        if root.pidfd != 0 {
            sys::close(root.pidfd);
            root.pidfd = 0;
        }
        root.phase = Phase::Free;
    }
}
