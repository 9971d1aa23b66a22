//! `jupyter_client` in a separate process, as the reference.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::harness::python;

/// A process that answers requests. It ends when this is dropped.
pub(crate) struct Peer {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/peer.py");
        let mut command = Command::new(python().unwrap());
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let requests = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, requests, answers }
    }

    /// Sends a request. Panics if the peer fails, which writes the reason to standard error.
    pub(crate) fn ask(&mut self, what: &str, mut request: Value) -> Value {
        request["do"] = what.into();
        writeln!(self.requests, "{request}").unwrap();
        let mut answer = String::new();
        assert!(self.answers.read_line(&mut answer).unwrap() > 0, "no answer to {request}");
        serde_json::from_str(&answer).unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Encodes bytes for the peer.
pub(crate) fn hex<T: AsRef<[u8]>>(frames: &[T]) -> Value {
    let one = |frame: &T| frame.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    json!(frames.iter().map(one).collect::<Vec<String>>())
}

/// Decodes bytes of the peer.
pub(crate) fn unhex(frames: &Value) -> Vec<Bytes> {
    let one = |frame: &Value| {
        let digits = frame.as_str().unwrap().as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.map(byte).collect::<Vec<u8>>().into()
    };
    frames.as_array().unwrap().iter().map(one).collect()
}
