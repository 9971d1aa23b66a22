//! What the backend and each create can be told.

use std::path::PathBuf;

use sandbox_cells::visible_paths::{USER_OPTION, WRITABLE_OPTION, are_writable, is_user};
use sandbox_core::{Error, IsolationMode, Result, SingleUse};
use sandbox_engine::{StoredSnapshot, pip_options};
use serde_json::{Map, Value};

/// Defaults of an [`EvalBackend`](crate::EvalBackend). The options of a create win over them.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct EvalConfig {
    /// The interpreter. Default: `CODE_SANDBOXES_PYTHON`, then `VIRTUAL_ENV`, then `python3` and `python` on `PATH`.
    pub python: Option<PathBuf>,
    /// Modules imported once, before any sandbox.
    pub preimport: Vec<String>,
    /// Where snapshots are kept. Default: `snapshots` in what `CODE_SANDBOXES_STATE_DIR` names, in `code-sandboxes` in
    /// `XDG_STATE_HOME`, or in `~/.local/state/code-sandboxes`.
    pub snapshot_directory: Option<PathBuf>,
}

/// The options of one create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) python: Option<PathBuf>,
    pub(crate) preimport: Vec<String>,
    /// Begin with what the interpreters of a template had imported.
    pub(crate) template_imports: bool,
    /// What that is. Code in a sandbox has said so.
    pub(crate) imports: Vec<String>,
    /// Prepare the interpreter for many sandboxes instead of one.
    pub(crate) warm: bool,
    /// Start no interpreter before the first run.
    pub(crate) lazy: bool,
    /// Where packages come from, as options for pip.
    pub(crate) pip: Vec<String>,
}

impl Options {
    /// The options of a backend itself.
    pub(crate) fn of_backend(config: &EvalConfig) -> Self {
        Self {
            python: config.python.clone(),
            preimport: config.preimport.clone(),
            template_imports: true,
            imports: Vec::new(),
            warm: true,
            lazy: false,
            pip: Vec::new(),
        }
    }

    /// The options of a create. What is given wins over what its purpose suggests.
    pub(crate) fn of_create(
        config: &EvalConfig,
        purpose: Option<SingleUse>,
        given: &Map<String, Value>,
    ) -> Result<Self> {
        let mut options = Self {
            warm: purpose.is_none(),
            lazy: purpose == Some(SingleUse::Commands),
            ..Self::of_backend(config)
        };
        for (key, value) in given {
            match (key.as_str(), value) {
                ("python", Value::String(path)) => options.python = Some(path.into()),
                ("preimport", Value::Array(modules)) => options.preimport = module_names(modules)?,
                ("template_imports", Value::Bool(begin)) => options.template_imports = *begin,
                (USER_OPTION, Value::String(name)) if is_user(name) => {}
                (WRITABLE_OPTION, Value::Array(paths)) if are_writable(paths) => {}
                ("warm", Value::Bool(warm)) => options.warm = *warm,
                ("interpreter", Value::String(when)) if when == "lazy" => options.lazy = true,
                ("interpreter", Value::String(when)) if when == "eager" => options.lazy = false,
                ("pip", Value::Array(given)) => options.pip = pip_options(given)?,
                _ => return Err(unknown(key, value)),
            }
        }
        Ok(options)
    }
}

impl Options {
    /// Modules that the sandbox of a snapshot had from the beginning are there from the beginning. So is what its
    /// interpreters had imported, where that pays and a cell is around it.
    pub(crate) fn begin_like(&mut self, stored: &StoredSnapshot, isolation: IsolationMode) {
        if self.template_imports && self.warm && isolation == IsolationMode::Strict {
            self.imports = stored.imports();
        }
        let new = stored.preimport().iter().filter(|name| !self.preimport.contains(name));
        let new: Vec<_> = new.cloned().collect();
        self.preimport.extend(new);
    }
}

fn module_names(modules: &[Value]) -> Result<Vec<String>> {
    let name = |module: &Value| {
        let name = module.as_str().filter(|name| is_module(name));
        name.map(str::to_owned).ok_or_else(|| {
            Error::invalid(
                "provider_options",
                format!("preimport has {module}, which is no module name"),
            )
        })
    };
    modules.iter().map(name).collect()
}

fn is_module(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with(|c: char| c.is_ascii_digit())
            && part.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    name.split('.').all(part)
}

fn unknown(key: &str, value: &Value) -> Error {
    Error::invalid(
        "provider_options",
        format!(
            "of local-eval have no {key:?} = {value}; known: python (path), preimport (list of modules), \
             template_imports (true or false), warm (true or false), interpreter (\"eager\" or \"lazy\"), \
             user (name), writable (list of absolute paths), pip (list of options of pip)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(given: Value) -> Result<Options> {
        let Value::Object(given) = given else { panic!("not an object") };
        Options::of_create(&EvalConfig::default(), None, &given)
    }

    #[test]
    fn a_single_use_prepares_only_what_it_needs() {
        let config = EvalConfig::default();
        let of = |purpose, given: Value| {
            let given = given.as_object().cloned().unwrap_or_default();
            let options = Options::of_create(&config, purpose, &given).unwrap();
            (options.warm, options.lazy)
        };
        assert_eq!(of(None, json!({})), (true, false));
        assert_eq!(of(Some(SingleUse::Code), json!({})), (false, false));
        assert_eq!(of(Some(SingleUse::Commands), json!({})), (false, true));
        let given = json!({"warm": true, "interpreter": "eager"});
        assert_eq!(of(Some(SingleUse::Commands), given), (true, false));
    }

    #[test]
    fn known_options_are_taken_and_others_refused() {
        let options = parse(json!({"preimport": ["numpy", "os.path"], "warm": false})).unwrap();
        assert_eq!(options.preimport, ["numpy", "os.path"]);
        assert!(!options.warm);
        for bad in [
            json!({"memroy": 1}),
            json!({"warm": "yes"}),
            json!({"preimport": ["os; import sys"]}),
            json!({"preimport": [1]}),
            json!({"template_imports": ["numpy"]}),
            json!({"interpreter": "never"}),
            json!({"pip": ["--target=/x"]}),
            json!({"pip": "--no-index"}),
        ] {
            parse(bad.clone()).expect_err(&bad.to_string());
        }
    }
}
