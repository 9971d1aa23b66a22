//! Files of a sandbox through programs of its image.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use sandbox_core::{
    ByteRange, ByteStream, Error, ErrorKind, FileInfo, FindFiles, FoundFile, Result, WriteOptions,
    random_hex,
};
use tokio::time::sleep;

use super::parse_listing::{entries, failed};
use super::{ScriptOutput, ScriptStream, ShellHost, Uploads, archive, find};
use sandbox_engine::files::{Target, sort_by_name, with_removal_hint};
use sandbox_engine::host::{FileSystem, Links, WatchStream};

/// Script of all operations on files.
pub(super) const FILES: &str = include_str!("files.sh");

/// Status of the script when entries changed during an operation.
const CHANGED_STATUS: i64 = 111;

/// Attempts to list a directory that changes meanwhile.
const MAX_LIST_ATTEMPTS: usize = 3;

/// Delay of the second attempt to remove a staged file.
const RETRY_DELAY: Duration = Duration::from_secs(3);

/// Content up to this size is counted before it is sent, which saves a second program.
const COUNTED_SIZE: usize = 1 << 20;

/// Highest number that every image's tools accept.
const MAX_NUMBER: u64 = 1 << 50;

const DEFAULT_MODE: u32 = 0o644;

/// First bytes of a streamed answer, and of one without content, because a link leads to it; both are of one length.
const OK: &[u8] = b"ok\n";
const AT_LINK: &[u8] = b"at\n";

/// The content of a file, or a link to the file.
pub enum ReadOrLink {
    /// The content.
    Content(ByteStream),
    /// The link was made.
    Linked,
}

impl fmt::Debug for ReadOrLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Content(_) => "Content",
            Self::Linked => "Linked",
        })
    }
}

/// The files of a sandbox, through scripts in its shell. Changes are not reported: `watch` is `Unsupported`.
#[derive(Clone, Debug)]
pub struct ShellFiles {
    pub(super) shell: Arc<dyn ShellHost>,
    base: String,
    watch_hint: &'static str,
}

/// Encodes a path for the script.
pub(super) fn argument(target: &Target) -> String {
    match std::str::from_utf8(&target.bytes) {
        Ok(text) => format!("={text}"),
        Err(_) => {
            target.bytes.iter().fold("%".to_owned(), |text, byte| text + &format!("\\0{byte:03o}"))
        }
    }
}

