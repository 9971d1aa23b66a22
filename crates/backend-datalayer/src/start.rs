//! From what is asked for to a runtime that answers.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use jupyter_protocol::websocket::{ServerClient, Token};
use sandbox_core::{
    CallContext, CreateSpec, Effect, Error, ErrorKind, FailureKind, Result, Retry, SandboxStatus,
    Secret, random_hex,
};
use sandbox_kernel::server::{KernelEnvironment, keeper};
use tokio::sync::oneshot;

use crate::access::address;
use crate::api::{Api, NewRuntime};
use crate::environment::choose;
use crate::kernels::first;
use crate::lease::{Lease, is_over, status};
use crate::notes::Note;
use crate::reservation::{DEFAULT_LIFETIME, credits, lifetime};
use crate::resources::Size;
use crate::source::Source;
use crate::turn::Turns;
use crate::wire::{Environment, Runtime};

/// How often a create is sent whose outcome nobody knows.
const MOST_CREATES: u32 = 3;
/// How long who drops a create waits until nothing is left of it.
const MOST_WAIT: Duration = Duration::from_secs(10);
/// How often the service is asked how a start goes on.
const ASK: Duration = Duration::from_secs(2);

/// What is made, once everything is known.
#[derive(Debug)]
struct Plan {
    new: NewRuntime,
    environment: Environment,
    note: Note,
    lifetime: Duration,
    own: bool,
    env: Vec<(String, Secret)>,
    cwd: Option<String>,
}

/// A runtime that can be used, and where its first kernel is.
pub(crate) type Started = (Arc<Lease>, KernelEnvironment);

/// Makes a runtime and waits until it can be used. Dropping the future leaves none, and the turns end when none is left.
///
/// # Errors
/// What the service refuses, and `Timeout` or `Unavailable` for a runtime that does not come up, which is deleted.
pub(crate) async fn start(
    source: Arc<Source>,
    call: &CallContext,
    spec: &CreateSpec,
    turns: Turns,
) -> Result<Started> {
    let api = source.api().await?;
    let plan = plan(&api, &source, call, spec).await?;
    Making::begin(source, call.clone(), plan, turns).end().await
}

/// A create, which goes on without whoever asked for it, and leaves nothing then.
struct Making {
    made: oneshot::Receiver<Result<Started>>,
    /// Closed when there is nothing left to do.
    work: mpsc::Receiver<()>,
}

impl Making {
    fn begin(source: Arc<Source>, call: CallContext, plan: Plan, turns: Turns) -> Self {
        let (send, made) = oneshot::channel();
        let (working, work) = mpsc::channel();
        // Not on the runtime of the caller, which may end before the service has answered.
        keeper::spawn(async move {
            make(source, call, plan, send).await;
            // Whoever is next finds it noted, or gone.
            drop((turns, working));
        });
        Self { made, work }
    }

    async fn end(mut self) -> Result<Started> {
        (&mut self.made).await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unexpected, "create", "the create was not finished")
                .with_effect(Effect::Unknown))
        })
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.made.close();
        if let Ok(Ok((lease, _))) = self.made.try_recv() {
            lease.delete_now();
        }
        // This process may be about to end, and what it has asked for would stay. At once where nothing is left to do.
        let _ = self.work.recv_timeout(MOST_WAIT);
    }
}

async fn plan(api: &Api, source: &Source, call: &CallContext, spec: &CreateSpec) -> Result<Plan> {
    let (environments, from, ()) = tokio::try_join!(
        api.environments(call),
        snapshot(api, call, spec.snapshot.as_deref()),
        name_is_free(api, call, spec.name.as_deref()),
    )?;
    let wanted = spec.environment.as_deref().or(source.config.environment.as_deref());
    let environment = choose(&environments, wanted, spec.gpu.as_deref(), Size::asked(spec))?;
    let environment = environment.clone();
    let lifetime = lifetime(spec);
    let own = spec.detached.is_none();
    // What ends with its owner is ended by its owner, and may be told to live longer.
    let reserved = if own { lifetime.max(DEFAULT_LIFETIME) } else { lifetime };
    let new = NewRuntime {
        environment: environment.name.clone(),
        given_name: spec.name.clone().unwrap_or_else(|| format!("sandbox-{}", random_hex(8))),
        credits: credits(environment.rate(), reserved)?,
        from,
    };
    let note = Note {
        tags: spec.tags.clone(),
        key: call.idempotency_key.clone(),
        transient: own,
        terms: spec.reuse_key(),
        isolation: spec.isolation,
        network: spec.network.mode,
        gpu: spec.gpu.clone(),
        cwd: spec.working_dir.clone(),
        env: spec.env.clone(),
        ..Note::default()
    };
    let env = spec.env.iter().map(|(name, value)| (name.clone(), Secret::new(value.as_str())));
    let secrets = spec.secrets.iter().map(|(name, value)| (name.clone(), value.clone()));
    let env = env.chain(secrets).collect();
    Ok(Plan { new, environment, note, lifetime, own, env, cwd: spec.working_dir.clone() })
}

