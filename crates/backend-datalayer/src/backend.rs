//! Where cloud sandboxes come from.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{
    Backend, CallContext, Capabilities, Check, CreateSpec, Error, ErrorKind, Health, Instance,
    ListQuery, MAX_DURATION, Page, Result, SandboxEnvironment, SandboxId, SandboxInfo,
    SandboxStatus, SnapshotInfo, Variant,
};
use sandbox_engine::interpreter::DEFAULT_CONTEXT;

use crate::api::Api;
use crate::config::DatalayerConfig;
use crate::instance::DatalayerInstance;
use crate::lease::{Lease, describe, is_over, status};
use crate::notes::{Notes, SnapshotNote};
use crate::resources;
use crate::source::Source;
use crate::start::start;
use crate::turn::Turns;
use crate::wire::{Checkpoint, Environment, Runtime, Snapshot};

/// Entries of a page that asks for no number.
const PAGE: usize = 100;

/// Makes sandboxes of Datalayer runtimes. Making the backend asks nobody anything.
#[derive(Debug, Default)]
pub struct DatalayerBackend {
    source: Arc<Source>,
}

impl DatalayerBackend {
    /// A backend with defaults of its own.
    pub fn new(config: DatalayerConfig) -> Self {
        Self { source: Arc::new(Source::new(config)) }
    }

    /// A runtime by its id, its name, the name somebody gave it, or the beginning of an id that no other has.
    async fn find(&self, api: &Api, call: &CallContext, wanted: &str) -> Result<Runtime> {
        let all = api.runtimes(call, "attach").await?;
        let all: Vec<_> = all.into_iter().filter(|record| !is_over(record)).collect();
        let exact = |record: &&Runtime| record.uid == wanted || record.name() == wanted;
        let named = |record: &&Runtime| record.given_name.as_deref() == Some(wanted);
        let begins = |record: &&Runtime| record.id().starts_with(wanted);
        if let Some(found) = all.iter().find(exact) {
            return Ok(found.clone());
        }
        let mut found: Vec<_> = all.iter().filter(named).collect();
        if found.is_empty() {
            found = all.iter().filter(begins).collect();
        }
        match found.as_slice() {
            [one] => Ok((*one).clone()),
            [] => Err(Error::new(
                ErrorKind::NotFound,
                "attach",
                format!("no sandbox of datalayer-runtime has the id or the name {wanted:?}"),
            )
            .with_hint("`sandboxes ls -p datalayer-runtime` lists them")),
            several => {
                let ids: Vec<_> = several.iter().map(|record| record.id()).collect();
                Err(Error::invalid(
                    "id",
                    format!("{wanted:?} is that of several: {}", ids.join(", ")),
                ))
            }
        }
    }

    /// The sandbox that a create with the same key has made, with the same tags.
    async fn made_before(
        &self,
        call: &CallContext,
        spec: &CreateSpec,
    ) -> Result<Option<Arc<dyn Instance>>> {
        if call.idempotency_key.is_none() {
            return Ok(None);
        }
        let mut query = ListQuery::default();
        (query.tags, query.limit) = (spec.tags.clone(), Some(usize::MAX));
        let notes = Notes::of(&self.source.config);
        for info in self.list(call, query).await?.items {
            let id: SandboxId = info.id.parse()?;
            let is_it = notes.read(id.local()).is_some_and(|note| note.key == call.idempotency_key);
            if !is_it || info.status != SandboxStatus::Running {
                continue;
            }
            match self.attach(call, &id).await {
                // It ended meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                made => return made.map(Some),
            }
        }
        Ok(None)
    }
}

/// What the service can do. What is not here it has no request for, and it is refused.
pub(crate) fn capabilities() -> Capabilities {
    Capabilities {
        run_code: true,
        run_stdin: true,
        run_script: true,
        rich_results: true,
        live_output: true,
        contexts: true,
        variables: true,
        interrupt: true,
        restart: true,
        tools: true,
        commands: true,
        command_stdin: true,
        command_pty: true,
        command_background: true,
        install_python: true,
        files: true,
        watch: true,
        set_tags: true,
        set_lifetime: true,
        pause: true,
        snapshot: true,
        detached: true,
        lifetime: true,
        gpu: true,
        idempotent_create: true,
        environments: true,
        sizes: true,
        network_all: true,
        isolation_strict: true,
        isolation_best_effort: true,
        ..Capabilities::default()
    }
}

