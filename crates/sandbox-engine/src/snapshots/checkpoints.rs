//! Snapshots of one sandbox: taking and restoring them.
//!
//! Files and variables are stored on disk, for every sandbox. Interpreters are checkpointed where the sandbox supports
//! that, and the checkpoints wait in the sandbox itself.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::host::{Checkpoint, PendingCheckpoint};
use crate::interpreter::{
    CheckpointOutcome, Contexts, ExportedVariables, InterpreterContext, SuspendedContext,
    VariableExport,
};
use sandbox_core::{Context, ContextSpec, Error, ErrorKind, Result, SnapshotInfo};
use tokio::time::sleep;

use super::{EngineImage, SnapshotStore, SnapshotWriter, StoredContext, StoredSnapshot};
use crate::base::SandboxBase;
use crate::pause::{pause_context, pause_contexts};

const CREATE: &str = "create_snapshot";
const RESTORE: &str = "restore_snapshot";

/// Maximum number of checkpoints that one sandbox keeps. Each holds the memory that has changed since.
const MAX_CHECKPOINTS: usize = 8;

/// Head start of code that was suspended, before the rest is stored. With few processors the code would wait again for
/// that work.
const HEAD_START: Duration = Duration::from_millis(2);

/// The snapshots of a sandbox.
#[derive(Debug)]
pub struct Snapshots {
    store: SnapshotStore,
    /// The version of its Python.
    python: Option<String>,
    /// Modules that its interpreters have from the start.
    preimport: Vec<String>,
    /// Modules that its interpreters have because the sandbox was created from a template.
    imports: Vec<String>,
    /// Checkpoints of the snapshots that were taken of this sandbox.
    copies: Mutex<Vec<ContextCheckpoint>>,
}

/// The checkpoint of one context.
#[derive(Clone, Debug)]
struct ContextCheckpoint {
    /// The id of its snapshot.
    snapshot: String,
    context: Context,
    copy: Arc<dyn Checkpoint>,
}

impl Snapshots {
    /// Keeps the snapshots of a sandbox in that store. Its interpreters are of that Python, and have those modules from
    /// the start.
    pub fn new(store: SnapshotStore, python: Option<String>, preimport: Vec<String>) -> Self {
        Self { store, python, preimport, imports: Vec::new(), copies: Mutex::default() }
    }

    /// Adds modules that its interpreters have because a template had them.
    #[must_use]
    pub fn with_imports(mut self, imports: &[String]) -> Self {
        self.imports = imports.to_vec();
        self
    }

    /// Returns the store.
    pub fn store(&self) -> &SnapshotStore {
        &self.store
    }

    /// Returns the version of its Python.
    pub fn python(&self) -> Option<&str> {
        self.python.as_deref()
    }

    fn copies(&self) -> MutexGuard<'_, Vec<ContextCheckpoint>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the checkpoints of a snapshot that can be restored.
    fn alive_of(&self, snapshot: &str) -> Vec<ContextCheckpoint> {
        let copies = self.copies();
        let alive = copies.iter().filter(|kept| kept.snapshot == snapshot && kept.copy.is_alive());
        alive.cloned().collect()
    }

    /// Returns the contexts of which a snapshot has a checkpoint here.
    pub fn contexts_of(&self, snapshot: &str) -> Vec<String> {
        self.alive_of(snapshot).into_iter().map(|kept| kept.context.id).collect()
    }

    /// Drops the checkpoints of a snapshot.
    pub fn forget(&self, snapshot: &str) {
        self.copies().retain(|kept| kept.snapshot != snapshot);
    }

    /// Returns the snapshots that have checkpoints here, and that another process has deleted.
    fn deleted(&self) -> Result<Vec<String>> {
        if self.copies().is_empty() {
            return Ok(Vec::new());
        }
        let stored = self.store.list(CREATE)?;
        let copies = self.copies();
        let deleted = copies.iter().map(|kept| &kept.snapshot);
        let deleted = deleted.filter(|&id| stored.iter().all(|stored| stored.info.id != *id));
        Ok(deleted.cloned().collect())
    }

    /// Drops the checkpoints that can be restored no more.
    fn tidy(&self, deleted: &[String]) {
        self.copies().retain(|kept| is_wanted(kept, deleted));
    }

