//! Paths in a box, and what its agent says is wrong with them, in words.

use rustix::io::Errno;
use sandbox_core::{Error, ErrorKind, Result};

use super::call::LOST;
use super::link::lost;
use super::message::Trouble;
use crate::files::failure::About;
use crate::files::names;

/// The longest path, and the longest part of it, in bytes.
const MOST_PATH: usize = 4096;
const MOST_NAME: usize = 255;

/// What a record is that cannot be understood. Agents do not say it.
const NONSENSE: i64 = 2;

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

/// An agent that does not keep to the vocabulary.
pub(crate) fn no_record() -> Trouble {
    Trouble { code: NONSENSE, detail: b"the answer has no meaning".to_vec() }
}

/// A path, checked and absolute.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) about: About,
    /// As it is shown.
    pub(crate) shown: String,
    pub(crate) bytes: Vec<u8>,
}

impl Target {
    /// Checks what can be checked in the text.
    pub(crate) fn new(base: &str, operation: &'static str, path: &str) -> Result<Self> {
        let about = About::new(operation, path);
        if path.is_empty() || path.contains('\0') {
            return Err(about.invalid("path", "a path must not be empty or contain NUL"));
        }
        let absolute = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("{}/{path}", base.trim_end_matches('/'))
        };
        let bytes = names::to_bytes(&absolute);
        if bytes.len() > MOST_PATH {
            return Err(about.invalid("name_too_long", "the path is longer than 4096 bytes"));
        }
        if bytes.split(|byte| *byte == b'/').any(|part| part.len() > MOST_NAME) {
            return Err(about.invalid("name_too_long", "a name in it is longer than 255 bytes"));
        }
        let parts = absolute.split('/').filter(|part| !matches!(*part, "" | "."));
        let shown = parts.fold(String::new(), |path, part| path + "/" + part);
        let shown = if shown.is_empty() { "/".to_owned() } else { shown };
        Ok(Self { about, shown, bytes })
    }

    /// Whether it ends in the name of something that can be made, removed or replaced.
    pub(crate) fn must_have_name(&self) -> Result<()> {
        let last = self.bytes.split(|byte| *byte == b'/').rfind(|part| !part.is_empty());
        if matches!(last, None | Some(b"." | b"..")) {
            return Err(self.about.invalid("path", "the path does not end in a name"));
        }
        Ok(())
    }

    /// The arguments of a request about it.
    pub(crate) fn arguments(&self, further: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut arguments = vec![self.bytes.clone()];
        arguments.extend_from_slice(further);
        arguments
    }

    /// What the agent says, in words.
    pub(crate) fn failed(&self, trouble: &Trouble) -> Error {
        use ErrorKind as Kind;
        let about = &self.about;
        let detail = String::from_utf8_lossy(&trouble.detail);
        match trouble.code {
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
                let message = "has files that are nearly all holes, and would be far larger packed";
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
                    "this host watches as many directories as it may",
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

/// Something about one entry of an archive.
pub(crate) fn in_archive(name: &str, problem: &str) -> Error {
    Error::invalid("archive", format!("has {name:?}, which {problem}"))
        .with_context("cause", "archive")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe::program::AGENT_PARTS;
    use crate::python::numbers;

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
