//! Decides when a kernel can be used, without I/O.
//!
//! A connection to the IOPub channel is not yet a subscription: what the kernel publishes before the subscription
//! arrives is lost. Kernels of protocol 5.5 send `iopub_welcome`, but only to the first subscriber. So [`Readiness`]
//! also *nudges* the kernel: it sends `kernel_info_request`s until both a reply and the status messages of a nudge have
//! arrived. It nudges on the control channel too, because a busy kernel does not reply on shell. A kernel that is just
//! starting may reply on control first, so the wait for a reply on shell continues for a moment, unless the kernel is
//! known to be busy.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::content::{Content, ExecutionState, KernelInfoReply, KernelInfoRequest};
use crate::message::Message;
use crate::session::Session;

/// The interval before the first nudge is repeated. It doubles with each nudge.
const INITIAL_NUDGE_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum interval between unanswered nudges.
const MAX_NUDGE_INTERVAL: Duration = Duration::from_secs(8);

/// Limits the wait for a reply on shell after one on control.
const SHELL_TIMEOUT: Duration = Duration::from_secs(2);

/// The evidence for a subscription to IOPub.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum SubscribedBy {
    /// The kernel sent `iopub_welcome`.
    Welcome,
    /// A message arrived that belongs to a nudge.
    Nudge,
}

/// A kernel that can be used.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Ready {
    /// The kernel's description of itself.
    pub kernel_info: KernelInfoReply,
    /// The evidence for the subscription.
    pub subscribed_by: SubscribedBy,
    /// True if the kernel has replied only on control: it runs code of another client, or is still starting.
    pub busy: bool,
}

/// The progress of a connection.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ReadyState {
    /// Not all channels are connected.
    Connecting,
    /// The channels are connected; the reply of the kernel or the subscription is missing.
    Waiting {
        /// True if the kernel has replied.
        answered: bool,
        /// True if the subscription is in effect.
        subscribed: bool,
    },
    /// The kernel replies, and its published messages arrive.
    Ready(Box<Ready>),
}

/// The state machine that decides when a kernel can be used.
///
/// ```
/// use std::time::Instant;
/// use jupyter_protocol::readiness::{Readiness, ReadyState};
/// use jupyter_protocol::{Channel, KernelInfoReply, Session};
/// use jupyter_protocol::content::IopubWelcome;
///
/// let (client, kernel) = (Session::new("me"), Session::new("kernel"));
/// let now = Instant::now();
/// let mut readiness = Readiness::default();
/// readiness.on_connected(now);
/// readiness.on_timeout(now, &client);
/// let (channel, request) = readiness.poll_send().expect("it asks the kernel");
/// readiness.on_message(channel, &kernel.reply(&request, KernelInfoReply::default()), now);
/// readiness.on_message(Channel::IoPub, &kernel.request(IopubWelcome::default()), now);
/// assert_eq!(readiness.state(), ReadyState::Waiting { answered: true, subscribed: true });
/// let (channel, request) = readiness.poll_send().expect("it asks on both channels");
/// readiness.on_message(channel, &kernel.reply(&request, KernelInfoReply::default()), now);
/// assert!(matches!(readiness.state(), ReadyState::Ready(_)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    connected: bool,
    subscribed: Option<SubscribedBy>,
    info: Option<KernelInfoReply>,
    /// True after a reply on shell.
    on_shell: bool,
    /// True if the last status of another client's request was busy.
    busy: bool,
    /// The end of the wait for a reply on shell.
    shell_deadline: Option<Instant>,
    without_shell: bool,
    control: Nudges,
    shell: Nudges,
    to_send: VecDeque<(Channel, Message)>,
}

/// The nudges on one channel.
#[derive(Clone, Debug, Default)]
struct Nudges {
    ids: Vec<String>,
    unanswered: u32,
    next: Option<Instant>,
}

impl Readiness {
    /// Records that all channels are connected, for the first time or again.
    pub fn on_connected(&mut self, now: Instant) {
        *self = Self { connected: true, ..Self::default() };
        self.control.next = Some(now);
        self.shell.next = Some(now);
    }

    /// Records that a connection was lost. The next [`Readiness::on_connected`] starts over.
    pub fn on_disconnected(&mut self) {
        *self = Self::default();
    }

    /// Takes a message of any channel.
    pub fn on_message(&mut self, channel: Channel, message: &Message, now: Instant) {
        if self.connected {
            self.handle(channel, message);
        }
        if self.info.is_some() && self.subscribed.is_some() && self.shell_deadline.is_none() {
            self.shell_deadline = now.checked_add(SHELL_TIMEOUT);
        }
    }