#[async_trait]
impl Backend for DatalayerBackend {
    fn variant(&self) -> Variant {
        Variant::DATALAYER_RUNTIME
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        capabilities().check(&spec).map_err(|error| {
            error.with_context("variant", Variant::DATALAYER_RUNTIME.as_str()).with_hint(
                "the service has no request for that; it has lifetime, gpu, and environments with their cpu, memory and disk",
            )
        })?;
        let source = if spec.provider_options.is_empty() {
            Arc::clone(&self.source)
        } else {
            Arc::new(Source::new(self.source.config.with_options(&spec.provider_options)?))
        };
        let key = call.idempotency_key.as_ref().map(|key| format!("key:{key}"));
        let name = spec.name.as_ref().map(|name| format!("name:{name}"));
        let turns = Turns::of(&source.config, call, "create", key.into_iter().chain(name)).await?;
        let chosen = Self { source: Arc::clone(&source) };
        if let Some(made) = chosen.made_before(call, &spec).await? {
            return Ok(made);
        }
        let (lease, at) = start(source, call, &spec, turns).await?;
        lease.change_note(|note| note.cwd = Some(at.cwd.clone()));
        let mut env = spec.env.clone();
        let secrets = spec.secrets.iter();
        env.extend(secrets.map(|(name, value)| (name.clone(), value.expose().to_owned())));
        Ok(Arc::new(DatalayerInstance::new(lease, at.cwd.clone(), env, Some(at))))
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let api = self.source.api().await?;
        let (found, environments, checkpoints) = tokio::join!(
            self.find(&api, call, id.local()),
            api.environments(call),
            api.checkpoints(call)
        );
        let (found, checkpoints) = (found?, checkpoints?);
        // The list need not have the token.
        let record = api.runtime(call, "attach", found.name()).await?;
        let environments = environments.unwrap_or_default();
        let environment =
            environments.iter().find(|one| Some(one.name.as_str()) == record.environment());
        let note = Notes::of(&self.source.config).read(record.id()).unwrap_or_default();
        let paused = is_paused(&record, &checkpoints);
        let lease = Lease::new(Arc::clone(&self.source), record, note, environment, false);
        let lease = Arc::new(lease);
        lease.set_paused(paused);
        if let Some(left) = lease.info().remaining_time() {
            lease.end_in(Duration::try_from_secs_f64(left).unwrap_or(MAX_DURATION));
        }
        // Nothing is started or waited for before code runs, so that one that does not come up can be ended.
        let (env, cwd) = lease.begins_with();
        let cwd = cwd.unwrap_or_else(|| ".".into());
        Ok(Arc::new(DatalayerInstance::new(lease, cwd, env, None)))
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let api = self.source.api().await?;
        let (records, checkpoints, environments) =
            tokio::join!(api.runtimes(call, "list"), api.checkpoints(call), api.environments(call));
        let (mut records, checkpoints) = (records?, checkpoints?);
        // Prices and sizes are nice to have, and no reason to show nothing.
        let environments = environments.unwrap_or_default();
        records.sort_by(|a, b| a.id().cmp(b.id()));
        let notes = Notes::of(&self.source.config);
        notes.tidy();
        let listed = records.iter().filter(|record| !record.id().is_empty()).map(|record| {
            let mut info = listed(record, &notes, &environments);
            if is_paused(record, &checkpoints) {
                info.status = SandboxStatus::Paused;
            }
            (record.id(), info)
        });
        let has = |info: &SandboxInfo| {
            query.tags.iter().all(|(key, value)| info.tags.get(key) == Some(value))
        };
        let after = query.cursor.as_deref().unwrap_or_default();
        let mut rest = listed.filter(|(id, info)| *id > after && has(info));
        let limit = query.limit.unwrap_or(PAGE).max(1);
        let page: Vec<_> = rest.by_ref().take(limit).collect();
        let next = rest.next().and(page.last()).map(|(id, _)| (*id).to_owned());
        Ok(Page { items: page.into_iter().map(|(_, info)| info).collect(), next })
    }

    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let all = self.source.api().await?.environments(call).await?;
        Ok(all.iter().map(Environment::listed).collect())
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        let api = self.source.api().await?;
        let mut health = Health::default();
        let key = api.client.access.key("health");
        health.checks.push(match &key {
            Ok(key) => passed("credentials", format!("an API key from {}", key.source)),
            Err(error) => failed("credentials", error),
        });
        if key.is_ok() {
            let (environments, usage) = tokio::join!(api.environments(call), api.usage(call));
            health.checks.push(match &environments {
                Ok(all) => {
                    let at = api.client.access.runtimes.as_str().trim_end_matches('/');
                    passed("service", format!("{} environments at {at}", all.len()))
                }
                Err(error) => failed("service", error),
            });
            // Who cannot see the account may still be able to use it.
            health.checks.extend(usage.ok().map(|usage| match usage.left() {
                left if left > 0.0 => passed("credits", format!("{left:.2} left")),
                _ => Check {
                    fix: Some("add credits to the account".into()),
                    ok: false,
                    ..passed("credits", "none left".into())
                },
            }));
        }
        let broken = health.checks.iter().find(|check| !check.ok);
        health.usable = broken.is_none();
        health.fix = broken.and_then(|check| check.fix.clone());
        health.detail = broken.map_or_else(
            || "Datalayer runtimes in the cloud".to_owned(),
            |check| format!("{}: {}", check.name, check.detail),
        );
        Ok(health)
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        let all = self.source.api().await?.snapshots(call, "list_snapshots").await?;
        let notes = Notes::of_snapshots(&self.source.config);
        notes.tidy();
        Ok(all.iter().map(|snapshot| stored(snapshot, &notes)).collect())
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        let api = self.source.api().await?;
        let all = api.snapshots(call, "delete_snapshot").await?;
        let found = all.iter().find(|snapshot| snapshot.name == name || snapshot.uid == name);
        let found = found.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "delete_snapshot",
                format!("there is no snapshot {name:?}"),
            )
        })?;
        api.delete_snapshot(call, &found.uid).await?;
        Notes::of_snapshots(&self.source.config).forget(&found.uid);
        Ok(())
    }
}