/// Returns a name for a file or directory that is not complete.
pub(super) fn staging_name() -> String {
    format!(".sandbox-{}", random_hex(8))
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

impl ShellFiles {
    /// Creates the files of a sandbox. Relative paths are below `base`. `watch_hint` says what else reports changes.
    pub fn new(shell: Arc<dyn ShellHost>, base: &str, watch_hint: &'static str) -> Self {
        Self { shell, base: base.to_owned(), watch_hint }
    }

    /// Reads a part of a file by one script. `Err` has the path of a part with more than `limit` bytes, which is a regular
    /// file that can be read.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    pub async fn read_small(
        &self,
        path: &str,
        range: ByteRange,
        limit: u64,
    ) -> Result<std::result::Result<Bytes, Target>> {
        let target = self.target("read_file", path)?;
        let length = range.length.unwrap_or(u64::MAX).min(limit + 1);
        let length = if range.offset > MAX_NUMBER { 0 } else { length };
        let offset = range.offset.min(MAX_NUMBER);
        let output = self.ask(&target, "read", &[&offset.to_string(), &length.to_string()]).await?;
        let Some(content) = output.stdout.strip_prefix(OK) else {
            return Err(malformed_output(&target));
        };
        Ok(match content.len() as u64 {
            size if size > limit => Err(target),
            _ => Ok(Bytes::copy_from_slice(content)),
        })
    }

    /// Reads a whole file of fewer than `size` bytes, and makes a link to a larger one, for a host that has a faster way to
    /// read from there. Where there can be no link, every file is read.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    pub async fn read_or_link(&self, path: &str, size: usize, link: &str) -> Result<ReadOrLink> {
        let target = self.target("read_file", path)?;
        let (is_linked, content) = self.answer(&target, "link", &[&size.to_string(), link]).await?;
        Ok(if is_linked { ReadOrLink::Linked } else { ReadOrLink::Content(content) })
    }

    /// Resolves a path. Refuses paths of the kernel's file systems.
    pub(super) fn target(&self, operation: &'static str, path: &str) -> Result<Target> {
        let target = Target::new(&self.base, operation, path)?;
        let is_below = |root: &str| {
            target
                .shown
                .strip_prefix(root)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if operation != "stat_file" && (is_below("/proc") || is_below("/sys")) {
            let message = "shows the kernel or a process, and is not a file of the sandbox";
            let error = target.about.error(ErrorKind::PermissionDenied, "not_a_file", message);
            return Err(error.with_hint("read it from inside, with a command"));
        }
        Ok(target)
    }

    /// Runs an operation to its end.
    pub(super) async fn ask(
        &self,
        target: &Target,
        verb: &str,
        further: &[&str],
    ) -> Result<ScriptOutput> {
        let path = argument(target);
        let mut arguments = vec![verb, &path];
        arguments.extend(further);
        let output = self.shell.run(FILES, &arguments).await?;
        if output.status == 0 { Ok(output) } else { Err(failed(target, &output)) }
    }

    /// Runs an operation that prints nothing.
    pub(super) async fn act(&self, target: &Target, verb: &str, further: &[&str]) -> Result<()> {
        let path = argument(target);
        let mut arguments = vec![verb, &path];
        arguments.extend(further);
        let output = self.shell.run_quiet(FILES, &arguments).await?;
        if output.status == 0 { Ok(()) } else { Err(failed(target, &output)) }
    }

    /// Starts an operation that answers with a stream, and waits for its first bytes.
    pub(super) async fn stream(
        &self,
        target: &Target,
        verb: &str,
        further: &[&str],
    ) -> Result<ByteStream> {
        self.answer(target, verb, further).await.map(|(_, content)| content)
    }

    /// Starts an operation as [`ShellFiles::stream`] does. Returns whether a link leads to the content, too.
    async fn answer(
        &self,
        target: &Target,
        verb: &str,
        further: &[&str],
    ) -> Result<(bool, ByteStream)> {
        let path = argument(target);
        let mut arguments = vec![verb, &path];
        arguments.extend(further);
        let script = self.shell.stream(target.about.operation, FILES, &arguments).await?;
        let mut answer = Answer { target: target.clone(), script };
        let mut received = BytesMut::new();
        while received.len() < OK.len() {
            match answer.next().await {
                Some(chunk) => received.extend_from_slice(&chunk?),
                None => return Err(malformed_output(&answer.target)),
            }
        }
        let first = received.split_off(OK.len()).freeze();
        let is_linked = received == AT_LINK;
        let first = (!first.is_empty()).then_some(Ok(first));
        let rest = stream::unfold(Some(answer), |answer| async move {
            let mut answer = answer?;
            let chunk = answer.next().await?;
            let next = chunk.is_ok().then_some(answer);
            Some((chunk, next))
        });
        Ok((is_linked, Box::pin(stream::iter(first).chain(rest))))
    }

    /// Writes a large file in the host's own way: beside its place, so that it is moved there whole and copied nowhere.
    async fn upload(
        &self,
        uploads: &dyn Uploads,
        target: &Target,
        text: &str,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        let mode = format!("{:o}", options.mode.unwrap_or(DEFAULT_MODE));
        let staged = staging_name();
        self.act(target, "place", &[&mode, "no", yes(options.parents)]).await?;
        let above = text.rsplit_once('/').map_or("", |(above, _)| above);
        let guard = self.staging_guard(target, &staged, false);
        let written = async {
            let size = uploads.upload(&format!("{above}/{staged}"), content).await?;
            let modified =
                options.modified.map_or_else(|| "now".to_owned(), |time| time.to_string());
            let further = [staged.as_str(), &mode, &size.to_string(), &modified];
            self.act(target, "settle", &further).await.map(|()| size)
        };
        let written = written.await;
        match written {
            Ok(_) => guard.committed(),
            Err(_) => guard.finish(false).await,
        }
        written
    }

    /// Runs an operation on two paths.
    async fn between(
        &self,
        operation: &'static str,
        verb: &str,
        from: &str,
        to: &str,
        further: &[&str],
    ) -> Result<()> {
        let target = self.target(operation, from)?;
        target.must_have_name()?;
        let other = self.target(operation, to)?;
        other.must_have_name()?;
        let to = argument(&other);
        let mut arguments = vec![to.as_str()];
        arguments.extend(further);
        self.act(&target, verb, &arguments).await
    }

    /// Returns the guard of a staged file. `created`: the directory of the target was created for it.
    pub(super) fn staging_guard(
        &self,
        target: &Target,
        staged: &str,
        created: bool,
    ) -> StagingGuard {
        let arguments = [argument(target), staged.to_owned(), yes(created).to_owned()];
        StagingGuard { shell: Arc::clone(&self.shell), arguments: Some(arguments) }
    }
}

