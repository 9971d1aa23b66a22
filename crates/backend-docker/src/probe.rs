//! Python programs that the backend runs in a container before any code of the sandbox.

use std::time::Duration;

use sandbox_agent_client::AgentConnection;
use sandbox_core::{Error, ErrorKind, Result};
use sandbox_engine::host::{ProcessHost as _, Spawn};
use tokio::time::timeout;

/// Limits one program. The interpreter is part of the image, which may hold anything.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs a program with an interpreter of the image and returns its exit status.
///
/// # Errors
/// `Unavailable` when the program takes longer than twenty seconds.
pub(crate) async fn run_python(
    agent: &AgentConnection,
    python: &str,
    program: &str,
    arguments: Vec<String>,
) -> Result<Option<i32>> {
    let mut argv: Vec<String> = [python, "-I", "-S", "-c", program].map(str::to_owned).into();
    argv.extend(arguments);
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
    let env = [("PATH".to_owned(), path)].into();
    let spec = Spawn {
        argv,
        env,
        cwd: "/".into(),
        stdin: false,
        terminal: None,
        label: None,
        as_root: false,
        limit: None,
    };
    let finished = async { agent.spawn(spec).await?.process.exit().await };
    let exit = timeout(PROBE_TIMEOUT, finished).await.map_err(|_| {
        let message = format!("`{python}` of the image has not ended in {PROBE_TIMEOUT:?}");
        Error::new(ErrorKind::Unavailable, "create", message).with_hint(
            "it checks the container before any code runs; it has to be a Python that works",
        )
    })??;
    Ok(exit.code)
}
