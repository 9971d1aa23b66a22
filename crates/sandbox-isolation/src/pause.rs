//! Pausing and resuming all processes of a cell.

use tokio::sync::MutexGuard;

use crate::cell::Cell;
use crate::error::Error;
use crate::protocol::to_cell;

impl Cell {
    /// Pauses all processes but the first, as by `SIGSTOP`, including those that are started meanwhile, and refuses new
    /// programs. The first process keeps running, and ends the cell when this process ends. Without isolation the
    /// processes are those below the first process and below those it has adopted.
    ///
    /// # Errors
    /// [`Error::Io`] when some processes do not stop, and then all are resumed; [`Error::Closed`] when the cell is
    /// gone.
    ///
    /// # Cancellation
    /// The processes may be paused.
    pub async fn pause(&self) -> Result<(), Error> {
        self.set_paused(to_cell::PAUSE, true).await
    }

    /// Resumes all processes except those that were already stopped before the pause. Has no effect on a cell that is
    /// not paused.
    ///
    /// # Errors
    /// [`Error::Closed`] when the cell is gone.
    ///
    /// # Cancellation
    /// The processes may be resumed.
    pub async fn resume(&self) -> Result<(), Error> {
        self.set_paused(to_cell::RESUME, false).await
    }

    async fn set_paused(&self, request: u8, pause: bool) -> Result<(), Error> {
        let link = self.link();
        // The memory monitor may have stopped some processes; wait until it has resumed them.
        let mut paused: Option<MutexGuard<'_, bool>> = None;
        if let Some(monitor) = link.monitor() {
            let mut locked = monitor.paused().lock().await;
            // Set early, in case this future is dropped.
            *locked = true;
            paused = Some(locked);
        }
        let done = link.request(request, |_| ()).await;
        if let Some(paused) = &mut paused {
            **paused = pause && done.is_ok();
        }
        done.map(drop)
    }
}
