//! The files of a container without an agent, through programs of its image.

use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use sandbox_core::{
    ByteRange, ByteStream, Error, ErrorKind, FileInfo, FindFiles, FoundFile, Result, WriteOptions,
    random_hex,
};
use sandbox_engine::files::Target;
use sandbox_engine::host::{FileSystem, Links, WatchStream};

use tokio::time::sleep;

use super::exec::{Execs, Tool, ToolOutput};
use super::parse_listing::{entries, failed};
use super::{HINT, archive, find};

/// What works with files.
pub(super) const FILES: &str = include_str!("files.sh");

/// The status of a script that has seen something change.
const BROKEN: i64 = 111;

/// How many times a listing is begun again when something changes meanwhile.
const MAX_LIST_ATTEMPTS: usize = 3;

/// When something is looked for again that was to be removed.
const RETRY_DELAY: Duration = Duration::from_secs(3);

/// Content up to this is counted before it is sent, which spares a program.
const COUNTED_SIZE: usize = 1 << 20;

/// Numbers beyond which tools of images may not count.
const MAX_NUMBER: u64 = 1 << 50;

const DEFAULT_MODE: u32 = 0o644;

/// What begins an answer that is a stream.
const OK: &[u8] = b"ok\n";

/// The files of a container.
#[derive(Clone, Debug)]
pub(crate) struct AgentlessFiles {
    pub(super) execs: Execs,
    base: String,
}

/// A path as the script takes it.
pub(super) fn argument(target: &Target) -> String {
    match std::str::from_utf8(&target.bytes) {
        Ok(text) => format!("={text}"),
        Err(_) => {
            target.bytes.iter().fold("%".to_owned(), |text, byte| text + &format!("\\0{byte:03o}"))
        }
    }
}

