//! The behaviour suite over `local-docker`.

use std::process::ExitCode;
use std::sync::Arc;

use backend_docker::DockerBackend;
use sandbox_conformance::Target;

/// What a link to a file of every system finds.
const HAS_SYSTEM: &str = "an image has files of its own in /etc, which its user may not read";

/// What cannot be moved from one to the other.
const PLACES: &str = "the working directory and /tmp are file systems of their own";

/// How containers keep programs of others from giving rights away.
const NO_NEW_PRIVILEGES: &str =
    "an engine mounts as the host does; no process of a container gains privileges";

/// Who makes the directories above a mount.
const WAY: &str = "directories on the way to a mount are the engine's, who makes them as root";

/// What programs of the image there are.
const SMALL: &str = "the image has Python and no compiler; an image of one's own may";

/// What an engine needs for each container.
const MANY: &str =
    "an engine takes a good part of a second for each container; tests/engine.rs has fifty at once";

/// Set by `cargo xtask test-docker`, which has an engine and the image. `part`: the groups below alone.
const VARIABLE: &str = "SANDBOX_TEST_DOCKER";

/// The groups about what containers and their agent do. The others are about what is the same over cells.
const GROUPS: [&str; 28] = [
    "archives",
    "background",
    "cancellation",
    "cleanup",
    "commands",
    "daily_life",
    "exec",
    "files",
    "files_hostile",
    "forged",
    "honesty",
    "interrupt",
    "isolation",
    "late",
    "left_behind",
    "lifecycle",
    "limits",
    "limits_memory",
    "metrics",
    "mounts",
    "network",
    "pause",
    "ports",
    "snapshots",
    "streams",
    "terminal",
    "timeout",
    "watch",
];

fn main() -> ExitCode {
    let Some(which) = std::env::var_os(VARIABLE) else {
        return sandbox_conformance::ignored("needs a container engine: cargo xtask test-docker");
    };
    let target = Target::new("local-docker", || Arc::new(DockerBackend::default()))
        .working_directory_has(5, 8)
        .differs("files_hostile::links_lead_nowhere_outside", HAS_SYSTEM)
        .differs("mounts::the_way_to_a_mounted_file_is_the_sandboxs_own", WAY)
        .differs("mounts::what_the_host_has_there_gains_nothing_inside", NO_NEW_PRIVILEGES)
        .differs(
            "isolation::the_system_tree_is_empty",
            "the engine shows /sys, read-only and masked",
        )
        .differs("daily_life::what_was_compiled_runs", SMALL)
        .differs("concurrency::two_hundred_sandboxes_at_once", MANY)
        .differs("watch::renames_have_both_paths", PLACES)
        .differs("watch::moved_directories_keep_their_paths_right", PLACES);
    let part =
        || target.clone().only(GROUPS, "left to cargo xtask test-docker, which takes its time");
    sandbox_conformance::main(if which == "part" { part() } else { target })
}
