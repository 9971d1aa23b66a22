//! Connection with a container engine, its version, and facts about its host.

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
use crate::endpoint::{EngineEndpoint, REQUEST_TIMEOUT_SECONDS};
use crate::error::parse_error;
use crate::gpus;
use crate::tls;

/// Limits each request while a connection is opened or checked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Oldest API version with everything that this backend uses: that of Docker 19.03 and of Podman 3.
const MIN_API: Api = Api(1, 40);

/// First API version in which engines respect the platform of a container.
const PLATFORM_API: Api = Api(1, 41);

/// Default ports of engines, without and with encryption.
const PLAIN_PORT: &str = "2375";
const TLS_PORT: &str = "2376";

/// Version of an engine's API.
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

/// Implementation of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Docker, or an engine that behaves like Docker.
    Docker,
    /// Podman, which has the same API with some other meanings.
    Podman,
}

/// A container engine that has answered.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) docker: Docker,
    /// The engine's address.
    pub(crate) host: String,
    pub(crate) kind: Kind,
    /// Name and version, for display.
    pub(crate) name: String,
    api: Api,
    info: Arc<OnceCell<EngineInfo>>,
}

/// Facts about an engine and its host, requested once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineInfo {
    /// Containers are in control groups, which limit them. An engine without root may lack control groups, and then creates
    /// containers without these limits silently.
    pub(crate) has_cgroups: bool,
    /// The engine runs without root's rights.
    pub(crate) is_rootless: bool,
    /// The engine can provide GPUs.
    pub(crate) has_gpus: bool,
    /// Seconds by which the engine's clock is ahead of this host's.
    pub(crate) clock_ahead: i64,
}

impl EngineInfo {
    #[cfg(test)]
    pub(crate) const DEFAULT: Self =
        Self { has_cgroups: true, is_rootless: false, has_gpus: false, clock_ahead: 0 };

    fn from_system_info(info: &SystemInfo) -> Self {
        let options = info.security_options.iter().flatten();
        let mut names = options.flat_map(|option| option.split(','));
        Self {
            has_cgroups: info.cgroup_driver != Some(SystemInfoCgroupDriverEnum::NONE),
            is_rootless: names.any(|name| name == "name=rootless"),
            has_gpus: gpus::are_available(info),
            clock_ahead: clock_ahead(info.system_time.as_deref()),
        }
    }

    /// Refuses requested limits that nothing would enforce.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check_limits(self, spec: &CreateSpec) -> Result<()> {
        let limits = [
            ("memory", spec.memory.is_some()),
            ("processes", spec.processes.is_some()),
            ("cpu", spec.cpu.is_some()),
        ];
        let Some((name, _)) = limits.into_iter().find(|(_, is_set)| *is_set && !self.has_cgroups)
        else {
            return Ok(());
        };
        let message = format!("the engine cannot limit {name}: it has no control groups");
        Err(Error::unsupported("create", message).with_context("field", name).with_hint(
            "delegate control groups of version 2 to an engine without root (`Delegate=yes` of its user's service, cgroup driver `systemd`), or leave the limit out",
        ))
    }
}

/// Returns by how many seconds a clock that shows that time is ahead of this host's, and 0 for one that shows no time.
fn clock_ahead(shown: Option<&str>) -> i64 {
    let shown = shown.and_then(|shown| DateTime::parse_from_rfc3339(shown).ok());
    shown.map_or(0, |shown| (shown.to_utc() - Utc::now()).num_seconds())
}

