//! The only door to standard output and standard error.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use code_sandboxes::without_rust;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use serde_json::Value;

use crate::args::{GlobalArgs, wants_events, wants_json};
use crate::exit;
use crate::problem::{Problem, error_object};
use crate::readiness;

/// What a pipe with room takes without blocking (`PIPE_BUF`).
const PIPE_CHUNK: usize = 4096;

/// How the outcome is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One object.
    Json,
    /// One object a line, as things happen.
    JsonLines,
}

/// Writes what the program prints, and what we have to say.
#[derive(Debug)]
pub(crate) struct Printer {
    format: Format,
    quiet: bool,
}

impl Printer {
    /// A printer as the flags want it.
    pub(crate) fn new(global: &GlobalArgs, stream_json: bool) -> Self {
        let format = match (stream_json, global.json) {
            (true, _) => Format::JsonLines,
            (false, true) => Format::Json,
            (false, false) => Format::Text,
        };
        Self { format, quiet: global.quiet }
    }

    /// How the outcome is shown.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Writes bytes to standard output as they are. While nobody reads them everything else goes on.
    pub(crate) async fn stdout(&self, data: &[u8]) -> Result<(), Problem> {
        write_all(io::stdout().as_fd(), data).await.map_err(broken)
    }

    /// Writes bytes to standard error as they are. That nobody hears us there is no reason to stop.
    pub(crate) async fn stderr(&self, data: &[u8]) -> Result<(), Problem> {
        match write_all(io::stderr().as_fd(), data).await {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Problem::Output(error)),
            _ => Ok(()),
        }
    }

    /// Writes a line of a record to standard output. A terminal gets escapes of what would act on it, so that a record shows
    /// what was written; elsewhere the line goes out as it is.
    pub(crate) async fn record(&self, mut line: String) -> Result<(), Problem> {
        if io::stdout().is_terminal() {
            line = escaped(&line);
        }
        line.push('\n');
        self.stdout(line.as_bytes()).await
    }

    /// Prints an object, or an array: on one line, unless people look.
    pub(crate) async fn json(&self, value: &Value) -> Result<(), Problem> {
        let for_people = self.format == Format::Json && io::stdout().is_terminal();
        let mut text = if for_people { format!("{value:#}") } else { value.to_string() };
        text.push('\n');
        self.stdout(text.as_bytes()).await
    }

    /// Prints rows under headers.
    pub(crate) async fn table(
        &self,
        headers: &[&str],
        rows: Vec<Vec<String>>,
    ) -> Result<(), Problem> {
        self.stdout(table(headers, rows).as_bytes()).await
    }

    /// Says what could go wrong.
    pub(crate) fn warning(&self, text: &str) {
        self.say("warning", text);
    }

    /// Says what is worth knowing.
    pub(crate) fn note(&self, text: &str) {
        self.say("note", text);
    }

    /// Passes on what somebody else says on the way.
    #[cfg(feature = "docker")]
    pub(crate) fn progress(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{}", printable(text));
        }
    }

    /// Says what to do about a failure.
    pub(crate) fn hint(&self, text: &str) {
        self.say("hint", &without_rust(text));
    }

    fn say(&self, what: &str, text: &str) {
        if !self.quiet {
            line(what, text);
        }
    }

    /// Says what went wrong with a run. In JSON the result says it.
    pub(crate) fn failure(&self, text: &str, hint: Option<&str>) {
        if self.format == Format::Text {
            line("error", text);
            if let Some(hint) = hint {
                self.hint(hint);
            }
        }
    }

    /// Reports what kept us from doing our work.
    pub(crate) async fn problem(&self, problem: &Problem) {
        match (problem, self.format) {
            (Problem::BrokenPipe, _) => {}
            (_, Format::Text) => self.failure(&problem.message(), problem.hint()),
            _ => {
                let object = of_stream(problem.json(), self.format == Format::JsonLines);
                match self.json(&object).await {
                    Ok(()) | Err(Problem::BrokenPipe) => {}
                    Err(unprinted) => {
                        line("error", &problem.message());
                        if !matches!(problem, Problem::Output(_)) {
                            line("error", &unprinted.message());
                        }
                    }
                }
            }
        }
    }
}

