//! Sandboxes that are cells of this host: their processes, files, interpreters and snapshots.
//!
//! [`launchers`] makes the cells, [`visible_paths`] says what they show of this host, [`zygotes`] has the warm
//! interpreters that are forked into them. A zygote never runs user code; [`ZygoteRequest`] and [`ZygoteReply`] are its
//! messages.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod base;
pub mod cell;
mod gate;
mod health;
mod host_limits;
mod in_cell;
pub mod interpreters;
pub mod launchers;
pub mod mounts;
mod toolchains;
pub mod visible_paths;
pub mod zygote_message;
pub mod zygotes;

pub use base::base_for_cell;
pub use gate::{gated_network, proxied_network};
pub use health::health_in_cells;
pub use in_cell::InCell;
pub use zygote_message::{Fork, ResourceLimit, Start, ZygoteReply, ZygoteRequest};
