//! Calls of the client's functions. One task runs them all, so that what one does before its end is seen in that order.

use std::collections::HashMap;

use futures_core::future::BoxFuture;
use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What the reader of the connection says.
enum Said {
    Begin(u64, BoxFuture<'static, ()>),
    End(u64),
}

/// The calls of one connection. They end when this is dropped.
pub(super) struct Calls(UnboundedSender<Said>);

impl Calls {
    pub(super) fn start() -> Self {
        let (say, said) = unbounded_channel();
        tokio::spawn(run(said));
        Self(say)
    }

    /// Begins a call.
    pub(super) fn begin(&self, id: u64, call: BoxFuture<'static, ()>) {
        let _ = self.0.send(Said::Begin(id, call));
    }

    /// Drops a call.
    pub(super) fn end(&self, id: u64) {
        let _ = self.0.send(Said::End(id));
    }
}

async fn run(mut said: UnboundedReceiver<Said>) {
    let mut calls = FuturesUnordered::new();
    let mut handles = HashMap::new();
    loop {
        tokio::select! {
            said = said.recv() => match said {
                Some(Said::Begin(id, call)) => {
                    let (handle, registration) = AbortHandle::new_pair();
                    handles.insert(id, handle);
                    let call = Abortable::new(call, registration);
                    calls.push(async move {
                        let _ = call.await;
                        id
                    });
                }
                Some(Said::End(id)) => {
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
