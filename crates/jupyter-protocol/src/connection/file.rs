//! Reads and writes connection files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use thiserror::Error;
use zeroize::Zeroizing;

use super::{ConnectionInfo, Endpoint};
use crate::channel::Channel;

/// Maximum size of a connection file, in bytes.
const MAX_FILE_SIZE: u64 = 1024 * 1024;

/// The reason why a connection file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The text is not a complete connection file.
    #[error("invalid connection file: {0}")]
    Invalid(String),
    /// A file could not be read or written.
    #[error("connection file: {0}")]
    Io(#[from] io::Error),
    /// The path of a Unix socket is longer than the system allows.
    #[error(
        "socket path of {length} bytes is over the limit of {}: {path}; use a shorter directory, or TCP with `ReservedPorts`",
        Endpoint::MAX_PATH
    )]
    PathTooLong {
        /// The path.
        path: String,
        /// Its length in bytes.
        length: usize,
    },
}

impl ConnectionError {
    /// Adds the name of the file.
    fn at(self, file: &Path) -> Self {
        let file = file.display();
        match self {
            Self::Invalid(why) => Self::Invalid(format!("{file}: {why}")),
            Self::Io(error) => Self::Io(io::Error::new(error.kind(), format!("{file}: {error}"))),
            // The message names the socket's path already.
            Self::PathTooLong { .. } => self,
        }
    }
}

impl ConnectionInfo {
    /// Parses the text of a connection file.
    ///
    /// # Errors
    /// [`ConnectionError::Invalid`] if the text is not a connection file, lacks a port of a message channel, or names
    /// an unknown signature scheme. [`ConnectionError::PathTooLong`] for Unix sockets that cannot exist.
    pub fn from_json(text: &[u8]) -> Result<Self, ConnectionError> {
        let info: Self = serde_json::from_slice(text)
            .map_err(|error| ConnectionError::Invalid(describe(&error)))?;
        info.check_ports()?;
        info.check_paths()?;
        Ok(info)
    }

    /// Returns the text of a connection file. It contains the key.
    ///
    /// # Errors
    /// [`ConnectionError::Invalid`] if a key is not UTF-8, [`ConnectionError::PathTooLong`].
    pub fn to_json(&self) -> Result<Zeroizing<Vec<u8>>, ConnectionError> {
        self.check_paths()?;
        let text = serde_json::to_vec_pretty(self);
        text.map(Zeroizing::new).map_err(|error| ConnectionError::Invalid(error.to_string()))
    }

    /// Reads a connection file.
    ///
    /// # Errors
    /// As [`ConnectionInfo::from_json`], and [`ConnectionError::Io`]. The message names the file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ConnectionError> {
        let path = path.as_ref();
        Self::read_from(path).map_err(|error| error.at(path))
    }

    fn read_from(path: &Path) -> Result<Self, ConnectionError> {
        let mut text = Zeroizing::new(Vec::new());
        // Opening a named pipe could block forever.
        if !fs::metadata(path)?.is_file() {
            return Err(ConnectionError::Invalid("it is not a regular file".to_owned()));
        }
        File::open(path)?.take(MAX_FILE_SIZE + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_FILE_SIZE {
            return Err(ConnectionError::Invalid(format!("longer than {MAX_FILE_SIZE} bytes")));
        }
        Self::from_json(&text)
    }

    /// Writes a new connection file that only its owner can read.
    ///
    /// # Errors
    /// As [`ConnectionInfo::to_json`], and [`ConnectionError::Io`], also if the file exists already. Nothing was
    /// written then.
    pub fn write_new(&self, path: impl AsRef<Path>) -> Result<(), ConnectionError> {
        let text = self.to_json()?;
        let path = path.as_ref();
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(|error| ConnectionError::Io(error).at(path))?;
        if let Err(error) = file.write_all(&text) {
            drop(file);
            // The caller needs the first error.
            let _ = fs::remove_file(path);
            return Err(ConnectionError::Io(error).at(path));
        }
        Ok(())
    }

    /// Checks that no port is missing. A missing port is 0.
    fn check_ports(&self) -> Result<(), ConnectionError> {
        let needed = [
            ("shell_port", self.shell_port),
            ("iopub_port", self.iopub_port),
            ("stdin_port", self.stdin_port),
            ("control_port", self.control_port),
        ];
        match needed.iter().find(|(_, port)| *port == 0) {
            Some((name, _)) => Err(ConnectionError::Invalid(format!("it has no `{name}`"))),
            None => Ok(()),
        }
    }

    fn check_paths(&self) -> Result<(), ConnectionError> {
        for channel in Channel::MESSAGES.into_iter().chain([Channel::Heartbeat]) {
            let Endpoint::Ipc { path } = self.endpoint(channel) else { continue };
            let length = path.as_os_str().len();
            if length > Endpoint::MAX_PATH {
                return Err(ConnectionError::PathTooLong {
                    path: path.display().to_string(),
                    length,
                });
            }
        }
        Ok(())
    }
}

