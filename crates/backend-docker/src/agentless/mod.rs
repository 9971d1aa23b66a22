//! Containers of images without Python: only commands and files, without an agent.
//!
//! The init process is a shell that ends with the connection, the engine starts commands, and programs of the image handle
//! files.

mod host;
mod init;
mod instance;

use sandbox_core::{CreateSpec, SingleUse};

pub(crate) use self::host::AgentlessHost;
pub(crate) use self::instance::{AgentlessInstance, assemble};
use crate::capabilities::agentless_capabilities;
use crate::config::{CodeRunner, Options};
use crate::error::StartFailure;

/// Returns true if a sandbox without an agent satisfies a create whose image has no Python: the create requests nothing that
/// needs Python.
pub(crate) fn can_fall_back(failure: StartFailure, spec: &CreateSpec, options: &Options) -> bool {
    let is_set = |name: &str| spec.provider_options.contains_key(name);
    failure == StartFailure::MissingPython
        && options.runner == CodeRunner::Python
        && !["engine", "python", "interpreter", "pip"].into_iter().any(is_set)
        && spec.single_use != Some(SingleUse::Code)
        && agentless_capabilities(false).check(spec).is_ok()
}
