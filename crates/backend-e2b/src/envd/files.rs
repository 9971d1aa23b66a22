//! Files of a sandbox: what the daemon has requests for, natively, and the rest by the agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::{StreamExt as _, stream};
use rustix::io::Errno;
use sandbox_agent_client::AgentFiles;
use sandbox_cloud::http::{Part, Request};
use sandbox_core::{
    ByteRange, ByteStream, Error, ErrorKind, FileInfo, FileKind, FindFiles, FoundFile, Result,
    WriteOptions, random_hex,
};
use sandbox_engine::files::{Target, sort_by_name, with_removal_hint};
use sandbox_engine::host::{FileSystem, Links, WatchStream};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Envd;
use super::upload::{Counted, Staged};
use super::watch::watch;
use crate::agent::FileAgent;

/// Most entries of a directory that are listed.
const MAX_ENTRIES: usize = 100_000;

const OCTETS: &str = "application/octet-stream";

/// The version of the daemon that takes contents as they are, and not in forms alone.
const PLAIN_UPLOADS: [u64; 3] = [0, 5, 7];

const DEFAULT_MODE: u32 = 0o644;

/// The bit of a mode that lets the owner write.
const WRITABLE: u32 = 0o200;

/// Characters that stand for bytes of names that are not text: such names are the agent's.
const ESCAPED: std::ops::RangeInclusive<char> = '\u{10fe00}'..='\u{10feff}';

/// Sets mode and time of a file.
const ADJUST: &str = r#"chmod "$2" "$1" || exit 1; [ "$3" = now ] || touch -d "@$3" "$1""#;

/// The files of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct E2bFiles {
    envd: Envd,
    agent: Arc<FileAgent>,
    base: String,
}

