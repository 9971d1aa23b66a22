//! What the backend and each create can be told.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jupyter_protocol::Transport;
use sandbox_core::{CreateSpec, Error, Result, SingleUse, random_hex};
use sandbox_engine::pip_options;
use serde_json::Value;

use crate::gpus::Gpus;

/// The image that sandboxes start from when none is named.
pub const DEFAULT_IMAGE: &str = "code-sandboxes:latest";

/// A user of a container and its group, in numbers: a name means what the image says it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct User {
    pub(crate) id: u32,
    pub(crate) group: u32,
}

/// Users of containers. Engines that remap users have these numbers as well: they have 65536 of them.
const OWN: Range<u32> = 20_000..60_000;

impl User {
    /// Another one for each container, with no name and no rights in any image: what the kernel counts for a user, such as
    /// descriptors on their way through sockets, pages of pipes and what `inotify` and epoll watch, is counted for one
    /// container alone.
    fn allocate() -> Self {
        // Those of other programs begin elsewhere.
        static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| {
            AtomicU32::new(
                u32::from_str_radix(&random_hex(4), 16).unwrap_or_else(|_| std::process::id()),
            )
        });
        let count = OWN.end - OWN.start;
        let next = || OWN.start + NEXT.fetch_add(1, Ordering::Relaxed) % count;
        let accounts = accounts();
        let mut id = next();
        // An account of this host would share them.
        for _ in 0..count {
            if !accounts.contains(&id) {
                break;
            }
            id = next();
        }
        Self { id, group: id }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.parse().ok().filter(|id| *id < u32::MAX);
        let (id, group) = text.split_once(':')?;
        Some(Self { id: number(id)?, group: number(group)? })
    }
}

/// The numbers of the users and groups that this host has names for.
fn accounts() -> BTreeSet<u32> {
    let number = |line: &str| line.split(':').nth(2)?.parse().ok();
    let files =
        ["/etc/passwd", "/etc/group"].map(|path| fs::read_to_string(path).unwrap_or_default());
    files.iter().flat_map(|text| text.lines()).filter_map(number).collect()
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.id, self.group)
    }
}

/// Defaults of a [`DockerBackend`](crate::DockerBackend). What a create says wins over them.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DockerConfig {
    /// The engine's address, such as `unix:///run/docker.sock` or `tcp://host:2376`. Default: `DOCKER_HOST`, then the
    /// current context, then the usual sockets of Docker and Podman.
    pub host: Option<String>,
    /// A directory with `ca.pem`, `cert.pem` and `key.pem`: an engine over TCP is talked to over TLS, has to be signed by the
    /// first, and is shown the others. Default: that of the context; with an address of another origin what
    /// `DOCKER_CERT_PATH` names when `DOCKER_TLS_VERIFY` is set, or else no encryption.
    pub certificates: Option<PathBuf>,
    /// Whether an engine of another host may be talked to over TCP without encryption. Everybody on the way there can read and
    /// change all that is said then, code, results and secrets, and whoever reaches its port is root of its host. Default:
    /// `false`, which refuses such an address as `Unsupported`; one of this host's loopback needs no encryption.
    pub unencrypted: bool,
    /// How long nothing may be heard of a container, several questions unanswered, until it counts as lost: a network can
    /// end without a word. Default: 45 seconds. A busy machine can be silent for some seconds.
    pub silence: Option<Duration>,
    /// The image. Default: `CODE_SANDBOXES_IMAGE`, then [`DEFAULT_IMAGE`].
    pub image: Option<String>,
    /// Where snapshots are kept. Default: `snapshots` in what `CODE_SANDBOXES_STATE_DIR` names, in `code-sandboxes` in
    /// `XDG_STATE_HOME`, or in `~/.local/state/code-sandboxes`.
    pub snapshot_directory: Option<PathBuf>,
}

/// What runs code in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CodeRunner {
    /// Workers of our own, forked from a warm interpreter.
    #[default]
    Python,
    /// Jupyter kernels, by the name of their specification. Without a transport it is Unix sockets in a directory of their
    /// own, and TCP on the loopback for a kernel that ends when it is to use those.
    Jupyter { kernel: String, transport: Option<Transport> },
    /// Nothing: commands and files alone.
    None,
}

