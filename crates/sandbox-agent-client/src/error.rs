//! Paths in a sandbox, and the errors of the agent about them.

use rustix::io::Errno;
use sandbox_core::{Error, ErrorKind};

use crate::call::LOST;
use crate::connection::lost;
use crate::message::AgentError;
use sandbox_engine::files::Target;

/// The code of a malformed record. Agents do not send it.
const MALFORMED: i64 = 2;

const IS_A_LINK: i64 = 100;
const NOT_REGULAR: i64 = 101;
const NOT_A_FILE: i64 = 102;
const TOO_DEEP: i64 = 103;
const TOO_MANY: i64 = 104;
pub(crate) const INSIDE_ITSELF: i64 = 105;
const UNREADABLE: i64 = 106;
const TOO_LARGE: i64 = 107;
const SHORTER: i64 = 108;
const IN_ARCHIVE: i64 = 109;
const OTHER_KIND: i64 = 110;
const LEADS_OUT: i64 = 111;
const WATCHES: i64 = 112;

/// Makes the error of a malformed answer.
pub(crate) fn no_record() -> AgentError {
    AgentError { code: MALFORMED, detail: b"the answer has no meaning".to_vec() }
}

/// Requests about a path, and their failures.
pub(crate) trait TargetExt {
    /// Returns the arguments of a request about the path.
    fn arguments(&self, further: &[Vec<u8>]) -> Vec<Vec<u8>>;

    /// Makes the error of what the agent reports.
    fn failed(&self, error: &AgentError) -> Error;
}

impl TargetExt for Target {
    fn arguments(&self, further: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut arguments = vec![self.bytes.clone()];
        arguments.extend_from_slice(further);
        arguments
    }

    fn failed(&self, error: &AgentError) -> Error {
        use ErrorKind as Kind;
        let about = &self.about;
        let detail = String::from_utf8_lossy(&error.detail);
        match error.code {
            LOST => lost(about.operation, Some(&*detail).filter(|why| !why.is_empty())),
            IS_A_LINK => about
                .invalid("is_a_link", "is a symbolic link, and changes are not made through links"),
            NOT_REGULAR if detail == "copy" => about.invalid(
                "not_a_regular_file",
                "has a FIFO, a socket or a device, which cannot be copied",
            ),
            NOT_REGULAR => {
                about.invalid("not_a_regular_file", "is neither a regular file nor a directory")
            }
            NOT_A_FILE => about
                .error(
                    Kind::PermissionDenied,
                    "not_a_file",
                    "shows the kernel or a process, and is no file of the sandbox",
                )
                .with_hint("read it from inside, with code or a command"),
            TOO_DEEP => {
                let message = "has directories more than 64 levels deep";
                about.error(Kind::ResourceExhausted, "too_deep", message)
            }
            TOO_MANY if detail == "directories" => {
                let message = "has more than 8192 directories to watch";
                about.error(Kind::ResourceExhausted, "too_many", message)
            }
            TOO_MANY => about
                .error(Kind::ResourceExhausted, "too_many", "has more than 100000 entries")
                .with_hint("find some of them by name"),
            INSIDE_ITSELF if detail == "rename" => {
                about.invalid("inside_itself", "is inside of what is renamed")
            }
            INSIDE_ITSELF => about.invalid("inside_itself", "is inside of what is copied"),
            UNREADABLE => {
                let message = format!("{detail:?} in it cannot be read");
                about.error(Kind::PermissionDenied, "permission", &message)
            }
            TOO_LARGE => {
                let message = "has files that are nearly all holes, or the same one many times, and would be far larger packed";
                about.error(Kind::ResourceExhausted, "too_large", message)
            }
            SHORTER => {
                let message = "a file in it got shorter while it was read";
                about.error(Kind::Unavailable, "changing", message)
            }
            IN_ARCHIVE => in_archive(&detail, "comes twice, or goes through what is no directory"),
            LEADS_OUT => in_archive(&detail, "is a link that leads out of it"),
            OTHER_KIND => {
                let message = format!("{detail:?} is there already, and is of another kind");
                about.error(Kind::AlreadyExists, "exists", &message)
            }
            WATCHES => about
                .error(
                    Kind::ResourceExhausted,
                    "watches",
                    "this host watches as many directories as its limit allows",
                )
                .with_hint("raise fs.inotify.max_user_watches and max_user_instances"),
            code if code < 0 => match i32::try_from(-code) {
                Ok(errno) => about.failed(Errno::from_raw_os_error(errno)),
                Err(_) => about.unexpected(std::io::Error::other("an unknown problem")),
            },
            _ => about.unexpected(std::io::Error::other(detail.into_owned())),
        }
    }
}

/// Makes the error about one entry of an archive.
pub(crate) fn in_archive(name: &str, problem: &str) -> Error {
    Error::invalid("archive", format!("has {name:?}, which {problem}"))
        .with_context("cause", "archive")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_python::agent::AGENT_PARTS;
    use sandbox_python::numbers;

    #[test]
    fn agents_have_the_same_codes() {
        let paths = AGENT_PARTS.iter().filter(|(name, _)| *name == "paths");
        numbers::agree(
            paths,
            &numbers::named!(
                IS_A_LINK NOT_REGULAR NOT_A_FILE TOO_DEEP TOO_MANY INSIDE_ITSELF UNREADABLE TOO_LARGE SHORTER
                IN_ARCHIVE OTHER_KIND LEADS_OUT WATCHES
            ),
        );
    }
}
