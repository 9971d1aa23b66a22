//! What the backend and each create can be told.

use std::path::PathBuf;

use sandbox_cells::visible_paths::{USER_OPTION, WRITABLE_OPTION, are_writable, is_user};
use sandbox_core::{Error, Result, Secret, SingleUse};
use sandbox_engine::pip_options;
use serde_json::{Map, Value};

/// The kernel that is used when none is named.
pub(crate) const DEFAULT_KERNEL: &str = "python3";

/// How a kernel is talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Over Unix sockets, in a directory of its own.
    Ipc,
    /// Over TCP on the loopback: that of the cell, which is its own, or without isolation that of this host.
    Tcp,
}

impl From<Transport> for jupyter_protocol::Transport {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Ipc => Self::Ipc,
            Transport::Tcp => Self::Tcp,
        }
    }
}

/// Defaults of a [`JupyterBackend`](crate::JupyterBackend). The options of a create win over them.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct JupyterConfig {
    /// The name of a kernel specification. Default: `python3`.
    pub kernel: Option<String>,
    /// The interpreter whose environment is searched for kernels. Default: `CODE_SANDBOXES_PYTHON`, then the one in use.
    pub python: Option<PathBuf>,
}

/// A Jupyter Server, and how it knows us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAccess {
    pub(crate) url: String,
    pub(crate) token: Option<Secret>,
    /// Headers of every request.
    pub(crate) headers: Vec<(String, Secret)>,
}

/// Where kernels are that are not in a cell of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// On a Jupyter Server: kernels of their own, or one that runs there already.
    Server { access: ServerAccess, kernel_id: Option<String> },
    /// One that runs, where its connection file says.
    ConnectionFile(PathBuf),
}

/// The options of one create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) kernel: Option<String>,
    pub(crate) python: Option<PathBuf>,
    /// `None`: Unix sockets, and TCP for a kernel that ends when it is to use those.
    pub(crate) transport: Option<Transport>,
    /// Prepare an interpreter for many kernels instead of one.
    pub(crate) warm: bool,
    /// Start no kernel before the first run.
    pub(crate) lazy: bool,
    /// Where packages come from, as options for pip.
    pub(crate) pip: Vec<String>,
    /// Kernels elsewhere, instead of those of this host.
    pub(crate) target: Option<Target>,
}

/// What is for kernels that are started on this host.
const OF_THIS_HOST: [&str; 6] = ["python", "transport", "user", "writable", "warm", "interpreter"];

impl Options {
    /// Whether packages can be installed where its kernels are.
    fn installs(&self) -> bool {
        matches!(&self.target, None | Some(Target::Server { kernel_id: None, .. }))
    }

    /// The options of a backend itself.
    pub(crate) fn of_backend(config: &JupyterConfig) -> Self {
        Self {
            kernel: config.kernel.clone(),
            python: config.python.clone(),
            transport: None,
            warm: true,
            lazy: false,
            pip: Vec::new(),
            target: None,
        }
    }

    /// The options of a create.
    pub(crate) fn of_create(
        config: &JupyterConfig,
        purpose: Option<SingleUse>,
        given: &Map<String, Value>,
    ) -> Result<Self> {
        let mut options = Self {
            warm: purpose.is_none(),
            lazy: purpose == Some(SingleUse::Commands),
            ..Self::of_backend(config)
        };
        options.target = target(given)?;
        if options.target.is_some() {
            // That name is one of this host.
            options.kernel = None;
        }
        for (key, value) in given {
            let elsewhere = options.target.is_some();
            match (key.as_str(), value) {
                ("server_url" | "token" | "headers" | "kernel_id" | "connection_file", _) => {}
                (key, _) if elsewhere && OF_THIS_HOST.contains(&key) => {
                    let problem = format!("have {key}, which is for kernels of this host");
                    return Err(Error::invalid("provider_options", problem));
                }
                ("kernel", Value::String(name)) if !name.is_empty() => {
                    options.kernel = Some(name.clone());
                }
                ("python", Value::String(path)) => options.python = Some(path.into()),
                ("transport", Value::String(name)) if name == "ipc" => {
                    options.transport = Some(Transport::Ipc);
                }
                ("transport", Value::String(name)) if name == "tcp" => {
                    options.transport = Some(Transport::Tcp);
                }
                (USER_OPTION, Value::String(name)) if is_user(name) => {}
                (WRITABLE_OPTION, Value::Array(paths)) if are_writable(paths) => {}
                ("warm", Value::Bool(warm)) => options.warm = *warm,
                ("interpreter", Value::String(when)) if when == "lazy" => options.lazy = true,
                ("interpreter", Value::String(when)) if when == "eager" => options.lazy = false,
                ("pip", _) if !options.installs() => {
                    let problem = "have pip, but nothing is installed beside a kernel that this program did not start";
                    return Err(Error::invalid("provider_options", problem));
                }
                ("pip", Value::Array(given)) => options.pip = pip_options(given)?,
                _ => return Err(unknown(key)),
            }
        }
        Ok(options)
    }
}

