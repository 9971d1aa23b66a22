//! The supervisor: the process that sandboxes belong to which outlive the one that made them.
//!
//! There is one per user. It is started when the first such sandbox is made, and ends when it has had none for a minute.
//! Its sandboxes are attached to it, so they end with it, however it ends.

mod book;
mod keeper;
mod kept;
mod ledger;
mod similar;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use code_sandboxes::detached::{Address, RETIRE, SERVE, STATUS};
use code_sandboxes::{Error, Instance as _, Registry, Variant};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{geteuid, setsid};
use serde_json::{Map, Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use self::keeper::Keeper;
pub(crate) use self::kept::UNNOTED;
use self::ledger::Ledger;
use crate::args::SupervisorArgs;
use crate::exit;
use crate::printer::Printer;
use crate::problem::Problem;

/// How long a client may take to introduce itself.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// Bytes about sandboxes that have ended. A greeting has 64 KiB.
const MOST_ABOUT_ENDED: usize = 48 << 10;
/// How often the ledger is looked through.
const SWEEP: Duration = Duration::from_millis(500);
/// How long the lock of one that is about to end is waited for.
const SUCCESSION: Duration = Duration::from_secs(10);

/// `sandboxes supervisor`
pub(crate) async fn supervise(args: &SupervisorArgs, printer: &Printer) -> Result<u8, Problem> {
    if args.launch {
        launch().map_err(|error| Problem::host("starting the supervisor", error))?;
        return Ok(exit::SUCCESS);
    }
    let address = Address::of_this_user()?;
    let Some(lock) = become_the_one(&address).await? else {
        printer.note("there is a supervisor already");
        return Ok(exit::SUCCESS);
    };
    let listener = listen(&address).map_err(|error| Problem::host("listening", error))?;
    info!(socket = %address.socket().display(), "supervising");
    let ledger = Arc::new(Ledger::default());
    let idle = Duration::try_from_secs_f64(args.idle).unwrap_or(Duration::MAX);
    let served = serve(&listener, &ledger, idle).await;
    // From here on nobody finds us; whoever comes starts another one.
    let unlinked = std::fs::remove_file(address.socket());
    debug!(?unlinked, "supervised");
    drop(listener);
    ledger.end_all().await;
    drop(lock);
    served.map_err(|error| Problem::host("accepting connections", error))?;
    Ok(exit::SUCCESS)
}

/// Starts a supervisor that is nobody's child, and has no terminal that could end it.
fn launch() -> io::Result<()> {
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

/// Takes the lock that a supervisor has for life. `None` when another one serves.
async fn become_the_one(address: &Address) -> Result<Option<File>, Problem> {
    let failed = |error: io::Error| Problem::host("locking", error);
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(address.lock());
    let file = file.map_err(failed)?;
    let wait = async {
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(true),
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => return Err(failed(error.into())),
            }
            if UnixStream::connect(address.socket()).await.is_ok() {
                return Ok(false);
            }
            // It is about to begin, or to end.
            sleep(Duration::from_millis(10)).await;
        }
    };
    match timeout(SUCCESSION, wait).await {
        Ok(is_ours) => Ok(is_ours?.then_some(file)),
        Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
    }
}

/// Listens where clients look. A socket that is there belongs to one that died: we have its lock.
fn listen(address: &Address) -> io::Result<UnixListener> {
    let socket = address.socket();
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = StdListener::bind(&socket)?;
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn serve(listener: &UnixListener, ledger: &Arc<Ledger>, idle: Duration) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    tokio::spawn(attend(stream, Arc::clone(ledger)));
                }
                // Such as too many open files; it passes.
                Err(error) => {
                    warn!(%error, "no connection");
                    sleep(SWEEP).await;
                }
            },
            () = sleep(SWEEP) => ledger.sweep().await,
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

async fn converse(stream: UnixStream, ledger: &Arc<Ledger>) -> Result<(), Error> {
    let peer = stream.peer_cred().ok().map(|peer| peer.uid());
    if peer != Some(geteuid().as_raw()) {
        warn!(?peer, "somebody else was refused");
        return Ok(());
    }
    let Ok(accepted) = timeout(INTRODUCTION, sandbox_remote::accept(stream)).await else {
        return Ok(());
    };
    let accepted = accepted?;
    let wants = accepted.hello().wants.clone();
    let mut about = about(ledger);
    let variant = wants.strip_prefix(SERVE).unwrap_or(Variant::LocalEval.as_str()).parse();
    let keeper = variant.and_then(|variant| Keeper::of(variant, ledger));
    let keeper = match keeper {
        Ok(keeper) => keeper,
        Err(error) => {
            about.insert("refuses".into(), error.to_string().into());
            let any = Registry::new().default_variant();
            return accepted.refuse(&*Registry::new().backend_of_process(any)?, about).await;
        }
    };
    if wants.starts_with(SERVE) {
        return accepted.serve(Arc::new(keeper), about).await;
    }
    if wants == RETIRE {
        about.insert("retired".into(), ledger.retire().into());
    }
    if wants == STATUS {
        about.insert("ended".into(), ended(ledger));
    }
    accepted.refuse(&keeper, about).await
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
    let about = json!({"pid": std::process::id(), "sandboxes": ledger.count()});
    match about {
        Value::Object(about) => about,
        _ => Map::new(),
    }
}
