//! Finding the supervisor, and starting it when it is needed and not there.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use sandbox_core::{Error, ErrorKind, Result, Retry, Variant};
use sandbox_remote::{ClientHello, Greeted, PROTOCOL, RemoteBackend, ServerHello, VERSION, greet};
use serde_json::{Map, Value};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::address::Address;
use super::launch::launch;

/// What a client wants that wants sandboxes; the variant follows.
pub const SERVE: &str = "serve ";
/// What a client wants that has a newer supervisor: the end of this one, if it has no sandbox.
pub const RETIRE: &str = "retire";
/// What a client wants that only asks how things are.
pub const STATUS: &str = "status";

/// How long the supervisor may take to answer. It answers at once or it hangs.
const ANSWER: Duration = Duration::from_secs(5);
/// How long it may take until a supervisor is there.
const START: Duration = Duration::from_secs(15);
/// After that time another one is started: the first may have met one that was about to end.
const AGAIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(3);

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

async fn connect(variant: Variant, start: bool) -> Result<Option<RemoteBackend>> {
    let address = Address::of_this_user()?;
    let wants = format!("{SERVE}{variant}");
    let until = Instant::now() + START;
    let mut launched: Option<Instant> = None;
    loop {
        let met = meet(&address, &wants).await;
        let waited_enough = Instant::now() >= until;
        match met {
            Ok(Some(greeted)) => match judge(greeted.hello())? {
                Verdict::Use => return greeted.into_backend().map(Some),
                Verdict::Replace => drop(meet(&address, RETIRE).await?),
            },
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

enum Verdict {
    Use,
    Replace,
}

/// Whether that supervisor will do.
fn judge(hello: &ServerHello) -> Result<Verdict> {
    if let Some(refusal) = hello.about.get("refuses").and_then(Value::as_str) {
        return Err(Error::unsupported("connect", refusal.to_owned()));
    }
    let sandboxes = hello.about.get("sandboxes").and_then(Value::as_u64);
    let older = number(&hello.version) < number(VERSION);
    if older && sandboxes == Some(0) {
        return Ok(Verdict::Replace);
    }
    if hello.protocol == PROTOCOL {
        return Ok(Verdict::Use);
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

/// The three numbers of a version.
fn number(version: &str) -> [u64; 3] {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(protocol: u32, version: &str, sandboxes: u64) -> ServerHello {
        let about = Map::from_iter([("sandboxes".to_owned(), sandboxes.into())]);
        let version = version.into();
        let capabilities = Vec::new();
        ServerHello { protocol, version, variant: Variant::LocalEval, capabilities, about }
    }

    #[test]
    fn an_idle_older_one_is_replaced_and_a_busy_one_is_told_apart() {
        assert!(matches!(judge(&hello(PROTOCOL, VERSION, 3)), Ok(Verdict::Use)));
        assert!(matches!(judge(&hello(PROTOCOL, "0.0.1", 0)), Ok(Verdict::Replace)));
        assert!(matches!(judge(&hello(PROTOCOL, "0.0.1", 1)), Ok(Verdict::Use)));
        assert!(matches!(judge(&hello(0, "0.0.1", 0)), Ok(Verdict::Replace)));
        let busy = judge(&hello(0, "0.0.1", 2)).err().unwrap();
        assert!(busy.to_string().contains("version 0.0.1 and 2 sandboxes"), "{busy}");
        assert!(busy.hint().unwrap().contains("end its sandboxes"), "{busy:?}");
        let newer = judge(&hello(99, "99.0.0", 0)).err().unwrap();
        assert_eq!(newer.hint(), Some("use version 99.0.0 or newer"));
    }

    #[test]
    fn versions_are_numbers() {
        assert!(number("0.9.0") < number("0.10.0"));
        assert!(number("1.0.0-rc.1") <= number("1.0.0"));
        assert_eq!(number("nonsense"), [0, 0, 0]);
    }
}
