//! Files of this host in a cell.
//!
//! A mount is opened first and then checked, by the real path of what is open. The cell mounts exactly that, or fails.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use sandbox_core::{Error, Mount, Result};
use sandbox_isolation::HostMount;

use crate::launchers::no_isolation;
use sandbox_engine::host_files::{self, OpenedMount, invalid};

struct CellMount(HostMount);

impl OpenedMount for CellMount {
    fn source(&self) -> &Path {
        self.0.source()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
}

/// Opens and checks the mounts of a cell: see [`host_files::open`].
///
/// # Errors
/// As [`host_files::open`].
pub async fn open(mounts: &[Mount], own: Vec<PathBuf>) -> Result<Vec<HostMount>> {
    let open = |mount: &Mount| {
        HostMount::open(&mount.source, Path::new(&mount.target), mount.writable).map(CellMount)
    };
    let opened = host_files::open(mounts, own, open).await?;
    Ok(opened.into_iter().map(|CellMount(mount)| mount).collect())
}

/// Makes the error of a cell that cannot be made, perhaps because of a mount.
pub fn no_cell(error: sandbox_isolation::Error) -> Error {
    const UNSUPPORTED: i32 = 95;
    const STALE: i32 = 116;
    let sandbox_isolation::Error::Setup { step, source } = &error else {
        return no_isolation(error);
    };
    let Some(path) = step.strip_prefix("mount of the host: ") else { return no_isolation(error) };
    match source.raw_os_error() {
        Some(UNSUPPORTED) => {
            let problem = format!(
                "cannot have {path} writable: its file system cannot show files as another user's, and files of the \
                 sandbox's own user would have no owner"
            );
            invalid(&problem).with_hint(
                "mount it read-only, choose a directory on ext4, xfs, btrfs or tmpfs, or run as an ordinary user",
            )
        }
        Some(STALE) => invalid(&format!("cannot have {path}: it was replaced meanwhile")),
        _ => invalid(&format!("cannot have {path}: {source}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn links_are_judged_by_where_they_lead() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let link = folder.join("link");
        symlink("/etc", &link).unwrap();
        let error = open(&[Mount::new(&link, "/data")], Vec::new()).await.unwrap_err();
        assert!(error.to_string().contains("it leads to /etc"), "{error}");
        let error = open(&[Mount::new(folder.join("no"), "/data")], Vec::new()).await.unwrap_err();
        assert!(error.to_string().contains("not there"), "{error}");
        let directory = folder.join("app");
        fs::create_dir(&directory).unwrap();
        open(&[Mount::new(&directory, "/data").writable()], Vec::new()).await.unwrap();
        let _listener = UnixListener::bind(directory.join("s")).unwrap();
        let error = open(&[Mount::new(&directory, "/data")], Vec::new()).await.unwrap_err();
        assert!(error.to_string().contains("listens"), "{error}");
        let error =
            open(&[Mount::new(directory.join("s"), "/data")], Vec::new()).await.unwrap_err();
        assert!(error.to_string().contains("is a socket"), "{error}");
    }
}
