//! Paths of the supervisor of this user: its socket and its lock, in a directory that only this user can enter.

use std::env;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sandbox_core::{Error, ErrorKind, Result};

/// Environment variable that selects another directory for the socket of the supervisor. The directory is created when it
/// is missing.
pub const RUNTIME_DIRECTORY_VARIABLE: &str = "CODE_SANDBOXES_RUNTIME_DIR";

const NAME: &str = "code-sandboxes";
const SOCKET: &str = "supervisor.sock";

/// The directory of the supervisor of this user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupervisorPaths {
    directory: PathBuf,
}

impl SupervisorPaths {
    /// Finds the directory of the current user's supervisor, and creates it when it is missing.
    ///
    /// It is `code-sandboxes` in `XDG_RUNTIME_DIR` or in `/run/user/UID`, whichever exists first and belongs to this user, or
    /// else `code-sandboxes-UID` in the directory for temporary files.
    ///
    /// # Errors
    /// `InvalidArgument` when the variable has a relative path, or a path that is too long for a socket; `PermissionDenied`
    /// when the directory belongs to another user, or other users can enter it; `Unavailable` when it cannot be created.
    pub fn for_current_user() -> Result<Self> {
        let directory = choose_directory()?;
        let made = DirBuilder::new().mode(0o700).create(&directory);
        match made {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(unusable(ErrorKind::Unavailable, &directory, "cannot be created")
                    .with_source(error)
                    .with_hint(another_directory()));
            }
        }
        check_directory(&directory)?;
        Ok(Self { directory })
    }

    /// Returns the path of the socket that the supervisor listens on.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(SOCKET)
    }

    /// Returns the path of the file that a supervisor locks while it lives.
    pub fn lock(&self) -> PathBuf {
        self.directory.join("supervisor.lock")
    }
}

/// Maximum length of the path of a socket, in bytes, without the NUL at its end.
const MAX_SOCKET_PATH: usize = 107;

/// Checks the directory that the variable selects.
fn from_variable(value: PathBuf) -> Result<PathBuf> {
    let invalid = |problem: String| {
        let message = format!("{RUNTIME_DIRECTORY_VARIABLE} {problem}");
        Error::new(ErrorKind::InvalidArgument, "connect", message).with_hint(another_directory())
    };
    if !value.is_absolute() {
        return Err(invalid(format!("must be an absolute path, got {:?}", value.display())));
    }
    let length = value.join(SOCKET).as_os_str().len();
    if length > MAX_SOCKET_PATH {
        let max = MAX_SOCKET_PATH - SOCKET.len() - 1;
        let problem = format!("is too long for a socket: it may have {max} bytes");
        return Err(invalid(format!("{problem}, got {}", value.display())));
    }
    Ok(value)
}

fn choose_directory() -> Result<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(value) = variable(RUNTIME_DIRECTORY_VARIABLE) {
        return from_variable(value);
    }
    let uid = geteuid().as_raw();
    let of_session = PathBuf::from(format!("/run/user/{uid}"));
    // The XDG Base Directory Specification says to ignore relative paths.
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

/// Checks that only this user can enter the directory: a process that can enter it can run code as this user.
fn check_directory(directory: &Path) -> Result<()> {
    let metadata = fs::symlink_metadata(directory).map_err(|error| {
        unusable(ErrorKind::Unavailable, directory, "cannot be read").with_source(error)
    })?;
    let problem = if !metadata.is_dir() {
        "is not a directory"
    } else if metadata.uid() != geteuid().as_raw() {
        "belongs to another user"
    } else if metadata.mode() & 0o077 != 0 {
        "can be entered by other users"
    } else {
        return Ok(());
    };
    Err(unusable(ErrorKind::PermissionDenied, directory, problem).with_hint(another_directory()))
}

/// The hint of these errors. It does not suggest to delete the directory, which may be in use.
fn another_directory() -> String {
    format!(
        "choose another: set {RUNTIME_DIRECTORY_VARIABLE} to a directory of yours with mode 700"
    )
}

fn unusable(kind: ErrorKind, directory: &Path, problem: &str) -> Error {
    let message = format!("the directory of the supervisor, {}, {problem}", directory.display());
    Error::new(kind, "connect", message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_path_is_absolute_and_short_enough_for_a_socket() {
        let max = MAX_SOCKET_PATH - SOCKET.len() - 1;
        from_variable(format!("/{}", "x".repeat(max - 1)).into()).unwrap();
        for (path, part) in [
            ("relative".to_owned(), "an absolute path, got \"relative\""),
            (format!("/{}", "x".repeat(max)), "too long for a socket: it may have 91 bytes"),
        ] {
            let error = from_variable(path.into()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.hint().unwrap().starts_with("choose another"));
        }
    }

    #[test]
    fn only_a_private_directory_of_this_user_is_accepted() {
        let base =
            env::temp_dir().join(format!("supervisor-paths-{}", sandbox_core::random_hex(6)));
        DirBuilder::new().mode(0o700).create(&base).unwrap();
        check_directory(&base).unwrap();
        let refused = |path: &Path, part: &str| {
            let error = check_directory(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.hint().is_some());
        };
        let link = base.join("link");
        symlink(&base, &link).unwrap();
        refused(&link, "is not a directory");
        fs::set_permissions(&base, fs::Permissions::from_mode(0o710)).unwrap();
        refused(&base, "can be entered by other users");
        fs::set_permissions(&base, fs::Permissions::from_mode(0o700)).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(&base, Some(12345), None).unwrap();
            refused(&base, "belongs to another user");
        }
        fs::remove_dir_all(&base).unwrap();
    }
}
