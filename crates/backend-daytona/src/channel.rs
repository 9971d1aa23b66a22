//! The channel to a sandbox: one open terminal in raw mode, over which a program there runs commands.
//!
//! A command over the channel is one message to the sandbox and its output back: no request, no connection and no shell of its
//! own. The program is Python in the sandbox; where there is none, or where the terminal changes bytes, commands are those
//! of sessions. A terminal need not pass on every byte, so the channel begins with a check of all of them.
//!
//! A connection that breaks is made again, to the same terminal. What was on its way in either direction is sent again then,
//! and nothing is done twice: the program keeps output until it is acknowledged, and knows the numbers of all commands.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::stream;
use sandbox_cloud::http::websocket::{SocketMessage, SocketReceiver, SocketSender};
use sandbox_core::{Effect, Error, ErrorKind, PtySize, Result, Retry, random_hex};
use sandbox_engine::host::Spawn;
use sandbox_shell::{AttachedProgram, ProgramOutput, SHELL, ScriptOutput, text};
use serde_json::json;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::channel_check::check;
use crate::programs::{Programs, TERMINAL_TIMEOUT, staging, until_connected};
use crate::wire::PtyControl;

/// Makes the terminal raw, and starts the program.
const START: &str = include_str!("scripts/channel.sh");

/// The program that runs commands.
const RUNNER: &str = include_str!("scripts/runner.py");

/// Prints the environment of the toolbox's programs: that of the shell around this script, which has set `LC_ALL` for it.
const ENVIRONMENT: &str = "exec cat \"/proc/$PPID/environ\"";

/// Kinds of frames to the sandbox.
const START_COMMAND: u8 = 1;
const ACKNOWLEDGE: u8 = 2;
const PING: u8 = 3;
const LEAVE: u8 = 4;
const SET_ENVIRONMENT: u8 = 5;
const RESUME: u8 = 6;

/// Kinds of frames from the sandbox.
const OUT: u8 = 1;
const ERR: u8 = 2;
const END: u8 = 3;
const UNKNOWN: u8 = 5;

/// Bytes of the word before what is sent again.
const NONCE_SIZE: usize = 16;

/// Bytes of a frame before its content.
const HEAD: usize = 9;

/// Bytes of output that are read before the sandbox is told so.
const ACKNOWLEDGED: u64 = 256 << 10;

/// Bytes of one command that the program in the sandbox sends before they are acknowledged: 1 MiB, and reports. Code in the
/// sandbox may have taken its place: a channel with more, or with a frame that is larger than a program sends, is lost.
const MAX_UNREAD: u64 = (1 << 20) + (64 << 10);
const MAX_FRAME: usize = 128 << 10;

/// Bytes of a script's input.
pub(crate) const MAX_INPUT: usize = 64 << 10;

/// Bytes of a script's output.
const MAX_OUTPUT: usize = 64 << 20;

/// Interval of signs of life, and the time without an answer after which the channel is lost.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const MAX_SILENCE: Duration = Duration::from_secs(35);

/// Pauses before the attempts to connect again, in milliseconds, and the time of one.
const PAUSES: [u64; 6] = [0, 100, 300, 1000, 3000, 8000];
const RESUME_TIMEOUT: Duration = Duration::from_secs(10);

/// Time without a command after which the channel is closed: an open one may keep a sandbox from being idle.
const MAX_IDLE: Duration = Duration::from_secs(45);

/// Output of a command, and its end with the status of its process.
#[derive(Debug)]
enum Piece {
    Output(usize, Bytes),
    End(i32),
}

type Pieces = mpsc::UnboundedReceiver<Piece>;

/// A command that has not ended.
#[derive(Debug)]
struct Running {
    pieces: mpsc::UnboundedSender<Piece>,
    /// The request, until there is an answer to it.
    request: Option<Bytes>,
    /// Bytes of answers, and those that were acknowledged.
    received: u64,
    acknowledged: u64,
}

type Connection = (SocketSender, SocketReceiver);

/// An open channel.
#[derive(Debug)]
pub(crate) struct Channel {
    frames: mpsc::UnboundedSender<Bytes>,
    commands: Mutex<HashMap<u32, Running>>,
    last: AtomicU32,
    is_lost: watch::Sender<bool>,
    is_connected: AtomicBool,
    /// Wakes what exchanges frames when nothing is heard.
    silence: Notify,
    /// When a command was last started or ended, and when the sandbox was last heard.
    times: Mutex<(Instant, Instant)>,
    /// The sandbox is held, and so does not answer.
    is_held: AtomicBool,
}

