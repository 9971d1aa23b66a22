//! Images of snapshots: the changed files of a container, committed by its engine.

use bollard::Docker;
use bollard::errors::Error as Cause;
use bollard::models::ContainerConfig;
use bollard::query_parameters::{CommitContainerOptionsBuilder, RemoveImageOptions};
use sandbox_core::{Error, ErrorKind, Result, random_hex};
use sandbox_engine::{SnapshotStore, StoredSnapshot};
use tokio::runtime::Handle;

use crate::engine::Engine;
use crate::error::parse_error;
use crate::owner::{ID_LABEL, OWNER_LABEL, Owner};

/// Repository of the images of snapshots; each image has its own tag.
pub(crate) const REPOSITORY: &str = "code-sandboxes-snapshot";

/// Label with the name of the snapshot.
const LABEL: &str = "code-sandboxes.snapshot";

/// Labels with the process that committed the image, and with the store of its snapshot. Containers of the image inherit
/// them, so they differ from the labels of containers.
pub(crate) const MAKER_LABEL: &str = "code-sandboxes.snapshot-maker";
pub(crate) const STORE_LABEL: &str = "code-sandboxes.snapshot-store";

const OPERATION: &str = "create_snapshot";

/// An image that was committed from a container. Dropping it removes the image, unless it is kept.
#[derive(Debug)]
pub(crate) struct CommittedImage {
    docker: Docker,
    image: String,
    runtime: Handle,
    kept: bool,
}

impl CommittedImage {
    /// Commits the changed files of a container, for a snapshot of the store with that number. Mounted directories, and so
    /// everything in memory, are no part of the image.
    pub(crate) async fn create(
        docker: Docker,
        container: String,
        snapshot: String,
        store: String,
    ) -> Result<Self> {
        let tag = random_hex(8);
        let image = format!("{REPOSITORY}:{tag}");
        let committed = Self { docker, image, runtime: Handle::current(), kept: false };
        let options = CommitContainerOptionsBuilder::default()
            .container(&container)
            .repo(REPOSITORY)
            .tag(&tag)
            .pause(true)
            .build();
        // The container's own labels are wrong for containers that start from the image.
        let maker = Owner::this_process().map(|owner| owner.to_string()).unwrap_or_default();
        let labels = [
            (LABEL, snapshot.as_str()),
            (MAKER_LABEL, &maker),
            (STORE_LABEL, &store),
            (ID_LABEL, ""),
            (OWNER_LABEL, ""),
        ];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let config = ContainerConfig { labels: Some(labels), ..ContainerConfig::default() };
        let answer = committed.docker.commit_container(options, config).await;
        answer.map_err(|error| parse_error(OPERATION, error))?;
        Ok(committed)
    }

    pub(crate) fn image(&self) -> &str {
        &self.image
    }

    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for CommittedImage {
    fn drop(&mut self) {
        if !self.kept {
            let (docker, image) = (self.docker.clone(), self.image.clone());
            self.runtime.spawn(async move {
                if let Err(error) = remove(&docker, &image).await {
                    tracing::debug!(image, %error, "the image of a snapshot could not be removed");
                }
            });
        }
    }
}

/// Refuses another engine than the one with the image of a snapshot.
///
/// # Errors
/// `Unavailable`, with the address of that engine.
pub(crate) async fn check_engine(
    engine: &Engine,
    stored: &StoredSnapshot,
    operation: &'static str,
) -> Result<()> {
    let image = stored.image().unwrap_or_default();
    match engine.docker.inspect_image(image).await {
        Ok(_) => return Ok(()),
        Err(Cause::DockerResponseServerError { status_code: 404, .. }) => {}
        Err(error) => return Err(parse_error(operation, error)),
    }
    let here = &engine.host;
    // This engine had the image, which was removed without this program.
    if stored.engine() == Some(here) {
        return Ok(());
    }
    let (name, directory) = (&stored.info.name, stored.directory().display());
    let there = stored.engine().unwrap_or("an address that was not recorded");
    let message = format!(
        "part of {name:?} is the image {image} of the engine at {there}, and the engine at {here} has no such image"
    );
    Err(Error::new(ErrorKind::Unavailable, operation, message)
        .with_context("engine", there.to_owned())
        .with_hint(format!(
            "set DOCKER_HOST to the address of that engine; if it does not exist any more, remove {directory}"
        )))
}

/// Outcome of the removal of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    /// The image does not exist any more.
    Gone,
    /// A container uses the image. A forced removal would only remove its name, or that container with it.
    InUse,
}

/// Removes the image of a snapshot, unless a container uses it.
pub(crate) async fn remove(docker: &Docker, image: &str) -> std::result::Result<Removed, Cause> {
    match docker.remove_image(image, None::<RemoveImageOptions>, None).await {
        Ok(_) | Err(Cause::DockerResponseServerError { status_code: 404, .. }) => Ok(Removed::Gone),
        Err(Cause::DockerResponseServerError { status_code: 409, .. }) => Ok(Removed::InUse),
        Err(error) => Err(error),
    }
}

/// The image of a snapshot from which a container starts. It is removed with its snapshot, or later with its last container.
#[derive(Clone, Debug)]
pub(crate) struct BaseImage {
    pub(crate) image: String,
    pub(crate) snapshots: SnapshotStore,
}

