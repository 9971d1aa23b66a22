//! The channel to a sandbox: one open terminal in raw mode, over which a program there runs commands.
//!
//! A command over the channel is one message to the sandbox and its output back: no request, no connection and no shell of its
//! own. The program is Python in the sandbox; where there is none, or where the terminal changes bytes, commands are those
//! of sessions. A terminal need not pass on every byte, so the channel begins with a check of all of them.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::stream;
use sandbox_cloud::http::websocket::{SocketMessage, SocketReceiver, SocketSender};
use sandbox_core::{Effect, Error, ErrorKind, PtySize, Result, Retry, random_hex};
use sandbox_engine::host::Spawn;
use sandbox_shell::{AttachedProgram, ProgramOutput, SHELL, ScriptOutput, text};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

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

/// Kinds of frames from the sandbox.
const OUT: u8 = 1;
const ERR: u8 = 2;
const END: u8 = 3;

/// Bytes of a frame before its content.
const HEAD: usize = 9;

/// Bytes of output that are read before the sandbox is told so. It sends at most 1 MiB of a command without.
const ACKNOWLEDGED: u32 = 256 << 10;

/// Bytes of a script's output.
const MAX_OUTPUT: usize = 64 << 20;

/// Bytes before the check that are passed over: what a shell prints.
const MAX_NOISE: usize = 1 << 20;

/// Interval of signs of life, and the time without an answer after which the channel is lost.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const MAX_SILENCE: Duration = Duration::from_secs(35);

/// Time without a command after which the channel is closed: an open one may keep a sandbox from being idle.
const MAX_IDLE: Duration = Duration::from_secs(45);

/// Output of a command, and its end with the status of its process.
#[derive(Debug)]
enum Piece {
    Output(usize, Bytes),
    End(i32),
}

type Pieces = mpsc::UnboundedReceiver<Piece>;

/// An open channel.
#[derive(Debug)]
pub(crate) struct Channel {
    frames: mpsc::UnboundedSender<Bytes>,
    commands: Mutex<HashMap<u32, mpsc::UnboundedSender<Piece>>>,
    last: AtomicU32,
    is_lost: watch::Sender<bool>,
    /// When a command was last started or ended, and when the sandbox was last heard.
    times: Mutex<(Instant, Instant)>,
    /// The sandbox is held, and so does not answer.
    is_held: AtomicBool,
}

impl Channel {
    /// Opens a channel. It must be called in the background runtime, which the channel belongs to.
    ///
    /// # Errors
    /// `Unsupported` for a sandbox without what the channel needs; what keeps the sandbox from being reached.
    pub(crate) async fn open(programs: &Programs) -> Result<Arc<Self>> {
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
        let now = Instant::now();
        let channel = Arc::new(Self {
            frames,
            commands: Mutex::default(),
            last: AtomicU32::new(0),
            is_lost: watch::Sender::new(false),
            times: Mutex::new((now, now)),
            is_held: AtomicBool::new(false),
        });
        channel.send(SET_ENVIRONMENT, 0, &environment.stdout);
        tokio::spawn(write(Arc::clone(&channel), sender, queue));
        tokio::spawn(read(Arc::clone(&channel), receiver, rest));
        tokio::spawn(Arc::clone(&channel).keep());
        Ok(channel)
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

    fn commands(&self) -> MutexGuard<'_, HashMap<u32, mpsc::UnboundedSender<Piece>>> {
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
    ) -> (u32, Pieces) {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let (sender, pieces) = mpsc::unbounded_channel();
        self.commands().insert(number, sender);
        self.times().0 = Instant::now();
        let request = json!({"word": word, "argv": argv, "env": env, "cwd": cwd});
        self.send(START_COMMAND, number, request.to_string().as_bytes());
        if !self.is_open() {
            self.commands().remove(&number);
        }
        (number, pieces)
    }

    /// Starts a command whose output has the reports that [`sandbox_shell::COMMAND`] makes.
    pub(crate) fn start(self: &Arc<Self>, spec: &Spawn, word: &str) -> AttachedProgram {
        let (number, pieces) = self.request(word, &spec.argv, &json!(spec.env), &spec.cwd);
        let output = output(Arc::clone(self), number, pieces);
        AttachedProgram {
            id: format!("channel/{number}"),
            output,
            input: Box::pin(tokio::io::sink()),
        }
    }

