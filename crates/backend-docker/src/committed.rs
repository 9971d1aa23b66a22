//! Changes to the files of an image, kept by the engine as an image of their own.

use bollard::Docker;
use bollard::models::ContainerConfig;
use bollard::query_parameters::{CommitContainerOptionsBuilder, RemoveImageOptionsBuilder};
use sandbox_core::{Result, random_hex};
use tokio::runtime::Handle;

use crate::engine::refused;
use crate::owner::{ID_LABEL, OWNER_LABEL};

/// What images of snapshots are called; each has a tag of its own.
const NAME: &str = "code-sandboxes-snapshot";

/// The label with the name of the snapshot.
const LABEL: &str = "code-sandboxes.snapshot";

const OPERATION: &str = "create_snapshot";

/// An image that was made of a container. Removed when it is dropped, unless it is kept.
#[derive(Debug)]
pub(crate) struct Committed {
    docker: Docker,
    image: String,
    runtime: Handle,
    kept: bool,
}

impl Committed {
    /// Makes one of what is changed in a container. What is mounted, and so all that is in memory, is no part of it.
    pub(crate) async fn of(docker: Docker, container: String, snapshot: String) -> Result<Self> {
        let tag = random_hex(8);
        let image = format!("{NAME}:{tag}");
        let committed = Self { docker, image, runtime: Handle::current(), kept: false };
        let options = CommitContainerOptionsBuilder::default()
            .container(&container)
            .repo(NAME)
            .tag(&tag)
            .pause(true)
            .build();
        // What the container says of itself is not true of others that start from the image.
        let labels = [(LABEL, snapshot.as_str()), (ID_LABEL, ""), (OWNER_LABEL, "")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let config = ContainerConfig { labels: Some(labels), ..ContainerConfig::default() };
        let made = committed.docker.commit_container(options, config).await;
        made.map_err(|error| refused(OPERATION, error))?;
        Ok(committed)
    }

    pub(crate) fn image(&self) -> &str {
        &self.image
    }

    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Committed {
    fn drop(&mut self) {
        if !self.kept {
            let (docker, image) = (self.docker.clone(), self.image.clone());
            self.runtime.spawn(async move { remove(&docker, &image).await });
        }
    }
}

/// Removes the image of a snapshot. Containers of it keep what they need.
pub(crate) async fn remove(docker: &Docker, image: &str) {
    let options = RemoveImageOptionsBuilder::default().force(true).build();
    if let Err(error) = docker.remove_image(image, Some(options), None).await {
        tracing::debug!(image, %error, "the image of a snapshot could not be removed");
    }
}
