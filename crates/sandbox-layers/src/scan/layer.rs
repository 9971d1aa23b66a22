//! The scan as a layer around a backend.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use sandbox_core::{
    Backend, BackendWrapper, CallContext, Command, CommandEvent, CommandSpec, CreateSpec, Error,
    ErrorKind, EventKind, EventStream, Finding, Instance, InstanceWrapper, Layer, Result, RunCode,
    SandboxId, StartCommand, wrap_backend, wrap_instance,
};

use super::findings::Findings;
use super::text::Literal;
use super::watch::{ImportWatch, Watched};
use super::{ScanLanguage, ScanMode, ScanPolicy, ScanRule, commands, scan, secrets};

/// Findings that the message of a refusal names.
const NAMED: usize = 3;

/// Scans code and commands before they run.
///
/// With [`ScanMode::Warn`] a result has the findings. With [`ScanMode::Refuse`] code with findings does not run; the error
/// is [`ErrorKind::PermissionDenied`] with the findings as JSON in its context `findings`. Files that are written to a
/// sandbox are not scanned, nor is a program that a command names by its path.
#[derive(Clone, Debug, Default)]
pub struct ScanLayer(Arc<ScanPolicy>);

impl ScanLayer {
    /// Scans by a policy.
    pub fn new(policy: ScanPolicy) -> Self {
        Self(Arc::new(policy))
    }
}

impl Layer for ScanLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        if self.0.mode() == ScanMode::Off {
            return inner;
        }
        wrap_backend(Arc::new(Scanning {
            inner,
            policy: Arc::clone(&self.0),
            language: None,
            watch: None,
        }))
    }
}

#[derive(Debug)]
struct Scanning<T: ?Sized> {
    inner: Arc<T>,
    policy: Arc<ScanPolicy>,
    /// The language of the sandbox's interpreter, where it is not Python.
    language: Option<String>,
    /// Where imports are looked at inside.
    watch: Option<Arc<ImportWatch>>,
}

impl<T: ?Sized> Scanning<T> {
    fn wrap(&self, inner: Arc<dyn Instance>) -> Arc<dyn Instance> {
        let info = inner.info();
        let language = info.metadata.get("language").and_then(|name| name.as_str());
        let language = language.map(str::to_owned);
        let policy = Arc::clone(&self.policy);
        let watch = policy.watches_imports.then(|| Arc::new(ImportWatch::new(&policy)));
        wrap_instance(Arc::new(Scanning { inner, policy, language, watch }))
    }

    /// Returns the findings of code, which are an error where they are refused.
    fn checked(&self, operation: &'static str, findings: Vec<Finding>) -> Result<Vec<Finding>> {
        if findings.is_empty() || self.policy.mode() != ScanMode::Refuse {
            return Ok(findings);
        }
        Err(refusal(operation, &findings))
    }
}

/// Makes the error of code that does not run.
pub(super) fn refusal(operation: &'static str, findings: &[Finding]) -> Error {
    let named: Vec<_> = findings.iter().take(NAMED).map(ToString::to_string).collect();
    let more = findings.len().saturating_sub(NAMED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let message = format!("the scan refuses the code: {}{more}", named.join("; "));
    let error = Error::new(ErrorKind::PermissionDenied, operation, message)
        .with_context("cause", "scan")
        .with_hint("change the code, or the rules of the scan; nothing was run");
    match serde_json::to_string(findings) {
        Ok(findings) => error.with_context("findings", findings),
        Err(_) => error,
    }
}

#[async_trait]
impl BackendWrapper for Scanning<dyn Backend> {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        self.inner.create(call, spec).await.map(|made| self.wrap(made))
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        self.inner.attach(call, id).await.map(|found| self.wrap(found))
    }
}

#[async_trait]
impl InstanceWrapper for Scanning<dyn Instance> {
    fn inner(&self) -> &Arc<dyn Instance> {
        &self.inner
    }

    async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>> {
        self.inner.life().fork(call).await.map(|copy| self.wrap(copy))
    }

    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        let language = request.language.as_deref().or(self.language.as_deref());
        let findings = scan_code(&request.code, language, &self.policy);
        let findings = self.checked("run_code", findings)?;
        let is_python = language.is_none_or(|name| {
            ScanLanguage::find(name).is_some_and(|found| found == ScanLanguage::Python)
        });
        let watch = self.watch.clone().filter(|_| is_python);
        let context = request.context.clone().unwrap_or_else(|| "default".to_owned());
        let mut watched = Watched::default();
        if let Some(watch) = &watch {
            watched = watch.prepare(&self.inner, &context).await;
        }
        let mut events = self.inner.code()?.run_code(call, request).await?;
        if let Some(watch) = watch {
            let policy = Arc::clone(&self.policy);
            events = Box::pin(events.filter_map(move |event| {
                let event = watch.take(event, &context, &policy, &mut watched);
                std::future::ready(event)
            }));
        }
        if findings.is_empty() {
            return Ok(events);
        }
        Ok(Box::pin(events.map(move |mut event| {
            if let EventKind::Finished(outcome) = &mut event.kind {
                outcome.findings.extend_from_slice(&findings);
            }
            event
        })))
    }

    async fn restart_context(&self, call: &CallContext, id: &str) -> Result<()> {
        self.inner.code()?.restart_context(call, id).await?;
        self.watch.iter().for_each(|watch| watch.forget(Some(id)));
        Ok(())
    }

    async fn delete_context(&self, call: &CallContext, id: &str) -> Result<()> {
        self.inner.code()?.delete_context(call, id).await?;
        self.watch.iter().for_each(|watch| watch.forget(Some(id)));
        Ok(())
    }

    async fn reset(&self, call: &CallContext) -> Result<()> {
        self.inner.life().reset(call).await?;
        self.watch.iter().for_each(|watch| watch.forget(None));
        Ok(())
    }

    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command> {
        let findings = scan_command(&request.command, &self.policy);
        let findings = self.checked("start_command", findings)?;
        let command = self.inner.commands()?.start_command(call, request).await?;
        if findings.is_empty() {
            return Ok(command);
        }
        let events = command.events.map(move |mut event| {
            if let CommandEvent::Finished(outcome) = &mut event {
                outcome.findings.extend_from_slice(&findings);
            }
            event
        });
        Ok(Command { events: Box::pin(events), ..command })
    }
}

/// Scans code of a language by its name. Code in a language that is not known is a finding, because nothing looked at it.
fn scan_code(code: &str, language: Option<&str>, policy: &ScanPolicy) -> Vec<Finding> {
    let known = language.map_or(Some(ScanLanguage::Python), ScanLanguage::find);
    if let Some(language) = known {
        return scan(code, language, policy);
    }
    let mut findings = Findings::new(policy);
    let name = language.unwrap_or_default();
    findings.add(ScanRule::Unread, 0, format!("code in {name} is not looked at"));
    secrets::look(code, &mut findings);
    findings.finish()
}

/// Scans a command: a line for the shell, or a program and its arguments.
fn scan_command(command: &CommandSpec, policy: &ScanPolicy) -> Vec<Finding> {
    match command {
        CommandSpec::Shell(line) => scan(line, ScanLanguage::Shell, policy),
        CommandSpec::Argv(argv) => {
            let mut findings = Findings::new(policy);
            let literal = |text: &String| Literal { text: text.clone(), is_whole: true };
            let words: Vec<_> = argv.iter().map(literal).collect();
            commands::check(&words, 0, &mut findings);
            argv.iter().for_each(|word| secrets::look(word, &mut findings));
            findings.finish()
        }
    }
}