impl CodeRunner {
    /// By its name. `None` for a name that is none.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let kernel = match name {
            "python" => return Some(Self::Python),
            NO_ENGINE => return Some(Self::None),
            "jupyter" => DEFAULT_KERNEL,
            name => name.strip_prefix("jupyter:").filter(|kernel| is_word(kernel))?,
        };
        Some(Self::Jupyter { kernel: kernel.to_owned(), transport: None })
    }
}

impl fmt::Display for CodeRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Python => f.write_str("python"),
            Self::Jupyter { kernel, .. } => write!(f, "jupyter:{kernel}"),
            Self::None => f.write_str(NO_ENGINE),
        }
    }
}

/// What is asked for where nothing shall run code.
const NO_ENGINE: &str = "none";

/// The kernel that is meant where none is named.
pub(crate) const DEFAULT_KERNEL: &str = "python3";

/// The options of one create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) image: String,
    pub(crate) engine: CodeRunner,
    /// Whether that was said. Otherwise the image may say it.
    pub(crate) names_engine: bool,
    pub(crate) python: String,
    /// The one that is named.
    pub(crate) user: Option<User>,
    /// The one that it is otherwise.
    own_user: User,
    pub(crate) runtime: Option<String>,
    pub(crate) platform: Option<String>,
    pub(crate) writable_root: bool,
    pub(crate) lazy: bool,
    /// An image that the engine does not have is fetched.
    pub(crate) pull: bool,
    pub(crate) pip: Vec<String>,
    /// GPUs of the engine's host.
    pub(crate) gpus: Option<Gpus>,
}

impl DockerConfig {
    pub(crate) fn image(&self) -> String {
        let named = || std::env::var("CODE_SANDBOXES_IMAGE").ok().filter(|name| !name.is_empty());
        self.image.clone().or_else(named).unwrap_or_else(|| DEFAULT_IMAGE.to_owned())
    }
}

impl Options {
    pub(crate) fn from_spec(config: &DockerConfig, spec: &CreateSpec) -> Result<Self> {
        let mut options = Self {
            image: spec.image.clone().unwrap_or_else(|| config.image()),
            engine: engine(spec)?,
            names_engine: spec.provider_options.contains_key("engine"),
            python: "python3".into(),
            user: None,
            own_user: User::allocate(),
            runtime: None,
            platform: None,
            writable_root: false,
            lazy: spec.single_use == Some(SingleUse::Commands),
            pull: false,
            pip: Vec::new(),
            gpus: spec.gpu.as_deref().map(Gpus::parse).transpose()?,
        };
        for (key, value) in &spec.provider_options {
            match (key.as_str(), value) {
                ("engine" | "transport", _) => {}
                ("python", Value::String(program)) if is_word(program) => {
                    options.python.clone_from(program);
                }
                ("user", Value::String(user)) if User::parse(user).is_some() => {
                    options.user = User::parse(user);
                }
                ("runtime", Value::String(name)) if is_word(name) => {
                    options.runtime = Some(name.clone());
                }
                ("platform", Value::String(name)) if is_word(name) => {
                    options.platform = Some(name.clone());
                }
                ("writable_root", Value::Bool(writable)) => options.writable_root = *writable,
                ("interpreter", Value::String(when)) if when == "lazy" => options.lazy = true,
                ("interpreter", Value::String(when)) if when == "eager" => options.lazy = false,
                ("pull", Value::String(when)) if when == "missing" => options.pull = true,
                ("pull", Value::String(when)) if when == "never" => options.pull = false,
                ("pip", Value::Array(given)) => options.pip = pip_options(given)?,
                _ => return Err(unknown(key, value)),
            }
        }
        if !is_word(&options.image) {
            return Err(Error::invalid("image", format!("is no name, got {:?}", options.image)));
        }
        Ok(options)
    }

    /// Who code is.
    pub(crate) fn user(&self) -> User {
        self.user.unwrap_or(self.own_user)
    }
}

