//! The engine: one connection, made once and passed on, with what is known of who is at its other end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error as Cause;
use bollard::models::{SystemInfo, SystemInfoCgroupDriverEnum, SystemVersion};
use bollard::{API_DEFAULT_VERSION, Docker};
use chrono::{DateTime, Utc};
use sandbox_core::{CreateSpec, Effect, Error, ErrorKind, Result, Retry};
use tokio::net::UnixStream;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::config::{DockerConfig, Options};
use crate::endpoint::EngineEndpoint;
use crate::error::parse_error;
use crate::gpus;
use crate::tls;

/// How long an engine may take to say that it is there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long it may take for an answer, in seconds.
pub(crate) const REQUEST_TIMEOUT_SECONDS: u64 = 120;

/// The oldest of its interfaces that everything here is part of: that of Docker 19.03 and of Podman 3.
const MIN_API: Api = Api(1, 40);

/// The first one in which an engine heeds for which platform a container shall be.
const PLATFORM_API: Api = Api(1, 41);

/// Where they listen when nothing is said, without encryption and with it.
const DEFAULT_PORTS: [&str; 2] = ["2375", "2376"];

/// The version of an engine's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Api(usize, usize);

impl Api {
    fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self(major.parse().ok()?, minor.parse().ok()?))
    }

    fn newest() -> Self {
        Self(API_DEFAULT_VERSION.major_version, API_DEFAULT_VERSION.minor_version)
    }
}

impl std::fmt::Display for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Whose program it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Docker, and what behaves like it.
    Docker,
    /// Podman, which speaks the same and means some of it otherwise.
    Podman,
}

/// The engine that containers are made by.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) docker: Docker,
    /// Its address.
    pub(crate) host: String,
    pub(crate) kind: Kind,
    /// Its name and version, for people.
    pub(crate) name: String,
    api: Api,
    about: Arc<OnceCell<EngineInfo>>,
}

/// What an engine says of its host, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineInfo {
    /// Whether it puts containers into groups of the kernel, which limit them. One without root's rights may not, and makes
    /// them without a word.
    pub(crate) has_groups: bool,
    /// Whether it runs without root's rights.
    pub(crate) is_rootless: bool,
    /// Whether it can give GPUs.
    pub(crate) has_gpus: bool,
    /// How many seconds its clock is ahead of this host's.
    pub(crate) ahead: i64,
}

impl EngineInfo {
    #[cfg(test)]
    pub(crate) const DEFAULT: Self =
        Self { has_groups: true, is_rootless: false, has_gpus: false, ahead: 0 };

    fn from_system_info(info: &SystemInfo) -> Self {
        let options = info.security_options.iter().flatten();
        let mut names = options.flat_map(|option| option.split(','));
        Self {
            has_groups: info.cgroup_driver != Some(SystemInfoCgroupDriverEnum::NONE),
            is_rootless: names.any(|name| name == "name=rootless"),
            has_gpus: gpus::are_there(info),
            ahead: ahead(info.system_time.as_deref()),
        }
    }

    /// Refuses limits that are asked for and that nothing would keep.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check_limits(self, spec: &CreateSpec) -> Result<()> {
        let asked = [
            ("memory", spec.memory.is_some()),
            ("processes", spec.processes.is_some()),
            ("cpu", spec.cpu.is_some()),
        ];
        let Some((name, _)) = asked.into_iter().find(|(_, is_asked)| *is_asked && !self.has_groups)
        else {
            return Ok(());
        };
        let message = format!("the engine cannot limit {name}: it has no control groups");
        Err(Error::unsupported("create", message).with_context("field", name).with_hint(
            "give an engine without root control groups of version 2 (`Delegate=yes` of its user's service, cgroup driver `systemd`), or leave the limit out",
        ))
    }
}

/// How many seconds a clock that shows that is ahead of this host's. Nothing is known of one that shows no time.
fn ahead(shown: Option<&str>) -> i64 {
    let shown = shown.and_then(|shown| DateTime::parse_from_rfc3339(shown).ok());
    shown.map_or(0, |shown| (shown.to_utc() - Utc::now()).num_seconds())
}

