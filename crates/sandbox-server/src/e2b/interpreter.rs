//! The code interpreter of a sandbox: runs as lines of JSON, and contexts.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{
    CallContext, CodeOps, ContextSpec, DisplayKind, Error, ErrorKind, Event, EventKind,
    EventStream, Failure, OutputStream, ResultItem, RunCode, RunOutcome, Utf8Decoder,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};

use super::app::{AnySandbox, has_token, may_reach_ports, unauthorized};
use super::error::{ApiError, message_of};
use super::extract::JsonBody;
use super::log::Level;
use super::record::Record;

/// Time between signs of life while code is silent.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// How long the head of an answer may wait for the lines of a short run.
const HEAD_DELAY: Duration = Duration::from_millis(10);

/// Lines that go with the head of an answer, at most.
const MAX_HEAD_LINES: usize = 16;

/// The MIME type of the data of a chart.
const CHART: &str = "application/vnd.code-sandboxes.chart+json";

/// The MIME type of the data of a table.
const DATA: &str = "application/vnd.code-sandboxes.data+json";

/// The context that is always there, and its language.
const DEFAULT: &str = "default";
const PYTHON: &str = "python";

/// A request to run code. Absent and null are the same.
#[derive(Deserialize)]
pub(super) struct ExecuteRequest {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Deserialize)]
pub(super) struct ContextRequest {
    cwd: Option<String>,
    language: Option<String>,
}

/// An error of the interpreter: plain text.
pub(super) struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::InvalidArgument | ErrorKind::Unsupported => StatusCode::BAD_REQUEST,
            ErrorKind::Terminated => StatusCode::BAD_GATEWAY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, message_of(&error))
    }
}

/// Checks the tokens. Of the calls about contexts clients send none but that for the ports.
fn check(record: &Record, headers: &HeaderMap, needs_envd_token: bool) -> Result<(), ApiError> {
    if !may_reach_ports(record, headers) || (needs_envd_token && !has_token(record, headers)) {
        return Err(unauthorized());
    }
    Ok(())
}

/// Returns the name of a language as backends know it. `None`: python, which is the default.
fn language(name: Option<&str>) -> Option<String> {
    match name.map(str::to_ascii_lowercase).as_deref() {
        None | Some("" | PYTHON) => None,
        Some("js") => Some("javascript".to_owned()),
        Some("ts") => Some("typescript".to_owned()),
        Some(other) => Some(other.to_owned()),
    }
}

/// Runs code and streams what it does. A client that drops the connection interrupts the code.
pub(super) async fn execute(
    AnySandbox(record): AnySandbox,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ExecuteRequest>,
) -> Result<Response, Response> {
    check(&record, &headers, true).map_err(IntoResponse::into_response)?;
    let events = run(&record, request).await.map_err(IntoResponse::into_response)?;
    Ok(lines(record, events).await)
}

async fn run(record: &Record, request: ExecuteRequest) -> Result<EventStream, Refusal> {
    if request.context_id.is_some() && request.language.is_some() {
        let message = "Only one of context_id or language can be provided";
        return Err(Refusal(StatusCode::BAD_REQUEST, message.to_owned()));
    }
    let code = record.instance.code()?;
    let mut run = RunCode::new(request.code);
    run.env.extend(request.env_vars.unwrap_or_default());
    if let Some(id) = request.context_id.as_deref().filter(|id| *id != DEFAULT) {
        // A backend makes a context for a name that it does not know.
        exists(record, id).await?;
    }
    run.context = match (request.context_id, language(request.language.as_deref())) {
        (Some(id), _) => Some(id),
        (None, Some(language)) => Some(context_of(code, language).await?),
        (None, None) => None,
    };
    run.validate()?;
    Ok(code.run_code(&CallContext::new(), run).await?)
}

/// Returns the context that a language has in each sandbox, and makes it for the first run.
async fn context_of(code: &dyn CodeOps, language: String) -> Result<String, Refusal> {
    let id = format!("default-{language}");
    let mut spec = ContextSpec::default();
    spec.id = Some(id.clone());
    spec.language = Some(language.clone());
    match code.create_context(&CallContext::new(), spec).await {
        Ok(_) => Ok(id),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(id),
        Err(error) => Err(no_language(&language, error)),
    }
}

