//! The user of a sandbox: names, paths and rights as clients know them.

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::error::{Code, ConnectError};

/// The user that code and commands run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    /// The name.
    pub(super) name: String,
    /// The home, where relative paths begin.
    pub(super) home: String,
}

impl User {
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

    /// Checks the user that a call wants to be.
    ///
    /// # Errors
    /// `permission_denied` for root, `unauthenticated` for a user that does not exist.
    pub(super) fn check(&self, wanted: Option<&str>) -> Result<(), ConnectError> {
        match wanted {
            None => Ok(()),
            Some(name) if name.is_empty() || name == self.name => Ok(()),
            Some("root") => {
                let message = "nothing is served as root: code in a sandbox of this server is an ordinary user; what needs \
                               root goes into an image, for `sandboxes serve -p local-docker --image IMAGE`";
                Err(ConnectError::new(Code::PermissionDenied, message))
            }
            Some(other) => Err(ConnectError::new(
                Code::Unauthenticated,
                format!("invalid username: '{other}'"),
            )),
        }
    }

    /// Checks the user in the headers of a Connect call: basic authentication without a password.
    ///
    /// # Errors
    /// As [`User::check`].
    pub(super) fn check_headers(&self, headers: &HeaderMap) -> Result<(), ConnectError> {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(encoded) = given.and_then(|given| given.strip_prefix("Basic ")) else {
            return Ok(());
        };
        let decoded = STANDARD.decode(encoded.trim()).ok();
        let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| {
            ConnectError::new(Code::Unauthenticated, "invalid basic authentication")
        })?;
        self.check(text.split(':').next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User { name: "user".into(), home: "/home/user".into() }
    }

    #[test]
    fn paths_are_those_of_the_user() {
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
            assert_eq!(user().absolute(path), expected, "{path}");
        }
    }

    #[test]
    fn only_its_own_user_is_served() {
        user().check(None).unwrap();
        user().check(Some("user")).unwrap();
        let root = user().check(Some("root")).unwrap_err();
        assert_eq!(root.code, Code::PermissionDenied);
        assert!(root.message.contains("-p local-docker"), "{}", root.message);
        assert_eq!(user().check(Some("ada")).unwrap_err().code, Code::Unauthenticated);
        let mut headers = HeaderMap::new();
        headers.insert(
            "authorization",
            format!("Basic {}", STANDARD.encode("root:")).parse().unwrap(),
        );
        assert_eq!(user().check_headers(&headers).unwrap_err().code, Code::PermissionDenied);
    }
}
