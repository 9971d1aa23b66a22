//! Prunes what dead owners left at an engine: containers, and images without a snapshot.

use std::collections::HashMap;

use bollard::Docker;
use bollard::errors::Error as Cause;
use bollard::models::ImageSummary;
use bollard::query_parameters::{ListContainersOptionsBuilder, ListImagesOptionsBuilder};
use sandbox_engine::SnapshotStore;

use crate::commit::{self, MAKER_LABEL, REPOSITORY, STORE_LABEL};
use crate::container_guard::remove;
use crate::owner::{OWNER_LABEL, Owner};

/// Removes containers and images whose owner is known to be dead.
///
/// # Errors
/// Those of an engine that does not list all of its containers and images.
pub(crate) async fn prune(docker: &Docker, snapshots: &SnapshotStore) -> Result<(), Cause> {
    let containers = prune_containers(docker).await;
    prune_images(docker, snapshots).await.and(containers)
}

fn with_label(label: &str) -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), vec![label.to_owned()])])
}

fn is_dead(owner: Option<&String>) -> bool {
    owner.and_then(|owner| Owner::parse(owner)).is_some_and(|owner| owner.is_dead())
}

async fn prune_containers(docker: &Docker) -> Result<(), Cause> {
    let filters = with_label(OWNER_LABEL);
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    for container in docker.list_containers(Some(options)).await? {
        let owner = container.labels.as_ref().and_then(|labels| labels.get(OWNER_LABEL));
        if let (true, Some(id)) = (is_dead(owner), &container.id) {
            remove(docker, id).await;
        }
    }
    Ok(())
}

/// Removes images for snapshots of this store that were never completed, or are deleted.
async fn prune_images(docker: &Docker, snapshots: &SnapshotStore) -> Result<(), Cause> {
    let filters = with_label(MAKER_LABEL);
    let options = ListImagesOptionsBuilder::default().filters(&filters).build();
    let mut images = docker.list_images(Some(options)).await?;
    images.retain(|image| is_dead(image.labels.get(MAKER_LABEL)));
    if images.is_empty() {
        return Ok(());
    }
    // A dead owner completes no snapshot any more, so the list of snapshots is complete for these images.
    let known =
        snapshots.number("create").and_then(|store| Ok((store, snapshots.images("create")?)));
    let Ok((store, known)) = known else { return Ok(()) };
    images.retain(|image| image.labels.get(STORE_LABEL) == Some(&store));
    for name in images.iter().flat_map(names) {
        if !known.contains(name)
            && let Err(error) = commit::remove(docker, name).await
        {
            tracing::debug!(name, %error, "the image of a snapshot could not be removed");
        }
    }
    Ok(())
}

