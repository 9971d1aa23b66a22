//! `run_command`, `start_command`, `read_output`, `write_stdin` and `stop_command`

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use sandbox_core::{
    CommandEvent, CommandOutcome, CommandResult, Error, ErrorKind, OutputStream, PtySize, Result,
    StreamCollector, random_hex, seconds, unix_now, with_flags,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::cut::cut;
use super::super::output_log::{LogEnd, LogPiece, OutputLog};
use super::super::reply::ToolReply;
use super::super::sandboxes::NamedLog;
use super::super::toolset::{Call, Recording};
use super::code::RunFailure;

/// Time for the first output of a started command.
const FIRST_OUTPUT: Duration = Duration::from_millis(500);

/// Maximum time that one read waits.
const MAX_WAIT: f64 = 300.0;

/// Time for a command to end after a signal, before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Arguments of `run_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct RunCommand {
    /// A line for /bin/sh, such as "ls -la | wc -l".
    command: String,
    /// Working directory. Default: that of the sandbox.
    cwd: Option<String>,
    /// Environment variables for this command.
    env: Option<BTreeMap<String, String>>,
    /// Text for its standard input.
    stdin: Option<String>,
    /// Limit in seconds; a command that takes longer is ended with everything it started. Default: that of the server,
    /// usually 60.
    timeout: Option<f64>,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Answer of `run_command`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in super::super) struct CommandAnswer {
    /// Exit status; 128 + n after signal n.
    exit_code: i32,
    /// Standard output.
    stdout: String,
    /// Standard error.
    stderr: String,
    /// Why the command did not end by itself, such as a time limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<RunFailure>,
    /// Id for read_output, when output was left out here.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_id: Option<String>,
    /// What to do about a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Seconds that it ran.
    duration: f64,
    /// Id of the sandbox.
    sandbox: String,
}

/// Runs a command to its end.
pub(in super::super) async fn run_command(
    call: &Call<'_>,
    arguments: RunCommand,
) -> Result<ToolReply> {
    let entry = call.sandbox(arguments.sandbox.as_deref()).await?;
    let limit = match arguments.timeout {
        Some(limit) => seconds("timeout", limit)?,
        None => call.options().timeout,
    };
    let commands = entry.sandbox.commands();
    let mut command = commands.run(arguments.command.as_str()).timeout(limit);
    if let Some(cwd) = arguments.cwd {
        command = command.cwd(cwd);
    }
    for (name, value) in arguments.env.unwrap_or_default() {
        command = command.env(name, value);
    }
    if let Some(input) = arguments.stdin {
        command = command.stdin(input);
    }
    let mut recording = Recording::new(call);
    let result = collect(command.start().await?, &mut recording).await;
    let most = call.options().max_text;
    let output_id = format!("run-{}", random_hex(4));
    let remedy = format!("read_output with id \"{output_id}\" and cursor 0 reads all of it");
    let stdout = cut(&result.stdout, most * 2 / 3, &remedy);
    let stderr = cut(&result.stderr, most / 3, &remedy);
    let is_cut = stdout.is_cut || stderr.is_cut;
    if is_cut {
        recording.log.finish(LogEnd::Run);
        entry.keep_log(recording.named(&output_id, None))?;
    }
    let answer = CommandAnswer {
        exit_code: result.exit_code,
        stdout: stdout.text,
        stderr: stderr.text,
        failure: result.failure.as_ref().map(|failure| RunFailure {
            kind: failure.kind.as_str().to_owned(),
            message: failure.message.clone(),
        }),
        output_id: is_cut.then_some(output_id),
        hint: result.hint.as_deref().map(with_flags),
        duration: result.duration.as_secs_f64(),
        sandbox: entry.id.clone(),
    };
    let mut parts = Vec::new();
    if !answer.stdout.is_empty() {
        parts.push(answer.stdout.trim_end_matches('\n').to_owned());
    }
    if !answer.stderr.is_empty() {
        parts.push(format!("[stderr]\n{}", answer.stderr.trim_end_matches('\n')));
    }
    match &answer.failure {
        Some(failure) => parts.push(format!("[failed: {}]", failure.message)),
        None if answer.exit_code != 0 => parts.push(format!("[exit status {}]", answer.exit_code)),
        None => {}
    }
    parts.extend(answer.hint.as_ref().map(|hint| format!("Hint: {hint}")));
    if parts.is_empty() {
        parts.push("[no output]".to_owned());
    }
    let mut reply = ToolReply::new(parts.join("\n"), &answer);
    reply.is_error = answer.failure.is_some();
    Ok(reply)
}