fn no_language(language: &str, error: Error) -> Refusal {
    match error.kind() {
        ErrorKind::Unsupported | ErrorKind::NotFound | ErrorKind::InvalidArgument => {
            let message =
                format!("Language {language} is not available here: {}", message_of(&error));
            Refusal(StatusCode::BAD_REQUEST, message)
        }
        _ => error.into(),
    }
}

/// What is still to come of a run, and what is needed to show it.
struct Lines {
    record: Arc<Record>,
    events: EventStream,
    decoders: [Utf8Decoder; 2],
    over: bool,
    /// The context of the run and its number, as clients were told.
    announced: (String, u64),
}

async fn lines(record: Arc<Record>, events: EventStream) -> Response {
    let (decoders, announced) = Default::default();
    let mut lines = Lines { record, events, decoders, over: false, announced };
    // One timer for the head and for signs of life: each that is set costs a short run a call to the kernel.
    let mut timer = Box::pin(sleep(HEAD_DELAY));
    let mut first = Vec::new();
    // The client wakes up once for a short run: its lines go with the head of the answer, which tells their length.
    for _ in 0..MAX_HEAD_LINES {
        tokio::select! {
            biased;
            piece = lines.next() => match piece {
                Some(piece) => first.extend(piece),
                None => break,
            },
            () = &mut timer => break,
        }
    }
    let body = if lines.over {
        Body::from(first)
    } else {
        let rest = stream::unfold((lines, timer), |(mut lines, mut timer)| async move {
            timer.as_mut().reset(Instant::now() + KEEPALIVE);
            let piece = tokio::select! {
                biased;
                piece = lines.next() => piece?,
                () = &mut timer => line(&json!({ "type": "keepalive" })),
            };
            Some((Bytes::from(piece), (lines, timer)))
        });
        let first = (!first.is_empty()).then(|| Bytes::from(first));
        Body::from_stream(stream::iter(first).chain(rest).map(Ok::<_, Infallible>))
    };
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

fn line(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

impl Lines {
    /// Returns what the next events are for the client; `None` after the last one. Dropping the future loses no event.
    async fn next(&mut self) -> Option<Vec<u8>> {
        while !self.over {
            let piece = match self.events.next().await {
                Some(event) => self.show(event),
                None => {
                    self.over = true;
                    Vec::new()
                }
            };
            if !piece.is_empty() {
                return Some(piece);
            }
        }
        None
    }

    /// Translates one event.
    fn show(&mut self, event: Event) -> Vec<u8> {
        let Event { timestamp, kind, .. } = event;
        match kind {
            EventKind::Started { context_id, restarted } => self.announce(context_id, restarted),
            EventKind::Output { stream, data } => {
                let text = self.decoders[usize::from(stream == OutputStream::Stderr)].push(&data);
                text_line(stream, &text, timestamp)
            }
            EventKind::Display { display, item, .. } => line(&result(item, display)),
            EventKind::Error(error) => line(&json!({
                "type": "error", "name": error.name, "value": error.value, "traceback": error.traceback,
            })),
            EventKind::Finished(outcome) => {
                self.over = true;
                self.record.log.add(level_of(&outcome), "Code has run", summary(&outcome));
                let mut all = Vec::new();
                for (at, stream) in
                    [OutputStream::Stdout, OutputStream::Stderr].into_iter().enumerate()
                {
                    let rest = self.decoders[at].flush();
                    all.extend(text_line(stream, &rest, timestamp));
                }
                if let Some(failure) = outcome.failure {
                    all.extend(line(&failed(&failure, outcome.hint.as_deref())));
                } else if let Some(status) = outcome.exit_code {
                    all.extend(line(&json!({
                        "type": "error", "name": "SystemExit", "value": status.to_string(), "traceback": "",
                    })));
                }
                all.extend(self.count(outcome.execution_count));
                all.extend(line(&json!({ "type": "end_of_execution" })));
                all
            }
            _ => Vec::new(),
        }
    }
}

impl Lines {
    fn counts(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.record.execution_counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the number of a run when the run starts, as clients expect. Backends tell the number with the end, so it is
    /// the one after the last.
    fn announce(&mut self, context: String, is_new: bool) -> Vec<u8> {
        let last = self.counts().get(&context).copied().filter(|_| !is_new);
        let count = last.unwrap_or_default() + 1;
        self.announced = (context, count);
        count_line(count)
    }

    /// Notes the number that the backend tells, and tells clients where it is another one.
    fn count(&mut self, count: u64) -> Vec<u8> {
        let (context, announced) = std::mem::take(&mut self.announced);
        self.counts().insert(context, count);
        if announced == count { Vec::new() } else { count_line(count) }
    }
}

fn count_line(count: u64) -> Vec<u8> {
    line(&json!({ "type": "number_of_executions", "execution_count": count }))
}

/// Returns the level of the end of a run in the log of the sandbox.
fn level_of(outcome: &RunOutcome) -> Level {
    if outcome.failure.is_some() { Level::Error } else { Level::Info }
}

/// Returns the fields of the end of a run in the log of the sandbox.
fn summary(outcome: &RunOutcome) -> Value {
    let mut fields =
        json!({ "seconds": format!("{:.3}", outcome.completed_at - outcome.started_at) });
    if let Some(failure) = &outcome.failure {
        fields["failure"] = failure.kind.as_str().into();
    }
    fields
}

fn text_line(stream: OutputStream, text: &str, timestamp: f64) -> Vec<u8> {
    if text.is_empty() {
        return Vec::new();
    }
    let kind = if stream == OutputStream::Stderr { "stderr" } else { "stdout" };
    // Clients take the time in nanoseconds.
    #[expect(clippy::cast_possible_truncation, reason = "a time of this century")]
    let timestamp = (timestamp * 1e9) as i64;
    line(&json!({ "type": kind, "text": text, "timestamp": timestamp }))
}

/// Describes a run that did not end by itself, as an exception with the name of its failure.
fn failed(failure: &Failure, hint: Option<&str>) -> Value {
    let name: String = failure.kind.as_str().split('_').map(capitalized).collect();
    let value = match hint {
        Some(hint) => format!("{}; {hint}", failure.message),
        None => failure.message.clone(),
    };
    json!({ "type": "error", "name": name, "value": value, "traceback": "" })
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Describes a displayed object: a field for each common MIME type, and the others under `extra`.
fn result(item: ResultItem, display: DisplayKind) -> Value {
    const FIELDS: [(&str, &str); 12] = [
        ("text", "text/plain"),
        ("html", "text/html"),
        ("markdown", "text/markdown"),
        ("svg", "image/svg+xml"),
        ("png", "image/png"),
        ("jpeg", "image/jpeg"),
        ("pdf", "application/pdf"),
        ("latex", "text/latex"),
        ("json", "application/json"),
        ("javascript", "application/javascript"),
        ("data", DATA),
        ("chart", CHART),
    ];
    let mut data = item.data;
    let mut shown = Map::new();
    shown.insert("type".into(), "result".into());
    for (field, mime) in FIELDS {
        let Some(mut value) = data.remove(mime) else { continue };
        if field == "text" {
            value = value.as_str().map_or(Value::Null, |text| without_quotes(text).into());
        }
        shown.insert(field.into(), value);
    }
    if !data.is_empty() {
        shown.insert("extra".into(), data.into_iter().collect::<Map<_, _>>().into());
    }
    let is_main = item.is_main_result || display == DisplayKind::Result;
    shown.insert("is_main_result".into(), is_main.into());
    shown.into()
}

/// Returns the text of a string without the quotes around it, as clients are used to.
fn without_quotes(text: &str) -> &str {
    let inner = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    inner('\'').or_else(|| inner('"')).unwrap_or(text)
}

/// Makes a context.
pub(super) async fn create_context(
    AnySandbox(record): AnySandbox,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ContextRequest>,
) -> Result<Json<Value>, Response> {
    check(&record, &headers, false).map_err(IntoResponse::into_response)?;
    let wanted = language(request.language.as_deref());
    let mut spec = ContextSpec::default();
    spec.language.clone_from(&wanted);
    spec.cwd = Some(record.user.absolute(request.cwd.as_deref().unwrap_or_default()));
    let made = async {
        let code = record.instance.code()?;
        match code.create_context(&CallContext::new(), spec).await {
            Ok(context) => Ok(context),
            Err(error) => Err(match &wanted {
                Some(language) => no_language(language, error),
                None => Refusal::from(error),
            }),
        }
    };
    let context = made.await.map_err(IntoResponse::into_response)?;
    Ok(Json(context_json(&record, context)))
}

fn context_json(record: &Record, context: sandbox_core::Context) -> Value {
    let language = if context.language.is_empty() { PYTHON.to_owned() } else { context.language };
    let cwd = context.cwd.unwrap_or_else(|| record.user.home.clone());
    json!({ "id": context.id, "language": language, "cwd": cwd })
}

/// Lists the contexts.
pub(super) async fn list_contexts(
    AnySandbox(record): AnySandbox,
    headers: HeaderMap,
) -> Result<Json<Value>, Response> {
    check(&record, &headers, false).map_err(IntoResponse::into_response)?;
    let listed = async { record.instance.code()?.list_contexts(&CallContext::new()).await };
    let contexts = listed.await.map_err(|error| Refusal::from(error).into_response())?;
    let contexts = contexts.into_iter().map(|context| context_json(&record, context));
    Ok(Json(contexts.collect::<Vec<_>>().into()))
}

/// Restarts a context, empty.
pub(super) async fn restart_context(
    AnySandbox(record): AnySandbox,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Json<Value>, Response> {
    check(&record, &headers, false).map_err(IntoResponse::into_response)?;
    let restarted = async {
        exists(&record, &id).await?;
        Ok::<_, Refusal>(record.instance.code()?.restart_context(&CallContext::new(), &id).await?)
    };
    restarted.await.map_err(IntoResponse::into_response)?;
    Ok(Json(Value::Null))
}

/// Ends a context.
pub(super) async fn delete_context(
    AnySandbox(record): AnySandbox,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Json<Value>, Response> {
    check(&record, &headers, false).map_err(IntoResponse::into_response)?;
    let deleted = async {
        if id == DEFAULT {
            let message = "the default context cannot be removed; restart it instead";
            return Err(Refusal(StatusCode::BAD_REQUEST, message.to_owned()));
        }
        exists(&record, &id).await?;
        Ok(record.instance.code()?.delete_context(&CallContext::new(), &id).await?)
    };
    deleted.await.map_err(IntoResponse::into_response)?;
    Ok(Json(Value::Null))
}

async fn exists(record: &Record, id: &str) -> Result<(), Refusal> {
    let contexts = record.instance.code()?.list_contexts(&CallContext::new()).await?;
    if contexts.iter().any(|context| context.id == id) {
        return Ok(());
    }
    Err(Refusal(StatusCode::NOT_FOUND, format!("Context {id} not found")))
}

#[cfg(test)]
mod tests {
    use sandbox_core::FailureKind;

    use super::*;

    #[test]
    fn results_have_a_field_for_each_common_type() {
        let mut item = ResultItem::from_text("'hi'");
        item.data.insert("text/html".into(), "<b>hi</b>".into());
        item.data.insert("application/x-own".into(), json!({ "a": 1 }));
        item.data.insert(CHART.into(), json!({ "type": "line" }));
        let expected = json!({
            "type": "result", "text": "hi", "html": "<b>hi</b>", "chart": {"type": "line"},
            "extra": {"application/x-own": {"a": 1}}, "is_main_result": true
        });
        assert_eq!(result(item, DisplayKind::Result), expected);
    }

    #[test]
    fn failures_are_errors_with_a_name() {
        let failure = Failure {
            kind: FailureKind::OutOfMemory,
            message: "memory ran out".into(),
            signal: Some(9),
        };
        let shown = failed(&failure, Some("more"));
        assert_eq!(shown["name"], "OutOfMemory");
        assert_eq!(shown["value"], "memory ran out; more");
    }

    #[test]
    fn languages_have_one_name() {
        for (given, expected) in [
            (None, None),
            (Some("python"), None),
            (Some("js"), Some("javascript")),
            (Some("R"), Some("r")),
        ] {
            assert_eq!(language(given).as_deref(), expected, "{given:?}");
        }
    }
}
