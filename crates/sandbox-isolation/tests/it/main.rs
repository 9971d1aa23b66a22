//! Tests of real cells. Every test needs working isolation and fails without it.
#![expect(clippy::unwrap_used, reason = "what a test relies on must hold")]

mod adopt;
mod confine;
mod confined;
mod gate;
mod life;
mod limits;
mod loopback;
mod mounts;
mod off;
mod spawn;
mod support;
mod trees;
mod view;
