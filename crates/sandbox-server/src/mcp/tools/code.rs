//! `run_code`

use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use sandbox_core::{
    CommandEvent, Error, EventKind, ExecutionResult, FailureKind, InterpreterState, OutputStream,
    Result, ResultCollector, ResultItem, StreamCollector, format_duration, random_hex, seconds,
    unix_now,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::cut::{cut, prefix};
use super::super::html_table;
use super::super::output_log::LogEnd;
use super::super::reply::{ReplyContent, ToolReply};
use super::super::sandboxes::Entry;
use super::super::toolset::{Call, Recording};

/// Languages of the interpreter, whose variables stay.
const INTERPRETER: [&str; 3] = ["python", "python3", "py"];

/// Share of the text of an answer that a traceback has at most.
const TRACEBACK_SHARE: usize = 4;

/// Arguments of `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct RunCodeArguments {
    /// The source code. In Python the value of the last expression is shown, so no print is needed for it.
    code: String,
    /// Language of the code. Python keeps its variables between calls; the others run as a program of their own.
    /// Default: the interpreter of the sandbox, which is Python unless the server has another one.
    language: Option<Language>,
    /// Name of an interpreter with variables of its own, made on first use. Calls in different contexts run at the same
    /// time. Default: "default".
    context: Option<String>,
    /// Limit in seconds; code that takes longer is stopped. Default: that of the server, usually 60.
    timeout: Option<f64>,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    pub(in super::super) sandbox: Option<String>,
}

/// A language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Language {
    Python,
    Bash,
    Javascript,
    Ruby,
    Perl,
    R,
}

impl Language {
    fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
            Self::Javascript => "javascript",
            Self::Ruby => "ruby",
            Self::Perl => "perl",
            Self::R => "r",
        }
    }
}

/// Answer of `run_code`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in super::super) struct CodeAnswer {
    /// True when the code ran to its end, without an exception and with exit status 0.
    success: bool,
    /// The value of the last expression, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    /// Other objects that were displayed, as text; images are in the content of the answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    displayed: Vec<String>,
    /// Number of images in the content of the answer.
    images: usize,
    /// Standard output.
    stdout: String,
    /// Standard error.
    stderr: String,
    /// The exception that the code did not catch.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<CodeProblem>,
    /// Why the code did not run to its end, such as a time limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<RunFailure>,
    /// Exit status, where the code exited with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// True when the run was interrupted.
    interrupted: bool,
    /// `kept` when variables and imports are still there, `lost` when the interpreter is a new one.
    state: String,
    /// Id for read_output, when output was left out here.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_id: Option<String>,
    /// Files that were too large for the answer, in the sandbox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    saved_files: Vec<String>,
    /// What to do about a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Seconds that it ran.
    duration: f64,
    /// Id of the sandbox.
    sandbox: String,
}

/// An exception.
#[derive(Debug, Default, Serialize, JsonSchema)]
struct CodeProblem {
    /// Class, such as ZeroDivisionError.
    name: String,
    /// Message.
    value: String,
    /// End of the traceback.
    traceback: String,
}

/// A failure during a run.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct RunFailure {
    /// Kind, such as timeout or out_of_memory.
    pub(super) kind: String,
    /// The failure in words.
    pub(super) message: String,
}

/// Runs code.
pub(in super::super) async fn run_code(
    call: &Call<'_>,
    arguments: RunCodeArguments,
) -> Result<ToolReply> {
    let entry = call.sandbox(arguments.sandbox.as_deref()).await?;
    let limit = match arguments.timeout {
        Some(limit) => seconds("timeout", limit)?,
        None => call.options().timeout,
    };
    let language = arguments.language.map(Language::name);
    let mut recording = Recording::new(call);
    let runs_inside = language.is_none_or(|language| INTERPRETER.contains(&language))
        && entry.sandbox.capabilities().run_code;
    let result = if runs_inside {
        in_interpreter(&entry, &arguments, language, limit, &mut recording).await?
    } else if arguments.context.is_some() {
        let message =
            "is for the language of the interpreter; other code runs as a program of its own";
        return Err(Error::invalid("context", message));
    } else {
        let language = language.unwrap_or("python");
        as_program(&entry, &arguments.code, language, limit, &mut recording).await?
    };
    answer(call, &entry, result, recording).await
}

async fn in_interpreter(
    entry: &Entry,
    arguments: &RunCodeArguments,
    language: Option<&str>,
    limit: Duration,
    recording: &mut Recording<'_>,
) -> Result<ExecutionResult> {
    let mut run = entry.sandbox.run_code(arguments.code.as_str()).timeout(limit);
    if let Some(language) = language {
        run = run.language(language);
    }
    if let Some(context) = &arguments.context {
        run = run.context(context);
    }
    let mut events = run.stream().await?;
    let mut collector = ResultCollector::new();
    while let Some(event) = events.next().await {
        if let EventKind::Output { stream, data } = &event.kind {
            recording.push(*stream, data);
        }
        collector.push(event);
    }
    Ok(collector.finish())
}

