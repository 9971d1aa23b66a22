//! The kernels that are installed on this machine, as `jupyter kernelspec list` finds them.
//!
//! A kernel is described by a directory with a file `kernel.json`. The order of such directories depends on environment
//! variables and on the active Python environment. [`Search`] implements the order, and [`KernelSpec`] the file. The
//! module `manager` starts and supervises a kernel; without it, a kernel is started like this:
//!
//! ```no_run
//! use jupyter_protocol::kernelspec::{Launch, Search};
//! use jupyter_protocol::ConnectionInfo;
//!
//! let search = Search::from_env();
//! let kernel = search.find("python3")?;
//! // A directory for this kernel only, which no other user can enter.
//! let folder = tempfile::tempdir()?;
//! let folder = folder.path();
//! let connection_file = folder.join(ConnectionInfo::new_file_name());
//! ConnectionInfo::ipc(folder.join("k")).write_new(&connection_file)?;
//! let process = kernel.command(&Launch::new(&connection_file))?.spawn()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod command;
mod environment;
mod native;
mod python;
mod search;
mod substitute;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

pub use command::{Launch, LaunchError};
pub use environment::Environment;
pub use python::PythonEnvironment;
pub use search::{FoundKernels, InvalidKernel, Search};

use crate::json::JsonMap;

/// Maximum size of a `kernel.json`, in bytes.
const MAX_FILE_SIZE: u64 = 1024 * 1024;

/// The way to interrupt a kernel.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum InterruptMode {
    /// The signal SIGINT to the kernel's process, sent by its parent.
    #[default]
    Signal,
    /// An [`InterruptRequest`](crate::content::InterruptRequest) on the control channel.
    Message,
}

impl<'de> Deserialize<'de> for InterruptMode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.to_lowercase().as_str() {
            "signal" => Ok(Self::Signal),
            "message" => Ok(Self::Message),
            other => Err(serde::de::Error::custom(format!("unknown interrupt_mode {other:?}"))),
        }
    }
}

/// The content of a `kernel.json`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct KernelSpec {
    /// The program and its arguments, with placeholders. See [`InstalledKernel::command`].
    pub argv: Vec<String>,
    /// Environment variables for the program, with placeholders.
    pub env: JsonMap,
    /// The name of the kernel in lists.
    pub display_name: String,
    /// The language of the kernel.
    pub language: String,
    /// The way to interrupt the kernel.
    pub interrupt_mode: InterruptMode,
    /// Other properties of the kernel.
    pub metadata: JsonMap,
    /// The protocol version that the kernel claims to speak. Often empty.
    pub kernel_protocol_version: String,
    /// Fields that are not in the specification, unchanged. Not part of lists.
    #[serde(flatten, skip_serializing)]
    pub extra: JsonMap,
}

/// The reason why a directory contains no kernel.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelSpecError {
    /// The file cannot be read.
    #[error("cannot read kernel.json: {0}")]
    Io(#[from] io::Error),
    /// The file is not a kernel specification.
    #[error("invalid kernel.json: {0}")]
    Invalid(String),
    /// The kernel is started by a provisioner that is not installed.
    #[error("kernel provisioner {0:?} is not available")]
    NoProvisioner(String),
    /// There is no kernel of this name.
    #[error("no kernel is named {name:?}; {}", list_available(.available, .searched))]
    NotFound {
        /// The name.
        name: String,
        /// The names that there are.
        available: Vec<String>,
        /// The directories that were searched.
        searched: Vec<PathBuf>,
    },
}

fn list_available(available: &[String], searched: &[PathBuf]) -> String {
    if !available.is_empty() {
        return format!("available: {}", available.join(", "));
    }
    if searched.is_empty() {
        return "no directories were searched".to_owned();
    }
    let searched: Vec<_> = searched.iter().map(|folder| folder.display().to_string()).collect();
    format!("there are no kernels in: {}", searched.join(", "))
}

impl KernelSpec {
    /// Parses the text of a `kernel.json`.
    ///
    /// # Errors
    /// [`KernelSpecError::Invalid`].
    pub fn from_json(text: &[u8]) -> Result<Self, KernelSpecError> {
        let invalid = |error: serde_json::Error| KernelSpecError::Invalid(error.to_string());
        // Through a map, because the last of duplicate keys wins.
        let map: JsonMap = serde_json::from_slice(text).map_err(invalid)?;
        serde_json::from_value(Value::Object(map)).map_err(invalid)
    }

    /// Reads the `kernel.json` of a directory.
    ///
    /// # Errors
    /// [`KernelSpecError::Io`] and [`KernelSpecError::Invalid`].
    pub fn read(folder: &Path) -> Result<Self, KernelSpecError> {
        let mut text = Vec::new();
        File::open(folder.join("kernel.json"))?.take(MAX_FILE_SIZE + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_FILE_SIZE {
            return Err(KernelSpecError::Invalid(format!("longer than {MAX_FILE_SIZE} bytes")));
        }
        Self::from_json(&text)
    }

    /// Returns the name of the provisioner that must start the kernel, if there is one.
    #[must_use]
    pub fn provisioner(&self) -> Option<&str> {
        self.metadata.get("kernel_provisioner")?.get("provisioner_name")?.as_str()
    }

    /// Returns true if the kernel claims to support CURVE encryption.
    #[must_use]
    pub fn supports_curve(&self) -> bool {
        let supported = self.metadata.get("supported_encryption").and_then(Value::as_array);
        supported.is_some_and(|names| names.iter().any(|name| name == "curve"))
    }
}

/// A kernel and its location.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct InstalledKernel {
    /// The name of the kernel, in lower case.
    #[serde(skip)]
    pub name: String,
    /// The directory of its `kernel.json` and its logos.
    pub resource_dir: PathBuf,
    /// The content of its `kernel.json`.
    pub spec: KernelSpec,
    /// The Python environment of the search. A Python kernel runs in its interpreter, unless [another
    /// one](Launch::with_python) is set.
    #[serde(skip)]
    pub python: Option<PythonEnvironment>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: &Value) -> Result<KernelSpec, KernelSpecError> {
        KernelSpec::from_json(value.to_string().as_bytes())
    }

    #[test]
    fn defaults_are_those_of_jupyter() {
        let spec = read(&json!({"argv": ["x"], "vendor": 1})).unwrap();
        let listed = json!({"argv": ["x"], "env": {}, "display_name": "", "language": "",
            "interrupt_mode": "signal", "metadata": {}, "kernel_protocol_version": ""});
        assert_eq!(serde_json::to_value(&spec).unwrap(), listed);
        assert_eq!(spec.extra["vendor"], 1);
    }

    #[test]
    fn invalid_specifications_are_refused() {
        for spec in [
            json!([]),
            json!({"argv": "x"}),
            json!({"interrupt_mode": "no"}),
            json!({"env": null}),
            json!({"display_name": 1}),
        ] {
            assert!(read(&spec).is_err(), "{spec}");
        }
        assert_eq!(
            read(&json!({"interrupt_mode": "Message"})).unwrap().interrupt_mode,
            InterruptMode::Message
        );
        assert_eq!(
            KernelSpec::from_json(br#"{"language":"a","language":"b"}"#).unwrap().language,
            "b"
        );
    }

    #[test]
    fn metadata_is_understood() {
        let spec = read(&json!({"metadata": {"supported_encryption": ["curve"],
            "kernel_provisioner": {"provisioner_name": "remote"}}}))
        .unwrap();
        assert!(spec.supports_curve());
        assert_eq!(spec.provisioner(), Some("remote"));
    }
}
