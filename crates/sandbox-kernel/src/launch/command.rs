//! How a kernel is started.

use std::collections::BTreeMap;

use jupyter_protocol::kernelspec::InterruptMode;

/// Stands for the connection file until there is one.
const FILE: &str = "/connection-file";

/// A kernel specification, ready to be started.
#[derive(Clone, Debug)]
pub struct KernelCommand {
    /// The name of the specification.
    pub name: String,
    /// What to call it in a list.
    pub title: String,
    /// The language it runs, in lower case.
    pub language: String,
    /// How it is interrupted.
    pub interrupt: InterruptMode,
    /// The program and its arguments, with [`KernelCommand::FILE`] for the connection file.
    pub argv: Vec<String>,
    /// What its specification adds to the environment.
    pub env: BTreeMap<String, String>,
}

impl KernelCommand {
    /// What the arguments have in the place of the connection file.
    pub const FILE: &'static str = FILE;

    /// The program and its arguments.
    pub(crate) fn argv(&self, connection_file: &str) -> Vec<String> {
        self.argv.iter().map(|word| word.replace(FILE, connection_file)).collect()
    }

    /// Whether it is a kernel of IPython, as far as its command tells.
    pub fn looks_like_ipython(&self) -> bool {
        let module = |word: &String| word.starts_with("ipykernel");
        self.language == "python" && self.argv.iter().any(module)
    }
}