impl BaseImage {
    /// Removes the image if its snapshot was deleted while a container used it. Returns true if nothing is left to do.
    pub(crate) async fn release(&self, docker: &Docker) -> bool {
        match self.snapshots.images("terminate") {
            Ok(known) if known.contains(&self.image) => true,
            Ok(_) => matches!(remove(docker, &self.image).await, Ok(Removed::Gone)),
            // An image stays unless its snapshot is known to be deleted.
            Err(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{Backend as _, CallContext};
    use sandbox_engine::SnapshotStore;
    use serde_json::json;

    use super::*;
    use crate::DockerBackend;
    use crate::config::DockerConfig;
    use crate::fake_engine::{Answer, FakeEngine, store_snapshot};

    const IMAGE: &str = "code-sandboxes-snapshot:one";

    /// Starts an engine with or without the image, which can remove it or not.
    fn start_engine(has: bool, removes: bool) -> FakeEngine {
        FakeEngine::start(move |request, log| {
            let path = request.path.split('?').next().unwrap_or_default();
            let missing = || Answer::now(404, json!({"message": "No such image"}));
            match (request.method.as_str(), path) {
                ("GET", "version") => Answer::now(200, json!({"ApiVersion": "1.41"})),
                ("GET", _) if has => Answer::now(200, json!({"Id": "x"})),
                ("DELETE", _) if has && removes => {
                    log.add(path);
                    Answer::now(200, json!([]))
                }
                ("DELETE", _) if has => Answer::now(500, json!({"message": "no"})),
                _ => missing(),
            }
        })
    }

    /// Deletes a snapshot taken with one engine, with another engine. Returns whether the snapshot is left.
    async fn delete(taken_with: &FakeEngine, with: &FakeEngine) -> (Result<()>, bool) {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("snapshots");
        let store = SnapshotStore::new(Some(directory.clone()));
        store_snapshot(&store, "one", json!({"image": IMAGE, "engine": taken_with.address()}));
        let mut config = DockerConfig::default();
        (config.host, config.snapshot_directory) = (Some(with.address()), Some(directory));
        let backend = DockerBackend::new(config);
        let deleted = backend.delete_snapshot(&CallContext::new(), "one").await;
        (deleted, !store.list("test").unwrap().is_empty())
    }

    #[tokio::test]
    async fn a_snapshot_with_an_image_of_another_engine_stays() {
        let (with, without) = (start_engine(true, true), start_engine(false, true));
        let (deleted, is_there) = delete(&with, &without).await;
        let error = deleted.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains(&with.address()), "{error:?}");
        assert!(error.message().contains(IMAGE) && error.hint().is_some(), "{error:?}");
        assert!(is_there);
        assert_eq!((with.events(), without.events()), (vec![], vec![]));
    }

    #[tokio::test]
    async fn an_image_in_use_is_removed_with_its_last_container() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("snapshots");
        let store = SnapshotStore::new(Some(directory.clone()));
        let engine = FakeEngine::start(|request, log| {
            let path = request.path.split('?').next().unwrap_or_default();
            let is_forced = request.path.contains("force=true");
            match (request.method.as_str(), path) {
                ("DELETE", path) if path.starts_with("images/") => {
                    assert!(!is_forced, "it would remove the container with it");
                    let is_free = log.has("freed");
                    log.add(if is_free { "removed" } else { "in use" });
                    match is_free {
                        true => Answer::now(200, json!([])),
                        false => Answer::now(409, json!({"message": "conflict"})),
                    }
                }
                _ => Answer::now(200, json!({"Id": "x", "ApiVersion": "1.41"})),
            }
        });
        let docker = engine.docker();
        let base_image = BaseImage { image: IMAGE.into(), snapshots: store.clone() };
        store_snapshot(&store, "one", json!({"image": IMAGE, "engine": engine.address()}));
        // A container ends before the snapshot does.
        assert!(base_image.release(&docker).await);
        assert_eq!(engine.events(), [""; 0]);
        let mut config = DockerConfig::default();
        (config.host, config.snapshot_directory) = (Some(engine.address()), Some(directory));
        let backend = DockerBackend::new(config);
        backend.delete_snapshot(&CallContext::new(), "one").await.unwrap();
        // Another container still uses it, and then none.
        assert!(!base_image.release(&docker).await);
        engine.add("freed");
        assert!(base_image.release(&docker).await);
        assert_eq!(engine.events(), ["in use", "in use", "freed", "removed"]);
    }

    #[tokio::test]
    async fn an_image_is_removed_with_its_snapshot_and_one_that_stays_is_reported() {
        // The engine may have another address now.
        let (elsewhere, with) = (start_engine(false, true), start_engine(true, true));
        let (deleted, is_there) = delete(&elsewhere, &with).await;
        deleted.unwrap();
        assert_eq!(with.events(), [format!("images/{IMAGE}")]);
        assert!(!is_there);
        // The image was removed without this program.
        let (deleted, is_there) = delete(&elsewhere, &elsewhere).await;
        deleted.unwrap();
        assert!(!is_there);
        let stubborn = start_engine(true, false);
        let (deleted, is_there) = delete(&stubborn, &stubborn).await;
        let error = deleted.unwrap_err();
        assert!(error.message().contains(IMAGE), "{error:?}");
        assert!(!is_there);
    }
}
