//! Where the supervisor of this user is: a socket in a directory that nobody else can enter.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sandbox_core::{Error, ErrorKind, Result};

/// Names another directory for the socket of the supervisor. It is made when it is missing.
pub const RUNTIME_DIRECTORY_VARIABLE: &str = "CODE_SANDBOXES_RUNTIME_DIR";

const NAME: &str = "code-sandboxes";
const SOCKET: &str = "supervisor.sock";

/// The directory of the supervisor of this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    directory: PathBuf,
}

impl Address {
    /// The address for this user; the directory is made when it is missing.
    ///
    /// It is `code-sandboxes` in `XDG_RUNTIME_DIR`, or in `/run/user/UID`, or `code-sandboxes-UID` in the directory for
    /// temporary files. The first that is there and belongs to this user.
    ///
    /// # Errors
    /// `InvalidArgument` when the variable has no absolute path, or one that is too long for a socket; `PermissionDenied`
    /// when the directory belongs to somebody else, or others can enter it; `Unavailable` when it cannot be made.
    pub fn of_this_user() -> Result<Self> {
        let directory = choose()?;
        let made = DirBuilder::new().mode(0o700).create(&directory);
        match made {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(unusable(&directory, "cannot be made")
                    .with_source(error)
                    .with_hint(another_directory()));
            }
        }
        check(&directory)?;
        Ok(Self { directory })
    }

    /// The socket that the supervisor listens on.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// The file that a supervisor locks for as long as it lives.
    pub fn lock(&self) -> PathBuf {
        self.directory.join("supervisor.lock")
    }
}

/// Bytes of the path of a socket, without the NUL at its end.
const LONGEST_PATH: usize = 107;

/// The directory that the variable names.
fn named(value: PathBuf) -> Result<PathBuf> {
    let wrong = |problem: String| {
        let message = format!("{RUNTIME_DIRECTORY_VARIABLE} {problem}");
        Error::new(ErrorKind::InvalidArgument, "connect", message).with_hint(another_directory())
    };
    if !value.is_absolute() {
        return Err(wrong(format!("must be an absolute path, got {:?}", value.display())));
    }
    let length = value.join(SOCKET).as_os_str().len();
    if length > LONGEST_PATH {
        let most = LONGEST_PATH - SOCKET.len() - 1;
        let problem = format!("is too long for a socket: it may have {most} bytes");
        return Err(wrong(format!("{problem}, got {}", value.display())));
    }
    Ok(value)
}

fn choose() -> Result<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(value) = variable(RUNTIME_DIRECTORY_VARIABLE) {
        return named(value);
    }
    let uid = geteuid().as_raw();
    let of_session = PathBuf::from(format!("/run/user/{uid}"));
    // The rules of that directory: what is no absolute path is ignored.
    let of_desktop = variable("XDG_RUNTIME_DIR").filter(|path| path.is_absolute());
    let mut bases = of_desktop.into_iter().chain([of_session]);
    Ok(match bases.find(|base| is_own_directory(base)) {
        Some(base) => base.join(NAME),
        None => env::temp_dir().join(format!("{NAME}-{uid}")),
    })
}

fn is_own_directory(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_dir() && meta.uid() == geteuid().as_raw())
}

/// Whoever can enter the directory can run code with the rights of its owner.
fn check(directory: &Path) -> Result<()> {
    let metadata = fs::symlink_metadata(directory)
        .map_err(|error| unusable(directory, "cannot be looked at").with_source(error))?;
    let problem = if !metadata.is_dir() {
        "is not a directory"
    } else if metadata.uid() != geteuid().as_raw() {
        "belongs to somebody else"
    } else if metadata.mode() & 0o077 != 0 {
        "can be entered by others"
    } else {
        return Ok(());
    };
    Err(unusable(directory, problem).with_hint(another_directory()))
}

/// Nothing about removing: what is there may be somebody's.
fn another_directory() -> String {
    format!(
        "choose another: set {RUNTIME_DIRECTORY_VARIABLE} to a directory of yours with mode 700"
    )
}

fn unusable(directory: &Path, problem: &str) -> Error {
    let kind = match problem {
        "cannot be made" | "cannot be looked at" => ErrorKind::Unavailable,
        _ => ErrorKind::PermissionDenied,
    };
    let message = format!("the directory of the supervisor, {}, {problem}", directory.display());
    Error::new(kind, "connect", message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_path_is_absolute_and_short_enough_for_a_socket() {
        let most = LONGEST_PATH - SOCKET.len() - 1;
        named(format!("/{}", "x".repeat(most - 1)).into()).unwrap();
        for (path, part) in [
            ("relative".to_owned(), "an absolute path, got \"relative\""),
            (format!("/{}", "x".repeat(most)), "too long for a socket: it may have 91 bytes"),
        ] {
            let error = named(path.into()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.hint().unwrap().starts_with("choose another"));
        }
    }

    #[test]
    fn only_a_private_directory_of_ours_will_do() {
        let base = env::temp_dir().join(format!("address-{}", sandbox_core::random_hex(6)));
        DirBuilder::new().mode(0o700).create(&base).unwrap();
        check(&base).unwrap();
        let refused = |path: &Path, part: &str| {
            let error = check(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.hint().is_some());
        };
        let link = base.join("link");
        symlink(&base, &link).unwrap();
        refused(&link, "is not a directory");
        fs::set_permissions(&base, fs::Permissions::from_mode(0o710)).unwrap();
        refused(&base, "can be entered by others");
        fs::set_permissions(&base, fs::Permissions::from_mode(0o700)).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(&base, Some(12345), None).unwrap();
            refused(&base, "belongs to somebody else");
        }
        fs::remove_dir_all(&base).unwrap();
    }
}