impl Engine {
    /// Finds the engine and asks who it is.
    ///
    /// # Errors
    /// `Unavailable` when none answers within five seconds, `PermissionDenied` when this user may not use it, or it does not
    /// trust this end or the other way round, `Unsupported` for one that is too old or too new, and those of the search.
    pub(crate) async fn connect(config: &DockerConfig) -> Result<Self> {
        let config = config.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let address = EngineEndpoint::find(&config)?;
            Ok((open(&address)?, address.host))
        });
        let (docker, host) = opened.await.map_err(|error| {
            Error::new(ErrorKind::Unexpected, "create", "the engine could not be looked for")
                .with_source(error)
        })??;
        let asked = timeout(CONNECT_TIMEOUT, docker.version()).await;
        let version = match asked.unwrap_or(Err(Cause::RequestTimeoutError)) {
            Ok(version) => version,
            Err(error) => return Err(unreachable(&host, error).await),
        };
        let daemon = Self::from_version(docker, host, version)?;
        // All that came of that client know it then.
        let agreed = timeout(CONNECT_TIMEOUT, daemon.docker.clone().negotiate_version()).await;
        match agreed.unwrap_or(Err(Cause::RequestTimeoutError)) {
            Ok(_) => Ok(daemon),
            Err(error) => Err(unreachable(&daemon.host, error).await),
        }
    }

    fn from_version(docker: Docker, host: String, version: SystemVersion) -> Result<Self> {
        let api = |text: &Option<String>| text.as_deref().and_then(Api::parse);
        let newest = api(&version.api_version).ok_or_else(|| {
            no_engine(&host, format!("what answers at {host} says no version of an engine"))
        })?;
        let oldest = api(&version.min_api_version);
        let ours = Api::newest();
        if newest < MIN_API {
            let message = format!(
                "the engine at {host} is too old: it speaks version {newest} of the interface at most, and {MIN_API} is needed"
            );
            return Err(Error::unsupported("create", message)
                .with_context("engine", host)
                .with_hint("Docker 19.03, Podman 3 and later ones have it"));
        }
        if let Some(oldest) = oldest.filter(|oldest| *oldest > ours) {
            let message = format!(
                "the engine at {host} is too new: it speaks version {oldest} of the interface at least, and {ours} is the newest known here"
            );
            return Err(Error::unsupported("create", message)
                .with_context("engine", host)
                .with_hint("take a newer version of this program, or an older engine"));
        }
        let components = version.components.unwrap_or_default();
        let is_podman = components.iter().any(|part| part.name.starts_with("Podman"));
        let (kind, name) =
            if is_podman { (Kind::Podman, "Podman") } else { (Kind::Docker, "Docker") };
        let version = version.version.unwrap_or_default();
        let name = format!("{name} {version}");
        Ok(Self { docker, host, kind, name, api: newest, about: Arc::default() })
    }

    /// One that nobody has asked anything.
    #[cfg(test)]
    pub(crate) fn at(host: &str) -> Self {
        let address = EngineEndpoint { host: host.to_owned(), certificates: None };
        let (docker, host) = (open(&address).expect("an address"), host.to_owned());
        let (kind, name, about) = (Kind::Docker, "Docker".into(), Arc::default());
        Self { docker, host, kind, name, api: Api::newest(), about }
    }

    /// Whether it still answers.
    ///
    /// # Errors
    /// As when it is connected with.
    pub(crate) async fn check(&self) -> Result<()> {
        match timeout(CONNECT_TIMEOUT, self.docker.ping()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(unreachable(&self.host, error).await),
            Err(_) => Err(unreachable(&self.host, Cause::RequestTimeoutError).await),
        }
    }

    /// What it says of its host.
    ///
    /// # Errors
    /// Of an engine that does not say it.
    pub(crate) async fn about(&self) -> Result<EngineInfo> {
        let ask = async || {
            let info = self.docker.info().await.map_err(|error| parse_error("create", error))?;
            Ok(EngineInfo::from_system_info(&info))
        };
        self.about.get_or_try_init(ask).await.copied()
    }

    pub(crate) fn is_podman(&self) -> bool {
        self.kind == Kind::Podman
    }

    /// Whether its socket is one of this host. What is behind that may be elsewhere all the same.
    pub(crate) fn has_local_socket(&self) -> bool {
        self.host.starts_with("unix://")
    }

    /// Refuses what this engine would ignore.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check_options(&self, options: &Options) -> Result<()> {
        let refuse = |message: String, hint: &str| {
            Err(Error::unsupported("create", message).with_hint(hint.to_owned()))
        };
        if let Some(runtime) = options.runtime.as_ref().filter(|_| self.is_podman()) {
            let message = format!(
                "the runtime {runtime} cannot be had: Podman does not heed which one a request names"
            );
            return refuse(
                message,
                "its service has one for all: `podman --runtime NAME system service`",
            );
        }
        if options.platform.is_some() && self.api < PLATFORM_API {
            let message = format!(
                "`platform` cannot be had: the engine speaks version {} of the interface, which has none",
                self.api
            );
            return refuse(message, "Docker 20.10 and later ones have it");
        }
        Ok(())
    }
}

