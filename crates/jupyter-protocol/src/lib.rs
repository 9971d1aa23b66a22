#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! Without I/O:
//! - [`content`]: the contents of messages, one type each, and [`Content`], the enum of all.
//! - [`framing`]: the framings of messages on a WebSocket.
//! - [`readiness`], [`execution`]: state machines that decide when a kernel can be used and when code has ended.
//! - [`media`]: MIME bundles.
//! - [`outputs`]: the outputs of an execution as a notebook shows them.
//!
//! With I/O, each behind a feature: `kernelspec`, `zmq`, `manager`, `websocket`, `test_kernel`; and `client`, which all
//! transports share. Enable only `client` for code that works with a client of any transport.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod channel;
#[cfg(feature = "client")]
#[cfg_attr(
    not(any(feature = "websocket", all(feature = "zmq", unix))),
    expect(dead_code, reason = "only a transport makes clients")
)]
pub mod client;
mod codec;
mod connection;
pub mod content;
pub mod execution;
mod frames;
pub mod framing;
mod header;
mod json;
#[cfg(all(feature = "kernelspec", unix))]
pub mod kernelspec;
mod limits;
#[cfg(all(feature = "manager", unix))]
pub mod manager;
pub mod media;
mod message;
pub mod outputs;
mod raw;
pub mod readiness;
mod replay;
mod session;
mod signature;
#[cfg(all(feature = "test-kernel", unix))]
pub mod test_kernel;
#[cfg(feature = "websocket")]
pub mod websocket;
#[cfg(all(feature = "zmq", unix))]
pub mod zmq;
#[cfg(all(feature = "test-kernel", not(feature = "zmq"), unix))]
mod zmtp;
#[cfg(all(feature = "zmq", unix))]
pub mod zmtp;

// Types of these crates are part of the public API.
pub use bytes;
pub use chrono;
#[cfg(feature = "client")]
pub use futures_core;
pub use serde_json;

pub use channel::{Channel, UnknownChannel};
pub use codec::Codec;
pub use connection::{ConnectionError, ConnectionInfo, Endpoint, ReservedPorts, Transport};
pub use content::{Content, MessageContent, Reply, Request};
pub use content::{ExecuteReply, ExecuteRequest, KernelInfoReply, KernelInfoRequest};
pub use frames::{DELIMITER, FrameError, Frames, Rejected};
pub use header::{Header, HeaderError, Parent};
pub use json::{JsonMap, ShapeError};
pub use limits::Limits;
pub use media::MimeBundle;
pub use message::Message;
pub use raw::RawMessage;
pub use replay::ReplayWindow;
pub use session::{PROTOCOL_VERSION, Session};
pub use signature::{Key, SignatureError, SignatureScheme, Signer, UnknownScheme};
