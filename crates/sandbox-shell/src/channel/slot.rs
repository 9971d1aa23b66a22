//! The place where a sandbox has its channel, which is opened when it is worth it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_core::{ErrorKind, Result};

use super::{Channel, ChannelHost};

/// The channel of a sandbox, which is opened when it is worth it.
#[derive(Clone, Debug, Default)]
pub struct ChannelSlot(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// What commands and scripts were worth so far.
    used: u32,
    is_opening: bool,
    /// The sandbox has not what the channel needs, or failed to open it often.
    failures: u32,
    channel: Option<Arc<Channel>>,
}

/// What a sandbox is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelUse {
    /// A command.
    Command,
    /// A script of ours, as for a verb of files.
    Script,
    /// A script that prints nothing, and that the host runs as fast without a channel: no reason to open one.
    QuietScript,
}

/// The use from which a channel is opened, with that of a command and of a script. A single command does without.
const WORTH_OPENING: u32 = 4;
const COMMAND_USE: u32 = 2;
const SCRIPT_USE: u32 = 1;

/// Attempts to open a channel.
const MAX_FAILURES: u32 = 3;

impl ChannelSlot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the open channel. Begins to open one in the background where there is none and it is worth it.
    pub fn get<H: ChannelHost>(&self, used: ChannelUse, host: &Arc<H>) -> Option<Arc<Channel>> {
        if host.is_closed() {
            return None;
        }
        let mut state = self.state();
        if let Some(channel) = state.channel.clone().filter(|channel| channel.is_open()) {
            // While it is connected again there are other ways.
            return channel.is_connected().then_some(channel);
        }
        state.channel = None;
        state.used = state.used.saturating_add(match used {
            ChannelUse::Command => COMMAND_USE,
            ChannelUse::Script => SCRIPT_USE,
            ChannelUse::QuietScript => 0,
        });
        let opens =
            state.used >= WORTH_OPENING && !state.is_opening && state.failures < MAX_FAILURES;
        state.is_opening |= opens;
        drop(state);
        if opens {
            let (slot, own) = (self.clone(), Arc::clone(host));
            host.spawn(Box::pin(async move {
                let host: Arc<dyn ChannelHost> = own;
                let opened = Channel::open(&host).await;
                if let (true, Ok(channel)) = (host.is_closed(), &opened) {
                    channel.close();
                }
                slot.opened(opened);
            }));
        }
        None
    }

    fn opened(&self, opened: Result<Arc<Channel>>) {
        let mut state = self.state();
        state.is_opening = false;
        match opened {
            Ok(channel) => (state.channel, state.failures) = (Some(channel), 0),
            Err(error) => {
                tracing::debug!(%error, "commands do without a channel");
                let is_final = error.kind() == ErrorKind::Unsupported;
                state.failures = if is_final { MAX_FAILURES } else { state.failures + 1 };
            }
        }
    }

    /// Notes that the sandbox is about to be held (paused), or is no more. A channel without a command is closed.
    pub fn hold(&self, is_held: bool) {
        if let Some(channel) = self.current() {
            channel.hold(is_held);
        }
    }

    /// Closes the channel where there is one. Commands that run over it are lost to this process.
    pub fn close(&self) {
        if let Some(channel) = self.current() {
            channel.close();
        }
    }

    fn current(&self) -> Option<Arc<Channel>> {
        self.state().channel.clone()
    }
}
