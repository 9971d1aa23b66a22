//! The command that starts a kernel.

use std::collections::BTreeMap;

use jupyter_protocol::kernelspec::InterruptMode;

/// The placeholder for the connection file.
const FILE: &str = "/connection-file";

/// A kernel specification, ready to be started.
#[derive(Clone, Debug)]
pub struct KernelCommand {
    /// The name of the specification.
    pub name: String,
    /// The name to display.
    pub title: String,
    /// The language of the kernel, in lower case.
    pub language: String,
    /// The way to interrupt the kernel.
    pub interrupt: InterruptMode,
    /// The program and its arguments, with [`KernelCommand::FILE`] for the connection file.
    pub argv: Vec<String>,
    /// Environment variables of the specification.
    pub env: BTreeMap<String, String>,
}

impl KernelCommand {
    /// The placeholder for the connection file in the arguments.
    pub const FILE: &'static str = FILE;

    /// Returns the program and its arguments.
    pub(crate) fn argv(&self, connection_file: &str) -> Vec<String> {
        self.argv.iter().map(|word| word.replace(FILE, connection_file)).collect()
    }

    /// Returns true if the command appears to start an IPython kernel.
    pub fn looks_like_ipython(&self) -> bool {
        let module = |word: &String| word.starts_with("ipykernel");
        self.language == "python" && self.argv.iter().any(module)
    }
}
