//! The supervisor: the process that sandboxes belong to which outlive the one that made them.
//!
//! There is one per user. It is started when the first such sandbox is made, and ends when it has had none for a minute.
//! Its sandboxes are attached to it, so they end with it, however it ends.

mod book;
mod keeper;
mod kept;
mod ledger;
mod seat;
mod similar;

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Address, RETIRE, SERVE, STATUS, VARIABLES, dependent_variables};
use rustix::process::{Resource, geteuid, getrlimit, setrlimit, setsid};
use sandbox_core::{Backend, Error, ErrorKind, InstanceWrapper as _, Layer as _, Result, Variant};
use serde_json::{Map, Value, json};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, sleep, timeout};
use tracing::{debug, info, warn};

use self::keeper::KeepLayer;
pub use self::kept::UNNOTED;
use self::ledger::Ledger;
use self::seat::Seat;

/// How long a client may take to introduce itself.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// Bytes about sandboxes that have ended. A greeting has 64 KiB.
const MOST_ABOUT_ENDED: usize = 48 << 10;
/// How often the ledger is looked through.
const SWEEP: Duration = Duration::from_millis(500);

/// Gives the backend of a variant, or the default one. Its sandboxes end with this process.
pub type BackendFactory = Arc<dyn Fn(Option<Variant>) -> Result<Arc<dyn Backend>> + Send + Sync>;

/// Serves as the supervisor of this user, until it has had no sandbox for `idle` or a signal ends it.
///
/// Returns false when there is a supervisor already.
///
/// # Errors
/// Those of [`Address::of_this_user`]; `Unexpected` when its socket or its lock cannot be used.
pub async fn supervise(factory: BackendFactory, idle: Duration) -> Result<bool> {
    open_as_many_files_as_allowed();
    let address = Address::of_this_user()?;
    let socket = address.socket();
    let Some(mut seat) = Seat::take(address).await? else { return Ok(false) };
    info!(socket = %socket.display(), "supervising");
    let ledger = Arc::new(Ledger::new(factory));
    let served = serve(&mut seat, &ledger, idle).await;
    let lock = seat.hide();
    ledger.end_all().await;
    drop(lock);
    served.map_err(|error| failed("accepting connections", error))?;
    Ok(true)
}

/// An operation of this host that failed.
fn failed(operation: &'static str, error: io::Error) -> Error {
    Error::new(ErrorKind::Unexpected, "run", format!("{operation} failed")).with_source(error)
}

/// The usual limit is one that some connections of a few sandboxes would reach, and then no other could be made.
fn open_as_many_files_as_allowed() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        warn!(%error, "no more files can be open than usual");
    }
}

/// Starts this program as `sandboxes supervisor`, outside of this process tree and without a terminal that could end it.
///
/// # Errors
/// When the program cannot be started.
pub fn launch() -> io::Result<()> {
    // It fails for the leader of a process group, who has a session of its own already or wants to keep its terminal.
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

async fn serve(seat: &mut Seat, ledger: &Arc<Ledger>, idle: Duration) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Also when clients come all the time.
    let mut sweep = interval(SWEEP);
    loop {
        tokio::select! {
            accepted = seat.accept() => match accepted {
                Ok(stream) => {
                    tokio::spawn(attend(stream, Arc::clone(ledger)));
                }
                // Such as too many open files; it passes.
                Err(error) => {
                    warn!(%error, "no connection");
                    sleep(SWEEP).await;
                }
            },
            _ = sweep.tick() => {
                seat.keep();
                ledger.sweep().await;
            }
            () = ledger.retired() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
        if ledger.idle_for() >= idle && ledger.retire() {
            return Ok(());
        }
    }
}

async fn attend(stream: UnixStream, ledger: Arc<Ledger>) {
    let _connected = ledger.connected();
    if let Err(error) = converse(stream, &ledger).await {
        debug!(%error, "a connection ended");
    }
}

async fn converse(stream: UnixStream, ledger: &Arc<Ledger>) -> Result<()> {
    let peer = stream.peer_cred().ok().map(|peer| peer.uid());
    if peer != Some(geteuid().as_raw()) {
        warn!(?peer, "somebody else was refused");
        return Ok(());
    }
    let Ok(accepted) = timeout(INTRODUCTION, sandbox_rpc::accept(stream)).await else {
        return Ok(());
    };
    let accepted = accepted?;
    let wants = accepted.hello().wants.clone();
    let mut about = about(ledger);
    let variant = wants.strip_prefix(SERVE).unwrap_or(Variant::LOCAL_EVAL.as_str()).parse();
    let backend = variant.and_then(|variant| ledger.backend(variant));
    let backend = match backend {
        Ok(backend) => KeepLayer(Arc::clone(ledger)).layer(backend),
        Err(error) => {
            about.insert("refuses".into(), error.to_string().into());
            return accepted.refuse(&*ledger.make(None)?, about).await;
        }
    };
    if wants.starts_with(SERVE) {
        return accepted.serve(backend, about).await;
    }
    if wants == RETIRE {
        about.insert("retired".into(), ledger.retire().into());
    }
    if wants == STATUS {
        about.insert("ended".into(), ended(ledger));
    }
    accepted.refuse(&*backend, about).await
}

/// The sandboxes that have ended and are remembered, the last ones first, as many as a greeting holds.
fn ended(ledger: &Ledger) -> Value {
    let all = ledger.all();
    let ended = all.iter().rev().filter(|kept| !kept.is_running()).map(|kept| json!(kept.info()));
    let mut room = MOST_ABOUT_ENDED;
    let fits = |info: &Value| {
        room = room.saturating_sub(info.to_string().len());
        room > 0
    };
    ended.take_while(fits).collect()
}

fn about(ledger: &Ledger) -> Map<String, Value> {
    let variables = dependent_variables();
    let about =
        json!({"pid": std::process::id(), "sandboxes": ledger.count(), VARIABLES: variables});
    match about {
        Value::Object(about) => about,
        _ => Map::new(),
    }
}
