//! The built binary on a pseudo-terminal, driven by key presses.

mod progress;
mod pty;
mod repl;
mod shell;