/// Runs code as a program of its own.
async fn as_program(
    entry: &Entry,
    code: &str,
    language: &str,
    limit: Duration,
    recording: &mut Recording<'_>,
) -> Result<ExecutionResult> {
    let none: [&str; 0] = [];
    let commands = entry.sandbox.commands();
    let mut command = commands.run_script(language, code, none).timeout(limit).start().await?;
    let mut streams = [StreamCollector::default(), StreamCollector::default()];
    let mut result = ExecutionResult { started_at: Some(SystemTime::now()), ..Default::default() };
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
                result.exit_code = Some(outcome.exit_code);
                result.execution_ok = outcome.failure.is_none();
                result.failure = outcome.failure;
                result.hint = outcome.hint.or(result.hint.take());
                let took = Duration::try_from_secs_f64(outcome.duration).unwrap_or_default();
                result.completed_at = result.started_at.map(|start| start + took);
            }
            _ => {}
        }
    }
    let [stdout, stderr] = streams;
    (result.logs.stdout, result.stdout_totals) = stdout.finish(false);
    (result.logs.stderr, result.stderr_totals) = stderr.finish(true);
    Ok(result)
}

async fn answer(
    call: &Call<'_>,
    entry: &Entry,
    result: ExecutionResult,
    recording: Recording<'_>,
) -> Result<ToolReply> {
    let most = call.options().max_text;
    let output_id = format!("run-{}", random_hex(4));
    let remedy = format!("read_output with id \"{output_id}\" and cursor 0 reads all of it");
    let stdout = cut(&result.logs.stdout_exact(), most / 2, &remedy);
    let stderr = cut(&result.logs.stderr_exact(), most / 4, &remedy);
    let mut answer = CodeAnswer {
        success: result.success(),
        exit_code: result.exit_code,
        interrupted: result.interrupted,
        state: match result.state {
            InterpreterState::Kept => "kept".to_owned(),
            InterpreterState::Lost => "lost".to_owned(),
        },
        hint: result.hint.as_deref().map(sandbox_core::with_flags),
        duration: result.duration().unwrap_or_default().as_secs_f64(),
        sandbox: entry.id.clone(),
        ..CodeAnswer::default()
    };
    if stdout.is_cut || stderr.is_cut {
        recording.log.finish(LogEnd::Run);
        entry.keep_log(recording.named(&output_id, None))?;
        answer.output_id = Some(output_id);
    }
    (answer.stdout, answer.stderr) = (stdout.text, stderr.text);
    if let Some(error) = &result.code_error {
        answer.error = Some(CodeProblem {
            name: error.name.clone(),
            value: prefix(&error.value, most / TRACEBACK_SHARE).to_owned(),
            traceback: useful_end(&error.traceback, most / TRACEBACK_SHARE),
        });
    }
    if let Some(failure) = &result.failure {
        let kind = failure.kind.as_str().to_owned();
        answer.failure = Some(RunFailure { kind, message: failure.message.clone() });
    }
    let mut shown = Vec::new();
    for (index, item) in result.results.iter().enumerate() {
        shown.push((item.is_main_result, show(call, entry, item, index, &mut answer).await));
    }
    let mut room = most / 2;
    let mut images = Vec::new();
    for (is_main, show) in shown {
        match show {
            Shown::Text(text) => {
                let cut = cut(&text, room, "print a part of it, or save it to a file");
                room = room.saturating_sub(cut.text.len());
                match is_main {
                    true => answer.result = Some(cut.text),
                    false => answer.displayed.push(cut.text),
                }
            }
            Shown::Image(image) => images.push(image),
            Shown::Nothing => {}
        }
    }
    answer.images =
        images.iter().filter(|image| matches!(image, ReplyContent::Image { .. })).count();
    let is_error = !answer.success;
    let mut reply = ToolReply::new(text(&answer, &result), &answer);
    reply.content.extend(images);
    reply.is_error = is_error;
    Ok(reply)
}

enum Shown {
    Text(String),
    Image(ReplyContent),
    Nothing,
}