/// The id of a snapshot.
async fn snapshot(api: &Api, call: &CallContext, name: Option<&str>) -> Result<Option<String>> {
    let Some(name) = name else { return Ok(None) };
    let all = api.snapshots(call, "create").await?;
    let found = all.iter().find(|snapshot| snapshot.name == name || snapshot.uid == name);
    let uid = found.map(|snapshot| snapshot.uid.clone()).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|snapshot| snapshot.name.as_str()).collect();
        let message = format!("snapshot {name:?} not found (available: {})", names.join(", "));
        Error::new(ErrorKind::NotFound, "create", message)
    })?;
    Ok(Some(uid))
}

/// Nobody could tell two runtimes of one name apart.
async fn name_is_free(api: &Api, call: &CallContext, name: Option<&str>) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let all = api.runtimes(call, "create").await?;
    match all.iter().find(|other| other.given_name.as_deref() == Some(name) && !is_over(other)) {
        Some(other) => Err(Error::new(
            ErrorKind::AlreadyExists,
            "create",
            format!("the name {name:?} is that of datalayer-runtime/{}", other.id()),
        )
        .with_hint(format!(
            "use another name, or end that one: `sandboxes rm datalayer-runtime/{}`",
            other.id()
        ))),
        None => Ok(()),
    }
}

async fn make(
    source: Arc<Source>,
    call: CallContext,
    plan: Plan,
    mut send: oneshot::Sender<Result<Started>>,
) {
    let reserved = async {
        let api = source.separate_api().await?;
        let record = reserve(&api, &call, &plan.new).await?;
        Ok((api, record))
    };
    let (api, record) = match reserved.await {
        Ok(reserved) => reserved,
        Err(error) => {
            let _ = send.send(Err(error));
            return;
        }
    };
    let patience = source.config.patience();
    let lease = Lease::new(source, record, plan.note, Some(&plan.environment), plan.own);
    let lease = Arc::new(lease);
    let ready = tokio::select! {
        ready = make_usable(&api, &call, &lease, patience, &plan.env, plan.cwd.as_deref()) => ready,
        () = send.closed() => Err(nobody()),
    };
    let at = match ready {
        Ok(at) => at,
        Err(error) => {
            let error = lease.give_up(&api, error).await;
            let _ = send.send(Err(error));
            return;
        }
    };
    lease.end_in(plan.lifetime);
    // A handle that is not taken is the last one, also of what would have stayed.
    if let Err(Ok((lease, _))) = send.send(Ok((lease, at))) {
        let _ = lease.give_up(&api, nobody()).await;
    }
}

fn nobody() -> Error {
    Error::new(ErrorKind::Cancelled, "create", "nobody waits for it")
}

async fn make_usable(
    api: &Api,
    call: &CallContext,
    lease: &Lease,
    patience: Duration,
    env: &[(String, Secret)],
    cwd: Option<&str>,
) -> Result<KernelEnvironment> {
    until_ready(api, call, lease, patience).await?;
    first(lease, env, cwd).await
}

/// Sends the create. When nobody knows what came of it, what was made is found by its name.
async fn reserve(api: &Api, call: &CallContext, new: &NewRuntime) -> Result<Runtime> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let error = match api.create(call, new).await {
            Ok(record) if !record.name().is_empty() => return Ok(record),
            Ok(_) => Error::new(
                ErrorKind::Protocol,
                "create",
                "the service made a runtime without a name",
            )
            .with_effect(Effect::Unknown),
            Err(error) if error.effect() == Effect::NotSent => return Err(error),
            Err(error) => error,
        };
        tracing::info!(%error, name = new.given_name, "looking whether the runtime was made");
        match find(api, call, &new.given_name).await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            // Another one could be a second one.
            Err(looking) => {
                tracing::warn!(%looking, name = new.given_name, "a runtime may be left behind");
                return Err(error.with_hint(
                    "a runtime may have been made: `sandboxes ls -p datalayer-runtime` lists them",
                ));
            }
        }
        if error.retry() != Retry::Temporary || attempt >= MOST_CREATES {
            return Err(error);
        }
    }
}

