//! Settings of a server, by the person who starts it. No client goes beyond them.

use std::collections::BTreeSet;
use std::time::Duration;

use sandbox_core::{ByteSize, Error, Result, Tool};

use super::catalog;
use crate::Ceiling;

/// Sandboxes of all sessions at one time.
const MAX_SANDBOXES: usize = 16;

/// Time limit of a run or a command that sets none.
pub const DEFAULT_RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// Default of [`McpOptions::task_after`].
const TASK_AFTER: Duration = Duration::from_secs(5);

/// Settings of a [`Toolset`](super::Toolset) and of a server over it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct McpOptions {
    /// The sandboxes: each is made like its `base`, or with less. A client can ask for less memory, less network and a
    /// shorter life, and never for more. Default: the defaults of the backend, and at most 16 sandboxes of all sessions.
    pub ceiling: Ceiling,
    /// Time limit of runs and commands that set none. Default 60 s.
    pub timeout: Duration,
    /// Names of the offered tools. `None`: all that the backend has.
    pub tools: Option<BTreeSet<String>>,
    /// Offers only tools that change nothing. Default false.
    pub read_only: bool,
    /// Asks the user of the client before calls that destroy something or widen access. Default false.
    pub confirm: bool,
    /// Keeps the sandbox of the session under this name, and finds it again. Default: it ends with the session.
    pub keep: Option<String>,
    /// Maximum bytes of text in an answer. Default 24,000.
    pub max_text: usize,
    /// Maximum size of an image in an answer; larger ones are saved as files of the sandbox. Default 2 MiB.
    pub max_image: ByteSize,
    /// Time after which a call that still runs becomes a task, for clients that have tasks. Default 5 s.
    pub task_after: Duration,
    /// Functions of the host that code in each sandbox can call, with the module that has them.
    pub host_tools: HostTools,
}

/// Functions of the host for code in the sandboxes.
#[derive(Clone, Debug, Default)]
pub struct HostTools {
    /// The functions.
    pub tools: Vec<Tool>,
    /// Source text of the Python module that has them as functions. Empty: none.
    pub module: String,
    /// Description for the model: the functions and their use.
    pub description: String,
}

impl Default for McpOptions {
    fn default() -> Self {
        Self {
            ceiling: Ceiling { max_sandboxes: MAX_SANDBOXES, ..Ceiling::default() },
            timeout: DEFAULT_RUN_TIMEOUT,
            tools: None,
            read_only: false,
            confirm: false,
            keep: None,
            max_text: 24_000,
            max_image: ByteSize::mib(2),
            task_after: TASK_AFTER,
            host_tools: HostTools::default(),
        }
    }
}

impl McpOptions {
    /// Checks names and numbers.
    ///
    /// # Errors
    /// `InvalidArgument` with the field and what is allowed.
    pub fn validate(&self) -> Result<()> {
        self.ceiling.base.validate()?;
        if self.ceiling.max_sandboxes == 0 {
            return Err(Error::invalid("max_sandboxes", "must be at least 1"));
        }
        if self.max_text < 1000 {
            return Err(Error::invalid("max_text", "must be at least 1,000 bytes"));
        }
        let known = catalog::names();
        if let Some(unknown) =
            self.tools.iter().flatten().find(|name| !known.contains(&name.as_str()))
        {
            let message = format!("has {unknown:?}; there are {}", known.join(", "));
            return Err(Error::invalid("tools", message));
        }
        if self.tools.as_ref().is_some_and(BTreeSet::is_empty) {
            return Err(Error::invalid("tools", "must name at least one tool"));
        }
        Ok(())
    }
}