/// Describes the error and its position without the invalid value, which may be a key.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!("at line {} column {}", error.line(), error.column());
    // The last match: the invalid value may contain such words too.
    match text.rsplit_once(", expected ") {
        _ if error.is_eof() => format!("it is cut off: its JSON does not end, {position}"),
        _ if error.is_syntax() => format!("it is not JSON, {position}"),
        Some((_, expected)) if expected.contains("struct ") => "it is not a JSON object".to_owned(),
        Some((_, expected)) if error.is_data() => format!("a value is not {expected}"),
        None if text.contains("enum Port") => {
            format!("a port is not a number up to 65535 {position}")
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Transport;
    use crate::signature::{Key, SignatureScheme};
    use serde_json::{Value, json};

    fn file() -> Value {
        json!({"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5,
            "ip": "127.0.0.1", "key": "secret", "transport": "tcp", "signature_scheme": "hmac-sha512",
            "kernel_name": "python3", "curve_publickey": "p", "curve_secretkey": "s", "vendor": [1]})
    }

    fn read(value: &Value) -> Result<ConnectionInfo, ConnectionError> {
        ConnectionInfo::from_json(value.to_string().as_bytes())
    }

    #[test]
    fn nothing_is_lost_and_no_secret_is_shown() {
        let info = read(&file()).unwrap();
        assert_eq!(info.signature_scheme, SignatureScheme::HmacSha512);
        assert_eq!(serde_json::from_slice::<Value>(&info.to_json().unwrap()).unwrap(), file());
        let shown = format!("{info:?}");
        assert!(!shown.contains("secret\"") && !shown.contains("\"s\""), "{shown}");
    }

    #[test]
    fn missing_fields_have_defaults() {
        let ports = json!({"shell_port": "7", "iopub_port": 8, "stdin_port": 9, "control_port": 10, "ip": ""});
        let info = read(&ports).unwrap();
        assert_eq!((info.shell_port, info.transport), (7, Transport::Tcp));
        assert!(info.key.is_empty());
        assert_eq!(info.endpoint(Channel::Shell).to_string(), "tcp://127.0.0.1:7");
    }

    #[test]
    fn errors_are_in_the_words_of_the_reader() {
        let whole = file().to_string();
        for (text, expected) in [
            ("[]", "it is not a JSON object"),
            ("[1, 2]", "it is not a JSON object"),
            ("7", "it is not a JSON object"),
            ("\"text\"", "it is not a JSON object"),
            ("null", "it is not a JSON object"),
            ("", "it is cut off"),
            (&whole[..60], "it is cut off"),
            ("shell_port=7", "it is not JSON"),
            ("{\"shell_port\": 7,}", "it is not JSON"),
        ] {
            let error = ConnectionInfo::from_json(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("struct") && !error.contains("ConnectionInfo"), "{error}");
        }
    }

    #[test]
    fn ports_are_required() {
        assert!(read(&json!({})).unwrap_err().to_string().contains("no `shell_port`"));
        for port in ["shell_port", "iopub_port", "stdin_port", "control_port"] {
            let mut file = file();
            file[port] = json!(0);
            assert!(read(&file).unwrap_err().to_string().contains(port));
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for (key, value) in [
            ("signature_scheme", json!("hmac-md5")),
            ("transport", json!("pgm")),
            ("shell_port", json!(70_000)),
            ("key", json!(7)),
        ] {
            let mut file = file();
            file[key] = value;
            assert!(matches!(read(&file), Err(ConnectionError::Invalid(_))), "{key}");
        }
        assert!(ConnectionInfo::from_json(b"[]").is_err());
    }

    #[test]
    fn long_socket_paths_are_refused() {
        let fits = ConnectionInfo::ipc("x".repeat(Endpoint::MAX_PATH - 2));
        assert_eq!(read(&serde_json::to_value(&fits).unwrap()).unwrap(), fits);
        let error = ConnectionInfo::ipc("x".repeat(Endpoint::MAX_PATH - 1)).to_json().unwrap_err();
        assert!(matches!(error, ConnectionError::PathTooLong { length: 108, .. }));
        assert!(error.to_string().ends_with("or TCP with `ReservedPorts`"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn files_are_private_and_never_overwritten() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ConnectionInfo::new_file_name());
        let info = ConnectionInfo::ipc(folder.path().join("k"));
        info.write_new(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(ConnectionInfo::read(&path).unwrap(), info);
        let other = ConnectionInfo { key: Key::new("x"), ..info.clone() };
        assert!(matches!(other.write_new(&path), Err(ConnectionError::Io(_))));
        assert_eq!(ConnectionInfo::read(&path).unwrap(), info);
        fs::write(&path, vec![b' '; 1024 * 1024 + 1]).unwrap();
        assert!(matches!(ConnectionInfo::read(&path), Err(ConnectionError::Invalid(_))));
    }

    #[test]
    fn errors_do_not_show_the_invalid_value() {
        for (field, value) in [("key", json!(12_345_678)), ("curve_secretkey", json!([12_345_678]))]
        {
            let mut invalid = file();
            invalid[field] = value;
            let text = read(&invalid).unwrap_err().to_string();
            assert!(!text.contains("12345678"), "{text}");
            assert!(text.contains("line 1"), "{text}");
        }
        let mut invalid = file();
        invalid["iopub_port"] = json!(", expected 12345678");
        assert!(!read(&invalid).unwrap_err().to_string().contains("12345678"));
        let mut invalid = file();
        invalid["kernel_name"] = json!({"a, expected 12345678": 1});
        let text = read(&invalid).map_err(|error| error.to_string());
        assert!(!text.err().unwrap_or_default().contains("12345678"));
        let mut invalid = file();
        invalid["iopub_port"] = json!(70_000);
        assert!(read(&invalid).unwrap_err().to_string().contains("a port is not a number up to"));
    }

    #[cfg(unix)]
    #[test]
    fn only_files_are_opened() {
        let error = ConnectionInfo::read("/dev/null").unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid connection file: /dev/null: it is not a regular file"
        );
    }

    #[test]
    fn errors_name_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernel-x.json");
        let prefix = format!("connection file: {}: ", path.display());
        let error = ConnectionInfo::read(&path).unwrap_err();
        assert!(error.to_string().starts_with(&prefix), "{error}");
        let ConnectionError::Io(io) = error else { panic!("{error}") };
        assert_eq!(io.kind(), io::ErrorKind::NotFound);
        fs::write(&path, "{").unwrap();
        let error = ConnectionInfo::read(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("invalid {prefix}it is cut off")), "{error}");
        let error = ConnectionInfo::ipc("k").write_new(&path).unwrap_err().to_string();
        assert!(error.starts_with(&prefix), "{error}");
    }
}
