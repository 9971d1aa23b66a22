//! Calls of the client's tools by code in a sandbox: the server's request, and the client's answer.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};

use futures_core::future::BoxFuture;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use sandbox_core::ToolFunction;
use serde_json::{Map, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::link::{Incoming, Link, RecvStream, SendStream};
use crate::message::Message;
use crate::verbs::Verb;
use crate::wire::request::{Envelope, WireCall};

const DISCONNECTED: &str = "the program that has this function is gone";

/// Makes the server's side of a tool: a function that sends its call to the client.
pub(crate) fn remote_tool(link: Weak<Link>, registered_on: u64) -> ToolFunction {
    Arc::new(move |arguments| {
        let link = Weak::clone(&link);
        Box::pin(async move {
            let link = link.upgrade().ok_or(DISCONNECTED)?;
            call_client(&link, registered_on, arguments).await
        })
    })
}

async fn call_client(
    link: &Arc<Link>,
    on: u64,
    arguments: Map<String, Value>,
) -> Result<Value, String> {
    let (send, mut recv) = link.open().map_err(|_| DISCONNECTED)?;
    let (call, verb) = (WireCall::default(), Verb::call_tool);
    send.request(&Message::from_head(&Envelope { call, on, verb, arguments }));
    let Some(Incoming::Reply(reply)) = recv.next().await else { return Err(DISCONNECTED.into()) };
    recv.finish();
    reply.read::<Result<Value, String>>().map_err(|violation| violation.to_string())?
}

/// Calls the function that a request of the server names. Dropping the future drops the call.
pub(crate) async fn answer(
    send: SendStream,
    mut recv: RecvStream,
    message: Message,
    find: impl FnOnce(u64) -> Option<ToolFunction>,
) {
    recv.finish();
    let call = async {
        let Envelope { on, arguments, .. } =
            message.read().map_err(|violation| violation.to_string())?;
        let function = find(on).ok_or("there is no such function")?;
        let call = async { function(arguments).await };
        let outcome = AssertUnwindSafe(call).catch_unwind().await;
        outcome.unwrap_or_else(|_| Err("the function panicked".into()))
    };
    let outcome: Result<Value, String> = call.await;
    send.reply(&Message::from_head(&outcome));
}

/// A message from the reader of the connection to the task of the calls.
enum CallMessage {
    Start(u64, BoxFuture<'static, ()>),
    Cancel(u64),
}

/// The task that runs the calls of one connection, and so keeps the order of their effects. Dropping it ends the calls.
pub(crate) struct ToolCallRunner(UnboundedSender<CallMessage>);

impl ToolCallRunner {
    pub(crate) fn start() -> Self {
        let (sender, receiver) = unbounded_channel();
        tokio::spawn(run(receiver));
        Self(sender)
    }

    /// Starts a call.
    pub(crate) fn call(&self, id: u64, call: BoxFuture<'static, ()>) {
        let _ = self.0.send(CallMessage::Start(id, call));
    }

    /// Drops a call.
    pub(crate) fn cancel(&self, id: u64) {
        let _ = self.0.send(CallMessage::Cancel(id));
    }
}

async fn run(mut receiver: UnboundedReceiver<CallMessage>) {
    let mut calls = FuturesUnordered::new();
    let mut handles = HashMap::new();
    loop {
        tokio::select! {
            message = receiver.recv() => match message {
                Some(CallMessage::Start(id, call)) => {
                    let (handle, registration) = AbortHandle::new_pair();
                    handles.insert(id, handle);
                    let call = Abortable::new(call, registration);
                    calls.push(async move {
                        let _ = call.await;
                        id
                    });
                }
                Some(CallMessage::Cancel(id)) => {
                    if let Some(handle) = handles.remove(&id) {
                        handle.abort();
                    }
                }
                None => return,
            },
            Some(id) = calls.next(), if !calls.is_empty() => {
                handles.remove(&id);
            }
        }
    }
}
