//! Files in the user's cache directory, such as byte code and facts about interpreters. Losing them costs time and nothing
//! else.

use std::env;
use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use sandbox_core::random_hex;

/// Maximum number of files. When there are more, some are of interpreters and versions that are gone.
const MAX_FILES: usize = 32;

/// Returns `code-sandboxes` in the user's cache directory. Programs of this library that run outside of sandboxes are
/// kept there.
pub fn cache_directory() -> Option<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .filter(|path| Path::new(path).is_absolute())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(base.join("code-sandboxes"))
}

/// Reads a file of ours. A file that another user wrote, or could have written, is not read: it decides what is run.
pub fn read(name: &str) -> Option<Vec<u8>> {
    Cache::open(&cache_directory()?).ok()?.read(name).ok()
}

/// Replaces a file, or leaves it as it was.
pub fn write(name: &str, contents: &[u8]) {
    let Some(directory) = cache_directory() else { return };
    if let Err(error) = try_write(&directory, name, contents) {
        tracing::debug!(%error, name, "not cached");
    }
}

fn try_write(directory: &Path, name: &str, contents: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    Cache::open(directory)?.write(name, contents)
}

/// The open directory. Nothing in it is looked up by a path, which another process may change above it meanwhile.
struct Cache(File);

impl Cache {
    fn open(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(CWD, directory, flags, Mode::empty())?;
        check_ours(&fstat(&directory)?)?;
        Ok(Self(directory.into()))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.0, name, flags, Mode::empty())?;
        let status = fstat(&file)?;
        check_ours(&status)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        let mut contents = Vec::new();
        File::from(file).read_to_end(&mut contents)?;
        Ok(contents)
    }

    fn write(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        self.make_room()?;
        let temporary = format!(".{name}.{}", random_hex(8));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file: File = openat(&self.0, &temporary, flags, Mode::RUSR | Mode::WUSR)?.into();
        let written = file
            .write_all(contents)
            .and_then(|()| Ok(renameat(&self.0, &temporary, &self.0, name)?));
        if written.is_err() {
            let _ = unlinkat(&self.0, &temporary, AtFlags::empty());
        }
        written
    }

    fn make_room(&self) -> io::Result<()> {
        let names =
            Dir::read_from(&self.0)?.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let names = names.iter().filter(|name| !matches!(name.to_bytes(), b"." | b".."));
        if names.clone().count() >= MAX_FILES {
            for name in names {
                unlinkat(&self.0, name, AtFlags::empty())?;
            }
        }
        Ok(())
    }
}

/// Checks that no other user can change the file or directory.
fn check_ours(status: &Stat) -> io::Result<()> {
    let open_to_others = status.st_mode & 0o022 != 0;
    if status.st_uid != geteuid().as_raw() || open_to_others {
        Err(Errno::PERM.into())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn what_others_could_have_written_is_not_read() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("cache/code-sandboxes");
        try_write(&directory, "a", b"first").unwrap();
        try_write(&directory, "a", b"second").unwrap();
        let read = |name| Cache::open(&directory).and_then(|cache| cache.read(name));
        assert_eq!(read("a").unwrap(), b"second");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left beside it");
        // Through links, and where other users may write.
        symlink(directory.join("a"), directory.join("link")).unwrap();
        read("link").unwrap_err();
        fs::set_permissions(directory.join("a"), Permissions::from_mode(0o620)).unwrap();
        read("a").unwrap_err();
        fs::set_permissions(directory.join("a"), Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read("a").unwrap(), b"second");
        fs::set_permissions(&directory, Permissions::from_mode(0o775)).unwrap();
        read("a").unwrap_err();
        try_write(&directory, "b", b"").unwrap_err();
    }

    #[test]
    fn files_do_not_pile_up() {
        let home = tempfile::tempdir().unwrap();
        for number in 0..2 * MAX_FILES {
            try_write(home.path(), &number.to_string(), b"x").unwrap();
        }
        let count = fs::read_dir(home.path()).unwrap().count();
        assert!((1..=MAX_FILES).contains(&count), "{count}");
    }
}
