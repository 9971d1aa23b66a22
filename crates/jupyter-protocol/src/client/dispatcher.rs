//! Routes every incoming message to the request, execution or watch that it belongs to.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{oneshot, watch};

use super::error::{ClientError, CloseReason, Effect};
use super::mailbox::{Item, Mailbox};
use crate::channel::Channel;
use crate::content::{
    Content, ExecutionState, KernelInfoRequest, MessageContent as _, ShutdownRequest,
};
use crate::execution::Loss;
use crate::limits::Limits;
use crate::raw::RawMessage;
use crate::session::Session;

/// The receiver of the reply to a request.
#[derive(Debug)]
pub(crate) enum ReplyTarget {
    /// A call for one reply.
    Reply(oneshot::Sender<Result<RawMessage, ClientError>>),
    /// An execution, which receives the reply in its mailbox with all other messages.
    Execution,
}

/// A request without a reply so far.
#[derive(Debug)]
struct Pending {
    channel: Channel,
    subshell: Option<String>,
    target: ReplyTarget,
    /// True once the request was handed to a connection. Until then the request is queued, and the next connection
    /// sends it.
    sent: bool,
    /// The session of the kernel when the request was sent.
    kernel: Option<String>,
    /// The fence that was sent after the request, if the connection broke meanwhile.
    fence: Option<String>,
}

/// A request whose reply proves that the kernel has processed all earlier requests of the same queue.
#[derive(Debug)]
struct Fence {
    channel: Channel,
    /// The session of the kernel before the connection broke.
    kernel: Option<String>,
}

/// The reason why a reply will never arrive.
#[derive(Debug)]
enum NoReplyReason {
    ReplyLost,
    Restarted,
    Died,
}

impl NoReplyReason {
    fn error(&self) -> ClientError {
        match self {
            Self::ReplyLost => ClientError::ReplyLost,
            Self::Restarted => ClientError::KernelRestarted,
            Self::Died => ClientError::KernelDied,
        }
    }

    fn item(&self) -> Item {
        match self {
            Self::ReplyLost => Item::ReplyLost,
            Self::Restarted => Item::KernelRestarted,
            Self::Died => Item::KernelDied,
        }
    }
}

/// Maximum number of remembered requests with a busy kernel.
const MAX_BUSY: usize = 64;

/// Shared state of a client: the kernel's state, and the receivers of messages.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    pub(crate) session: Arc<Session>,
    pub(crate) limits: Limits,
    state: Mutex<State>,
    kernel_state: watch::Sender<Option<ExecutionState>>,
    restarts: watch::Sender<u64>,
    is_closed: watch::Sender<bool>,
    publishes_late: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    pending: HashMap<String, Pending>,
    executions: HashMap<String, Arc<Mailbox>>,
    /// Barrier requests, and the execution that each one ends.
    barriers: HashMap<String, String>,
    fences: HashMap<String, Fence>,
    watchers: Vec<(Interest, Weak<Mailbox>)>,
    /// Requests of any client that the kernel reports as being processed, except shutdown requests.
    busy: HashSet<String>,
    /// The session of the kernel's process.
    kernel: Option<String>,
    connected: [bool; 5],
    rejected: u64,
    closed: Option<CloseReason>,
}

/// The messages that a watch receives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Interest {
    /// Messages on IOPub.
    IoPub,
    /// Every message of every channel.
    Everything,
}

impl Dispatcher {
    pub(crate) fn new(session: Arc<Session>, limits: Limits) -> Self {
        Self {
            session,
            limits,
            state: Mutex::default(),
            kernel_state: watch::Sender::new(None),
            restarts: watch::Sender::new(0),
            is_closed: watch::Sender::new(false),
            publishes_late: AtomicBool::new(false),
        }
    }

    /// Returns true if the kernel publishes output after it has announced the end of the output.
    pub(crate) fn publishes_late(&self) -> bool {
        self.publishes_late.load(Ordering::Relaxed)
    }

    pub(crate) fn set_publishes_late(&self, late: bool) {
        self.publishes_late.store(late, Ordering::Relaxed);
    }

