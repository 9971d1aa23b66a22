//! Stands for TLS in a build without the feature `tls`: an engine that needs it is refused.

use std::path::Path;

use bollard::Docker;
use sandbox_core::{Effect, Error, ErrorKind, Result};

/// Refuses the connection, with the feature that it takes.
pub(crate) fn client(host: &str, _: &Path, _: u64) -> Result<Docker> {
    let message =
        format!("the engine at {host} is reached over TLS, which this build does not have");
    Err(Error::unsupported("create", message)
        .with_effect(Effect::NotSent)
        .with_context("variant", "local-docker")
        .with_hint(
            "build it with the cargo feature `docker-tls`, or with `full`, which has every feature",
        ))
}

/// Explains no error, because none comes from TLS.
pub(crate) fn refusal(
    _: &(dyn std::error::Error + 'static),
) -> Option<(ErrorKind, String, &'static str)> {
    None
}