/// The way to the terminal of a channel.
struct Way {
    programs: Weak<Programs>,
    terminal: String,
}

impl Channel {
    /// Opens a channel. It must be called in the background runtime, which the channel belongs to.
    ///
    /// # Errors
    /// `Unsupported` for a sandbox without what the channel needs; what keeps the sandbox from being reached.
    pub(crate) async fn open(programs: &Arc<Programs>) -> Result<Arc<Self>> {
        let environment = programs.run_script("connect", ["", ""], ENVIRONMENT, &[]).await?;
        let toolbox = programs.toolbox("connect")?;
        let (file, word) = (staging(), random_hex(16));
        let words = [SHELL, "-c", START, "sh", &word, RUNNER];
        toolbox.upload_bytes("connect", &file, text::program_file(&[], &words)?).await?;
        let id = format!("code-sandboxes-{}", random_hex(8));
        let connecting = timeout(TERMINAL_TIMEOUT, async {
            let (mut sender, mut receiver) =
                toolbox.terminal(&id, PtySize::default()).await?.split();
            until_connected(&mut receiver).await?;
            sender.text(format!(" exec {SHELL} {file}\n")).await?;
            let rest = check(&mut sender, &mut receiver, &word).await?;
            Ok((sender, receiver, rest))
        });
        let connected = connecting.await.unwrap_or_else(|_| {
            let message = "the terminal of the channel was not ready in time";
            Err(Error::new(ErrorKind::Timeout, "connect", message))
        });
        let (sender, receiver, rest) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                let _ = toolbox.remove(&file).await;
                return Err(error);
            }
        };
        let (frames, queue) = mpsc::unbounded_channel();
        let channel = Arc::new(Self::over(frames));
        channel.send(SET_ENVIRONMENT, 0, &environment.stdout);
        let way = Way { programs: Arc::downgrade(programs), terminal: id };
        tokio::spawn(Arc::clone(&channel).serve(way, (sender, receiver), rest, queue));
        tokio::spawn(Arc::clone(&channel).keep());
        Ok(channel)
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
            times: Mutex::new((now, now)),
            is_held: AtomicBool::new(false),
        }
    }

    /// Returns true while the channel takes commands.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_open() && self.is_connected.load(Ordering::Relaxed)
    }

    /// Returns false when the channel was closed or is lost.
    pub(crate) fn is_open(&self) -> bool {
        !*self.is_lost.borrow()
    }

    /// Closes the channel. Commands that run are lost to this process.
    pub(crate) fn close(&self) {
        self.send(LEAVE, 0, &[]);
        self.lose();
    }

    /// Notes that the sandbox is about to be held, or is no more. A channel without a command is closed.
    pub(crate) fn hold(&self, is_held: bool) {
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
    }

    fn commands(&self) -> MutexGuard<'_, HashMap<u32, Running>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn times(&self) -> MutexGuard<'_, (Instant, Instant)> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, kind: u8, command: u32, content: &[u8]) {
        // Nothing takes it when the channel is lost, which its readers know otherwise.
        let _ = self.frames.send(frame(kind, command, content));
    }

    /// Starts a program. Its output has reports of its start and its exit when it is given a word for them.
    fn request(
        &self,
        word: &str,
        argv: &[String],
        env: &serde_json::Value,
        cwd: &str,
        input: Option<&[u8]>,
    ) -> (u32, Pieces) {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (sender, pieces) = mpsc::unbounded_channel();
        let input = input.map(|input| STANDARD.encode(input));
        let request = json!({"word": word, "argv": argv, "env": env, "cwd": cwd, "input": input});
        let request = request.to_string();
        let request = frame(START_COMMAND, number, request.as_bytes());
        let running = Running {
            pieces: sender,
            request: Some(request.clone()),
            received: 0,
            acknowledged: 0,
        };
        self.commands().insert(number, running);
        self.times().0 = Instant::now();
        let _ = self.frames.send(request);
        if !self.is_open() {
            self.commands().remove(&number);
        }
        (number, pieces)
    }

    /// Starts a command whose output has the reports that [`sandbox_shell::COMMAND`] makes.
    pub(crate) fn start(self: &Arc<Self>, spec: &Spawn, word: &str) -> AttachedProgram {
        let (number, pieces) = self.request(word, &spec.argv, &json!(spec.env), &spec.cwd, None);
        let output = output(Arc::clone(self), number, pieces);
        AttachedProgram {
            id: format!("channel/{number}"),
            output,
            input: Box::pin(tokio::io::sink()),
        }
    }

    /// Runs a script in the shell of the image to its end, with an input of at most [`MAX_INPUT`] bytes.
    ///
    /// # Errors
    /// `ConnectionLost`, with an unknown effect; `ResourceExhausted` for much output.
    pub(crate) async fn run(
        &self,
        script: &str,
        arguments: &[&str],
        input: Option<&[u8]>,
    ) -> Result<ScriptOutput> {
        let mut argv = [SHELL, "-c", script, "sh"].map(str::to_owned).to_vec();
        argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let (number, mut pieces) = self.request("", &argv, &json!({"LC_ALL": "C"}), "/", input);
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

    /// Says how many bytes of the output of a command were taken in all.
    fn acknowledge(&self, number: u32, taken: u64) {
        if let Some(running) = self.commands().get_mut(&number) {
            running.acknowledged = taken;
        }
        self.send(ACKNOWLEDGE, number, &taken.to_le_bytes());
    }

    /// Passes on what came from the sandbox.
    fn take(&self, kind: u8, number: u32, content: Bytes) {
        let mut commands = self.commands();
        let Some(running) = commands.get_mut(&number) else { return };
        if kind == UNKNOWN {
            // The request was lost on its way. It is sent again once.
            match running.request.take() {
                Some(request) => drop(self.frames.send(request)),
                None => drop(commands.remove(&number)),
            }
            return;
        }
        running.request = None;
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
        way: Way,
        mut connection: Connection,
        mut received: BytesMut,
        mut queue: mpsc::UnboundedReceiver<Bytes>,
    ) {
        loop {
            self.exchange(&mut connection, &mut received, &mut queue).await;
            self.is_connected.store(false, Ordering::Relaxed);
            if !self.is_open() {
                return connection.0.close().await;
            }
            if self.commands().is_empty() {
                return self.lose();
            }
            let mut is_lost = self.is_lost.subscribe();
            let again = tokio::select! {
                again = self.reconnect(&way) => again,
                _ = is_lost.wait_for(|lost| *lost) => None,
            };
            let Some((again, rest)) = again else {
                tracing::debug!("the channel to a sandbox is lost");
                return self.lose();
            };
            (connection, received) = (again, rest);
            self.times().1 = Instant::now();
            self.is_connected.store(true, Ordering::Relaxed);
        }
    }

    /// Exchanges frames until the connection breaks or the channel is closed.
    async fn exchange(
        &self,
        (sender, receiver): &mut Connection,
        received: &mut BytesMut,
        queue: &mut mpsc::UnboundedReceiver<Bytes>,
    ) {
        let mut is_lost = self.is_lost.subscribe();
        let writing = async {
            while let Some(frame) = queue.recv().await {
                if let Err(error) = sender.binary(frame).await {
                    tracing::debug!(%error, "the channel to a sandbox broke");
                    return;
                }
            }
        };
        tokio::select! {
            () = writing => return,
            () = self.read(receiver, received) => return,
            () = self.silence.notified() => return,
            _ = is_lost.wait_for(|lost| *lost) => {}
        }
        while let Ok(frame) = queue.try_recv() {
            let _ = sender.binary(frame).await;
        }
    }

    async fn read(&self, receiver: &mut SocketReceiver, received: &mut BytesMut) {
        loop {
            while let Some((kind, command, content)) = split_frame(received) {
                self.take(kind, command, content);
            }
            if received.len() > MAX_FRAME {
                tracing::debug!("the channel to a sandbox is lost: it sends no frames");
                return self.lose();
            }
            match receiver.next().await {
                Some(SocketMessage::Binary(data)) => received.extend_from_slice(&data),
                Some(SocketMessage::Text(text)) => {
                    let control: PtyControl = serde_json::from_str(&text).unwrap_or_default();
                    if control.status == "exited" {
                        return;
                    }
                }
                Some(SocketMessage::Closed { .. }) | None => return,
            }
            self.times().1 = Instant::now();
        }
    }

    /// Connects to the terminal again. Returns `None` when it is gone, or cannot be reached.
    async fn reconnect(&self, way: &Way) -> Option<(Connection, BytesMut)> {
        for pause in PAUSES {
            sleep(Duration::from_millis(pause)).await;
            let programs = way.programs.upgrade().filter(|programs| !programs.is_over())?;
            let toolbox = programs.toolbox("connect").ok()?;
            let connecting = async {
                let mut connection = toolbox.terminal_again(&way.terminal).await?.split();
                until_connected(&mut connection.1).await?;
                let rest = self.resume(&mut connection).await?;
                Ok((connection, rest))
            };
            match timeout(RESUME_TIMEOUT, connecting).await {
                Ok(Ok(connected)) => return Some(connected),
                Ok(Err(error)) if is_final(&error) => return None,
                failed => tracing::debug!(?failed, "the channel to a sandbox is connected again"),
            }
        }
        None
    }

    /// Says what has arrived, and passes over what comes before the answer.
    async fn resume(&self, (sender, receiver): &mut Connection) -> Result<BytesMut> {
        let nonce = random_hex(NONCE_SIZE / 2);
        let mut content = nonce.clone().into_bytes();
        for (number, running) in &*self.commands() {
            content.extend_from_slice(&number.to_le_bytes());
            content.extend_from_slice(&running.received.to_le_bytes());
        }
        sender.binary(frame(RESUME, 0, &content)).await?;
        let mut heard = BytesMut::new();
        loop {
            if let Some(at) = memchr::memmem::find(&heard, nonce.as_bytes()) {
                heard.advance(at + nonce.len());
                return Ok(heard);
            }
            let passed = heard.len().saturating_sub(NONCE_SIZE);
            heard.advance(passed);
            match receiver.next().await {
                Some(SocketMessage::Binary(data)) => heard.extend_from_slice(&data),
                Some(SocketMessage::Text(_)) => {}
                Some(SocketMessage::Closed { .. }) | None => return Err(lost()),
            }
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

fn frame(kind: u8, command: u32, content: &[u8]) -> Bytes {
    let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let head = [&[kind][..], &command.to_le_bytes(), &size.to_le_bytes()];
    [head.concat().as_slice(), content].concat().into()
}

/// Takes the first frame out of what was received, when it is complete: kind, command, content.
fn split_frame(received: &mut BytesMut) -> Option<(u8, u32, Bytes)> {
    let mut head = received.get(..HEAD)?;
    let (kind, command, size) = (head.get_u8(), head.get_u32_le(), head.get_u32_le() as usize);
    if received.len() < HEAD + size {
        return None;
    }
    received.advance(HEAD);
    Some((kind, command, received.split_to(size).freeze()))
}

/// Returns the error of a connection that broke.
pub(crate) fn lost() -> Error {
    let message = "the connection to the sandbox broke";
    Error::new(ErrorKind::ConnectionLost, "command", message)
        .with_retry(Retry::Temporary)
        .with_effect(Effect::Unknown)
}

/// Returns true for an error that another attempt would meet again.
fn is_final(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Returns the output of a command as it is read.
fn output(channel: Arc<Channel>, number: u32, pieces: Pieces) -> ProgramOutput {
    let state = (channel, pieces, (0_u64, 0_u64), false);
    Box::pin(stream::unfold(state, move |(channel, mut pieces, read, is_over)| async move {
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
    }))
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    #[test]
    fn frames_are_found_wherever_they_are_cut() {
        let frames =
            [(OUT, 7, b"abc".to_vec()), (END, 1 << 30, vec![0; 300]), (ERR, 0, Vec::new())];
        let sent: Vec<u8> =
            frames.iter().flat_map(|(kind, number, rest)| frame(*kind, *number, rest)).collect();
        for size in [1, 2, 9, 10, 100, sent.len()] {
            let (mut received, mut found) = (BytesMut::new(), Vec::new());
            for part in sent.chunks(size) {
                received.extend_from_slice(part);
                while let Some((kind, number, rest)) = split_frame(&mut received) {
                    found.push((kind, number, rest.to_vec()));
                }
            }
            assert_eq!(found, frames, "in parts of {size}");
            assert!(received.is_empty());
        }
    }

    #[tokio::test]
    async fn output_of_a_lost_channel_ends_with_an_error() {
        let (frames, mut sent) = mpsc::unbounded_channel();
        let channel = Arc::new(Channel::over(frames));
        let (number, pieces) = channel.request("w", &["true".to_owned()], &json!({}), "/", None);
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
        let (number, pieces) = channel.request("w", &["true".to_owned()], &json!({}), "/", None);
        let request = sent.recv().await.unwrap();
        channel.take(UNKNOWN, number, Bytes::new());
        assert_eq!(sent.recv().await.unwrap(), request);
        drop(pieces);
        for taken in [4_u64, 8] {
            channel.take(OUT, number, Bytes::from_static(b"late"));
            let expected = frame(ACKNOWLEDGE, number, &taken.to_le_bytes());
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
        let (number, pieces) = channel.request("w", &["yes".to_owned()], &json!({}), "/", None);
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
}
