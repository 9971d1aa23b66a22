//! An agent over one stream of bytes, which is an ordinary process of this host.

mod byte_code;
mod checkpoints;
mod fd_transfer;
mod files;
mod processes;
mod resident;
mod support;
mod tunnels;
