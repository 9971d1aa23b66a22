//! Configuration of the backend, and the options of one create.

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

/// Default image of sandboxes.
pub const DEFAULT_IMAGE: &str = "code-sandboxes:latest";

/// The shell of an image.
pub(crate) const SHELL: &str = "/bin/sh";

/// User and group of a container, by number: the image decides what a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct User {
    pub(crate) id: u32,
    pub(crate) group: u32,
}

/// Users that are allocated to containers. Engines that remap users have these numbers too, of 65536.
const ALLOCATED_IDS: Range<u32> = 20_000..60_000;

impl User {
    pub(crate) const ROOT: Self = Self { id: 0, group: 0 };

    /// Allocates another user for each container, without a name or rights in any image. So the resources that the kernel
    /// counts by user, such as descriptors in transit through sockets, pages of pipes, and watches of `inotify` and epoll, are
    /// counted for each container separately.
    fn allocate() -> Self {
        // Other programs start at other numbers.
        static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| {
            AtomicU32::new(
                u32::from_str_radix(&random_hex(4), 16).unwrap_or_else(|_| std::process::id()),
            )
        });
        let count = ALLOCATED_IDS.end - ALLOCATED_IDS.start;
        let next = || ALLOCATED_IDS.start + NEXT.fetch_add(1, Ordering::Relaxed) % count;
        let accounts = accounts();
        let mut id = next();
        // An account of this host would share its resources with the container.
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

/// Returns the numbers of the named users and groups of this host.
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

/// Defaults of a [`DockerBackend`](crate::DockerBackend). Each create overrides them.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DockerConfig {
    /// The engine's address, such as `unix:///run/docker.sock` or `tcp://host:2376`. Default: `DOCKER_HOST`, then the
    /// current context, then the default sockets of Docker and Podman.
    pub host: Option<String>,
    /// Directory with `ca.pem`, `cert.pem` and `key.pem`, for TLS with an engine over TCP: the authority that signs the
    /// engine's certificate, and this end's certificate and key. Default: that of the context; for an address from elsewhere
    /// the directory in `DOCKER_CERT_PATH` when `DOCKER_TLS_VERIFY` is set, or else no encryption.
    pub certificates: Option<PathBuf>,
    /// Allows an engine on another host over TCP without encryption. Every machine on the way can then read and change code,
    /// results and secrets, and every client that reaches the engine's port has root's rights on its host. Default: `false`,
    /// which refuses such an address as `Unsupported`; an address of this host's loopback needs no encryption.
    pub unencrypted: bool,
    /// Time without any byte of a container, with several requests unanswered, after which it counts as lost: a network can
    /// fail silently. Default: 45 seconds. A busy machine can be silent for some seconds.
    pub silence: Option<Duration>,
    /// Image of sandboxes. Default: `CODE_SANDBOXES_IMAGE`, then [`DEFAULT_IMAGE`].
    pub image: Option<String>,
    /// Directory of snapshots. Default: `snapshots` in the directory `CODE_SANDBOXES_STATE_DIR`, in `code-sandboxes` in
    /// `XDG_STATE_HOME`, or in `~/.local/state/code-sandboxes`.
    pub snapshot_directory: Option<PathBuf>,
}

/// Runner of the code in a container: the option `engine`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CodeRunner {
    /// Python workers, forked from a warm interpreter.
    #[default]
    Python,
    /// Jupyter kernels, by the name of their specification. Without a transport a kernel uses Unix sockets in its own
    /// directory, or TCP on the loopback if it does not start with those.
    Jupyter { kernel: String, transport: Option<Transport> },
    /// No runner: only commands and files.
    None,
}

impl CodeRunner {
    /// Parses a name. Returns `None` for an unknown one.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let kernel = match name {
            "python" => return Some(Self::Python),
            NO_RUNNER => return Some(Self::None),
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
            Self::None => f.write_str(NO_RUNNER),
        }
    }
}

/// Name of [`CodeRunner::None`].
const NO_RUNNER: &str = "none";

/// Default kernel.
pub(crate) const DEFAULT_KERNEL: &str = "python3";