    /// Runs a script in the shell of the image to its end.
    ///
    /// # Errors
    /// `ConnectionLost`, with an unknown effect; `ResourceExhausted` for much output.
    pub(crate) async fn run(&self, script: &str, arguments: &[&str]) -> Result<ScriptOutput> {
        let mut argv = [SHELL, "-c", script, "sh"].map(str::to_owned).to_vec();
        argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let (number, mut pieces) = self.request("", &argv, &json!({"LC_ALL": "C"}), "/");
        let mut found = ScriptOutput::default();
        while let Some(piece) = pieces.recv().await {
            let (stream, data) = match piece {
                Piece::Output(stream, data) => (stream, data),
                Piece::End(status) => {
                    found.status = i64::from(status);
                    return Ok(found);
                }
            };
            self.acknowledge(number, data.len());
            let into = if stream == 0 { &mut found.stdout } else { &mut found.stderr };
            into.extend_from_slice(&data);
            if found.stdout.len() + found.stderr.len() > MAX_OUTPUT {
                let message = "a script in the sandbox printed more than 64 MiB";
                return Err(Error::new(ErrorKind::ResourceExhausted, "tool", message));
            }
        }
        Err(lost())
    }

    fn acknowledge(&self, number: u32, size: usize) {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.send(ACKNOWLEDGE, number, &size.to_le_bytes());
    }