/// What `engine` says, and `transport`, which goes with kernels alone.
fn engine(spec: &CreateSpec) -> Result<CodeRunner> {
    let given = |key: &'static str| spec.provider_options.get(key).map(|value| (key, value));
    let transport = match given("transport") {
        None => None,
        Some((_, Value::String(name))) if name == "ipc" => Some(Transport::Ipc),
        Some((_, Value::String(name))) if name == "tcp" => Some(Transport::Tcp),
        Some((key, value)) => return Err(unknown(key, value)),
    };
    let engine = match given("engine") {
        None => CodeRunner::default(),
        Some((key, value)) => {
            value.as_str().and_then(CodeRunner::parse).ok_or_else(|| unknown(key, value))?
        }
    };
    match (engine, transport) {
        (CodeRunner::Python | CodeRunner::None, Some(_)) => {
            let problem = "have transport, which is for the engine jupyter";
            Err(Error::invalid("provider_options", problem))
        }
        (CodeRunner::Jupyter { kernel, .. }, transport) => {
            Ok(CodeRunner::Jupyter { kernel, transport })
        }
        (engine, None) => Ok(engine),
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('-') && text.chars().all(|c| c.is_ascii_graphic())
}

fn unknown(key: &str, value: &Value) -> Error {
    Error::invalid(
        "provider_options",
        format!(
            "of local-docker have no {key:?} = {value}; known: engine (\"python\", \"jupyter\", \"jupyter:\" and the name \
             of a kernel, or \"none\"), transport (\"ipc\" or \"tcp\"), python (program in the image), user (\"uid:gid\"), runtime (name), platform (\"os/architecture\"), writable_root (true or false), \
             interpreter (\"eager\" or \"lazy\"), pull (\"missing\" or \"never\"), pip (list of options of pip)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(given: Value) -> Result<Options> {
        let mut spec = CreateSpec::default();
        spec.provider_options = given.as_object().cloned().unwrap_or_default();
        Options::from_spec(&DockerConfig::default(), &spec)
    }

    #[test]
    fn known_options_are_taken_and_others_refused() {
        let options = parse(json!({"user": "1000:100", "writable_root": true})).unwrap();
        assert_eq!(options.user(), User { id: 1000, group: 100 });
        assert!(options.writable_root);
        for bad in [
            json!({"usr": "1:1"}),
            json!({"user": "root"}),
            json!({"user": "1"}),
            json!({"runtime": "a b"}),
            json!({"python": "-c"}),
            json!({"writable_root": "yes"}),
            json!({"pip": ["--target=/x"]}),
            json!({"engine": "perl"}),
            json!({"engine": "jupyter:"}),
            json!({"engine": "jupyter:a b"}),
            json!({"engine": true}),
            json!({"transport": "ipc"}),
            json!({"engine": "jupyter", "transport": "udp"}),
            json!({"engine": "none", "transport": "tcp"}),
        ] {
            parse(bad.clone()).expect_err(&bad.to_string());
        }
    }

    /// The kernel counts for users what no limit of a container counts.
    #[test]
    fn each_container_has_a_user_of_its_own() {
        let users: Vec<User> = (0..100).map(|_| parse(json!({})).unwrap().user()).collect();
        let accounts = accounts();
        assert!(accounts.contains(&0), "{accounts:?}");
        for user in &users {
            assert!(OWN.contains(&user.id) && user.group == user.id, "{user}");
            assert!(!accounts.contains(&user.id), "{user}");
        }
        assert_eq!(users.iter().collect::<BTreeSet<_>>().len(), users.len());
    }

    #[test]
    fn a_kernel_is_asked_for() {
        let engine = |given| parse(given).unwrap().engine;
        let kernel =
            |name: &str, transport| CodeRunner::Jupyter { kernel: name.to_owned(), transport };
        assert_eq!(engine(json!({})), CodeRunner::Python);
        assert_eq!(engine(json!({"engine": "python"})), CodeRunner::Python);
        assert_eq!(engine(json!({"engine": "none"})), CodeRunner::None);
        assert_eq!(engine(json!({"engine": "jupyter"})), kernel("python3", None));
        assert_eq!(
            engine(json!({"engine": "jupyter:ir", "transport": "tcp"})),
            kernel("ir", Some(Transport::Tcp))
        );
    }
}
