//! A kernel that misbehaves on purpose, to test clients with.
//!
//! [`TestKernel`] does no I/O: it takes frames and gives frames. [`TestServer`] puts it behind sockets, and
//! can misbehave below the messages too.
//!
//! Its language has one command per line:
//!
//! | command | does |
//! |---|---|
//! | `print TEXT`, `err TEXT` | writes a line to standard output, standard error |
//! | `flood COUNT SIZE` | writes that many pieces of that many bytes |
//! | `result TEXT` | has a value |
//! | `display ID TEXT`, `update ID TEXT` | shows something, shows it anew |
//! | `clear`, `clear wait` | removes what was shown |
//! | `raise NAME TEXT` | fails |
//! | `input PROMPT` | asks for a line and prints it |
//! | `buffers SIZE` | shows something with a buffer of that size |
//! | `publish TYPE JSON` | publishes any message |
//! | `sleep MILLISECONDS` | waits |
//! | `restart` | begins anew, as a kernel does that was started again |
//! | `die` | closes all connections, and those to come |
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

/// What a [`TestKernel`] wants done, in order.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Action {
    /// Send a multipart message. On IOPub, to every subscriber.
    Send {
        /// On which channel.
        channel: Channel,
        /// The frames.
        frames: Vec<Bytes>,
    },
    /// Wait before the next action.
    Wait(Duration),
    /// Close the connections of a channel. New ones are accepted.
    Drop(Channel),
    /// Close everything for good.
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
    /// Output that is late.
    held: VecDeque<Action>,
}

impl TestKernel {
    /// A kernel that signs with this key and behaves like this.
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

    /// A client has subscribed to IOPub.
    pub fn on_subscribe(&mut self) {
        self.subscribers += 1;
        let welcomes = self.behaviour.welcomes(self.subscribers);
        for _ in 0..welcomes {
            let welcome = self.session.request(IopubWelcome::default());
            self.send(Channel::IoPub, welcome);
        }
    }

    /// Takes a multipart message. What is not signed well is ignored.
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

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The answer to anything but a request to run code.
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

    /// Signs a message, after whatever is to be done to it.
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
