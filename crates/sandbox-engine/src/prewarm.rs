//! Pre-warms one sandbox for callers that create several in a row.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbox_core::CreateSpec;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Delay before the next sandbox is made, so that the last one starts its work first.
const START_DELAY: Duration = Duration::from_millis(2);

/// How long a pre-warmed sandbox waits for a caller.
const KEEP_TIMEOUT: Duration = Duration::from_secs(2);

/// Keeps at most one pre-warmed `T`, made by a recipe `R`, and the recipe of the last one.
///
/// A pre-warmed sandbox belongs to the async runtime in which it was made. It is dropped with the pool or that runtime.
#[derive(Debug)]
pub struct PrewarmPool<R, T> {
    state: Mutex<State<R, T>>,
}

#[derive(Debug)]
struct State<R, T> {
    last: Option<R>,
    spare: Option<Prewarmed<R, T>>,
}

/// A task that makes a `T` and keeps it until it is claimed. The task ends when this handle is dropped.
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

    /// Takes the pre-warmed sandbox when its recipe fits and it belongs to this runtime. Waits for one that is being
    /// made.
    pub async fn take(&self, fits: impl Fn(&R) -> bool) -> Option<T> {
        let runtime = Handle::current().id();
        let fits = |spare: &mut Prewarmed<R, T>| spare.runtime == runtime && fits(&spare.recipe);
        let spare = self.state().spare.take_if(fits)?;
        let (claim, claimed) = oneshot::channel();
        spare.claim.send(claim).ok()?;
        claimed.await.ok()
    }

    /// Reports that a sandbox was made by this recipe. Pre-warms another one when `again` accepts the recipe and the one
    /// before. It is kept for two seconds.
    ///
    /// A failure to make it is not reported: the next create meets and reports the same failure.
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

/// Returns true when a sandbox of that request may be made ahead.
pub fn is_prewarmable(spec: &CreateSpec) -> bool {
    // A mount is what is there at the time of the create, and not before.
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
