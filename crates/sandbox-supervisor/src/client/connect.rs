//! Connects to the supervisor, and starts it when there is none.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use sandbox_core::{Backend as _, CallContext, Error, ErrorKind, Health, Result, Retry, Variant};
use sandbox_rpc::{ClientHello, Negotiated, PROTOCOL, RemoteBackend, ServerHello, VERSION};
use serde_json::{Map, Value};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::client_env::{Variables, same_variables};
use super::launch::launch;
use super::paths::SupervisorPaths;

/// Request of a client that uses sandboxes; the variant follows.
pub const SERVE: &str = "serve ";
/// Request of a client with a newer supervisor: end, if there is no sandbox.
pub const RETIRE: &str = "retire";
/// Request of a client that only reads the status.
pub const STATUS: &str = "status";

/// Key under which the supervisor reports its variables that sandboxes depend on.
pub const VARIABLES: &str = "variables";

/// Suffix of the process id in the lock of a supervisor that is about to end.
pub const ENDING: &str = " ends";

/// `cause` in the context of the error of a supervisor that is about to end, and refuses creations.
pub const ENDS: &str = "supervisor_ends";

/// Maximum time for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time until a started supervisor serves.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// After that time another one is started: the first may have answered one that was about to end.
const RELAUNCH_INTERVAL: Duration = Duration::from_secs(1);
const START_POLL_INTERVAL: Duration = Duration::from_millis(3);
/// Maximum time that a live supervisor may have no socket, because it is starting or restoring its socket.
const SOCKET_GRACE: Duration = Duration::from_millis(1500);
const SOCKET_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Returns the supervisor's backend of a variant; `None` when there is no supervisor, and so no detached sandbox.
pub(super) async fn connect_existing(variant: Variant) -> Result<Option<RemoteBackend>> {
    connect(variant, false).await
}

/// As [`connect_existing`], but starts a supervisor when there is none.
pub(super) async fn connect_or_start(variant: Variant) -> Result<RemoteBackend> {
    let connected = connect(variant, true).await?;
    connected.ok_or_else(|| Error::new(ErrorKind::Unavailable, "connect", "there is no supervisor"))
}

/// Returns the status of the supervisor, if there is one: `pid`, `sandboxes` (their number), `version`, and as `ended` the
/// sandboxes that have ended lately, the last one first.
///
/// # Errors
/// `Unavailable` when the supervisor does not answer, `PermissionDenied` when it is a process of another user, and those of
/// [`SupervisorPaths::for_current_user`].
pub async fn status() -> Result<Option<Map<String, Value>>> {
    let paths = SupervisorPaths::for_current_user()?;
    let Some(negotiated) = handshake(&paths, STATUS).await? else { return Ok(None) };
    let hello = negotiated.hello();
    let mut about = hello.about.clone();
    about.insert("version".into(), hello.version.clone().into());
    Ok(Some(about))
}

/// Returns the health of a variant in the supervisor, with its circuit breaker among the checks. `None`: there is no
/// supervisor.
///
/// # Errors
/// Those of [`status`], and of the backend.
pub async fn health(variant: Variant) -> Result<Option<Health>> {
    let Some(backend) = connect_existing(variant).await? else { return Ok(None) };
    backend.health(&CallContext::new()).await.map(Some)
}

/// Returns true for an error of a supervisor that is about to end, or that has ended without a successor.
pub(super) fn has_ended(error: &Error) -> bool {
    let is_gone =
        || SupervisorPaths::for_current_user().is_ok_and(|paths| lock_owner(&paths).is_none());
    match error.kind() {
        ErrorKind::Unavailable => {
            error.context().iter().any(|(key, value)| *key == "cause" && value == ENDS)
        }
        ErrorKind::ConnectionLost => is_gone(),
        _ => false,
    }
}

/// Context of every error of connecting to the supervisor.
const CONNECT_CONTEXT: (&str, &str) = ("peer", "supervisor");

/// Returns true for an error of connecting to the supervisor, which is the same for all variants.
pub fn is_connect_error(error: &Error) -> bool {
    error.context().iter().any(|(key, value)| (*key, value.as_str()) == CONNECT_CONTEXT)
}

async fn connect(variant: Variant, start: bool) -> Result<Option<RemoteBackend>> {
    let (key, value) = CONNECT_CONTEXT;
    try_connect(variant, start).await.map_err(|error| error.with_context(key, value))
}