impl Engine {
    /// Finds the engine, and requests its version.
    ///
    /// # Errors
    /// `Unavailable` when no engine answers within five seconds, `PermissionDenied` when this user may not use the engine or
    /// one side does not trust the other's certificate, `Unsupported` for an engine that is too old or too new, and those of
    /// [`EngineEndpoint::find`].
    pub(crate) async fn connect(config: &DockerConfig) -> Result<Self> {
        let config = config.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let endpoint = EngineEndpoint::find(&config)?;
            Ok::<_, Error>((open(&endpoint)?, endpoint.host))
        });
        let (docker, host) = opened.await.map_err(|error| {
            Error::new(ErrorKind::Unexpected, "create", "the search for an engine ended early")
                .with_source(error)
        })??;
        let version = timeout(CONNECT_TIMEOUT, docker.version()).await;
        let version = match version.unwrap_or(Err(Cause::RequestTimeoutError)) {
            Ok(version) => version,
            Err(error) => return Err(unreachable(&host, error).await),
        };
        let engine = Self::from_version(docker, host, version)?;
        // Clones of the client share the version that is negotiated here.
        let negotiated = timeout(CONNECT_TIMEOUT, engine.docker.clone().negotiate_version()).await;
        match negotiated.unwrap_or(Err(Cause::RequestTimeoutError)) {
            Ok(_) => Ok(engine),
            Err(error) => Err(unreachable(&engine.host, error).await),
        }
    }

    fn from_version(docker: Docker, host: String, version: SystemVersion) -> Result<Self> {
        let api = |text: &Option<String>| text.as_deref().and_then(Api::parse);
        let newest = api(&version.api_version).ok_or_else(|| {
            no_engine(&host, format!("what answers at {host} reports no version of an engine"))
        })?;
        let oldest = api(&version.min_api_version);
        let ours = Api::newest();
        if newest < MIN_API {
            let message = format!(
                "the engine at {host} is too old: its newest API version is {newest}, and {MIN_API} is needed"
            );
            return Err(Error::unsupported("create", message)
                .with_context("engine", host)
                .with_hint("Docker 19.03, Podman 3 and later versions have it"));
        }
        if let Some(oldest) = oldest.filter(|oldest| *oldest > ours) {
            let message = format!(
                "the engine at {host} is too new: its oldest API version is {oldest}, and {ours} is the newest that this program knows"
            );
            return Err(Error::unsupported("create", message)
                .with_context("engine", host)
                .with_hint("use a newer version of this program, or an older engine"));
        }
        let components = version.components.unwrap_or_default();
        let is_podman = components.iter().any(|part| part.name.starts_with("Podman"));
        let (kind, name) =
            if is_podman { (Kind::Podman, "Podman") } else { (Kind::Docker, "Docker") };
        let version = version.version.unwrap_or_default();
        let name = format!("{name} {version}");
        Ok(Self { docker, host, kind, name, api: newest, info: Arc::default() })
    }

    /// Returns an engine at an address without connecting to it.
    #[cfg(test)]
    pub(crate) fn at(host: &str) -> Self {
        let endpoint = EngineEndpoint { host: host.to_owned(), certificates: None };
        let (docker, host) = (open(&endpoint).expect("an address"), host.to_owned());
        let (kind, name, info) = (Kind::Docker, "Docker".into(), Arc::default());
        Self { docker, host, kind, name, api: Api::newest(), info }
    }

    /// Checks that the engine still answers.
    ///
    /// # Errors
    /// Those of [`Engine::connect`].
    pub(crate) async fn check(&self) -> Result<()> {
        match timeout(CONNECT_TIMEOUT, self.docker.ping()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(unreachable(&self.host, error).await),
            Err(_) => Err(unreachable(&self.host, Cause::RequestTimeoutError).await),
        }
    }

    /// Returns the facts about the engine's host.
    ///
    /// # Errors
    /// Those of an engine that does not report them.
    pub(crate) async fn info(&self) -> Result<EngineInfo> {
        let request = async || {
            let info = self.docker.info().await.map_err(|error| parse_error("create", error))?;
            Ok(EngineInfo::from_system_info(&info))
        };
        self.info.get_or_try_init(request).await.copied()
    }

    pub(crate) fn is_podman(&self) -> bool {
        self.kind == Kind::Podman
    }

    /// Returns true for a socket of this host. The engine behind it may be on another host all the same.
    pub(crate) fn has_local_socket(&self) -> bool {
        self.host.starts_with("unix://")
    }

    /// Refuses options that this engine would ignore.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check_options(&self, options: &Options) -> Result<()> {
        let refuse = |message: String, hint: &str| {
            Err(Error::unsupported("create", message).with_hint(hint.to_owned()))
        };
        if let Some(runtime) = options.runtime.as_ref().filter(|_| self.is_podman()) {
            let message = format!(
                "the runtime {runtime} is not available: Podman ignores the runtime that a request names"
            );
            return refuse(
                message,
                "its service has one runtime for all containers: `podman --runtime NAME system service`",
            );
        }
        if options.platform.is_some() && self.api < PLATFORM_API {
            let message = format!(
                "`platform` is not available: the engine has version {} of the API, which lacks it",
                self.api
            );
            return refuse(message, "Docker 20.10 and later versions have it");
        }
        Ok(())
    }
}