/// Options of one create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) image: String,
    pub(crate) runner: CodeRunner,
    /// The caller named the runner. Otherwise a label of the image may name it.
    pub(crate) names_runner: bool,
    pub(crate) python: String,
    /// The requested user.
    pub(crate) user: Option<User>,
    /// The user without a request.
    allocated_user: User,
    pub(crate) runtime: Option<String>,
    pub(crate) platform: Option<String>,
    pub(crate) writable_root: bool,
    pub(crate) lazy: bool,
    /// Commands may run as root: nothing of the host is mounted, and the caller has not chosen a user.
    pub(crate) has_root: bool,
    /// An image that the engine does not have is pulled.
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
            runner: runner(spec)?,
            names_runner: spec.provider_options.contains_key("engine"),
            python: "python3".into(),
            user: None,
            allocated_user: User::allocate(),
            runtime: None,
            platform: None,
            writable_root: false,
            lazy: spec.single_use == Some(SingleUse::Commands),
            has_root: false,
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
                ("pip", Value::Array(values)) => options.pip = pip_options(values)?,
                _ => return Err(unknown_option(key, value)),
            }
        }
        if !is_word(&options.image) {
            return Err(Error::invalid("image", format!("is not a name, got {:?}", options.image)));
        }
        options.has_root = options.user.is_none() && spec.mounts.is_empty();
        Ok(options)
    }

    /// Returns the user that code runs as.
    pub(crate) fn user(&self) -> User {
        self.user.unwrap_or(self.allocated_user)
    }
}

/// Parses the options `engine` and `transport`. Only kernels have a transport.
fn runner(spec: &CreateSpec) -> Result<CodeRunner> {
    let option = |key: &'static str| spec.provider_options.get(key).map(|value| (key, value));
    let transport = match option("transport") {
        None => None,
        Some((_, Value::String(name))) if name == "ipc" => Some(Transport::Ipc),
        Some((_, Value::String(name))) if name == "tcp" => Some(Transport::Tcp),
        Some((key, value)) => return Err(unknown_option(key, value)),
    };
    let runner = match option("engine") {
        None => CodeRunner::default(),
        Some((key, value)) => {
            value.as_str().and_then(CodeRunner::parse).ok_or_else(|| unknown_option(key, value))?
        }
    };
    match (runner, transport) {
        (CodeRunner::Python | CodeRunner::None, Some(_)) => {
            let problem = "have transport, which is only for the engine jupyter";
            Err(Error::invalid("provider_options", problem))
        }
        (CodeRunner::Jupyter { kernel, .. }, transport) => {
            Ok(CodeRunner::Jupyter { kernel, transport })
        }
        (runner, None) => Ok(runner),
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('-') && text.chars().all(|c| c.is_ascii_graphic())
}

fn unknown_option(key: &str, value: &Value) -> Error {
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

    fn parse(options: Value) -> Result<Options> {
        let mut spec = CreateSpec::default();
        spec.provider_options = options.as_object().cloned().unwrap_or_default();
        Options::from_spec(&DockerConfig::default(), &spec)
    }

    #[test]
    fn unknown_options_are_refused() {
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

    /// The kernel counts some resources by user, which no limit of a container counts.
    #[test]
    fn each_container_has_its_own_user() {
        let users: Vec<User> = (0..100).map(|_| parse(json!({})).unwrap().user()).collect();
        let accounts = accounts();
        assert!(accounts.contains(&0), "{accounts:?}");
        for user in &users {
            assert!(ALLOCATED_IDS.contains(&user.id) && user.group == user.id, "{user}");
            assert!(!accounts.contains(&user.id), "{user}");
        }
        assert_eq!(users.iter().collect::<BTreeSet<_>>().len(), users.len());
    }

    #[test]
    fn the_runner_is_parsed() {
        let runner = |options| parse(options).unwrap().runner;
        let kernel =
            |name: &str, transport| CodeRunner::Jupyter { kernel: name.to_owned(), transport };
        assert_eq!(runner(json!({})), CodeRunner::Python);
        assert_eq!(runner(json!({"engine": "python"})), CodeRunner::Python);
        assert_eq!(runner(json!({"engine": "none"})), CodeRunner::None);
        assert_eq!(runner(json!({"engine": "jupyter"})), kernel("python3", None));
        assert_eq!(
            runner(json!({"engine": "jupyter:ir", "transport": "tcp"})),
            kernel("ir", Some(Transport::Tcp))
        );
    }
}
