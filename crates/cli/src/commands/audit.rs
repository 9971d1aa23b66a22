//! `sandboxes audit`

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Local};
use code_sandboxes::{Error, ErrorKind};
use sandbox_layers::AuditLog;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::args::{AuditArgs, AuditCommand};
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};

/// Time between two looks for new lines.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Shows or checks an audit log.
pub(crate) async fn audit(args: &AuditArgs, printer: &Printer) -> Result<u8, CliError> {
    let Some(directory) = &args.command.log().directory else {
        return Err(CliError::usage(
            "the directory of the audit log is missing",
            "name it, or set `audit` in the configuration (`sandboxes config`)",
        ));
    };
    match &args.command {
        AuditCommand::Show { sandbox, operation, .. } => {
            let wanted = |entry: &Entry| {
                let is_of = |key: &str, wanted: &Option<String>| {
                    wanted.as_ref().is_none_or(|wanted| entry.text(key).contains(wanted.as_str()))
                };
                is_of("sandbox", sandbox) && is_of("operation", operation)
            };
            let entries = read(directory, 0)?.0;
            let entries: Vec<_> = entries.into_iter().filter(wanted).collect();
            show(&entries, printer).await?;
            Ok(exit::SUCCESS)
        }
        AuditCommand::Verify { .. } => verify(directory, printer).await,
        AuditCommand::Tail { lines, follow, .. } => tail(directory, *lines, *follow, printer).await,
    }
}

/// A line of the log.
#[derive(Debug)]
struct Entry(Value);

impl Entry {
    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    /// Formats it for people: time, sandbox, operation, what came of it.
    fn row(&self) -> String {
        let at = self.0["time"].as_f64().unwrap_or_default();
        let at = DateTime::from_timestamp_millis((at * 1000.0) as i64).unwrap_or_default();
        let at = at.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S%.3f");
        let sandbox = if self.text("sandbox").is_empty() { "-" } else { self.text("sandbox") };
        format!("{at}  {sandbox}  {}  {}", self.text("operation"), self.outcome())
    }

    fn outcome(&self) -> String {
        if self.text("event") == "begin" {
            return match self.0["request"]["tool"].as_str() {
                Some(tool) => format!("began: {tool}"),
                None => "began".to_owned(),
            };
        }
        let result = &self.0["result"];
        let mut parts = Vec::new();
        if let Some(message) = result["error"]["message"].as_str() {
            parts.push(format!("error: {message}"));
        } else if let Some(failure) = result["failure"]["message"].as_str() {
            parts.push(format!("failed: {failure}"));
        } else if result["abandoned"] == true {
            parts.push("abandoned".to_owned());
        } else if let Some(exception) = self.0["exception"].as_str() {
            parts.push(exception.to_owned());
        } else if let Some(status) = result["exit_code"].as_i64() {
            parts.push(format!("status {status}"));
        } else {
            parts.push("ok".to_owned());
        }
        let count = |key: &str| result[key].as_array().map_or(0, Vec::len);
        for (key, words) in [("findings", "findings"), ("network_denied", "connections refused")] {
            if count(key) > 0 {
                parts.push(format!("{} {words}", count(key)));
            }
        }
        if let Some(seconds) = self.0["duration"].as_f64() {
            parts.push(format!("{seconds:.3} s"));
        }
        if let Some(cpu) = self.0["totals"]["cpu_time"].as_f64() {
            let runs = self.0["totals"]["runs"].as_u64().unwrap_or_default();
            let commands = self.0["totals"]["commands"].as_u64().unwrap_or_default();
            parts.push(format!("in all {runs} runs, {commands} commands, {cpu:.2} s of CPU"));
        }
        parts.join(", ")
    }
}

/// Reads the lines after a number. Returns them, and the number of the last.
///
/// # Errors
/// `Protocol` for a line that is no JSON.
fn read(directory: &Path, after: u64) -> Result<(Vec<Entry>, u64), CliError> {
    let (mut entries, mut last, mut broken) = (Vec::new(), after, None);
    AuditLog::read(directory, |line| match serde_json::from_str::<Value>(line) {
        Ok(value) => {
            let number = value["seq"].as_u64().unwrap_or_default();
            if number > after {
                last = last.max(number);
                entries.push(Entry(value));
            }
            true
        }
        Err(_) => {
            broken = Some(last + 1);
            false
        }
    })?;
    match broken {
        None => Ok((entries, last)),
        Some(number) => {
            let message = format!("line {number} of the audit log is broken");
            let error = Error::new(ErrorKind::Protocol, "audit", message);
            Err(error.with_hint("`sandboxes audit verify` says more").into())
        }
    }
}

/// Prints entries: for people the ends, and beginnings that have none; in JSON every line.
async fn show(entries: &[Entry], printer: &Printer) -> Result<(), CliError> {
    match printer.format() {
        Format::Text => {
            let ended: std::collections::HashSet<&str> = entries
                .iter()
                .filter(|one| one.text("event") == "end")
                .map(|one| one.text("op"))
                .collect();
            let shown =
                |entry: &&Entry| entry.text("event") == "end" || !ended.contains(entry.text("op"));
            for entry in entries.iter().filter(shown) {
                printer.record(entry.row()).await?;
            }
        }
        Format::Json => {
            printer.json(&json!(entries.iter().map(|entry| &entry.0).collect::<Vec<_>>())).await?;
        }
        Format::JsonLines => {
            for entry in entries {
                printer.json(&entry.0).await?;
            }
        }
    }
    Ok(())
}

async fn verify(directory: &Path, printer: &Printer) -> Result<u8, CliError> {
    let report = AuditLog::verify(directory)?;
    if printer.format() == Format::Text {
        match &report.problem {
            None => {
                let line = format!("{} lines in {} files are whole", report.lines, report.files);
                printer.record(line).await?;
            }
            Some(problem) => {
                printer.failure(&format!("the audit log is not whole: {problem}"), None)
            }
        }
    } else {
        let object = json!({
            "whole": report.problem.is_none(), "lines": report.lines, "files": report.files,
            "problem": report.problem,
        });
        printer.json(&object).await?;
    }
    Ok(if report.problem.is_none() { exit::SUCCESS } else { exit::FAILED })
}

async fn tail(
    directory: &Path,
    count: usize,
    follow: bool,
    printer: &Printer,
) -> Result<u8, CliError> {
    let (entries, mut last) = read(directory, 0)?;
    let ends = entries.into_iter().filter(|entry| entry.text("event") == "end");
    let mut newest = VecDeque::new();
    for entry in ends {
        newest.push_back(entry);
        if newest.len() > count {
            newest.pop_front();
        }
    }
    show(newest.make_contiguous(), printer).await?;
    if !follow {
        return Ok(exit::SUCCESS);
    }
    loop {
        sleep(POLL_INTERVAL).await;
        let (entries, now) = read(directory, last)?;
        last = now;
        let ends: Vec<_> =
            entries.into_iter().filter(|entry| entry.text("event") == "end").collect();
        if !ends.is_empty() {
            show(&ends, printer).await?;
        }
    }
}
