//! The engine: where it is, and what its errors mean.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as Cause;
use sandbox_core::{Effect, Error, ErrorKind, Result, Retry};
use serde_json::Value;
use tokio::time::timeout;

use crate::config::DockerConfig;

/// How long an engine may take to say that it is there.
const BOUND: Duration = Duration::from_secs(5);

/// Stands before the name of a context that has no address.
const CONTEXT: &str = "context:";

const DOCKER: &str = "/var/run/docker.sock";

/// Connects to the engine and agrees with it on a version.
pub(crate) async fn connect(config: &DockerConfig) -> Result<Docker> {
    let host = address(config);
    let docker = Docker::connect_with_host(&host).map_err(|error| unreachable(&host, error))?;
    match timeout(BOUND, docker.negotiate_version()).await {
        Ok(docker) => docker.map_err(|error| unreachable(&host, error)),
        Err(_) => Err(unreachable(&host, Cause::RequestTimeoutError)),
    }
}

/// Where the engine is.
pub(crate) fn address(config: &DockerConfig) -> String {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(host) = config.host.clone().or_else(|| set("DOCKER_HOST")) {
        return host;
    }
    let settings = set("DOCKER_CONFIG")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".docker")));
    let by_context = settings.and_then(|settings| in_context(&settings, set("DOCKER_CONTEXT")));
    if let Some(host) = by_context {
        return host;
    }
    let runtime = set("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = |path: &str| runtime.as_ref().map(|runtime| runtime.join(path));
    let candidates = [
        Some(PathBuf::from(DOCKER)),
        own("docker.sock"),
        own("podman/podman.sock"),
        Some(PathBuf::from("/run/podman/podman.sock")),
    ];
    let found = candidates.into_iter().flatten().find(|path| path.exists());
    format!("unix://{}", found.unwrap_or_else(|| DOCKER.into()).display())
}

fn json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// The address in the context that is named, or else in the current one.
fn in_context(settings: &Path, named: Option<String>) -> Option<String> {
    let name = named.or_else(|| current_context(settings)).filter(|name| name != "default")?;
    // Another engine is not what was asked for.
    Some(context_host(settings, &name).unwrap_or_else(|| format!("{CONTEXT}{name}")))
}

fn current_context(settings: &Path) -> Option<String> {
    let config = json(&settings.join("config.json"))?;
    config["currentContext"].as_str().map(str::to_owned)
}

/// The address in a context of that name.
fn context_host(settings: &Path, name: &str) -> Option<String> {
    let entries = fs::read_dir(settings.join("contexts/meta")).ok()?;
    entries.filter_map(|entry| json(&entry.ok()?.path().join("meta.json"))).find_map(|context| {
        let host = context["Endpoints"]["docker"]["Host"].as_str()?;
        (context["Name"] == name).then(|| host.to_owned())
    })
}

/// Why there is no engine.
fn unreachable(host: &str, error: Cause) -> Error {
    let make = |kind, message: String| {
        Error::new(kind, "create", message)
            .with_effect(Effect::NotSent)
            .with_context("engine", host.to_owned())
    };
    if let Some(name) = host.strip_prefix(CONTEXT) {
        let message = format!("the context {name:?} of docker is not there, or has no address");
        return make(ErrorKind::InvalidArgument, message)
            .with_hint("`docker context ls` lists them; DOCKER_CONTEXT and `docker context use` name one, DOCKER_HOST an engine");
    }
    if is_denied(&error) || !may_use(host) {
        return make(
            ErrorKind::PermissionDenied,
            format!("no permission to use the engine at {host}"),
        )
        .with_source(error)
        .with_hint(
            "run as a user of the group `docker` (then log in again), or use a rootless engine",
        );
    }
    if matches!(error, Cause::UnsupportedURISchemeError { .. }) {
        return make(ErrorKind::InvalidArgument, format!("{host} is no address of an engine"))
            .with_hint("DOCKER_HOST is like unix:///var/run/docker.sock or tcp://host:2376");
    }
    make(ErrorKind::Unavailable, format!("no container engine answers at {host}"))
        .with_retry(Retry::Temporary)
        .with_source(error)
        .with_hint(
            "start Docker or Podman (Debian: apt-get install docker.io), or say with DOCKER_HOST where it is",
        )
}