/// Returns a client of the engine at that endpoint, without a connection yet.
fn open(endpoint: &EngineEndpoint) -> Result<Docker> {
    let host = &endpoint.host;
    if let Some(certificates) = &endpoint.certificates {
        return tls::client(&authority(host, TLS_PORT), certificates, REQUEST_TIMEOUT_SECONDS);
    }
    let opened = if host.starts_with("unix://") {
        Docker::connect_with_unix(host, REQUEST_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
    } else if host.starts_with("tcp://") || host.starts_with("http://") {
        let address = format!("tcp://{}", authority(host, PLAIN_PORT));
        Docker::connect_with_http(&address, REQUEST_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
    } else {
        Err(Cause::UnsupportedURISchemeError { uri: host.clone() })
    };
    opened.map_err(|error| match error {
        Cause::UnsupportedURISchemeError { .. } => {
            no_engine(host, format!("{host} is no address of an engine"))
                .with_hint("DOCKER_HOST is like unix:///var/run/docker.sock or tcp://host:2376")
        }
        Cause::SocketNotFoundError(_) => no_answer(host).with_source(error),
        error => no_engine(host, format!("{host} is no address of an engine")).with_source(error),
    })
}

/// Returns the host and port of an address, with the default port where it has none.
fn authority(address: &str, port: &str) -> String {
    let authority = address.split_once("://").map_or(address, |(_, authority)| authority);
    let authority = authority.split('/').next().unwrap_or(authority);
    let after_number = authority.rsplit_once(']').map_or(authority, |(_, rest)| rest);
    if after_number.contains(':') { authority.to_owned() } else { format!("{authority}:{port}") }
}

fn no_engine(host: &str, message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, "create", message)
        .with_effect(Effect::NotSent)
        .with_context("engine", host.to_owned())
}

fn no_answer(host: &str) -> Error {
    Error::new(ErrorKind::Unavailable, "create", format!("no container engine answers at {host}"))
        .with_effect(Effect::NotSent)
        .with_context("engine", host.to_owned())
        .with_retry(Retry::Temporary)
        .with_hint(
            "start Docker or Podman (Debian: apt-get install docker.io), or set DOCKER_HOST to the engine's address",
        )
}

/// Explains why no engine can be used.
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
            make(ErrorKind::InvalidArgument, format!("the engine at {host} requires encryption"))
                .with_source(error)
                .with_hint("set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to a directory with ca.pem, cert.pem and key.pem")
        }
        Cause::DockerResponseServerError { status_code, message } => {
            let message = message.trim();
            make(
                ErrorKind::Unavailable,
                format!("what answers at {host} is not a working engine: {status_code} {message}"),
            )
            .with_source(error)
        }
        _ => no_answer(host).with_source(error),
    }
}

/// Returns false if this user may not open a socket of this host, and true for every other address.
async fn may_connect(host: &str) -> bool {
    let Some(path) = host.strip_prefix("unix://") else { return true };
    match timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await {
        Ok(Err(error)) => error.kind() != io::ErrorKind::PermissionDenied,
        _ => true,
    }
}

