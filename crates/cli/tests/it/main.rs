//! The built binary from outside: its output and its exit statuses.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod commands;
mod copies;
#[cfg(feature = "datalayer")]
mod datalayer;
mod detached;
mod detached_truth;
mod docker_compat;
mod documents;
mod e2b_server;
mod information;
mod install;
mod interrupted;
mod json;
mod jupyter;
mod languages;
mod layers;
mod logs;
mod network;
mod notebooks;
mod python;
#[cfg(all(feature = "daytona", feature = "modal", feature = "e2b", feature = "serve"))]
mod reap;
mod serve;
mod serve_kernel;
mod shared_input;
mod signals;
mod snapshots;
mod support;
mod terminal;
mod usage;
mod words;
