//! Serves one kernel: takes the requests of a worker, and sends the replies of a worker.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jupyter_protocol::client::{Client, ExecutionStream};
use jupyter_protocol::content::{ExecuteReply, InputReply, Payload, StreamName};
use jupyter_protocol::execution::{End, Event, Loss, Outcome};
use jupyter_protocol::{Channel, ExecuteRequest, Message, MimeBundle, Parent};
use sandbox_core::{Error, ErrorKind, Result};
use sandbox_engine::{FrameReader, Reply, Request, Run, RunMode, WireDisplayKind, WireFailureKind};
use serde_json::{Map, Value, json};
use tokio::time::{sleep, timeout};

use crate::buffer::Buffer;
use crate::control::KernelSide;
use crate::iopub::{exit_of, input, is_lost_output, is_output, lost, marks, pass_on};
use crate::mime::{DisplayBudget, plain};
use crate::process::KernelProcess;
use crate::program::{PROGRAM_KEY, Program};
use crate::stdin_channel::{
    CHUNK_SIZE, CONTROL, END, INPUT, INTERRUPT, StdinMessage, parse, tool_calls,
};

/// Limits the run of the kernel program.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits the silence of a borrowed kernel before a run is reported as waiting.
const BUSY_NOTICE_DELAY: Duration = Duration::from_secs(1);

/// Returns the reason why the outcome of code is unknown.
fn no_outcome_reason(outcome: &Outcome) -> String {
    match outcome.end {
        End::ReplyLost if outcome.losses.disconnected => {
            "the connection to the kernel broke, and the outcome of the code is unknown"
        }
        // Some kernels send no reply to incomplete code.
        End::ReplyLost => {
            "the kernel finished the code without a reply: the code may not be complete"
        }
        _ => "the kernel did not report the outcome of the code",
    }
    .into()
}

/// The translator between the requests of a worker and one kernel.
#[derive(Debug)]
pub(crate) struct Bridge {
    client: Client,
    process: Arc<KernelProcess>,
    program: Option<Program>,
    /// Standard output and standard error, as published.
    streams: [Arc<Buffer>; 2],
    runs: i64,
    /// The number of restarts of the kernel when it was prepared.
    restarts: u64,
}

/// A run in progress.
struct Active {
    id: i64,
    running: ExecutionStream,
    /// The header of the request, for messages on the stdin channel.
    parent: Parent,
    frames: FrameReader,
    display_budget: DisplayBudget,
    stdin: Option<Arc<Buffer>>,
    /// True while the kernel waits for a piece of input.
    wants_input: bool,
    interrupts: u64,
    /// The number of interrupts that were forwarded, or need not be.
    told: u64,
    /// Announced interrupts whose signals have not arrived yet.
    announced: u64,
    /// The number of outputs that have arrived.
    outputs: u64,
    /// True once the kernel has started the run, or was reported as busy.
    begun: bool,
    /// The number of outputs that were reported as missing.
    told_lost: u64,
    /// Published text that waits for the reader. No further event is taken meanwhile.
    unread: VecDeque<(StreamName, Bytes)>,
}

impl Active {
    /// Adds a line to standard error.
    fn note(&mut self, line: &str) {
        self.unread.push_back((StreamName::Stderr, format!("{line}\n").into()));
    }
}

/// The kernel takes no more requests.
struct Disconnected;

impl Bridge {
    pub(crate) fn new(
        client: Client,
        process: Arc<KernelProcess>,
        program: Option<Program>,
        streams: [Arc<Buffer>; 2],
    ) -> Self {
        let restarts = client.restarts();
        Self { client, process, program, streams, runs: 0, restarts }
    }

    /// Runs the kernel program.
    pub(crate) async fn prepare(&mut self) -> Result<()> {
        let Some(program) = &self.program else { return Ok(()) };
        let mut request = ExecuteRequest::new(Program::cell());
        (request.silent, request.store_history, request.allow_stdin) = (true, false, true);
        let failed =
            |message: String| Error::new(ErrorKind::Unavailable, "start_interpreter", message);
        let mut message = self.client.session().request(request);
        message.metadata.insert(PROGRAM_KEY.into(), program.metadata());
        let running = self.client.execute_message(message).await;
        let running = running.map_err(|error| failed(error.to_string()))?;
        match timeout(PREPARE_TIMEOUT, running.outcome()).await {
            Ok(outcome) if outcome.is_ok() => Ok(()),
            Ok(outcome) => {
                let why = outcome.error.map_or_else(
                    || format!("{:?}", outcome.end),
                    |error| format!("{}: {}", error.ename, error.evalue),
                );
                Err(failed(format!("the kernel could not be prepared: {why}")))
            }
            Err(_) => Err(failed("the kernel was not prepared in time".to_owned())),
        }
    }