async fn collect(
    mut command: sandbox_core::Command,
    recording: &mut Recording<'_>,
) -> CommandResult {
    let mut streams = [StreamCollector::default(), StreamCollector::default()];
    let mut result = CommandResult::default();
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { stream, data } => {
                recording.push(stream, &data);
                let error = stream == OutputStream::Stderr;
                streams[usize::from(error)].push(&data, unix_now(), error);
            }
            CommandEvent::Skipped { stream, bytes } => {
                recording.skip(bytes);
                streams[usize::from(stream == OutputStream::Stderr)].skip(bytes);
            }
            CommandEvent::Hint { text } => result.hint = Some(text),
            CommandEvent::Finished(outcome) => {
                (result.exit_code, result.signal) = (outcome.exit_code, outcome.signal);
                result.failure = outcome.failure;
                result.duration = Duration::try_from_secs_f64(outcome.duration).unwrap_or_default();
                result.hint = outcome.hint.or(result.hint.take());
            }
            _ => {}
        }
    }
    let [stdout, stderr] = streams;
    let mut logs = sandbox_core::Logs::default();
    (logs.stdout, result.stdout_totals) = stdout.finish(false);
    (logs.stderr, result.stderr_totals) = stderr.finish(true);
    (result.stdout, result.stderr) = (logs.stdout_exact(), logs.stderr_exact());
    result
}

/// Arguments of `start_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct StartCommandArguments {
    /// A line for /bin/sh, such as "python3 -m http.server 8000".
    command: String,
    /// Working directory. Default: that of the sandbox.
    cwd: Option<String>,
    /// Environment variables for this command.
    env: Option<BTreeMap<String, String>>,
    /// Runs it on a terminal, for programs that ask for one. Default: false.
    terminal: Option<bool>,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Answer of `start_command`, `read_output` and `stop_command`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in super::super) struct OutputAnswer {
    /// Id of the command or the run.
    id: String,
    /// Output, both streams in the order in which it came.
    output: String,
    /// Cursor for the next read_output.
    cursor: u64,
    /// True when there is more to read now.
    more: bool,
    /// True while the command runs.
    running: bool,
    /// Exit status, once the command has ended and everything was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Why the command did not end by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<RunFailure>,
    /// Bytes before this output that are no longer kept.
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
    /// What to do about a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Starts a command in the background.
pub(in super::super) async fn start_command(
    call: &Call<'_>,
    arguments: StartCommandArguments,
) -> Result<ToolReply> {
    let entry = call.sandbox(arguments.sandbox.as_deref()).await?;
    let capabilities = entry.sandbox.capabilities();
    let commands = entry.sandbox.commands();
    let mut command = commands.run(arguments.command.as_str());
    if let Some(cwd) = arguments.cwd {
        command = command.cwd(cwd);
    }
    for (name, value) in arguments.env.unwrap_or_default() {
        command = command.env(name, value);
    }
    if arguments.terminal.unwrap_or_default() {
        command = command.pty(PtySize::default());
    }
    if capabilities.command_stdin {
        command = command.interactive();
    }
    if entry.stays && capabilities.command_background {
        command = command.background();
    }
    let command = command.start().await?;
    let (id, control) = (format!("cmd-{}", random_hex(4)), Arc::clone(&command.control));
    let log = Arc::new(OutputLog::default());
    let named = NamedLog { id: id.clone(), log: Arc::clone(&log), control: Some(control) };
    entry.keep_log(named)?;
    tokio::spawn(pump(command, Arc::clone(&log)));
    log.wait_end(FIRST_OUTPUT).await;
    let piece = log.read(0, call.options().max_text);
    Ok(output_reply(&id, &log, piece))
}

/// Moves the events of a command into its log until it ends.
async fn pump(mut command: sandbox_core::Command, log: Arc<OutputLog>) {
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { stream, data } => drop(log.push(stream, &data)),
            CommandEvent::Skipped { bytes, .. } => log.skip(bytes),
            CommandEvent::Finished(outcome) => log.finish(LogEnd::Command(outcome)),
            _ => {}
        }
    }
    log.finish(LogEnd::Lost);
}

