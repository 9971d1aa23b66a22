//! What code in a container may reach: nothing, or what a gate lets out.
//!
//! A gate is opened in the container's own network, which is empty but for its loopback, before any code runs there. Where
//! that network cannot be reached from here, programs ask the gate as they would ask a proxy, over the loopback and the
//! agent. The engine gives no container a network: its own leads to private networks, metadata services and other containers.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;

use bollard::Docker;
use futures_util::stream;
use sandbox_agent_client::LocateProcess as _;
use sandbox_cells::launchers::{CellLaunchers, no_isolation};
use sandbox_core::{Check, CreateSpec, IsolationMode, NetworkMode, NetworkPolicy, Result};
use sandbox_engine::Attempts;
use sandbox_engine::network::Network;
use sandbox_isolation::Privilege;

use crate::config::Options;
use crate::container_host::ContainerHost;
use crate::engine::Engine;
use crate::init_process::InitProcess;

/// Compares the network that code will be in with the number of one.
const COMPARE: &str =
    "import os, sys; sys.exit(str(os.stat('/proc/self/ns/net').st_ino) != sys.argv[1])";

/// What would make a gate of a proxy.
const HINT: &str = "use an engine of this host as root";

/// How code gets out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EgressMode {
    /// Not at all.
    Closed,
    /// Through a gate of ours.
    Gate,
    /// Through a gate of ours, for programs that ask it as a proxy.
    Proxy,
}

impl EgressMode {
    /// The way for what is asked for.
    pub(crate) async fn for_spec(
        spec: &CreateSpec,
        options: &Options,
        daemon: &Engine,
        launchers: &CellLaunchers,
    ) -> Self {
        match spec.network.mode {
            NetworkMode::None | NetworkMode::Inherit => Self::Closed,
            NetworkMode::Allowlist | NetworkMode::All => {
                match gate_unavailable_reason(options.runtime.as_deref(), daemon, launchers).await {
                    None => Self::Gate,
                    Some(_) => Self::Proxy,
                }
            }
        }
    }

    /// Who answers questions about names, where that is not the engine's business.
    pub(crate) fn resolvers(self) -> Option<Vec<String>> {
        (self == Self::Gate).then(|| vec!["127.0.0.1".to_owned()])
    }
}

/// Why no gate can be opened in a container, if so.
async fn gate_unavailable_reason(
    runtime: Option<&str>,
    daemon: &Engine,
    launchers: &CellLaunchers,
) -> Option<&'static str> {
    if !daemon.has_local_socket() {
        return Some("the engine is not on this host");
    }
    if runtime.is_some() {
        return Some("containers of another runtime may have a network stack of their own");
    }
    match launchers.get(IsolationMode::Strict).await {
        Ok(maker) if maker.privilege() == Privilege::Root => None,
        Ok(_) => Some("only root can open a gate in the network of a container"),
        Err(_) => Some("this host does not let sandboxes be isolated"),
    }
}

/// Whether network policies with lists can be enforced.
pub(crate) async fn check(daemon: &Engine, launchers: &CellLaunchers) -> Check {
    let name = "network gate".to_owned();
    match gate_unavailable_reason(None, daemon, launchers).await {
        None => Check { name, ok: true, detail: "network policies work".to_owned(), fix: None },
        Some(why) => {
            let detail = format!(
                "network policies are enforced by a proxy that programs have to heed: {why}"
            );
            Check { name, ok: true, detail, fix: Some(HINT.to_owned()) }
        }
    }
}

