//! Any backend over a byte stream.
//!
//! [`serve`] offers a [`Backend`](sandbox_core::Backend) on one end of a stream. [`connect`] returns, on the other end, a
//! [`RemoteBackend`], which is a backend itself: every verb of its sandboxes works as if they were local. Events and files
//! are streamed in both directions with backpressure, errors arrive with all of their fields, and what is dropped on one
//! side is cancelled on the other. One connection carries everything.
//!
//! When the connection ends, what only its client held ends with it, so an attached sandbox still dies with its owner.
//!
//! The stream must be as private as the process behind it: a connected client can do all that the backend can.
//!
//! # On the wire
//! First each side sends a [`ClientHello`] or a [`ServerHello`], whose form never changes. Then follow frames with a kind, a
//! stream id and a payload of at most 128 KiB. A request opens a stream. On the stream follow a body in one direction, and
//! one reply and then elements in the other. Each direction of each stream has a window of 1 MiB, which its reader
//! replenishes.

#![warn(clippy::missing_errors_doc)]

mod body;
mod client;
mod elements;
mod frame;
mod handshake;
mod link;
mod message;
mod server;
mod tool_calls;
mod transport;
mod verbs;
mod window;
mod wire;

pub use client::{Negotiated, RemoteBackend, connect, handshake};
pub use handshake::{ClientHello, PROTOCOL, ServerHello, VERSION};
pub use server::{Accepted, accept, serve};
