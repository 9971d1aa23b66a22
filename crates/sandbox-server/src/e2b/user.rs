//! The user of a sandbox: names, paths and rights as clients know them.

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_core::Variant;

use super::error::{Code, ConnectError};

/// The user that code and commands run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    /// The name.
    pub(super) name: String,
    /// The home, where relative paths begin.
    pub(super) home: String,
    /// Whether commands may run as root.
    pub(super) root: Root,
}

/// Whether commands of a sandbox may run as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// They may.
    Served,
    /// They may not; the reason, and what has them.
    Refused(&'static str),
}

/// The home of root.
const ROOT_HOME: &str = "/root";

impl Root {
    /// Returns the answer for a sandbox of that variant, which has commands of root or has none.
    pub(super) fn new(variant: Variant, is_there: bool) -> Self {
        if is_there {
            return Self::Served;
        }
        Self::Refused(if variant == Variant::LOCAL_DOCKER {
            "nothing is served as root: containers of Docker have commands of root without `--mount` and without a `user` \
             that `sandboxes serve` was given"
        } else {
            "nothing is served as root: code in a sandbox of this server is an ordinary user; `sandboxes serve -p \
             local-docker` has commands of root"
        })
    }
}

/// Who a call is for.
enum Account {
    Own,
    Root,
}

impl User {
    /// Returns the working directory of a command, where `~` is the home of the user that it runs as.
    pub(super) fn directory(&self, path: &str, as_root: bool) -> String {
        match path.strip_prefix('~').filter(|_| as_root) {
            Some(rest) => self.absolute(&format!("{ROOT_HOME}{rest}")),
            None => self.absolute(path),
        }
    }

    /// Returns a path as an absolute one without `.` and `..`: `~` is the home, and relative paths begin there.
    pub(super) fn absolute(&self, path: &str) -> String {
        let joined = match path {
            "" | "~" => self.home.clone(),
            path if path.starts_with('/') => path.to_owned(),
            path => format!("{}/{}", self.home, path.strip_prefix("~/").unwrap_or(path)),
        };
        let mut parts: Vec<&str> = Vec::new();
        for part in joined.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        format!("/{}", parts.join("/"))
    }

    /// Checks the user that a call about files wants to be.
    ///
    /// # Errors
    /// `permission_denied` for root, `unauthenticated` for a user that does not exist.
    pub(super) fn check(&self, wanted: Option<&str>) -> Result<(), ConnectError> {
        match (self.account(wanted)?, self.root) {
            (Account::Own, _) => Ok(()),
            (Account::Root, Root::Served) => Err(refuse(format!(
                "files are read and written as {}; a command of root can use the others",
                self.name
            ))),
            (Account::Root, Root::Refused(why)) => Err(refuse(why.to_owned())),
        }
    }

    /// Checks the user that a command is to run as. Returns true for root.
    ///
    /// # Errors
    /// `permission_denied` for root where the sandbox has no commands of root, `unauthenticated` for a user that does not exist.
    pub(super) fn check_command(&self, headers: &HeaderMap) -> Result<bool, ConnectError> {
        match (self.account(name_in(headers)?.as_deref())?, self.root) {
            (Account::Own, _) => Ok(false),
            (Account::Root, Root::Served) => Ok(true),
            (Account::Root, Root::Refused(why)) => Err(refuse(why.to_owned())),
        }
    }

    /// Checks the user in the headers of a Connect call about files.
    ///
    /// # Errors
    /// As [`User::check`].
    pub(super) fn check_headers(&self, headers: &HeaderMap) -> Result<(), ConnectError> {
        self.check(name_in(headers)?.as_deref())
    }

    fn account(&self, wanted: Option<&str>) -> Result<Account, ConnectError> {
        match wanted {
            None => Ok(Account::Own),
            Some(name) if name.is_empty() || name == self.name => Ok(Account::Own),
            Some("root") => Ok(Account::Root),
            Some(other) => Err(ConnectError::new(
                Code::Unauthenticated,
                format!("invalid username: '{other}'"),
            )),
        }
    }
}

fn refuse(message: String) -> ConnectError {
    ConnectError::new(Code::PermissionDenied, message)
}

/// Returns the user that the headers name: basic authentication without a password.
fn name_in(headers: &HeaderMap) -> Result<Option<String>, ConnectError> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(encoded) = given.and_then(|given| given.strip_prefix("Basic ")) else {
        return Ok(None);
    };
    let decoded = STANDARD.decode(encoded.trim()).ok();
    let text = decoded
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| ConnectError::new(Code::Unauthenticated, "invalid basic authentication"))?;
    Ok(text.split(':').next().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(root: Root) -> User {
        User { name: "user".into(), home: "/home/user".into(), root }
    }

    fn as_user(name: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let value = format!("Basic {}", STANDARD.encode(format!("{name}:")));
        headers.insert("authorization", value.parse().unwrap());
        headers
    }

    #[test]
    fn paths_are_those_of_the_user() {
        let user = user(Root::Served);
        for (path, expected) in [
            ("", "/home/user"),
            ("~", "/home/user"),
            ("~/a", "/home/user/a"),
            ("a/b", "/home/user/a/b"),
            ("./a/../b", "/home/user/b"),
            ("/tmp//x/", "/tmp/x"),
            ("../../../..", "/"),
            ("/", "/"),
        ] {
            assert_eq!(user.absolute(path), expected, "{path}");
        }
        assert_eq!(user.directory("~/a", true), "/root/a");
        assert_eq!(user.directory("", true), "/home/user");
        assert_eq!(user.directory("~/a", false), "/home/user/a");
    }

    #[test]
    fn root_is_served_where_it_is_there() {
        let none = user(Root::new(Variant::LOCAL_EVAL, false));
        none.check(None).unwrap();
        none.check(Some("user")).unwrap();
        let root = none.check(Some("root")).unwrap_err();
        assert_eq!(root.code, Code::PermissionDenied);
        assert!(root.message.contains("-p local-docker"), "{}", root.message);
        assert_eq!(none.check(Some("ada")).unwrap_err().code, Code::Unauthenticated);
        let refused = none.check_command(&as_user("root")).unwrap_err();
        assert_eq!(refused.code, Code::PermissionDenied);
        assert_eq!(none.check_headers(&as_user("root")).unwrap_err().code, Code::PermissionDenied);
        let served = user(Root::new(Variant::LOCAL_DOCKER, true));
        assert!(served.check_command(&as_user("root")).unwrap());
        assert!(!served.check_command(&as_user("user")).unwrap());
        assert!(!served.check_command(&HeaderMap::new()).unwrap());
        assert_eq!(served.check_command(&as_user("ada")).unwrap_err().code, Code::Unauthenticated);
        let files = served.check(Some("root")).unwrap_err();
        assert!(files.message.contains("a command of root"), "{}", files.message);
        let mounted = user(Root::new(Variant::LOCAL_DOCKER, false)).check(Some("root"));
        assert!(mounted.unwrap_err().message.contains("--mount"));
    }
}