    fn handle(&mut self, channel: Channel, message: &Message) {
        let ours = message
            .parent_id()
            .is_some_and(|id| self.control.contains(id) || self.shell.contains(id));
        match (&message.content, channel) {
            (Content::IopubWelcome(_), Channel::IoPub) => {
                self.subscribed.get_or_insert(SubscribedBy::Welcome);
            }
            (_, Channel::IoPub) if ours => {
                self.subscribed.get_or_insert(SubscribedBy::Nudge);
            }
            (Content::Status(status), Channel::IoPub) => {
                self.busy = status.execution_state == ExecutionState::Busy;
            }
            (Content::KernelInfoReply(info), _) if ours => {
                self.info = Some((**info).clone());
                self.answered(channel);
            }
            (_, Channel::Shell | Channel::Control) if ours => {
                self.info.get_or_insert_default();
                self.answered(channel);
            }
            _ => {}
        }
    }

    /// Takes the current time, and creates the nudges that are due: see [`Readiness::poll_send`].
    pub fn on_timeout(&mut self, now: Instant, session: &Session) {
        self.without_shell |= self.shell_deadline.is_some_and(|until| until <= now);
        if self.is_ready() {
            return;
        }
        for (channel, nudges) in
            [(Channel::Control, &mut self.control), (Channel::Shell, &mut self.shell)]
        {
            if nudges.next.is_some_and(|next| next <= now) {
                let request = session.request(KernelInfoRequest::default());
                nudges.record(&request.header.msg_id, now);
                self.to_send.push_back((channel, request));
            }
        }
    }

    /// Returns the next message to send, if one is due.
    pub fn poll_send(&mut self) -> Option<(Channel, Message)> {
        self.to_send.pop_front()
    }

    /// Returns the time at which to call [`Readiness::on_timeout`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_ready() {
            return None;
        }
        [self.control.next, self.shell.next, self.shell_deadline].into_iter().flatten().min()
    }

    /// Returns the progress.
    #[must_use]
    pub fn state(&self) -> ReadyState {
        match (&self.info, self.subscribed) {
            _ if !self.connected => ReadyState::Connecting,
            (Some(info), Some(subscribed_by)) if self.is_ready() => {
                let busy = !self.on_shell;
                let kernel_info = info.clone();
                ReadyState::Ready(Box::new(Ready { kernel_info, subscribed_by, busy }))
            }
            (info, subscribed) => {
                ReadyState::Waiting { answered: info.is_some(), subscribed: subscribed.is_some() }
            }
        }
    }

    fn is_ready(&self) -> bool {
        let enough = self.on_shell || self.busy || self.without_shell;
        self.connected && self.info.is_some() && self.subscribed.is_some() && enough
    }

    fn answered(&mut self, channel: Channel) {
        if channel == Channel::Control {
            self.control.unanswered = 0;
        } else {
            self.shell.unanswered = 0;
            self.on_shell = true;
        }
    }
}

impl Nudges {
    /// Maximum number of remembered ids. Older nudges would have been answered.
    const MAX_IDS: usize = 64;

    fn contains(&self, id: &str) -> bool {
        self.ids.iter().any(|own| own == id)
    }

