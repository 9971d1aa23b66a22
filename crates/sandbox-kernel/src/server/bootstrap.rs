//! The first code in a Python kernel of a server.

use std::collections::BTreeMap;
use std::time::Duration;

use jupyter_protocol::ExecuteRequest;
use jupyter_protocol::client::{Client, ClientError};
use jupyter_protocol::content::StreamName;
use jupyter_protocol::execution::Event;
use sandbox_core::{Effect, Error, ErrorKind, Result};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Limits the run of the code.
const BOOTSTRAP_TIMEOUT: Duration = Duration::from_secs(60);

/// Code that runs before any other, leaves no name behind, and prints the environment of the kernel.
const BOOTSTRAP: &str = "\
import json, os, sys, time
env, cwd = json.loads(SETTINGS)
os.environ.update(env)
if 'TZ' in env and hasattr(time, 'tzset'):
    time.tzset()
if cwd is not None:
    os.makedirs(cwd, exist_ok=True)
    os.chdir(cwd)
for place in reversed(env.get('PYTHONPATH', '').split(os.pathsep)):
    if place and os.path.abspath(place) not in sys.path:
        sys.path.insert(1, os.path.abspath(place))
def is_text(pair):
    try:
        return bool(''.join(pair).encode())
    except UnicodeError:
        return False
print(json.dumps({
    'cwd': os.getcwd(),
    'home': os.path.expanduser('~'),
    'python': sys.executable,
    'env': dict(filter(is_text, os.environ.items())),
}))
";

/// The environment of a kernel.
#[derive(Clone, Debug, Deserialize)]
pub struct KernelEnvironment {
    /// The working directory.
    pub cwd: String,
    /// The home directory of the user.
    pub home: String,
    /// The interpreter.
    #[serde(default)]
    pub python: String,
    /// The environment variables that are valid text.
    #[serde(default)]
    env: BTreeMap<String, String>,
}

impl KernelEnvironment {
    /// Returns the environment for programs beside the kernel: that of the kernel, without variables for kernels only.
    pub fn program_env(&self) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        env.retain(|name, _| !name.starts_with("JPY_") && !KERNEL_VARIABLES.contains(&&**name));
        env
    }
}

/// Variables that servers and kernels set for kernels only.
const KERNEL_VARIABLES: [&str; 8] = [
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "FORCE_COLOR",
    "GIT_PAGER",
    "MPLBACKEND",
    "PAGER",
    "PYDEVD_USE_FRAME_EVAL",
    "TERM",
];

/// Sets the environment variables of a Python kernel, creates and enters a directory, and returns the environment of
/// the kernel.
///
/// # Errors
/// `Unavailable` if that fails, or if the kernel is busy with other code for too long.
pub async fn bootstrap(
    client: &Client,
    env: &BTreeMap<String, String>,
    cwd: Option<&str>,
) -> Result<KernelEnvironment> {
    let settings = json!([env, cwd]);
    let code = format!(
        "exec(compile({}, '<sandbox>', 'exec'), {{'SETTINGS': {}}})",
        Value::from(BOOTSTRAP),
        Value::from(settings.to_string()),
    );
    let mut request = ExecuteRequest::new(code);
    (request.silent, request.store_history) = (false, false);
    let work = async {
        let mut running = client.execute(request).await.map_err(not_connected)?;
        let (mut output, mut problem) = (String::new(), None);
        while let Some(event) = running.next().await {
            match event {
                Event::Stream(stream) if stream.name == StreamName::Stdout => {
                    output.push_str(&stream.text);
                }
                Event::Finished(outcome) => {
                    problem =
                        outcome.error.map(|error| format!("{}: {}", error.ename, error.evalue));
                }
                _ => {}
            }
        }
        match problem {
            Some(problem) => Err(failed(format!("the kernel could not be prepared: {problem}"))),
            None => serde_json::from_str(&output).map_err(|error| {
                failed("the kernel did not report its environment".into()).with_source(error)
            }),
        }
    };
    timeout(BOOTSTRAP_TIMEOUT, work).await.unwrap_or_else(|_| {
        Err(failed("the kernel was not prepared in time: other code runs in it".to_owned()))
    })
}

fn failed(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, "start_kernel", message).with_effect(Effect::Applied)
}

fn not_connected(error: ClientError) -> Error {
    failed(format!("the kernel could not be reached: {error}"))
}
