//! Connects to the kernels of a container through its agent.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use jupyter_protocol::zmq::{Dialer, Io};
use jupyter_protocol::{Channel, ConnectionInfo, Endpoint, Transport};
use sandbox_agent_client::{AgentPorts, Listener, PeerProcess};
use sandbox_core::{Result, random_hex};
use sandbox_engine::host::Process;
use sandbox_kernel::launch::KernelDialer;

/// Ports outside of Linux's ephemeral range.
const KERNEL_PORTS: Range<u16> = 20_000..32_000;

/// Dials kernels through the agent of their container, whose connection carries the bytes.
#[derive(Debug)]
pub(crate) struct AgentDialer {
    pub(crate) ports: AgentPorts,
}

#[async_trait]
impl KernelDialer for AgentDialer {
    async fn connection_info(&self, folder: &str, transport: Transport) -> Result<ConnectionInfo> {
        Ok(match transport {
            Transport::Tcp => {
                let first = first_port(&random_hex(2));
                ConnectionInfo::tcp("127.0.0.1", [0, 1, 2, 3, 4].map(|next| first + next))
            }
            _ => ConnectionInfo::ipc(format!("{folder}/s")),
        })
    }

    fn dialer(
        &self,
        info: &ConnectionInfo,
        process: &dyn Process,
    ) -> Result<Option<Arc<dyn Dialer>>> {
        let (ports, info) = (self.ports.clone(), info.clone());
        Ok(Some(Arc::new(KernelTunnel { ports, info, pid: process.pid() })))
    }
}

/// Chooses the first of five ports. They are not tried: one in use is rare, and then the kernel is started again.
fn first_port(random: &str) -> u16 {
    let number = u16::from_str_radix(random, 16).unwrap_or_default();
    KERNEL_PORTS.start + number % (KERNEL_PORTS.end - KERNEL_PORTS.start)
}

/// Dials one kernel.
struct KernelTunnel {
    ports: AgentPorts,
    info: ConnectionInfo,
    pid: u32,
}

#[async_trait]
impl Dialer for KernelTunnel {
    async fn dial(&self, channel: Channel) -> io::Result<Box<dyn Io>> {
        let listener = match self.info.endpoint(channel) {
            Endpoint::Tcp { port, .. } => Listener::Port(port),
            Endpoint::Ipc { path } => Listener::Socket(path.to_string_lossy().into_owned()),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        let opened = self.ports.open(&listener, Some(self.peer(channel))).await;
        Ok(Box::new(opened.map_err(io::Error::other)?))
    }
}

impl KernelTunnel {
    /// Returns how the agent orders a channel's bytes. Replies and tool calls come after the output that was written before
    /// them. Published messages are read at once, because a kernel drops those that are not.
    fn peer(&self, channel: Channel) -> PeerProcess {
        PeerProcess { pid: self.pid, always: matches!(channel, Channel::Shell | Channel::Stdin) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_first_port_has_four_successors() {
        for random in ["0000", "ffff", "2edf", "2ee0"] {
            let first = first_port(random);
            assert!(KERNEL_PORTS.contains(&first) && first.checked_add(4).is_some(), "{first}");
        }
    }
}
