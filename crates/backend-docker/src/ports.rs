//! Servers in a container. Their bytes go the way of everything else, so that a container needs no network for it.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use sandbox_agent_client::AgentPorts;
use sandbox_engine::{Connection, Ports, Servers};

/// Connections at a time. What one does not read stays under way, and is never more than half of what may be: the code of
/// the sandbox has the other half.
const MAX_CONNECTIONS: usize = 16;

#[derive(Debug)]
struct InContainer {
    there: AgentPorts,
}

#[async_trait]
impl Servers for InContainer {
    async fn connect(&self, port: u16) -> io::Result<Box<dyn Connection>> {
        let connected = self.there.connect(port).await.map_err(io::Error::other)?;
        Ok(Box::new(connected))
    }

    async fn closed(&self) {
        self.there.closed().await;
    }
}

/// The ports of one container.
pub(crate) fn ports(there: AgentPorts) -> Ports {
    Ports::new(Arc::new(InContainer { there }), MAX_CONNECTIONS)
}