fn is_denied(error: &Cause) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = match error {
        // Its source is that of the inner error.
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
    async fn a_missing_engine_is_reported_as_missing() {
        for host in ["unix:///no/such/engine.sock", "tcp://127.0.0.1:1"] {
            let error = connect(host).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("DOCKER_HOST")), "{error:?}");
        }
        let error = connect("engine").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    }

    async fn connect_to_version(version: Value) -> Result<Engine> {
        let engine = FakeEngine::start(move |_, _| Answer::now(200, version.clone()));
        connect(&engine.address()).await
    }

    #[tokio::test]
    async fn incompatible_versions_are_named() {
        for (version, named) in [
            (json!({"ApiVersion": "1.38", "MinAPIVersion": "1.12"}), ["1.38", "1.40"]),
            (json!({"ApiVersion": "1.99", "MinAPIVersion": "1.98"}), ["1.98", "1.53"]),
        ] {
            let error = connect_to_version(version).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(named.iter().all(|part| error.message().contains(part)), "{error:?}");
            assert!(error.hint().is_some(), "{error:?}");
        }
        let newer = json!({"ApiVersion": "1.99", "MinAPIVersion": "1.44", "Version": "99"});
        assert_eq!(connect_to_version(newer).await.unwrap().name, "Docker 99");
        let error = connect_to_version(json!({"hello": "world"})).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    }

    /// An engine without root creates containers without limits where no control groups are delegated to it.
    #[tokio::test]
    async fn requested_limits_that_an_engine_cannot_enforce_are_refused() {
        let rootless = json!(["name=seccomp,profile=default", "name=rootless"]);
        let info_from = async |info: Value| {
            let fake = FakeEngine::start(move |_, log| {
                log.add("requested");
                Answer::now(200, info.clone())
            });
            let engine = fake.engine();
            let info = engine.info().await.unwrap();
            assert_eq!(engine.clone().info().await.unwrap(), info);
            assert_eq!(fake.events(), ["requested"], "it is requested once");
            info
        };
        let default =
            info_from(json!({"CgroupDriver": "systemd", "SecurityOptions": ["name=seccomp"]}))
                .await;
        assert_eq!(default, EngineInfo::DEFAULT);
        let with = info_from(json!({"CgroupDriver": "systemd", "SecurityOptions": rootless})).await;
        assert_eq!(with, EngineInfo { is_rootless: true, ..EngineInfo::DEFAULT });
        let without = info_from(json!({"CgroupDriver": "none", "SecurityOptions": rootless})).await;
        assert_eq!(
            without,
            EngineInfo { is_rootless: true, has_cgroups: false, ..EngineInfo::DEFAULT }
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
            default.check_limits(&spec).unwrap();
            let error = without.check_limits(&spec).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("Delegate=yes")), "{error:?}");
        }
    }

    #[test]
    fn the_clock_of_an_engine_is_compared() {
        let shown = |ahead: i64| {
            let there = Utc::now() + chrono::TimeDelta::seconds(ahead);
            // With nanoseconds, like the times of engines, and in another time zone.
            let zone = chrono::FixedOffset::east_opt(2 * 3600).unwrap();
            there.with_timezone(&zone).to_rfc3339_opts(chrono::SecondsFormat::Nanos, false)
        };
        for seconds in [-7200, 0, 90, 86_400] {
            let found = clock_ahead(Some(&shown(seconds)));
            assert!((found - seconds).abs() <= 1, "{found} instead of {seconds}");
        }
        assert_eq!((clock_ahead(None), clock_ahead(Some("soon"))), (0, 0));
    }

    #[tokio::test]
    async fn options_that_an_engine_would_ignore_are_refused() {
        let podman = json!({
            "ApiVersion": "1.40", "Version": "3.0.1", "Components": [{"Name": "Podman Engine", "Version": "3.0.1"}],
        });
        let podman = connect_to_version(podman).await.unwrap();
        assert_eq!((podman.kind, podman.name.as_str()), (Kind::Podman, "Podman 3.0.1"));
        let docker = connect_to_version(json!({"ApiVersion": "1.41"})).await.unwrap();
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

    #[tokio::test]
    async fn a_user_outside_the_group_of_the_socket_is_refused_with_a_hint() {
        use std::os::unix::fs::PermissionsExt as _;
        let engine = FakeEngine::start(|_, _| Answer::now(200, json!({"ApiVersion": "1.41"})));
        let path = engine.address();
        connect(&path).await.unwrap();
        let socket = path.trim_start_matches("unix://");
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o000)).unwrap();
        // Root may open everything; the test task runs this as another user too.
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
    fn addresses_have_the_default_ports_of_engines() {
        for (host, expected) in [
            ("tcp://far", "far:2376"),
            ("tcp://far:1/x", "far:1"),
            ("https://[::1]", "[::1]:2376"),
            ("tcp://[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(authority(host, TLS_PORT), expected);
        }
    }
}
