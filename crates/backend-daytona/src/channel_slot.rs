//! Where a sandbox has its channel, which is opened when it is worth it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_core::{ErrorKind, Result};

use crate::channel::Channel;

/// The channel of a sandbox, which is opened when it is worth it.
#[derive(Debug, Default)]
pub(crate) struct ChannelSlot(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What commands and scripts were worth so far.
    used: u32,
    is_opening: bool,
    /// The sandbox has not what the channel needs, or failed to open it often.
    failures: u32,
    channel: Option<Arc<Channel>>,
}

/// The use from which a channel is opened, with that of a command and of a script. A single command does without.
const WORTH_OPENING: u32 = 4;
pub(crate) const COMMAND_USE: u32 = 2;
pub(crate) const SCRIPT_USE: u32 = 1;

/// Attempts to open a channel.
const MAX_FAILURES: u32 = 3;

impl ChannelSlot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the open channel. Begins to open one where there is none and it is worth it: `open` is called then.
    pub(crate) fn get(&self, used: u32, open: impl FnOnce()) -> Option<Arc<Channel>> {
        let mut state = self.state();
        if let Some(channel) = state.channel.clone().filter(|channel| channel.is_open()) {
            // While it is connected again there are sessions.
            return channel.is_connected().then_some(channel);
        }
        state.channel = None;
        state.used = state.used.saturating_add(used);
        let opens =
            state.used >= WORTH_OPENING && !state.is_opening && state.failures < MAX_FAILURES;
        if opens {
            state.is_opening = true;
            drop(state);
            open();
        }
        None
    }

    /// Notes the result of the opening.
    pub(crate) fn opened(&self, opened: Result<Arc<Channel>>) {
        let mut state = self.state();
        state.is_opening = false;
        match opened {
            Ok(channel) => (state.channel, state.failures) = (Some(channel), 0),
            Err(error) => {
                tracing::debug!(%error, "commands are those of sessions");
                let is_final = error.kind() == ErrorKind::Unsupported;
                state.failures = if is_final { MAX_FAILURES } else { state.failures + 1 };
            }
        }
    }

    /// Returns the channel, when one was opened.
    pub(crate) fn current(&self) -> Option<Arc<Channel>> {
        self.state().channel.clone()
    }
}
