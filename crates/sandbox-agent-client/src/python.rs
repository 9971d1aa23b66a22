//! The interpreter of a sandbox, as its agent reports it.

use sandbox_core::{Error, ErrorKind, Result};

use crate::AgentConnection;
use crate::call::Call;

/// The interpreter of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentPython {
    /// The path of its program.
    pub executable: String,
    /// `sys.prefix`: the directory of its environment.
    pub prefix: String,
    /// Major and minor version.
    pub version: (u32, u32),
    /// Set when it has the package that was asked for.
    pub has_package: bool,
}

impl AgentConnection {
    /// Returns the interpreter that the agent runs in, and whether it has a package.
    ///
    /// # Errors
    /// `Unavailable` when the agent does not answer, `Terminated` when the sandbox has ended.
    pub async fn interpreter(&self, package: &str) -> Result<AgentPython> {
        let failed = || match self.connection.is_closed() {
            true => self.connection.lost(),
            false => {
                Error::new(ErrorKind::Unavailable, "create", "the interpreter does not answer")
            }
        };
        let answer = Call::begin(&self.connection, "python", &[package.into()])?.answer().await;
        python_of(&answer.map_err(|_| failed())?).ok_or_else(failed)
    }
}

fn python_of(answer: &[Vec<u8>]) -> Option<AgentPython> {
    let [executable, prefix, major, minor, has_package] = answer else { return None };
    let text = |field: &Vec<u8>| String::from_utf8(field.clone()).ok();
    let number = |field: &Vec<u8>| {
        let value = i64::from_le_bytes(field.as_slice().try_into().ok()?);
        u32::try_from(value).ok()
    };
    Some(AgentPython {
        executable: text(executable)?,
        prefix: text(prefix)?,
        version: (number(major)?, number(minor)?),
        has_package: number(has_package)? != 0,
    })
}
