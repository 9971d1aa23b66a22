//! Egress of a container: none, or through the gate.
//!
//! The gate is opened in the container's own network, which is empty but for its loopback, before any code runs there. Where
//! that network cannot be reached from here, programs use the gate as a proxy, over the loopback and the agent. No container
//! gets a network of the engine: such a network leads to private networks, metadata services and other containers.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;

use futures_util::stream;
use sandbox_agent_client::{AgentConnection, LocateProcess as _};
use sandbox_cells::launchers::{CellLaunchers, no_isolation};
use sandbox_core::{Check, CreateSpec, IsolationMode, NetworkMode, NetworkPolicy, Result};
use sandbox_engine::Attempts;
use sandbox_engine::network::Network;
use sandbox_isolation::Privilege;

use crate::config::Options;
use crate::engine::Engine;
use crate::init_process::InitProcess;
use crate::probe::run_python;

/// Compares the network namespace of code with a number.
const COMPARE: &str =
    "import os, sys; sys.exit(str(os.stat('/proc/self/ns/net').st_ino) != sys.argv[1])";

/// Hint for a host on which the gate is only a proxy.
const GATE_HINT: &str = "use an engine of this host as root";

/// Egress of the code in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EgressMode {
    /// No egress.
    Closed,
    /// Through the gate, transparently.
    Gate,
    /// Through the gate as a proxy, for programs that use one.
    Proxy,
}

impl EgressMode {
    /// Returns the mode for the requested network.
    pub(crate) async fn for_spec(
        spec: &CreateSpec,
        options: &Options,
        engine: &Engine,
        launchers: &CellLaunchers,
    ) -> Self {
        match spec.network.mode {
            NetworkMode::None | NetworkMode::Inherit => Self::Closed,
            NetworkMode::Allowlist | NetworkMode::All => {
                match gate_unavailable_reason(options.runtime.as_deref(), engine, launchers).await {
                    None => Self::Gate,
                    Some(_) => Self::Proxy,
                }
            }
        }
    }

    /// Returns the resolvers of the container, where they are not those of the engine.
    pub(crate) fn resolvers(self) -> Option<Vec<String>> {
        (self == Self::Gate).then(|| vec!["127.0.0.1".to_owned()])
    }
}

/// Explains why no gate can be opened in a container. Returns `None` where it can be.
async fn gate_unavailable_reason(
    runtime: Option<&str>,
    engine: &Engine,
    launchers: &CellLaunchers,
) -> Option<&'static str> {
    if !engine.has_local_socket() {
        return Some("the engine is not on this host");
    }
    if runtime.is_some() {
        return Some("containers of another runtime may have their own network stack");
    }
    match launchers.get(IsolationMode::Strict).await {
        Ok(launcher) if launcher.privilege() == Privilege::Root => None,
        Ok(_) => Some("only root can open a gate in the network of a container"),
        Err(_) => Some("this host does not let sandboxes be isolated"),
    }
}

/// Checks how network policies are enforced on this host.
pub(crate) async fn check(engine: &Engine, launchers: &CellLaunchers) -> Check {
    let name = "network gate".to_owned();
    match gate_unavailable_reason(None, engine, launchers).await {
        None => Check { name, ok: true, detail: "network policies work".to_owned(), fix: None },
        Some(why) => {
            let detail = format!(
                "network policies are enforced by a proxy, which programs have to use: {why}"
            );
            Check { name, ok: true, detail, fix: Some(GATE_HINT.to_owned()) }
        }
    }
}

/// Opens the network of a container that runs no code yet. Returns the network with its mode, which is the proxy where the
/// container's network is not one of this host.
///
/// # Errors
/// `Unsupported` when the kernel has no gates.
pub(crate) async fn open(
    mode: EgressMode,
    policy: NetworkPolicy,
    init_process: InitProcess,
    agent: &AgentConnection,
    launchers: &CellLaunchers,
    python: &str,
) -> Result<(Network, EgressMode)> {
    let network = match mode {
        EgressMode::Closed => {
            let attempts = Attempts::of_process_found_by(async move { init_process.pid().await });
            Network::closed(policy).with_attempts(attempts)
        }
        EgressMode::Proxy => proxy(policy, agent).await?,
        EgressMode::Gate => match find(&init_process, agent, python).await? {
            Ok(network) => {
                let launcher = launchers.get(IsolationMode::Strict).await?;
                let sockets = launcher.gate(network.as_fd()).await.map_err(no_isolation)?;
                sandbox_cells::gated_network(policy, sockets)?
            }
            Err(why) => {
                tracing::debug!(why, "the network of the container was not found: a proxy is used");
                return Ok((proxy(policy, agent).await?, EgressMode::Proxy));
            }
        },
    };
    Ok((network, mode))
}

/// Opens the network namespace of a container of this host. The inner error explains why there is none.
async fn find(
    init_process: &InitProcess,
    agent: &AgentConnection,
    python: &str,
) -> Result<std::result::Result<File, &'static str>> {
    let Some(pid) = init_process.host_pid().await else {
        return Ok(Err("the engine does not report its init process"));
    };
    let network = File::open(format!("/proc/{pid}/ns/net"));
    let opened = network.and_then(|network| Ok((network.metadata()?.ino(), network)));
    let Ok((inode, network)) = opened else {
        return Ok(Err("its init process is not on this host"));
    };
    // The number may be that of another process: the opened namespace must be the one of the code.
    if run_python(agent, python, COMPARE, vec![inode.to_string()]).await? != Some(0) {
        return Ok(Err("the process that the engine reports is another process here"));
    }
    Ok(Ok(network))
}

/// Opens the gate as a proxy at a port of the container's loopback, whose connections the agent forwards.
async fn proxy(policy: NetworkPolicy, agent: &AgentConnection) -> Result<Network> {
    let listener = agent.ports().listen().await?;
    let port = listener.port();
    let connections = stream::unfold(listener, async |listener| {
        // Fails when the container has ended.
        listener.accept().await.ok().map(|connection| (connection, listener))
    });
    Ok(sandbox_cells::proxied_network(policy, port, connections))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DockerConfig;

    async fn mode(policy: NetworkPolicy, host: &str) -> EgressMode {
        let mut spec = CreateSpec::default();
        spec.network = policy;
        let options = Options::from_spec(&DockerConfig::default(), &spec).unwrap();
        EgressMode::for_spec(&spec, &options, &Engine::at(host), &CellLaunchers::default()).await
    }

    #[tokio::test]
    async fn a_proxy_takes_the_place_of_a_gate_and_no_container_is_open() {
        const FAR: &str = "tcp://198.51.100.1:2376";
        assert_eq!(mode(NetworkPolicy::none(), FAR).await, EgressMode::Closed);
        assert_eq!(mode(NetworkPolicy::default(), FAR).await, EgressMode::Closed);
        let mut all_but_one = NetworkPolicy::all();
        all_but_one.deny = vec!["evil.example".parse().unwrap()];
        let listed = NetworkPolicy::allowlist(["a.example"]).unwrap();
        for policy in [listed, all_but_one, NetworkPolicy::all()] {
            assert_eq!(mode(policy, FAR).await, EgressMode::Proxy);
        }
        // A runtime may have its own network stack, in which no gate can be opened.
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
