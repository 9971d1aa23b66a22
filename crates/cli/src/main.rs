//! `sandboxes`: runs code safely from a terminal.

mod args;
mod commands;
mod error;
mod exit;
mod input;
mod languages;
mod notebook;
mod printer;
mod progress;
mod readiness;
mod settings;
mod shared_stdin;
mod terminal;
mod time;

use std::process::ExitCode;

fn main() -> ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    let status = match args::parse(&argv) {
        Ok(cli) => commands::execute(cli),
        Err(error) => printer::parse_error(&error, &argv),
    };
    ExitCode::from(status)
}
