//! What containers do otherwise than the suite has it, by design.

use sandbox_conformance::Target;

/// Set by `cargo xtask`, which has an engine and the image.
pub(crate) const VARIABLE: &str = "SANDBOX_TEST_DOCKER";

/// Why the groups that are about what is the same elsewhere wait for more time.
pub(crate) const FULL_ONLY: &str = "left to `cargo xtask test --full`";

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

/// What containers do otherwise, whatever runs code in them.
pub(crate) fn of_containers(target: Target) -> Target {
    target
        .working_directory_has(9, 16)
        .differs("files_hostile::links_lead_nowhere_outside", HAS_SYSTEM)
        .differs("mounts::the_way_to_a_mounted_file_is_the_sandboxs_own", WAY)
        .differs("mounts::what_the_host_has_there_gains_nothing_inside", NO_NEW_PRIVILEGES)
        .differs(
            "isolation::the_system_tree_is_empty",
            "the engine shows /sys, read-only and masked",
        )
        .differs("stdlib_smoke::what_was_compiled_runs", SMALL)
        .differs("concurrency::two_hundred_sandboxes_at_once", MANY)
        .differs("watch::renames_have_both_paths", PLACES)
        .differs("watch::moved_directories_keep_their_paths_right", PLACES)
}
