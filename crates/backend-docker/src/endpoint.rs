//! Where the engine is: what is configured, what the environment says, the contexts of `docker`, the usual sockets.

use std::env;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use sandbox_core::{Effect, Error, ErrorKind, Result};
use serde_json::Value;

use crate::config::DockerConfig;

const DOCKER: &str = "/var/run/docker.sock";

/// An engine's address, and the certificates that it is talked to with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineEndpoint {
    pub(crate) host: String,
    /// Where they are, when the connection is encrypted.
    pub(crate) certificates: Option<PathBuf>,
}

impl EngineEndpoint {
    /// That of the engine which is meant. Reads files.
    ///
    /// # Errors
    /// `InvalidArgument` for a context that is not there, `Unsupported` for one that cannot be used.
    pub(crate) fn find(config: &DockerConfig) -> Result<Self> {
        find(config, &|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }
}

type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

fn find(config: &DockerConfig, set: Variables<'_>) -> Result<EngineEndpoint> {
    let home = set("HOME").map(|home| Path::new(&home).join(".docker"));
    let settings = set("DOCKER_CONFIG").map(PathBuf::from).or(home);
    let mut address = if let Some(host) = config.host.clone().or_else(|| set("DOCKER_HOST")) {
        let certificates = by_environment(&host, settings, set)?;
        EngineEndpoint { host, certificates }
    } else if let Some(address) =
        settings.map(|settings| in_context(&settings, set("DOCKER_CONTEXT"))).transpose()?.flatten()
    {
        address
    } else {
        EngineEndpoint { host: usual_socket(set), certificates: None }
    };
    if config.certificates.is_some() {
        address.certificates.clone_from(&config.certificates);
    }
    if !is_tcp(&address.host) {
        address.certificates = None;
    }
    if address.host.starts_with("ssh://") {
        return Err(no_ssh(&address.host));
    }
    let is_open = is_tcp(&address.host) && address.certificates.is_none();
    if is_open && !config.unencrypted && !is_loopback(&address.host) {
        return Err(unencrypted(&address.host));
    }
    Ok(address)
}

fn is_tcp(host: &str) -> bool {
    ["tcp://", "http://", "https://"].iter().any(|scheme| host.starts_with(scheme))
}

/// Whether what is said to an address over TCP stays on this host.
fn is_loopback(host: &str) -> bool {
    let place = host.split_once("://").map_or(host, |(_, place)| place);
    let place = place.split('/').next().unwrap_or(place);
    let name = match place.strip_prefix('[') {
        Some(number) => number.split(']').next().unwrap_or(number),
        None => place.split(':').next().unwrap_or(place),
    };
    let number = name.parse::<IpAddr>();
    !place.contains('@')
        && (name == "localhost" || number.is_ok_and(|ip| ip.to_canonical().is_loopback()))
}

/// The certificates for an address that comes from no context, as `docker` finds them.
fn by_environment(
    host: &str,
    settings: Option<PathBuf>,
    set: Variables<'_>,
) -> Result<Option<PathBuf>> {
    let directory = || set("DOCKER_CERT_PATH").map(PathBuf::from).or(settings);
    if set("DOCKER_TLS_VERIFY").is_some() || host.starts_with("https://") {
        return Ok(Some(directory().unwrap_or_default()));
    }
    if set("DOCKER_TLS").is_some() && is_tcp(host) {
        return Err(unverified("DOCKER_TLS asks for an engine that nobody verifies")
            .with_hint("set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to its certificates"));
    }
    Ok(None)
}

fn usual_socket(set: Variables<'_>) -> String {
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
fn in_context(settings: &Path, named: Option<String>) -> Result<Option<EngineEndpoint>> {
    let name = named.or_else(|| current_context(settings)).filter(|name| name != "default");
    // Another engine is not what was asked for.
    name.map(|name| of_context(settings, &name)).transpose()
}

fn current_context(settings: &Path) -> Option<String> {
    let config = json(&settings.join("config.json"))?;
    config["currentContext"].as_str().map(str::to_owned)
}

/// The address in a context of that name. Its certificates are in a directory that is called as its own is.
fn of_context(settings: &Path, name: &str) -> Result<EngineEndpoint> {
    let contexts = settings.join("contexts");
    let entries = fs::read_dir(contexts.join("meta")).into_iter().flatten().flatten();
    let found = entries.into_iter().find_map(|entry| {
        let context = json(&entry.path().join("meta.json"))?;
        (context["Name"] == name).then(|| (entry.file_name(), context))
    });
    let missing = || {
        let message = format!("the context {name:?} of docker is not there, or has no address");
        Error::new(ErrorKind::InvalidArgument, "create", message)
            .with_effect(Effect::NotSent)
            .with_hint("`docker context ls` lists them; DOCKER_CONTEXT and `docker context use` name one, DOCKER_HOST an engine")
    };
    let (directory, context) = found.ok_or_else(missing)?;
    let endpoint = &context["Endpoints"]["docker"];
    let host = endpoint["Host"].as_str().filter(|host| !host.is_empty()).ok_or_else(missing)?;
    if is_tcp(host) && endpoint["SkipTLSVerify"].as_bool() == Some(true) {
        let message = format!("the context {name:?} of docker has an engine that nobody verifies");
        return Err(unverified(&message).with_hint(format!(
            "give it the certificate that signs the engine's: docker context update {name} --docker \"host={host},ca=ca.pem,cert=cert.pem,key=key.pem\""
        )));
    }
    let certificates = contexts.join("tls").join(directory).join("docker");
    let certificates =
        (certificates.exists() || host.starts_with("https://")).then_some(certificates);
    Ok(EngineEndpoint { host: host.to_owned(), certificates })
}

fn unverified(message: &str) -> Error {
    Error::unsupported("create", format!("{message}: code and secrets could go to anybody"))
        .with_effect(Effect::NotSent)
}

fn unencrypted(host: &str) -> Error {
    unverified(&format!("{host} is on another host, and nothing encrypts what is said to it"))
        .with_context("engine", host.to_owned())
        .with_hint(
            "set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to its certificates; or forward its socket with \
             `ssh -N -L /tmp/engine.sock:/var/run/docker.sock USER@HOST`, and set DOCKER_HOST=unix:///tmp/engine.sock; \
             a program can say `DockerConfig::unencrypted`",
        )
}

fn no_ssh(host: &str) -> Error {
    let there = host.trim_start_matches("ssh://");
    let there = there.split('/').next().unwrap_or(there);
    Error::unsupported("create", format!("{host} cannot be used: engines over ssh are not supported"))
        .with_effect(Effect::NotSent)
        .with_context("engine", host.to_owned())
        .with_hint(format!(
            "forward its socket with `ssh -N -L /tmp/engine.sock:/var/run/docker.sock {there}`, and set DOCKER_HOST=unix:///tmp/engine.sock"
        ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn found(config: &DockerConfig, set: &[(&str, &str)]) -> Result<EngineEndpoint> {
        let set: BTreeMap<_, _> = set.iter().copied().collect();
        find(config, &|name| {
            set.get(name).map(|value| (*value).to_owned()).filter(|v| !v.is_empty())
        })
    }

    /// A folder with contexts: `far` with certificates, `open` without, `blind` that skips them, `over` ssh.
    fn contexts() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (directory, name, endpoint) in [
            ("a1", "far", json!({"Host": "tcp://far:2376", "SkipTLSVerify": false})),
            ("b2", "open", json!({"Host": "tcp://near:2375"})),
            ("f6", "own", json!({"Host": "tcp://localhost:2375"})),
            ("c3", "blind", json!({"Host": "tcp://far:2376", "SkipTLSVerify": true})),
            ("d4", "over", json!({"Host": "ssh://me@far/x"})),
            ("e5", "empty", json!({})),
        ] {
            let meta = folder.path().join("contexts/meta").join(directory);
            fs::create_dir_all(&meta).unwrap();
            let text = json!({"Name": name, "Endpoints": {"docker": endpoint}}).to_string();
            fs::write(meta.join("meta.json"), text).unwrap();
        }
        fs::create_dir_all(folder.path().join("contexts/tls/a1/docker")).unwrap();
        fs::write(folder.path().join("config.json"), r#"{"currentContext":"far"}"#).unwrap();
        folder
    }

    #[test]
    fn a_context_names_its_engine_and_its_certificates() {
        let folder = contexts();
        let settings = folder.path().to_str().unwrap();
        let in_context = |name: &str| {
            found(
                &DockerConfig::default(),
                &[("DOCKER_CONFIG", settings), ("DOCKER_CONTEXT", name)],
            )
        };
        for current in ["", "far"] {
            let address = in_context(current).unwrap();
            assert_eq!(address.host, "tcp://far:2376");
            let certificates = folder.path().join("contexts/tls/a1/docker");
            assert_eq!(address.certificates, Some(certificates));
        }
        let own = in_context("own").unwrap();
        assert_eq!((own.host.as_str(), own.certificates), ("tcp://localhost:2375", None));
        assert!(in_context("default").unwrap().host.starts_with("unix://"));
        // No other engine takes its place, and none that anybody could be.
        for (name, kind, part) in [
            ("othre", ErrorKind::InvalidArgument, "\"othre\""),
            ("empty", ErrorKind::InvalidArgument, "\"empty\""),
            ("blind", ErrorKind::Unsupported, "nobody verifies"),
            ("over", ErrorKind::Unsupported, "ssh"),
            ("open", ErrorKind::Unsupported, "nothing encrypts"),
        ] {
            let error = in_context(name).unwrap_err();
            assert_eq!(error.kind(), kind, "{error:?}");
            assert!(error.message().contains(part) && error.hint().is_some(), "{error:?}");
        }
        let error = in_context("over").unwrap_err();
        assert!(
            error.hint().unwrap().contains("ssh -N -L") && error.hint().unwrap().contains("me@far")
        );
    }

    /// Everybody on the way could read and change what is said.
    #[test]
    fn other_hosts_are_talked_to_over_tls_unless_a_program_says_otherwise() {
        let open = DockerConfig { unencrypted: true, ..DockerConfig::default() };
        for host in [
            "tcp://far:2375",
            "http://10.0.0.1",
            "tcp://[2001:db8::1]:2375",
            "tcp://localhost@far:1",
        ] {
            let error = found(&DockerConfig::default(), &[("DOCKER_HOST", host)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{host}: {error:?}");
            let hint = error.hint().unwrap();
            assert!(hint.contains("DOCKER_CERT_PATH") && hint.contains("ssh -N -L"), "{error:?}");
            let named = DockerConfig { host: Some(host.to_owned()), ..DockerConfig::default() };
            found(&named, &[]).unwrap_err();
            assert_eq!(found(&open, &[("DOCKER_HOST", host)]).unwrap().host, host);
            let verify =
                [("DOCKER_HOST", host), ("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", "/c")];
            found(&DockerConfig::default(), &verify).unwrap();
        }
        for host in ["tcp://127.0.0.1:2375", "tcp://localhost", "http://[::1]:2375/x", "unix:///x"]
        {
            found(&DockerConfig::default(), &[("DOCKER_HOST", host)]).unwrap();
        }
    }

    #[test]
    fn certificates_are_where_docker_has_them() {
        let host = ("DOCKER_HOST", "tcp://127.0.0.1:2376");
        let of = |set: &[(&str, &str)]| found(&DockerConfig::default(), set).unwrap().certificates;
        let home = ("HOME", "/home/me");
        let verify = ("DOCKER_TLS_VERIFY", "1");
        assert_eq!(of(&[host, home]), None);
        assert_eq!(of(&[host, home, ("DOCKER_TLS_VERIFY", "")]), None, "empty is off");
        assert_eq!(of(&[host, home, verify]), Some("/home/me/.docker".into()));
        assert_eq!(of(&[host, home, verify, ("DOCKER_CERT_PATH", "/c")]), Some("/c".into()));
        // A socket needs none.
        assert_eq!(of(&[("DOCKER_HOST", "unix:///x"), home, verify]), None);
        let error = found(&DockerConfig::default(), &[host, ("DOCKER_TLS", "1")]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let config = DockerConfig { certificates: Some("/own".into()), ..DockerConfig::default() };
        assert_eq!(found(&config, &[host]).unwrap().certificates, Some("/own".into()));
    }
}