/// Removes a staged file unless it was committed. Dropping the guard removes the file in the background.
pub(super) struct StagingGuard {
    shell: Arc<dyn ShellHost>,
    arguments: Option<[String; 3]>,
}

impl StagingGuard {
    pub(super) fn committed(mut self) {
        self.arguments = None;
    }

    /// Removes the staged file now, unless it was committed.
    pub(super) async fn finish(mut self, is_committed: bool) {
        if !is_committed && let Some([path, staged, created]) = &self.arguments {
            let dropped = self.shell.run_quiet(FILES, &["drop", path, staged, created]).await;
            if let Err(error) = dropped {
                tracing::debug!(%error, "a staged file may be left");
            }
        }
        self.arguments = None;
    }
}

impl Drop for StagingGuard {
    fn drop(&mut self) {
        let Some([path, staged, created]) = self.arguments.take() else { return };
        let shell = Arc::clone(&self.shell);
        self.shell.spawn(Box::pin(async move {
            // An abandoned operation may create the file after the first attempt.
            for delay in [Duration::ZERO, RETRY_DELAY] {
                sleep(delay).await;
                if let Err(error) =
                    shell.run_quiet(FILES, &["drop", &path, &staged, &created]).await
                {
                    tracing::debug!(%error, "a staged file may be left");
                }
            }
        }));
    }
}

/// Standard output of a script. The last item is an error if the script failed.
struct Answer {
    target: Target,
    script: Box<dyn ScriptStream>,
}

impl Answer {
    async fn next(&mut self) -> Option<Result<Bytes>> {
        match self.script.next().await {
            Ok(Some(chunk)) => return Some(Ok(chunk)),
            Ok(None) => {}
            Err(error) => return Some(Err(error)),
        }
        match self.script.finish().await {
            Ok(output) if output.status == 0 => None,
            Ok(output) => Some(Err(failed(&self.target, &output))),
            Err(error) => Some(Err(error)),
        }
    }
}

/// Reads the first chunks of some content. Returns whether they are all.
async fn read_ahead(content: &mut ByteStream) -> Result<(Vec<Bytes>, bool)> {
    let (mut chunks, mut size) = (Vec::new(), 0);
    while size < COUNTED_SIZE {
        match content.next().await.transpose()? {
            Some(chunk) => {
                size += chunk.len();
                chunks.push(chunk);
            }
            None => return Ok((chunks, true)),
        }
    }
    Ok((chunks, false))
}

#[async_trait]
impl FileSystem for ShellFiles {
    async fn read(&self, path: &str, range: ByteRange) -> Result<ByteStream> {
        let target = self.target("read_file", path)?;
        let length = match range.length {
            _ if range.offset > MAX_NUMBER => "0".to_owned(),
            Some(length) if length <= MAX_NUMBER => length.to_string(),
            _ => "all".to_owned(),
        };
        let offset = range.offset.min(MAX_NUMBER).to_string();
        self.stream(&target, "read", &[&offset, &length]).await
    }