    /// Starts a checkpoint of each interpreter. Reports in `info` each one that has none.
    async fn copy_interpreters(
        &self,
        deleted: &[String],
        paused: &mut [SuspendedContext],
        info: &mut SnapshotInfo,
    ) -> Result<Vec<(String, Box<dyn PendingCheckpoint>)>> {
        let kept = self.copies().iter().filter(|kept| is_wanted(kept, deleted)).count();
        let mut room = MAX_CHECKPOINTS.saturating_sub(kept);
        let mut copies = Vec::new();
        for one in paused.iter_mut().filter(|one| one.has_interpreter()) {
            let copied = match room {
                0 => CheckpointOutcome::None(format!(
                    "the sandbox keeps {MAX_CHECKPOINTS} already; delete snapshots that are not needed"
                )),
                _ => one.checkpoint().await?,
            };
            match copied {
                CheckpointOutcome::Pending(copy, notes) => {
                    copies.push((one.id().to_owned(), copy));
                    room -= 1;
                    info.left_out.extend(
                        notes.into_iter().map(|note| format!("of context {}: {note}", one.id())),
                    );
                }
                CheckpointOutcome::None(why) => info.left_out.push(no_copy(one.id(), &why)),
            }
        }
        Ok(copies)
    }
}

fn is_wanted(kept: &ContextCheckpoint, deleted: &[String]) -> bool {
    kept.copy.is_alive() && !deleted.contains(&kept.snapshot)
}

/// Waits for the checkpoints, each of which exports its variables as well. Reports in `info` what does not come.
async fn take_in(
    copies: Vec<(String, Box<dyn PendingCheckpoint>)>,
    described: &[Context],
    export: &mut Vec<(Context, VariableExport)>,
    info: &mut SnapshotInfo,
) -> Vec<(Context, Arc<dyn Checkpoint>)> {
    let mut kept = Vec::new();
    for (id, expected) in copies {
        let context = description_of(described, &id);
        let made = expected
            .ready()
            .await
            .and_then(|copy| Ok((VariableExport::from_checkpoint(&*copy)?, copy)));
        match made {
            Ok((variables, copy)) => {
                export.push((context.clone(), variables));
                kept.push((context, copy));
            }
            Err(error) => {
                let why = error.to_string();
                info.left_out.push(no_copy(&id, &why));
                info.left_out.push(for_others(&id, &all_variables(&why)));
            }
        }
    }
    kept
}

/// Has the other interpreters export their variables. Reports in `info` each one that does not.
async fn store_variables(
    described: &[Context],
    paused: &mut [SuspendedContext],
    copies: &[(String, Box<dyn PendingCheckpoint>)],
    info: &mut SnapshotInfo,
) -> Result<Vec<(Context, VariableExport)>> {
    let mut all = Vec::new();
    for one in paused.iter_mut().filter(|one| one.has_interpreter()) {
        if copies.iter().any(|(id, _)| id == one.id()) {
            continue;
        }
        match one.export_variables().await? {
            Ok(export) => all.push((description_of(described, one.id()), export)),
            Err(why) => info.left_out.push(for_others(one.id(), &all_variables(&why))),
        }
    }
    Ok(all)
}

/// Writes variables to disk. Reports in `info` what cannot be written.
async fn write_variables(
    writer: &mut SnapshotWriter,
    export: Vec<(Context, VariableExport)>,
    info: &mut SnapshotInfo,
) {
    for (context, export) in export {
        let mut notes = match export.into_variables().await {
            Ok(ExportedVariables { count: 0, left_out, imported, .. }) => {
                writer.note_imports(&imported);
                left_out
            }
            Ok(ExportedVariables { left_out, imported, content, .. }) => {
                writer.note_imports(&imported);
                let written = writer.write_variables(CREATE, &context, left_out.clone(), content);
                match written.await {
                    Ok(()) => left_out,
                    Err(error) => vec![all_variables(&error.to_string())],
                }
            }
            Err(why) => vec![all_variables(&why)],
        };
        if !context.env.is_empty() {
            notes.push("its environment variables".to_owned());
        }
        info.left_out.extend(notes.iter().map(|note| for_others(&context.id, note)));
    }
}

