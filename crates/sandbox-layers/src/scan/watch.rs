//! Imports as the interpreter executes them: what the syntax tree does not show, such as `__import__(name)`.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::lock::Mutex;
use sandbox_core::{
    CallContext, Event, EventKind, Finding, Instance, InterpreterState, RunCode, random_hex,
};
use serde_json::{Value, json};

use super::{ScanPolicy, ScanRule};

/// Findings that one run can have of its imports.
const MAX_FINDINGS: usize = 64;

/// Time limit of the code that prepares an interpreter.
const SETUP_TIMEOUT: Duration = Duration::from_secs(30);

/// Prepares an interpreter: import statements of the code itself, whose globals are those of `__main__`, are displayed as
/// objects of a type that no user sees. Each statement of a cell is told once.
const SETUP: &str = r#"
def __sandbox_scan__():
    import builtins, sys
    former, seen, show, frame = builtins.__import__, set(), display, sys._getframe
    class Imported:
        def __init__(self, line, name):
            self.told = "%d %s" % (line, name)
        def _repr_mimebundle_(self, *arguments, **options):
            return {MIME: self.told}
    def below(name, known):
        return any(name == one or name.startswith(one + ".") for one in known)
    def refused(name):
        return below(name, DENIED) or (ALLOWED is not None and not below(name, ALLOWED))
    def __import__(name, globals=None, locals=None, fromlist=(), level=0):
        scope = frame(1).f_globals if globals is None else globals
        if not level and scope.get("__name__") == "__main__":
            names = ["%s.%s" % (name, one) for one in fromlist] if fromlist else [name]
            if refused(name) and any(refused(one) for one in names):
                caller = frame(1)
                place = caller.f_code.co_filename, caller.f_lineno, name
                if place not in seen and len(seen) < 10000:
                    seen.add(place)
                    show(Imported(caller.f_lineno, name))
        return former(name, globals, locals, fromlist, level)
    builtins.__import__ = __import__
    show(Imported(0, ""))
__sandbox_scan__()
del __sandbox_scan__
"#;

/// Watches the imports of one sandbox.
#[derive(Debug)]
pub(super) struct ImportWatch {
    mime: String,
    setup: String,
    /// Contexts that are prepared, with the runs that it took.
    prepared: Mutex<HashMap<String, u64>>,
}

impl ImportWatch {
    pub(super) fn new(policy: &ScanPolicy) -> Self {
        let mime = format!("application/vnd.code-sandboxes.import.{}+text", random_hex(8));
        let allowed = policy.allowed_imports.as_ref().map_or_else(
            || "None".to_owned(),
            // A JSON list of texts is one of Python.
            |allowed| json!(allowed).to_string(),
        );
        let denied = json!(policy.denied_imports).to_string();
        let setup = SETUP
            .replace("MIME", &json!(mime).to_string())
            .replace("ALLOWED", &allowed)
            .replace("DENIED", &denied);
        Self { mime, setup, prepared: Mutex::default() }
    }

    /// Prepares a context, once.
    pub(super) async fn prepare(&self, inner: &Arc<dyn Instance>, context: &str) -> Watched {
        let mut watched = Watched::default();
        watched.runs = self.prepared_runs(inner, context, &mut watched.restarted).await;
        watched
    }

    /// Returns the runs that preparing a context took, and `None` when it cannot be watched.
    async fn prepared_runs(
        &self,
        inner: &Arc<dyn Instance>,
        context: &str,
        restarted: &mut bool,
    ) -> Option<u64> {
        let mut prepared = self.prepared.lock().await;
        if let Some(runs) = prepared.get(context) {
            return Some(*runs);
        }
        let mut request = RunCode::new(self.setup.clone());
        request.timeout = Some(SETUP_TIMEOUT);
        request.context = Some(context.to_owned());
        let mut events = inner.code().ok()?.run_code(&CallContext::new(), request).await.ok()?;
        let mut is_watched = false;
        while let Some(event) = events.next().await {
            is_watched |= self.told(&event.kind).is_some();
            *restarted |= matches!(event.kind, EventKind::Started { restarted: true, .. });
        }
        if is_watched {
            prepared.insert(context.to_owned(), 1);
        }
        is_watched.then_some(1)
    }

    /// Forgets a context whose interpreter is a new one.
    pub(super) fn forget(&self, context: Option<&str>) {
        // A run that prepares the context now holds the lock, and knows the new interpreter.
        if let Some(mut prepared) = self.prepared.try_lock() {
            match context {
                Some(context) => drop(prepared.remove(context)),
                None => prepared.clear(),
            }
        }
    }

    /// Returns what an event tells of an import: its line and module.
    fn told(&self, kind: &EventKind) -> Option<String> {
        let EventKind::Display { item, .. } = kind else { return None };
        item.data.get(&self.mime).and_then(Value::as_str).map(str::to_owned)
    }

    /// Takes an event of a run. Returns `None` for one that only tells of an import, which becomes a finding.
    pub(super) fn take(
        &self,
        mut event: Event,
        context: &str,
        policy: &ScanPolicy,
        watched: &mut Watched,
    ) -> Option<Event> {
        if let Some(told) = self.told(&event.kind) {
            watched.add(&told, policy);
            return None;
        }
        match &mut event.kind {
            EventKind::Started { restarted, .. } => {
                if *restarted {
                    self.forget(Some(context));
                    watched.runs = None;
                }
                // For users the first run in a new interpreter is theirs.
                *restarted |= watched.restarted;
            }
            EventKind::Finished(outcome) => {
                if outcome.state == InterpreterState::Lost {
                    self.forget(Some(context));
                }
                let runs = watched.runs.unwrap_or_default();
                outcome.execution_count = outcome.execution_count.saturating_sub(runs);
                outcome.findings.append(&mut watched.findings);
                if watched.runs.is_none() {
                    let reason =
                        "imports inside were not watched: this interpreter does not tell them";
                    outcome.findings.push(finding(ScanRule::Unread, 0, reason.to_owned()));
                }
            }
            _ => {}
        }
        Some(event)
    }
}

fn finding(rule: ScanRule, line: u64, reason: String) -> Finding {
    Finding { rule: rule.as_str().to_owned(), line, reason }
}

/// What one run has told of its imports.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Runs that preparing its context took. `None`: it is not watched.
    runs: Option<u64>,
    /// The interpreter was a new one when it was prepared, because the one before had died.
    restarted: bool,
    findings: Vec<Finding>,
    modules: BTreeSet<String>,
}

impl Watched {
    fn add(&mut self, told: &str, policy: &ScanPolicy) {
        let Some((line, module)) = told.split_once(' ') else { return };
        let Some(reason) = policy.refused_import(module) else { return };
        if self.modules.len() < MAX_FINDINGS && self.modules.insert(module.to_owned()) {
            let line = line.parse().unwrap_or_default();
            self.findings.push(finding(
                ScanRule::Import,
                line,
                format!("{reason}; it was imported"),
            ));
        }
    }
}