    /// Serves requests until the control stream is closed, or the kernel is of no use.
    pub(crate) async fn serve(mut self, mut kernel_side: KernelSide) {
        let client = self.client.clone();
        let before = self.restarts;
        let mut restarted = pin!(client.restarted(before));
        loop {
            let asked = tokio::select! {
                biased;
                () = &mut restarted => {
                    // The state that the next run depends on is lost.
                    self.process.mark_dead();
                    break;
                }
                _ = client.closed() => {
                    self.process.mark_dead();
                    break;
                }
                asked = kernel_side.next() => asked,
            };
            let Some(asked) = asked else { break };
            let done = match asked.request {
                Request::Run(run) => {
                    self.process.set_running(true);
                    let done = self.run(&mut kernel_side, run, asked.stdin).await;
                    self.process.set_running(false);
                    done
                }
                Request::GetVariable { id, name } => {
                    self.variable(&kernel_side, id, json!({"get": name})).await
                }
                Request::SetVariables { id, json } => {
                    self.variable(&kernel_side, id, json!({"set": json})).await
                }
                // These requests come late: their run has ended.
                _ => Ok(()),
            };
            if done.is_err() {
                if let Some(why) = self.client.close_reason() {
                    self.process.mark_lost(format!("the connection to the kernel was lost: {why}"));
                }
                break;
            }
        }
    }

    async fn run(
        &mut self,
        kernel_side: &mut KernelSide,
        run: Run,
        stdin: Option<Arc<Buffer>>,
    ) -> Result<(), Disconnected> {
        self.runs += 1;
        let id = run.id;
        if let Some(problem) = self.refused(&run) {
            self.end(kernel_side, id, Err(problem.to_owned()));
            return Ok(());
        }
        let interrupts = self.process.interrupts();
        let message = self.message(run, stdin.is_some());
        let parent = Parent::from_header(&message.header);
        let running = self.client.execute_message(message).await.map_err(|_| Disconnected)?;
        let mut active = Active {
            id,
            running,
            parent,
            frames: FrameReader::new(),
            display_budget: DisplayBudget::default(),
            stdin,
            wants_input: false,
            interrupts,
            told: interrupts,
            announced: 0,
            outputs: 0,
            begun: !self.process.is_borrowed(),
            told_lost: 0,
            unread: VecDeque::new(),
        };
        let barrier = kernel_side.reply_barrier();
        let mut waits = pin!(sleep(BUSY_NOTICE_DELAY));
        loop {
            tokio::select! {
                biased;
                asked = kernel_side.next() => match asked.ok_or(Disconnected)?.request {
                    Request::ToolResult { .. } if self.program.is_none() => {}
                    request @ Request::ToolResult { .. } => {
                        // An interrupt ends the calls as well, and must reach the kernel first.
                        self.heed(&mut active).await?;
                        self.pass_on(&active, &request).await?;
                    }
                    Request::Interrupt { id } if id == active.id => {
                        active.announced += 1;
                        self.interrupt(&active).await?;
                    }
                    _ => {}
                },
                () = self.process.more_interrupts(active.told) => self.heed(&mut active).await?,
                piece = input(&active.stdin, active.wants_input) => self.give(&mut active, piece).await?,
                () = pass_on(&barrier, &self.streams, &mut active.unread), if !active.unread.is_empty() => {}
                () = &mut waits, if !active.begun => {
                    active.begun = true;
                    active.note("[waiting: the kernel still runs earlier code]");
                }
                event = active.running.next(), if active.unread.is_empty() => match event {
                    Some(Event::Finished(outcome)) => {
                        return self.finish(kernel_side, &active, *outcome).await;
                    }
                    Some(event) => self.event(kernel_side, &mut active, event)?,
                    None => return Err(Disconnected),
                },
            }
        }
    }

    /// Forwards new interrupts to the kernel.
    async fn heed(&self, active: &mut Active) -> Result<(), Disconnected> {
        let now = self.process.interrupts();
        let new = now - active.told;
        let announced = new.min(active.announced);
        active.told = now;
        active.announced -= announced;
        if new > announced { self.interrupt(active).await } else { Ok(()) }
    }