async fn try_connect(variant: Variant, start: bool) -> Result<Option<RemoteBackend>> {
    let paths = SupervisorPaths::for_current_user()?;
    let wants = format!("{SERVE}{variant}");
    let until = Instant::now() + START_TIMEOUT;
    // Variables matter only for new sandboxes.
    let ours = start.then(|| same_variables(variant));
    let mut launched: Option<Instant> = None;
    let mut grace = SocketGrace::default();
    loop {
        let answered = handshake(&paths, &wants).await;
        let waited_enough = Instant::now() >= until;
        match answered {
            Ok(Some(negotiated)) => match check_compatibility(negotiated.hello(), ours.as_ref())? {
                Compatibility::Use => return negotiated.into_backend().map(Some),
                Compatibility::Replace => drop(handshake(&paths, RETIRE).await?),
            },
            Ok(None) if grace.waits(&paths)? => {
                tokio::time::sleep(SOCKET_POLL_INTERVAL).await;
                continue;
            }
            Ok(None) if !start => return Ok(None),
            // The supervisor has just ended.
            Err(error) if error.retry() == Retry::Temporary && !waited_enough => {}
            Err(error) => return Err(error),
            Ok(None) => {}
        }
        if waited_enough {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "connect",
                "the supervisor did not start",
            )
            .with_hint("run `sandboxes supervisor` to see why"));
        }
        if start && launched.is_none_or(|at| at.elapsed() > RELAUNCH_INTERVAL) {
            launch().await?;
            launched = Some(Instant::now());
        }
        tokio::time::sleep(START_POLL_INTERVAL).await;
    }
}

/// Waits for a live supervisor that has no socket at the moment.
#[derive(Debug, Default)]
struct SocketGrace {
    since: Option<Instant>,
}

impl SocketGrace {
    /// Returns true while waiting may help: a supervisor that is not about to end holds the lock.
    ///
    /// # Errors
    /// `Unavailable` when it has had no socket for [`SOCKET_GRACE`].
    fn waits(&mut self, paths: &SupervisorPaths) -> Result<bool> {
        let Some(owner) = lock_owner(paths) else { return Ok(false) };
        if self.since.get_or_insert_with(Instant::now).elapsed() < SOCKET_GRACE {
            return Ok(true);
        }
        let (process, hint) = match owner.trim() {
            "" => (String::new(), "end it; its sandboxes end with it".to_owned()),
            pid => (
                format!(" (process {pid})"),
                format!("end it: `kill {pid}`; its sandboxes end with it"),
            ),
        };
        let message = format!("the supervisor{process} lives, but its socket was deleted");
        Err(Error::new(ErrorKind::Unavailable, "connect", message)
            .with_context("socket", paths.socket().display().to_string())
            .with_hint(hint))
    }
}

/// Reads what the owner of the lock wrote into it; `None` when no process holds the lock, or its owner is about to end.
fn lock_owner(paths: &SupervisorPaths) -> Option<String> {
    let mut file = File::open(paths.lock()).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => {}
        _ => return None,
    }
    let mut text = String::new();
    let _ = file.by_ref().take(64).read_to_string(&mut text);
    (!text.trim_end().ends_with(ENDING)).then_some(text)
}

/// Connects and performs the handshake; `None` when no process listens.
async fn handshake(paths: &SupervisorPaths, wants: &str) -> Result<Option<Negotiated<UnixStream>>> {
    let socket = paths.socket();
    let failed = |what: &str| {
        Error::new(ErrorKind::Unavailable, "connect", format!("the supervisor {what}"))
            .with_context("socket", socket.display().to_string())
    };
    let stream = match UnixStream::connect(&socket).await {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused if is_other_file(&socket) => {
                let hint = format!("move {} away", socket.display());
                return Err(failed("has no socket: another file has its path").with_hint(hint));
            }
            // The socket of a supervisor that died has no listener.
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return Ok(None),
            _ => return Err(failed("cannot be reached").with_source(error)),
        },
    };
    let peer = stream.peer_cred().map_err(|e| failed("cannot be identified").with_source(e))?;
    if peer.uid() != geteuid().as_raw() {
        let message = "the supervisor is not a process of this user";
        return Err(Error::new(ErrorKind::PermissionDenied, "connect", message));
    }
    match timeout(HANDSHAKE_TIMEOUT, sandbox_rpc::handshake(stream, &ClientHello::new(wants))).await
    {
        Ok(Ok(negotiated)) => Ok(Some(negotiated)),
        Ok(Err(error)) if error.kind() == ErrorKind::Unavailable => {
            Err(failed("has ended").with_source(error).with_retry(Retry::Temporary))
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(failed("does not answer").with_hint(match peer.pid() {
            Some(pid) => format!("end it: `kill {pid}`; its sandboxes end with it"),
            None => "end it; its sandboxes end with it".into(),
        })),
    }
}

fn is_other_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket())
}

enum Compatibility {
    Use,
    Replace,
}

/// Checks whether a supervisor can be used for sandboxes that depend on these variables.
fn check_compatibility(hello: &ServerHello, ours: Option<&Variables>) -> Result<Compatibility> {
    if let Some(refusal) = hello.about.get("refuses").and_then(Value::as_str) {
        return Err(Error::unsupported("connect", refusal.to_owned()));
    }
    let sandboxes = hello.about.get("sandboxes").and_then(Value::as_u64);
    let older = version_numbers(&hello.version) < version_numbers(VERSION);
    if older && sandboxes == Some(0) {
        return Ok(Compatibility::Replace);
    }
    if hello.protocol == PROTOCOL {
        return match ours.and_then(|ours| different_variable(hello, ours)) {
            Some(_) if sandboxes == Some(0) => Ok(Compatibility::Replace),
            Some(error) => Err(error),
            None => Ok(Compatibility::Use),
        };
    }
    let count = sandboxes.map_or_else(|| "some".to_owned(), |count| count.to_string());
    let message = format!(
        "the supervisor has version {} and {count} sandboxes; this program has version {VERSION}, which it does not understand",
        hello.version
    );
    let hint = if older {
        format!("end its sandboxes with version {}; it is replaced then", hello.version)
    } else {
        format!("use version {} or newer", hello.version)
    };
    Err(Error::new(ErrorKind::Unavailable, "connect", message).with_hint(hint))
}

