//! Parses the output and the errors of an image's tools about files.

use sandbox_core::{Error, ErrorKind, FileInfo, FileKind};
use std::collections::BTreeMap;

use super::ScriptOutput;
use sandbox_engine::files::{Target, names};

/// Bits of a mode with the kind of a file, and the kinds.
const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// Parses a listing: for each entry mode, size and time, the name, and the target of a link, each followed by NUL. Returns
/// `None` for malformed output.
pub(super) fn entries(parent: &str, output: &[u8]) -> Option<Vec<FileInfo>> {
    let Some(output) = output.strip_suffix(b"\0") else {
        return output.is_empty().then(Vec::new);
    };
    let fields: Vec<&[u8]> = output.split(|byte| *byte == 0).collect();
    let (records, rest) = fields.as_chunks::<3>();
    rest.is_empty().then_some(())?;
    records.iter().map(|[facts, name, target]| entry(parent, facts, name, target)).collect()
}

fn entry(parent: &str, facts: &[u8], name: &[u8], target: &[u8]) -> Option<FileInfo> {
    let facts = std::str::from_utf8(facts).ok()?;
    let mut facts = facts.split(' ');
    let mode = u32::from_str_radix(facts.next()?, 16).ok()?;
    let size = facts.next()?.parse().ok()?;
    let modified: f64 = facts.next()?.parse().ok()?;
    let kind = match mode & KIND {
        DIRECTORY => FileKind::Directory,
        REGULAR => FileKind::File,
        LINK => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let name = names::to_text(name);
    Some(FileInfo {
        path: format!("{}/{name}", parent.trim_end_matches('/')),
        name,
        kind,
        size,
        modified,
        permissions: format!("{:03o}", mode & 0o777),
        target: (kind == FileKind::Symlink).then(|| names::to_text(target)),
        uid: None,
        gid: None,
        attributes: BTreeMap::new(),
    })
}

/// Returns the error of a failed operation, by the status of the script or the message of the tool.
pub(super) fn failed(target: &Target, output: &ScriptOutput) -> Error {
    use rustix::io::Errno;
    let about = &target.about;
    let message = output.last_error();
    let errno = match output.status {
        101 => Errno::NOENT,
        102 => Errno::NOTDIR,
        103 => Errno::ISDIR,
        104 => Errno::EXIST,
        105 => {
            let message = "is a symbolic link, and changes are not made through links";
            return about.invalid("is_a_link", message);
        }
        106 => {
            let message = "is neither a regular file nor a directory";
            return about.invalid("not_a_regular_file", message);
        }
        107 => Errno::ACCESS,
        // 127 is the shell's own status of a missing program.
        108 | 127 => {
            let program = message.rsplit(' ').next().unwrap_or_default();
            let message = format!("the image has no `{program}`, which this needs: {message}");
            return Error::unsupported(about.operation, message)
                .with_context("missing", program.to_owned())
                .with_hint("put it into the image, or Python 3.9 or later");
        }
        109 => return about.invalid("inside_itself", "is inside the moved or copied directory"),
        110 => Errno::NOTEMPTY,
        112 => {
            return about
                .error(ErrorKind::ResourceExhausted, "too_many", "has more than 100000 entries")
                .with_hint("find some of them by name");
        }
        _ => match output.error_lines().iter().rev().find_map(|line| parse_errno(line)) {
            Some(errno) => errno,
            None => {
                let message = if message.is_empty() {
                    format!("a tool of the image failed with status {}", output.status)
                } else {
                    message
                };
                return about.error(ErrorKind::Unavailable, "tool", &message);
            }
        },
    };
    about.failed(errno)
}

/// Finds the kernel's error in the message of any tool.
fn parse_errno(message: &str) -> Option<rustix::io::Errno> {
    use rustix::io::Errno;
    let message = message.to_ascii_lowercase();
    let known = [
        ("no space left", Errno::NOSPC),
        // The message of GNU tar about a full disk.
        ("wrote only", Errno::NOSPC),
        ("quota exceeded", Errno::DQUOT),
        ("read-only file system", Errno::ROFS),
        ("permission denied", Errno::ACCESS),
        ("not permitted", Errno::PERM),
        ("not a directory", Errno::NOTDIR),
        ("is a directory", Errno::ISDIR),
        ("not empty", Errno::NOTEMPTY),
        ("file exists", Errno::EXIST),
        ("name too long", Errno::NAMETOOLONG),
        ("too many levels", Errno::LOOP),
        ("text file busy", Errno::TXTBSY),
        ("resource busy", Errno::BUSY),
        ("no such file", Errno::NOENT),
        ("nonexistent", Errno::NOENT),
        ("argument list too long", Errno::NOMEM),
    ];
    known.into_iter().find(|(part, _)| message.contains(part)).map(|(_, errno)| errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(status: i64, message: &str) -> ScriptOutput {
        ScriptOutput { status, stdout: Vec::new(), stderr: message.as_bytes().to_vec() }
    }

    #[test]
    fn entries_of_any_name_are_parsed() {
        let listing = b"81a4 5 1000.25\0a b\nc\0\0a1ff 4 -1\0l\0/x\n\x0001ed 0 7\0\xff\0\0";
        let found = entries("/d/", listing).unwrap();
        let kinds: Vec<_> = found.iter().map(|info| info.kind).collect();
        assert_eq!(kinds, [FileKind::File, FileKind::Symlink, FileKind::Other]);
        assert_eq!((found[0].path.as_str(), found[0].permissions.as_str()), ("/d/a b\nc", "644"));
        assert_eq!((found[0].modified, found[1].modified), (1000.25, -1.0));
        assert_eq!(found[1].target.as_deref(), Some("/x\n"));
        assert_eq!(names::to_bytes(&found[2].name), b"\xff");
        assert_eq!(entries("/", b""), Some(Vec::new()));
        for bad in [&b"81a4 5 1000\0a"[..], b"81a4 5\0a\0\0", b"x\0"] {
            assert_eq!(entries("/", bad), None);
        }
    }

    #[test]
    fn the_messages_of_tools_are_parsed() {
        let target = Target::new("/w", "write_file", "x").unwrap();
        for (status, message, kind) in [
            (101, "", ErrorKind::NotFound),
            (102, "", ErrorKind::InvalidArgument),
            (107, "", ErrorKind::PermissionDenied),
            (1, "cat: write error: No space left on device", ErrorKind::ResourceExhausted),
            (1, "sh: 1: cannot create /x/y: Directory nonexistent", ErrorKind::NotFound),
            (2, "sh: can't create /etc/x: Read-only file system", ErrorKind::PermissionDenied),
            (1, "mkdir: can't create directory 'x': File exists", ErrorKind::AlreadyExists),
            (2, "tar: x: No space left on device\ntar: Exiting", ErrorKind::ResourceExhausted),
            (1, "an unknown message", ErrorKind::Unavailable),
            (1, "", ErrorKind::Unavailable),
        ] {
            let error = failed(&target, &output(status, message));
            assert_eq!(error.kind(), kind, "{status} {message}: {error:?}");
        }
        let error = failed(&target, &output(108, "tar\n"));
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("`tar`") && error.hint().is_some(), "{error:?}");
    }
}
