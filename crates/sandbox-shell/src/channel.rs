//! The channel to a sandbox: one open terminal in raw mode, over which a program there runs commands.
//!
//! A command over the channel is one message to the sandbox and its output back: no request, no connection and no shell of its
//! own. The program is Python in the sandbox; where there is none, or where the terminal changes bytes, commands go the way of
//! the host.
//!
//! A connection that breaks is made again, to the same terminal, where the host can do that. What was on its way in either
//! direction is sent again then, and nothing is done twice: the program keeps output until it is acknowledged, and knows the
//! numbers of all commands.

mod frames;
mod running;
mod slot;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use sandbox_core::{ByteStream, Effect, Error, ErrorKind, Result, Retry, random_hex};
use sandbox_engine::host::Spawn;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};

use self::frames::{
    ACKNOWLEDGE, CLOSED, END, ERR, LEAVE, OUT, PING, READY, RESUME, SET_ENVIRONMENT, START_COMMAND,
    TAKEN, UNKNOWN, frame, split_frame,
};
use self::running::{Piece, Pieces, Running};
pub use self::slot::{ChannelSlot, ChannelUse};
use super::raw_terminal::{check_raw_terminal, raw_terminal_program};
use super::{AttachedProgram, ProgramOutput, SHELL, ScriptOutput, ShellHost};

/// The program that runs commands.
const RUNNER: &str = include_str!("channel/runner.py");

/// Prints the environment of the sandbox's programs: that of the shell around this script, which has set `LC_ALL` for it.
const ENVIRONMENT: &str = "exec cat \"/proc/$PPID/environ\"";

/// Bytes of the word before what is sent again.
const NONCE_SIZE: usize = 16;

/// Bytes of output that are read before the sandbox is told so.
const ACKNOWLEDGED: u64 = 256 << 10;

/// Bytes of one command that the program in the sandbox sends before they are acknowledged: 1 MiB, and reports. Code in the
/// sandbox may have taken its place: a channel with more, or with a frame that is larger than a program sends, is lost.
const MAX_UNREAD: u64 = (1 << 20) + (64 << 10);
const MAX_FRAME: usize = 128 << 10;

/// Bytes of a script's input.
const MAX_INPUT: usize = 64 << 10;

/// Bytes of a script's output.
const MAX_OUTPUT: usize = 64 << 20;

/// Bytes of a command's input in one frame, and of all that the sandbox has not taken yet.
const INPUT_SIZE: usize = 64 << 10;
const MAX_INPUT_WAITING: u64 = 512 << 10;

/// Time for the terminal of a channel to be ready, and for it to end.
const OPEN_TIMEOUT: Duration = Duration::from_secs(120);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of signs of life, and the time without an answer after which the channel is lost.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const MAX_SILENCE: Duration = Duration::from_secs(35);

/// Pauses before the attempts to connect again, in milliseconds, and the time of one.
const PAUSES: [u64; 6] = [0, 100, 300, 1000, 3000, 8000];
const RESUME_TIMEOUT: Duration = Duration::from_secs(10);

/// Time without a command after which the channel is closed: an open one may keep a sandbox from being idle.
const MAX_IDLE: Duration = Duration::from_secs(45);

/// A host whose terminals can be a channel.
#[async_trait]
pub trait ChannelHost: ShellHost {
    /// Starts a program on a terminal.
    ///
    /// # Errors
    /// As [`ShellHost::start`].
    async fn open_terminal(&self, argv: Vec<String>) -> Result<ChannelTerminal>;

    /// Connects again to a terminal whose connection broke. `None`: the host cannot do that.
    ///
    /// # Errors
    /// `NotFound` for a terminal that is gone; what keeps the sandbox from being reached.
    async fn reopen_terminal(&self, id: &str) -> Result<Option<ChannelTerminal>>;

    /// Removes what the host keeps of a terminal whose program has ended, or which cannot be reached any more.
    async fn forget_terminal(&self, id: &str);
}

/// A connection to a terminal.
pub struct ChannelTerminal {
    /// The id of the terminal, as the host has it.
    pub id: String,
    /// What the terminal prints.
    pub output: ProgramOutput,
    /// Takes what is typed. A message arrives whole or not at all. Dropping it closes the connection.
    pub input: mpsc::UnboundedSender<Bytes>,
}

impl std::fmt::Debug for ChannelTerminal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelTerminal").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ChannelTerminal {
    fn send(&self, frame: Bytes) -> Result<()> {
        self.input.send(frame).map_err(|_| lost())
    }
}