fn no_copy(id: &str, why: &str) -> String {
    format!("a copy of the interpreter of context {id}: {why}")
}

fn all_variables(why: &str) -> String {
    format!("all variables: {why}")
}

fn description_of(described: &[Context], id: &str) -> Context {
    let found = described.iter().find(|context| context.id == id);
    found.cloned().unwrap_or_else(|| Context { id: id.to_owned(), ..Context::default() })
}

fn for_others(id: &str, what: &str) -> String {
    format!("for other sandboxes, of context {id}: {what}")
}

/// Loads the variables of a snapshot into its contexts, in existing interpreters or in new ones.
///
/// # Errors
/// `InvalidArgument` for variables that cannot be read here, `NotFound` when the snapshot was deleted meanwhile.
pub(crate) async fn load_variables(contexts: &Contexts, stored: &StoredSnapshot) -> Result<()> {
    for one in stored.variables() {
        let context = made_again(contexts, &as_context(one))?;
        load_into(&mut pause_context(&context, "create").await?, "create", stored, one).await?;
    }
    Ok(())
}

async fn load_into(
    paused: &mut SuspendedContext,
    operation: &'static str,
    stored: &StoredSnapshot,
    context: &StoredContext,
) -> Result<()> {
    let content = stored.read_variables(operation, context).await?;
    paused.import_variables(content).await.map_err(|error| match error.kind() {
        ErrorKind::InvalidArgument => {
            let StoredContext { id, .. } = context;
            let message = format!(
                "of {:?} has variables of context {id} that cannot be read here: {}",
                stored.info.name,
                error.message()
            );
            Error::invalid("snapshot", message)
                .with_hint("take the snapshot again without what cannot be read")
        }
        // Loading may run code of the variables' types.
        ErrorKind::Protocol => {
            let (name, why) = (&stored.info.name, error.message());
            let message =
                format!("the variables of snapshot {name:?} ended their interpreter: {why}");
            Error::new(ErrorKind::Protocol, operation, message)
                .with_hint("take the snapshot again without what ends it")
        }
        _ => error,
    })
}

fn as_context(stored: &StoredContext) -> Context {
    Context { id: stored.id.clone(), cwd: stored.cwd.clone(), ..Context::default() }
}

impl Snapshots {
    /// Takes a snapshot of a sandbox that has not ended. `image` is an image of an engine with the changes outside of the
    /// directories of a snapshot.
    ///
    /// # Errors
    /// Those of [`SnapshotOps::create_snapshot`](sandbox_core::SnapshotOps::create_snapshot).
    pub async fn create(
        &self,
        base: &SandboxBase,
        contexts: &Contexts,
        name: &str,
        description: &str,
        image: Option<EngineImage>,
    ) -> Result<SnapshotInfo> {
        base.check_snapshot(CREATE)?;
        self.store.check_free(CREATE, name)?;
        let _in_use = base.expiry.in_use();
        // This reads the disk, so it comes before any context is suspended.
        let deleted = self.deleted()?;
        let mut paused = pause_contexts(contexts, CREATE).await?;
        let mut info = SnapshotInfo { description: description.into(), ..SnapshotInfo::default() };
        let described = contexts.list();
        let files = base.read_files(CREATE).await?;
        let in_memory = files.in_memory;
        let mut store_files = pin!(async {
            let mut writer = self.store.begin(CREATE, name)?;
            writer.image = image;
            let directories = files.store(CREATE, &mut writer).await?;
            Result::Ok((writer, directories))
        });
        // Before anything is forked: a processor that forks does nothing else, and storing waits for many small
        // operations.
        let stored = if in_memory { None } else { Some(store_files.as_mut().await?) };
        let copies = self.copy_interpreters(&deleted, &mut paused, &mut info).await?;
        let mut export = store_variables(&described, &mut paused, &copies, &mut info).await?;
        // Everything that is still missing is in memory or in checkpoints, so that code continues first.
        drop(paused);
        sleep(HEAD_START).await;
        let (mut writer, directories) = match stored {
            Some(stored) => stored,
            None => store_files.await?,
        };
        info.directories = directories;
        let copies = take_in(copies, &described, &mut export, &mut info).await;
        writer.note_imports(&self.imports);
        write_variables(&mut writer, export, &mut info).await;
        let (python, preimport) = (self.python.clone(), self.preimport.clone());
        let StoredSnapshot { info, .. } =
            base.finish(CREATE, writer, python, preimport, info).await?;
        // Not earlier: dropping them frees their memory, which takes time.
        self.tidy(&deleted);
        for (context, copy) in copies {
            copy.prepare();
            self.copies().push(ContextCheckpoint { snapshot: info.id.clone(), context, copy });
        }
        Ok(SnapshotInfo { contexts: self.contexts_of(&info.id), ..info })
    }

