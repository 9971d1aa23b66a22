//! What sandboxes in containers do in their own way.

use sandbox_local::{LocalInstance, LocalKind};

/// One sandbox.
pub(crate) type DockerInstance = LocalInstance<Container>;

/// A sandbox in a container.
#[derive(Debug)]
pub(crate) struct Container;

impl LocalKind for Container {
    const SYSTEM_PACKAGES: &'static str =
        "put them into an image of your own, and name it with `--image` or .image(..)";
}