    /// Records a nudge and schedules the next. A busy kernel queues every nudge, so unanswered ones become rare.
    fn record(&mut self, id: &str, now: Instant) {
        let wait = INITIAL_NUDGE_INTERVAL
            .saturating_mul(1 << self.unanswered.min(16))
            .min(MAX_NUDGE_INTERVAL);
        self.unanswered += 1;
        self.next = now.checked_add(wait);
        if self.ids.len() == Self::MAX_IDS {
            self.ids.remove(0);
        }
        self.ids.push(id.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{IopubWelcome, ReplyStatus, Status};

    struct Bench {
        readiness: Readiness,
        client: Session,
        kernel: Session,
        now: Instant,
        sent: Vec<(Channel, Message)>,
    }

    impl Bench {
        fn connected() -> Self {
            let mut bench = Self {
                readiness: Readiness::default(),
                client: Session::new("me"),
                kernel: Session::new("kernel"),
                now: Instant::now(),
                sent: Vec::new(),
            };
            bench.readiness.on_connected(bench.now);
            bench.wait(Duration::ZERO);
            bench
        }

        fn wait(&mut self, duration: Duration) {
            self.now += duration;
            self.readiness.on_timeout(self.now, &self.client);
            self.sent.extend(std::iter::from_fn(|| self.readiness.poll_send()));
        }

        fn last(&self, channel: Channel) -> Message {
            self.sent.iter().rev().find(|(own, _)| *own == channel).unwrap().1.clone()
        }

        fn answer(&mut self, channel: Channel) {
            let reply = self.kernel.reply(&self.last(channel), KernelInfoReply::default());
            self.readiness.on_message(channel, &reply, self.now);
        }

        fn publish_for(&mut self, channel: Channel) {
            let status = self.kernel.reply(&self.last(channel), status("busy"));
            self.readiness.on_message(Channel::IoPub, &status, self.now);
        }

        fn ready(&self) -> Option<Ready> {
            match self.readiness.state() {
                ReadyState::Ready(ready) => Some(*ready),
                _ => None,
            }
        }
    }

    fn status(state: &str) -> Status {
        Status { execution_state: state.into(), ..Status::default() }
    }

    #[test]
    fn a_welcome_or_an_own_message_shows_the_subscription() {
        let mut welcomed = Bench::connected();
        let welcome = welcomed.kernel.request(IopubWelcome::default());
        welcomed.readiness.on_message(Channel::IoPub, &welcome, welcomed.now);
        assert!(welcomed.ready().is_none(), "the kernel has not answered");
        welcomed.answer(Channel::Shell);
        assert_eq!(welcomed.ready().unwrap().subscribed_by, SubscribedBy::Welcome);

        let mut second = Bench::connected();
        second.answer(Channel::Shell);
        second.publish_for(Channel::Shell);
        assert_eq!(second.ready().unwrap().subscribed_by, SubscribedBy::Nudge);
        second.readiness.on_message(Channel::IoPub, &welcome, second.now);
        assert_eq!(
            second.ready().unwrap().subscribed_by,
            SubscribedBy::Nudge,
            "a later one is noise"
        );
    }

    #[test]
    fn messages_of_other_clients_prove_nothing() {
        let mut bench = Bench::connected();
        let other = bench.kernel.request(status("busy"));
        bench.readiness.on_message(Channel::IoPub, &other, bench.now);
        bench.answer(Channel::Control);
        let expected = ReadyState::Waiting { answered: true, subscribed: false };
        assert_eq!(bench.readiness.state(), expected);
        bench.publish_for(Channel::Control);
        assert!(bench.ready().unwrap().busy, "busy, and usable by its control channel");
    }

    #[test]
    fn a_kernel_that_is_starting_is_not_ready_by_its_control_channel() {
        let mut bench = Bench::connected();
        bench.answer(Channel::Control);
        bench.publish_for(Channel::Control);
        let expected = ReadyState::Waiting { answered: true, subscribed: true };
        assert_eq!(bench.readiness.state(), expected);
        bench.answer(Channel::Shell);
        assert!(!bench.ready().unwrap().busy);

        let mut silent = Bench::connected();
        silent.answer(Channel::Control);
        silent.publish_for(Channel::Control);
        silent.wait(SHELL_TIMEOUT - Duration::from_millis(1));
        assert!(silent.ready().is_none());
        silent.wait(Duration::from_millis(1));
        assert!(silent.ready().unwrap().busy);
    }

    #[test]
    fn lost_publications_are_asked_for_again() {
        let mut bench = Bench::connected();
        assert_eq!(bench.sent.len(), 2);
        bench.answer(Channel::Shell);
        bench.wait(Duration::from_millis(499));
        assert_eq!(bench.sent.len(), 2);
        bench.wait(Duration::from_millis(1));
        assert_eq!(bench.sent.len(), 4);
        bench.publish_for(Channel::Shell);
        assert!(bench.ready().is_some());
        assert_eq!(bench.readiness.deadline(), None);
        bench.wait(Duration::from_secs(60));
        assert_eq!(bench.sent.len(), 4, "no more nudges");
    }

    #[test]
    fn a_kernel_that_does_not_answer_is_asked_rarely() {
        let mut bench = Bench::connected();
        for _ in 0..600 {
            bench.wait(Duration::from_millis(100));
        }
        let shell = bench.sent.iter().filter(|(channel, _)| *channel == Channel::Shell).count();
        assert!((8..=12).contains(&shell), "{shell} in a minute");
    }

    #[test]
    fn an_error_is_an_answer_too() {
        let mut bench = Bench::connected();
        let failed = KernelInfoReply { status: ReplyStatus::Error, ..KernelInfoReply::default() };
        let reply = bench.kernel.reply(&bench.last(Channel::Shell), failed);
        bench.readiness.on_message(Channel::Shell, &reply, bench.now);
        bench.publish_for(Channel::Shell);
        assert!(bench.ready().unwrap().kernel_info.status.is_error());
    }

    #[test]
    fn a_lost_connection_starts_over() {
        let mut bench = Bench::connected();
        bench.answer(Channel::Shell);
        bench.publish_for(Channel::Shell);
        bench.readiness.on_disconnected();
        assert_eq!(bench.readiness.state(), ReadyState::Connecting);
        assert_eq!(bench.readiness.deadline(), None);
        bench.answer(Channel::Shell);
        assert_eq!(bench.readiness.state(), ReadyState::Connecting, "an answer of before");
        bench.readiness.on_connected(bench.now);
        bench.publish_for(Channel::Shell);
        let expected = ReadyState::Waiting { answered: false, subscribed: false };
        assert_eq!(bench.readiness.state(), expected);
    }
}
