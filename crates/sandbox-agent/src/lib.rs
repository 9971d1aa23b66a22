//! The Python side of Code Sandboxes, and the messages spoken with it.
//!
//! Python code runs in a *worker*, a process that executes code and does nothing else. Workers are
//! forked from a *zygote*, a warm interpreter that never runs user code. This crate holds the
//! sources of both ([`python`]) and the two vocabularies: [`Request`] and [`Reply`] with a worker,
//! [`ZygoteRequest`] and [`ZygoteReply`] with a zygote.
//!
//! On top of that: [`box_io`], what every local backend is written against, and [`interpreter`],
//! contexts and runs on any box, and [`commands`], the same for programs.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod box_io;
#[cfg(feature = "cell")]
pub mod cell;
pub mod commands;
#[cfg(any(feature = "cell", feature = "pipe"))]
pub mod files;
pub mod interpreter;
pub mod message;
#[cfg(feature = "pipe")]
pub mod pipe;
pub mod python;
mod tree_limit;
pub mod wire;
pub mod zygote_message;

pub use message::{
    DisplayKind, Encoding, FailureKind, MimeData, PROTOCOL_VERSION, Reply, Request, Run, RunMode,
};
pub use wire::{Frame, FrameReader, WireError};
pub use zygote_message::{Fork, ResourceLimit, Start, ZygoteReply, ZygoteRequest};
