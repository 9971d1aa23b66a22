//! Resident agents: what stays when a client goes, and which clients are taken.

use std::collections::BTreeMap;
use std::process::Stdio;

use bytes::Bytes;
use futures_util::stream::unfold;
use sandbox_agent_client::{AgentConnection, ConnectError};
use sandbox_core::Error;
use sandbox_engine::host::{ProcessHost as _, Spawn};
use sandbox_python::agent::relay_arguments;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

use crate::support::read_all;

/// A sandbox whose agent listens in its directory.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// Connects through a new relay. `change` changes its arguments.
    async fn connect(
        &self,
        token: &str,
        change: impl FnOnce(&mut Vec<String>),
    ) -> (Result<AgentConnection, ConnectError>, Child) {
        let nonce = sandbox_core::random_hex(8);
        let mut arguments = relay_arguments(&nonce, None);
        change(&mut arguments);
        let mut relay = Command::new("python3")
            .args(arguments)
            .env("TMPDIR", self.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("python3 starts");
        let into = relay.stdin.take().expect("a pipe");
        let from = unfold(relay.stdout.take().expect("a pipe"), move |mut from| async move {
            let mut buffer = vec![0; 64 << 10];
            match from.read(&mut buffer).await {
                Ok(0) => None,
                Ok(count) => Some((Ok(Bytes::copy_from_slice(&buffer[..count])), from)),
                Err(error) => Some((Err(error), from)),
            }
        });
        let (from, into) = (Box::pin(futures_util::StreamExt::fuse(from)), Box::pin(into));
        let token = token.into();
        (AgentConnection::connect_resident(from, into, &nonce, &token).await, relay)
    }

    async fn client(&self) -> AgentConnection {
        let client = self.connect("secret", |_| ()).await.0.expect("the agent takes the client");
        let spawned =
            client.spawn(self.shell("echo $PPID >agent", None)).await.expect("the shell starts");
        spawned.process.exit().await.expect("the shell ends");
        client
    }

    fn shell(&self, script: &str, label: Option<&str>) -> Spawn {
        Spawn {
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: BTreeMap::from([("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())]),
            cwd: self.0.path().to_string_lossy().into_owned(),
            stdin: false,
            terminal: None,
            label: label.map(str::to_owned),
            as_root: false,
            limit: None,
        }
    }

    /// Returns the first word of a file of the sandbox, once there is one.
    async fn word(&self, name: &str) -> String {
        for _ in 0..200 {
            if let Ok(text) = std::fs::read_to_string(self.0.path().join(name))
                && !text.trim().is_empty()
            {
                return text.trim().to_owned();
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("no {name}");
    }
}

impl Drop for Place {
    /// Ends the agent: it has no provider that would end it.
    fn drop(&mut self) {
        let agent = std::fs::read_to_string(self.0.path().join("agent")).unwrap_or_default();
        let agent = agent.trim().parse().ok().and_then(rustix::process::Pid::from_raw);
        if let Some(agent) = agent {
            let _ = rustix::process::kill_process(agent, rustix::process::Signal::KILL);
        }
    }
}

#[tokio::test]
async fn commands_in_the_background_stay_and_others_end() {
    let place = Place::new();
    let client = place.client().await;
    let label = r#"{"id":"ab","line":"the line","started_at":1.0,"on_terminal":false}"#;
    let script = "echo $$ >kept; echo before; sleep 1; echo after; exit 5";
    let kept = client.spawn(place.shell(script, Some(label))).await.unwrap();
    let ended = client.spawn(place.shell("echo $$ >ended; sleep 300", None)).await.unwrap();
    let pid = place.word("ended").await;
    place.word("kept").await;
    drop((kept, ended, client));
    let again = place.client().await;
    let mut commands = again.kept_commands().await.unwrap();
    assert_eq!(commands.len(), 1, "{commands:?}");
    let (about, spawn) = commands.remove(0);
    assert_eq!((about.id.as_str(), about.line.as_str()), ("ab", "the line"));
    let taken = again.spawn(spawn).await.unwrap();
    // What the first client has been sent before is not sent again.
    assert!(read_all(&*taken.stdout).await.ends_with(b"after\n"));
    assert_eq!(taken.process.exit().await.unwrap().code, Some(5));
    assert!(again.kept_commands().await.unwrap().is_empty());
    for _ in 0..100 {
        if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("a command in the foreground outlives its client");
}

#[tokio::test]
async fn only_clients_of_this_build_with_the_token_are_taken() {
    let place = Place::new();
    let client = place.client().await;
    for (token, change, why) in [
        ("other", "", "the token is not that of the agent"),
        ("secret", "another-build", "the sandbox has an agent of another version"),
    ] {
        let (refused, relay) = place
            .connect(token, |arguments| {
                if !change.is_empty() {
                    *arguments.last_mut().expect("a version") = change.to_owned();
                }
            })
            .await;
        let refused = refused.expect_err("the client is refused");
        assert!(refused.interpreter_ended(), "{refused:?}");
        let said = relay.wait_with_output().await.unwrap();
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains(why), "{said}: {}", Error::from(refused));
    }
    // The client that was there still is.
    let spawned = client.spawn(place.shell("echo still", None)).await.unwrap();
    assert_eq!(read_all(&*spawned.stdout).await, b"still\n");
}

#[tokio::test]
async fn a_new_client_takes_over() {
    let place = Place::new();
    let first = place.client().await;
    let second = place.client().await;
    for _ in 0..200 {
        if !first.is_open() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(first.lost_reason().unwrap().contains("taken it over"));
    let spawned = second.spawn(place.shell("echo mine", None)).await.unwrap();
    assert_eq!(read_all(&*spawned.stdout).await, b"mine\n");
}

#[tokio::test]
async fn a_directory_that_others_may_enter_is_refused() {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    let place = Place::new();
    let uid = rustix::process::geteuid().as_raw();
    let path = place.0.path().join(format!(".code-sandboxes-{uid}"));
    std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (refused, relay) = place.connect("secret", |_| ()).await;
    refused.expect_err("the directory is not safe");
    let said = relay.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("not a directory of this user alone"), "{said}");
}
