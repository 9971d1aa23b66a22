//! The agent of a container as text, and the command line that takes it in.

use std::sync::OnceLock;

use crate::python::{PARTS, assemble};

/// What the command line holds.
const BOOTSTRAP: &str = include_str!("../python/bootstrap.py");

/// What the kernel says of processes, for another program that ends what it started.
pub const PROCESSES: &str = include_str!("../python/processes.py");

pub(super) const MUX: &str = include_str!("../python/mux.py");

pub(super) const AGENT_PARTS: [(&str, &str); 13] = [
    ("pipes", include_str!("../python/pipes.py")),
    ("processes", PROCESSES),
    ("calls", include_str!("../python/calls.py")),
    ("children", include_str!("../python/children.py")),
    ("jobs", include_str!("../python/jobs.py")),
    ("verbs", include_str!("../python/verbs.py")),
    ("paths", include_str!("../python/paths.py")),
    ("files", include_str!("../python/files.py")),
    ("trees", include_str!("../python/trees.py")),
    ("glob", include_str!("../python/glob.py")),
    ("watch", include_str!("../python/watch.py")),
    ("tunnel", include_str!("../python/tunnel.py")),
    ("listeners", include_str!("../python/listeners.py")),
];

/// The whole agent as one Python source.
pub(crate) fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| assemble(PARTS.iter().chain(&AGENT_PARTS), MUX))
}

/// How many files each process in a box may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// Unless it allows itself more.
    pub usual: u32,
    /// At most.
    pub most: u32,
}

/// The arguments of an interpreter that becomes the agent. It says the nonce before it takes anything in.
///
/// `open_files` is about what runs there, and not about the agent, which has some for each process and so can be allowed
/// more. Without it they have as many as the agent. What it has itself is the most in any case: see
/// [`PipeBox::open_files`](super::PipeBox::open_files).
#[must_use]
pub fn arguments(nonce: &str, open_files: Option<OpenFiles>) -> Vec<String> {
    let open_files = open_files.map_or_else(
        || "0:0".to_owned(),
        |open_files| format!("{}:{}", open_files.usual, open_files.most),
    );
    ["-I", "-B", "-X", "utf8", "-c", BOOTSTRAP, nonce, &open_files].map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_ascii_so_that_their_literals_are_python() {
        for (name, source) in AGENT_PARTS.iter().chain(&[("mux", MUX), ("bootstrap", BOOTSTRAP)]) {
            assert!(source.is_ascii(), "{name}");
            assert!(source.starts_with("\"\"\""), "{name} has no docstring");
        }
    }

    #[test]
    fn no_part_hides_another() {
        for (name, _) in AGENT_PARTS {
            assert!(PARTS.iter().all(|(other, _)| *other != name), "{name}");
        }
    }
}