/// Where kernels are, when that is not here.
fn target(given: &Map<String, Value>) -> Result<Option<Target>> {
    let text = |key: &str| match given.get(key) {
        None => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
        Some(_) => Err(unknown(key)),
    };
    let (url, file) = (text("server_url")?, text("connection_file")?);
    // A server without a token is configured as such.
    let has_token = given.get("token").is_some_and(|token| *token != "");
    let token = if has_token { text("token")?.map(Secret::new) } else { None };
    let kernel_id = text("kernel_id")?;
    let headers = headers(given.get("headers"))?;
    let both = |one: &str, other: &str| {
        Err(Error::invalid("provider_options", format!("have {one}, which goes with {other}")))
    };
    match (url, file) {
        (Some(_), Some(_)) => Err(Error::invalid(
            "provider_options",
            "have server_url and connection_file; a kernel is reached by one of them",
        )),
        (None, Some(_)) if given.contains_key("kernel") => Err(Error::invalid(
            "provider_options",
            "have kernel and connection_file; the kernel of that file runs already",
        )),
        (Some(_), None) if kernel_id.is_some() && given.contains_key("kernel") => {
            Err(Error::invalid(
                "provider_options",
                "have kernel and kernel_id; the kernel of that id runs already",
            ))
        }
        (Some(url), None) => {
            let access = ServerAccess { url, token, headers };
            Ok(Some(Target::Server { access, kernel_id }))
        }
        (None, _) if token.is_some() => both("token", "server_url"),
        (None, _) if kernel_id.is_some() => both("kernel_id", "server_url"),
        (None, _) if !headers.is_empty() => both("headers", "server_url"),
        (None, Some(path)) => Ok(Some(Target::ConnectionFile(path.into()))),
        (None, None) => Ok(None),
    }
}

fn headers(given: Option<&Value>) -> Result<Vec<(String, Secret)>> {
    let given = match given {
        None => return Ok(Vec::new()),
        Some(Value::Object(given)) => given,
        Some(_) => return Err(unknown("headers")),
    };
    let header = |(name, value): (&String, &Value)| {
        let value = value.as_str().ok_or_else(|| unknown("headers"))?;
        Ok((name.clone(), Secret::new(value)))
    };
    given.iter().map(header).collect()
}

/// The value is not told: it may be a token.
fn unknown(key: &str) -> Error {
    Error::invalid(
        "provider_options",
        format!(
            "of local-jupyter have no {key:?} of that value; known: kernel (name), python (path), transport (\"ipc\" or \
             \"tcp\"), warm (true or false), interpreter (\"eager\" or \"lazy\"), user (name), writable (list of absolute paths), pip (list of options of pip), server_url, token, kernel_id \
             (text), headers (names with text), connection_file (path)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(given: Value) -> Result<Options> {
        let Value::Object(given) = given else { panic!("not an object") };
        Options::of_create(&JupyterConfig::default(), None, &given)
    }

    #[test]
    fn known_options_are_taken_and_others_refused() {
        let options =
            parse(json!({"kernel": "bash", "transport": "tcp", "interpreter": "lazy"})).unwrap();
        assert_eq!(options.kernel.as_deref(), Some("bash"));
        assert!(options.lazy && options.warm && options.transport == Some(Transport::Tcp));
        assert!(!parse(json!({"warm": false})).unwrap().warm);
        for bad in [
            json!({"kernl": "bash"}),
            json!({"kernel": 1}),
            json!({"kernel": ""}),
            json!({"transport": "udp"}),
            json!({"warm": "yes"}),
            json!({"interpreter": "never"}),
            json!({"pip": "--no-index"}),
            json!({"server_url": 1}),
            json!({"token": "hunter2"}),
            json!({"kernel_id": "a"}),
            json!({"headers": {"X-A": "hunter2"}}),
            json!({"server_url": "http://h", "headers": {"X-A": 1}}),
            json!({"server_url": "http://h", "transport": "tcp"}),
            json!({"server_url": "http://h", "warm": true}),
            json!({"server_url": "http://h", "connection_file": "/k.json"}),
            json!({"server_url": "http://h", "kernel": "a", "kernel_id": "b"}),
            json!({"connection_file": "/k.json", "kernel": "a"}),
            json!({"connection_file": "/k.json", "token": "hunter2"}),
        ] {
            parse(bad.clone()).expect_err(&bad.to_string());
        }
    }
    #[test]
    fn where_kernels_are_is_understood_and_secrets_are_not_shown() {
        let options = parse(json!({
            "server_url": "http://127.0.0.1:8888", "token": "hunter2", "headers": {"X-A": "hunter3"}, "kernel": "bash",
        }))
        .unwrap();
        assert_eq!(options.kernel.as_deref(), Some("bash"));
        let shown = format!("{options:?}");
        assert!(!shown.contains("hunter") && shown.contains("X-A"), "{shown}");
        let Some(Target::Server { access, kernel_id: None }) = options.target else {
            panic!("{shown}")
        };
        assert_eq!(access.token, Some(Secret::new("hunter2")));
        let open = parse(json!({"server_url": "http://h", "token": ""})).unwrap().target;
        let is_open = |target: &Target| matches!(target, Target::Server { access, .. } if access.token.is_none());
        assert!(open.as_ref().is_some_and(is_open), "{open:?}");
        let file = parse(json!({"connection_file": "/k.json"})).unwrap().target;
        assert_eq!(file, Some(Target::ConnectionFile("/k.json".into())));
        let error = parse(json!({"tokken": "hunter2"})).unwrap_err();
        assert!(!format!("{error:?}").contains("hunter"), "{error:?}");
    }
}
