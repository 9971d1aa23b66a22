//! Tells the client what it must know without asking: status, end, tags, and where code runs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use sandbox_core::{CallContext, Instance};

use crate::link::Link;
use crate::message::Message;
use crate::wire::{Handed, State, missing, names};

/// A sandbox that the client holds, and what it was told of it.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) id: u64,
    pub(super) instance: Arc<dyn Instance>,
    told: Mutex<Told>,
}

#[derive(Debug)]
struct Told {
    contexts: BTreeSet<String>,
    last: Option<State>,
}

impl Published {
    pub(super) fn new(id: u64, instance: Arc<dyn Instance>) -> Self {
        let contexts = BTreeSet::from(["default".to_owned()]);
        Self { id, instance, told: Mutex::new(Told { contexts, last: None }) }
    }

    /// What the client hears when it gets the sandbox.
    pub(super) async fn handed(&self) -> Handed {
        self.look_for_contexts().await;
        let state = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let state = self.now(&told.contexts);
            told.last = Some(state.clone());
            state
        };
        let capabilities = names(&self.instance.capabilities());
        Handed { state, capabilities, missing: missing(&*self.instance) }
    }

    /// From now on the client hears whether code runs there.
    pub(super) fn follow(&self, context: Option<&str>) {
        let Some(context) = context else { return };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.contexts.contains(context) {
            told.contexts.insert(context.to_owned());
        }
    }

    /// Follows every context there is, also those that others made.
    pub(super) async fn look_for_contexts(&self) {
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

    fn now(&self, contexts: &BTreeSet<String>) -> State {
        let code = self.instance.code().ok();
        let is_executing =
            |id: &&String| code.is_some_and(|code| code.is_executing(Some(id.as_str())));
        let executing = contexts.iter().filter(is_executing).cloned().collect();
        State { info: self.instance.info(), executing }
    }

    /// Tells what has changed. Whether code runs.
    pub(super) fn publish(&self, link: &Link) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.now(&told.contexts);
        let executing = !state.executing.is_empty();
        if told.last.as_ref() != Some(&state) {
            // Sent under the lock, so that nothing older arrives later.
            link.send_state(self.id, &Message::of(&state));
            told.last = Some(state);
        }
        executing
    }
}
