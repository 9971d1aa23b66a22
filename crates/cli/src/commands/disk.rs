//! How much a sandbox may have on its disk, which bounds what comes out of it.

use code_sandboxes::SandboxInfo;

/// Disk of a local sandbox that was asked for nothing else.
const DEFAULT_DISK: u64 = 1 << 30;

/// Bytes that all files of a sandbox may take together. `None` where nothing limits them, or nothing says so.
pub(crate) fn disk_of(info: &SandboxInfo) -> Option<u64> {
    // What is mounted is not of this disk.
    if !info.mounts.is_empty() {
        return None;
    }
    let terms = info.metadata.get("terms");
    if let Some(disk) = terms.and_then(|terms| terms.get("disk")?.as_u64()) {
        return Some(disk);
    }
    let isolation = info.isolation.as_ref()?;
    let has_layer = |name: &str| isolation.layers.iter().any(|layer| layer == name);
    let is_limited = match isolation.boundary.as_str() {
        "cell" => has_layer("private-root"),
        "container" => has_layer("read-only-root"),
        _ => false,
    };
    is_limited.then_some(DEFAULT_DISK)
}
