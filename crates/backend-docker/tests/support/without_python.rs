//! Images without Python: one with GNU tools, and one with only busybox. Nothing is fetched for them.

use std::path::Path;
use std::process::Command;
use std::sync::Once;

/// Image with GNU tools.
pub(crate) const DEBIAN: &str = "code-sandboxes-test-debian";

/// Image with only busybox.
pub(crate) const BUSYBOX: &str = "code-sandboxes-test-busybox";

/// Busybox on Debian, from the package `busybox-static`.
const PROGRAM: &str = "/bin/busybox";

/// Builds the image with GNU tools, once.
pub(crate) fn build_debian() {
    static MADE: Once = Once::new();
    MADE.call_once(|| {
        let image = backend_docker::DEFAULT_IMAGE;
        let remove =
            "for p in $(which -a python3) /usr/bin/python3*; do rm -f $p; done; ! which python3";
        build(DEBIAN, &format!("FROM {image}\nUSER 0:0\nRUN {remove}\n"), &[]);
    });
}

/// Builds the image with busybox, once.
pub(crate) fn build_busybox() {
    static MADE: Once = Once::new();
    MADE.call_once(|| {
        let recipe = "FROM scratch\nCOPY busybox /bin/busybox\nCOPY passwd /etc/passwd\n\
                      RUN [\"/bin/busybox\", \"--install\", \"-s\", \"/bin\"]\n";
        build(BUSYBOX, recipe, &[PROGRAM]);
    });
}

fn build(name: &str, recipe: &str, programs: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    for program in programs {
        let path = Path::new(program);
        let file = path.file_name().expect("a name");
        std::fs::copy(path, folder.path().join(file)).expect("Debian's package busybox-static");
    }
    let write = |file: &str, text: &str| {
        std::fs::write(folder.path().join(file), text).expect("a file");
    };
    write("passwd", "root:x:0:0::/:/bin/sh\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n");
    write("Dockerfile", recipe);
    let output = Command::new("docker")
        .args(["build", "--network", "none", "--tag", name])
        .arg(folder.path())
        .output()
        .expect("docker runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} is not built: {stderr}");
}
