//! A session: the requests of one connection, and the sandboxes and commands that its client holds.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::StreamExt as _;
use sandbox_core::{Backend, CommandControl, Error, ErrorKind, Instance, Result};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, unconstrained};
use tokio::time::{Instant, timeout};

use super::dispatch::{self, Answer, StreamStart};
use super::state::Published;
use crate::link::{Link, RecvStream, SendStream};
use crate::message::Message;
use crate::wire::SandboxReply;
use crate::wire::error::WireError;

/// Interval at which states are compared and sent while the session is active.
const ACTIVE_POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Interval at which states are compared and sent otherwise.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time after a request during which the session is active.
const ACTIVE_PERIOD: Duration = Duration::from_secs(2);

/// One connection of a client.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) link: Arc<Link>,
    pub(super) backend: Arc<dyn Backend>,
    table: Mutex<Table>,
    requested: Notify,
}

#[derive(Debug)]
struct Table {
    /// Requests that are being answered. A request has no task before its first poll.
    tasks: HashMap<u64, Option<AbortHandle>>,
    /// Sandboxes and commands that the client holds, by the stream of their request.
    held: HashMap<u64, Held>,
    last_request: Instant,
    /// The task that sends changed states.
    watch: Option<AbortHandle>,
}

#[derive(Clone, Debug)]
enum Held {
    Sandbox(Arc<Published>),
    Command(Arc<dyn CommandControl>),
}

