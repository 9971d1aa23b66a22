//! Holding all processes of a cell still.

use tokio::sync::MutexGuard;

use crate::cell::Cell;
use crate::error::Error;
use crate::protocol::to_cell;

impl Cell {
    /// Has the first process stop all others, as by `SIGSTOP`, also those that come to be meanwhile, and start none. It goes
    /// on itself, and ends with them when this process does. Without isolation these are the processes below it and below
    /// those that it has adopted.
    ///
    /// # Errors
    /// [`Error::Io`] when they do not stop, and then they go on; [`Error::Closed`] when the cell is gone.
    ///
    /// # Cancellation
    /// They may be stopped.
    pub async fn pause(&self) -> Result<(), Error> {
        self.set_paused(to_cell::PAUSE, true).await
    }

    /// Has them go on, but for those that had been stopped before. When nothing holds them that is no error.
    ///
    /// # Errors
    /// [`Error::Closed`] when the cell is gone.
    ///
    /// # Cancellation
    /// They may go on.
    pub async fn resume(&self) -> Result<(), Error> {
        self.set_paused(to_cell::RESUME, false).await
    }

    async fn set_paused(&self, request: u8, pause: bool) -> Result<(), Error> {
        let link = self.link();
        // What counts the memory of the cell may have stopped some of them, and has them go on before.
        let mut paused: Option<MutexGuard<'_, bool>> = None;
        if let Some(monitor) = link.monitor() {
            let mut locked = monitor.paused().lock().await;
            // Also when this is given up half-way.
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