    /// Routes an incoming message. Never blocks.
    pub(crate) fn deliver(&self, channel: Channel, message: RawMessage) {
        let message = message.detached();
        let kernel_state = self.kernel_state_of(channel, &message);
        let mut state = self.state();
        state.notify_watchers(channel, &message);
        if let Some(kernel_state) = &kernel_state {
            state.note_work(kernel_state, &message);
            self.kernel_state.send_replace(Some(kernel_state.clone()));
            if is_restart(kernel_state) {
                // A starting kernel may publish this status after it has replied on the control channel.
                let is_new = *kernel_state != ExecutionState::Starting
                    || state
                        .kernel
                        .as_ref()
                        .is_some_and(|kernel| *kernel != message.header().session);
                if is_new {
                    self.restarts.send_modify(|restarts| *restarts += 1);
                }
                state
                    .executions
                    .values()
                    .for_each(|own| own.push_message(channel, message.clone()));
                match kernel_state {
                    ExecutionState::Dead => state.end(|_| true, &NoReplyReason::Died),
                    ExecutionState::Starting if is_new => {
                        state.end_subshells(&message.header().session);
                    }
                    ExecutionState::Starting => {}
                    _ => state.end(|pending| pending.sent, &NoReplyReason::Restarted),
                }
                return;
            }
        }
        match channel {
            Channel::Shell | Channel::Control => {
                if state.is_from_another_process(&message) {
                    self.restarts.send_modify(|restarts| *restarts += 1);
                    state.end_subshells(&message.header().session);
                }
                state.deliver_reply(channel, message);
            }
            Channel::IoPub | Channel::Stdin => state.deliver_to_execution(channel, message),
            Channel::Heartbeat => {}
        }
    }

    /// Records that output is missing: for the execution of `parent` if there is one, otherwise for all executions.
    pub(crate) fn record_loss(&self, loss: Loss, parent: Option<&str>) {
        let mut state = self.state();
        let known = parent.and_then(|id| state.executions.get(id)).cloned();
        match known {
            Some(own) => own.push_note(Item::Lost(loss)),
            None => state.executions.values().for_each(|own| own.push_note(Item::Lost(loss))),
        }
        state.push_note(&Item::Lost(loss));
    }

    /// Counts a rejected message: one that is not valid or has no valid signature.
    pub(crate) fn reject(&self) {
        let mut state = self.state();
        state.rejected = state.rejected.saturating_add(1);
    }

    /// Returns the number of rejected messages.
    pub(crate) fn rejected(&self) -> u64 {
        self.state().rejected
    }

    /// Marks a channel as connected. After a reconnection, returns the fences to send, which reveal the replies that
    /// are lost.
    pub(crate) fn connected(&self, channel: Channel, reconnected: bool) -> Vec<RawMessage> {
        let mut state = self.state();
        state.connected[channel as usize] = true;
        state.push_note(&Item::Connected(channel));
        if reconnected { state.raise_fences(channel, &self.session) } else { Vec::new() }
    }

    /// Returns the fences to send on a channel after the kernel's process was replaced. They reveal the replies that
    /// are lost; the new process may have received some of the requests.
    pub(crate) fn fences(&self, channel: Channel) -> Vec<RawMessage> {
        self.state().raise_fences(channel, &self.session)
    }

    /// Marks a channel as disconnected.
    pub(crate) fn disconnected(&self, channel: Channel) {
        self.state().connected[channel as usize] = false;
        if channel == Channel::IoPub {
            self.record_loss(Loss::Disconnected, None);
        }
    }

    /// Returns true if shell, control and IOPub are connected.
    pub(crate) fn is_connected(&self) -> bool {
        let state = self.state();
        [Channel::Shell, Channel::Control, Channel::IoPub]
            .iter()
            .all(|channel| state.connected[*channel as usize])
    }

    /// Closes the dispatcher, and reports the reason to all receivers.
    pub(crate) fn close(&self, reason: &CloseReason) {
        let mut state = self.state();
        if state.closed.is_none() {
            self.close_in(&mut state, reason);
        }
    }

    fn close_in(&self, state: &mut State, reason: &CloseReason) {
        state.closed = Some(reason.clone());
        state.connected = Default::default();
        for (_, pending) in state.pending.drain() {
            if let ReplyTarget::Reply(target) = pending.target {
                let error = ClientError::Closed { reason: reason.clone(), effect: Effect::Unknown };
                // The receiver may be dropped.
                let _ = target.send(Err(error));
            }
        }
        for (_, own) in state.executions.drain() {
            own.push_note(Item::Closed(reason.clone()));
        }
        state.push_note(&Item::Closed(reason.clone()));
        self.is_closed.send_replace(true);
    }

