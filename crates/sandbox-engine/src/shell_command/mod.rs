//! Commands that a shell of the sandbox starts, where no agent of ours reports on them: in containers without Python, and in
//! clouds that start programs themselves.
//!
//! The shell prints lines that begin with a secret word: one when the command has started, with its process, and one on each
//! stream when it has ended. So its end is known when helpers of it keep the streams open, and everything that it has
//! started can be found and ended.

mod byte_queue;
mod exit;
mod sentinel;

pub use self::byte_queue::{ByteQueue, QueueReader, QueueWriter};
pub use self::exit::{ExitState, ProcessIdentity, exit_of};
pub use self::sentinel::SentinelScanner;

/// The script that starts a command. Its arguments: the secret word; `pipes`, `terminal` for a terminal whose size is set
/// before a line is written to it, or `sized` for one that has its size; the working directory; the soft and the hard limit
/// of open files, or nothing; then the command.
pub const COMMAND: &str = include_str!("command.sh");

/// The script that sends a signal. Its arguments: the signal; `alone`, `tree` or `leader`; the process, its start, and the
/// shell that leads its session, as [`ProcessIdentity`] has them. It prints `yes` when the command was alive.
pub const SIGNAL: &str = include_str!("signal.sh");
