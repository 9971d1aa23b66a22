//! Packages of the image's system, in a container whose root can be written to.
//!
//! The engine starts the package manager as the container's root, which has no capability there, gains none, and makes the
//! system calls of every other process of it. Nothing of the environment of the sandbox's code comes along.

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

/// Longest time of an installation.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Bytes of what the package manager says that an error may quote.
const MAX_QUOTED: usize = 16 << 10;

/// Installs packages with the package manager of the image. Dropping the future ends it.
pub(crate) async fn install(instance: &DockerInstance, names: &[String]) -> Result<()> {
    let (docker, container) = (&instance.kind.container.docker, &instance.kind.container.name);
    let usual = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut env = vec![usual.to_owned(), "HOME=/root".to_owned(), "LC_ALL=C".to_owned()];
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
    let made = docker.create_exec(container, options).await.map_err(refused)?;
    let started = docker.start_exec(&made.id, None).await.map_err(refused)?;
    let StartExecResults::Attached { mut output, input } = started else {
        return Err(Error::new(ErrorKind::Unexpected, OPERATION, "the engine attached nothing"));
    };
    // As long as this is open the package manager goes on.
    let _open = input;
    let mut said = Vec::new();
    let listen = async {
        while let Some(piece) = output.next().await {
            let (LogOutput::StdOut { message } | LogOutput::StdErr { message }) =
                piece.map_err(refused)?
            else {
                continue;
            };
            said.extend_from_slice(&message);
            let excess = said.len().saturating_sub(MAX_QUOTED);
            said.drain(..excess);
        }
        Ok(())
    };
    timeout(INSTALL_TIMEOUT, listen).await.unwrap_or_else(|_| {
        let message = "system packages were not installed within 30 minutes";
        Err(Error::new(ErrorKind::Timeout, OPERATION, message))
    })?;
    let status = docker.inspect_exec(&made.id).await.map_err(refused)?.exit_code;
    match status {
        Some(0) => Ok(()),
        status => {
            let said = String::from_utf8_lossy(&said);
            Err(failed(&said, status.unwrap_or(-1), network.is_closed()))
        }
    }
}