/// Whether this user may open a socket of this host. Others are asked.
fn may_use(host: &str) -> bool {
    let Some(path) = host.strip_prefix("unix://") else { return true };
    let connected = std::os::unix::net::UnixStream::connect(path);
    !connected.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

fn is_denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
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

/// Refuses an engine that makes containers without a limit that was asked for, which it says in a warning.
///
/// # Errors
/// `Unsupported`.
pub(crate) fn check_limits(warnings: &[String]) -> Result<()> {
    let Some(warning) = warnings.iter().find(|warning| warning.to_lowercase().contains("discard"))
    else {
        return Ok(());
    };
    let message = format!("the engine would enforce no such limit: {}", warning.trim());
    Err(Error::unsupported("create", message).with_hint(
        "its kernel needs the control groups `memory` and `pids`, and a rootless engine has to be given them",
    ))
}

/// What an engine's refusal means.
pub(crate) fn refused(operation: &'static str, error: Cause) -> Error {
    let Cause::DockerResponseServerError { status_code, message } = &error else {
        return Error::new(
            ErrorKind::Unavailable,
            operation,
            "the connection with the engine broke",
        )
        .with_effect(Effect::Unknown)
        .with_source(error);
    };
    let lower = message.to_ascii_lowercase();
    let (kind, hint) = if lower.contains("runtime") && lower.contains("unknown") {
        (ErrorKind::InvalidArgument, "`docker info` lists the runtimes of the engine")
    } else if lower.contains("executable file not found") || lower.contains("no such file") {
        (
            ErrorKind::NotFound,
            "the image needs Python 3.9 or later as `python3`; or name it with the option `python`",
        )
    } else if lower.contains("no space left") {
        (
            ErrorKind::ResourceExhausted,
            "free space where the engine keeps its files: docker system prune",
        )
    } else if *status_code == 404 {
        (ErrorKind::NotFound, "`docker image ls` shows the images that are there")
    } else if *status_code == 409 {
        (ErrorKind::AlreadyExists, "choose another name")
    } else if (400..500).contains(status_code) {
        (ErrorKind::InvalidArgument, "the engine does not take that")
    } else {
        (ErrorKind::Unavailable, "the engine's own log says more")
    };
    let message = format!("the engine refused: {}", message.trim());
    Error::new(kind, operation, message).with_hint(hint)
}

/// An image that the engine does not have.
pub(crate) fn no_image(name: &str) -> Error {
    let hint = if name == crate::DEFAULT_IMAGE {
        "build it with `sandboxes image build`, or name another one that has Python 3.9 or later"
            .to_owned()
    } else {
        format!("fetch it with `sandboxes image pull {name}`, or build it")
    };
    Error::new(ErrorKind::NotFound, "create", format!("the engine has no image {name}"))
        .with_context("image", name.to_owned())
        .with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_discarded_is_no_limit() {
        let harmless = "Your kernel does not support swap limit capabilities or the cgroup is not mounted. Memory limited without swap.";
        let lost = "Your kernel does not support pids limit capabilities or the cgroup is not mounted. PIDs limit discarded.";
        check_limits(&[harmless.to_owned()]).unwrap();
        let error = check_limits(&[harmless.to_owned(), lost.to_owned()]).unwrap_err();
        assert!(error.message().contains("PIDs limit") && error.hint().is_some(), "{error:?}");
    }

    #[test]
    fn a_context_names_its_engine() {
        let directory = std::env::temp_dir().join(format!("contexts-{}", std::process::id()));
        let meta = directory.join("contexts/meta/x");
        fs::create_dir_all(&meta).unwrap();
        let context = r#"{"Name":"far","Endpoints":{"docker":{"Host":"tcp://far:2376"}}}"#;
        fs::write(meta.join("meta.json"), context).unwrap();
        fs::write(directory.join("config.json"), r#"{"currentContext":"far"}"#).unwrap();
        let host = |named: Option<&str>| in_context(&directory, named.map(str::to_owned));
        for named in [None, Some("far")] {
            assert_eq!(host(named).as_deref(), Some("tcp://far:2376"));
        }
        assert_eq!(host(Some("default")), None);
        // No other engine takes its place.
        let address = host(Some("othre")).unwrap();
        let error =
            Docker::connect_with_host(&address).map_err(|error| unreachable(&address, error));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("\"othre\"") && error.hint().is_some(), "{error:?}");
        fs::remove_dir_all(directory).unwrap();
    }

    #[tokio::test]
    async fn an_engine_that_is_not_there_is_said_to_be_so() {
        let host = Some("unix:///no/such/engine.sock".to_owned());
        let config = DockerConfig { host, ..DockerConfig::default() };
        let error = connect(&config).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.hint().is_some_and(|hint| hint.contains("DOCKER_HOST")));
    }
}
