//! `sandboxes`: run code safely from a terminal.

mod args;
mod borrowed;
mod commands;
mod exit;
mod input;
mod languages;
mod notebook;
mod printer;
mod problem;
mod readiness;
mod settings;
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
