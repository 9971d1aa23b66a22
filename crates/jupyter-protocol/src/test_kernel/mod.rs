//! A kernel with faults on demand, for tests of clients.
//!
//! [`TestKernel`] does no I/O: it takes and returns frames. [`TestServer`] listens for it on sockets, and has faults of
//! its own below the messages.
//!
//! The language of the kernel has one command per line:
//!
//! | command | does |
//! |---|---|
//! | `print TEXT`, `err TEXT` | writes a line to standard output, standard error |
//! | `flood COUNT SIZE` | writes `COUNT` chunks of `SIZE` bytes |
//! | `result TEXT` | sets the value |
//! | `display ID TEXT`, `update ID TEXT` | creates a display, updates it |
//! | `clear`, `clear wait` | clears the output |
//! | `raise NAME TEXT` | fails |
//! | `input PROMPT` | asks for a line and prints it |
//! | `buffers SIZE` | creates a display with a buffer of `SIZE` bytes |
//! | `publish TYPE JSON` | publishes any message |
//! | `sleep MILLISECONDS` | waits |
//! | `restart` | starts a new session, as a restarted kernel does |
//! | `die` | closes all connections for good |
//! | `drop CHANNEL` | closes the connections of a channel once |
//! | anything else | prints itself |

mod behaviour;
mod run;
mod server;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

pub use behaviour::Behaviour;
pub use server::{TestServer, Wire};

use crate::channel::Channel;
use crate::codec::Codec;
use crate::content::{
    CommInfoReply, CompleteReply, Content, ExecuteReply, ExecutionState, HistoryReply, InputReply,
    InspectReply, InterruptReply, IopubWelcome, IsCompleteReply, KernelInfoReply, ReplyStatus,
    ShutdownReply, Status,
};
use crate::header::Parent;
use crate::limits::Limits;
use crate::message::Message;
use crate::replay::ReplayWindow;
use crate::session::Session;
use crate::signature::{Key, SignatureScheme, Signer};

/// An action that a [`TestKernel`] requests.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// Sends a multipart message. On IOPub, to every subscriber.
    Send {
        /// The channel.
        channel: Channel,
        /// The frames.
        frames: Vec<Bytes>,
    },
    /// Waits before the next action.
    Wait(Duration),
    /// Closes the connections of a channel. New ones are accepted.
    Drop(Channel),
    /// Closes everything for good.
    Die,
}

/// A kernel without I/O.
#[derive(Debug)]
pub struct TestKernel {
    session: Session,
    codec: Codec,
    behaviour: Behaviour,
    executions: i64,
    subscribers: usize,
    asking: Option<run::Paused>,
    actions: VecDeque<Action>,
    /// Output that is published late.
    held: VecDeque<Action>,
}

impl TestKernel {
    /// Creates a kernel that signs with this key, with these faults.
    #[must_use]
    pub fn new(scheme: SignatureScheme, key: &Key, behaviour: Behaviour) -> Self {
        let codec = Codec::new(Signer::new(scheme, key), Limits::default())
            .with_replay_window(ReplayWindow::new(0));
        Self {
            session: Session::new("kernel"),
            codec,
            behaviour,
            executions: 0,
            subscribers: 0,
            asking: None,
            actions: VecDeque::new(),
            held: VecDeque::new(),
        }
    }

    /// Records that a client has subscribed to IOPub.
    pub fn on_subscribe(&mut self) {
        self.subscribers += 1;
        let welcomes = self.behaviour.welcomes(self.subscribers);
        for _ in 0..welcomes {
            let welcome = self.session.request(IopubWelcome::default());
            self.send(Channel::IoPub, welcome);
        }
    }

