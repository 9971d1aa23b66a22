//! Introspection of code while it is typed: completeness and completion. The interpreter in the sandbox answers, because it
//! knows its language and its names. The user's variables are not changed.

use std::time::Duration;

use code_sandboxes::{Sandbox, random_hex};
use serde::Deserialize;
use serde_json::json;
use tracing::debug;

use super::completeness;
use sandbox_supervisor::server::UNLOGGED_RUN_PREFIX;

/// The program that answers in the sandbox.
const SOURCE: &str = include_str!("introspect.py");
/// Time limit of the run in the interpreter.
const RUN_TIMEOUT: Duration = Duration::from_millis(1000);
/// Maximum time to wait for an answer, including the queue of the interpreter.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);
/// Maximum length of code that is introspected, in bytes.
const MAX_CODE_LENGTH: usize = 1 << 20;
/// Context for queries that must not wait for the user's code. All sessions share it, so a killed session leaves at most one.
const EDITOR_CONTEXT: &str = ".editor";
/// The language of contexts that understand the queries.
const PYTHON: &str = "python";

/// Returns the language of a sandbox's interpreter.
pub(super) async fn language(sandbox: &Sandbox) -> String {
    let contexts = match sandbox.capabilities().contexts {
        true => sandbox.list_contexts().await.unwrap_or_default(),
        false => Vec::new(),
    };
    contexts.into_iter().next().map_or_else(|| PYTHON.to_owned(), |first| first.language)
}

/// Returns true for Python of any version.
pub(super) fn is_python(language: &str) -> bool {
    language.starts_with(PYTHON)
}

/// Answers the queries of the line editor.
#[derive(Debug)]
pub(super) struct Introspector {
    sandbox: Sandbox,
    /// The user's context, which has the names.
    context: Option<String>,
    /// True when the sandbox can have the editor's own context.
    has_own: bool,
    speaks_python: bool,
}

/// Completions of a name.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Names {
    /// The part of the name that is typed already.
    pub(super) word: String,
    /// The whole names.
    pub(super) names: Vec<String>,
}

impl Introspector {
    /// Makes an introspector for a context of a sandbox.
    pub(super) async fn new(sandbox: &Sandbox, context: Option<String>) -> Self {
        let speaks_python = is_python(&language(sandbox).await);
        let has_own = sandbox.capabilities().contexts && speaks_python;
        Self { sandbox: sandbox.clone(), context, has_own, speaks_python }
    }

    /// Returns true when the code is complete.
    pub(super) async fn is_complete(&self, code: &str) -> bool {
        let answer = match self.has_own {
            true => self.ask("complete", code, Some(EDITOR_CONTEXT)).await,
            false => None,
        };
        let answer = answer.and_then(|answer| serde_json::from_str(&answer).ok());
        answer.unwrap_or_else(|| completeness::is_complete(code))
    }

    /// Returns the completions of the code before the cursor.
    pub(super) async fn names(&self, before: &str) -> Names {
        if !self.speaks_python {
            return Names::default();
        }
        let answer = self.ask("names", before, self.context.as_deref()).await;
        answer.and_then(|answer| serde_json::from_str(&answer).ok()).unwrap_or_default()
    }

    async fn ask(&self, question: &str, before: &str, context: Option<&str>) -> Option<String> {
        if before.len() > MAX_CODE_LENGTH {
            return None;
        }
        // A JSON string is a literal of Python, too.
        let (code, question, before) = (json!(SOURCE), json!(question), json!(before));
        let code = format!(
            "__import__(\"builtins\").exec({code}, {{\"question\": {question}, \"before\": {before}, \"namespace\": globals()}})"
        );
        let run_id = format!("{UNLOGGED_RUN_PREFIX}{}", random_hex(4));
        let run = self.sandbox.run_code(code).timeout(RUN_TIMEOUT).run_id(run_id);
        let run = match context {
            Some(context) => run.context(context),
            None => run,
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, run).await {
            Ok(Ok(result)) if result.success() => Some(result.logs.stdout_exact()),
            other => {
                debug!(?other, "no answer");
                None
            }
        }
    }

    /// Deletes the editor's context.
    pub(super) async fn leave(&self) {
        if self.has_own {
            let left = self.sandbox.delete_context(EDITOR_CONTEXT).await;
            debug!(?left, "deleted the context of the editor");
        }
    }
}
