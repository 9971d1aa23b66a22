//! Containers that dead owners have left at an engine.

use backend_docker::DEFAULT_IMAGE;

use super::support::{docker, has_engine};
use super::{container, create};

/// An owner can be killed between the creation and the start of its container.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_container_of_a_dead_owner_is_pruned() {
    assert!(has_engine(), "there is no engine to test with");
    let sandbox = create().await;
    let label = "{{index .Config.Labels \"code-sandboxes.owner\"}}";
    let owner = docker(&["inspect", "--format", label, &container(&sandbox)]).await;
    let (rest, start) = owner.rsplit_once(':').unwrap();
    let dead = format!("code-sandboxes.owner={rest}:{}", start.parse::<u64>().unwrap() + 1);
    let (name, alive) = ("sandbox-test-of-the-dead", format!("code-sandboxes.owner={owner}"));
    let beside = "sandbox-test-of-the-living";
    docker(&["create", "--name", name, "--label", &dead, DEFAULT_IMAGE]).await;
    docker(&["create", "--name", beside, "--label", &alive, DEFAULT_IMAGE]).await;
    // The first sandbox of another backend.
    let other = create().await;
    let left = docker(&["ps", "--all", "--format", "{{.Names}}"]).await;
    docker(&["rm", beside]).await;
    assert!(!left.lines().any(|line| line == name), "{left}");
    assert!(left.lines().any(|line| line == beside), "{left}");
    assert!(left.lines().any(|line| line == container(&sandbox)), "{left}");
    drop(other);
}