/// An open channel.
#[derive(Debug)]
pub struct Channel {
    frames: mpsc::UnboundedSender<Bytes>,
    commands: Mutex<HashMap<u32, Running>>,
    last: AtomicU32,
    is_lost: watch::Sender<bool>,
    is_connected: AtomicBool,
    /// Wakes what exchanges frames when nothing is heard.
    silence: Notify,
    /// Wakes what sends input when the sandbox has taken some.
    taken: Notify,
    /// When a command was last started or ended, and when the sandbox was last heard.
    times: Mutex<(Instant, Instant)>,
    /// The sandbox is held, and so does not answer.
    is_held: AtomicBool,
}

impl Channel {
    /// Opens a channel. Its work is done in the runtime of the caller.
    ///
    /// # Errors
    /// `Unsupported` for a sandbox without what the channel needs; what keeps the sandbox from being reached.
    async fn open(host: &Arc<dyn ChannelHost>) -> Result<Arc<Self>> {
        let environment = host.run(ENVIRONMENT, &[]).await?;
        let opening = timeout(OPEN_TIMEOUT, Self::open_terminal(&**host));
        let (terminal, rest) = opening.await.unwrap_or_else(|_| {
            let message = "the terminal of the channel was not ready in time";
            Err(Error::new(ErrorKind::Timeout, "connect", message))
        })?;
        let (frames, queue) = mpsc::unbounded_channel();
        let channel = Arc::new(Self::over(frames));
        channel.send(SET_ENVIRONMENT, 0, &[&environment.stdout]);
        tokio::spawn(Arc::clone(&channel).serve(Arc::downgrade(host), terminal, rest, queue));
        tokio::spawn(Arc::clone(&channel).keep());
        Ok(channel)
    }

    async fn open_terminal(host: &dyn ChannelHost) -> Result<(ChannelTerminal, BytesMut)> {
        let word = random_hex(16);
        let program = ["-ESBc", RUNNER].map(str::to_owned).into();
        let argv = raw_terminal_program(&word, "/dev/null", program);
        let ChannelTerminal { id, output, input } = host.open_terminal(argv).await?;
        let type_in = async |data| input.send(data).map_err(io::Error::other);
        let checked = check_raw_terminal(output, &word, type_in).await;
        let mut output = checked.map_err(|failed| failed.into_error("connect"))?;
        let mut heard = BytesMut::new();
        loop {
            match split_frame(&mut heard) {
                Some((READY, ..)) => return Ok((ChannelTerminal { id, output, input }, heard)),
                Some(_) => return Err(unsuitable()),
                None => {}
            }
            let Some(Ok((_, data))) = output.next().await else { return Err(unsuitable()) };
            heard.extend_from_slice(&data);
        }
    }

    fn over(frames: mpsc::UnboundedSender<Bytes>) -> Self {
        let now = Instant::now();
        Self {
            frames,
            commands: Mutex::default(),
            last: AtomicU32::new(0),
            is_lost: watch::Sender::new(false),
            is_connected: AtomicBool::new(true),
            silence: Notify::new(),
            taken: Notify::new(),
            times: Mutex::new((now, now)),
            is_held: AtomicBool::new(false),
        }
    }

    /// Returns true while the channel takes commands.
    fn is_connected(&self) -> bool {
        self.is_open() && self.is_connected.load(Ordering::Relaxed)
    }

    /// Returns false when the channel was closed or is lost.
    fn is_open(&self) -> bool {
        !*self.is_lost.borrow()
    }

    fn close(&self) {
        self.send(LEAVE, 0, &[]);
        self.lose();
    }

    fn hold(&self, is_held: bool) {
        self.is_held.store(is_held, Ordering::Relaxed);
        self.times().1 = Instant::now();
        if is_held {
            self.close_if_idle();
        }
    }

    fn close_if_idle(&self) {
        if self.commands().is_empty() {
            self.close();
        }
    }

    fn lose(&self) {
        self.is_lost.send_replace(true);
        // Without their end, which is how their readers know.
        self.commands().clear();
        self.taken.notify_waiters();
    }