/// Prints what clap has to say: help, version, or what is wrong with the arguments. Returns the exit status.
pub(crate) fn parse_error(error: &clap::Error, argv: &[OsString]) -> u8 {
    use clap::error::ErrorKind as Kind;

    let status = if error.use_stderr() { exit::USAGE } else { exit::SUCCESS };
    let object = match error.kind() {
        _ if !wants_json(argv) => None,
        Kind::DisplayVersion => Some(serde_json::json!({
            "name": "sandboxes",
            "version": env!("CARGO_PKG_VERSION"),
        })),
        _ if status == exit::USAGE => {
            let (message, tip) = in_one_line(&error.render().to_string());
            let kind = code_sandboxes::ErrorKind::InvalidArgument;
            let hint = tip.unwrap_or_else(|| "see `sandboxes --help`".into());
            let object = error_object(kind, &message, Some(&hint), false);
            Some(of_stream(object, wants_events(argv)))
        }
        _ => None,
    };
    // Nobody is left to be told when this fails.
    let _ = match object {
        Some(object) => writeln!(io::stdout(), "{object}"),
        None => error.print(),
    };
    status
}

/// What clap has to say about wrong arguments: its first paragraph, which names them, and its tip.
fn in_one_line(text: &str) -> (String, Option<String>) {
    let lines: Vec<_> = text.lines().take_while(|line| !line.trim().is_empty()).collect();
    let message = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: ")).map(str::to_owned);
    (message, tip)
}

/// An object as a stream has it: each of its lines says what it is.
fn of_stream(mut object: Value, is_stream: bool) -> Value {
    if is_stream {
        object["type"] = "error".into();
    }
    object
}

/// One line of ours on standard error.
fn line(what: &str, text: &str) {
    // At once, as others may write there too. Nobody is left to be told when this fails.
    let line = format!("sandboxes: {what}: {}\n", printable(text));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// A text as one line that does nothing to a terminal.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ").trim().to_owned()
}

/// A text with an escape in the place of every character that acts on a terminal, or changes the order of others there.
fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => shown.push(c),
            _ if c.is_control() || is_direction(c) => shown.extend(c.escape_default()),
            _ => shown.push(c),
        }
    }
    shown
}

/// Returns `true` for marks that turn the direction of text.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn table(headers: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(headers);
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    table.lines().map(|line| format!("{}\n", line.trim())).collect()
}

fn broken(error: io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Problem::BrokenPipe,
        _ => Problem::Output(error),
    }
}

/// Writes everything, waiting for readiness instead of blocking.
async fn write_all(to: BorrowedFd<'_>, mut data: &[u8]) -> io::Result<()> {
    let is_file = fstat(to).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
    while !data.is_empty() {
        if !is_file {
            readiness::writable(to).await?;
        }
        let most = if is_file { data.len() } else { data.len().min(PIPE_CHUNK) };
        match rustix::io::write(to, &data[..most]) {
            Ok(written) => data = &data[written..],
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_plain_and_cells_are_harmless() {
        let rows = vec![vec!["a".into(), "1".into()], vec!["\u{1b}[31mlonger".into(), "2".into()]];
        insta::assert_snapshot!(table(&["Name", "Count"], rows), @"
        Name        Count
        a           1
        [31mlonger  2
        ");
    }

    #[test]
    fn what_clap_says_names_every_argument() {
        let said = "error: the following required arguments were not provided:\n  <FROM>\n  <TO>\n\n  \
                    tip: a value\n\nUsage: x\n";
        let (message, tip) = in_one_line(said);
        assert_eq!(message, "the following required arguments were not provided: <FROM> <TO>");
        assert_eq!(tip.as_deref(), Some("a value"));
    }

    #[test]
    fn our_lines_are_one_line() {
        assert_eq!(printable("a\nb\u{7}\n"), "a b");
    }
}
