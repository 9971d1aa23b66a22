//! Finding the supervisor, and starting it when it is needed and not there.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use sandbox_core::{Error, ErrorKind, Result, Retry, Variant};
use sandbox_rpc::{ClientHello, Greeted, PROTOCOL, RemoteBackend, ServerHello, VERSION, greet};
use serde_json::{Map, Value};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::address::Address;
use super::client_env::{Variables, same_variables};
use super::launch::launch;

/// What a client wants that wants sandboxes; the variant follows.
pub const SERVE: &str = "serve ";
/// What a client wants that has a newer supervisor: the end of this one, if it has no sandbox.
pub const RETIRE: &str = "retire";
/// What a client wants that only asks how things are.
pub const STATUS: &str = "status";

/// Where a supervisor reports its variables that sandboxes depend on.
pub const VARIABLES: &str = "variables";

/// What follows the process id in the lock of a supervisor that is about to end.
pub const ENDING: &str = " ends";

/// The `cause` in the context of the error of a supervisor that is about to end, and makes nothing any more.
pub const ENDS: &str = "supervisor_ends";

/// How long the supervisor may take to answer. It answers at once or it hangs.
const ANSWER: Duration = Duration::from_secs(5);
/// How long it may take until a supervisor is there.
const START: Duration = Duration::from_secs(15);
/// After that time another one is started: the first may have met one that was about to end.
const AGAIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(3);
/// How long one that lives may have no socket: it begins, or it makes its socket again.
const HIDDEN: Duration = Duration::from_millis(1500);
/// How often it is looked for then.
const LOOKS: Duration = Duration::from_millis(10);

/// The supervisor's sandboxes of a variant. `None` when there is no supervisor, and so no sandbox.
pub(super) async fn existing(variant: Variant) -> Result<Option<RemoteBackend>> {
    connect(variant, false).await
}

/// The same, with a supervisor that is started when there is none.
pub(super) async fn needed(variant: Variant) -> Result<RemoteBackend> {
    let connected = connect(variant, true).await?;
    connected.ok_or_else(|| Error::new(ErrorKind::Unavailable, "connect", "no supervisor"))
}

/// What the supervisor says about itself, if there is one: `pid`, `sandboxes`, `version`, and as `ended` what it remembers of
/// sandboxes that have ended, the last ones first.
///
/// # Errors
/// Whatever keeps it from answering.
pub async fn status() -> Result<Option<Map<String, Value>>> {
    let address = Address::of_this_user()?;
    let Some(greeted) = meet(&address, STATUS).await? else { return Ok(None) };
    let hello = greeted.hello();
    let mut about = hello.about.clone();
    about.insert("version".into(), hello.version.clone().into());
    Ok(Some(about))
}

/// Whether an error of the supervisor means that it was about to end, or has ended and nothing serves in its place.
pub(super) fn has_ended(error: &Error) -> bool {
    let is_gone = || Address::of_this_user().is_ok_and(|address| owner(&address).is_none());
    match error.kind() {
        ErrorKind::Unavailable => {
            error.context().iter().any(|(key, value)| *key == "cause" && value == ENDS)
        }
        ErrorKind::ConnectionLost => is_gone(),
        _ => false,
    }
}

async fn connect(variant: Variant, start: bool) -> Result<Option<RemoteBackend>> {
    let address = Address::of_this_user()?;
    let wants = format!("{SERVE}{variant}");
    let until = Instant::now() + START;
    // Those that are there already are where they are.
    let ours = start.then(|| same_variables(variant));
    let mut launched: Option<Instant> = None;
    let mut hidden = Hidden::default();
    loop {
        let met = meet(&address, &wants).await;
        let waited_enough = Instant::now() >= until;
        match met {
            Ok(Some(greeted)) => match judge(greeted.hello(), ours.as_ref())? {
                Verdict::Use => return greeted.into_backend().map(Some),
                Verdict::Replace => drop(meet(&address, RETIRE).await?),
            },
            Ok(None) if hidden.waits(&address)? => {
                tokio::time::sleep(LOOKS).await;
                continue;
            }
            Ok(None) if !start => return Ok(None),
            // It went away in this moment.
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
            .with_hint("see what `sandboxes supervisor` says"));
        }
        if start && launched.is_none_or(|at| at.elapsed() > AGAIN) {
            launch().await?;
            launched = Some(Instant::now());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A supervisor that lives and has no socket.
#[derive(Debug, Default)]
struct Hidden {
    since: Option<Instant>,
}

impl Hidden {
    /// Whether there is one, so that waiting may help. One that is about to end is none.
    ///
    /// # Errors
    /// `Unavailable` when it has been so for too long.
    fn waits(&mut self, address: &Address) -> Result<bool> {
        let Some(owner) = owner(address) else { return Ok(false) };
        if self.since.get_or_insert_with(Instant::now).elapsed() < HIDDEN {
            return Ok(true);
        }
        let (who, hint) = match owner.trim() {
            "" => (String::new(), "end it; its sandboxes end with it".to_owned()),
            pid => (
                format!(" (process {pid})"),
                format!("end it: `kill {pid}`; its sandboxes end with it"),
            ),
        };
        let message = format!("the supervisor{who} lives, but its socket is gone");
        Err(Error::new(ErrorKind::Unavailable, "connect", message)
            .with_context("socket", address.socket().display().to_string())
            .with_hint(hint))
    }
}

/// What the one who has the lock says of itself. `None` when nobody has it, or it is about to end.
fn owner(address: &Address) -> Option<String> {
    let mut file = File::open(address.lock()).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => {}
        _ => return None,
    }
    let mut text = String::new();
    let _ = file.by_ref().take(64).read_to_string(&mut text);
    (!text.trim_end().ends_with(ENDING)).then_some(text)
}

/// Connects and introduces itself. `None` when nobody listens.
async fn meet(address: &Address, wants: &str) -> Result<Option<Greeted<UnixStream>>> {
    let socket = address.socket();
    let failed = |what: &str| {
        Error::new(ErrorKind::Unavailable, "connect", format!("the supervisor {what}"))
            .with_context("socket", socket.display().to_string())
    };
    let stream = match UnixStream::connect(&socket).await {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused if is_something_else(&socket) => {
                let hint = format!("move {} away", socket.display());
                return Err(failed("has no socket: something else has its place").with_hint(hint));
            }
            // The socket of one that died has no listener.
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return Ok(None),
            _ => return Err(failed("cannot be reached").with_source(error)),
        },
    };
    let peer = stream.peer_cred().map_err(|e| failed("cannot be identified").with_source(e))?;
    if peer.uid() != geteuid().as_raw() {
        let message = "the supervisor is not a process of this user";
        return Err(Error::new(ErrorKind::PermissionDenied, "connect", message));
    }
    match timeout(ANSWER, greet(stream, &ClientHello::new(wants))).await {
        Ok(Ok(greeted)) => Ok(Some(greeted)),
        Ok(Err(error)) if error.kind() == ErrorKind::Unavailable => {
            Err(failed("went away").with_source(error).with_retry(Retry::Temporary))
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(failed("does not answer").with_hint(match peer.pid() {
            Some(pid) => format!("end it: `kill {pid}`; its sandboxes end with it"),
            None => "end it; its sandboxes end with it".into(),
        })),
    }
}

fn is_something_else(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket())
}

