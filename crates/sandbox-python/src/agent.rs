//! The agent of a container as text or byte code, and the command line that reads it.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::str::FromStr;
use std::sync::OnceLock;

use bytes::Bytes;

use crate::{BYTECODE, PARTS, assemble};

/// The program in the command line.
const BOOTSTRAP: &str = include_str!("agent/bootstrap.py");

/// The program in the command line of a resident agent.
const RELAY: &str = include_str!("agent/relay.py");

/// The part that reads what the kernel says about processes, for another program that ends what it started.
pub const PROCESSES: &str = include_str!("agent/processes.py");

/// The source that the agent begins with.
pub const MAIN: &str = include_str!("agent/agent.py");

/// Sources that the agent compiles when it first needs them, by name.
pub const AGENT_PARTS: [(&str, &str); 18] = [
    ("pipes", include_str!("agent/pipes.py")),
    ("processes", PROCESSES),
    ("seccomp", include_str!("agent/seccomp.py")),
    ("children", include_str!("agent/children.py")),
    ("checkpoints", include_str!("agent/checkpoints.py")),
    ("pause", include_str!("agent/pause.py")),
    ("requests", include_str!("agent/requests.py")),
    ("dispatch", include_str!("agent/dispatch.py")),
    ("paths", include_str!("agent/paths.py")),
    ("memory_release", include_str!("agent/memory_release.py")),
    ("files", include_str!("agent/files.py")),
    ("fd_transfer", include_str!("agent/fd_transfer.py")),
    ("file_trees", include_str!("agent/file_trees.py")),
    ("glob", include_str!("agent/glob.py")),
    ("watch", include_str!("agent/watch.py")),
    ("tunnel", include_str!("agent/tunnel.py")),
    ("listeners", include_str!("agent/listeners.py")),
    ("resident", include_str!("agent/resident.py")),
];

/// The whole agent as one Python source.
#[must_use]
pub fn agent() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| assemble(PARTS.iter().chain(&AGENT_PARTS), MAIN))
}

/// The kind of byte code that an interpreter takes, as it says (`importlib.util.MAGIC_NUMBER`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PycMagic(u32);

impl fmt::Display for PycMagic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl FromStr for PycMagic {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.len() == 8 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = digits.then(|| u32::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or(())
    }
}

/// Returns the agent as byte code for interpreters of a kind, where there is some. A connection waits for the result, so
/// the function must not wait itself.
///
/// The contents of a sandbox decide which byte code it gets. They must never be the source of byte code: a sandbox would
/// get what another sandbox has made.
pub type ByteCode<'a> = &'a (dyn Fn(PycMagic) -> Option<Bytes> + Send + Sync);

/// Returns the arguments of an interpreter that writes the agent as byte code of a kind to its standard output. It reads
/// [`agent`] from its standard input. An interpreter of another kind ends with another exit status than 0.
#[must_use]
pub fn compiler(magic: PycMagic) -> Vec<String> {
    let magic = magic.to_string();
    ["-I", "-S", "-B", "-X", "utf8", "-c", BYTECODE, &magic].map(str::to_owned).to_vec()
}

/// Tells byte code of this agent from byte code of others, by kind of interpreter. For caches: it may differ between
/// builds.
#[must_use]
pub fn byte_code_id(magic: PycMagic) -> u64 {
    let mut hasher = DefaultHasher::new();
    (agent(), BYTECODE, magic).hash(&mut hasher);
    hasher.finish()
}

/// Limits of the open files of each process in a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// Limit that applies unless a process raises it.
    pub soft: u32,
    /// Highest limit that a process can set.
    pub hard: u32,
}

/// Returns the arguments of an interpreter that becomes the agent. The interpreter writes the nonce before it reads
/// anything.
///
/// `open_files` limits the processes in the sandbox, and not the agent, which opens some files for each process and so may
/// be allowed more. Without `open_files` the processes have the limit of the agent. No limit is above that of the agent:
/// see `AgentConnection::open_files` in the crate of its client.
#[must_use]
pub fn arguments(nonce: &str, open_files: Option<OpenFiles>) -> Vec<String> {
    let open_files = open_files.map_or_else(
        || "0:0".to_owned(),
        |open_files| format!("{}:{}", open_files.soft, open_files.hard),
    );
    ["-I", "-B", "-X", "utf8", "-c", BOOTSTRAP, nonce, &open_files].map(str::to_owned).to_vec()
}

/// Returns the arguments of an interpreter that connects its standard streams to the resident agent of its sandbox. Where
/// there is none, the interpreter takes one in as with [`arguments`], and starts it.
#[must_use]
pub fn relay_arguments(nonce: &str, open_files: Option<OpenFiles>) -> Vec<String> {
    let mut all = arguments(nonce, open_files);
    if let Some(program) = all.iter_mut().find(|argument| *argument == BOOTSTRAP) {
        RELAY.clone_into(program);
    }
    all.push(resident_version());
    all
}

/// Names the agent of this build: a resident agent takes clients of its own build alone.
#[must_use]
pub fn resident_version() -> String {
    let mut hasher = DefaultHasher::new();
    agent().hash(&mut hasher);
    format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_ascii_so_that_their_literals_are_python() {
        for (name, source) in
            AGENT_PARTS.iter().chain(&[("agent", MAIN), ("bootstrap", BOOTSTRAP), ("relay", RELAY)])
        {
            assert!(source.is_ascii(), "{name}");
            assert!(source.starts_with("\"\"\""), "{name} has no docstring");
        }
    }

    #[test]
    fn a_magic_number_is_what_interpreters_say() {
        let said = "a70d0d0a";
        assert_eq!(said.parse::<PycMagic>().map(|magic| magic.to_string()), Ok(said.to_owned()));
        for other in ["", "a70d0d", "a70d0d0a0", "+70d0d0a", "../../../"] {
            assert_eq!(other.parse::<PycMagic>(), Err(()), "{other}");
        }
    }

    /// Agents send these words to copies, and so does the host with cells.
    #[test]
    fn copies_and_agents_use_the_same_words() {
        let source = |name: &str| {
            let mut all = PARTS.iter().chain(&AGENT_PARTS);
            all.find(|(known, _)| *known == name).expect("a part").1
        };
        for words in
            [r#"ARRIVED = b"a""#, r#"EXPORT_VARIABLES, PREPARE, RESTORE = b"s", b"p", b"w""#]
        {
            for name in ["checkpoint", "checkpoints"] {
                assert!(source(name).lines().any(|line| line == words), "{words} in {name}");
            }
        }
    }

    #[test]
    fn no_part_hides_another() {
        for (name, _) in AGENT_PARTS {
            assert!(PARTS.iter().all(|(other, _)| *other != name), "{name}");
        }
    }
}