    fn commands(&self) -> MutexGuard<'_, HashMap<u32, Running>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn times(&self) -> MutexGuard<'_, (Instant, Instant)> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, kind: u8, command: u32, content: &[&[u8]]) {
        self.send_frame(frame(kind, command, content));
    }

    fn send_frame(&self, frame: Bytes) {
        // Nothing takes it when the channel is lost, which its readers know otherwise.
        let _ = self.frames.send(frame);
    }

    /// Starts a program. Its output has reports of its start and its exit when it is given a word for them.
    fn request(&self, word: &str, spec: &Spawn, input: serde_json::Value) -> (u32, Pieces) {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (sender, pieces) = mpsc::unbounded_channel();
        let Spawn { argv, env, cwd, .. } = spec;
        let limit = spec.limit.map(|limit| limit.as_secs_f64());
        let request = json!({
            "word": word, "argv": argv, "env": env, "cwd": cwd, "input": input, "limit": limit,
        });
        let request = frame(START_COMMAND, number, &[request.to_string().as_bytes()]);
        self.commands().insert(number, Running::new(sender, request.clone()));
        self.times().0 = Instant::now();
        self.send_frame(request);
        if !self.is_open() {
            self.commands().remove(&number);
        }
        (number, pieces)
    }

    /// Starts a command without a terminal, whose output has the reports that [`COMMAND`](super::COMMAND) makes. It must be
    /// called in a runtime, as [`ShellHost::start_own`] is.
    pub fn start(self: &Arc<Self>, spec: &Spawn, word: &str) -> AttachedProgram {
        let input = if spec.stdin { json!(true) } else { json!(null) };
        let (number, pieces) = self.request(word, spec, input);
        let output = output(Arc::clone(self), number, pieces);
        let (input, typed) = duplex(INPUT_SIZE);
        if spec.stdin {
            tokio::spawn(Arc::clone(self).feed_command(number, typed));
        }
        AttachedProgram { id: format!("channel/{number}"), output, input: Box::pin(input) }
    }

    /// Runs a script in the shell of the image to its end. The input is one that [`read_input`] has found to be small.
    ///
    /// # Errors
    /// `ConnectionLost`, with an unknown effect; `ResourceExhausted` for an output of more than 64 MiB.
    pub async fn run(
        &self,
        script: &str,
        arguments: &[&str],
        input: Option<&[u8]>,
    ) -> Result<ScriptOutput> {
        let mut argv = [SHELL, "-c", script, "sh"].map(str::to_owned).to_vec();
        argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let env = [("LC_ALL".to_owned(), "C".to_owned())].into();
        let spec = Spawn { env, ..plain(argv) };
        let input = json!(input.map(|input| STANDARD.encode(input)));
        let (number, mut pieces) = self.request("", &spec, input);
        let (mut found, mut taken) = (ScriptOutput::default(), 0);
        while let Some(piece) = pieces.recv().await {
            let (stream, data) = match piece {
                Piece::Output(stream, data) => (stream, data),
                Piece::End(status) => {
                    found.status = i64::from(status);
                    return Ok(found);
                }
            };
            taken += data.len() as u64;
            self.acknowledge(number, taken);
            let into = if stream == 0 { &mut found.stdout } else { &mut found.stderr };
            into.extend_from_slice(&data);
            if found.stdout.len() + found.stderr.len() > MAX_OUTPUT {
                let message = "a script in the sandbox printed more than 64 MiB";
                return Err(Error::new(ErrorKind::ResourceExhausted, "tool", message));
            }
        }
        Err(lost())
    }

    /// Passes on the input of a command, and its end.
    async fn feed_command(self: Arc<Self>, number: u32, mut typed: DuplexStream) {
        let mut buffer = vec![0; INPUT_SIZE];
        while let Ok(count) = typed.read(&mut buffer).await {
            loop {
                let taken = self.taken.notified();
                tokio::pin!(taken);
                taken.as_mut().enable();
                {
                    let mut commands = self.commands();
                    let Some(running) = commands.get_mut(&number) else { return };
                    if running.input.is_closed {
                        return;
                    }
                    if count == 0 {
                        return self.send_frame(running.input.end(number));
                    }
                    if running.input.waiting() < MAX_INPUT_WAITING {
                        let data = Bytes::copy_from_slice(&buffer[..count]);
                        self.send_frame(running.input.push(number, data));
                        break;
                    }
                }
                taken.await;
            }
        }
    }

    /// Says how many bytes of the output of a command were taken in all.
    fn acknowledge(&self, number: u32, taken: u64) {
        if let Some(running) = self.commands().get_mut(&number) {
            running.acknowledged = taken;
        }
        self.send(ACKNOWLEDGE, number, &[&taken.to_le_bytes()]);
    }

    /// Passes on what came from the sandbox.
    fn take(&self, kind: u8, number: u32, content: Bytes) {
        let mut commands = self.commands();
        let Some(running) = commands.get_mut(&number) else { return };
        if kind == UNKNOWN {
            // The request was lost on its way. It is sent again once.
            let Some(request) = running.request.take() else {
                commands.remove(&number);
                return;
            };
            self.send_frame(request);
            running.input.again(number).into_iter().for_each(|frame| self.send_frame(frame));
            return;
        }
        running.request = None;
        match kind {
            TAKEN | CLOSED => {
                running.input.is_closed |= kind == CLOSED;
                if let Some(taken) = content.first_chunk() {
                    running.input.take(u64::from_le_bytes(*taken));
                }
                return self.taken.notify_waiters();
            }
            _ => {}
        }
        running.received += content.len() as u64;
        let received = running.received;
        if received - running.acknowledged > MAX_UNREAD {
            drop(commands);
            tracing::debug!("the channel to a sandbox is lost: it sends more than it may");
            return self.lose();
        }
        let piece = match kind {
            OUT => Piece::Output(0, content),
            ERR => Piece::Output(1, content),
            END => {
                let status = content.first_chunk().map_or(126, |bytes| i32::from_le_bytes(*bytes));
                let _ = running.pieces.send(Piece::End(status));
                commands.remove(&number);
                drop(commands);
                self.taken.notify_waiters();
                self.times().0 = Instant::now();
                return self.acknowledge(number, received);
            }
            _ => return,
        };
        if running.pieces.send(piece).is_err() {
            // The command ends when all of its output is taken.
            drop(commands);
            self.acknowledge(number, received);
        }
    }

    /// Exchanges frames, over one connection after the other.
    async fn serve(
        self: Arc<Self>,
        host: Weak<dyn ChannelHost>,
        mut terminal: ChannelTerminal,
        mut received: BytesMut,
        mut queue: mpsc::UnboundedReceiver<Bytes>,
    ) {
        loop {
            self.exchange(&mut terminal, &mut received, &mut queue).await;
            self.is_connected.store(false, Ordering::Relaxed);
            if !self.is_open() || self.commands().is_empty() {
                break;
            }
            let mut is_lost = self.is_lost.subscribe();
            let again = tokio::select! {
                again = self.reconnect(&host, &terminal.id) => again,
                _ = is_lost.wait_for(|lost| *lost) => None,
            };
            let Some((again, rest)) = again else {
                tracing::debug!("the channel to a sandbox is lost");
                break;
            };
            (terminal, received) = (again, rest);
            self.times().1 = Instant::now();
            self.send_again();
            self.is_connected.store(true, Ordering::Relaxed);
        }
        self.lose();
        let Some(host) = host.upgrade().filter(|host| !host.is_closed()) else { return };
        let id = terminal.id.clone();
        end(terminal, queue).await;
        host.forget_terminal(&id).await;
    }

    /// Exchanges frames until the connection breaks or the channel is closed.
    async fn exchange(
        &self,
        terminal: &mut ChannelTerminal,
        received: &mut BytesMut,
        queue: &mut mpsc::UnboundedReceiver<Bytes>,
    ) {
        let mut is_lost = self.is_lost.subscribe();
        let ChannelTerminal { output, input, .. } = terminal;
        let writing = async {
            while let Some(frame) = queue.recv().await {
                if input.send(frame).is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = writing => {}
            () = self.read(output, received) => {}
            () = self.silence.notified() => {}
            _ = is_lost.wait_for(|lost| *lost) => {}
        }
    }

    async fn read(&self, output: &mut ProgramOutput, received: &mut BytesMut) {
        loop {
            while let Some((kind, command, content)) = split_frame(received) {
                self.take(kind, command, content);
            }
            if received.len() > MAX_FRAME {
                tracing::debug!("the channel to a sandbox is lost: it sends no frames");
                return self.lose();
            }
            let Some(Ok((_, data))) = output.next().await else { return };
            received.extend_from_slice(&data);
            self.times().1 = Instant::now();
        }
    }

    /// Connects to the terminal again. Returns `None` when it is gone, or cannot be reached.
    async fn reconnect(
        &self,
        host: &Weak<dyn ChannelHost>,
        id: &str,
    ) -> Option<(ChannelTerminal, BytesMut)> {
        for pause in PAUSES {
            sleep(Duration::from_millis(pause)).await;
            let host = host.upgrade().filter(|host| !host.is_closed())?;
            let connecting = async {
                let Some(mut terminal) = host.reopen_terminal(id).await? else { return Ok(None) };
                let rest = self.resume(&mut terminal).await?;
                Ok(Some((terminal, rest)))
            };
            match timeout(RESUME_TIMEOUT, connecting).await {
                Ok(Ok(connected)) => return connected,
                Ok(Err(error)) if is_final(&error) => return None,
                failed => tracing::debug!(?failed, "the channel to a sandbox is connected again"),
            }
        }
        None
    }

    /// Says what has arrived, and passes over what comes before the answer.
    async fn resume(&self, terminal: &mut ChannelTerminal) -> Result<BytesMut> {
        let nonce = random_hex(NONCE_SIZE / 2);
        let mut content = nonce.clone().into_bytes();
        for (number, running) in &*self.commands() {
            content.extend_from_slice(&number.to_le_bytes());
            content.extend_from_slice(&running.received.to_le_bytes());
        }
        terminal.send(frame(RESUME, 0, &[&content]))?;
        let mut heard = BytesMut::new();
        loop {
            if let Some(at) = memchr::memmem::find(&heard, nonce.as_bytes()) {
                heard.advance(at + nonce.len());
                return Ok(heard);
            }
            let passed = heard.len().saturating_sub(NONCE_SIZE);
            heard.advance(passed);
            match terminal.output.next().await {
                Some(Ok((_, data))) => heard.extend_from_slice(&data),
                _ => return Err(lost()),
            }
        }
    }

    /// Sends what may have been lost with the last connection, beside requests: the sandbox asks for those.
    fn send_again(&self) {
        for (number, running) in &mut *self.commands() {
            self.send(ACKNOWLEDGE, *number, &[&running.acknowledged.to_le_bytes()]);
            running.input.again(*number).into_iter().for_each(|frame| self.send_frame(frame));
        }
    }

    /// Shows the sandbox that this process is there, and closes a channel that is not used.
    async fn keep(self: Arc<Self>) {
        while self.is_open() {
            sleep(PING_INTERVAL).await;
            let (used, heard) = *self.times();
            if self.is_held.load(Ordering::Relaxed) {
                continue;
            }
            if heard.elapsed() > MAX_SILENCE {
                tracing::debug!("nothing is heard over the channel to a sandbox");
                self.times().1 = Instant::now();
                self.silence.notify_waiters();
            }
            if used.elapsed() > MAX_IDLE {
                self.close_if_idle();
            }
            self.send(PING, 0, &[]);
        }
    }
}