/// An entry as the daemon describes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    path: String,
    /// A number, or a text with one.
    size: Value,
    mode: u32,
    modified_time: Option<DateTime<Utc>>,
    symlink_target: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OneEntry {
    entry: Entry,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entries {
    entries: Vec<Entry>,
}

impl Entry {
    pub(super) fn kind(&self) -> FileKind {
        let target = self.symlink_target.as_deref().unwrap_or_default();
        match self.kind.as_str() {
            // The type may be that of the target.
            _ if !target.is_empty() => FileKind::Symlink,
            "FILE_TYPE_SYMLINK" => FileKind::Symlink,
            "FILE_TYPE_FILE" => FileKind::File,
            "FILE_TYPE_DIRECTORY" => FileKind::Directory,
            _ => FileKind::Other,
        }
    }

    fn size(&self) -> u64 {
        let text = self.size.as_str().and_then(|text| text.parse().ok());
        text.or_else(|| self.size.as_u64()).unwrap_or_default()
    }

    fn info(self) -> FileInfo {
        let (kind, size) = (self.kind(), self.size());
        let modified = self.modified_time.map_or(0.0, |time| {
            time.timestamp() as f64 + f64::from(time.timestamp_subsec_nanos()) / 1e9
        });
        FileInfo {
            name: self.name,
            path: self.path,
            kind,
            size,
            modified,
            permissions: format!("{:03o}", self.mode & 0o777),
            target: self.symlink_target.filter(|_| kind == FileKind::Symlink),
            // The daemon tells names, and no numbers.
            uid: None,
            gid: None,
            attributes: BTreeMap::new(),
        }
    }
}

impl E2bFiles {
    /// Returns the files. Relative paths begin at `base`.
    pub(crate) fn new(envd: Envd, agent: Arc<FileAgent>, base: &str) -> Self {
        Self { envd, agent, base: base.to_owned() }
    }

    async fn by_agent(&self, operation: &'static str) -> Result<AgentFiles> {
        self.agent.files(operation, &self.base).await
    }

    /// Checks a path. Refuses paths of the kernel's file systems.
    fn target(&self, operation: &'static str, path: &str) -> Result<Target> {
        let target = Target::new(&self.base, operation, path)?;
        let is_below = |root: &str| {
            let rest = target.shown.strip_prefix(root);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if operation != "stat_file" && (is_below("/proc") || is_below("/sys")) {
            let message = "shows the kernel or a process, and is not a file of the sandbox";
            let error = target.about.error(ErrorKind::PermissionDenied, "not_a_file", message);
            return Err(error.with_hint("read it from inside, with a command"));
        }
        Ok(target)
    }

    async fn call<T: serde::de::DeserializeOwned>(
        &self,
        target: &Target,
        method: &str,
        body: &Value,
        is_read: bool,
    ) -> Result<T> {
        let method = format!("filesystem.Filesystem/{method}");
        let answer = self.envd.call(target.about.operation, &method, body, is_read).await;
        answer.map_err(|error| failed(target, error))
    }

    async fn entry(&self, target: &Target, path: &str) -> Result<Entry> {
        let body = json!({"path": path});
        let entry = self.call::<OneEntry>(target, "Stat", &body, true).await?.entry;
        let is_tree = matches!(entry.kind(), FileKind::Directory | FileKind::Symlink);
        match path.ends_with('/') && !is_tree {
            true => Err(target.about.failed(Errno::NOTDIR)),
            false => Ok(entry),
        }
    }

    /// Describes a path, which need not exist.
    async fn existing(&self, target: &Target, path: &str) -> Result<Option<Entry>> {
        match self.entry(target, path).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Checks that the directory of a path exists.
    async fn must_have_parent(&self, target: &Target) -> Result<()> {
        let parent = parent(text(target)?);
        let found = self.entry(target, parent).await?;
        match found.kind() {
            FileKind::Directory | FileKind::Symlink => Ok(()),
            _ => Err(target.about.failed(Errno::NOTDIR)),
        }
    }

    async fn remove_entry(&self, target: &Target, path: &str) -> Result<()> {
        let body = json!({"path": path});
        self.call::<Value>(target, "Remove", &body, true).await.map(drop)
    }

    async fn move_entry(&self, target: &Target, from: &str, to: &str) -> Result<()> {
        let body = json!({"source": from, "destination": to});
        self.call::<Value>(target, "Move", &body, false).await.map(drop)
    }

    /// Uploads content beside its place, and moves it there when it is complete.
    async fn upload(
        &self,
        target: &Target,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        let path = text(target)?;
        let mut mode = options.mode.unwrap_or(DEFAULT_MODE);
        match self.existing(target, path).await? {
            Some(entry) => match entry.kind() {
                // The daemon would replace the file all the same.
                FileKind::File if entry.mode & WRITABLE == 0 => {
                    return Err(target.about.failed(Errno::ACCESS));
                }
                FileKind::File => mode = entry.mode & 0o7777,
                FileKind::Directory => return Err(target.about.failed(Errno::ISDIR)),
                FileKind::Symlink => {
                    let message = "is a symbolic link, and changes are not made through links";
                    return Err(target.about.invalid("is_a_link", message));
                }
                _ => return Err(not_regular(target)),
            },
            None if !options.parents => self.must_have_parent(target).await?,
            None => {}
        }
        let staged = format!("{}/.sandbox-{}", parent(path).trim_end_matches('/'), random_hex(8));
        let guard = Staged::new(self.envd.clone(), staged.clone());
        let counted = Counted::default();
        self.send(target, &staged, counted.through(content)).await?;
        if mode != DEFAULT_MODE || options.modified.is_some() {
            let time = options.modified.map_or_else(|| "now".to_owned(), |time| time.to_string());
            let arguments = [&*staged, &format!("{mode:o}"), &time];
            let output = self.envd.run(target.about.operation, ADJUST, &arguments).await?;
            if output.status != 0 {
                let error = Error::new(ErrorKind::Unavailable, "tool", output.last_error());
                return Err(failed(target, error));
            }
        }
        self.move_entry(target, &staged, path).await?;
        guard.committed();
        Ok(counted.total())
    }

    async fn send(&self, target: &Target, path: &str, content: ByteStream) -> Result<()> {
        let is_plain = version(&self.envd.handle().described().envd_version) >= PLAIN_UPLOADS;
        let body = |request: Request| {
            Ok(match is_plain {
                true => request.stream(OCTETS, content),
                false => request.multipart(vec![Part::streamed_file("file", path, content, None)]),
            })
        };
        let sent = self.envd.upload(target.about.operation, &[("path", path)], body).await;
        sent.map_err(|error| failed(target, error))
    }

    async fn download(&self, target: &Target, size: u64, range: ByteRange) -> Result<ByteStream> {
        let length = range.length.unwrap_or(u64::MAX).min(size.saturating_sub(range.offset));
        if length == 0 {
            return Ok(Box::pin(stream::empty()));
        }
        let is_part = range.offset > 0 || range.length.is_some();
        let last = range.offset + length - 1;
        let change = |request: Request| match is_part {
            true => request.header("range", &format!("bytes={}-{last}", range.offset)),
            false => Ok(request),
        };
        let query = [("path", text(target)?)];
        let answer = self.envd.open(target.about.operation, "files", &query, change).await;
        let answer = answer.map_err(|error| failed(target, error))?;
        let is_cut = answer.status().as_u16() == 206;
        let about = target.clone();
        let body =
            answer.into_bytes().map(move |chunk| chunk.map_err(|error| failed(&about, error)));
        Ok(if is_part && !is_cut {
            super::upload::part(Box::pin(body), range.offset, length)
        } else {
            Box::pin(body)
        })
    }
}

#[async_trait]
impl FileSystem for E2bFiles {
    async fn read(&self, path: &str, range: ByteRange) -> Result<ByteStream> {
        let target = self.target("read_file", path)?;
        let Ok(text) = text(&target) else {
            return self.by_agent("read_file").await?.read(path, range).await;
        };
        let entry = self.entry(&target, text).await?;
        match entry.kind() {
            FileKind::File => self.download(&target, entry.size(), range).await,
            FileKind::Directory => Err(target.about.failed(Errno::ISDIR)),
            // The link may lead to what must not be opened.
            FileKind::Symlink => self.by_agent("read_file").await?.read(path, range).await,
            _ => Err(not_regular(&target)),
        }
    }

    async fn write(&self, path: &str, content: ByteStream, options: WriteOptions) -> Result<u64> {
        if !options.attributes.is_empty() {
            let message = "extended attributes of files are not available on e2b";
            return Err(Error::unsupported("write_file", message));
        }
        let target = self.target("write_file", path)?;
        target.must_have_name()?;
        target.about.check_mode(options.mode.unwrap_or(DEFAULT_MODE))?;
        if options.append || text(&target).is_err() {
            return self.by_agent("write_file").await?.write(path, content, options).await;
        }
        if path.ends_with('/') {
            return Err(target.about.failed(Errno::ISDIR));
        }
        self.upload(&target, content, options).await
    }

    async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        let target = self.target("list_files", path)?;
        let Ok(text) = text(&target) else {
            return self.by_agent("list_files").await?.list(path).await;
        };
        let body = json!({"path": text, "depth": 1});
        let found: Entries = self.call(&target, "ListDir", &body, true).await?;
        if found.entries.len() > MAX_ENTRIES {
            let message = "has more than 100000 entries";
            return Err(target
                .about
                .error(ErrorKind::ResourceExhausted, "too_many", message)
                .with_hint("find some of them by name"));
        }
        let mut all: Vec<_> = found.entries.into_iter().map(Entry::info).collect();
        for info in &mut all {
            // The directory may be a link, whose entries keep its name.
            info.path = format!("{}/{}", target.shown.trim_end_matches('/'), info.name);
        }
        sort_by_name(&mut all);
        Ok(all)
    }

    async fn stat(&self, path: &str) -> Result<FileInfo> {
        let target = self.target("stat_file", path)?;
        let Ok(text) = text(&target) else {
            return self.by_agent("stat_file").await?.stat(path).await;
        };
        let mut info = self.entry(&target, text).await?.info();
        target.name_entry(&mut info);
        Ok(info)
    }

    async fn make_directory(&self, path: &str, parents: bool) -> Result<()> {
        let target = self.target("create_directory", path)?;
        if !parents {
            target.must_have_name()?;
        }
        let Ok(text) = text(&target) else {
            return self.by_agent("create_directory").await?.make_directory(path, parents).await;
        };
        match self.existing(&target, text).await? {
            Some(entry) if parents && entry.kind() == FileKind::Directory => return Ok(()),
            Some(_) => return Err(target.about.failed(Errno::EXIST)),
            None if !parents => self.must_have_parent(&target).await?,
            None => {}
        }
        let body = json!({"path": text});
        match self.call::<Value>(&target, "MakeDir", &body, false).await {
            // Another call was faster.
            Err(error) if parents && error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made.map(drop),
        }
    }

    async fn remove(&self, path: &str, recursive: bool) -> Result<()> {
        let target = self.target("remove_file", path)?;
        target.must_have_name()?;
        let Ok(text) = text(&target) else {
            return self.by_agent("remove_file").await?.remove(path, recursive).await;
        };
        let entry = self.entry(&target, text).await?;
        if entry.kind() == FileKind::Directory && !recursive {
            return Err(with_removal_hint(target.about.failed(Errno::ISDIR)));
        }
        self.remove_entry(&target, text).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (target, other) = (self.target("rename_file", from)?, self.target("rename_file", to)?);
        target.must_have_name()?;
        other.must_have_name()?;
        let (Ok(source), Ok(destination)) = (text(&target), text(&other)) else {
            return self.by_agent("rename_file").await?.rename(from, to).await;
        };
        let entry = self.entry(&target, source).await?;
        self.must_have_parent(&other).await?;
        let is_tree = entry.kind() == FileKind::Directory;
        if is_tree && other.shown.starts_with(&format!("{}/", target.shown)) {
            let message = "is inside the moved or copied directory";
            return Err(target.about.invalid("inside_itself", message));
        }
        if let Some(there) = self.existing(&other, destination).await? {
            match (is_tree, there.kind() == FileKind::Directory) {
                (false, true) => return Err(other.about.failed(Errno::ISDIR)),
                (true, false) => return Err(other.about.failed(Errno::NOTDIR)),
                (true, true) if target.shown != other.shown && !self.list(to).await?.is_empty() => {
                    return Err(other.about.failed(Errno::NOTEMPTY));
                }
                _ => {}
            }
        }
        self.move_entry(&target, source, destination).await
    }

    async fn set_mode(&self, path: &str, mode: u32) -> Result<()> {
        self.target("set_file_mode", path)?;
        self.by_agent("set_file_mode").await?.set_mode(path, mode).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<()> {
        self.target("copy_file", from)?;
        self.by_agent("copy_file").await?.copy(from, to).await
    }

    async fn find(&self, query: FindFiles) -> Result<Vec<FoundFile>> {
        self.by_agent("find_files").await?.find(query).await
    }

    async fn read_archive(&self, path: &str) -> Result<ByteStream> {
        self.target("read_archive", path)?;
        self.by_agent("read_archive").await?.read_archive(path).await
    }

    async fn write_archive(&self, path: &str, tar: ByteStream, links: Links) -> Result<()> {
        self.target("write_archive", path)?;
        self.by_agent("write_archive").await?.write_archive(path, tar, links).await
    }

    async fn watch(&self, path: &str, recursive: bool) -> Result<WatchStream> {
        let target = self.target("watch_files", path)?;
        let path = text(&target)?;
        let entry = self.entry(&target, path).await?;
        match entry.kind() {
            FileKind::Directory | FileKind::Symlink => {}
            _ => return Err(target.about.failed(Errno::NOTDIR)),
        }
        let watched = watch(&self.envd, &target.shown, path, recursive).await;
        watched.map_err(|error| failed(&target, error))
    }
}

/// Returns a path as requests can carry it.
fn text(target: &Target) -> Result<&str> {
    match std::str::from_utf8(&target.bytes) {
        Ok(text) if !target.shown.contains(|c| ESCAPED.contains(&c)) => Ok(text),
        _ => Err(target.about.invalid("path", "a name in it is not text")),
    }
}

/// Returns the directory of a path.
fn parent(path: &str) -> &str {
    match path.trim_end_matches('/').rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

fn not_regular(target: &Target) -> Error {
    let message = "is neither a regular file nor a directory";
    target.about.invalid("not_a_regular_file", message)
}

/// Returns the parts of a version.
fn version(text: &str) -> [u64; 3] {
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or_default());
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// Returns an error of the daemon about a path as all file systems have it.
pub(super) fn failed(target: &Target, error: Error) -> Error {
    let message = error.message().to_ascii_lowercase();
    let known = [
        ("no space left", Errno::NOSPC),
        ("not enough disk space", Errno::NOSPC),
        ("quota exceeded", Errno::DQUOT),
        ("read-only file system", Errno::ROFS),
        ("permission denied", Errno::ACCESS),
        ("not permitted", Errno::PERM),
        ("not a directory", Errno::NOTDIR),
        ("is a directory", Errno::ISDIR),
        ("not empty", Errno::NOTEMPTY),
        ("name too long", Errno::NAMETOOLONG),
        ("too many levels", Errno::LOOP),
        ("no such file", Errno::NOENT),
        ("already exists", Errno::EXIST),
        ("file exists", Errno::EXIST),
    ];
    let by_kind = match error.kind() {
        ErrorKind::NotFound => Some(Errno::NOENT),
        ErrorKind::AlreadyExists => Some(Errno::EXIST),
        ErrorKind::PermissionDenied => Some(Errno::ACCESS),
        ErrorKind::ResourceExhausted => Some(Errno::NOSPC),
        ErrorKind::InvalidArgument | ErrorKind::Unexpected | ErrorKind::Unavailable => None,
        // Not about the path.
        _ => return error,
    };
    let errno = known.into_iter().find(|(part, _)| message.contains(part)).map(|(_, errno)| errno);
    match errno.or(by_kind) {
        Some(errno) => target.about.failed(errno),
        None if error.kind() == ErrorKind::InvalidArgument => {
            target.about.invalid("invalid", error.message())
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_described_as_everywhere() {
        let entry: Entry = serde_json::from_value(json!({
            "name": "x", "type": "FILE_TYPE_FILE", "path": "/home/user/x", "size": "12", "mode": 420,
            "modifiedTime": "2026-01-02T03:04:05.5Z", "owner": "user",
        }))
        .unwrap();
        let info = entry.info();
        assert_eq!((info.kind, info.size, &*info.permissions), (FileKind::File, 12, "644"));
        assert_eq!(info.modified, 1_767_323_045.5);
        let link: Entry = serde_json::from_value(json!({
            "name": "l", "type": "FILE_TYPE_FILE", "symlinkTarget": "/etc/hosts",
        }))
        .unwrap();
        assert_eq!(link.kind(), FileKind::Symlink);
        assert_eq!(link.info().target.as_deref(), Some("/etc/hosts"));
        assert_eq!(Entry::default().kind(), FileKind::Other);
    }

    #[test]
    fn errors_name_the_path_and_the_cause() {
        let target = Target::new("/home/user", "read_file", "x").unwrap();
        let of =
            |kind, message: &str| failed(&target, Error::new(kind, "read_file", message)).kind();
        assert_eq!(of(ErrorKind::NotFound, "file not found: lstat"), ErrorKind::NotFound);
        let full = "not enough disk space available";
        assert_eq!(of(ErrorKind::Unexpected, full), ErrorKind::ResourceExhausted);
        assert_eq!(
            of(ErrorKind::InvalidArgument, "path is a directory"),
            ErrorKind::InvalidArgument
        );
        assert_eq!(of(ErrorKind::ConnectionLost, "permission denied"), ErrorKind::ConnectionLost);
    }

    #[test]
    fn versions_and_parents() {
        assert!(version("0.6.13") >= PLAIN_UPLOADS && version("0.5.7") >= PLAIN_UPLOADS);
        assert!(version("0.5.6") < PLAIN_UPLOADS && version("") < PLAIN_UPLOADS);
        for (path, above) in [("/a", "/"), ("/a/b", "/a"), ("/a/b/", "/a"), ("/", "/")] {
            assert_eq!(parent(path), above, "{path}");
        }
    }
}
