//! `sandboxes test -p A,B`: runs the same checks on several variants, and shows in what they differ.

use std::time::Duration;

use code_sandboxes::{
    Capabilities, CommandResult, ExecutionResult, InterpreterState, IsolationMode, Result, Sandbox,
    Variant,
};
use futures_util::future::join_all;
use serde_json::{Map, Value, json};

use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};

/// Time limit of each check.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit of the checks about time limits.
const SHORT: Duration = Duration::from_secs(1);

/// Maximum length of an answer in the table.
const MAX_ANSWER: usize = 60;

/// One check.
#[derive(Clone, Copy, Debug)]
struct Check {
    name: &'static str,
    probe: Probe,
}

/// What a check does.
#[derive(Clone, Copy, Debug)]
enum Probe {
    /// Runs code.
    Code(&'static str),
    /// Runs code that does not end in time.
    Endless(&'static str),
    /// Runs a line of the shell.
    Command(&'static str),
    /// Runs a line of the shell that does not end in time.
    EndlessCommand(&'static str),
    /// Runs a line of the shell with this standard input.
    Input(&'static str, &'static str),
    /// Writes a file and reads it by these ways.
    Written(By),
    /// Reads a file that is not there.
    Missing,
}

/// The way to read a file.
#[derive(Clone, Copy, Debug)]
enum By {
    Api,
    Code,
    Command,
}

const fn code(name: &'static str, code: &'static str) -> Check {
    Check { name, probe: Probe::Code(code) }
}

const fn command(name: &'static str, line: &'static str) -> Check {
    Check { name, probe: Probe::Command(line) }
}

/// The checks, in this order, in one sandbox.
const CHECKS: [Check; 33] = [
    code("value of a cell", "6 * 7"),
    code("standard output", "print('out')"),
    code("standard error", "import sys; print('err', file=sys.stderr)"),
    code("characters", "'é € 😀'"),
    code("HTML of an object", "class H:\n    def _repr_html_(self): return '<b>x</b>'\nH()"),
    code("exception", "1 / 0"),
    code("broken syntax", "def ("),
    code("status of sys.exit", "import sys; sys.exit(3)"),
    code("variables are set", "kept = 41"),
    code("variables are kept", "kept + 1"),
    code("await in a cell", "import asyncio\nawait asyncio.sleep(0, 'done')"),
    code("input without input", "input()"),
    code("version of Python", "import sys; '%d.%d' % sys.version_info[:2]"),
    code("working directory of code", "import os; os.getcwd()"),
    code("code is root", "import os; os.getuid() == 0"),
    code("code may write to /tmp", "open('/tmp/parity', 'w').write('x')"),
    code("code may write to /usr", "open('/usr/parity', 'w').write('x')"),
    code(
        "connections to the internet",
        "import socket\ntry: socket.create_connection(('1.1.1.1', 53), 3).close(); answer = 'open'\nexcept OSError: answer = 'closed'\nanswer",
    ),
    command("output of a command", "echo out"),
    command("streams of a command are apart", "echo out; echo err >&2"),
    command("status of a command", "exit 3"),
    command("command that is not found", "no-such-program-anywhere"),
    command("command that a signal ends", "kill -9 $$"),
    command("working directory of commands", "pwd"),
    command("much output", "head -c 300000 /dev/zero | tr '\\0' x | wc -c"),
    Check { name: "standard input of a command", probe: Probe::Input("cat", "in") },
    Check { name: "file read back", probe: Probe::Written(By::Api) },
    Check { name: "file seen by code", probe: Probe::Written(By::Code) },
    Check { name: "file seen by commands", probe: Probe::Written(By::Command) },
    Check { name: "file that is missing", probe: Probe::Missing },
    Check { name: "time limit of a command", probe: Probe::EndlessCommand("sleep 60") },
    Check { name: "time limit of code", probe: Probe::Endless("import time; time.sleep(60)") },
    code("end of the interpreter", "import os; os._exit(3)"),
];

/// The answers of one variant, in the order of the checks.
#[derive(Debug)]
struct Answers {
    variant: Variant,
    capabilities: Capabilities,
    answers: Vec<String>,
}

/// Runs the checks on all variants at the same time, and prints in what they differ.
///
/// # Errors
/// The first error of making or ending a sandbox.
pub(crate) async fn compare(
    variants: Vec<Variant>,
    isolation: IsolationMode,
    printer: &Printer,
) -> Result<u8, CliError> {
    let all = join_all(variants.into_iter().map(|variant| answers(variant, isolation))).await;
    let all = all.into_iter().collect::<Result<Vec<_>>>()?;
    let names = CHECKS.iter().map(|check| check.name.to_owned());
    let checks: Vec<_> =
        names.enumerate().map(|(at, name)| row(name, &all, |of| of.answers[at].clone())).collect();
    let entries: Vec<_> = all.iter().map(|of| of.capabilities.entries()).collect();
    let capabilities =
        Capabilities::default().entries().into_iter().enumerate().map(|(at, (name, _))| {
            let mut cells = vec![format!("capability {name}")];
            cells.extend(entries.iter().map(|of| if of[at].1 { "yes" } else { "no" }.to_owned()));
            cells
        });
    let rows: Vec<_> = checks.into_iter().chain(capabilities).collect();
    if printer.format() != Format::Text {
        let objects: Vec<_> = rows.iter().map(|row| object(row, &all)).collect();
        printer.json(&json!(objects)).await?;
        return Ok(exit::SUCCESS);
    }
    let total = rows.len();
    let different: Vec<_> = rows.into_iter().filter(|row| !is_alike(row)).collect();
    let alike = total - different.len();
    if !different.is_empty() {
        let variants: Vec<_> = all.iter().map(|of| of.variant.to_string()).collect();
        let mut headers = vec!["Difference"];
        headers.extend(variants.iter().map(String::as_str));
        printer.table(&headers, different).await?;
    }
    printer.note(&format!("alike in {alike} of {total} checks and capabilities"));
    Ok(exit::SUCCESS)
}

fn row(name: String, all: &[Answers], answer: impl Fn(&Answers) -> String) -> Vec<String> {
    std::iter::once(name).chain(all.iter().map(answer)).collect()
}

fn is_alike(row: &[String]) -> bool {
    row[1..].windows(2).all(|pair| pair[0] == pair[1])
}

fn object(row: &[String], all: &[Answers]) -> Value {
    let answers = all.iter().zip(&row[1..]);
    let answers: Map<String, Value> =
        answers.map(|(of, answer)| (of.variant.to_string(), answer.as_str().into())).collect();
    json!({"check": row[0], "alike": is_alike(row), "answers": answers})
}

async fn answers(variant: Variant, isolation: IsolationMode) -> Result<Answers> {
    let builder = Sandbox::builder().variant(variant).isolation(isolation);
    builder
        .scope(async |sandbox| {
            let mut answers = Vec::new();
            for check in CHECKS {
                answers.push(shortened(answer(sandbox, check.probe).await));
            }
            Ok(Answers { variant, capabilities: sandbox.capabilities(), answers })
        })
        .await
}

fn shortened(answer: String) -> String {
    if answer.chars().count() <= MAX_ANSWER {
        return answer;
    }
    answer.chars().take(MAX_ANSWER).chain("..".chars()).collect()
}

async fn answer(sandbox: &Sandbox, probe: Probe) -> String {
    const CONTENT: &[u8] = b"a\0\xff\n";
    const READ: &str = "open('parity.bin', 'rb').read()";
    match probe {
        Probe::Code(code) => of_code(sandbox.run_code(code).timeout(TIMEOUT).await),
        Probe::Endless(code) => of_code(sandbox.run_code(code).timeout(SHORT).await),
        Probe::Command(line) => of_command(sandbox.commands().run(line).timeout(TIMEOUT).await),
        Probe::EndlessCommand(line) => {
            of_command(sandbox.commands().run(line).timeout(SHORT).await)
        }
        Probe::Input(line, input) => {
            of_command(sandbox.commands().run(line).stdin(input).timeout(TIMEOUT).await)
        }
        Probe::Missing => match sandbox.files().read("no-such-file").await {
            Ok(_) => "read".to_owned(),
            Err(error) => error.kind().to_string(),
        },
        Probe::Written(by) => {
            if let Err(error) = sandbox.files().write("parity.bin", CONTENT).await {
                return error.kind().to_string();
            }
            match by {
                By::Api => match sandbox.files().read("parity.bin").await {
                    Ok(read) if read == CONTENT => "the same".to_owned(),
                    Ok(read) => format!("{} other bytes", read.len()),
                    Err(error) => error.kind().to_string(),
                },
                By::Code => of_code(sandbox.run_code(READ).timeout(TIMEOUT).await),
                By::Command => {
                    let line = "wc -c < parity.bin | tr -d ' '";
                    of_command(sandbox.commands().run(line).timeout(TIMEOUT).await)
                }
            }
        }
    }
}

fn of_code(result: Result<ExecutionResult>) -> String {
    let result = match result {
        Ok(result) => result,
        Err(error) => return error.kind().to_string(),
    };
    if let Some(failure) = &result.failure {
        let state = if result.state == InterpreterState::Kept { "kept" } else { "lost" };
        return format!("{}, state {state}", failure.kind);
    }
    let mut parts = Vec::new();
    if let Some(error) = &result.code_error {
        parts.push(error.name.clone());
    }
    parts.extend(result.exit_code.map(|status| format!("exit {status}")));
    let html = result.results.iter().any(|item| item.html().is_some());
    parts.extend(html.then(|| "HTML".to_owned()));
    parts.extend(result.text().filter(|_| !html).map(str::to_owned));
    for (name, text) in [("stdout", result.stdout_trimmed()), ("stderr", result.stderr_trimmed())] {
        // A traceback on standard error is that of the exception.
        if !text.is_empty() && result.code_error.is_none() {
            parts.push(format!("{name} {text}"));
        }
    }
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

fn of_command(result: Result<CommandResult>) -> String {
    let result = match result {
        Ok(result) => result,
        Err(error) => return error.kind().to_string(),
    };
    if let Some(failure) = &result.failure {
        return failure.kind.to_string();
    }
    let mut parts = vec![format!("status {}", result.exit_code)];
    let has_message = result.exit_code == 127;
    for (name, text) in [("stdout", &result.stdout), ("stderr", &result.stderr)] {
        // Shells word their messages differently.
        if !text.is_empty() && !has_message {
            parts.push(format!("{name} {}", text.trim_end()));
        }
    }
    parts.join(", ")
}