enum Verdict {
    Use,
    Replace,
}

/// Whether that supervisor will do, for a sandbox that depends on these variables.
fn judge(hello: &ServerHello, ours: Option<&Variables>) -> Result<Verdict> {
    if let Some(refusal) = hello.about.get("refuses").and_then(Value::as_str) {
        return Err(Error::unsupported("connect", refusal.to_owned()));
    }
    let sandboxes = hello.about.get("sandboxes").and_then(Value::as_u64);
    let older = number(&hello.version) < number(VERSION);
    if older && sandboxes == Some(0) {
        return Ok(Verdict::Replace);
    }
    if hello.protocol == PROTOCOL {
        return match ours.and_then(|ours| different_variable(hello, ours)) {
            Some(_) if sandboxes == Some(0) => Ok(Verdict::Replace),
            Some(error) => Err(error),
            None => Ok(Verdict::Use),
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

/// Returns an error when one of these variables is another one for that supervisor. An older supervisor does not report
/// them.
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
    let hint = "end its sandboxes (`sandboxes ls`, `sandboxes rm`), and it is replaced; or set the variable as it has it";
    Some(Error::new(ErrorKind::Unavailable, "connect", message).with_hint(hint))
}

/// The three numbers of a version.
fn number(version: &str) -> [u64; 3] {
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
    fn an_idle_older_one_is_replaced_and_a_busy_one_is_told_apart() {
        assert!(matches!(judge(&hello(PROTOCOL, VERSION, 3), None), Ok(Verdict::Use)));
        assert!(matches!(judge(&hello(PROTOCOL, "0.0.1", 0), None), Ok(Verdict::Replace)));
        assert!(matches!(judge(&hello(PROTOCOL, "0.0.1", 1), None), Ok(Verdict::Use)));
        assert!(matches!(judge(&hello(0, "0.0.1", 0), None), Ok(Verdict::Replace)));
        let busy = judge(&hello(0, "0.0.1", 2), None).err().unwrap();
        assert!(busy.to_string().contains("version 0.0.1 and 2 sandboxes"), "{busy}");
        assert!(busy.hint().unwrap().contains("end its sandboxes"), "{busy:?}");
        let newer = judge(&hello(99, "99.0.0", 0), None).err().unwrap();
        assert_eq!(newer.hint(), Some("use version 99.0.0 or newer"));
    }

    #[test]
    fn one_with_another_variable_is_no_use() {
        let ours = |host: Option<&str>| Variables::from([("DOCKER_HOST", host.map(str::to_owned))]);
        let with = |host: &str, sandboxes| {
            let mut hello = hello(PROTOCOL, VERSION, sandboxes);
            let theirs = json!({"DOCKER_HOST": host, "DOCKER_CONTEXT": "of no concern here"});
            hello.about.insert(VARIABLES.into(), theirs);
            hello
        };
        let here = ours(Some("unix:///a.sock"));
        assert!(matches!(judge(&with("unix:///a.sock", 1), Some(&here)), Ok(Verdict::Use)));
        assert!(matches!(judge(&with("unix:///b.sock", 1), None), Ok(Verdict::Use)));
        let unconcerned = Some(&Variables::new());
        assert!(matches!(judge(&with("unix:///b.sock", 1), unconcerned), Ok(Verdict::Use)));
        assert!(matches!(judge(&with("unix:///b.sock", 0), Some(&here)), Ok(Verdict::Replace)));
        let other = judge(&with("unix:///b.sock", 1), Some(&ours(None))).err().unwrap();
        let message = other.to_string();
        assert!(message.contains("DOCKER_HOST=unix:///b.sock"), "{message}");
        assert!(message.contains("with no DOCKER_HOST"), "{message}");
    }

    #[test]
    fn versions_are_numbers() {
        assert!(number("0.9.0") < number("0.10.0"));
        assert!(number("1.0.0-rc.1") <= number("1.0.0"));
        assert_eq!(number("nonsense"), [0, 0, 0]);
    }
}
