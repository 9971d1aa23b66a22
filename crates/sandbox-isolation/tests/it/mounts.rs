//! Tests that exactly the opened files of the host are mounted, and nothing that has replaced them since.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use sandbox_isolation::{Cell, CellLauncher, CellSpec, Error, HostMount};

async fn cell_with(mount: HostMount) -> Result<Cell, Error> {
    let launcher = CellLauncher::start().await.unwrap();
    launcher.cell(&CellSpec { mounts: vec![mount], ..CellSpec::strict() }).await
}

/// Makes a directory on the host, and opens it for a cell.
fn opened() -> (tempfile::TempDir, HostMount) {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::create_dir_all(folder.path().join("above/given")).unwrap();
    let given = folder.path().join("above/given");
    let mount = HostMount::open(&given, Path::new("/data/given"), false).unwrap();
    (folder, mount)
}

fn is_refused(made: Result<Cell, Error>) {
    match made {
        Err(Error::Setup { step, .. }) => assert!(step.contains("mount of the host"), "{step}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_opened_directory_is_mounted() {
    let (_folder, mount) = opened();
    cell_with(mount).await.unwrap();
}

/// The owner must be able to unmount its file system later.
#[tokio::test]
async fn no_descriptor_is_left_after_the_cell() {
    let (folder, mount) = opened();
    let launcher = CellLauncher::start().await.unwrap();
    let is_open = || {
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok())
            .any(|link| link.starts_with(folder.path()))
    };
    assert!(is_open(), "a control");
    let cell =
        launcher.cell(&CellSpec { mounts: vec![mount], ..CellSpec::strict() }).await.unwrap();
    cell.kill();
    cell.end().await;
    drop(cell);
    assert!(!is_open());
    drop(launcher);
}

#[tokio::test]
async fn a_replaced_directory_is_not_mounted() {
    let (folder, mount) = opened();
    let given = folder.path().join("above/given");
    fs::rename(&given, folder.path().join("kept")).unwrap();
    fs::create_dir(&given).unwrap();
    is_refused(cell_with(mount).await);
}

#[tokio::test]
async fn a_link_in_its_place_or_above_is_not_followed() {
    let (folder, mount) = opened();
    let given = folder.path().join("above/given");
    fs::rename(&given, folder.path().join("kept")).unwrap();
    symlink(folder.path().join("kept"), &given).unwrap();
    // Although the link leads to the very same directory.
    is_refused(cell_with(mount).await);
    let (folder, mount) = opened();
    let above = folder.path().join("above");
    fs::rename(&above, folder.path().join("kept")).unwrap();
    symlink(folder.path().join("kept"), &above).unwrap();
    is_refused(cell_with(mount).await);
}

#[tokio::test]
async fn a_removed_directory_is_not_mounted() {
    let (folder, mount) = opened();
    fs::remove_dir_all(folder.path().join("above")).unwrap();
    is_refused(cell_with(mount).await);
}
