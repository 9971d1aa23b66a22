//! Snapshots of one sandbox: taking them, and going back to them.
//!
//! Files go to disk and are for every sandbox. Interpreters are copied, and the copies wait in the cell of this one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use sandbox_agent::box_io::Held;
use sandbox_agent::interpreter::{Contexts, Copied, InterpreterContext, Paused};
use sandbox_core::{Context, ContextSpec, Error, ErrorKind, Result, Retry, SnapshotInfo};
use sandbox_local::{LocalInstance, LocalKind, SnapshotStore, Stored};

/// One sandbox.
pub(crate) type EvalInstance = LocalInstance<Snapshots>;

const CREATE: &str = "create_snapshot";
const RESTORE: &str = "restore_snapshot";

/// Copies of interpreters that one sandbox keeps. Each holds the memory that is not as it was any more.
const MOST_COPIES: usize = 8;

/// The snapshots of a sandbox.
#[derive(Debug)]
pub(crate) struct Snapshots {
    store: SnapshotStore,
    /// The version of its Python.
    python: Option<String>,
    /// Interpreters of snapshots that were taken of it.
    copies: Mutex<Vec<Kept>>,
}

/// The copy of one interpreter.
#[derive(Clone, Debug)]
struct Kept {
    /// The id of its snapshot.
    snapshot: String,
    context: Context,
    copy: Arc<dyn Held>,
}

impl Snapshots {
    pub(crate) fn new(store: SnapshotStore, python: Option<String>) -> Self {
        Self { store, python, copies: Mutex::default() }
    }

    pub(crate) fn python(&self) -> Option<&str> {
        self.python.as_deref()
    }

    fn copies(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copies of a snapshot that can be woken.
    fn of(&self, snapshot: &str) -> Vec<Kept> {
        let copies = self.copies();
        let alive = copies.iter().filter(|kept| kept.snapshot == snapshot && kept.copy.is_alive());
        alive.cloned().collect()
    }

    /// The contexts whose interpreters a snapshot has here.
    pub(crate) fn contexts_of(&self, snapshot: &str) -> Vec<String> {
        self.of(snapshot).into_iter().map(|kept| kept.context.id).collect()
    }

    /// Ends the copies of a snapshot.
    pub(crate) fn forget(&self, snapshot: &str) {
        self.copies().retain(|kept| kept.snapshot != snapshot);
    }

    /// Room for more copies. Others may have deleted snapshots whose copies are still here.
    fn room(&self) -> Result<usize> {
        let stored = self.store.list(CREATE)?;
        let mut copies = self.copies();
        copies.retain(|kept| {
            kept.copy.is_alive() && stored.iter().any(|stored| stored.info.id == kept.snapshot)
        });
        Ok(MOST_COPIES.saturating_sub(copies.len()))
    }

    /// A copy of each interpreter. What there is no copy of is noted.
    async fn copy_interpreters(
        &self,
        described: &[Context],
        paused: &mut [Paused],
        info: &mut SnapshotInfo,
    ) -> Result<Vec<(Context, Arc<dyn Held>)>> {
        let mut room = self.room()?;
        let mut copies = Vec::new();
        for one in paused.iter_mut().filter(|one| one.has_interpreter()) {
            let copied = match room {
                0 => Copied::None(format!(
                    "the sandbox keeps {MOST_COPIES} already; delete snapshots that are not needed"
                )),
                _ => one.copy().await?,
            };
            match copied {
                Copied::Copy(copy, notes) => {
                    let context = described.iter().find(|context| context.id == one.id());
                    let by_default = || Context { id: one.id().to_owned(), ..Context::default() };
                    copies.push((context.cloned().unwrap_or_else(by_default), copy));
                    room -= 1;
                    info.left_out.extend(
                        notes.into_iter().map(|note| format!("of context {}: {note}", one.id())),
                    );
                }
                Copied::None(why) => info.left_out.push(format!(
                    "the interpreter of context {} with its variables: {why}",
                    one.id()
                )),
            }
        }
        Ok(copies)
    }
}

#[async_trait]
impl LocalKind for Snapshots {
    const SYSTEM_PACKAGES: &'static str =
        "install them on this host, with apt-get or its like: a sandbox sees what is below /usr";