    /// Passes on what came from the sandbox.
    fn take(&self, kind: u8, number: u32, content: Bytes) {
        let size = content.len();
        let piece = match kind {
            OUT => Piece::Output(0, content),
            ERR => Piece::Output(1, content),
            END => {
                let status = content.first_chunk().map_or(126, |bytes| i32::from_le_bytes(*bytes));
                self.times().0 = Instant::now();
                if let Some(command) = self.commands().remove(&number) {
                    let _ = command.send(Piece::End(status));
                }
                return;
            }
            // The answer to a sign of life.
            _ => return,
        };
        let is_read =
            self.commands().get(&number).is_some_and(|command| command.send(piece).is_ok());
        if !is_read {
            // It ends when all of its output is taken.
            self.acknowledge(number, size);
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
                tracing::debug!("the channel to a sandbox is lost: nothing is heard");
                return self.lose();
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

fn lost() -> Error {
    let message = "the connection to the sandbox broke";
    Error::new(ErrorKind::ConnectionLost, "command", message)
        .with_retry(Retry::Temporary)
        .with_effect(Effect::Unknown)
}

/// Returns the output of a command as it is read.
fn output(channel: Arc<Channel>, number: u32, pieces: Pieces) -> ProgramOutput {
    let state = (channel, pieces, 0_u32, false);
    Box::pin(stream::unfold(state, move |(channel, mut pieces, mut read, is_over)| async move {
        if is_over {
            return None;
        }
        match pieces.recv().await {
            Some(Piece::Output(stream, data)) => {
                read += u32::try_from(data.len()).unwrap_or(u32::MAX);
                if read >= ACKNOWLEDGED {
                    channel.acknowledge(number, read as usize);
                    read = 0;
                }
                Some((Ok((stream, data)), (channel, pieces, read, false)))
            }
            Some(Piece::End(_)) => None,
            None => Some((Err(io::Error::other(lost())), (channel, pieces, read, true))),
        }
    }))
}

async fn write(
    channel: Arc<Channel>,
    mut sender: SocketSender,
    mut queue: mpsc::UnboundedReceiver<Bytes>,
) {
    let mut is_lost = channel.is_lost.subscribe();
    loop {
        let next = tokio::select! {
            biased;
            next = queue.recv() => next,
            _ = is_lost.wait_for(|lost| *lost) => None,
        };
        let Some(next) = next else { break };
        if let Err(error) = sender.binary(next).await {
            tracing::debug!(%error, "the channel to a sandbox is lost");
            channel.lose();
        }
    }
    sender.close().await;
}

async fn read(channel: Arc<Channel>, mut receiver: SocketReceiver, mut received: BytesMut) {
    let mut is_lost = channel.is_lost.subscribe();
    loop {
        while let Some((kind, command, content)) = split_frame(&mut received) {
            channel.take(kind, command, content);
        }
        let message = tokio::select! {
            message = receiver.next() => message,
            _ = is_lost.wait_for(|lost| *lost) => return,
        };
        match message {
            Some(SocketMessage::Binary(data)) => received.extend_from_slice(&data),
            Some(SocketMessage::Text(text)) => {
                let control: PtyControl = serde_json::from_str(&text).unwrap_or_default();
                if control.status == "exited" {
                    break;
                }
            }
            Some(SocketMessage::Closed { .. }) | None => break,
        }
        channel.times().1 = Instant::now();
    }
    channel.lose();
}

/// Takes part in the check of the terminal. Returns what came behind it.
async fn check(
    sender: &mut SocketSender,
    receiver: &mut SocketReceiver,
    word: &str,
) -> Result<BytesMut> {
    let every: Vec<u8> = (0..=255).collect();
    let mut heard = BytesMut::new();
    let mut is_sent = false;
    loop {
        if let Some(line) = next_line(&heard, word) {
            let rest = line.end + 1;
            match &heard[line] {
                b"ready" if heard.len() < rest + every.len() => {}
                b"ready" if !is_sent && heard[rest..rest + every.len()] == every[..] => {
                    heard.advance(rest + every.len());
                    sender.binary(Bytes::from(every.clone())).await?;
                    is_sent = true;
                    continue;
                }
                b"clean" => {
                    heard.advance(rest);
                    return Ok(heard);
                }
                other => return Err(unsuitable(&String::from_utf8_lossy(other))),
            }
        }
        if heard.len() > MAX_NOISE {
            return Err(unsuitable("it prints something else"));
        }
        match receiver.next().await {
            Some(SocketMessage::Binary(data)) => heard.extend_from_slice(&data),
            Some(SocketMessage::Text(_)) => {}
            Some(SocketMessage::Closed { .. }) | None => return Err(lost()),
        }
    }
}

/// Finds the rest of the first complete line that begins with a word.
fn next_line(heard: &[u8], word: &str) -> Option<std::ops::Range<usize>> {
    let mark = format!("{word} ");
    let begin = memchr::memmem::find(heard, mark.as_bytes())? + mark.len();
    let end = begin + memchr::memchr(b'\n', &heard[begin..])?;
    Some(begin..end)
}

fn unsuitable(why: &str) -> Error {
    Error::unsupported("connect", format!("no channel to the sandbox: {why}"))
}

/// The channel of a sandbox, which is opened when it is worth it.
#[derive(Debug, Default)]
pub(crate) struct ChannelSlot(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// What commands and scripts were worth so far.
    used: u32,
    is_opening: bool,
    /// The sandbox has not what the channel needs, or failed to open it often.
    failures: u32,
    channel: Option<Arc<Channel>>,
}

/// The use from which a channel is opened, with that of a command and of a script. A single command does without.
const WORTH_OPENING: u32 = 4;
pub(crate) const COMMAND_USE: u32 = 2;
pub(crate) const SCRIPT_USE: u32 = 1;

/// Attempts to open a channel.
const MAX_FAILURES: u32 = 3;

impl ChannelSlot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the open channel. Begins to open one where there is none and it is worth it: `open` is called then.
    pub(crate) fn get(&self, used: u32, open: impl FnOnce()) -> Option<Arc<Channel>> {
        let mut state = self.state();
        if let Some(channel) = state.channel.as_ref().filter(|channel| channel.is_open()) {
            return Some(Arc::clone(channel));
        }
        state.channel = None;
        state.used = state.used.saturating_add(used);
        let opens =
            state.used >= WORTH_OPENING && !state.is_opening && state.failures < MAX_FAILURES;
        if opens {
            state.is_opening = true;
            drop(state);
            open();
        }
        None
    }

    /// Notes the result of the opening.
    pub(crate) fn opened(&self, opened: Result<Arc<Channel>>) {
        let mut state = self.state();
        state.is_opening = false;
        match opened {
            Ok(channel) => (state.channel, state.failures) = (Some(channel), 0),
            Err(error) => {
                tracing::debug!(%error, "commands are those of sessions");
                let is_final = error.kind() == ErrorKind::Unsupported;
                state.failures = if is_final { MAX_FAILURES } else { state.failures + 1 };
            }
        }
    }

    /// Returns the channel, when one was opened.
    pub(crate) fn current(&self) -> Option<Arc<Channel>> {
        self.state().channel.clone()
    }
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

    #[test]
    fn a_line_of_the_check_is_found_behind_what_a_shell_prints() {
        assert_eq!(next_line(b"$ exec\r\nw ready\nrest", "w"), Some(10..15));
        assert_eq!(next_line(b"$ exec\r\nw rea", "w"), None);
    }

    #[tokio::test]
    async fn output_of_a_lost_channel_ends_with_an_error() {
        let (frames, mut sent) = mpsc::unbounded_channel();
        let now = Instant::now();
        let channel = Arc::new(Channel {
            frames,
            commands: Mutex::default(),
            last: AtomicU32::new(0),
            is_lost: watch::Sender::new(false),
            times: Mutex::new((now, now)),
            is_held: AtomicBool::new(false),
        });
        let (number, pieces) = channel.request("w", &["true".to_owned()], &json!({}), "/");
        let mut read = output(Arc::clone(&channel), number, pieces);
        channel.take(ERR, number, Bytes::from_static(b"e"));
        channel.lose();
        assert_eq!(read.next().await.unwrap().unwrap(), (1, Bytes::from_static(b"e")));
        assert!(read.next().await.unwrap().is_err());
        assert!(read.next().await.is_none());
        assert_eq!(sent.recv().await.unwrap()[0], START_COMMAND);
        // Output without a reader is taken all the same.
        channel.take(OUT, number, Bytes::from_static(b"late"));
        assert_eq!(sent.recv().await.unwrap()[..], frame(ACKNOWLEDGE, number, &[4, 0, 0, 0]));
    }
}
