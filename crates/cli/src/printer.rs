//! Prints to standard output and standard error. No other module does.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use code_sandboxes::with_flags;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use serde_json::Value;

use crate::args::{GlobalArgs, wants_events, wants_json};
use crate::error::{CliError, error_object};
use crate::exit;
use crate::readiness;

/// Number of bytes that a writable pipe takes without blocking (`PIPE_BUF`).
const PIPE_CHUNK: usize = 4096;

/// The format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Text for people.
    Text,
    /// One JSON object.
    Json,
    /// One JSON object on each line, as events happen.
    JsonLines,
}

/// Prints output of the program, results and messages.
#[derive(Debug)]
pub(crate) struct Printer {
    format: Format,
    quiet: bool,
}

impl Printer {
    /// Makes the printer of the flags.
    pub(crate) fn new(global: &GlobalArgs, stream_json: bool) -> Self {
        let format = match (stream_json, global.json) {
            (true, _) => Format::JsonLines,
            (false, true) => Format::Json,
            (false, false) => Format::Text,
        };
        Self { format, quiet: global.quiet }
    }

    /// Returns the format of results.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Writes bytes to standard output. Does not block the thread while the reader is slow.
    pub(crate) async fn stdout(&self, data: &[u8]) -> Result<(), CliError> {
        write_all(io::stdout().as_fd(), data).await.map_err(broken)
    }

    /// Writes bytes to standard error. A closed standard error is ignored.
    pub(crate) async fn stderr(&self, data: &[u8]) -> Result<(), CliError> {
        match write_all(io::stderr().as_fd(), data).await {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::Output(error)),
            _ => Ok(()),
        }
    }

    /// Writes a line of a log to standard output. Control characters are escaped on a terminal, and unchanged otherwise.
    pub(crate) async fn record(&self, mut line: String) -> Result<(), CliError> {
        if io::stdout().is_terminal() {
            line = escaped(&line);
        }
        line.push('\n');
        self.stdout(line.as_bytes()).await
    }

    /// Prints JSON: indented on a terminal, and otherwise on one line.
    pub(crate) async fn json(&self, value: &Value) -> Result<(), CliError> {
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
    ) -> Result<(), CliError> {
        self.stdout(table(headers, rows).as_bytes()).await
    }

    /// Returns true when progress is shown: as text, on a terminal, and not quietly.
    pub(crate) fn shows_progress(&self) -> bool {
        self.format == Format::Text && !self.quiet && io::stderr().is_terminal()
    }

    /// Prints a warning.
    pub(crate) fn warning(&self, text: &str) {
        self.print_message("warning", text);
    }

    /// Prints a note.
    pub(crate) fn note(&self, text: &str) {
        self.print_message("note", text);
    }

    /// Prints the progress of another program.
    #[cfg(feature = "docker")]
    pub(crate) fn progress(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(io::stderr(), "{}", printable(text));
        }
    }

    /// Prints a hint.
    pub(crate) fn hint(&self, text: &str) {
        self.print_message("hint", &with_flags(text));
    }

    fn print_message(&self, label: &str, text: &str) {
        if !self.quiet {
            print_line(label, text);
        }
    }

    /// Prints the failure of a run. In JSON formats the result has the failure.
    pub(crate) fn failure(&self, text: &str, hint: Option<&str>) {
        if self.format == Format::Text {
            print_line("error", text);
            if let Some(hint) = hint {
                self.hint(hint);
            }
        }
    }

    /// Prints an error of `sandboxes`.
    pub(crate) async fn error(&self, error: &CliError) {
        match (error, self.format) {
            (CliError::BrokenPipe, _) => {}
            (_, Format::Text) => self.failure(&error.message(), error.hint()),
            _ => {
                let object = for_stream(error.json(), self.format == Format::JsonLines);
                match self.json(&object).await {
                    Ok(()) | Err(CliError::BrokenPipe) => {}
                    Err(unprinted) => {
                        print_line("error", &error.message());
                        if !matches!(error, CliError::Output(_)) {
                            print_line("error", &unprinted.message());
                        }
                    }
                }
            }
        }
    }
}

/// Prints an error of the configuration, before there is a printer. Returns the exit status.
pub(crate) fn configuration_error(error: &CliError, global: &GlobalArgs) -> u8 {
    let printer = Printer::new(global, false);
    match printer.format() {
        Format::Text => printer.failure(&error.message(), error.hint()),
        // A failure to print cannot be reported.
        _ => drop(writeln!(io::stdout(), "{}", error.json())),
    }
    error.status()
}

/// Prints a message of clap: help, version, or an error of the arguments. Returns the exit status.
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
            let (message, tip) = message_and_tip(&error.render().to_string());
            let kind = code_sandboxes::ErrorKind::InvalidArgument;
            let hint = tip.unwrap_or_else(|| "see `sandboxes --help`".into());
            let object = error_object(kind, &message, Some(&hint), false);
            Some(for_stream(object, wants_events(argv)))
        }
        _ => None,
    };
    // A failure to print cannot be reported.
    let _ = match object {
        Some(object) => writeln!(io::stdout(), "{object}"),
        None => error.print(),
    };
    status
}

/// Returns the first paragraph of an error of clap as one line, and its tip.
fn message_and_tip(text: &str) -> (String, Option<String>) {
    let lines: Vec<_> = text.lines().take_while(|line| !line.trim().is_empty()).collect();
    let message = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: ")).map(str::to_owned);
    (message, tip)
}

/// Adds the type to an object of a stream.
fn for_stream(mut object: Value, is_stream: bool) -> Value {
    if is_stream {
        object["type"] = "error".into();
    }
    object
}

/// Prints a message of `sandboxes` on standard error.
fn print_line(label: &str, text: &str) {
    // One write, because other processes may write there, too. A failure to print cannot be reported.
    let line = format!("sandboxes: {label}: {}\n", printable(text));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Returns a text as one line without control characters.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ").trim().to_owned()
}

/// Escapes control characters, and characters that change the direction of text.
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

/// Returns true for characters that change the direction of text.
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

fn broken(error: io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => CliError::BrokenPipe,
        _ => CliError::Output(error),
    }
}

/// Writes all bytes; waits for readiness instead of blocking.
async fn write_all(to: BorrowedFd<'_>, mut data: &[u8]) -> io::Result<()> {
    let is_file = fstat(to).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
    while !data.is_empty() {
        if !is_file {
            readiness::writable(to).await?;
        }
        let max = if is_file { data.len() } else { data.len().min(PIPE_CHUNK) };
        match rustix::io::write(to, &data[..max]) {
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
    fn tables_are_plain_and_cells_have_no_control_characters() {
        let rows = vec![vec!["a".into(), "1".into()], vec!["\u{1b}[31mlonger".into(), "2".into()]];
        insta::assert_snapshot!(table(&["Name", "Count"], rows), @"
        Name        Count
        a           1
        [31mlonger  2
        ");
    }

    #[test]
    fn errors_of_clap_name_every_argument() {
        let text = "error: the following required arguments were not provided:\n  <FROM>\n  <TO>\n\n  \
                    tip: a value\n\nUsage: x\n";
        let (message, tip) = message_and_tip(text);
        assert_eq!(message, "the following required arguments were not provided: <FROM> <TO>");
        assert_eq!(tip.as_deref(), Some("a value"));
    }

    #[test]
    fn messages_are_one_line() {
        assert_eq!(printable("a\nb\u{7}\n"), "a b");
    }
}
