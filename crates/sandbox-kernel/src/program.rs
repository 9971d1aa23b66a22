//! The program of ours that a kernel of IPython runs first.

use jupyter_protocol::KernelInfoReply;
use sandbox_agent::python::part;
use serde_json::{Map, Value, json};

/// Parts of the worker that the program uses too.
const PARTS: [&str; 9] =
    ["codec", "streams", "tools", "offers", "variables", "errors", "hooks", "installed", "magics"];

/// Parts of its own.
const OWN_PARTS: [(&str, &str); 4] = [
    ("addressed", include_str!("python/addressed.py")),
    ("exits", include_str!("python/exits.py")),
    ("ipython", include_str!("python/ipython.py")),
    ("link", include_str!("python/link.py")),
];

const KERNEL: &str = include_str!("python/kernel.py");

/// What the program is told.
#[derive(Clone, Debug)]
pub struct Program {
    /// Begins every prompt that is ours. Nobody else knows it.
    pub(crate) word: String,
    /// The key that ours has in metadata and replies.
    pub(crate) key: &'static str,
    /// Whether the descriptors of the process lead to the host.
    pub own_streams: bool,
    /// Whether the network is closed, which `%pip` has to say.
    pub isolated: bool,
    /// The home directory, below which packages are installed.
    pub home: String,
    /// The working directory.
    pub cwd: String,
}

impl Program {
    /// The program of a kernel, with a word of its own.
    pub fn new(home: impl Into<String>, cwd: impl Into<String>) -> Self {
        Self {
            word: format!("sandbox-{}:", sandbox_core::random_hex(16)),
            key: "sandbox",
            own_streams: false,
            isolated: false,
            home: home.into(),
            cwd: cwd.into(),
        }
    }

    /// One statement that leaves no name behind.
    pub(crate) fn source(&self) -> String {
        let mut sources: Map<String, Value> = PARTS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), part(name)?.into())))
            .collect();
        sources.extend(OWN_PARTS.map(|(name, source)| (name.to_owned(), source.into())));
        let settings = json!({
            "word": self.word,
            "key": self.key,
            "own_streams": self.own_streams,
            "isolated": self.isolated,
            "home": self.home,
            "cwd": self.cwd,
        });
        let names = json!({"SETTINGS": settings, "SOURCES": sources, "__name__": "sandbox_kernel"});
        format!(
            "exec(compile({}, '<sandbox kernel>', 'exec'), __import__('json').loads({}))",
            Value::from(KERNEL),
            Value::from(names.to_string()),
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
    fn the_parts_are_there_and_the_program_is_one_line_of_ascii() {
        assert!(PARTS.iter().all(|name| part(name).is_some()));
        let source = Program::new("/home/sandbox", "/home/sandbox").source();
        assert!(source.is_ascii() && !source.contains('\n'));
    }

    #[test]
    fn every_program_has_a_word_of_its_own() {
        assert_ne!(Program::new("/", "/").word, Program::new("/", "/").word);
    }
}
