//! One connection: what it holds, and what is going on.

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

use super::state::Published;
use super::verbs::{self, Answer, Begin};
use crate::link::{Inlet, Link, Outlet};
use crate::message::{Message, json};
use crate::wire::error::WireError;

/// How often the client hears what has changed by itself, while something goes on.
const QUICK: Duration = Duration::from_millis(25);
/// The same when nothing has been asked for a while.
const SLOW: Duration = Duration::from_millis(250);
/// How long something goes on after a request.
const LIVELY: Duration = Duration::from_secs(2);

/// One connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) link: Arc<Link>,
    pub(super) backend: Arc<dyn Backend>,
    table: Mutex<Table>,
    asked: Notify,
}

#[derive(Debug)]
struct Table {
    /// Requests that are being answered. One that has just begun has no task yet.
    tasks: HashMap<u64, Option<AbortHandle>>,
    /// What the client holds, by the stream that made it.
    held: HashMap<u64, Held>,
    last_request: Instant,
    /// The task that watches for what changes by itself.
    watch: Option<AbortHandle>,
}

#[derive(Clone, Debug)]
enum Held {
    Sandbox(Arc<Published>),
    Command(Arc<dyn CommandControl>),
}

/// Ends a session.
pub(super) struct End<'a>(&'a Session);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.end();
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
        Arc::new(Self { link, backend, table, asked: Notify::new() })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn end_when_dropped(&self) -> End<'_> {
        End(self)
    }

    fn end(&self) {
        self.link.close();
        let (tasks, held, watch) = {
            let mut table = self.table();
            let (tasks, held) = (std::mem::take(&mut table.tasks), std::mem::take(&mut table.held));
            (tasks, held, table.watch.take())
        };
        tasks.into_values().flatten().chain(watch).for_each(|task| task.abort());
        drop(held);
    }

    /// Answers a request beside all others. It begins here and now, so that requests begin in the order in which they
    /// came: runs in one context queue in that order.
    pub(super) fn start(self: &Arc<Self>, outlet: Outlet, inlet: Inlet, message: Message) {
        let id = outlet.id();
        {
            let mut table = self.table();
            table.last_request = Instant::now();
            table.tasks.insert(id, None);
        }
        let session = Arc::clone(self);
        let mut answer = Box::pin(async move { session.answer(&outlet, inlet, message).await });
        if begin(answer.as_mut()) {
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
        self.asked.notify_one();
    }

    fn finish(&self, id: u64) {
        self.table().tasks.remove(&id);
        self.link.forget(id);
    }

    async fn answer(self: &Arc<Self>, outlet: &Outlet, inlet: Inlet, message: Message) {
        let answer = verbs::answer(self, outlet.id(), inlet, message).await;
        if let Ok(Answer::Stream(.., Begin::WhenRead)) = &answer {
            outlet.hold();
        }
        match answer {
            Ok(Answer::Value(message)) => outlet.reply(&message),
            Ok(Answer::Stream(message, mut elements, _)) => {
                outlet.reply(&message);
                while outlet.ready().await.is_ok() {
                    let Some(element) = elements.next().await else {
                        outlet.end();
                        return;
                    };
                    if outlet.item(&element).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => outlet.reply(&Message::of(&Err::<(), _>(WireError::from(&error)))),
        }
    }

    /// The client does not want the answer any more.
    pub(super) fn cancel(&self, id: u64) {
        let task = self.table().tasks.remove(&id);
        if let Some(task) = task.flatten() {
            task.abort();
        }
        self.link.forget(id);
    }

    /// The client no longer holds what that stream made.
    pub(super) fn release(&self, id: u64) {
        let held = self.table().held.remove(&id);
        drop(held);
    }

    /// Keeps something for the client, unless it has given up already.
    fn hold(self: &Arc<Self>, id: u64, what: Held) -> bool {
        let mut table = self.table();
        let wanted = table.tasks.contains_key(&id);
        if wanted {
            table.held.insert(id, what);
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
    ) -> Result<Message> {
        let published = Arc::new(Published::new(id, instance));
        let handed = published.handed().await;
        if !self.hold(id, Held::Sandbox(published)) {
            return Err(Error::new(ErrorKind::Cancelled, "create", "nobody waits for the sandbox"));
        }
        Ok(Message::of(&Ok::<_, ()>(handed)))
    }

    /// Hands the controls of a command to the client.
    pub(super) fn hand_control(self: &Arc<Self>, id: u64, control: Arc<dyn CommandControl>) {
        self.hold(id, Held::Command(control));
    }

    /// A sandbox that the client holds.
    pub(super) fn sandbox(&self, id: u64) -> Result<Arc<Published>> {
        match self.table().held.get(&id) {
            Some(Held::Sandbox(published)) => Ok(Arc::clone(published)),
            _ => Err(not_held("sandbox")),
        }
    }

    /// The controls of a command that the client holds.
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

    /// Tells what changes by itself: a sandbox that expires, code that ends while nobody reads.
    async fn watch(self: Arc<Self>) {
        loop {
            let mut executing = false;
            let lively = self.table().last_request.elapsed() < LIVELY;
            for published in self.sandboxes() {
                if !lively {
                    published.look_for_contexts().await;
                }
                executing |= published.publish(&self.link);
            }
            let pause = if lively || executing { QUICK } else { SLOW };
            if pause == QUICK {
                tokio::time::sleep(pause).await;
            } else {
                // Woken early by a request.
                let _ = timeout(pause, self.asked.notified()).await;
            }
        }
    }
}

/// Polls a future for the first time. Whether it is done; if not, it must be polled again soon.
fn begin(answer: Pin<&mut (impl Future<Output = ()> + Send)>) -> bool {
    // Without a budget, which other requests may have used up.
    let first = std::pin::pin!(unconstrained(answer));
    first.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn not_held(what: &str) -> Error {
    let message = format!("this connection does not hold that {what}");
    Error::new(ErrorKind::Protocol, "find", message)
}

/// A reply with a value.
pub(super) fn reply(value: &impl serde::Serialize) -> Message {
    Message { head: json(&Ok::<_, ()>(value)), tail: bytes::Bytes::new() }
}
