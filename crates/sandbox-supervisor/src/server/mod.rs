//! The supervisor: the process that owns detached sandboxes, which outlive the process that created them.
//!
//! There is one per user. It is started when the first detached sandbox is created, and ends after a minute without one.
//! Its sandboxes are attached to it, so they end with it, however it ends.

mod backend;
mod log_buffer;
mod logged_instance;
mod registry;
mod singleton;
mod suggest;

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::client::{RETIRE, SERVE, STATUS, SupervisorPaths, VARIABLES, dependent_variables};
use rustix::process::{Resource, geteuid, getrlimit, setrlimit, setsid};
use sandbox_core::{Backend, Error, ErrorKind, InstanceWrapper as _, Layer as _, Result, Variant};
use serde_json::{Map, Value, json};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, sleep, timeout};
use tracing::{debug, info, warn};

use self::backend::SupervisorLayer;
pub use self::logged_instance::UNLOGGED_RUN_PREFIX;
use self::registry::SandboxTable;
use self::singleton::SingletonLock;

/// Maximum time for the handshake of a client.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of the list of ended sandboxes, in bytes. The hello of the server, which has the list, is at most 64 KiB.
const MAX_ENDED_LIST_SIZE: usize = 48 << 10;
/// Interval between sweeps of the table.
const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Makes the backend of a variant, or of the default one. Its sandboxes end with this process.
pub type BackendFactory = Arc<dyn Fn(Option<Variant>) -> Result<Arc<dyn Backend>> + Send + Sync>;

/// Serves as the supervisor of this user until there has been no sandbox for `idle`, or a signal ends the process.
///
/// Returns false when another supervisor serves already.
///
/// # Errors
/// Those of [`SupervisorPaths::for_current_user`]; `Unexpected` when the socket or the lock cannot be used.
pub async fn supervise(factory: BackendFactory, idle: Duration) -> Result<bool> {
    raise_open_file_limit();
    let paths = SupervisorPaths::for_current_user()?;
    let socket = paths.socket();
    let Some(mut singleton) = SingletonLock::acquire(paths).await? else { return Ok(false) };
    info!(socket = %socket.display(), "serving");
    let table = Arc::new(SandboxTable::new(factory));
    let served = serve(&mut singleton, &table, idle).await;
    let lock = singleton.release();
    table.end_all().await;
    drop(lock);
    served.map_err(|error| host_error("accepting connections", error))?;
    Ok(true)
}

/// The error of a failed operation of this host.
fn host_error(operation: &'static str, error: io::Error) -> Error {
    Error::new(ErrorKind::Unexpected, "run", format!("{operation} failed")).with_source(error)
}

/// Raises the limit of open files to its maximum: a few sandboxes with some connections each reach the default.
fn raise_open_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        warn!(%error, "cannot raise the limit of open files");
    }
}

/// Starts this program as `sandboxes supervisor`, in a session of its own and without a terminal.
///
/// # Errors
/// Those of starting a process.
pub fn launch() -> io::Result<()> {
    // This fails for the leader of a process group, which has its own session or keeps its terminal.
    let session = setsid();
    debug!(?session, "launching");
    Command::new("/proc/self/exe")
        .arg0("sandboxes")
        .arg("supervisor")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(drop)
}

async fn serve(
    singleton: &mut SingletonLock,
    table: &Arc<SandboxTable>,
    idle: Duration,
) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // An interval, so that sweeps also happen under a constant load of clients.
    let mut sweep = interval(SWEEP_INTERVAL);
    loop {
        tokio::select! {
            accepted = singleton.accept() => match accepted {
                Ok(stream) => {
                    tokio::spawn(handle_connection(stream, Arc::clone(table)));
                }
                // A temporary failure, such as too many open files.
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(SWEEP_INTERVAL).await;
                }
            },
            _ = sweep.tick() => {
                singleton.restore();
                table.sweep().await;
            }
            () = table.wait_retired() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
        if table.idle_for() >= idle && table.retire() {
            return Ok(());
        }
    }
}

async fn handle_connection(stream: UnixStream, table: Arc<SandboxTable>) {
    let _connection = table.track_connection();
    if let Err(error) = serve_connection(stream, &table).await {
        debug!(%error, "a connection ended");
    }
}

async fn serve_connection(stream: UnixStream, table: &Arc<SandboxTable>) -> Result<()> {
    let peer = stream.peer_cred().ok().map(|peer| peer.uid());
    if peer != Some(geteuid().as_raw()) {
        warn!(?peer, "refused a process of another user");
        return Ok(());
    }
    let Ok(accepted) = timeout(HANDSHAKE_TIMEOUT, sandbox_rpc::accept(stream)).await else {
        return Ok(());
    };
    let accepted = accepted?;
    let wants = accepted.hello().wants.clone();
    let mut about = about(table);
    let variant = wants.strip_prefix(SERVE).unwrap_or(Variant::LOCAL_EVAL.as_str()).parse();
    let backend = variant.and_then(|variant| table.backend(variant));
    let backend = match backend {
        Ok(backend) => SupervisorLayer(Arc::clone(table)).layer(backend),
        Err(error) => {
            about.insert("refuses".into(), error.to_string().into());
            return accepted.refuse(&*table.new_backend(None)?, about).await;
        }
    };
    if wants.starts_with(SERVE) {
        return accepted.serve(backend, about).await;
    }
    if wants == RETIRE {
        about.insert("retired".into(), table.retire().into());
    }
    if wants == STATUS {
        about.insert("ended".into(), ended(table));
    }
    accepted.refuse(&*backend, about).await
}

/// Lists the sandboxes that have ended, the last one first, as many as fit into the hello.
fn ended(table: &SandboxTable) -> Value {
    let all = table.all();
    let ended = all
        .iter()
        .rev()
        .filter(|sandbox| !sandbox.is_running())
        .map(|sandbox| json!(sandbox.info()));
    let mut remaining = MAX_ENDED_LIST_SIZE;
    let fits = |info: &Value| {
        remaining = remaining.saturating_sub(info.to_string().len());
        remaining > 0
    };
    ended.take_while(fits).collect()
}

fn about(table: &SandboxTable) -> Map<String, Value> {
    let variables = dependent_variables();
    let about =
        json!({"pid": std::process::id(), "sandboxes": table.count(), VARIABLES: variables});
    match about {
        Value::Object(about) => about,
        _ => Map::new(),
    }
}