    async fn write(
        &self,
        path: &str,
        mut content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        let target = self.target("write_file", path)?;
        target.must_have_name()?;
        let mode = options.mode.unwrap_or(DEFAULT_MODE);
        target.about.check_mode(mode)?;
        let (chunks, is_all) = read_ahead(&mut content).await?;
        if !is_all
            && !options.append
            && let Some(uploads) = self.shell.uploads()
            && let Ok(text) = std::str::from_utf8(&target.bytes)
        {
            let content = Box::pin(stream::iter(chunks.into_iter().map(Ok)).chain(content));
            return self.upload(uploads, &target, text, content, options).await;
        }
        let size: usize = chunks.iter().map(Bytes::len).sum();
        let size = if is_all { size.to_string() } else { "-".to_owned() };
        let (mode, staged, path) = (format!("{mode:o}"), staging_name(), argument(&target));
        let (append, parents) = (yes(options.append), yes(options.parents));
        let modified = options.modified.map_or_else(|| "now".to_owned(), |time| time.to_string());
        let arguments = ["write", &path, &mode, append, parents, &staged, &size, &modified];
        let content: ByteStream = Box::pin(stream::iter(chunks.into_iter().map(Ok)).chain(content));
        let guard = self.staging_guard(&target, &staged, false);
        let written = async {
            let (output, written) = self.shell.feed(FILES, &arguments, content).await?;
            if output.status != 0 {
                return Err(failed(&target, &output));
            }
            if !is_all && !options.append {
                self.act(&target, "commit", &[&staged]).await?;
            }
            Ok(written)
        };
        let written = written.await;
        match written {
            // The script itself removes a file of counted content when it fails.
            Err(_) if !is_all => guard.finish(false).await,
            _ => guard.committed(),
        }
        written
    }

    async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        let target = self.target("list_files", path)?;
        let path = argument(&target);
        let mut output = ScriptOutput::default();
        for _ in 0..MAX_LIST_ATTEMPTS {
            output = self.shell.run(FILES, &["list", &path]).await?;
            if output.status != CHANGED_STATUS {
                break;
            }
        }
        if output.status != 0 {
            return Err(failed(&target, &output));
        }
        let mut found =
            entries(&target.shown, &output.stdout).ok_or_else(|| malformed_output(&target))?;
        sort_by_name(&mut found);
        Ok(found)
    }

    async fn stat(&self, path: &str) -> Result<FileInfo> {
        let target = self.target("stat_file", path)?;
        let output = self.ask(&target, "stat", &[]).await?;
        let found = entries("/", &output.stdout).and_then(|mut found| found.pop());
        let mut info = found.ok_or_else(|| malformed_output(&target))?;
        target.name_entry(&mut info);
        Ok(info)
    }

    async fn make_directory(&self, path: &str, parents: bool) -> Result<()> {
        let target = self.target("create_directory", path)?;
        if !parents {
            target.must_have_name()?;
        }
        self.act(&target, "make", &[yes(parents)]).await
    }

    async fn remove(&self, path: &str, recursive: bool) -> Result<()> {
        let target = self.target("remove_file", path)?;
        target.must_have_name()?;
        let removed = self.act(&target, "remove", &[yes(recursive)]).await;
        removed.map_err(with_removal_hint)
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.between("rename_file", "rename", from, to, &[]).await
    }

    async fn set_mode(&self, path: &str, mode: u32) -> Result<()> {
        let target = self.target("set_file_mode", path)?;
        target.about.check_mode(mode)?;
        self.act(&target, "mode", &[&format!("{mode:o}")]).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<()> {
        self.between("copy_file", "copy", from, to, &[&staging_name()]).await
    }

    async fn find(&self, query: FindFiles) -> Result<Vec<FoundFile>> {
        find::find(self, query).await
    }

    async fn read_archive(&self, path: &str) -> Result<ByteStream> {
        let target = self.target("read_archive", path)?;
        self.stream(&target, "pack", &[]).await.map(archive::packed)
    }

    async fn write_archive(&self, path: &str, tar: ByteStream, links: Links) -> Result<()> {
        archive::unpack(self, path, tar, links).await
    }

    async fn watch(&self, _path: &str, _recursive: bool) -> Result<WatchStream> {
        let message = "changes of files are not reported here";
        Err(Error::unsupported("watch_files", message).with_hint(self.watch_hint))
    }
}