/// A runtime by the name that only ours can have.
///
/// # Errors
/// When nobody could look at last.
async fn find(api: &Api, call: &CallContext, given_name: &str) -> Result<Option<Runtime>> {
    let mut seen = Ok(None);
    for look in 0..3 {
        tokio::time::sleep(Duration::from_millis(250 << look)).await;
        let all = match api.runtimes(call, "create").await {
            Ok(all) => all,
            Err(error) => {
                seen = Err(error);
                continue;
            }
        };
        seen = Ok(None);
        let own =
            |record: &Runtime| record.given_name.as_deref() == Some(given_name) && !is_over(record);
        if let Some(found) = all.into_iter().find(|record| own(record)) {
            return Ok(Some(found));
        }
    }
    seen
}

/// Waits until the Jupyter Server of a runtime answers.
pub(crate) async fn until_ready(
    api: &Api,
    call: &CallContext,
    lease: &Lease,
    patience: Duration,
) -> Result<()> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(100);
    let mut asked = Instant::now();
    loop {
        let record = lease.record();
        let why = match answers(&record).await {
            Ok(()) => {
                tracing::info!(
                    name = record.name(),
                    seconds = begun.elapsed().as_secs_f64(),
                    "the runtime is ready"
                );
                return Ok(());
            }
            Err(error) if error.retry() == Retry::Never => return Err(error),
            Err(error) => error,
        };
        let late = call.deadline.is_some_and(|deadline| Instant::now() > deadline);
        if begun.elapsed() > patience || late {
            let message = format!(
                "the runtime was not usable after {:.0} s: {why}",
                begun.elapsed().as_secs_f64()
            );
            return Err(Error::new(ErrorKind::Timeout, "create", message).with_hint(
                "try again, or wait longer: the provider option `start_timeout`, in seconds",
            ));
        }
        tracing::info!(name = record.name(), seconds = begun.elapsed().as_secs_f64(), %why, "the runtime is starting");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(ASK);
        let incomplete = record.ingress.is_none() || record.token.is_none();
        if incomplete || asked.elapsed() > ASK {
            asked = Instant::now();
            look_again(api, call, lease, record.name()).await?;
        }
    }
}

async fn look_again(api: &Api, call: &CallContext, lease: &Lease, name: &str) -> Result<()> {
    let failed = |message: String| Err(Error::new(ErrorKind::Unavailable, "create", message));
    match api.runtime(call, "create", name).await {
        Ok(found) => match status(&found) {
            SandboxStatus::Error => failed("the service could not start the runtime".to_owned()),
            SandboxStatus::Terminated | SandboxStatus::Stopping => {
                failed("the runtime ended while it started".to_owned())
            }
            _ => {
                lease.update(found);
                Ok(())
            }
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            lease.over(FailureKind::Terminated);
            failed("the runtime vanished while it started".to_owned())
        }
        Err(error) if error.retry() == Retry::Never => Err(error),
        Err(_) => Ok(()),
    }
}

/// Whether a runtime's server lets us in.
async fn answers(record: &Runtime) -> Result<()> {
    let server = server(record)?;
    match tokio::time::timeout(Duration::from_secs(10), server.status()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(not_yet(error.to_string())),
        Err(_) => Err(not_yet("it does not answer".to_owned())),
    }
}

/// The Jupyter Server of a runtime.
///
/// # Errors
/// `Unavailable` as long as the service has not told where it is; `Protocol` for a place that a token must not go to.
pub(crate) fn server(record: &Runtime) -> Result<ServerClient> {
    let (Some(ingress), Some(token)) = (record.ingress.as_deref(), &record.token) else {
        return Err(not_yet("the service has not said where it is".to_owned()));
    };
    let wrong = |why: String| {
        Error::new(
            ErrorKind::Protocol,
            "connect",
            format!("the address of the runtime is none: {why}"),
        )
    };
    let address = address("ingress", ingress).map_err(|error| wrong(error.to_string()))?;
    ServerClient::new(address.as_str(), Token::new(token.expose()))
        .map_err(|error| wrong(error.to_string()))
}

fn not_yet(why: String) -> Error {
    Error::new(ErrorKind::Unavailable, "connect", why).with_retry(Retry::Temporary)
}
