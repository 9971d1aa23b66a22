//! Cases of the behaviour suite that differ in containers, by design.

use sandbox_conformance::Target;

/// Variable that `cargo xtask` sets when there is an engine with the image.
pub(crate) const VARIABLE: &str = "SANDBOX_TEST_DOCKER";

/// Reason of groups whose subject other backends test too.
pub(crate) const FULL_ONLY: &str = "left to `cargo xtask test --full`";

const HAS_SYSTEM: &str = "an image has its own files in /etc, which its user may not read";

const FILE_SYSTEMS: &str = "the working directory and /tmp are separate file systems";

const NO_NEW_PRIVILEGES: &str =
    "an engine mounts as the host does; no process of a container gains privileges";

const MOUNT_PARENTS: &str = "the engine creates the directories above a mount, as root";

const NO_COMPILER: &str = "the image has Python and no compiler; another image may have one";

const MANY: &str =
    "an engine takes a good part of a second for each container; tests/engine.rs has fifty at once";

/// Declares the differences of containers with any runner of code.
pub(crate) fn of_containers(target: Target) -> Target {
    target
        .working_directory_has(9, 16)
        .differs("files_hostile::links_lead_nowhere_outside", HAS_SYSTEM)
        .differs("mounts::the_way_to_a_mounted_file_is_the_sandboxs_own", MOUNT_PARENTS)
        .differs("mounts::what_the_host_has_there_gains_nothing_inside", NO_NEW_PRIVILEGES)
        .differs(
            "isolation::the_system_tree_is_empty",
            "the engine shows /sys, read-only and masked",
        )
        .differs("stdlib_smoke::what_was_compiled_runs", NO_COMPILER)
        .differs("concurrency::two_hundred_sandboxes_at_once", MANY)
        .differs("watch::renames_have_both_paths", FILE_SYSTEMS)
        .differs("watch::moved_directories_keep_their_paths_right", FILE_SYSTEMS)
}