    /// Waits until the dispatcher is closed.
    pub(crate) async fn wait_closed(&self) {
        // The sender is a field of `self`, so the wait does not fail.
        let _ = self.is_closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Reports the death of the kernel to all receivers. The connection stays open for the next kernel.
    pub(crate) fn kernel_died(&self) {
        self.fail_all(&mut self.state());
    }

    /// Reports the death of the kernel and closes the dispatcher in one step, so that no caller sees one without the
    /// other.
    #[cfg(any(feature = "manager", feature = "websocket"))]
    pub(crate) fn close_with_kernel(&self) {
        let mut state = self.state();
        self.fail_all(&mut state);
        if state.closed.is_none() {
            self.close_in(&mut state, &CloseReason::KernelDied);
        }
    }

    /// Returns true if the kernel is known to process a request of any client. Its last published state is not enough: a
    /// request on the control channel has states of its own while code runs.
    #[cfg(feature = "manager")]
    pub(crate) fn is_busy(&self) -> bool {
        let own =
            |pending: &Pending| pending.sent && matches!(pending.target, ReplyTarget::Execution);
        let state = self.state();
        !state.busy.is_empty() || state.pending.values().any(own)
    }

    /// Returns true if a request or an execution awaits the kernel.
    #[cfg(feature = "websocket")]
    pub(crate) fn has_pending(&self) -> bool {
        let state = self.state();
        !(state.pending.is_empty() && state.executions.is_empty())
    }

    fn fail_all(&self, state: &mut State) {
        state.end(|_| true, &NoReplyReason::Died);
        // Executions that have their reply, and still receive output.
        for (_, own) in state.executions.drain() {
            own.push_note(Item::KernelDied);
        }
        state.push_note(&Item::KernelDied);
        self.restarts.send_modify(|restarts| *restarts += 1);
    }

    /// Returns the reason for which the dispatcher is closed, or `None` while it is open.
    pub(crate) fn closed(&self) -> Option<CloseReason> {
        self.state().closed.clone()
    }

    /// Registers a request before it is sent.
    pub(crate) fn expect_reply(
        &self,
        channel: Channel,
        message: &RawMessage,
        target: ReplyTarget,
    ) -> Result<(), ClientError> {
        self.state().expect(channel, message, target)
    }

    /// Registers an execution before its request is sent.
    pub(crate) fn expect_execution(
        &self,
        message: &RawMessage,
        mailbox: &Arc<Mailbox>,
    ) -> Result<(), ClientError> {
        let mut state = self.state();
        state.expect(Channel::Shell, message, ReplyTarget::Execution)?;
        state.executions.insert(message.header().msg_id.clone(), Arc::clone(mailbox));
        Ok(())
    }

    /// Routes what is published for `barrier` to the execution as well. Must be called before the barrier is sent.
    pub(crate) fn expect_barrier(&self, barrier: &str, execution: &str) {
        self.state().barriers.insert(barrier.to_owned(), execution.to_owned());
    }

    /// Marks a message as handed to a connection. That does not prove its arrival.
    pub(crate) fn sending(&self, message: &RawMessage) {
        let mut state = self.state();
        let kernel = state.kernel.clone();
        if let Some(pending) = state.pending.get_mut(&message.header().msg_id) {
            pending.sent = true;
            pending.kernel = kernel;
        }
    }

    /// Removes a request whose reply is no longer awaited.
    pub(crate) fn remove(&self, id: &str) {
        let mut state = self.state();
        state.pending.remove(id);
        state.executions.remove(id);
        state.barriers.retain(|_, execution| execution != id);
    }

    /// Copies messages to a mailbox until the mailbox is dropped.
    pub(crate) fn watch(&self, interest: Interest, mailbox: &Arc<Mailbox>) {
        let mut state = self.state();
        if let Some(reason) = &state.closed {
            mailbox.push_note(Item::Closed(reason.clone()));
        }
        state.watchers.retain(|(_, watcher)| watcher.strong_count() > 0);
        state.watchers.push((interest, Arc::downgrade(mailbox)));
    }

    /// Subscribes to the last execution state that the kernel published.
    pub(crate) fn kernel_state(&self) -> watch::Receiver<Option<ExecutionState>> {
        self.kernel_state.subscribe()
    }

    /// Subscribes to the number of times that the kernel reported a new process, or its death.
    pub(crate) fn restarts(&self) -> watch::Receiver<u64> {
        self.restarts.subscribe()
    }

    fn kernel_state_of(&self, channel: Channel, message: &RawMessage) -> Option<ExecutionState> {
        if channel != Channel::IoPub || message.msg_type() != "status" {
            return None;
        }
        match message.parse_content(&self.limits) {
            Content::Status(status) => Some(status.execution_state),
            _ => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if the state shows that all running code is lost.
fn is_restart(state: &ExecutionState) -> bool {
    matches!(
        state,
        ExecutionState::Starting
            | ExecutionState::Restarting
            | ExecutionState::Autorestarting
            | ExecutionState::Dead
    )
}

impl State {
    fn notify_watchers(&mut self, channel: Channel, message: &RawMessage) {
        for (interest, watcher) in &self.watchers {
            let wanted = channel == Channel::IoPub || *interest == Interest::Everything;
            if wanted && let Some(watcher) = watcher.upgrade() {
                watcher.push_message(channel, message.clone());
            }
        }
    }

    fn note_work(&mut self, kernel_state: &ExecutionState, message: &RawMessage) {
        let request = message.parent().msg_id().unwrap_or_default();
        let ends = message
            .parent()
            .header()
            .is_some_and(|header| header.msg_type == ShutdownRequest::MSG_TYPE);
        match kernel_state {
            ExecutionState::Busy if !ends && self.busy.len() < MAX_BUSY => {
                self.busy.insert(request.to_owned());
            }
            // A status without a parent means that the kernel is idle.
            ExecutionState::Idle if request.is_empty() => self.busy.clear(),
            ExecutionState::Idle => {
                self.busy.remove(request);
            }
            other if is_restart(other) => self.busy.clear(),
            _ => {}
        }
    }

    fn push_note(&mut self, item: &Item) {
        for watcher in self.watchers.iter().filter_map(|(_, watcher)| watcher.upgrade()) {
            watcher.push_note(item.clone());
        }
    }

    fn expect(
        &mut self,
        channel: Channel,
        message: &RawMessage,
        target: ReplyTarget,
    ) -> Result<(), ClientError> {
        if let Some(reason) = &self.closed {
            return Err(ClientError::not_sent(reason.clone()));
        }
        let subshell = message.header().subshell_id.clone();
        let pending = Pending { channel, subshell, target, sent: false, kernel: None, fence: None };
        self.pending.insert(message.header().msg_id.clone(), pending);
        Ok(())
    }

    /// Returns true if the reply comes from another process than the replies before. Nothing else reveals that a server
    /// has restarted its kernel.
    fn is_from_another_process(&self, message: &RawMessage) -> bool {
        let known = self.kernel.as_ref().filter(|_| message.parent().msg_id().is_some());
        known.is_some_and(|kernel| *kernel != message.header().session)
    }

    fn deliver_reply(&mut self, channel: Channel, message: RawMessage) {
        let Some(id) = message.parent().msg_id().map(str::to_owned) else { return };
        let kernel = message.header().session.clone();
        if let Some(fence) = self.fences.remove(&id) {
            self.pass_fence(&id, fence.kernel.as_deref(), &kernel);
        }
        self.kernel = Some(kernel);
        let own = self.pending.get(&id).is_some_and(|pending| pending.channel == channel);
        let Some(pending) = own.then(|| self.pending.remove(&id)).flatten() else { return };
        match pending.target {
            // The receiver may be dropped.
            ReplyTarget::Reply(target) => drop(target.send(Ok(message))),
            ReplyTarget::Execution => {
                if let Some(own) = self.executions.get(&id) {
                    own.push_reply(channel, message);
                }
            }
        }
    }

    fn deliver_to_execution(&mut self, channel: Channel, message: RawMessage) {
        let id = message.parent().msg_id();
        let id = id.map(|id| self.barriers.get(id).map_or(id, String::as_str));
        if let Some(own) = id.and_then(|id| self.executions.get(id)) {
            own.push_message(channel, message);
        }
    }

    /// Ends the requests that were sent before this fence and have no reply: none will arrive.
    fn pass_fence(&mut self, fence: &str, before: Option<&str>, kernel: &str) {
        let is_fenced = |pending: &Pending| pending.fence.as_deref() == Some(fence);
        let is_of_before = |pending: &Pending| {
            pending.kernel.as_deref().or(before).is_some_and(|known| known != kernel)
        };
        self.end(|pending| is_fenced(pending) && is_of_before(pending), &NoReplyReason::Restarted);
        self.end(is_fenced, &NoReplyReason::ReplyLost);
    }

    /// Ends the requests of subshells of an earlier process. Subshells end with their process, and none would answer a
    /// fence.
    fn end_subshells(&mut self, kernel: &str) {
        let is_of_before = |pending: &Pending| {
            pending.subshell.is_some()
                && pending.sent
                && pending.kernel.as_deref().is_some_and(|known| known != kernel)
        };
        self.end(is_of_before, &NoReplyReason::Restarted);
    }

    /// Removes the matching requests and reports to their receivers that no reply will arrive.
    fn end(&mut self, which: impl Fn(&Pending) -> bool, why: &NoReplyReason) {
        let ended: Vec<(String, Pending)> =
            self.pending.extract_if(|_, pending| which(pending)).collect();
        for (id, pending) in ended {
            match pending.target {
                // The receiver may be dropped.
                ReplyTarget::Reply(target) => drop(target.send(Err(why.error()))),
                ReplyTarget::Execution => {
                    if let Some(own) = self.executions.get(&id) {
                        own.push_note(why.item());
                    }
                }
            }
        }
    }

    /// Creates the fences behind everything that was sent on an earlier connection: one for each subshell, because each
    /// has its own queue.
    fn raise_fences(&mut self, channel: Channel, session: &Session) -> Vec<RawMessage> {
        let mut raised: HashMap<Option<String>, RawMessage> = HashMap::new();
        let sent = |pending: &&mut Pending| pending.channel == channel && pending.sent;
        for pending in self.pending.values_mut().filter(sent) {
            let fence = raised.entry(pending.subshell.clone()).or_insert_with(|| {
                let mut request = session.request(KernelInfoRequest::default());
                request.header.subshell_id.clone_from(&pending.subshell);
                request.into_raw()
            });
            pending.fence = Some(fence.header().msg_id.clone());
        }
        self.fences.retain(|_, fence| fence.channel != channel);
        for fence in raised.values() {
            let known = Fence { channel, kernel: self.kernel.clone() };
            self.fences.insert(fence.header().msg_id.clone(), known);
        }
        raised.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parent;
    #[cfg(feature = "manager")]
    use crate::content::ExecuteRequest;
    use crate::content::{KernelInfoRequest, Status};

    /// A restart wakes tasks that ask the kernel about lost requests. Some kernels publish `starting` late.
    #[test]
    fn a_late_starting_status_is_not_a_restart() {
        let (client, kernel) = (Arc::new(Session::new("client")), Session::new("kernel"));
        let dispatcher = Dispatcher::new(Arc::clone(&client), Limits::default());
        let restarts = dispatcher.restarts();
        let publish_starting = |kernel: &Session| {
            let status = Status { execution_state: ExecutionState::Starting, ..Status::default() };
            dispatcher.deliver(Channel::IoPub, kernel.message(Parent::None, status).into_raw());
        };
        publish_starting(&kernel);
        let request = client.request(KernelInfoRequest::default());
        let reply = kernel.reply(&request, KernelInfoRequest::default());
        dispatcher.deliver(Channel::Control, reply.into_raw());
        publish_starting(&kernel);
        assert!(!restarts.has_changed().unwrap() && *restarts.borrow() == 0);
        publish_starting(&Session::new("another"));
        assert!(restarts.has_changed().unwrap() && *restarts.borrow() == 1);
    }

    /// A shutdown ends only after the running code, so the code must be interrupted.
    #[cfg(feature = "manager")]
    #[test]
    fn a_kernel_that_runs_code_during_a_shutdown_is_busy() {
        let (client, kernel) = (Session::new("another client"), Session::new("kernel"));
        let dispatcher = Dispatcher::new(Arc::new(Session::new("client")), Limits::default());
        let says = |execution_state, parent: Parent| {
            let status = Status { execution_state, ..Status::default() };
            dispatcher.deliver(Channel::IoPub, kernel.message(parent, status).into_raw());
        };
        let request = client.request(ExecuteRequest::new("while True: pass"));
        let shutdown = client.request(ShutdownRequest::new(false));
        assert!(!dispatcher.is_busy());
        says(ExecutionState::Busy, Parent::from_header(&request.header));
        says(ExecutionState::Busy, Parent::from_header(&shutdown.header));
        says(ExecutionState::Idle, Parent::from_header(&shutdown.header));
        assert!(dispatcher.is_busy());
        says(ExecutionState::Idle, Parent::from_header(&request.header));
        assert!(!dispatcher.is_busy());
        says(ExecutionState::Busy, Parent::from_header(&shutdown.header));
        assert!(!dispatcher.is_busy(), "it only ends");
        says(ExecutionState::Busy, Parent::from_header(&request.header));
        says(ExecutionState::Starting, Parent::None);
        assert!(!dispatcher.is_busy(), "its process is another one");
    }
}
