//! Sandboxes that outlive their process, and how they are found again.
//!
//! On this host they belong to the supervisor: one process per user, started on demand, which is the program `sandboxes`.
//! It is found by the variable `CODE_SANDBOXES_SUPERVISOR`, as this very program, or on `PATH`. When the supervisor dies,
//! however it dies, all of its sandboxes end.
//!
//! It has the environment of the program that started it. What the environment of this process says of a sandbox goes along with its
//! create: the interpreter (`CODE_SANDBOXES_PYTHON`, `VIRTUAL_ENV`) and the image (`CODE_SANDBOXES_IMAGE`). A supervisor whose
//! environment leads to another container engine is replaced while it has no sandbox, and otherwise an error.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use code_sandboxes::Sandbox;
//!
//! # async fn example() -> code_sandboxes::Result<()> {
//! let hour = Duration::from_secs(3600);
//! let sandbox = Sandbox::builder().tag("project", "report").detached(hour).create().await?;
//! sandbox.run_code("x = 41").await?;
//! let id = sandbox.id();
//! // In any later process:
//! let sandbox = Sandbox::attach(&id).await?;
//! assert_eq!(sandbox.run_code("x + 1").await?.text(), Some("42"));
//! # Ok(())
//! # }
//! ```

pub use sandbox_supervisor::client::{RUNTIME_DIRECTORY_VARIABLE, SUPERVISOR_VARIABLE, status};