/// Returns an error when one of these variables has another value in the supervisor. A supervisor that does not report its
/// variables predates them.
fn different_variable(hello: &ServerHello, ours: &Variables) -> Option<Error> {
    let theirs = hello.about.get(VARIABLES)?.as_object()?;
    let of_theirs = |name: &str| theirs.get(name).and_then(Value::as_str);
    let (name, ours) = ours.iter().find(|(name, ours)| of_theirs(name) != ours.as_deref())?;
    let shown = |value: Option<&str>| match value {
        Some(value) => format!("{name}={value}"),
        None => format!("no {name}"),
    };
    let message = format!(
        "the supervisor was started with {}, and this program with {}; sandboxes of {} depend on that variable",
        shown(of_theirs(name)),
        shown(ours.as_deref()),
        hello.variant
    );
    let hint = "end its sandboxes (`Sandbox::list()`, `.terminate()`), and it is replaced; or set the variable to its value";
    Some(Error::new(ErrorKind::Unavailable, "connect", message).with_hint(hint))
}

/// Parses the three numbers of a version.
fn version_numbers(version: &str) -> [u64; 3] {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hello(protocol: u32, version: &str, sandboxes: u64) -> ServerHello {
        let about = Map::from_iter([("sandboxes".to_owned(), sandboxes.into())]);
        let version = version.into();
        let capabilities = Vec::new();
        ServerHello { protocol, version, variant: Variant::LOCAL_EVAL, capabilities, about }
    }

    #[test]
    fn an_idle_older_supervisor_is_replaced_and_a_busy_one_is_kept() {
        assert!(matches!(
            check_compatibility(&hello(PROTOCOL, VERSION, 3), None),
            Ok(Compatibility::Use)
        ));
        assert!(matches!(
            check_compatibility(&hello(PROTOCOL, "0.0.1", 0), None),
            Ok(Compatibility::Replace)
        ));
        assert!(matches!(
            check_compatibility(&hello(PROTOCOL, "0.0.1", 1), None),
            Ok(Compatibility::Use)
        ));
        assert!(matches!(
            check_compatibility(&hello(0, "0.0.1", 0), None),
            Ok(Compatibility::Replace)
        ));
        let busy = check_compatibility(&hello(0, "0.0.1", 2), None).err().unwrap();
        assert!(busy.to_string().contains("version 0.0.1 and 2 sandboxes"), "{busy}");
        assert!(busy.hint().unwrap().contains("end its sandboxes"), "{busy:?}");
        let newer = check_compatibility(&hello(99, "99.0.0", 0), None).err().unwrap();
        assert_eq!(newer.hint(), Some("use version 99.0.0 or newer"));
    }

    #[test]
    fn a_supervisor_with_another_variable_is_refused() {
        let ours = |host: Option<&str>| Variables::from([("DOCKER_HOST", host.map(str::to_owned))]);
        let with = |host: &str, sandboxes| {
            let mut hello = hello(PROTOCOL, VERSION, sandboxes);
            let theirs = json!({"DOCKER_HOST": host, "DOCKER_CONTEXT": "of no concern here"});
            hello.about.insert(VARIABLES.into(), theirs);
            hello
        };
        let here = ours(Some("unix:///a.sock"));
        assert!(matches!(
            check_compatibility(&with("unix:///a.sock", 1), Some(&here)),
            Ok(Compatibility::Use)
        ));
        assert!(matches!(
            check_compatibility(&with("unix:///b.sock", 1), None),
            Ok(Compatibility::Use)
        ));
        assert!(matches!(
            check_compatibility(&with("unix:///b.sock", 1), Some(&Variables::new())),
            Ok(Compatibility::Use)
        ));
        assert!(matches!(
            check_compatibility(&with("unix:///b.sock", 0), Some(&here)),
            Ok(Compatibility::Replace)
        ));
        let other =
            check_compatibility(&with("unix:///b.sock", 1), Some(&ours(None))).err().unwrap();
        let message = other.to_string();
        assert!(message.contains("DOCKER_HOST=unix:///b.sock"), "{message}");
        assert!(message.contains("with no DOCKER_HOST"), "{message}");
    }

    #[test]
    fn versions_are_numbers() {
        assert!(version_numbers("0.9.0") < version_numbers("0.10.0"));
        assert!(version_numbers("1.0.0-rc.1") <= version_numbers("1.0.0"));
        assert_eq!(version_numbers("malformed"), [0, 0, 0]);
    }
}
