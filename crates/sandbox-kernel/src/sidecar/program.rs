//! The code that carries the bytes of an agent, in a kernel.

use sandbox_python::agent::{PROCESSES, arguments};
use serde_json::{Value, json};

const STDIN_PEER: &str = include_str!("../python/stdin_peer.py");

const TRANSPORT: &str = include_str!("../python/sidecar.py");

/// Returns one statement that leaves no name behind.
pub(super) fn source(prefix: &str, nonce: &str, folder: &str) -> String {
    let settings = json!({"prefix": prefix, "arguments": arguments(nonce, None), "folder": folder});
    let names = json!({"SETTINGS": settings, "__name__": "sandbox_sidecar"});
    format!(
        "exec(compile({}, '<sandbox sidecar>', 'exec'), __import__('json').loads({}))",
        Value::from([STDIN_PEER, PROCESSES, TRANSPORT].join("\n\n")),
        Value::from(names.to_string()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_line_of_ascii() {
        let source = source("prefix:", "nonce", "/tmp/x");
        assert!(source.is_ascii() && !source.contains('\n'));
    }
}
