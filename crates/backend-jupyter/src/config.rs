//! What the backend and each create can be told.

use std::path::PathBuf;

use sandbox_core::{Error, Result, SingleUse};
use sandbox_local::pip_options;
use serde_json::{Map, Value};

/// The kernel that is used when none is named.
pub(crate) const DEFAULT_KERNEL: &str = "python3";

/// How a kernel is talked to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Over Unix sockets, in a directory of its own.
    #[default]
    Ipc,
    /// Over TCP on the loopback. A cell has a loopback of its own, so only without isolation.
    Tcp,
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

/// The options of one create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) kernel: Option<String>,
    pub(crate) python: Option<PathBuf>,
    pub(crate) transport: Transport,
    /// Start no kernel before the first run.
    pub(crate) lazy: bool,
    /// Where packages come from, as options for pip.
    pub(crate) pip: Vec<String>,
}

impl Options {
    /// The options of a backend itself.
    pub(crate) fn of_backend(config: &JupyterConfig) -> Self {
        Self {
            kernel: config.kernel.clone(),
            python: config.python.clone(),
            transport: Transport::Ipc,
            lazy: false,
            pip: Vec::new(),
        }
    }

    /// The options of a create.
    pub(crate) fn of_create(
        config: &JupyterConfig,
        purpose: Option<SingleUse>,
        given: &Map<String, Value>,
    ) -> Result<Self> {
        let mut options =
            Self { lazy: purpose == Some(SingleUse::Commands), ..Self::of_backend(config) };
        for (key, value) in given {
            match (key.as_str(), value) {
                ("kernel", Value::String(name)) if !name.is_empty() => {
                    options.kernel = Some(name.clone());
                }
                ("python", Value::String(path)) => options.python = Some(path.into()),
                ("transport", Value::String(name)) if name == "ipc" => {
                    options.transport = Transport::Ipc;
                }
                ("transport", Value::String(name)) if name == "tcp" => {
                    options.transport = Transport::Tcp;
                }
                ("interpreter", Value::String(when)) if when == "lazy" => options.lazy = true,
                ("interpreter", Value::String(when)) if when == "eager" => options.lazy = false,
                ("pip", Value::Array(given)) => options.pip = pip_options(given)?,
                _ => return Err(unknown(key, value)),
            }
        }
        Ok(options)
    }
}

fn unknown(key: &str, value: &Value) -> Error {
    Error::invalid(
        "provider_options",
        format!(
            "of local-jupyter have no {key:?} = {value}; known: kernel (name), python (path), transport (\"ipc\" or \
             \"tcp\"), interpreter (\"eager\" or \"lazy\"), pip (list of options of pip)"
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
        assert!(options.lazy && options.transport == Transport::Tcp);
        for bad in [
            json!({"kernl": "bash"}),
            json!({"kernel": 1}),
            json!({"kernel": ""}),
            json!({"transport": "udp"}),
            json!({"interpreter": "never"}),
            json!({"pip": "--no-index"}),
        ] {
            parse(bad.clone()).expect_err(&bad.to_string());
        }
    }
}
