//! One sandbox that the supervisor has: the sandbox itself, and a book of what goes on in it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use sandbox_core::{
    CallContext, Capabilities, Command, CommandEvent, Event, EventKind, EventStream, Instance,
    InstanceWrapper, LogStream, OutputStream, REUSE_KEY, Result, RunCode, SandboxInfo,
    StartCommand, Utf8Decoder, Variant,
};
use serde_json::{Map, Value};

use super::book::Book;
use super::ledger::Ledger;

/// Runs whose id begins like this are not in the book: they are questions of a line editor, and nobody's work.
pub const UNNOTED: &str = "editor-";

/// One sandbox that the supervisor has.
#[derive(Debug)]
pub(super) struct Kept {
    inner: Arc<dyn Instance>,
    id: String,
    variant: Variant,
    /// What was asked for when it was made.
    terms: Map<String, Value>,
    key: Option<String>,
    book: Arc<Book>,
    ledger: Weak<Ledger>,
    /// Whether its end is in the book.
    noted: AtomicBool,
}

impl Kept {
    pub(super) fn new(
        inner: Arc<dyn Instance>,
        terms: Map<String, Value>,
        key: Option<String>,
        ledger: &Arc<Ledger>,
    ) -> Arc<Self> {
        let info = inner.info();
        let (id, variant) = (info.id, info.variant);
        let (book, ledger) = (Arc::default(), Arc::downgrade(ledger));
        let noted = AtomicBool::new(false);
        Arc::new(Self { inner, id, variant, terms, key, book, ledger, noted })
    }

    /// The full id.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The id without the variant.
    pub(super) fn local(&self) -> &str {
        self.id.rsplit('/').next().unwrap_or_default()
    }

    pub(super) fn variant(&self) -> Variant {
        self.variant
    }

    pub(super) fn name(&self) -> Option<String> {
        self.inner.info().name
    }

    /// Who asked for it, when several may ask for the same.
    pub(super) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub(super) fn is_running(&self) -> bool {
        !self.inner.status().is_over()
    }

    /// Writes into the book that it has ended, once.
    pub(super) fn note_end(&self) {
        if !self.is_running() && !self.noted.swap(true, Ordering::Relaxed) {
            self.book.write(0, "ended", "the sandbox has ended");
            self.book.close();
        }
    }

    fn page(&self, what: &'static str, text: &str) -> Page {
        let run = self.book.next_run();
        self.book.write(run, what, text);
        Page {
            book: Arc::clone(&self.book),
            run,
            decoders: Default::default(),
            lines: Default::default(),
        }
    }

    fn follow(&self, mut page: Page, command: Command) -> Command {
        let events = command.events.inspect(move |event| match event {
            CommandEvent::Output { stream, data } => page.output(*stream, data),
            CommandEvent::Skipped { stream, bytes } => {
                page.note(label(*stream), &format!("({bytes} bytes were skipped)"));
            }
            CommandEvent::Finished(outcome) => {
                page.finish();
                page.note("exit", &outcome.exit_code.to_string());
                if let Some(failure) = &outcome.failure {
                    page.note("failure", &failure.message);
                }
            }
            _ => {}
        });
        Command { events: Box::pin(events), ..command }
    }
}

/// What one run writes into the book, in whole lines.
struct Page {
    book: Arc<Book>,
    run: u64,
    decoders: [Utf8Decoder; 2],
    lines: [String; 2],
}

/// A line that does not end is written when it has that many bytes.
const LONGEST: usize = 8 << 10;

fn label(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    }
}

impl Page {
    fn note(&self, what: &'static str, text: &str) {
        self.book.write(self.run, what, text);
    }

    fn output(&mut self, stream: OutputStream, data: &[u8]) {
        let index = usize::from(stream == OutputStream::Stderr);
        let line = &mut self.lines[index];
        line.push_str(&self.decoders[index].push(data));
        let end = line.rfind('\n').map(|at| at + 1);
        let end = end.or_else(|| (line.len() >= LONGEST).then_some(line.len()));
        if let Some(end) = end {
            let rest = line.split_off(end);
            self.book.write(self.run, label(stream), line);
            *line = rest;
        }
    }

    fn event(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Output { stream, data } => self.output(*stream, data),
            EventKind::Display { item, .. } => self.note("result", &item.to_string()),
            EventKind::Error(error) => self.note("error", &error.to_string()),
            EventKind::Finished(outcome) => {
                self.finish();
                match (&outcome.failure, outcome.exit_code, outcome.interrupted) {
                    (Some(failure), ..) => self.note("failure", &failure.message),
                    (None, _, true) => self.note("end", "interrupted"),
                    (None, Some(status), false) => self.note("exit", &status.to_string()),
                    (None, None, false) => {}
                }
            }
            _ => {}
        }
    }

    /// Writes what has no newline at its end.
    fn finish(&mut self) {
        for (index, what) in ["stdout", "stderr"].into_iter().enumerate() {
            let mut line = std::mem::take(&mut self.lines[index]);
            line.push_str(&self.decoders[index].flush());
            self.book.write(self.run, what, &line);
        }
    }
}

#[async_trait]
impl InstanceWrapper for Kept {
    fn inner(&self) -> &Arc<dyn Instance> {
        &self.inner
    }

    fn info(&self) -> SandboxInfo {
        let mut info = self.inner.info();
        info.metadata.insert("detached".into(), true.into());
        info.metadata.insert(REUSE_KEY.into(), self.terms.clone().into());
        info
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { detached: true, logs: true, ..self.inner.capabilities() }
    }

    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        if call.run_id.as_deref().is_some_and(|id| id.starts_with(UNNOTED)) {
            return self.inner.code()?.run_code(call, request).await;
        }
        let code = request.code.clone();
        let events = self.inner.code()?.run_code(call, request).await?;
        let mut page = self.page("code", &code);
        Ok(Box::pin(events.inspect(move |event| page.event(event))))
    }

    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command> {
        let (line, background) = (request.command.to_string(), request.background);
        let command = self.inner.commands()?.start_command(call, request).await?;
        let page = self.page("command", &line);
        if background
            && let Ok(own) = self.inner.commands()?.connect_command(call, &command.id).await
        {
            // Nobody else may be there to read what it prints.
            let own = self.follow(page, own);
            tokio::spawn(own.events.for_each(|_| std::future::ready(())));
            return Ok(command);
        }
        Ok(self.follow(page, command))
    }

    /// Ends it. What was run in it can still be read for a while.
    async fn terminate(&self, call: &CallContext) -> Result<()> {
        self.inner.life().terminate(call).await?;
        self.note_end();
        Ok(())
    }

    /// Ends it and forgets it.
    async fn kill(&self, call: &CallContext) -> Result<()> {
        self.inner.life().kill(call).await?;
        self.note_end();
        if let Some(ledger) = self.ledger.upgrade() {
            ledger.forget(&self.id);
        }
        Ok(())
    }

    async fn logs(&self, _call: &CallContext, follow: bool) -> Result<LogStream> {
        Ok(self.book.read(follow))
    }
}
