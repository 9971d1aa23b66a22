//! The kernels of a container: where they listen, and how that is reached through the agent.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use jupyter_protocol::zmq::{Dialer, Io};
use jupyter_protocol::{Channel, ConnectionInfo, Endpoint, ReservedPorts};
use sandbox_agent::box_io::{BoxFiles, BoxIo, Process};
use sandbox_agent::pipe::{Listener, PipePorts, Speaker};
use sandbox_core::Result;
use sandbox_kernel::KernelBox;
use sandbox_kernel::launch::{KernelCommand, Kernels, Way, failed};

use crate::config::Transport;

/// Where kernels have their sockets and files.
const PARENT: &str = "/tmp";

/// The first port that no user needs a privilege for, and how many there are from there on.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