/// Closes a session when it is dropped.
pub(super) struct CloseGuard<'a>(&'a Session);

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Session {
    pub(super) fn new(link: Arc<Link>, backend: Arc<dyn Backend>) -> Arc<Self> {
        let table = Mutex::new(Table {
            tasks: HashMap::new(),
            held: HashMap::new(),
            last_request: Instant::now(),
            watch: None,
        });
        Arc::new(Self { link, backend, table, requested: Notify::new() })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn close_when_dropped(&self) -> CloseGuard<'_> {
        CloseGuard(self)
    }

    fn close(&self) {
        self.link.close();
        let (tasks, held, watch) = {
            let mut table = self.table();
            let (tasks, held) = (std::mem::take(&mut table.tasks), std::mem::take(&mut table.held));
            (tasks, held, table.watch.take())
        };
        tasks.into_values().flatten().chain(watch).for_each(|task| task.abort());
        drop(held);
    }

    /// Answers a request concurrently with others. The answer is polled once before this method returns, so that requests
    /// start in their order of arrival: runs in one context queue in that order.
    pub(super) fn start(self: &Arc<Self>, send: SendStream, recv: RecvStream, message: Message) {
        let id = send.id();
        {
            let mut table = self.table();
            table.last_request = Instant::now();
            table.tasks.insert(id, None);
        }
        let session = Arc::clone(self);
        let mut answer = Box::pin(async move { session.answer(&send, recv, message).await });
        if poll_once(answer.as_mut()) {
            self.finish(id);
            return;
        }
        let session = Arc::clone(self);
        let task = tokio::spawn(async move {
            answer.await;
            session.finish(id);
        });
        if let Some(entry) = self.table().tasks.get_mut(&id) {
            *entry = Some(task.abort_handle());
        }
        self.requested.notify_one();
    }

    fn finish(&self, id: u64) {
        self.table().tasks.remove(&id);
        self.link.forget(id);
    }

    async fn answer(self: &Arc<Self>, send: &SendStream, recv: RecvStream, message: Message) {
        let answer = dispatch::answer(self, send.id(), recv, message).await;
        if let Ok(Answer::Stream(.., StreamStart::WhenRead)) = &answer {
            send.hold();
        }
        match answer {
            Ok(Answer::Value(message)) => send.reply(&message),
            Ok(Answer::Stream(message, mut elements, _)) => {
                send.reply(&message);
                while send.ready().await.is_ok() {
                    let Some(element) = elements.next().await else {
                        send.end();
                        return;
                    };
                    if send.item(&element).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => send.reply(&Message::from_head(&Err::<(), _>(WireError::from(&error)))),
        }
    }

    /// Cancels a request.
    pub(super) fn cancel(&self, id: u64) {
        let task = self.table().tasks.remove(&id);
        if let Some(task) = task.flatten() {
            task.abort();
        }
        self.link.forget(id);
    }

    /// Drops what the request on that stream made.
    pub(super) fn release(&self, id: u64) {
        let held = self.table().held.remove(&id);
        drop(held);
    }

    /// Holds a sandbox or a command for the client. Returns false when the client has cancelled the request.
    fn hold(self: &Arc<Self>, id: u64, held: Held) -> bool {
        let mut table = self.table();
        let wanted = table.tasks.contains_key(&id);
        if wanted {
            table.held.insert(id, held);
            if table.watch.is_none() {
                let watch = Arc::clone(self).watch();
                table.watch = Some(tokio::spawn(watch).abort_handle());
            }
        }
        wanted
    }

    /// Hands a sandbox to the client.
    pub(super) async fn hand(
        self: &Arc<Self>,
        id: u64,
        instance: Arc<dyn Instance>,
    ) -> Result<SandboxReply> {
        let published = Arc::new(Published::new(id, instance));
        let reply = published.reply().await;
        if !self.hold(id, Held::Sandbox(published)) {
            let message = "the client has cancelled the request";
            return Err(Error::new(ErrorKind::Cancelled, "create", message));
        }
        Ok(reply)
    }

    /// Hands the controls of a command to the client.
    pub(super) fn hand_control(self: &Arc<Self>, id: u64, control: Arc<dyn CommandControl>) {
        self.hold(id, Held::Command(control));
    }

    /// Returns a sandbox that the client holds.
    pub(super) fn sandbox(&self, id: u64) -> Result<Arc<Published>> {
        match self.table().held.get(&id) {
            Some(Held::Sandbox(published)) => Ok(Arc::clone(published)),
            _ => Err(not_held("sandbox")),
        }
    }

    /// Returns the controls of a command that the client holds.
    pub(super) fn control(&self, id: u64) -> Result<Arc<dyn CommandControl>> {
        match self.table().held.get(&id) {
            Some(Held::Command(control)) => Ok(Arc::clone(control)),
            _ => Err(not_held("command")),
        }
    }

    fn sandboxes(&self) -> Vec<Arc<Published>> {
        let held = self.table().held.values().cloned().collect::<Vec<_>>();
        let sandboxes = held.into_iter().filter_map(|held| match held {
            Held::Sandbox(published) => Some(published),
            Held::Command(_) => None,
        });
        sandboxes.collect()
    }

    /// Sends states that change without a request, such as those of expired sandboxes and of runs whose events are not read.
    async fn watch(self: Arc<Self>) {
        loop {
            let mut executing = false;
            let active = self.table().last_request.elapsed() < ACTIVE_PERIOD;
            for published in self.sandboxes() {
                if !active {
                    published.follow_all_contexts().await;
                }
                executing |= published.publish(&self.link);
            }
            if active || executing {
                tokio::time::sleep(ACTIVE_POLL_INTERVAL).await;
            } else {
                // A request ends the wait early.
                let _ = timeout(IDLE_POLL_INTERVAL, self.requested.notified()).await;
            }
        }
    }
}

/// Polls a future once. Returns true when it is complete; otherwise it must be polled again soon.
fn poll_once(answer: Pin<&mut (impl Future<Output = ()> + Send)>) -> bool {
    // Without tokio's budget, which other requests may have used up.
    let first = std::pin::pin!(unconstrained(answer));
    first.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn not_held(what: &str) -> Error {
    let message = format!("the connection does not hold this {what}");
    Error::new(ErrorKind::Protocol, "find", message)
}