    /// Restores a snapshot in a sandbox that has not ended.
    ///
    /// # Errors
    /// Those of [`SnapshotOps::restore_snapshot`](sandbox_core::SnapshotOps::restore_snapshot).
    pub async fn restore(
        &self,
        base: &SandboxBase,
        contexts: &Contexts,
        name: &str,
    ) -> Result<SnapshotInfo> {
        let stored = self.store.find(RESTORE, name)?;
        let _in_use = base.expiry.in_use();
        let kept = self.alive_of(&stored.info.id);
        let mut paused = pause_contexts(contexts, RESTORE).await?;
        let still = async {
            for context in &mut paused {
                context.end().await;
            }
            base.commands.end_all().await
        };
        base.replace(RESTORE, &stored, self.python(), still).await?;
        let mut info = SnapshotInfo { left_out: Vec::new(), ..stored.info.clone() };
        if stored.image().is_some() {
            info.left_out.push("files of the image: they are changed only in new sandboxes".into());
        }
        let is_copied = |id: &str| kept.iter().any(|kept| kept.context.id == id);
        for ContextCheckpoint { context, copy, .. } in &kept {
            let one = among(&mut paused, contexts, context).await?;
            let woken = one.restore(&**copy).await;
            let variables = stored.variables().iter().find(|stored| stored.id == context.id);
            match (woken, variables) {
                // Code can end a checkpoint, or stop it.
                (Err(error), Some(variables)) => {
                    if read(one, &stored, variables, &mut info).await {
                        info.left_out.push(read_instead(&context.id, &error));
                    }
                }
                (woken, _) => tell(&mut info, &context.id, woken),
            }
        }
        for variables in stored.variables().iter().filter(|stored| !is_copied(&stored.id)) {
            let one = among(&mut paused, contexts, &as_context(variables)).await?;
            read(one, &stored, variables, &mut info).await;
        }
        Ok(info)
    }
}

/// Has a new interpreter load the variables of a context, and reports which it lacks. Returns whether it has the others.
async fn read(
    paused: &mut SuspendedContext,
    stored: &StoredSnapshot,
    variables: &StoredContext,
    info: &mut SnapshotInfo,
) -> bool {
    let loaded = load_into(paused, RESTORE, stored, variables).await;
    if loaded.is_err() {
        // It may have loaded some of them.
        paused.end().await;
    }
    let missing = variables.left_out.iter();
    info.left_out.extend(missing.map(|note| format!("of context {}: {note}", variables.id)));
    let has_them = loaded.is_ok();
    tell(info, &variables.id, loaded);
    has_them
}

fn read_instead(id: &str, why: &Error) -> String {
    format!(
        "the interpreter of context {id} as it was: {}; a new one has its variables",
        why.message()
    )
}

/// Reports in `info` whether the interpreter of a context was restored.
fn tell(info: &mut SnapshotInfo, id: &str, came: Result<()>) {
    match came {
        Ok(()) => info.contexts.push(id.to_owned()),
        Err(error) => info
            .left_out
            .push(format!("the interpreter of context {id} with its variables: {error}")),
    }
}

/// Returns the suspended context with that id, and suspends it when it is missing.
async fn among<'a>(
    paused: &'a mut Vec<SuspendedContext>,
    contexts: &Contexts,
    context: &Context,
) -> Result<&'a mut SuspendedContext> {
    let known = match paused.iter().position(|one| one.id() == context.id) {
        Some(known) => known,
        None => {
            paused.push(pause_context(&made_again(contexts, context)?, RESTORE).await?);
            paused.len() - 1
        }
    };
    Ok(&mut paused[known])
}

/// Makes a context like one that was deleted, unless it was made meanwhile.
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