/// Sends the last frames to a terminal, and waits until its program has ended.
async fn end(mut terminal: ChannelTerminal, mut queue: mpsc::UnboundedReceiver<Bytes>) {
    while let Ok(frame) = queue.try_recv() {
        let _ = terminal.input.send(frame);
    }
    let ending = async { while let Some(Ok(_)) = terminal.output.next().await {} };
    let _ = timeout(CLOSE_TIMEOUT, ending).await;
}

/// Reads an input as far as that of a script over a channel may go. `Err` has the content of one that is longer.
///
/// # Errors
/// An error of the content.
pub async fn read_input(mut content: ByteStream) -> Result<std::result::Result<Bytes, ByteStream>> {
    let (mut chunks, mut size) = (Vec::new(), 0);
    while let Some(chunk) = content.next().await.transpose()? {
        size += chunk.len();
        chunks.push(chunk);
        if size > MAX_INPUT {
            let first = stream::iter(chunks.into_iter().map(Ok));
            return Ok(Err(Box::pin(first.chain(content))));
        }
    }
    Ok(Ok(chunks.concat().into()))
}

/// Returns the start of a program with nothing beyond its arguments.
fn plain(argv: Vec<String>) -> Spawn {
    Spawn {
        argv,
        env: BTreeMap::new(),
        cwd: "/".to_owned(),
        stdin: false,
        terminal: None,
        label: None,
        as_root: false,
        limit: None,
    }
}

