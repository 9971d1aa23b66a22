//! One of something ahead: who makes one after the other finds the next one made.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbox_core::CreateSpec;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The last one shall have begun its work before the next one is made beside it.
const START_DELAY: Duration = Duration::from_millis(2);

/// How long a spare waits for somebody who wants it.
const KEEP_TIMEOUT: Duration = Duration::from_secs(2);

/// At most one `T`, made by a recipe `R`, and what the last one was made by.
///
/// A spare is for one owner, and belongs to the async runtime in which it was made. Without this, or without its runtime,
/// it is dropped.
#[derive(Debug)]
pub struct PrewarmPool<R, T> {
    state: Mutex<State<R, T>>,
}

#[derive(Debug)]
struct State<R, T> {
    last: Option<R>,
    spare: Option<Prewarmed<R, T>>,
}

/// A task that makes a `T` and keeps it until it is claimed. Without this handle the task ends.
#[derive(Debug)]
struct Prewarmed<R, T> {
    recipe: R,
    runtime: Id,
    claim: oneshot::Sender<Claim<T>>,
}

type Claim<T> = oneshot::Sender<T>;

impl<R, T> Default for PrewarmPool<R, T> {
    fn default() -> Self {
        Self { state: Mutex::new(State { last: None, spare: None }) }
    }
}

impl<R: Clone, T: Send + 'static> PrewarmPool<R, T> {
    fn state(&self) -> MutexGuard<'_, State<R, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The spare, when its recipe fits and it belongs to this runtime. Waits for one that is being made.
    pub async fn take(&self, fits: impl Fn(&R) -> bool) -> Option<T> {
        let runtime = Handle::current().id();
        let fits = |spare: &mut Prewarmed<R, T>| spare.runtime == runtime && fits(&spare.recipe);
        let spare = self.state().spare.take_if(fits)?;
        let (claim, claimed) = oneshot::channel();
        spare.claim.send(claim).ok()?;
        claimed.await.ok()
    }

    /// One was made by this recipe. Has another made when `again` says so of the recipe and of the one before; it is kept
    /// for two seconds.
    ///
    /// Whatever keeps it from being made, the next one meets it too, and tells.
    pub fn prepare<Making>(
        &self,
        recipe: R,
        again: impl FnOnce(&R, Option<&R>) -> bool,
        make: impl FnOnce(R) -> Making,
    ) where
        Making: Future<Output = Option<T>> + Send + 'static,
    {
        let mut state = self.state();
        let wanted = state.spare.as_ref().is_none_or(|spare| spare.claim.is_closed());
        if wanted && again(&recipe, state.last.as_ref()) {
            let (claim, claims) = oneshot::channel();
            tokio::spawn(keep_one(make(recipe.clone()), claims));
            let runtime = Handle::current().id();
            state.spare = Some(Prewarmed { recipe: recipe.clone(), runtime, claim });
        }
        state.last = Some(recipe);
    }
}

/// Whether anything may be made ahead for somebody who asks for that.
pub fn is_prewarmable(spec: &CreateSpec) -> bool {
    // What is mounted is what is there when somebody asks, and not a moment before.
    spec.single_use.is_none() && spec.mounts.is_empty()
}

async fn keep_one<T>(
    making: impl Future<Output = Option<T>>,
    mut claims: oneshot::Receiver<Claim<T>>,
) {
    let early = match timeout(START_DELAY, &mut claims).await {
        Ok(Ok(claim)) => Some(claim),
        Ok(Err(_)) => return,
        Err(_) => None,
    };
    let Some(made) = making.await else { return };
    let claim = match early {
        Some(claim) => Some(claim),
        None => timeout(KEEP_TIMEOUT, claims).await.ok().and_then(Result::ok),
    };
    if let Some(claim) = claim {
        drop(claim.send(made));
    }
}
