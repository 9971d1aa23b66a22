//! The carrier over one stream of bytes, with an agent that is an ordinary process of this host.

mod byte_code;
mod copies;
mod files;
mod processes;
mod support;
mod taken;
mod tunnels;
