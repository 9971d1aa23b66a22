//! The program that an IPython kernel runs first.

use jupyter_protocol::KernelInfoReply;
use sandbox_python::part;
use serde_json::{Map, Value, json};

/// Parts of the worker that the program uses.
const PARTS: [&str; 16] = [
    "codec",
    "streams",
    "library",
    "directory",
    "run_settings",
    "system_exit",
    "scripts",
    "tools",
    "builtins_api",
    "variables",
    "errors",
    "hooks",
    "charts",
    "tables",
    "installed",
    "magics",
];

/// Parts of the program only.
const OWN_PARTS: [(&str, &str); 3] = [
    ("ipython", include_str!("python/ipython.py")),
    ("stdin_channel", include_str!("python/stdin_channel.py")),
    ("stdin_peer", include_str!("python/stdin_peer.py")),
];

/// The metadata key of the program, in the request that runs it. Differs from the key of runs: a kernel that another
/// client has prepared must treat the request as any other cell.
pub(crate) const PROGRAM_KEY: &str = "sandbox_program";

const KERNEL: &str = include_str!("python/kernel.py");

/// Settings of the kernel program.
#[derive(Clone, Debug)]
pub struct Program {
    /// The prefix of its messages, which is secret.
    pub(crate) prefix: String,
    /// The key of its metadata and of its additions to replies.
    pub(crate) key: &'static str,
    /// True if the descriptors of the process lead to the host.
    pub own_streams: bool,
    /// The home directory, below which packages are installed.
    pub home: String,
    /// The working directory.
    pub cwd: String,
}

impl Program {
    /// Creates the program of one kernel, with a new prefix.
    pub fn new(home: impl Into<String>, cwd: impl Into<String>) -> Self {
        Self {
            prefix: format!("sandbox-{}:", sandbox_core::random_hex(16)),
            key: "sandbox",
            own_streams: false,
            home: home.into(),
            cwd: cwd.into(),
        }
    }

    /// Returns the metadata of the request that runs the program.
    pub(crate) fn metadata(&self) -> Value {
        let mut sources: Map<String, Value> = PARTS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), part(name)?.into())))
            .collect();
        sources.extend(OWN_PARTS.map(|(name, source)| (name.to_owned(), source.into())));
        let settings = json!({
            "prefix": self.prefix,
            "key": self.key,
            "own_streams": self.own_streams,
            "home": self.home,
            "cwd": self.cwd,
        });
        let names = json!({"SETTINGS": settings, "SOURCES": sources, "__name__": "sandbox_kernel"});
        json!({"program": KERNEL, "names": names})
    }

    /// Returns the cell that runs the program: one statement that leaves no name behind.
    ///
    /// The cell does not contain the program, because kernels examine every character of a cell, in Python, before they
    /// run it.
    pub(crate) fn cell() -> String {
        format!(
            "(lambda told: exec(compile(told['program'], '<sandbox kernel>', 'exec'), told['names']))\
             (__import__('IPython').get_ipython().kernel.get_parent('shell')['metadata']['{PROGRAM_KEY}'])"
        )
    }
}

/// Returns true if the kernel is IPython, which can run the program.
pub fn is_ipython(info: &KernelInfoReply) -> bool {
    info.implementation == "ipython"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_there_and_the_cell_is_a_short_line() {
        assert!(PARTS.iter().all(|name| part(name).is_some()));
        let cell = Program::cell();
        assert!(cell.len() < 300 && !cell.contains('\n'), "{cell}");
    }

    #[test]
    fn every_program_has_its_own_prefix() {
        assert_ne!(Program::new("/", "/").prefix, Program::new("/", "/").prefix);
    }
}
