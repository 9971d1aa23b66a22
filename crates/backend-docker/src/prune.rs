//! What dead owners have left at an engine: containers, and images of snapshots that do not exist.

use std::collections::HashMap;

use bollard::Docker;
use bollard::errors::Error as Cause;
use bollard::models::ImageSummary;
use bollard::query_parameters::{ListContainersOptionsBuilder, ListImagesOptionsBuilder};
use sandbox_engine::SnapshotStore;

use crate::commit::{self, MAKER_LABEL, REPOSITORY, STORE_LABEL};
use crate::container_guard::remove;
use crate::owner::{OWNER_LABEL, Owner};

/// Removes what belongs to the dead, as far as that is known for certain.
///
/// # Errors
/// Of an engine that does not say what it has, so that nobody has looked at all of it.
pub(crate) async fn prune(docker: &Docker, snapshots: &SnapshotStore) -> Result<(), Cause> {
    let swept = containers(docker).await;
    images(docker, snapshots).await.and(swept)
}

fn with_label(label: &str) -> HashMap<String, Vec<String>> {
    HashMap::from([("label".to_owned(), vec![label.to_owned()])])
}

fn is_dead(owner: Option<&String>) -> bool {
    owner.and_then(|owner| Owner::parse(owner)).is_some_and(|owner| owner.is_dead())
}

async fn containers(docker: &Docker) -> Result<(), Cause> {
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

/// Images for snapshots in this store that never came to be, or are deleted.
async fn images(docker: &Docker, snapshots: &SnapshotStore) -> Result<(), Cause> {
    let filters = with_label(MAKER_LABEL);
    let options = ListImagesOptionsBuilder::default().filters(&filters).build();
    let mut images = docker.list_images(Some(options)).await?;
    images.retain(|image| is_dead(image.labels.get(MAKER_LABEL)));
    if images.is_empty() {
        return Ok(());
    }
    // Nobody who is dead gives a snapshot its name any more, so what is found now is all there is.
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

/// The names of an image that are those of snapshots. Other images may have been made from it, with its labels.
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

    fn dead() -> String {
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

    async fn removed(images: Vec<Value>, store: &SnapshotStore) -> Vec<String> {
        let engine = FakeEngine::start(move |request, said| {
            let path = request.path.split('?').next().unwrap_or_default();
            match (request.method.as_str(), path) {
                ("GET", "images/json") => Answer::now(200, Value::from(images.clone())),
                ("GET", _) => Answer::now(200, json!([])),
                _ => {
                    said.add(path.trim_start_matches("images/"));
                    Answer::now(200, json!([]))
                }
            }
        });
        prune(&engine.docker(), store).await.unwrap();
        engine.said()
    }

    #[tokio::test]
    async fn images_of_the_dead_are_removed_unless_a_snapshot_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let store = SnapshotStore::new(Some(folder.path().join("snapshots")));
        let number = store.number("test").unwrap();
        store_snapshot(&store, "one", json!({"image": "code-sandboxes-snapshot:kept"}));
        let (alive, dead) = (Owner::this_process().unwrap().to_string(), dead());
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
        assert_eq!(removed(images.clone(), &store).await, left);
        // One that cannot be read may have any of them.
        store_snapshot(&store, "two", json!({}));
        let two = store.directory().unwrap().join("two/snapshot.json");
        fs::write(&two, "nonsense").unwrap();
        assert_eq!(removed(images.clone(), &store).await, [""; 0]);
        fs::remove_file(two).unwrap();
        // Nor is anything known of a store that others can write to.
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(store.directory().unwrap(), open).unwrap();
        assert_eq!(removed(images, &store).await, [""; 0]);
    }

    /// Nobody can tell whether owners of other hosts and process namespaces live.
    #[tokio::test]
    async fn containers_of_the_dead_are_removed_and_no_others() {
        let alive = Owner::this_process().unwrap().to_string();
        let parts: Vec<&str> = alive.split(':').collect();
        let [boot, namespace, pid, start] = parts[..] else { panic!("{alive}") };
        let later = start.parse::<u64>().unwrap() + 1;
        let of_others = namespace.parse::<u64>().unwrap() + 1;
        let owners = [
            ("dead", dead()),
            ("alive", alive.clone()),
            ("elsewhere", format!("{boot}:{of_others}:{pid}:{later}")),
            ("other-boot", format!("other:{namespace}:{pid}:{later}")),
            ("short", format!("{boot}:{namespace}:{pid}")),
            ("long", format!("{}:1", dead())),
            ("words", format!("{boot}:{namespace}:one:two")),
            ("empty", String::new()),
            ("dead-too", dead()),
        ];
        let mut containers: Vec<Value> = owners
            .iter()
            .map(|(id, owner)| json!({"Id": id, "Labels": {OWNER_LABEL: owner}}))
            .collect();
        containers.push(json!({"Id": "without", "Labels": {}}));
        containers.push(json!({"Labels": {OWNER_LABEL: dead()}}));
        let engine = FakeEngine::start(move |request, said| {
            let path = request.path.split('?').next().unwrap_or_default();
            match (request.method.as_str(), path) {
                ("GET", "containers/json") => Answer::now(200, Value::from(containers.clone())),
                ("GET", _) => Answer::now(200, json!([])),
                (method, _) => {
                    said.add(&format!("{method} {}", request.path));
                    Answer::now(204, Value::Null)
                }
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let store = SnapshotStore::new(Some(folder.path().join("snapshots")));
        prune(&engine.docker(), &store).await.unwrap();
        let removed: Vec<String> = engine.said();
        let whole = |line: &String| line.contains("force=true") && line.contains("v=true");
        assert!(removed.iter().all(whole), "{removed:?}");
        let paths: Vec<_> = removed.iter().map(|line| line.split('?').next().unwrap()).collect();
        assert_eq!(paths, ["DELETE containers/dead", "DELETE containers/dead-too"]);
    }

    /// An engine that could not say what it has is asked again before the next sandbox, and one that could is not.
    #[tokio::test]
    async fn what_could_not_be_listed_is_listed_again() {
        let engine = FakeEngine::start(|request, said| {
            let path = request.path.split('?').next().unwrap_or_default();
            match path {
                "version" => Answer::now(200, json!({"ApiVersion": "1.41"})),
                "containers/json" => {
                    let is_first = !said.has("listed");
                    said.add("listed");
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
            assert_eq!(engine.said().len(), listed);
        }
    }
}