    /// Sends an interrupt to the kernel program. Other kernels get a signal or a message.
    async fn interrupt(&self, active: &Active) -> Result<(), Disconnected> {
        match &self.program {
            Some(program) => {
                let id = active.id.to_string();
                self.say(active, program, INTERRUPT, id.into()).await
            }
            None => Ok(()),
        }
    }

    /// Returns an error if this kernel does not support the run.
    fn refused(&self, run: &Run) -> Option<&'static str> {
        if self.program.is_some() {
            return None;
        }
        if run.mode == RunMode::Script || run.has_stdin {
            return Some("this kernel does not support scripts and standard input");
        }
        let own = !run.env.is_empty() || !run.cwd.is_empty();
        own.then_some("this kernel does not support an environment or a directory for a single run")
    }

    fn message(&self, run: Run, has_stdin: bool) -> Message {
        let mut request = ExecuteRequest::new(run.code);
        request.stop_on_error = false;
        request.allow_stdin = self.program.is_some();
        let mut asked = Map::new();
        asked.insert("id".into(), run.id.into());
        if run.mode == RunMode::Script {
            let name = if run.filename.is_empty() { "<stdin>" } else { &run.filename };
            asked.insert("script".into(), name.into());
        }
        for (name, value) in [
            ("cwd", (!run.cwd.is_empty()).then(|| run.cwd.into())),
            ("argv", (!run.argv.is_empty()).then(|| run.argv.into())),
            ("stdin", has_stdin.then_some(Value::Bool(true))),
            ("env", (!run.env.is_empty()).then(|| json!(BTreeMap::from_iter(run.env)))),
        ] {
            value.into_iter().for_each(|value: Value| drop(asked.insert(name.into(), value)));
        }
        self.marked(request, asked)
    }

    /// Creates a request that carries settings for the kernel program.
    fn marked(&self, request: ExecuteRequest, asked: Map<String, Value>) -> Message {
        let mut message = self.client.session().request(request);
        if let Some(program) = &self.program {
            message.metadata.insert(program.key.into(), Value::Object(asked));
        }
        message
    }

    fn event(
        &self,
        kernel_side: &KernelSide,
        active: &mut Active,
        event: Event,
    ) -> Result<(), Disconnected> {
        active.outputs += u64::from(is_output(&event));
        match event {
            Event::Started => active.begun = true,
            Event::Stream(stream) => {
                active.unread.push_back((stream.name, stream.text.into()));
            }
            Event::Result { result, .. } => {
                let (data, id) = (&result.data, result.transient.display_id.as_deref());
                self.show(kernel_side, active, WireDisplayKind::Result, data, &result.metadata, id);
            }
            Event::Display { display, .. } => {
                let (data, id) = (&display.data, display.transient.display_id.as_deref());
                self.show(
                    kernel_side,
                    active,
                    WireDisplayKind::Display,
                    data,
                    &display.metadata,
                    id,
                );
            }
            Event::UpdateDisplay { update, .. } => {
                let (data, id) = (&update.data, update.transient.display_id.as_deref());
                self.show(kernel_side, active, WireDisplayKind::Update, data, &update.metadata, id);
            }
            Event::ClearOutput { wait } => {
                kernel_side.reply(&Reply::ClearOutput { id: active.id, wait });
            }
            Event::Message { channel: Channel::Stdin, message } => {
                self.said(kernel_side, active, &message)?;
            }
            Event::Message { channel: Channel::IoPub, message } if is_lost_output(&message) => {
                active.told_lost += 1;
                active.note("[output is missing here: the kernel published a malformed message]");
            }
            Event::Message { channel: Channel::IoPub, message } if self.program.is_some() => {
                if let Some([stdout, stderr]) = marks(&message) {
                    kernel_side.reply(&Reply::Marked { id: active.id, stdout, stderr });
                }
            }
            Event::Lost(loss) => {
                if let Loss::Overflow { messages, .. } = loss {
                    active.told_lost += messages;
                }
                active.note(&lost(loss));
            }
            _ => {}
        }
        Ok(())
    }

    fn show(
        &self,
        kernel_side: &KernelSide,
        active: &mut Active,
        kind: WireDisplayKind,
        data: &MimeBundle,
        metadata: &Map<String, Value>,
        display_id: Option<&str>,
    ) {
        let mut notes = Vec::new();
        let bundle = active.display_budget.take(data, &mut notes);
        notes.iter().for_each(|note| active.note(note));
        // An empty display with an id is a placeholder for an update.
        let is_place = data.is_empty() && display_id.is_some();
        if bundle.is_empty() && !is_place {
            return;
        }
        let display = Reply::Display {
            id: active.id,
            kind,
            bundle,
            metadata: Value::Object(metadata.clone()).to_string(),
            display_id: display_id.unwrap_or_default().to_owned(),
        };
        kernel_side.reply(&display);
    }

    /// Handles a message of the kernel program.
    fn said(
        &self,
        kernel_side: &KernelSide,
        active: &mut Active,
        message: &Message,
    ) -> Result<(), Disconnected> {
        let Some(program) = &self.program else { return Ok(()) };
        match parse(&program.prefix, message) {
            Some(StdinMessage::Control(piece)) => {
                let calls =
                    tool_calls(&mut active.frames, &piece, active.id).map_err(|_| Disconnected)?;
                for call in calls {
                    kernel_side.reply(&call);
                }
            }
            Some(StdinMessage::More) => active.wants_input = true,
            Some(StdinMessage::Enough) => active.stdin = None,
            None => {}
        }
        Ok(())
    }

    /// Sends a piece of input to a waiting kernel, or the end of the input.
    async fn give(&self, active: &mut Active, piece: Option<Vec<u8>>) -> Result<(), Disconnected> {
        active.wants_input = false;
        let Some(program) = &self.program else { return Ok(()) };
        let (kind, piece) = match piece {
            Some(piece) => (INPUT, piece),
            None => {
                active.stdin = None;
                (END, Vec::new())
            }
        };
        self.say(active, program, kind, piece.into()).await
    }

    /// Forwards the result of a tool call.
    async fn pass_on(&self, active: &Active, request: &Request) -> Result<(), Disconnected> {
        let mut frame = Vec::new();
        let Some(program) = &self.program else { return Ok(()) };
        if request.encode(&mut frame).is_ok() {
            let mut rest = Bytes::from(frame);
            while !rest.is_empty() {
                let piece = rest.split_to(rest.len().min(CHUNK_SIZE));
                self.say(active, program, CONTROL, piece).await?;
            }
        }
        Ok(())
    }

    async fn say(
        &self,
        active: &Active,
        program: &Program,
        kind: &str,
        piece: Bytes,
    ) -> Result<(), Disconnected> {
        let mut reply = InputReply::default();
        reply.value = format!("{}{kind}", program.prefix);
        let mut message = self.client.session().message(active.parent.clone(), reply);
        if !piece.is_empty() {
            message.buffers.push(piece);
        }
        self.client.send(Channel::Stdin, message).await.map_err(|_| Disconnected)
    }

    /// Writes the text for a pager, such as the help of `len?`, to standard output.
    fn page(&self, outcome: &Outcome) {
        for payload in outcome.reply.iter().flat_map(ExecuteReply::payloads) {
            if let Payload::Page { data, .. } = payload
                && let Some(text) = data.get("text/plain").and_then(Value::as_str)
            {
                self.streams[0].push(format!("{}\n", plain(text.trim_end())).as_bytes());
            }
        }
    }

    async fn finish(
        &mut self,
        kernel_side: &KernelSide,
        active: &Active,
        outcome: Outcome,
    ) -> Result<(), Disconnected> {
        match outcome.end {
            End::Replied if outcome.reply.is_some() => {}
            // The effect of the code is unknown, so the kernel is not used again.
            End::Replied | End::ReplyLost => {
                self.process.mark_lost(no_outcome_reason(&outcome));
                return Err(Disconnected);
            }
            End::ConnectionLost => return Err(Disconnected),
            _ => {
                self.process.mark_dead();
                return Err(Disconnected);
            }
        }
        if self.client.restarts() != self.restarts {
            // The code ran in a new process, without the earlier state.
            self.process.mark_dead();
            return Err(Disconnected);
        }
        if outcome.is_aborted() {
            let why = "the kernel did not run the code: earlier code failed";
            self.end(kernel_side, active.id, Err(why.to_owned()));
            return Ok(());
        }
        if !outcome.status().is_some_and(|status| status.is_ok() || status.is_error()) {
            self.process.mark_lost(no_outcome_reason(&outcome));
            return Err(Disconnected);
        }
        let told = self.told(&outcome);
        let published = told.get("published").and_then(Value::as_u64).unwrap_or_default();
        // A queue that drops output does not report how much.
        let missing = published.saturating_sub(active.outputs + active.told_lost);
        if missing > 0 {
            let note = format!(
                "[output is missing here: {missing} of {published} messages did not arrive]\n"
            );
            self.streams[1].push(note.as_bytes());
        }
        self.page(&outcome);
        if let Some(why) = told.get("failed").and_then(Value::as_str) {
            self.end(kernel_side, active.id, Err(why.to_owned()));
            return Ok(());
        }
        if let Some(code) = told.get("exit").and_then(Value::as_i64).or_else(|| exit_of(&outcome)) {
            kernel_side.reply(&Reply::Exit { id: active.id, code });
        } else if let Some(error) = &outcome.error {
            let mut traceback = plain(&error.traceback.join("\n"));
            if !traceback.ends_with('\n') && !traceback.is_empty() {
                traceback.push('\n');
            }
            kernel_side.reply(&Reply::Error {
                id: active.id,
                name: error.ename.clone(),
                value: plain(&error.evalue),
                traceback,
            });
        } else if !outcome.is_ok() {
            kernel_side.reply(&Reply::Error {
                id: active.id,
                name: "Error".into(),
                value: "the kernel reported a failure without details".into(),
                traceback: String::new(),
            });
        }
        let was_told = self.process.interrupts() > active.interrupts;
        let interrupted = match told.get("interrupted").and_then(Value::as_bool) {
            Some(interrupted) => interrupted || was_told && outcome.error.is_some(),
            None => was_told && !outcome.is_ok(),
        };
        let threads = told.get("threads").and_then(Value::as_u64).unwrap_or_default();
        kernel_side.reply(&Reply::Done {
            id: active.id,
            execution_count: self.runs,
            interrupted,
            background_threads: u32::try_from(threads).unwrap_or(u32::MAX),
        });
        Ok(())
    }

    /// Ends a run that did not start.
    fn end(&self, kernel_side: &KernelSide, id: i64, why: Result<(), String>) {
        if let Err(message) = why {
            kernel_side.reply(&Reply::Failed { id, kind: WireFailureKind::Invalid, message });
        }
        kernel_side.reply(&Reply::Done {
            id,
            execution_count: self.runs,
            interrupted: false,
            background_threads: 0,
        });
    }

    /// Returns the additions of the kernel program to the reply.
    fn told(&self, outcome: &Outcome) -> Map<String, Value> {
        let reply = outcome.reply.as_ref();
        let told = self.program.as_ref().and_then(|program| reply?.extra.get(program.key));
        told.and_then(Value::as_object).cloned().unwrap_or_default()
    }

    async fn variable(
        &mut self,
        kernel_side: &KernelSide,
        id: i64,
        asked: Value,
    ) -> Result<(), Disconnected> {
        let failed = |kind, message: &str| Reply::Failed { id, kind, message: message.to_owned() };
        let (Value::Object(asked), Some(_)) = (asked, &self.program) else {
            kernel_side
                .reply(&failed(WireFailureKind::Invalid, "this kernel does not support variables"));
            return Ok(());
        };
        let mut request = ExecuteRequest::new("");
        (request.silent, request.store_history) = (true, false);
        let message = self.marked(request, asked);
        let running = self.client.execute_message(message).await.map_err(|_| Disconnected)?;
        let outcome = running.outcome().await;
        if outcome.end != End::Replied {
            return Err(Disconnected);
        }
        let told = self.told(&outcome);
        let text = |name: &str| told.get(name).and_then(Value::as_str);
        let reply = match (text("value"), text("message")) {
            (Some(json), _) => Reply::Value { id, json: json.to_owned() },
            (None, Some(message)) => {
                let kind = match told.get("failure").and_then(Value::as_u64) {
                    Some(0) => WireFailureKind::NotFound,
                    Some(1) => WireFailureKind::NotSerializable,
                    Some(3) => WireFailureKind::TooLarge,
                    _ => WireFailureKind::Invalid,
                };
                failed(kind, message)
            }
            (None, None) => {
                failed(WireFailureKind::Invalid, "the kernel did not answer the request")
            }
        };
        if !kernel_side.reply(&reply) {
            kernel_side.reply(&failed(WireFailureKind::TooLarge, "the value is too large"));
        }
        Ok(())
    }
}
