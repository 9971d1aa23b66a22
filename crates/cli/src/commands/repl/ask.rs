//! Questions about code while it is typed. The interpreter in the sandbox answers them, because it knows its own language
//! and its own names; nothing of the user's is changed by it.

use std::time::Duration;

use code_sandboxes::{Sandbox, random_hex};
use serde::Deserialize;
use serde_json::json;
use tracing::debug;

use super::guess;
use sandbox_supervisor::server::UNNOTED;

/// The side in the sandbox.
const ASKED: &str = include_str!("asked.py");
/// How long the interpreter may think about an answer.
const THINKS: Duration = Duration::from_millis(1000);
/// How long an answer is waited for, the queue of the interpreter included.
const WAITS: Duration = Duration::from_millis(1500);
/// Longer code is not looked at while it is typed.
const LONGEST: usize = 1 << 20;
/// The interpreter that nothing is in the way of. All sessions share it: who is killed leaves one at most.
const OWN: &str = ".editor";
/// What `Context::language` says where the questions are understood.
const PYTHON: &str = "python";

/// The language of a sandbox's interpreter.
pub(super) async fn language(sandbox: &Sandbox) -> String {
    let contexts = match sandbox.capabilities().contexts {
        true => sandbox.list_contexts().await.unwrap_or_default(),
        false => Vec::new(),
    };
    contexts.into_iter().next().map_or_else(|| PYTHON.to_owned(), |first| first.language)
}

/// Whether it is Python, in some version.
pub(super) fn is_python(language: &str) -> bool {
    language.starts_with(PYTHON)
}

/// Whom the editor asks.
#[derive(Debug)]
pub(super) struct Oracle {
    sandbox: Sandbox,
    /// The interpreter with the names.
    context: Option<String>,
    /// Whether the sandbox can have an interpreter of ours besides.
    has_own: bool,
    speaks_python: bool,
}

/// Names that may come next.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Names {
    /// What of it is there already.
    pub(super) word: String,
    /// The names, the word included.
    pub(super) names: Vec<String>,
}

impl Oracle {
    /// Looks at what the sandbox has.
    pub(super) async fn of(sandbox: &Sandbox, context: Option<String>) -> Self {
        let speaks_python = is_python(&language(sandbox).await);
        let has_own = sandbox.capabilities().contexts && speaks_python;
        Self { sandbox: sandbox.clone(), context, has_own, speaks_python }
    }

    /// Whether there is nothing more to type.
    pub(super) async fn is_complete(&self, code: &str) -> bool {
        let answer = match self.has_own {
            true => self.ask("complete", code, Some(OWN)).await,
            false => None,
        };
        let told = answer.and_then(|answer| serde_json::from_str(&answer).ok());
        told.unwrap_or_else(|| guess::is_complete(code))
    }

    /// The names that may follow.
    pub(super) async fn names(&self, before: &str) -> Names {
        if !self.speaks_python {
            return Names::default();
        }
        let answer = self.ask("names", before, self.context.as_deref()).await;
        answer.and_then(|answer| serde_json::from_str(&answer).ok()).unwrap_or_default()
    }

    async fn ask(&self, question: &str, before: &str, context: Option<&str>) -> Option<String> {
        if before.len() > LONGEST {
            return None;
        }
        // Strings of JSON are strings of Python.
        let (code, question, before) = (json!(ASKED), json!(question), json!(before));
        let code = format!(
            "__import__(\"builtins\").exec({code}, {{\"question\": {question}, \"before\": {before}, \"namespace\": globals()}})"
        );
        let run_id = format!("{UNNOTED}{}", random_hex(4));
        let run = self.sandbox.run_code(code).timeout(THINKS).run_id(run_id);
        let run = match context {
            Some(context) => run.context(context),
            None => run,
        };
        match tokio::time::timeout(WAITS, run).await {
            Ok(Ok(result)) if result.success() => Some(result.logs.stdout_exact()),
            other => {
                debug!(?other, "no answer");
                None
            }
        }
    }

    /// Leaves the sandbox as it was.
    pub(super) async fn leave(&self) {
        if self.has_own {
            let left = self.sandbox.delete_context(OWN).await;
            debug!(?left, "the interpreter of the editor is gone");
        }
    }
}
