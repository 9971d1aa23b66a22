//! The channels of a kernel.

use std::fmt;
use std::str::FromStr;

/// One of the five connections between a client and a kernel.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Channel {
    /// Requests that queue: execute, complete, inspect, history.
    Shell,
    /// Output, status and displays, published to all clients.
    IoPub,
    /// Questions of the kernel to the user, such as `input()`.
    Stdin,
    /// Requests that bypass the queue of [`Channel::Shell`]: interrupt, shutdown, debug.
    Control,
    /// Echoes bytes, to show that the process is alive. Carries no messages.
    Heartbeat,
}

impl Channel {
    /// All channels that carry messages.
    pub const MESSAGES: [Self; 4] = [Self::Shell, Self::IoPub, Self::Stdin, Self::Control];

    /// Returns the name used in connection files and on WebSockets: `shell`, `iopub`, `stdin`, `control` or `hb`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::IoPub => "iopub",
            Self::Stdin => "stdin",
            Self::Control => "control",
            Self::Heartbeat => "hb",
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Error of parsing a channel: the text is not the name of one.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("unknown channel")]
pub struct UnknownChannel;

impl FromStr for Channel {
    type Err = UnknownChannel;

    fn from_str(name: &str) -> Result<Self, UnknownChannel> {
        let known = Self::MESSAGES.into_iter().chain([Self::Heartbeat]);
        known.into_iter().find(|channel| channel.as_str() == name).ok_or(UnknownChannel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for channel in Channel::MESSAGES.into_iter().chain([Channel::Heartbeat]) {
            assert_eq!(channel.to_string().parse(), Ok(channel));
        }
        assert_eq!("Shell".parse::<Channel>(), Err(UnknownChannel));
    }
}