    async fn create_snapshot(
        EvalInstance { place, contexts, kind }: &EvalInstance,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo> {
        place.check_snapshot(CREATE)?;
        let mut draft = kind.store.begin(CREATE, name)?;
        let _in_use = place.expiry.in_use();
        let mut paused = pause(contexts, CREATE).await?;
        let mut info = SnapshotInfo { description: description.into(), ..SnapshotInfo::default() };
        let described = contexts.list();
        // Nothing changes meanwhile, so the one need not wait for the other.
        let (copies, directories) = tokio::join!(
            kind.copy_interpreters(&described, &mut paused, &mut info),
            place.save(CREATE, &mut draft)
        );
        let copies = copies?;
        info.directories = directories?;
        let Stored { info, .. } = place.finish(CREATE, draft, kind.python.clone(), info).await?;
        let kept = copies.into_iter().map(|(context, copy)| {
            let snapshot = info.id.clone();
            Kept { snapshot, context, copy }
        });
        kind.copies().extend(kept);
        Ok(SnapshotInfo { contexts: kind.contexts_of(&info.id), ..info })
    }

    async fn restore_snapshot(
        EvalInstance { place, contexts, kind }: &EvalInstance,
        name: &str,
    ) -> Result<SnapshotInfo> {
        let stored = kind.store.find(RESTORE, name)?;
        let _in_use = place.expiry.in_use();
        let kept = kind.of(&stored.info.id);
        let mut paused = pause(contexts, RESTORE).await?;
        let still = async {
            for context in &mut paused {
                context.end().await;
            }
            place.commands.end_all().await
        };
        place.replace(RESTORE, &stored, kind.python(), still).await?;
        let mut info = SnapshotInfo { left_out: Vec::new(), ..stored.info };
        for Kept { context, copy, .. } in kept {
            let known = paused.iter().position(|one| one.id() == context.id);
            let mut made = None;
            let one = match known {
                Some(known) => &mut paused[known],
                None => made.insert(pause_one(&made_again(contexts, &context)?, RESTORE).await?),
            };
            match one.wake(&*copy).await {
                Ok(()) => info.contexts.push(context.id),
                Err(error) => info.left_out.push(format!(
                    "the interpreter of context {} with its variables: {error}",
                    context.id
                )),
            }
        }
        Ok(info)
    }
}

/// Every context, none of which runs code.
async fn pause(contexts: &Contexts, operation: &'static str) -> Result<Vec<Paused>> {
    let mut paused = Vec::new();
    for context in contexts.all_of_them() {
        paused.push(pause_one(&context, operation).await?);
    }
    Ok(paused)
}

async fn pause_one(context: &InterpreterContext, operation: &'static str) -> Result<Paused> {
    if let Some(paused) = context.pause().await {
        return Ok(paused);
    }
    let id = context.id();
    let (message, hint) = if context.is_executing() {
        (format!("code runs in context {id}"), "wait for it, or interrupt it")
    } else {
        (format!("context {id} is busy with another snapshot or a variable"), "wait for that")
    };
    let error = Error::new(ErrorKind::Unavailable, operation, message);
    Err(error.with_retry(Retry::Temporary).with_hint(hint))
}

/// A context like one that was deleted, unless somebody has made it meanwhile.
fn made_again(contexts: &Contexts, context: &Context) -> Result<InterpreterContext> {
    if contexts.find(&context.id).is_none() {
        let mut spec = ContextSpec::default();
        spec.id = Some(context.id.clone());
        spec.cwd.clone_from(&context.cwd);
        spec.env.clone_from(&context.env);
        contexts.create(spec)?;
    }
    contexts.existing(RESTORE, Some(&context.id))
}
