//! What many cases do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_core::{
    ErrorKind, ExecutionResult, FailureKind, InterpreterState, Result as CoreResult, Sandbox,
};
use serde::Serialize;
use serde_json::Value;

use crate::case::{Checked, Failure, ensure, ensure_eq};
use crate::host;
use crate::target::{Target, Unreported};

/// Long enough for whatever is not meant to take time, on a busy machine.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// How much later than its limit a run may end: the grace before it is killed, and room for a busy machine.
pub(crate) const SLACK: Duration = Duration::from_secs(15);

/// Runs code, whatever comes of it.
pub(crate) async fn run(sandbox: &Sandbox, code: &str) -> Checked<ExecutionResult> {
    let result = sandbox.run_code(code).timeout(WAIT_TIMEOUT).await?;
    tells_no_secret(&result)?;
    Ok(result)
}

/// Requires that the secret of the host is not in there, where there is one.
pub(crate) fn tells_no_secret(told: &impl Serialize) -> Checked {
    if let Some(secret) = host::secret() {
        ensure!(!serde_json::to_string(told)?.contains(secret), "the secret of the host was told");
    }
    Ok(())
}

/// Runs code that must succeed.
pub(crate) async fn ok(sandbox: &Sandbox, code: &str) -> Checked<ExecutionResult> {
    let result = run(sandbox, code).await?;
    ensure!(result.success(), "{code:?} did not succeed: {}", describe(&result));
    Ok(result)
}

/// Runs code that must succeed with a value; its text.
pub(crate) async fn text(sandbox: &Sandbox, code: &str) -> Checked<String> {
    let result = ok(sandbox, code).await?;
    // An empty text is a text, too.
    let mut main = result.results.iter().filter(|item| item.is_main_result);
    match result.text().or_else(|| main.find_map(|item| item.text())) {
        Some(text) => Ok(text.to_owned()),
        None => Err(Failure::new(format!("{code:?} had no value: {}", describe(&result)))),
    }
}

/// Runs code that must succeed; what it printed, exactly.
pub(crate) async fn printed(sandbox: &Sandbox, code: &str) -> Checked<String> {
    Ok(ok(sandbox, code).await?.logs.stdout_exact())
}

/// Runs code that must succeed and print one JSON value.
pub(crate) async fn json(sandbox: &Sandbox, code: &str) -> Checked<Value> {
    let output = printed(sandbox, code).await?;
    serde_json::from_str(&output).map_err(|_| Failure::new(format!("not JSON: {output:?}")))
}

/// Runs code that must raise an exception of that class and keep its state.
pub(crate) async fn raises(sandbox: &Sandbox, code: &str, class: &str) -> Checked<ExecutionResult> {
    let result = run(sandbox, code).await?;
    let name = result.code_error.as_ref().map(|error| error.name.as_str());
    ensure_eq!(name, Some(class), "exception of {code:?} ({})", describe(&result));
    ensure!(result.execution_ok, "an exception is not a failure of the run: {code:?}");
    ensure!(!result.success(), "an exception is not a success: {code:?}");
    ensure_eq!(result.state, InterpreterState::Kept, "state after {code:?}");
    Ok(result)
}

/// Requires that the run failed in that way.
pub(crate) fn failed_with(result: &ExecutionResult, kind: FailureKind) -> Checked {
    let found = result.failure.as_ref().map(|failure| failure.kind);
    ensure_eq!(found, Some(kind), "failure of {}", describe(result));
    ensure!(!result.execution_ok, "a failure is never ok");
    ensure!(result.execution_error.is_some(), "a failure has a message");
    ensure!(!result.success(), "a failure is never a success");
    Ok(())
}

tokio::task_local! {
    /// What the case runs over.
    pub(crate) static TARGET: Arc<Target>;
}

/// Returns the text of a value as the target of the case shows it: a string has its quotes there, or not.
///
/// # Panics
/// Outside of the task of the case.
pub(crate) fn as_shown(text: &str) -> &str {
    let inner = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    match TARGET.with(|target| target.strings_without_quotes) {
        true => inner('\'').or_else(|| inner('"')).unwrap_or(text),
        false => text,
    }
}

/// Returns what the target of the case reports in place of a value: the value, or nothing at all (`None`, 0, an empty text).
///
/// # Panics
/// Outside of the task of the case.
pub(crate) fn reported<T: Default>(what: Unreported, value: T) -> T {
    if TARGET.with(|target| target.unreported.contains(&what)) { T::default() } else { value }
}

/// Requires that the next run works.
pub(crate) async fn is_usable(sandbox: &Sandbox) -> Checked<ExecutionResult> {
    let result = run(sandbox, "1+1").await?;
    ensure_eq!(result.text(), Some("2"), "text of 1+1 ({})", describe(&result));
    Ok(result)
}

/// Requires an error of that kind.
pub(crate) fn refused<T>(answer: CoreResult<T>, kind: ErrorKind) -> Checked<sandbox_core::Error> {
    match answer {
        Ok(_) => Err(Failure::new(format!("it was accepted, not refused as {kind}"))),
        Err(error) => {
            ensure_eq!(error.kind(), kind, "kind of {error:?}");
            Ok(error)
        }
    }
}

/// Requires an end within that time.
pub(crate) async fn within<T>(limit: Duration, work: impl IntoFuture<Output = T>) -> Checked<T> {
    tokio::time::timeout(limit, work)
        .await
        .map_err(|_| Failure::new(format!("it did not end within {limit:?}")))
}

/// Waits until the condition holds.
pub(crate) async fn eventually(
    what: &str,
    limit: Duration,
    mut condition: impl AsyncFnMut() -> Checked<bool>,
) -> Checked {
    let began = Instant::now();
    while !condition().await? {
        ensure!(began.elapsed() < limit, "{what} did not happen within {limit:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Waits until code runs in the default context.
pub(crate) async fn until_executing(sandbox: &Sandbox) -> Checked {
    eventually("running", WAIT_TIMEOUT, async || Ok(sandbox.is_executing())).await
}

/// What a result says, short enough for a message.
pub(crate) fn describe(result: &ExecutionResult) -> String {
    let cut = |text: String| text.chars().take(400).collect::<String>();
    format!(
        "{} results, {} dropped, text {:?}, stdout {:?}, stderr {:?}, code error {:?}, failure {:?}, exit code {:?}, state {:?}",
        result.results.len(),
        result.results_dropped,
        result.text().map(|text| cut(text.to_owned())),
        cut(result.stdout_trimmed()),
        cut(result.stderr_trimmed()),
        result.code_error.as_ref().map(|error| cut(format!("{error}\n{}", error.traceback))),
        result.failure,
        result.exit_code,
        result.state,
    )
}