/// Whether it is held. The records of that are the service's only word for it in some versions.
pub(crate) fn is_paused(record: &Runtime, checkpoints: &[Checkpoint]) -> bool {
    let own = |checkpoint: &&Checkpoint| {
        [&record.uid, record.name()].contains(&checkpoint.runtime_uid.as_str())
    };
    match status(record) {
        SandboxStatus::Paused => true,
        SandboxStatus::Running => {
            checkpoints.iter().filter(own).any(|checkpoint| checkpoint.status == "paused")
        }
        _ => false,
    }
}

fn listed(record: &Runtime, notes: &Notes, environments: &[Environment]) -> SandboxInfo {
    let note = notes.read(record.id());
    let environment =
        environments.iter().find(|one| Some(one.name.as_str()) == record.environment());
    let gpu = note.as_ref().and_then(|note| note.gpu.as_deref());
    describe(record, note.as_ref(), environment.map(|one| resources::of(one, gpu)))
}

/// A snapshot as it is listed. The service does not say of which sandbox it is.
pub(crate) fn stored(snapshot: &Snapshot, notes: &Notes<SnapshotNote>) -> SnapshotInfo {
    let note = notes.read(&snapshot.uid).unwrap_or_default();
    SnapshotInfo {
        id: snapshot.uid.clone(),
        name: snapshot.name.clone(),
        sandbox_id: note.sandbox_id,
        created_at: snapshot.updated_at.unwrap_or_default(),
        size: snapshot.size.unwrap_or_default().max(0.0) as u64,
        description: snapshot.description.clone().unwrap_or_default(),
        directories: Vec::new(),
        // No sandbox goes back to one.
        contexts: Vec::new(),
        // The service keeps the state of the kernel.
        variables: vec![DEFAULT_CONTEXT.to_owned()],
        left_out: Vec::new(),
    }
}

fn passed(name: &str, detail: String) -> Check {
    Check { name: name.to_owned(), ok: true, detail, fix: None }
}

fn failed(name: &str, error: &Error) -> Check {
    let fix = error.hint().map(str::to_owned);
    Check { name: name.to_owned(), ok: false, detail: error.to_string(), fix }
}
