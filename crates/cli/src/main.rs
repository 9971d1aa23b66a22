//! `sandboxes`: runs code safely from a terminal.

mod args;
mod commands;
mod config;
mod error;
mod exit;
mod input;
mod languages;
mod layers;
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
        Ok(mut cli) => match config::apply(&mut cli) {
            Ok(()) => commands::execute(cli),
            Err(error) => printer::configuration_error(&error, &cli.global),
        },
        Err(error) => printer::parse_error(&error, &argv),
    };
    ExitCode::from(status)
}