/// A client of the engine there. Nothing is asked yet.
fn open(address: &EngineEndpoint) -> Result<Docker> {
    let host = &address.host;
    if let Some(certificates) = &address.certificates {
        return tls::client(&place(host, DEFAULT_PORTS[1]), certificates, REQUEST_TIMEOUT_SECONDS);
    }
    let opened = if host.starts_with("unix://") {
        Docker::connect_with_unix(host, REQUEST_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
    } else if host.starts_with("tcp://") || host.starts_with("http://") {
        let place = format!("tcp://{}", place(host, DEFAULT_PORTS[0]));
        Docker::connect_with_http(&place, REQUEST_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
    } else {
        Err(Cause::UnsupportedURISchemeError { uri: host.clone() })
    };
    opened.map_err(|error| match error {
        Cause::UnsupportedURISchemeError { .. } => {
            no_engine(host, format!("{host} is no address of an engine"))
                .with_hint("DOCKER_HOST is like unix:///var/run/docker.sock or tcp://host:2376")
        }
        Cause::SocketNotFoundError(_) => not_there(host).with_source(error),
        error => no_engine(host, format!("{host} is no address of an engine")).with_source(error),
    })
}

/// A name or a number with a port, without what else an address has.
fn place(host: &str, port: &str) -> String {
    let place = host.split_once("://").map_or(host, |(_, place)| place);
    let place = place.split('/').next().unwrap_or(place);
    let after_number = place.rsplit_once(']').map_or(place, |(_, rest)| rest);
    if after_number.contains(':') { place.to_owned() } else { format!("{place}:{port}") }
}

fn no_engine(host: &str, message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, "create", message)
        .with_effect(Effect::NotSent)
        .with_context("engine", host.to_owned())
}

fn not_there(host: &str) -> Error {
    Error::new(ErrorKind::Unavailable, "create", format!("no container engine answers at {host}"))
        .with_effect(Effect::NotSent)
        .with_context("engine", host.to_owned())
        .with_retry(Retry::Temporary)
        .with_hint(
            "start Docker or Podman (Debian: apt-get install docker.io), or say with DOCKER_HOST where it is",
        )
}

/// Why there is no engine.
async fn unreachable(host: &str, error: Cause) -> Error {
    let make = |kind, message: String| {
        Error::new(kind, "create", message)
            .with_effect(Effect::NotSent)
            .with_context("engine", host.to_owned())
    };
    if is_denied(&error) || !may_connect(host).await {
        return make(
            ErrorKind::PermissionDenied,
            format!("no permission to use the engine at {host}"),
        )
        .with_source(error)
        .with_hint(
            "run as a user of the group `docker` (then log in again), or use a rootless engine",
        );
    }
    if let Some((kind, why, hint)) = tls::refusal(&error) {
        return make(kind, format!("the engine at {host} cannot be used: {why}"))
            .with_source(error)
            .with_hint(hint);
    }
    match &error {
        Cause::DockerResponseServerError { message, .. } if message.contains("HTTPS server") => {
            make(ErrorKind::InvalidArgument, format!("the engine at {host} wants encryption"))
                .with_source(error)
                .with_hint("set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to a directory with ca.pem, cert.pem and key.pem")
        }
        Cause::DockerResponseServerError { status_code, message } => {
            let message = message.trim();
            make(
                ErrorKind::Unavailable,
                format!("what answers at {host} is no engine that works: {status_code} {message}"),
            )
            .with_source(error)
        }
        _ => not_there(host).with_source(error),
    }
}

/// Whether this user may open a socket of this host. Others are asked.
async fn may_connect(host: &str) -> bool {
    let Some(path) = host.strip_prefix("unix://") else { return true };
    match timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) => error.kind() != io::ErrorKind::PermissionDenied,
        _ => true,
    }
}

