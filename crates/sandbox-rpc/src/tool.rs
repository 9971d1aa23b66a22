//! Functions of the client that code calls.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};

use futures_util::FutureExt as _;
use sandbox_core::ToolFunction;
use serde_json::{Map, Value};

use crate::link::{Incoming, Inlet, Link, Outlet};
use crate::message::{Message, json, parse};
use crate::wire::request::{Envelope, Verb, WireCall};

const GONE: &str = "the program that has this function is gone";

/// On the server: a function that asks the client.
pub(crate) fn of_client(link: Weak<Link>, registered_on: u64) -> ToolFunction {
    Arc::new(move |arguments| {
        let link = Weak::clone(&link);
        Box::pin(async move {
            let link = link.upgrade().ok_or(GONE)?;
            ask(&link, registered_on, &arguments).await
        })
    })
}

async fn ask(link: &Arc<Link>, on: u64, arguments: &Map<String, Value>) -> Result<Value, String> {
    let (outlet, mut inlet) = link.open().map_err(|_| GONE)?;
    let envelope = Envelope { call: WireCall::default(), on, verb: Verb::CallTool };
    outlet.request(&Message::with_tail(&envelope, json(arguments)));
    let Some(Incoming::Reply(reply)) = inlet.next().await else { return Err(GONE.into()) };
    inlet.finish();
    reply.read::<Result<(), String>>().map_err(|violation| violation.to_string())??;
    parse(&reply.tail).map_err(|violation| violation.to_string())
}

/// On the client: calls the function that a request names. Dropping the future drops the call.
pub(crate) async fn answer(
    outlet: Outlet,
    mut inlet: Inlet,
    message: Message,
    find: impl FnOnce(u64) -> Option<ToolFunction>,
) {
    inlet.finish();
    let called = async {
        let envelope: Envelope = message.read().map_err(|violation| violation.to_string())?;
        let function = find(envelope.on).ok_or("there is no such function")?;
        let arguments = parse(&message.tail).map_err(|violation| violation.to_string())?;
        let call = async { function(arguments).await };
        let outcome = AssertUnwindSafe(call).catch_unwind().await;
        outcome.unwrap_or_else(|_| Err("the function panicked".into()))
    };
    let reply = match called.await {
        Ok(value) => Message::with_tail(&Ok::<_, ()>(()), json(&value)),
        Err(problem) => Message::of(&Err::<(), String>(problem)),
    };
    outlet.reply(&reply);
}
