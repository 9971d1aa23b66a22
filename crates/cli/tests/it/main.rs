//! The built binary from outside: what it prints, and the status it ends with.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod commands;
mod copies;
mod datalayer;
mod detached;
mod detached_truth;
mod documents;
mod familiar;
mod information;
mod install;
mod interrupted;
mod json;
mod jupyter;
mod languages;
mod logs;
mod network;
mod notebooks;
mod python;
mod shared_input;
mod signals;
mod snapshots;
mod support;
mod terminal;
mod usage;