/// Arguments of `read_output`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ReadOutput {
    /// Id from start_command, or from a result whose output was cut.
    id: String,
    /// Where to begin: the `cursor` of the last answer. Default: 0, the beginning.
    cursor: Option<u64>,
    /// Seconds to wait for new output or the end of the command, at most 300. Default: 0.
    wait: Option<f64>,
    /// Waits until the command ends, or `wait` has passed, instead of returning the first output. Default: false.
    until_end: Option<bool>,
    /// Id of the sandbox that the command runs in. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Reads output from a cursor on.
pub(in super::super) async fn read_output(
    call: &Call<'_>,
    arguments: ReadOutput,
) -> Result<ToolReply> {
    let entry = call.existing(arguments.sandbox.as_deref()).await?;
    let named = entry.log(&arguments.id)?;
    let cursor = arguments.cursor.unwrap_or_default();
    let wait = arguments.wait.unwrap_or_default();
    if !(0.0..=MAX_WAIT).contains(&wait) {
        return Err(Error::invalid("wait", format!("must be from 0 to {MAX_WAIT}, got {wait}")));
    }
    if wait > 0.0 {
        let limit = Duration::from_secs_f64(wait);
        match arguments.until_end.unwrap_or_default() {
            true => drop(named.log.wait_end(limit).await),
            false => named.log.wait_beyond(cursor, limit).await,
        }
    }
    let piece = named.log.read(cursor, call.options().max_text);
    Ok(output_reply(&named.id, &named.log, piece))
}

fn output_reply(id: &str, log: &OutputLog, piece: LogPiece) -> ToolReply {
    let mut answer = OutputAnswer {
        id: id.to_owned(),
        output: piece.text,
        cursor: piece.next,
        more: piece.more,
        running: log.end().is_none(),
        dropped: piece.dropped,
        ..OutputAnswer::default()
    };
    let mut parts = Vec::new();
    if answer.dropped > 0 {
        parts.push(format!("[{} bytes before this are no longer kept]", answer.dropped));
    }
    if !answer.output.is_empty() {
        parts.push(answer.output.trim_end_matches('\n').to_owned());
    }
    match &piece.end {
        Some(LogEnd::Command(outcome)) => {
            let CommandOutcome { exit_code, failure, hint, .. } = outcome;
            answer.exit_code = Some(*exit_code);
            answer.failure = failure.as_ref().map(|failure| RunFailure {
                kind: failure.kind.as_str().to_owned(),
                message: failure.message.clone(),
            });
            answer.hint = hint.as_deref().map(with_flags);
            match failure {
                Some(failure) => parts.push(format!("[failed: {}]", failure.message)),
                None => parts.push(format!("[ended with exit status {exit_code}]")),
            }
            parts.extend(answer.hint.as_ref().map(|hint| format!("Hint: {hint}")));
        }
        Some(LogEnd::Lost) => {
            parts.push("[its end was not reported: the sandbox has ended]".to_owned())
        }
        Some(LogEnd::Run) => parts.push("[that is all]".to_owned()),
        None if answer.more => {
            parts
                .push(format!("[more: read_output with id \"{id}\" and cursor {}]", answer.cursor));
        }
        None => parts.push(format!(
            "[running: read_output with id \"{id}\", cursor {} and wait reads what follows]",
            answer.cursor
        )),
    }
    ToolReply::new(parts.join("\n"), &answer)
}