/// Chooses the form of an object that a model reads best.
async fn show(
    call: &Call<'_>,
    entry: &Entry,
    item: &ResultItem,
    index: usize,
    answer: &mut CodeAnswer,
) -> Shown {
    let images = [
        ("image/png", item.png(), "png"),
        ("image/jpeg", item.jpeg(), "jpg"),
        ("image/gif", item.gif(), "gif"),
    ];
    for (mime_type, data, extension) in images {
        let Some(data) = data else { continue };
        let data: String = data.split_whitespace().collect();
        if data.len() as u64 / 4 * 3 <= call.options().max_image.as_u64() {
            return Shown::Image(ReplyContent::Image { data, mime_type: mime_type.to_owned() });
        }
        return save(call, entry, &decoded(&data), mime_type, extension, index, answer).await;
    }
    if let Some(svg) = item.svg() {
        return save(call, entry, svg.as_bytes(), "image/svg+xml", "svg", index, answer).await;
    }
    if let Some(pdf) = item.pdf() {
        return save(call, entry, &decoded(pdf), "application/pdf", "pdf", index, answer).await;
    }
    let table = item.html().and_then(html_table::markdown);
    let json = || item.json().and_then(|json| serde_json::to_string_pretty(json).ok());
    let text = item.markdown().map(str::to_owned).or(table);
    let text = text.or_else(|| item.latex().map(str::to_owned)).or_else(json);
    match text.or_else(|| item.text().map(str::to_owned)).or_else(|| Some(item.to_string())) {
        Some(text) if !text.is_empty() => Shown::Text(text),
        _ => Shown::Nothing,
    }
}

fn decoded(base64: &str) -> Vec<u8> {
    use base64::Engine as _;
    let compact: String = base64.split_whitespace().collect();
    base64::engine::general_purpose::STANDARD.decode(compact).unwrap_or_default()
}

/// Saves what does not fit an answer as a file of the sandbox.
async fn save(
    call: &Call<'_>,
    entry: &Entry,
    content: &[u8],
    mime_type: &str,
    extension: &str,
    index: usize,
    answer: &mut CodeAnswer,
) -> Shown {
    let path = format!("/tmp/outputs/{}-{index}.{extension}", random_hex(4));
    let saved = entry.sandbox.files().write(&path, content.to_vec()).await;
    match saved {
        Ok(()) => {
            answer.saved_files.push(path.clone());
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            let uri = call.resource_uri(entry, &path);
            Shown::Image(ReplyContent::Link { uri, name, mime_type: Some(mime_type.to_owned()) })
        }
        Err(error) => Shown::Text(format!(
            "[an object of type {mime_type} with {} bytes is not shown: it could not be saved: {error}]",
            content.len()
        )),
    }
}

/// Returns the last lines of a traceback, where the error is.
fn useful_end(traceback: &str, most: usize) -> String {
    if traceback.len() <= most {
        return traceback.to_owned();
    }
    let from = super::super::cut::ceil_boundary(traceback, traceback.len() - most);
    let rest = &traceback[from..];
    let rest = rest.split_once('\n').map_or(rest, |(_, rest)| rest);
    format!("[{} bytes of the beginning left out]\n{rest}", traceback.len() - rest.len())
}

/// Returns the answer as text.
fn text(answer: &CodeAnswer, result: &ExecutionResult) -> String {
    let mut parts = Vec::new();
    if !answer.stdout.is_empty() {
        parts.push(answer.stdout.trim_end_matches('\n').to_owned());
    }
    if !answer.stderr.is_empty() {
        parts.push(format!("[stderr]\n{}", answer.stderr.trim_end_matches('\n')));
    }
    parts.extend(answer.displayed.iter().cloned());
    parts.extend(answer.result.clone());
    if let Some(error) = &answer.error {
        match error.traceback.is_empty() {
            true => parts.push(format!("{}: {}", error.name, error.value)),
            false => parts.push(error.traceback.trim_end().to_owned()),
        }
    }
    if let Some(failure) = &result.failure {
        let after = format_duration(Duration::from_secs_f64(answer.duration.max(0.0)));
        parts.push(match failure.kind {
            FailureKind::Timeout => format!(
                "[stopped after {after}: {}. Give a longer `timeout`, or run it with start_command.]",
                failure.message
            ),
            _ => format!("[failed: {}]", failure.message),
        });
    }
    if let Some(status) = answer.exit_code.filter(|status| *status != 0) {
        parts.push(format!("[exit status {status}]"));
    }
    if answer.interrupted {
        parts.push("[interrupted]".to_owned());
    }
    match (result.state, result.restarted) {
        (InterpreterState::Lost, _) => {
            parts.push(
                "[the interpreter is new: variables and imports are lost, files are kept]"
                    .to_owned(),
            );
        }
        (InterpreterState::Kept, true) => {
            parts.push(
                "[this ran in a new interpreter: earlier variables and imports are lost]"
                    .to_owned(),
            );
        }
        (InterpreterState::Kept, false) => {}
    }
    parts.extend(answer.saved_files.iter().map(|path| format!("[saved in the sandbox: {path}]")));
    parts.extend(answer.hint.as_ref().map(|hint| format!("Hint: {hint}")));
    match parts.is_empty() {
        true if answer.images == 0 => "[no output]".to_owned(),
        _ => parts.join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_traceback_is_kept() {
        let traceback: String =
            (0..100).map(|n| format!("  line {n}\n")).collect::<String>() + "ValueError: x";
        let end = useful_end(&traceback, 100);
        assert!(end.ends_with("  line 99\nValueError: x"), "{end}");
        assert!(end.starts_with('[') && end.len() < 160, "{end}");
        assert_eq!(useful_end("short", 100), "short");
    }
}