/// Returns the error of a connection that broke.
fn lost() -> Error {
    let message = "the connection to the sandbox broke";
    Error::new(ErrorKind::ConnectionLost, "command", message)
        .with_retry(Retry::Temporary)
        .with_effect(Effect::Unknown)
}

fn unsuitable() -> Error {
    Error::unsupported("connect", "Python in the sandbox cannot start programs as a channel needs")
}

/// Returns true for an error that another attempt would meet again.
fn is_final(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Returns the output of a command as it is read.
fn output(channel: Arc<Channel>, number: u32, pieces: Pieces) -> ProgramOutput {
    let state = (channel, pieces, (0_u64, 0_u64), false);
    let output = stream::unfold(state, move |(channel, mut pieces, read, is_over)| async move {
        if is_over {
            return None;
        }
        match pieces.recv().await {
            Some(Piece::Output(stream, data)) => {
                let (mut taken, mut told) = read;
                taken += data.len() as u64;
                if taken - told >= ACKNOWLEDGED {
                    channel.acknowledge(number, taken);
                    told = taken;
                }
                Some((Ok((stream, data)), (channel, pieces, (taken, told), false)))
            }
            Some(Piece::End(_)) => None,
            None => Some((Err(io::Error::other(lost())), (channel, pieces, read, true))),
        }
    });
    Box::pin(output.fuse())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spawn(program: &str) -> Spawn {
        plain(vec![program.to_owned()])
    }

    #[tokio::test]
    async fn output_of_a_lost_channel_ends_with_an_error() {
        let (frames, mut sent) = mpsc::unbounded_channel();
        let channel = Arc::new(Channel::over(frames));
        let (number, pieces) = channel.request("w", &spawn("true"), json!(null));
        let mut read = output(Arc::clone(&channel), number, pieces);
        channel.take(ERR, number, Bytes::from_static(b"e"));
        channel.lose();
        assert_eq!(read.next().await.unwrap().unwrap(), (1, Bytes::from_static(b"e")));
        assert!(read.next().await.unwrap().is_err());
        assert!(read.next().await.is_none());
        assert_eq!(sent.recv().await.unwrap()[0], START_COMMAND);
    }

    #[tokio::test]
    async fn output_without_a_reader_is_taken_and_a_lost_request_sent_again() {
        let (frames, mut sent) = mpsc::unbounded_channel();
        let channel = Channel::over(frames);
        let (number, pieces) = channel.request("w", &spawn("true"), json!(null));
        let request = sent.recv().await.unwrap();
        channel.take(UNKNOWN, number, Bytes::new());
        assert_eq!(sent.recv().await.unwrap(), request);
        drop(pieces);
        for taken in [4_u64, 8] {
            channel.take(OUT, number, Bytes::from_static(b"late"));
            let expected = frame(ACKNOWLEDGE, number, &[&taken.to_le_bytes()]);
            assert_eq!(sent.recv().await.unwrap(), expected);
        }
        // A command with an answer was not lost, so it is not started again.
        channel.take(UNKNOWN, number, Bytes::new());
        assert!(sent.try_recv().is_err() && channel.commands().is_empty());
    }

    #[tokio::test]
    async fn a_sandbox_that_sends_more_than_it_may_loses_its_channel() {
        let (frames, _sent) = mpsc::unbounded_channel();
        let channel = Arc::new(Channel::over(frames));
        let (number, pieces) = channel.request("w", &spawn("yes"), json!(null));
        let mut read = output(Arc::clone(&channel), number, pieces);
        let piece = Bytes::from(vec![0; 64 << 10]);
        // As much as is read may come without end.
        for _ in 0..100 {
            channel.take(OUT, number, piece.clone());
            assert_eq!(read.next().await.unwrap().unwrap().1.len(), piece.len());
        }
        assert!(channel.is_open());
        for _ in 0..18 {
            channel.take(OUT, number, piece.clone());
        }
        assert!(!channel.is_open());
    }

    #[test]
    fn a_command_whose_time_is_over_ends_without_a_client_that_ends_it() {
        use std::io::{Read as _, Write as _};
        use std::process::{Command, Stdio};

        let mut runner = Command::new("python3")
            .args(["-ESBc", RUNNER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let request = json!({
            "word": "", "argv": ["/bin/sh", "-c", "sleep 1000 & wait"], "env": {}, "cwd": "/", "input": null, "limit": 0.1,
        });
        let mut input = runner.stdin.take().unwrap();
        input.write_all(&frame(START_COMMAND, 1, &[request.to_string().as_bytes()])).unwrap();
        let mut output = runner.stdout.take().unwrap();
        let mut heard = BytesMut::new();
        let status = loop {
            match split_frame(&mut heard) {
                Some((END, 1, content)) => break content,
                Some(_) => continue,
                None => {}
            }
            let mut buffer = [0; 1024];
            let count = output.read(&mut buffer).unwrap();
            assert!(count > 0, "the program has ended");
            heard.extend_from_slice(&buffer[..count]);
        };
        assert_eq!(status[..], 137_i32.to_le_bytes());
        drop(input);
        assert!(runner.wait().unwrap().success());
    }
}