/// The network of a container that has started and runs no code yet, and the way out that it has. Where its network turns
/// out not to be one of this host, that is the proxy.
///
/// # Errors
/// `Unsupported` when the kernel has no gates.
pub(crate) async fn open(
    way: EgressMode,
    spec: &CreateSpec,
    docker: &Docker,
    made: &ContainerHost,
    launchers: &CellLaunchers,
    python: &str,
) -> Result<(Network, EgressMode)> {
    let policy = spec.network.clone();
    let network = match way {
        EgressMode::Closed => {
            let first = InitProcess::new(docker, made.name());
            let attempts = Attempts::of_process_found_by(async move { first.pid().await });
            Network::closed(policy).with_attempts(attempts)
        }
        EgressMode::Proxy => proxy(policy, made).await?,
        EgressMode::Gate => match find(docker, made, python).await? {
            Ok(network) => {
                let maker = launchers.get(IsolationMode::Strict).await?;
                let sockets = maker.gate(network.as_fd()).await.map_err(no_isolation)?;
                sandbox_cells::gated_network(policy, sockets)?
            }
            Err(why) => {
                tracing::debug!(why, "the network of the container was not found: a proxy it is");
                return Ok((proxy(policy, made).await?, EgressMode::Proxy));
            }
        },
    };
    Ok((network, way))
}

/// The network that a container is in, if it is one of this host; otherwise why not.
async fn find(
    docker: &Docker,
    made: &ContainerHost,
    python: &str,
) -> Result<std::result::Result<File, &'static str>> {
    let Some(pid) = InitProcess::new(docker, made.name()).host_pid().await else {
        return Ok(Err("the engine does not say what its first process is"));
    };
    let network = File::open(format!("/proc/{pid}/ns/net"));
    let opened = network.and_then(|network| Ok((network.metadata()?.ino(), network)));
    let Ok((inode, network)) = opened else {
        return Ok(Err("its first process is not on this host"));
    };
    // A number of a process says little: what was opened must be where code will be.
    if made.run(python, COMPARE, vec![inode.to_string()]).await? != Some(0) {
        return Ok(Err("the process that the engine names is another one here"));
    }
    Ok(Ok(network))
}

/// Connections to a port of the container's loopback, which the agent hands on.
async fn proxy(policy: NetworkPolicy, made: &ContainerHost) -> Result<Network> {
    let listener = made.pipe().ports().listen().await?;
    let port = listener.port();
    let connections = stream::unfold(listener, async |listener| {
        // It fails when the container has ended.
        listener.accept().await.ok().map(|connection| (connection, listener))
    });
    Ok(sandbox_cells::proxied_network(policy, port, connections))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DockerConfig;

    async fn way(policy: NetworkPolicy, host: &str) -> EgressMode {
        let mut spec = CreateSpec::default();
        spec.network = policy;
        let options = Options::from_spec(&DockerConfig::default(), &spec).unwrap();
        EgressMode::for_spec(&spec, &options, &Engine::at(host), &CellLaunchers::default()).await
    }

    #[tokio::test]
    async fn where_there_is_no_gate_there_is_a_proxy_and_no_container_is_open() {
        const FAR: &str = "tcp://198.51.100.1:2376";
        assert_eq!(way(NetworkPolicy::none(), FAR).await, EgressMode::Closed);
        assert_eq!(way(NetworkPolicy::default(), FAR).await, EgressMode::Closed);
        let mut all_but_one = NetworkPolicy::all();
        all_but_one.deny = vec!["evil.example".parse().unwrap()];
        let listed = NetworkPolicy::allowlist(["a.example"]).unwrap();
        for policy in [listed, all_but_one, NetworkPolicy::all()] {
            assert_eq!(way(policy, FAR).await, EgressMode::Proxy);
        }
        // A runtime may have a network stack of its own, in which no gate stands.
        let mut spec = CreateSpec::default();
        spec.network = NetworkPolicy::all();
        spec.provider_options.insert("runtime".into(), "runsc".into());
        let options = Options::from_spec(&DockerConfig::default(), &spec).unwrap();
        let here = Engine::at("unix:///");
        assert_eq!(
            EgressMode::for_spec(&spec, &options, &here, &CellLaunchers::default()).await,
            EgressMode::Proxy
        );
    }
}
