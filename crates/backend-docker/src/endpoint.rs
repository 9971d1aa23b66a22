//! The engine's endpoint: from the configuration, the environment, the contexts of `docker`, or the default sockets.

use std::env;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use sandbox_core::{Effect, Error, ErrorKind, Result};
use serde_json::Value;

use crate::config::DockerConfig;

/// Limits the wait for an answer of the engine.
pub(crate) const REQUEST_TIMEOUT_SECONDS: u64 = 120;

const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// An engine's address, and the certificates of the connection with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineEndpoint {
    pub(crate) host: String,
    /// Directory of the certificates of an encrypted connection.
    pub(crate) certificates: Option<PathBuf>,
}

impl EngineEndpoint {
    /// Finds the endpoint of the selected engine. Reads files.
    ///
    /// # Errors
    /// `InvalidArgument` for a missing context, `Unsupported` for an endpoint that cannot be used.
    pub(crate) fn find(config: &DockerConfig) -> Result<Self> {
        find(config, &|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }
}

/// Looks up an environment variable.
type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

fn find(config: &DockerConfig, env: EnvLookup<'_>) -> Result<EngineEndpoint> {
    let home = env("HOME").map(|home| Path::new(&home).join(".docker"));
    let settings = env("DOCKER_CONFIG").map(PathBuf::from).or(home);
    let mut endpoint = if let Some(host) = config.host.clone().or_else(|| env("DOCKER_HOST")) {
        let certificates = certificates_from_env(&host, settings, env)?;
        EngineEndpoint { host, certificates }
    } else if let Some(endpoint) = settings
        .map(|settings| selected_context(&settings, env("DOCKER_CONTEXT")))
        .transpose()?
        .flatten()
    {
        endpoint
    } else {
        EngineEndpoint { host: default_socket(env), certificates: None }
    };
    if config.certificates.is_some() {
        endpoint.certificates.clone_from(&config.certificates);
    }
    if !is_tcp(&endpoint.host) {
        endpoint.certificates = None;
    }
    if endpoint.host.starts_with("ssh://") {
        return Err(ssh_unsupported(&endpoint.host));
    }
    let is_plain = is_tcp(&endpoint.host) && endpoint.certificates.is_none();
    if is_plain && !config.unencrypted && !is_loopback(&endpoint.host) {
        return Err(unencrypted(&endpoint.host));
    }
    Ok(endpoint)
}

fn is_tcp(host: &str) -> bool {
    ["tcp://", "http://", "https://"].iter().any(|scheme| host.starts_with(scheme))
}

/// Returns true if bytes sent to a TCP address stay on this host.
fn is_loopback(host: &str) -> bool {
    let authority = host.split_once("://").map_or(host, |(_, authority)| authority);
    let authority = authority.split('/').next().unwrap_or(authority);
    let name = match authority.strip_prefix('[') {
        Some(number) => number.split(']').next().unwrap_or(number),
        None => authority.split(':').next().unwrap_or(authority),
    };
    let number = name.parse::<IpAddr>();
    !authority.contains('@')
        && (name == "localhost" || number.is_ok_and(|ip| ip.to_canonical().is_loopback()))
}

/// Finds the certificates of an address that comes from no context, in the way of `docker`.
fn certificates_from_env(
    host: &str,
    settings: Option<PathBuf>,
    env: EnvLookup<'_>,
) -> Result<Option<PathBuf>> {
    let directory = || env("DOCKER_CERT_PATH").map(PathBuf::from).or(settings);
    if env("DOCKER_TLS_VERIFY").is_some() || host.starts_with("https://") {
        return Ok(Some(directory().unwrap_or_default()));
    }
    if env("DOCKER_TLS").is_some() && is_tcp(host) {
        return Err(unverified("DOCKER_TLS asks for an engine that is not verified")
            .with_hint("set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to its certificates"));
    }
    Ok(None)
}

fn default_socket(env: EnvLookup<'_>) -> String {
    let runtime = env("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = |path: &str| runtime.as_ref().map(|runtime| runtime.join(path));
    let candidates = [
        Some(PathBuf::from(DEFAULT_SOCKET)),
        own("docker.sock"),
        own("podman/podman.sock"),
        Some(PathBuf::from("/run/podman/podman.sock")),
    ];
    let found = candidates.into_iter().flatten().find(|path| path.exists());
    format!("unix://{}", found.unwrap_or_else(|| DEFAULT_SOCKET.into()).display())
}

fn read_json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Reads the endpoint of the named context, or else of the current one. A context that cannot be used is an error: another
/// engine is not the one that was selected.
fn selected_context(settings: &Path, named: Option<String>) -> Result<Option<EngineEndpoint>> {
    let name = named.or_else(|| current_context(settings)).filter(|name| name != "default");
    name.map(|name| read_context(settings, &name)).transpose()
}

fn current_context(settings: &Path) -> Option<String> {
    let config = read_json(&settings.join("config.json"))?;
    config["currentContext"].as_str().map(str::to_owned)
}

/// Reads the endpoint of a context. Its certificates are in a directory of the same name as its own.
fn read_context(settings: &Path, name: &str) -> Result<EngineEndpoint> {
    let contexts = settings.join("contexts");
    let entries = fs::read_dir(contexts.join("meta")).into_iter().flatten().flatten();
    let found = entries.into_iter().find_map(|entry| {
        let context = read_json(&entry.path().join("meta.json"))?;
        (context["Name"] == name).then(|| (entry.file_name(), context))
    });
    let missing = || {
        let message = format!("the context {name:?} of docker is missing, or has no address");
        Error::new(ErrorKind::InvalidArgument, "create", message)
            .with_effect(Effect::NotSent)
            .with_hint("`docker context ls` lists them; DOCKER_CONTEXT and `docker context use` name one, DOCKER_HOST an engine")
    };
    let (directory, context) = found.ok_or_else(missing)?;
    let endpoint = &context["Endpoints"]["docker"];
    let host = endpoint["Host"].as_str().filter(|host| !host.is_empty()).ok_or_else(missing)?;
    if is_tcp(host) && endpoint["SkipTLSVerify"].as_bool() == Some(true) {
        let message = format!("the context {name:?} of docker has an engine that is not verified");
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
    Error::unsupported("create", format!("{message}: code and secrets could reach another machine"))
        .with_effect(Effect::NotSent)
}

fn unencrypted(host: &str) -> Error {
    unverified(&format!("{host} is on another host, and nothing encrypts the connection with it"))
        .with_context("engine", host.to_owned())
        .with_hint(
            "set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to its certificates; or forward its socket with \
             `ssh -N -L /tmp/engine.sock:/var/run/docker.sock USER@HOST`, and set DOCKER_HOST=unix:///tmp/engine.sock; \
             a program can set `DockerConfig::unencrypted`",
        )
}

fn ssh_unsupported(host: &str) -> Error {
    let login = host.trim_start_matches("ssh://");
    let login = login.split('/').next().unwrap_or(login);
    Error::unsupported("create", format!("{host} cannot be used: engines over ssh are not supported"))
        .with_effect(Effect::NotSent)
        .with_context("engine", host.to_owned())
        .with_hint(format!(
            "forward its socket with `ssh -N -L /tmp/engine.sock:/var/run/docker.sock {login}`, and set DOCKER_HOST=unix:///tmp/engine.sock"
        ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn find_with(config: &DockerConfig, env: &[(&str, &str)]) -> Result<EngineEndpoint> {
        let env: BTreeMap<_, _> = env.iter().copied().collect();
        find(config, &|name| {
            env.get(name).map(|value| (*value).to_owned()).filter(|v| !v.is_empty())
        })
    }

    /// Makes a folder of contexts: `far` with certificates, `plain` without, `unverified` that skips them, `remote` over ssh.
    fn contexts() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (directory, name, endpoint) in [
            ("a1", "far", json!({"Host": "tcp://far:2376", "SkipTLSVerify": false})),
            ("b2", "plain", json!({"Host": "tcp://near:2375"})),
            ("f6", "own", json!({"Host": "tcp://localhost:2375"})),
            ("c3", "unverified", json!({"Host": "tcp://far:2376", "SkipTLSVerify": true})),
            ("d4", "remote", json!({"Host": "ssh://me@far/x"})),
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
            find_with(
                &DockerConfig::default(),
                &[("DOCKER_CONFIG", settings), ("DOCKER_CONTEXT", name)],
            )
        };
        for current in ["", "far"] {
            let endpoint = in_context(current).unwrap();
            assert_eq!(endpoint.host, "tcp://far:2376");
            let certificates = folder.path().join("contexts/tls/a1/docker");
            assert_eq!(endpoint.certificates, Some(certificates));
        }
        let own = in_context("own").unwrap();
        assert_eq!((own.host.as_str(), own.certificates), ("tcp://localhost:2375", None));
        assert!(in_context("default").unwrap().host.starts_with("unix://"));
        // No other engine takes the place of the selected one, nor one that is not verified.
        for (name, kind, part) in [
            ("othre", ErrorKind::InvalidArgument, "\"othre\""),
            ("empty", ErrorKind::InvalidArgument, "\"empty\""),
            ("unverified", ErrorKind::Unsupported, "not verified"),
            ("remote", ErrorKind::Unsupported, "ssh"),
            ("plain", ErrorKind::Unsupported, "nothing encrypts"),
        ] {
            let error = in_context(name).unwrap_err();
            assert_eq!(error.kind(), kind, "{error:?}");
            assert!(error.message().contains(part) && error.hint().is_some(), "{error:?}");
        }
        let error = in_context("remote").unwrap_err();
        assert!(
            error.hint().unwrap().contains("ssh -N -L") && error.hint().unwrap().contains("me@far")
        );
    }

    /// Every machine on the way could read and change the messages.
    #[test]
    fn other_hosts_need_tls_unless_a_program_allows_otherwise() {
        let unencrypted = DockerConfig { unencrypted: true, ..DockerConfig::default() };
        for host in [
            "tcp://far:2375",
            "http://10.0.0.1",
            "tcp://[2001:db8::1]:2375",
            "tcp://localhost@far:1",
        ] {
            let error = find_with(&DockerConfig::default(), &[("DOCKER_HOST", host)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{host}: {error:?}");
            let hint = error.hint().unwrap();
            assert!(hint.contains("DOCKER_CERT_PATH") && hint.contains("ssh -N -L"), "{error:?}");
            let named = DockerConfig { host: Some(host.to_owned()), ..DockerConfig::default() };
            find_with(&named, &[]).unwrap_err();
            assert_eq!(find_with(&unencrypted, &[("DOCKER_HOST", host)]).unwrap().host, host);
            let verify =
                [("DOCKER_HOST", host), ("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", "/c")];
            find_with(&DockerConfig::default(), &verify).unwrap();
        }
        for host in ["tcp://127.0.0.1:2375", "tcp://localhost", "http://[::1]:2375/x", "unix:///x"]
        {
            find_with(&DockerConfig::default(), &[("DOCKER_HOST", host)]).unwrap();
        }
    }

    #[test]
    fn certificates_are_where_docker_has_them() {
        let host = ("DOCKER_HOST", "tcp://127.0.0.1:2376");
        let certificates =
            |env: &[(&str, &str)]| find_with(&DockerConfig::default(), env).unwrap().certificates;
        let home = ("HOME", "/home/me");
        let verify = ("DOCKER_TLS_VERIFY", "1");
        assert_eq!(certificates(&[host, home]), None);
        assert_eq!(certificates(&[host, home, ("DOCKER_TLS_VERIFY", "")]), None, "empty is off");
        assert_eq!(certificates(&[host, home, verify]), Some("/home/me/.docker".into()));
        assert_eq!(
            certificates(&[host, home, verify, ("DOCKER_CERT_PATH", "/c")]),
            Some("/c".into())
        );
        // A socket needs none.
        assert_eq!(certificates(&[("DOCKER_HOST", "unix:///x"), home, verify]), None);
        let error = find_with(&DockerConfig::default(), &[host, ("DOCKER_TLS", "1")]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let config = DockerConfig { certificates: Some("/own".into()), ..DockerConfig::default() };
        assert_eq!(find_with(&config, &[host]).unwrap().certificates, Some("/own".into()));
    }
}
