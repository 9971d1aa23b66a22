//! People at a terminal: the built binary on a pseudo-terminal, and the keys they press.

mod progress;
mod pty;
mod repl;
mod shell;
