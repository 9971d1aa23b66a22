//! Changes to the files of an image, kept by the engine as an image of their own.

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

/// What images of snapshots are called; each has a tag of its own.
pub(crate) const REPOSITORY: &str = "code-sandboxes-snapshot";

/// The label with the name of the snapshot.
const LABEL: &str = "code-sandboxes.snapshot";

/// The label with who made it, and the one with where its snapshot is. Containers of the image have them too, so they are
/// not those of a container.
pub(crate) const MAKER_LABEL: &str = "code-sandboxes.snapshot-maker";
pub(crate) const STORE_LABEL: &str = "code-sandboxes.snapshot-store";

const OPERATION: &str = "create_snapshot";

/// An image that was made of a container. Removed when it is dropped, unless it is kept.
#[derive(Debug)]
pub(crate) struct CommittedImage {
    docker: Docker,
    image: String,
    runtime: Handle,
    kept: bool,
}

impl CommittedImage {
    /// Makes one of what is changed in a container, for a snapshot of the store with that number. What is mounted, and so
    /// all that is in memory, is no part of it.
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
        // What the container says of itself is not true of others that start from the image.
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
        let made = committed.docker.commit_container(options, config).await;
        made.map_err(|error| parse_error(OPERATION, error))?;
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

/// Refuses another engine than the one that has the image of a snapshot, or that had it.
///
/// # Errors
/// `Unavailable`, with where that was.
pub(crate) async fn check_engine(
    daemon: &Engine,
    stored: &StoredSnapshot,
    operation: &'static str,
) -> Result<()> {
    let image = stored.image().unwrap_or_default();
    match daemon.docker.inspect_image(image).await {
        Ok(_) => return Ok(()),
        Err(Cause::DockerResponseServerError { status_code: 404, .. }) => {}
        Err(error) => return Err(parse_error(operation, error)),
    }
    let here = &daemon.host;
    // It was there, and somebody has removed it.
    if stored.engine() == Some(here) {
        return Ok(());
    }
    let (name, directory) = (&stored.info.name, stored.directory().display());
    let there = stored.engine().unwrap_or("an address that was not written down");
    let message = format!(
        "some of {name:?} is the image {image} of the engine at {there}, and the engine at {here} has no such image"
    );
    Err(Error::new(ErrorKind::Unavailable, operation, message)
        .with_context("engine", there.to_owned())
        .with_hint(format!(
            "say where that engine is now, with DOCKER_HOST; when it is no more, remove {directory}"
        )))
}

/// What has become of an image that was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    /// It is no more.
    Gone,
    /// A container has it. Removed by force it would lose its name and stay, or take that container with it.
    InUse,
}

/// Removes the image of a snapshot, if it is there and no container has it.
pub(crate) async fn remove(docker: &Docker, image: &str) -> std::result::Result<Removed, Cause> {
    match docker.remove_image(image, None::<RemoveImageOptions>, None).await {
        Ok(_) | Err(Cause::DockerResponseServerError { status_code: 404, .. }) => Ok(Removed::Gone),
        Err(Cause::DockerResponseServerError { status_code: 409, .. }) => Ok(Removed::InUse),
        Err(error) => Err(error),
    }
}

/// The image of a snapshot as that of a container. It ends with its snapshot, or later with its last container.
#[derive(Clone, Debug)]
pub(crate) struct BaseImage {
    pub(crate) image: String,
    pub(crate) snapshots: SnapshotStore,
}

impl BaseImage {
    /// Removes the image if its snapshot was deleted while a container had it. Whether it need not be looked at again.
    pub(crate) async fn end(&self, docker: &Docker) -> bool {
        match self.snapshots.images("terminate") {
            Ok(known) if known.contains(&self.image) => true,
            Ok(_) => matches!(remove(docker, &self.image).await, Ok(Removed::Gone)),
            // What is not known to be deleted stays.
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

    /// One that has the image, or not; and whether it can remove it.
    fn engine(has: bool, removes: bool) -> FakeEngine {
        FakeEngine::start(move |request, said| {
            let path = request.path.split('?').next().unwrap_or_default();
            let missing = || Answer::now(404, json!({"message": "No such image"}));
            match (request.method.as_str(), path) {
                ("GET", "version") => Answer::now(200, json!({"ApiVersion": "1.41"})),
                ("GET", _) if has => Answer::now(200, json!({"Id": "x"})),
                ("DELETE", _) if has && removes => {
                    said.add(path);
                    Answer::now(200, json!([]))
                }
                ("DELETE", _) if has => Answer::now(500, json!({"message": "no"})),
                _ => missing(),
            }
        })
    }

    /// Deletes a snapshot of that engine with that one. Whether it is still there.
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
    async fn an_image_that_another_engine_has_is_not_forgotten() {
        let (with, without) = (engine(true, true), engine(false, true));
        let (deleted, is_there) = delete(&with, &without).await;
        let error = deleted.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains(&with.address()), "{error:?}");
        assert!(error.message().contains(IMAGE) && error.hint().is_some(), "{error:?}");
        assert!(is_there);
        assert_eq!((with.said(), without.said()), (vec![], vec![]));
    }

    #[tokio::test]
    async fn an_image_in_use_ends_with_its_last_container() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("snapshots");
        let store = SnapshotStore::new(Some(directory.clone()));
        let engine = FakeEngine::start(|request, said| {
            let path = request.path.split('?').next().unwrap_or_default();
            let asks_for_force = request.path.contains("force=true");
            match (request.method.as_str(), path) {
                ("DELETE", path) if path.starts_with("images/") => {
                    assert!(!asks_for_force, "it would take the container with it");
                    let is_free = said.has("freed");
                    said.add(if is_free { "removed" } else { "in use" });
                    match is_free {
                        true => Answer::now(200, json!([])),
                        false => Answer::now(409, json!({"message": "conflict"})),
                    }
                }
                _ => Answer::now(200, json!({"Id": "x", "ApiVersion": "1.41"})),
            }
        });
        let docker = engine.docker();
        let origin = BaseImage { image: IMAGE.into(), snapshots: store.clone() };
        store_snapshot(&store, "one", json!({"image": IMAGE, "engine": engine.address()}));
        // A container ends before the snapshot does.
        assert!(origin.end(&docker).await);
        assert_eq!(engine.said(), [""; 0]);
        let mut config = DockerConfig::default();
        (config.host, config.snapshot_directory) = (Some(engine.address()), Some(directory));
        let backend = DockerBackend::new(config);
        backend.delete_snapshot(&CallContext::new(), "one").await.unwrap();
        // Another container still has it, and then none.
        assert!(!origin.end(&docker).await);
        engine.add("freed");
        assert!(origin.end(&docker).await);
        assert_eq!(engine.said(), ["in use", "in use", "freed", "removed"]);
    }

    #[tokio::test]
    async fn an_image_ends_with_its_snapshot_and_one_that_stays_is_told() {
        // However the engine is called now.
        let (elsewhere, with) = (engine(false, true), engine(true, true));
        let (deleted, is_there) = delete(&elsewhere, &with).await;
        deleted.unwrap();
        assert_eq!(with.said(), [format!("images/{IMAGE}")]);
        assert!(!is_there);
        // Somebody has removed it.
        let (deleted, is_there) = delete(&elsewhere, &elsewhere).await;
        deleted.unwrap();
        assert!(!is_there);
        let stubborn = engine(true, false);
        let (deleted, is_there) = delete(&stubborn, &stubborn).await;
        let error = deleted.unwrap_err();
        assert!(error.message().contains(IMAGE), "{error:?}");
        assert!(!is_there);
    }
}
