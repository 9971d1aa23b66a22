//! Holds the checkpoint of one interpreter between two restores: a checkpoint leaves a copy of itself behind when it is
//! restored, and the slot waits for that copy.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_core::{Error, ErrorKind, Result};
use tokio::sync::watch;

/// The operation that errors of checkpoints name.
pub const OPERATION: &str = "restore_interpreter";

/// A copy of an interpreter that waits to be restored.
pub trait WaitingCopy: Send + 'static {
    /// Returns true once the process of the copy is dead.
    fn is_dead(&self) -> bool;

    /// Has the copy make its successor ready, unless that was done before.
    ///
    /// # Errors
    /// `NotFound` when the copy is dead, `ResourceExhausted` when there are no descriptors left.
    fn prepare(&mut self) -> Result<()>;
}

/// The slot of one checkpoint. The slot stays the same; the copy in it is replaced by each restore.
#[derive(Debug)]
pub struct CheckpointSlot<C> {
    /// `None` while the next copy is on its way, and for good when that copy does not arrive.
    copy: Mutex<Option<C>>,
    is_awaited: watch::Sender<bool>,
}

impl<C: WaitingCopy> CheckpointSlot<C> {
    /// Makes a slot with a copy in it.
    pub fn new(copy: C) -> Arc<Self> {
        Arc::new(Self { copy: Mutex::new(Some(copy)), is_awaited: watch::Sender::new(false) })
    }

    /// Locks the copy in the slot.
    pub fn copy(&self) -> MutexGuard<'_, Option<C>> {
        self.copy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true while the copy lives or is on its way.
    pub fn is_alive(&self) -> bool {
        let is_awaited = || *self.is_awaited.borrow();
        self.copy().as_ref().map_or_else(is_awaited, |copy| !copy.is_dead())
    }

    /// Has the copy make its successor ready, so that less is left to do when it is restored.
    pub fn prepare(&self) {
        if let Some(copy) = &mut *self.copy() {
            // A copy that cannot is dead, and restoring it reports that.
            let _ = copy.prepare();
        }
    }

    /// Waits for the next copy on a task of its own, and puts it into the slot.
    pub fn expect(self: &Arc<Self>, arrival: impl Future<Output = Result<C>> + Send + 'static) {
        let slot = Arc::downgrade(self);
        self.is_awaited.send_replace(true);
        tokio::spawn(async move {
            // A copy that does not arrive counts as dead, and is not needed once the slot was dropped.
            let mut copy = arrival.await.ok();
            if let Some(copy) = &mut copy {
                // A sandbox that was restored once is often restored again.
                let _ = copy.prepare();
            }
            if let Some(slot) = slot.upgrade() {
                *slot.copy() = copy;
                slot.is_awaited.send_replace(false);
            }
        });
    }

    /// Returns a handle that waits for the copy which is on its way now or later.
    pub fn arrivals(&self) -> CopyArrivals {
        CopyArrivals(self.is_awaited.subscribe())
    }
}

/// Waits for copies that are on their way to a slot. It does not keep the slot.
#[derive(Clone, Debug)]
pub struct CopyArrivals(watch::Receiver<bool>);

impl CopyArrivals {
    /// Waits until no copy is on its way. Returns when the copy has arrived, or can arrive no more.
    pub async fn settled(&self) {
        // Fails when the slot was dropped, and no copy arrives then.
        let _ = self.0.clone().wait_for(|is_awaited| !is_awaited).await;
    }
}

/// The error of a checkpoint whose process is dead.
pub fn dead() -> Error {
    Error::new(ErrorKind::NotFound, OPERATION, "the checkpoint is dead")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::timeout;

    use super::*;

    #[derive(Debug)]
    struct Copy {
        dead: bool,
        prepared: bool,
    }

    impl WaitingCopy for Copy {
        fn is_dead(&self) -> bool {
            self.dead
        }

        fn prepare(&mut self) -> Result<()> {
            self.prepared = true;
            Ok(())
        }
    }

    fn alive() -> Copy {
        Copy { dead: false, prepared: false }
    }

    #[tokio::test]
    async fn a_slot_is_alive_while_its_copy_is_on_its_way() {
        let slot = CheckpointSlot::new(alive());
        assert!(slot.is_alive() && slot.copy().take().is_some() && !slot.is_alive());
        let (arrive, arrival) = oneshot::channel();
        slot.expect(async move { arrival.await.map_err(|_| dead()) });
        assert!(slot.is_alive());
        let arrivals = slot.arrivals();
        assert!(timeout(Duration::from_millis(20), arrivals.settled()).await.is_err());
        arrive.send(alive()).unwrap();
        arrivals.settled().await;
        assert!(slot.copy().as_ref().is_some_and(|copy| copy.prepared));
        slot.copy().as_mut().unwrap().dead = true;
        assert!(!slot.is_alive());
    }

    #[tokio::test]
    async fn a_copy_that_does_not_arrive_leaves_a_dead_slot() {
        let slot = CheckpointSlot::<Copy>::new(alive());
        let _ = slot.copy().take();
        slot.expect(std::future::ready(Err(dead())));
        let arrivals = slot.arrivals();
        arrivals.settled().await;
        assert!(!slot.is_alive());
        slot.expect(std::future::pending());
        drop(slot);
        arrivals.settled().await;
    }
}