/// Arguments of `write_stdin`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct WriteStdin {
    /// Id from start_command.
    id: String,
    /// Text to write. A program that reads lines needs a newline at the end.
    text: Option<String>,
    /// Ends the input after the text. Default: false.
    close: Option<bool>,
    /// Id of the sandbox that the command runs in. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Answer of `write_stdin`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct WrittenAnswer {
    /// Bytes that were written.
    bytes: usize,
    /// True when the input has ended.
    closed: bool,
    /// Position in the output before the text was written, for read_output.
    cursor: u64,
}

/// Writes to the input of a command.
pub(in super::super) async fn write_stdin(
    call: &Call<'_>,
    arguments: WriteStdin,
) -> Result<ToolReply> {
    let entry = call.existing(arguments.sandbox.as_deref()).await?;
    let named = entry.log(&arguments.id)?;
    let control = control_of(&named)?;
    let cursor = named.log.position();
    let text = arguments.text.unwrap_or_default();
    let (bytes, closed) = (text.len(), arguments.close.unwrap_or_default());
    if bytes > 0 {
        control.write_stdin(text.into()).await?;
    }
    if closed {
        control.close_stdin().await?;
    }
    let answer = WrittenAnswer { bytes, closed, cursor };
    let end = if closed { ", and the input has ended" } else { "" };
    let text = format!(
        "{bytes} bytes written{end}; read_output with id \"{}\" and cursor {cursor} reads the answer",
        named.id
    );
    Ok(ToolReply::new(text, &answer))
}

/// Arguments of `stop_command`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct StopCommand {
    /// Id from start_command.
    id: String,
    /// Way to stop it: interrupt as Ctrl-C does, terminate, or kill at once. The first two kill what has not ended after
    /// five seconds. Default: terminate.
    signal: Option<StopSignal>,
    /// Id of the sandbox that the command runs in. Default: the sandbox of this session.
    sandbox: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum StopSignal {
    Interrupt,
    #[default]
    Terminate,
    Kill,
}

impl StopSignal {
    fn number(self) -> i32 {
        match self {
            Self::Interrupt => 2,
            Self::Terminate => 15,
            Self::Kill => 9,
        }
    }
}

/// Ends a command and everything it started.
pub(in super::super) async fn stop_command(
    call: &Call<'_>,
    arguments: StopCommand,
) -> Result<ToolReply> {
    let entry = call.existing(arguments.sandbox.as_deref()).await?;
    let named = entry.log(&arguments.id)?;
    let control = control_of(&named)?;
    let signal = arguments.signal.unwrap_or_default();
    if named.log.end().is_none() {
        control.signal(signal.number(), true).await?;
        if !named.log.wait_end(GRACE).await && signal != StopSignal::Kill {
            control.signal(StopSignal::Kill.number(), true).await?;
            named.log.wait_end(GRACE).await;
        }
    }
    let most = call.options().max_text as u64;
    let piece = named.log.read(named.log.position().saturating_sub(most), call.options().max_text);
    Ok(output_reply(&named.id, &named.log, LogPiece { dropped: 0, ..piece }))
}

fn control_of(named: &NamedLog) -> Result<&Arc<dyn sandbox_core::CommandControl>> {
    named.control.as_ref().ok_or_else(|| {
        let message = format!("{} is the output of a run that is over, and no command", named.id);
        Error::new(ErrorKind::InvalidArgument, "command", message)
            .with_hint("start_command gives the id of a command")
    })
}
