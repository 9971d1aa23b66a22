//! The kernels of a container: where they listen, and how that is reached through the agent.

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

/// Ports from which Linux takes none for itself.
const QUIET: Range<u16> = 20_000..32_000;

/// The way into a container: its agent connects, and carries the bytes beside everything else.
#[derive(Debug)]
pub(crate) struct AgentDialer {
    pub(crate) there: AgentPorts,
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
        let (there, info) = (self.there.clone(), info.clone());
        Ok(Some(Arc::new(KernelTunnel { there, info, pid: process.pid() })))
    }
}

/// Ports cannot be tried from here. That one of them is in use is rare, and the kernel is started again then.
fn first_port(random: &str) -> u16 {
    let number = u16::from_str_radix(random, 16).unwrap_or_default();
    QUIET.start + number % (QUIET.end - QUIET.start)
}

/// The way to one kernel.
struct KernelTunnel {
    there: AgentPorts,
    info: ConnectionInfo,
    pid: u32,
}

#[async_trait]
impl Dialer for KernelTunnel {
    async fn dial(&self, channel: Channel) -> io::Result<Box<dyn Io>> {
        let there = match self.info.endpoint(channel) {
            Endpoint::Tcp { port, .. } => Listener::Port(port),
            Endpoint::Ipc { path } => Listener::Socket(path.to_string_lossy().into_owned()),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        let opened = self.there.open(&there, Some(self.peer(channel))).await;
        Ok(Box::new(opened.map_err(io::Error::other)?))
    }
}

impl KernelTunnel {
    /// A reply ends a run, and a call of a tool shows what was written before; so both come after that. What a kernel
    /// publishes is taken at once, because it drops what is not.
    fn peer(&self, channel: Channel) -> PeerProcess {
        PeerProcess { pid: self.pid, always: matches!(channel, Channel::Shell | Channel::Stdin) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_ports_are_there_for_every_first_one() {
        for random in ["0000", "ffff", "2edf", "2ee0"] {
            let first = first_port(random);
            assert!(QUIET.contains(&first) && first.checked_add(4).is_some(), "{first}");
        }
    }
}