/// Returns the names of an image that are those of snapshots. Images that were built from it inherit its labels.
fn names(image: &ImageSummary) -> impl Iterator<Item = &str> {
    let names = image.repo_tags.iter().map(|name| name.strip_prefix("localhost/").unwrap_or(name));
    names.filter(|name| name.strip_prefix(REPOSITORY).is_some_and(|rest| rest.starts_with(':')))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::{Value, json};

    use sandbox_core::{Backend as _, CallContext, ErrorKind};

    use super::*;
    use crate::DockerBackend;
    use crate::config::DockerConfig;
    use crate::fake_engine::{Answer, FakeEngine, store_snapshot};

    fn dead_owner() -> String {
        let own = Owner::this_process().unwrap().to_string();
        let (rest, start) = own.rsplit_once(':').unwrap();
        format!("{rest}:{}", start.parse::<u64>().unwrap() + 1)
    }

    fn image(name: &str, maker: &str, store: &str) -> Value {
        json!({
            "Id": name, "ParentId": "", "RepoTags": [name, "other:name"], "RepoDigests": [], "Created": 0, "Size": 1,
            "SharedSize": 0, "Containers": 0, "Labels": {MAKER_LABEL: maker, STORE_LABEL: store},
        })
    }

    /// Prunes an engine with those images, and returns the removed ones.
    async fn pruned(images: Vec<Value>, store: &SnapshotStore) -> Vec<String> {
        let engine = FakeEngine::start(move |request, log| {
            let path = request.path.split('?').next().unwrap_or_default();
            match (request.method.as_str(), path) {
                ("GET", "images/json") => Answer::now(200, Value::from(images.clone())),
                ("GET", _) => Answer::now(200, json!([])),
                _ => {
                    log.add(path.trim_start_matches("images/"));
                    Answer::now(200, json!([]))
                }
            }
        });
        prune(&engine.docker(), store).await.unwrap();
        engine.events()
    }

    #[tokio::test]
    async fn images_of_dead_owners_are_removed_unless_a_snapshot_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let store = SnapshotStore::new(Some(folder.path().join("snapshots")));
        let number = store.number("test").unwrap();
        store_snapshot(&store, "one", json!({"image": "code-sandboxes-snapshot:kept"}));
        let (alive, dead) = (Owner::this_process().unwrap().to_string(), dead_owner());
        let images = vec![
            image("code-sandboxes-snapshot:kept", &dead, &number),
            image("code-sandboxes-snapshot:left", &dead, &number),
            image("localhost/code-sandboxes-snapshot:podman", &dead, &number),
            image("code-sandboxes-snapshot:alive", &alive, &number),
            image("code-sandboxes-snapshot:elsewhere", &dead, "1:2"),
            image("code-sandboxes-snapshot:unknown", "", &number),
            image("made-from:it", &dead, &number),
        ];
        let left = ["code-sandboxes-snapshot:left", "code-sandboxes-snapshot:podman"];
        assert_eq!(
            store.images("test").unwrap().into_iter().collect::<Vec<_>>(),
            ["code-sandboxes-snapshot:kept"]
        );
        assert_eq!(pruned(images.clone(), &store).await, left);
        // A snapshot that cannot be read may have any of the images.
        store_snapshot(&store, "two", json!({}));
        let two = store.directory().unwrap().join("two/snapshot.json");
        fs::write(&two, "malformed").unwrap();
        assert_eq!(pruned(images.clone(), &store).await, [""; 0]);
        fs::remove_file(two).unwrap();
        // A store that other users can write to is not trusted.
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(store.directory().unwrap(), open).unwrap();
        assert_eq!(pruned(images, &store).await, [""; 0]);
    }

    /// An owner on another host or in another process namespace may be alive.
    #[tokio::test]
    async fn only_containers_of_dead_owners_are_removed() {
        let alive = Owner::this_process().unwrap().to_string();
        let parts: Vec<&str> = alive.split(':').collect();
        let [boot, namespace, pid, start] = parts[..] else { panic!("{alive}") };
        let later = start.parse::<u64>().unwrap() + 1;
        let of_others = namespace.parse::<u64>().unwrap() + 1;
        let owners = [
            ("dead", dead_owner()),
            ("alive", alive.clone()),
            ("elsewhere", format!("{boot}:{of_others}:{pid}:{later}")),
            ("other-boot", format!("other:{namespace}:{pid}:{later}")),
            ("short", format!("{boot}:{namespace}:{pid}")),
            ("long", format!("{}:1", dead_owner())),
            ("words", format!("{boot}:{namespace}:one:two")),
            ("empty", String::new()),
            ("dead-too", dead_owner()),
        ];
        let mut containers: Vec<Value> = owners
            .iter()
            .map(|(id, owner)| json!({"Id": id, "Labels": {OWNER_LABEL: owner}}))
            .collect();
        containers.push(json!({"Id": "without", "Labels": {}}));
        containers.push(json!({"Labels": {OWNER_LABEL: dead_owner()}}));
        let engine = FakeEngine::start(move |request, log| {
            let path = request.path.split('?').next().unwrap_or_default();
            match (request.method.as_str(), path) {
                ("GET", "containers/json") => Answer::now(200, Value::from(containers.clone())),
                ("GET", _) => Answer::now(200, json!([])),
                (method, _) => {
                    log.add(&format!("{method} {}", request.path));
                    Answer::now(204, Value::Null)
                }
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let store = SnapshotStore::new(Some(folder.path().join("snapshots")));
        prune(&engine.docker(), &store).await.unwrap();
        let removed: Vec<String> = engine.events();
        let whole = |line: &String| line.contains("force=true") && line.contains("v=true");
        assert!(removed.iter().all(whole), "{removed:?}");
        let paths: Vec<_> = removed.iter().map(|line| line.split('?').next().unwrap()).collect();
        assert_eq!(paths, ["DELETE containers/dead", "DELETE containers/dead-too"]);
    }

    /// An engine that could not list its containers is pruned again before the next sandbox.
    #[tokio::test]
    async fn an_engine_that_was_not_pruned_is_pruned_later() {
        let engine = FakeEngine::start(|request, log| {
            let path = request.path.split('?').next().unwrap_or_default();
            match path {
                "version" => Answer::now(200, json!({"ApiVersion": "1.41"})),
                "containers/json" => {
                    let is_first = !log.has("listed");
                    log.add("listed");
                    match is_first {
                        true => Answer::now(500, json!({"message": "not now"})),
                        false => Answer::now(200, json!([])),
                    }
                }
                "_ping" | "images/json" => Answer::now(200, json!([])),
                _ => Answer::now(404, json!({"message": "No such image"})),
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let config = DockerConfig {
            host: Some(engine.address()),
            snapshot_directory: Some(folder.path().join("snapshots")),
            ..DockerConfig::default()
        };
        let backend = DockerBackend::new(config);
        for listed in [1, 2, 2] {
            let spec = sandbox_core::CreateSpec::default();
            let error = backend.create(&CallContext::new(), spec).await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
            assert_eq!(engine.events().len(), listed);
        }
    }
}
