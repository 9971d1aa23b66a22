//! A sandbox of the supervisor, with a log of what is run in it.

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

use super::log_buffer::{LogBuffer, MAX_LINE_LENGTH};
use super::registry::SandboxTable;

/// Prefix of the ids of runs that are not logged: queries of a line editor.
pub const UNLOGGED_RUN_PREFIX: &str = "editor-";

/// A sandbox of the supervisor, with its log.
#[derive(Debug)]
pub(super) struct LoggedInstance {
    inner: Arc<dyn Instance>,
    id: String,
    variant: Variant,
    /// The properties of its request that decide whether `get_or_create` may reuse it.
    reuse_key: Map<String, Value>,
    key: Option<String>,
    buffer: Arc<LogBuffer>,
    table: Weak<SandboxTable>,
    /// True when its end has been logged.
    end_logged: AtomicBool,
}

impl LoggedInstance {
    pub(super) fn new(
        inner: Arc<dyn Instance>,
        reuse_key: Map<String, Value>,
        key: Option<String>,
        table: &Arc<SandboxTable>,
    ) -> Arc<Self> {
        let info = inner.info();
        let (id, variant) = (info.id, info.variant);
        let (buffer, table) = (Arc::default(), Arc::downgrade(table));
        let end_logged = AtomicBool::new(false);
        Arc::new(Self { inner, id, variant, reuse_key, key, buffer, table, end_logged })
    }

    /// Returns the full id.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Returns the id without the variant.
    pub(super) fn local(&self) -> &str {
        self.id.rsplit('/').next().unwrap_or_default()
    }

    pub(super) fn variant(&self) -> Variant {
        self.variant
    }

    pub(super) fn name(&self) -> Option<String> {
        self.inner.info().name
    }

    /// Returns the idempotency key of its creation.
    pub(super) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub(super) fn is_running(&self) -> bool {
        !self.inner.status().is_over()
    }

    /// Logs the end of the sandbox, once.
    pub(super) fn log_end(&self) {
        if !self.is_running() && !self.end_logged.swap(true, Ordering::Relaxed) {
            self.buffer.write(0, "ended", "the sandbox has ended");
            self.buffer.close();
        }
    }

    fn start_log(&self, kind: &'static str, text: &str) -> RunLog {
        let run = self.buffer.next_run();
        self.buffer.write(run, kind, text);
        RunLog {
            buffer: Arc::clone(&self.buffer),
            run,
            decoders: Default::default(),
            lines: Default::default(),
        }
    }

    fn follow(&self, mut log: RunLog, command: Command) -> Command {
        let events = command.events.inspect(move |event| match event {
            CommandEvent::Output { stream, data } => log.output(*stream, data),
            CommandEvent::Skipped { stream, bytes } => {
                log.write(label(*stream), &format!("({bytes} bytes were skipped)"));
            }
            CommandEvent::Finished(outcome) => {
                log.finish();
                log.write("exit", &outcome.exit_code.to_string());
                if let Some(failure) = &outcome.failure {
                    log.write("failure", &failure.message);
                }
            }
            _ => {}
        });
        Command { events: Box::pin(events), ..command }
    }
}

/// Writes the output of one run into the log, in whole lines.
struct RunLog {
    buffer: Arc<LogBuffer>,
    run: u64,
    decoders: [Utf8Decoder; 2],
    lines: [String; 2],
}

fn label(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    }
}

impl RunLog {
    fn write(&self, kind: &'static str, text: &str) {
        self.buffer.write(self.run, kind, text);
    }

    fn output(&mut self, stream: OutputStream, data: &[u8]) {
        let index = usize::from(stream == OutputStream::Stderr);
        let line = &mut self.lines[index];
        line.push_str(&self.decoders[index].push(data));
        let end = line.rfind('\n').map(|at| at + 1);
        let end = end.or_else(|| (line.len() >= MAX_LINE_LENGTH).then_some(line.len()));
        if let Some(end) = end {
            let rest = line.split_off(end);
            self.buffer.write(self.run, label(stream), line);
            *line = rest;
        }
    }

    fn event(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Output { stream, data } => self.output(*stream, data),
            EventKind::Display { item, .. } => self.write("result", &item.to_string()),
            EventKind::Error(error) => self.write("error", &error.to_string()),
            EventKind::Finished(outcome) => {
                self.finish();
                match (&outcome.failure, outcome.exit_code, outcome.interrupted) {
                    (Some(failure), ..) => self.write("failure", &failure.message),
                    (None, _, true) => self.write("end", "interrupted"),
                    (None, Some(status), false) => self.write("exit", &status.to_string()),
                    (None, None, false) => {}
                }
            }
            _ => {}
        }
    }

    /// Writes the last line of each stream when it has no newline.
    fn finish(&mut self) {
        for (index, kind) in ["stdout", "stderr"].into_iter().enumerate() {
            let mut line = std::mem::take(&mut self.lines[index]);
            line.push_str(&self.decoders[index].flush());
            self.buffer.write(self.run, kind, &line);
        }
    }
}

#[async_trait]
impl InstanceWrapper for LoggedInstance {
    fn inner(&self) -> &Arc<dyn Instance> {
        &self.inner
    }

    fn info(&self) -> SandboxInfo {
        let mut info = self.inner.info();
        info.metadata.insert("detached".into(), true.into());
        info.metadata.insert(REUSE_KEY.into(), self.reuse_key.clone().into());
        info
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { detached: true, logs: true, ..self.inner.capabilities() }
    }

    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        if call.run_id.as_deref().is_some_and(|id| id.starts_with(UNLOGGED_RUN_PREFIX)) {
            return self.inner.code()?.run_code(call, request).await;
        }
        let code = request.code.clone();
        let events = self.inner.code()?.run_code(call, request).await?;
        let mut log = self.start_log("code", &code);
        Ok(Box::pin(events.inspect(move |event| log.event(event))))
    }

    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command> {
        let (line, background) = (request.command.to_string(), request.background);
        let command = self.inner.commands()?.start_command(call, request).await?;
        let log = self.start_log("command", &line);
        if background
            && let Ok(own) = self.inner.commands()?.connect_command(call, &command.id).await
        {
            // The log reads its output on a connection of its own, because the client may never read it.
            let own = self.follow(log, own);
            tokio::spawn(own.events.for_each(|_| std::future::ready(())));
            return Ok(command);
        }
        Ok(self.follow(log, command))
    }

    /// Ends the sandbox. Its log can still be read for a while.
    async fn terminate(&self, call: &CallContext) -> Result<()> {
        self.inner.life().terminate(call).await?;
        self.log_end();
        Ok(())
    }

    /// Ends the sandbox and removes it from the table.
    async fn kill(&self, call: &CallContext) -> Result<()> {
        self.inner.life().kill(call).await?;
        self.log_end();
        if let Some(table) = self.table.upgrade() {
            table.remove(&self.id);
        }
        Ok(())
    }

    async fn logs(&self, _call: &CallContext, follow: bool) -> Result<LogStream> {
        Ok(self.buffer.read(follow))
    }
}