fn is_denied(error: &Cause) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = match error {
        // It shows what is below that alone.
        Cause::IOError { err } => Some(err),
        error => Some(error),
    };
    while let Some(cause) = next {
        if cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        {
            return true;
        }
        next = cause.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_engine::{Answer, FakeEngine};

    async fn connect(host: &str) -> Result<Engine> {
        let config = DockerConfig { host: Some(host.to_owned()), ..DockerConfig::default() };
        Engine::connect(&config).await
    }

    #[tokio::test]
    async fn an_engine_that_is_not_there_is_said_to_be_so() {
        for host in ["unix:///no/such/engine.sock", "tcp://127.0.0.1:1"] {
            let error = connect(host).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("DOCKER_HOST")), "{error:?}");
        }
        let error = connect("engine").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    }

    async fn that_says(version: Value) -> Result<Engine> {
        let engine = FakeEngine::start(move |_, _| Answer::now(200, version.clone()));
        connect(&engine.address()).await
    }

    #[tokio::test]
    async fn versions_that_do_not_meet_are_named() {
        for (version, named) in [
            (json!({"ApiVersion": "1.38", "MinAPIVersion": "1.12"}), ["1.38", "1.40"]),
            (json!({"ApiVersion": "1.99", "MinAPIVersion": "1.98"}), ["1.98", "1.53"]),
        ] {
            let error = that_says(version).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(named.iter().all(|part| error.message().contains(part)), "{error:?}");
            assert!(error.hint().is_some(), "{error:?}");
        }
        let newer = json!({"ApiVersion": "1.99", "MinAPIVersion": "1.44", "Version": "99"});
        assert_eq!(that_says(newer).await.unwrap().name, "Docker 99");
        let error = that_says(json!({"hello": "world"})).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    }

    /// Without root, an engine makes containers without limits where nobody has given it control groups.
    #[tokio::test]
    async fn limits_that_an_engine_cannot_keep_are_refused_where_they_were_asked_for() {
        let rootless = json!(["name=seccomp,profile=default", "name=rootless"]);
        let of = async |info: Value| {
            let engine = FakeEngine::start(move |_, said| {
                said.add("asked");
                Answer::now(200, info.clone())
            });
            let daemon = engine.daemon();
            let about = daemon.about().await.unwrap();
            assert_eq!(daemon.clone().about().await.unwrap(), about);
            assert_eq!(engine.said(), ["asked"], "it is asked once");
            about
        };
        let usual =
            of(json!({"CgroupDriver": "systemd", "SecurityOptions": ["name=seccomp"]})).await;
        assert_eq!(usual, EngineInfo::DEFAULT);
        let with = of(json!({"CgroupDriver": "systemd", "SecurityOptions": rootless})).await;
        assert_eq!(with, EngineInfo { is_rootless: true, ..EngineInfo::DEFAULT });
        let without = of(json!({"CgroupDriver": "none", "SecurityOptions": rootless})).await;
        assert_eq!(
            without,
            EngineInfo { is_rootless: true, has_groups: false, ..EngineInfo::DEFAULT }
        );
        let mut spec = CreateSpec::default();
        without.check_limits(&spec).unwrap();
        spec.disk = Some(sandbox_core::ByteSize::mib(1));
        without.check_limits(&spec).unwrap();
        let limits: [fn(&mut CreateSpec); 3] = [
            |spec| spec.memory = Some(sandbox_core::ByteSize::mib(100)),
            |spec| spec.processes = Some(10),
            |spec| spec.cpu = Some(0.5),
        ];
        for limit in limits {
            let mut spec = CreateSpec::default();
            limit(&mut spec);
            usual.check_limits(&spec).unwrap();
            let error = without.check_limits(&spec).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("Delegate=yes")), "{error:?}");
        }
    }

    #[test]
    fn the_clock_of_an_engine_is_known() {
        let shown = |ahead: i64| {
            let there = Utc::now() + chrono::TimeDelta::seconds(ahead);
            // With nanoseconds, as engines have it, and in a zone of its own.
            let zone = chrono::FixedOffset::east_opt(2 * 3600).unwrap();
            there.with_timezone(&zone).to_rfc3339_opts(chrono::SecondsFormat::Nanos, false)
        };
        for seconds in [-7200, 0, 90, 86_400] {
            let known = ahead(Some(&shown(seconds)));
            assert!((known - seconds).abs() <= 1, "{known} of {seconds}");
        }
        assert_eq!((ahead(None), ahead(Some("soon"))), (0, 0));
    }

    #[tokio::test]
    async fn what_an_engine_would_ignore_is_refused() {
        let podman = json!({
            "ApiVersion": "1.40", "Version": "3.0.1", "Components": [{"Name": "Podman Engine", "Version": "3.0.1"}],
        });
        let podman = that_says(podman).await.unwrap();
        assert_eq!((podman.kind, podman.name.as_str()), (Kind::Podman, "Podman 3.0.1"));
        let docker = that_says(json!({"ApiVersion": "1.41"})).await.unwrap();
        let options = |name: &str, value: &str| {
            let mut spec = sandbox_core::CreateSpec::default();
            spec.provider_options.insert(name.to_owned(), json!(value));
            Options::from_spec(&DockerConfig::default(), &spec).unwrap()
        };
        for (name, value) in [("runtime", "runsc"), ("platform", "linux/arm64")] {
            docker.check_options(&options(name, value)).unwrap();
            let error = podman.check_options(&options(name, value)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(error.hint().is_some(), "{error:?}");
        }
        podman.check_options(&options("user", "1:1")).unwrap();
    }

    /// Those who are not of its group.
    #[tokio::test]
    async fn a_socket_that_may_not_be_opened_is_told_so() {
        use std::os::unix::fs::PermissionsExt as _;
        let engine = FakeEngine::start(|_, _| Answer::now(200, json!({"ApiVersion": "1.41"})));
        let path = engine.address();
        connect(&path).await.unwrap();
        let socket = path.trim_start_matches("unix://");
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o000)).unwrap();
        // Root may open everything, and the tests of the program do this as somebody else.
        if !rustix::process::geteuid().is_root() {
            let error = connect(&path).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
        }
        let denied = Cause::IOError { err: io::Error::from(io::ErrorKind::PermissionDenied) };
        let error = unreachable("unix:///nowhere", denied).await;
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("group")), "{error:?}");
    }

    #[test]
    fn addresses_have_the_ports_that_engines_have() {
        for (host, there) in [
            ("tcp://far", "far:2376"),
            ("tcp://far:1/x", "far:1"),
            ("https://[::1]", "[::1]:2376"),
            ("tcp://[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(place(host, DEFAULT_PORTS[1]), there);
        }
    }
}
