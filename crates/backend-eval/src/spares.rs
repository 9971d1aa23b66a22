//! One sandbox ahead: who makes one after the other finds the next one made.
//!
//! From the second alike sandbox on, or the first from a snapshot, the next one is made while the last one works, and kept
//! for a short time. It is
//! as fresh as any other: nothing ever ran in it, and it has one owner.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbox_core::ByteSize;
use sandbox_local::Stored;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::instance::EvalInstance;
use crate::workshop::{Recipe, Workshop};

/// The last sandbox shall have run its first code before the next one is made beside it.
const DELAY: Duration = Duration::from_millis(2);

/// A snapshot on disk that one sandbox may be made of for nobody.
const SMALL: ByteSize = ByteSize::mib(64);

/// How long a spare waits for somebody who wants it.
const KEPT: Duration = Duration::from_secs(2);

/// At most one spare.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Recipe>,
    spare: Option<Spare>,
}

/// A task that makes a sandbox and keeps it until it is claimed. Without this handle, or without its runtime, the task
/// ends, and with it the sandbox.
#[derive(Debug)]
struct Spare {
    recipe: Recipe,
    runtime: Id,
    claim: oneshot::Sender<Claim>,
}

type Claim = oneshot::Sender<Arc<EvalInstance>>;

impl Spares {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The spare, when it is what the recipe says and belongs to this runtime.
    pub(crate) async fn take(&self, recipe: &Recipe) -> Option<Arc<EvalInstance>> {
        let runtime = Handle::current().id();
        let fits = |spare: &mut Spare| spare.runtime == runtime && spare.recipe.is_like(recipe);
        let spare = self.state().spare.take_if(fits)?;
        let (claim, claimed) = oneshot::channel();
        spare.claim.send(claim).ok()?;
        claimed.await.ok().filter(|instance| instance.place.is_running())
    }

    /// Has the next sandbox made, once there were two alike. Those from a snapshot, unless it is large, are made again and
    /// take time: there one is enough.
    pub(crate) fn prepare(&self, workshop: &Arc<Workshop>, recipe: Recipe) {
        // What is mounted is what is there when somebody asks, and not a moment before.
        if recipe.spec.single_use.is_some() || !recipe.spec.mounts.is_empty() {
            return;
        }
        let mut state = self.state();
        let small = |stored: &Stored| stored.info.size <= SMALL.as_u64();
        let again = recipe.snapshot.as_ref().is_some_and(small)
            || state.last.as_ref().is_some_and(|last| last.is_like(&recipe));
        let wanted = state.spare.as_ref().is_none_or(|spare| spare.claim.is_closed());
        if again && wanted {
            let (claim, claims) = oneshot::channel();
            tokio::spawn(keep_one(Arc::clone(workshop), recipe.clone(), claims));
            let runtime = Handle::current().id();
            state.spare = Some(Spare { recipe: recipe.clone(), runtime, claim });
        }
        state.last = Some(recipe);
    }
}

async fn keep_one(workshop: Arc<Workshop>, recipe: Recipe, mut claims: oneshot::Receiver<Claim>) {
    let early = match timeout(DELAY, &mut claims).await {
        Ok(Ok(claim)) => Some(claim),
        Ok(Err(_)) => return,
        Err(_) => None,
    };
    // Whatever keeps it from being made, the next create meets it too, and tells.
    let Ok(instance) = workshop.make(&recipe).await else { return };
    let claim = match early {
        Some(claim) => Some(claim),
        None => timeout(KEPT, claims).await.ok().and_then(Result::ok),
    };
    if let Some(claim) = claim {
        drop(claim.send(Arc::new(instance)));
    }
}