    /// Takes a multipart message. Messages without a valid signature are ignored.
    pub fn on_message(&mut self, channel: Channel, frames: Vec<Bytes>) {
        let Ok(raw) = self.codec.decode(frames) else { return };
        let message = raw.parse(&Limits::default());
        if self
            .behaviour
            .ignored
            .iter()
            .any(|(on, kind)| *on == channel && *kind == message.header.msg_type)
        {
            return;
        }
        if let Content::InputReply(reply) = &message.content {
            return self.on_input(reply);
        }
        self.status(&message, ExecutionState::Busy);
        if let Content::ExecuteRequest(request) = &message.content {
            let lines = request.code.lines().map(str::to_owned).collect();
            return self.execute(message.clone(), lines);
        }
        if let Some(reply) = self.answer(&message.content) {
            let reply = self.session.reply(&message, reply);
            self.send(channel, reply);
        }
        self.status(&message, ExecutionState::Idle);
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the reply to any request except one to run code.
    fn answer(&self, content: &Content) -> Option<Content> {
        Some(match content {
            Content::KernelInfoRequest(_) => self.kernel_info().into(),
            Content::CompleteRequest(request) => CompleteReply {
                matches: vec!["print".into()],
                cursor_end: request.cursor_pos,
                ..CompleteReply::default()
            }
            .into(),
            Content::InspectRequest(_) => InspectReply::default().into(),
            Content::HistoryRequest(_) => HistoryReply::default().into(),
            Content::IsCompleteRequest(_) => {
                IsCompleteReply { status: "complete".into(), ..IsCompleteReply::default() }.into()
            }
            Content::CommInfoRequest(_) => CommInfoReply::default().into(),
            Content::InterruptRequest(_) => InterruptReply::default().into(),
            Content::ShutdownRequest(request) => {
                ShutdownReply { restart: request.restart, ..ShutdownReply::default() }.into()
            }
            _ => return None,
        })
    }

    fn kernel_info(&self) -> KernelInfoReply {
        KernelInfoReply {
            protocol_version: "5.5".into(),
            implementation: if self.behaviour.late { "Deno kernel" } else { "test" }.into(),
            implementation_version: "1".into(),
            supported_features: vec![KernelInfoReply::IOPUB_WELCOME.into()],
            ..KernelInfoReply::default()
        }
    }

    fn on_input(&mut self, reply: &InputReply) {
        let Some(mut paused) = self.asking.take() else { return };
        paused.lines.push_front(format!("print {}", reply.value));
        self.execute(paused.request, paused.lines);
    }

    fn status(&mut self, request: &Message, state: ExecutionState) {
        if state == ExecutionState::Idle && self.behaviour.drop_idle {
            return;
        }
        self.publish(request, Status { execution_state: state, ..Status::default() });
    }

    fn publish(&mut self, request: &Message, content: impl Into<Content>) {
        let message = self.session.message(Parent::from_header(&request.header), content);
        self.send(Channel::IoPub, message);
    }

    fn reply(&mut self, request: &Message, status: ReplyStatus, error: Option<(String, String)>) {
        if self.behaviour.drop_reply {
            return;
        }
        let (ename, evalue) = error.unzip();
        let reply = ExecuteReply {
            status,
            execution_count: Some(self.executions),
            traceback: ename.as_ref().map(|_| Vec::new()),
            ename,
            evalue,
            ..ExecuteReply::default()
        };
        let message = self.session.reply(request, reply);
        self.send(Channel::Shell, message);
    }

    /// Signs a message and queues it, after its faults are applied.
    fn send(&mut self, channel: Channel, message: Message) {
        let mut raw = message.into_raw();
        if channel == Channel::IoPub {
            raw = raw.with_identities(vec![Bytes::from_static(b"kernel.topic")]);
        }
        let raw = self.behaviour.replace_content(raw);
        let held = self.behaviour.holds(channel, raw.msg_type());
        let frames = self.behaviour.tamper(self.codec.encode(&raw));
        for _ in 0..self.behaviour.copies() {
            let queue = if held { &mut self.held } else { &mut self.actions };
            queue.push_back(Action::Send { channel, frames: frames.clone() });
        }
    }
}
