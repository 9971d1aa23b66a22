//! Sends the state of sandboxes to the client: status, end, tags, and in which contexts code runs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_core::{CallContext, Instance};

use crate::link::Link;
use crate::message::Message;
use crate::wire::{SandboxReply, State, capability_names, missing_facets};

/// A sandbox that the client holds, and the last state that was sent to the client.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) id: u64,
    pub(super) instance: Arc<dyn Instance>,
    last_sent: Mutex<LastSent>,
}

#[derive(Debug)]
struct LastSent {
    /// Contexts whose execution is reported.
    contexts: BTreeSet<String>,
    state: Option<State>,
}

impl Published {
    pub(super) fn new(id: u64, instance: Arc<dyn Instance>) -> Self {
        let contexts = BTreeSet::from(["default".to_owned()]);
        Self { id, instance, last_sent: Mutex::new(LastSent { contexts, state: None }) }
    }

    fn last_sent(&self) -> MutexGuard<'_, LastSent> {
        self.last_sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the reply that hands the sandbox to the client.
    pub(super) async fn reply(&self) -> SandboxReply {
        self.follow_all_contexts().await;
        let state = {
            let mut last_sent = self.last_sent();
            let state = self.current(&last_sent.contexts);
            last_sent.state = Some(state.clone());
            state
        };
        let capabilities = capability_names(&self.instance.capabilities());
        SandboxReply { state, capabilities, missing: missing_facets(&*self.instance) }
    }

    /// Reports from now on whether code runs in the context.
    pub(super) fn follow(&self, context: Option<&str>) {
        let Some(context) = context else { return };
        let mut last_sent = self.last_sent();
        if !last_sent.contexts.contains(context) {
            last_sent.contexts.insert(context.to_owned());
        }
    }

    /// Follows every context of the sandbox, including those that other clients made.
    pub(super) async fn follow_all_contexts(&self) {
        if !self.instance.capabilities().contexts {
            return;
        }
        let Ok(code) = self.instance.code() else { return };
        if let Ok(contexts) = code.list_contexts(&CallContext::new()).await {
            for context in contexts {
                self.follow(Some(&context.id));
            }
        }
    }

    fn current(&self, contexts: &BTreeSet<String>) -> State {
        let code = self.instance.code().ok();
        let is_executing =
            |id: &&String| code.is_some_and(|code| code.is_executing(Some(id.as_str())));
        let executing = contexts.iter().filter(is_executing).cloned().collect();
        State { info: self.instance.info(), executing }
    }

    /// Sends the state if it has changed. Returns whether code runs in the sandbox.
    pub(super) fn publish(&self, link: &Link) -> bool {
        let mut last_sent = self.last_sent();
        let state = self.current(&last_sent.contexts);
        let executing = !state.executing.is_empty();
        if last_sent.state.as_ref() != Some(&state) {
            // Sent under the lock, so that an older state cannot arrive later.
            link.send_state(self.id, &Message::from_head(&state));
            last_sent.state = Some(state);
        }
        executing
    }
}