/// A name for something that is not complete.
pub(super) fn staged() -> String {
    format!(".sandbox-{}", random_hex(8))
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

impl AgentlessFiles {
    pub(super) fn new(execs: Execs, base: &str) -> Self {
        Self { execs, base: base.to_owned() }
    }

    /// A path that is no view of the kernel's.
    pub(super) fn target(&self, operation: &'static str, path: &str) -> Result<Target> {
        let target = Target::new(&self.base, operation, path)?;
        let is_kernels = |root: &str| {
            target
                .shown
                .strip_prefix(root)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if operation != "stat_file" && (is_kernels("/proc") || is_kernels("/sys")) {
            let message = "shows the kernel or a process, and is no file of the sandbox";
            let error = target.about.error(ErrorKind::PermissionDenied, "not_a_file", message);
            return Err(error.with_hint("read it from inside, with a command"));
        }
        Ok(target)
    }

    /// Something that is done when it is answered.
    pub(super) async fn ask(
        &self,
        target: &Target,
        verb: &str,
        further: &[&str],
    ) -> Result<ToolOutput> {
        let path = argument(target);
        let mut arguments = vec![verb, &path];
        arguments.extend(further);
        let said = self.execs.run(FILES, &arguments).await?;
        if said.status == 0 { Ok(said) } else { Err(failed(target, &said)) }
    }

    /// Something that gives a stream, which has begun.
    pub(super) async fn stream(
        &self,
        target: &Target,
        verb: &str,
        further: &[&str],
    ) -> Result<ByteStream> {
        let path = argument(target);
        let mut arguments = vec![verb, &path];
        arguments.extend(further);
        let tool = self.execs.tool(target.about.operation, FILES, &arguments, false).await?;
        let (execs, target) = (self.execs.clone(), target.clone());
        let mut coming = ToolStream { execs, target, tool, said: Vec::new() };
        let mut heard = BytesMut::new();
        while heard.len() < OK.len() {
            match coming.next().await {
                Some(piece) => heard.extend_from_slice(&piece?),
                None => return Err(malformed_output(&coming.target)),
            }
        }
        let first = heard.split_off(OK.len()).freeze();
        let first = (!first.is_empty()).then_some(Ok(first));
        let rest = stream::unfold(Some(coming), |coming| async move {
            let mut coming = coming?;
            let piece = coming.next().await?;
            let next = piece.is_ok().then_some(coming);
            Some((piece, next))
        });
        Ok(Box::pin(stream::iter(first).chain(rest)))
    }

    /// Something with two paths.
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
        self.ask(&target, verb, &arguments).await.map(drop)
    }

    /// Ends what was staged, also when nobody waits for that.
    pub(super) fn clear(&self, target: &Target, staged: &str, made: bool) -> StagingGuard {
        let arguments = [argument(target), staged.to_owned(), yes(made).to_owned()];
        StagingGuard { execs: self.execs.clone(), arguments: Some(arguments) }
    }
}

/// Removes what was staged unless it is said to be in its place.
pub(super) struct StagingGuard {
    execs: Execs,
    arguments: Option<[String; 3]>,
}

impl StagingGuard {
    pub(super) fn done(mut self) {
        self.arguments = None;
    }

    /// Removes it now, unless it is in its place.
    pub(super) async fn end(mut self, is_done: bool) {
        if !is_done && let Some([path, staged, made]) = &self.arguments {
            let dropped = self.execs.run(FILES, &["drop", path, staged, made]).await;
            if let Err(error) = dropped {
                tracing::debug!(%error, "what was staged may be left");
            }
        }
        self.arguments = None;
    }
}

impl Drop for StagingGuard {
    fn drop(&mut self) {
        let Some([path, staged, made]) = self.arguments.take() else { return };
        let execs = self.execs.clone();
        self.execs.runtime.spawn(async move {
            // One that nobody waits for any more may begin after that.
            for pause in [Duration::ZERO, RETRY_DELAY] {
                sleep(pause).await;
                if let Err(error) = execs.run(FILES, &["drop", &path, &staged, &made]).await {
                    tracing::debug!(%error, "what was staged may be left");
                }
            }
        });
    }
}

/// What a tool puts out, until it has ended well.
struct ToolStream {
    execs: Execs,
    target: Target,
    tool: Tool,
    /// What it has complained about.
    said: Vec<u8>,
}

impl ToolStream {
    async fn next(&mut self) -> Option<Result<Bytes>> {
        const MAX_STDERR: usize = 64 << 10;
        let operation = self.target.about.operation;
        loop {
            match self.tool.next().await {
                Ok(Some((0, piece))) => return Some(Ok(piece)),
                Ok(Some((_, piece))) => {
                    let room = MAX_STDERR.saturating_sub(self.said.len()).min(piece.len());
                    self.said.extend_from_slice(&piece[..room]);
                }
                Ok(None) => break,
                Err(error) => return Some(Err(self.execs.lost(operation).with_source(error))),
            }
        }
        let status = match self.execs.end_of(&mut self.tool).await {
            Ok(status) => status,
            Err(error) => return Some(Err(error)),
        };
        let said =
            ToolOutput { status, stdout: Vec::new(), stderr: std::mem::take(&mut self.said) };
        (status != 0).then(|| Err(failed(&self.target, &said)))
    }
}

/// The beginning of some content, and whether that is all.
async fn beginning(content: &mut ByteStream) -> Result<(Vec<Bytes>, bool)> {
    let (mut pieces, mut size) = (Vec::new(), 0);
    while size < COUNTED_SIZE {
        match content.next().await.transpose()? {
            Some(piece) => {
                size += piece.len();
                pieces.push(piece);
            }
            None => return Ok((pieces, true)),
        }
    }
    Ok((pieces, false))
}

#[async_trait]
impl FileSystem for AgentlessFiles {
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
        let (pieces, is_all) = beginning(&mut content).await?;
        let size: usize = pieces.iter().map(Bytes::len).sum();
        let size = if is_all { size.to_string() } else { "-".to_owned() };
        let (mode, word, path) = (format!("{mode:o}"), staged(), argument(&target));
        let (append, parents) = (yes(options.append), yes(options.parents));
        let modified = options.modified.map_or_else(|| "now".to_owned(), |time| time.to_string());
        let arguments = ["write", &path, &mode, append, parents, &word, &size, &modified];
        let content: ByteStream = Box::pin(stream::iter(pieces.into_iter().map(Ok)).chain(content));
        let clearing = self.clear(&target, &word, false);
        let written = async {
            let (said, written) = self.execs.feed(FILES, &arguments, content).await?;
            if said.status != 0 {
                return Err(failed(&target, &said));
            }
            if !is_all && !options.append {
                self.ask(&target, "commit", &[&word]).await?;
            }
            Ok(written)
        };
        let written = written.await;
        match written {
            // Of less than that nothing is left when it fails.
            Err(_) if !is_all => clearing.end(false).await,
            _ => clearing.done(),
        }
        written
    }

    async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        let target = self.target("list_files", path)?;
        let path = argument(&target);
        let mut said = ToolOutput::default();
        for _ in 0..MAX_LIST_ATTEMPTS {
            said = self.execs.run(FILES, &["list", &path]).await?;
            if said.status != BROKEN {
                break;
            }
        }
        if said.status != 0 {
            return Err(failed(&target, &said));
        }
        let mut found =
            entries(&target.shown, &said.stdout).ok_or_else(|| malformed_output(&target))?;
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    async fn stat(&self, path: &str) -> Result<FileInfo> {
        let target = self.target("stat_file", path)?;
        let said = self.ask(&target, "stat", &[]).await?;
        let found = entries("/", &said.stdout).and_then(|mut found| found.pop());
        let mut info = found.ok_or_else(|| malformed_output(&target))?;
        info.path.clone_from(&target.shown);
        let name = target.shown.rsplit('/').next().unwrap_or_default();
        info.name = if name.is_empty() { "/" } else { name }.to_owned();
        Ok(info)
    }

    async fn make_directory(&self, path: &str, parents: bool) -> Result<()> {
        let target = self.target("create_directory", path)?;
        if !parents {
            target.must_have_name()?;
        }
        self.ask(&target, "make", &[yes(parents)]).await.map(drop)
    }

    async fn remove(&self, path: &str, recursive: bool) -> Result<()> {
        let target = self.target("remove_file", path)?;
        target.must_have_name()?;
        self.ask(&target, "remove", &[yes(recursive)]).await.map(drop).map_err(|error| {
            let is_directory = error.context().iter().any(|(_, cause)| cause == "is_a_directory");
            if is_directory {
                error.with_hint("remove it with everything in it: recursive")
            } else {
                error
            }
        })
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.between("rename_file", "rename", from, to, &[]).await
    }

    async fn set_mode(&self, path: &str, mode: u32) -> Result<()> {
        let target = self.target("set_file_mode", path)?;
        target.about.check_mode(mode)?;
        self.ask(&target, "mode", &[&format!("{mode:o}")]).await.map(drop)
    }

    async fn copy(&self, from: &str, to: &str) -> Result<()> {
        self.between("copy_file", "copy", from, to, &[&staged()]).await
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
        let message = "without Python in the image nothing tells of changes";
        Err(Error::unsupported("watch_files", message).with_hint(HINT))
    }
}

/// Tools that say something else than those that are known.
pub(super) fn malformed_output(target: &Target) -> Error {
    let message = "the tools of the image have said something that is not understood";
    target.about.error(ErrorKind::Unavailable, "tool", message)
}
