//! The program of ours that a kernel of IPython runs first.

use jupyter_protocol::KernelInfoReply;
use sandbox_python::part;
use serde_json::{Map, Value, json};

/// Parts of the worker that the program uses too.
const PARTS: [&str; 12] = [
    "codec",
    "streams",
    "library",
    "directory",
    "scripts",
    "tools",
    "builtins_api",
    "variables",
    "errors",
    "hooks",
    "installed",
    "magics",
];

/// Parts of its own.
const OWN_PARTS: [(&str, &str); 4] = [
    ("ipython", include_str!("python/ipython.py")),
    ("stdin_channel", include_str!("python/stdin_channel.py")),
    ("stdin_peer", include_str!("python/stdin_peer.py")),
    ("system_exit", include_str!("python/system_exit.py")),
];

/// The key that has the program in the metadata of the request that runs it. Another one than that of runs: a kernel that
/// somebody else has prepared before must take it for a cell like any other.
pub(crate) const PROGRAM_KEY: &str = "sandbox_program";

const KERNEL: &str = include_str!("python/kernel.py");

/// What the program is told.
#[derive(Clone, Debug)]
pub struct Program {
    /// Begins every prompt that is ours. Nobody else knows it.
    pub(crate) prefix: String,
    /// The key that ours has in metadata and replies.
    pub(crate) key: &'static str,
    /// Whether the descriptors of the process lead to the host.
    pub own_streams: bool,
    /// The home directory, below which packages are installed.
    pub home: String,
    /// The working directory.
    pub cwd: String,
}

impl Program {
    /// The program of a kernel, with a prefix of its own.
    pub fn new(home: impl Into<String>, cwd: impl Into<String>) -> Self {
        Self {
            prefix: format!("sandbox-{}:", sandbox_core::random_hex(16)),
            key: "sandbox",
            own_streams: false,
            home: home.into(),
            cwd: cwd.into(),
        }
    }

    /// What is told to the cell that runs the program.
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

    /// The cell that runs the program: one statement that leaves no name behind.
    ///
    /// The program itself is not in it, because kernels look at every character of a cell, in Python, before they run it.
    pub(crate) fn cell() -> String {
        format!(
            "(lambda told: exec(compile(told['program'], '<sandbox kernel>', 'exec'), told['names']))\
             (__import__('IPython').get_ipython().kernel.get_parent('shell')['metadata']['{PROGRAM_KEY}'])"
        )
    }
}

/// Whether a kernel is IPython, and can run the program.
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
    fn every_program_has_a_word_of_its_own() {
        assert_ne!(Program::new("/", "/").prefix, Program::new("/", "/").prefix);
    }
}