/// Returns the error of tools whose output has another format than that of the known tools.
pub(super) fn malformed_output(target: &Target) -> Error {
    let message = "the output of the image's tools has an unknown format";
    target.about.error(ErrorKind::Unavailable, "tool", message)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs an operation with the programs of this host, and returns its status.
    fn operation(arguments: &[&str]) -> Option<i32> {
        let mut command = Command::new(crate::SHELL);
        command.args(["-c", FILES, "sh"]).args(arguments).stdin(Stdio::null());
        command.output().unwrap().status.code()
    }

    #[test]
    fn a_staged_file_takes_its_place_whole_and_with_the_mode() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let place = |name: &str| format!("={}", at(name).display());
        let stage = |content: &str| {
            fs::write(at(".staged"), content).unwrap();
            fs::set_permissions(at(".staged"), fs::Permissions::from_mode(0o644)).unwrap();
        };
        let mode = |name: &str| fs::metadata(at(name)).unwrap().permissions().mode() & 0o7777;
        let settle = |name: &str, mode: &str, size: &str, time: &str| {
            operation(&["settle", &place(name), ".staged", mode, size, time])
        };
        stage("first");
        assert_eq!(settle("new", "640", "5", "1000000000"), Some(0));
        assert_eq!(
            (fs::read_to_string(at("new")).unwrap().as_str(), mode("new")),
            ("first", 0o640)
        );
        let modified = fs::metadata(at("new")).unwrap().modified().unwrap();
        assert_eq!(modified, std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
        // A file that is there keeps its mode, and loses nothing to a content that is cut.
        stage("second");
        assert_eq!(settle("new", "644", "7", "now"), Some(111));
        assert_eq!(
            (fs::read_to_string(at("new")).unwrap().as_str(), mode("new")),
            ("first", 0o640)
        );
        assert_eq!(settle("new", "644", "6", "now"), Some(0));
        assert_eq!(
            (fs::read_to_string(at("new")).unwrap().as_str(), mode("new")),
            ("second", 0o640)
        );
        // A link is replaced, and neither followed nor asked for its mode; a directory stays.
        symlink(at("new"), at("link")).unwrap();
        stage("third");
        assert_eq!(settle("link", "600", "5", "now"), Some(0));
        assert!(fs::symlink_metadata(at("link")).unwrap().is_file() && mode("link") == 0o600);
        fs::create_dir(at("directory")).unwrap();
        stage("fourth");
        assert_eq!(settle("directory", "600", "6", "now"), Some(103));
        assert_eq!(fs::read_dir(at("directory")).unwrap().count(), 0);
        assert_eq!(fs::read_to_string(at("new")).unwrap(), "second");
    }

    #[test]
    fn a_place_is_refused_before_content_is_sent() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str, parents: &str| {
            let path = format!("={}/{name}", directory.path().display());
            operation(&["place", &path, "644", "no", parents])
        };
        fs::write(directory.path().join("file"), "x").unwrap();
        symlink("file", directory.path().join("link")).unwrap();
        for (name, parents, status) in [
            ("file", "no", 0),
            ("new", "no", 0),
            ("link", "no", 105),
            ("missing/new", "no", 101),
            ("file/new", "yes", 102),
            ("made/for/it", "yes", 0),
        ] {
            assert_eq!(place(name, parents), Some(status), "{name}");
        }
        assert!(
            directory.path().join("made/for").is_dir()
                && !directory.path().join("missing").exists()
        );
    }
}
