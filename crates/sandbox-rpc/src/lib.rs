//! Any backend over a byte stream.
//!
//! [`serve`] offers a [`Backend`](sandbox_core::Backend) on one end of a stream; [`connect`] gives, on the other end, a
//! [`RemoteBackend`] that is a backend again, with sandboxes whose every verb works as if they were near: events and files
//! are streamed in both directions with backpressure, errors arrive whole, and whatever is dropped on one side is
//! cancelled on the other. One connection carries everything.
//!
//! When the connection ends, what only its client held ends with it. So an attached sandbox still dies with its owner.
//!
//! The stream must be as private as the process behind it: whoever is connected can do all that the backend can.
//!
//! # On the wire
//! First each side says a [`ClientHello`] or a [`ServerHello`], whose form never changes. Then come frames with a kind, a
//! stream and at most 128 KiB. A request opens a stream; on it follow a body in one direction, and one reply and then
//! elements in the other. Each direction of each stream has a window of 1 MiB that its reader grants anew.

#![warn(clippy::missing_errors_doc)]

mod body;
mod client;
mod frame;
mod hello;
mod link;
mod message;
mod server;
mod tool;
mod transport;
mod window;
mod wire;

pub use client::{Greeted, RemoteBackend, connect, greet};
pub use hello::{ClientHello, PROTOCOL, ServerHello, VERSION};
pub use server::{Accepted, accept, serve};
