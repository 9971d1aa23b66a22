//! Run code safely: one API over local cells, kernels, containers and cloud sandboxes.
//!
//! ```
//! use std::time::Duration;
//!
//! use code_sandboxes::Sandbox;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> code_sandboxes::Result<()> {
//! let sandbox =
//!     Sandbox::builder().variant("local-eval").timeout(Duration::from_secs(60)).create().await?;
//! sandbox.run_code("x = 40").await?;
//! let result = sandbox.run_code("x + 2").on_stdout(|m| eprintln!("{}", m.line)).await?;
//! assert_eq!(result.text(), Some("42"));
//! sandbox.terminate().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Each backend is a feature and a crate of its own; `default` is `eval`, `blocking`, `detached` and `pool`.
//! Everything of [`sandbox_core`] is here too.

#![warn(clippy::missing_errors_doc)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(feature = "detached")]
pub mod detached;
mod manager;
mod once;
#[cfg(feature = "pool")]
pub mod pool;
mod registry;
mod sandbox;

pub use sandbox_core::*;

#[cfg(feature = "docker")]
pub use backend_docker as docker;
#[cfg(feature = "eval")]
pub use backend_eval as eval;
#[cfg(feature = "jupyter")]
pub use backend_jupyter as jupyter;

pub use manager::{Fallback, Listing, Manager};
pub use once::{run, run_many};
pub use registry::{Registry, VariantStatus};
pub use sandbox::{Sandbox, lacks_credentials, list_environments};

/// The programs in the documents are tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    mod package {}

    #[doc = include_str!("../../../README.md")]
    mod workspace {}
}
