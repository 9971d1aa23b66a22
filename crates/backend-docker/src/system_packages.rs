//! Installs system packages with the image's package manager, in a container with a writable root.
//!
//! The engine starts the package manager as the container's root, which has no capability there, gains none, and has the same
//! filter of system calls as every other process. It inherits nothing of the environment of the sandbox's code.

use std::time::Duration;

use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecResults};
use futures_util::StreamExt as _;
use sandbox_core::{Error, ErrorKind, Result};
use sandbox_engine::system_packages::{SCRIPT, failed};
use tokio::time::timeout;

use crate::error::parse_error;
use crate::instance::DockerInstance;

const OPERATION: &str = "install_packages";

/// Limits one installation.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Bytes of the package manager's output that an error may quote.
const MAX_QUOTED: usize = 16 << 10;

/// Installs packages with the package manager of the image. Dropping the future ends it.
pub(crate) async fn install(instance: &DockerInstance, names: &[String]) -> Result<()> {
    let (docker, container) = (&instance.kind.container.docker, &instance.kind.container.name);
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut env = vec![path.to_owned(), "HOME=/root".to_owned(), "LC_ALL=C".to_owned()];
    let network = &instance.base.network;
    env.extend(network.variables().iter().map(|(name, value)| format!("{name}={value}")));
    let words = ["/bin/sh", "-c", SCRIPT, "sandboxes"].map(str::to_owned);
    let options = CreateExecOptions {
        user: Some("0:0".to_owned()),
        working_dir: Some("/".to_owned()),
        privileged: Some(false),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        env: Some(env),
        cmd: Some(words.into_iter().chain(names.iter().cloned()).collect()),
        ..CreateExecOptions::default()
    };
    let refused = |error| parse_error(OPERATION, error);
    let exec = docker.create_exec(container, options).await.map_err(refused)?;
    let started = docker.start_exec(&exec.id, None).await.map_err(refused)?;
    let StartExecResults::Attached { mut output, input } = started else {
        return Err(Error::new(ErrorKind::Unexpected, OPERATION, "the engine attached nothing"));
    };
    // The package manager ends when its input is closed.
    let _open = input;
    let mut tail = Vec::new();
    let read = async {
        while let Some(piece) = output.next().await {
            let (LogOutput::StdOut { message } | LogOutput::StdErr { message }) =
                piece.map_err(refused)?
            else {
                continue;
            };
            tail.extend_from_slice(&message);
            let excess = tail.len().saturating_sub(MAX_QUOTED);
            tail.drain(..excess);
        }
        Ok(())
    };
    timeout(INSTALL_TIMEOUT, read).await.unwrap_or_else(|_| {
        let message = "system packages were not installed within 30 minutes";
        Err(Error::new(ErrorKind::Timeout, OPERATION, message))
    })?;
    let status = docker.inspect_exec(&exec.id).await.map_err(refused)?.exit_code;
    match status {
        Some(0) => Ok(()),
        status => {
            let tail = String::from_utf8_lossy(&tail);
            Err(failed(&tail, status.unwrap_or(-1), network.is_closed()))
        }
    }
}
