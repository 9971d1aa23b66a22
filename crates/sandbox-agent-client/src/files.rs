//! The files of a sandbox, through its agent.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{
    ByteRange, ByteStream, FileInfo, FileKind, FindFiles, FoundFile, Result, WatchEvent,
    WatchEventKind, WriteOptions,
};

use crate::archive;
use crate::call::{Call, Guard};
use crate::connection::{Answer, Connection};
use crate::error::{TargetExt as _, no_record};
use crate::fd_transfer::{FdTransfer, LocateProcess};
use crate::process::number;
use crate::streams::{Reader, Writer};
use sandbox_engine::files::error::MAX_LISTING_SIZE;
use sandbox_engine::files::{Target, names, sort_by_name, with_removal_hint};
use sandbox_engine::host::{FileSystem, Links, WatchStream, Writable};
use sandbox_engine::wire::Fields;

/// Maximum number of results where the caller gives none.
const DEFAULT_LIMIT: usize = 10_000;

/// Maximum number of results that a caller may ask for.
const MAX_RESULTS: usize = 100_000;

/// Maximum length of the text to look for.
const MAX_PATTERN_SIZE: usize = 256 << 10;

/// Maximum length of a record. A path and a line of a file fit many times.
const MAX_RECORD_SIZE: usize = 64 << 10;

const DEFAULT_MODE: u32 = 0o644;

/// The files of a sandbox.
#[derive(Clone, Debug)]
pub struct AgentFiles {
    connection: Arc<Connection>,
    base: String,
    fd_transfer: Option<Arc<FdTransfer>>,
}

impl AgentFiles {
    pub(crate) fn new(connection: Arc<Connection>, base: &str) -> Self {
        Self { connection, base: base.to_owned(), fd_transfer: None }
    }

    /// Has large files taken from the agent's process as open descriptors where that is possible: where it runs on this
    /// kernel, and this process may access it.
    #[must_use]
    pub fn taken_from(mut self, process: Arc<dyn LocateProcess>) -> Self {
        self.fd_transfer = Some(Arc::new(FdTransfer::new(process)));
        self
    }

    fn target(&self, operation: &'static str, path: &str) -> Result<Target> {
        Target::new(&self.base, operation, path)
    }

    /// Sends a request and waits for its answer.
    async fn ask(&self, target: &Target, verb: &str, further: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        let call = Call::begin(&self.connection, verb, &target.arguments(further))?;
        call.answer().await.map_err(|error| target.failed(&error))
    }

    /// Sends a request whose result is a stream, and waits until the stream has begun.
    async fn stream(
        &self,
        target: &Target,
        verb: &str,
        further: &[Vec<u8>],
    ) -> Result<(Reader, Guard)> {
        let (call, reader) = Call::reading(&self.connection, verb, &target.arguments(further))?;
        let (answer, guard) = call.answered().await;
        answer.map_err(|error| target.failed(&error))?;
        Ok((reader, guard))
    }

    /// Returns all records of an answer that is a stream of them.
    async fn records<T>(
        &self,
        target: &Target,
        verb: &str,
        further: &[Vec<u8>],
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        let (reader, guard) = self.stream(target, verb, further).await?;
        let mut records = Records::new(reader);
        let (mut all, mut bytes) = (Vec::new(), 0);
        while let Some(record) = records.next(target).await? {
            bytes += record.len();
            if bytes > MAX_LISTING_SIZE {
                return Err(target.about.answers_too_much());
            }
            all.push(read(&record).ok_or_else(|| target.failed(&no_record()))?);
        }
        guard.done();
        Ok(all)
    }
}

/// The records of a stream, each after its length.
pub(crate) struct Records {
    reader: Reader,
    buffer: Vec<u8>,
    taken: usize,
}

impl Records {
    pub(crate) fn new(reader: Reader) -> Self {
        Self { reader, buffer: Vec::new(), taken: 0 }
    }

    /// Reads more bytes of the stream. Returns false at its end.
    async fn more(&mut self, target: &Target) -> Result<bool> {
        let piece = poll_fn(|cx| self.reader.poll_piece(cx)).await;
        match piece.map_err(|error| target.failed(&error))? {
            None => Ok(false),
            Some(piece) => {
                self.buffer.drain(..std::mem::take(&mut self.taken));
                self.buffer.extend_from_slice(&piece);
                Ok(true)
            }
        }
    }

    /// Returns the next record.
    pub(crate) async fn next(&mut self, target: &Target) -> Result<Option<Vec<u8>>> {
        loop {
            let rest = &self.buffer[self.taken..];
            if let Some((length, rest)) = rest.split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*length) as usize;
                if length > MAX_RECORD_SIZE {
                    return Err(target.failed(&no_record()));
                }
                if let Some(record) = rest.get(..length) {
                    let record = record.to_vec();
                    self.taken += 4 + length;
                    return Ok(Some(record));
                }
            }
            if !self.more(target).await? {
                let complete = self.taken == self.buffer.len();
                return if complete { Ok(None) } else { Err(target.failed(&no_record())) };
            }
        }
    }

    /// Returns bytes that are no records: at most `most`, and at least one.
    pub(crate) async fn raw(&mut self, most: usize, target: &Target) -> Result<Bytes> {
        while self.taken == self.buffer.len() {
            if !self.more(target).await? {
                return Err(target.failed(&no_record()));
            }
        }
        let end = self.buffer.len().min(self.taken + most);
        let bytes = Bytes::copy_from_slice(&self.buffer[self.taken..end]);
        self.taken = end;
        Ok(bytes)
    }
}

/// Decodes the record of a file: name, kind, size, time in seconds and nanoseconds, mode, and the target of a link.
fn info(parent: &str, record: &[u8]) -> Option<FileInfo> {
    let mut fields = Fields::new(record);
    let name = names::to_text(fields.bytes("name").ok()?);
    let kind = match fields.int("kind").ok()? {
        0 => FileKind::File,
        1 => FileKind::Directory,
        2 => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let size = fields.number("size").ok()?;
    let (seconds, nanos) = (fields.int("seconds").ok()?, fields.int("nanoseconds").ok()?);
    let mode = fields.int("mode").ok()? & 0o777;
    let target = names::to_text(fields.bytes("target").ok()?);
    fields.finish().ok()?;
    #[expect(clippy::cast_precision_loss, reason = "seconds as JSON has them")]
    let modified = seconds as f64 + nanos as f64 / 1e9;
    Some(FileInfo {
        path: format!("{}/{name}", parent.trim_end_matches('/')),
        name,
        kind,
        size,
        modified,
        permissions: format!("{mode:03o}"),
        target: (kind == FileKind::Symlink).then_some(target),
        uid: None,
        gid: None,
        attributes: BTreeMap::new(),
    })
}

fn flag(value: bool) -> Vec<u8> {
    number(value.into())
}

/// A request and the stream that it takes. When dropped, the request ends first: the end of the stream would complete it.
struct Feeding {
    call: Call,
    writer: Writer,
}

enum Fed {
    All,
    /// The agent takes no more.
    Refused,
    Answered(Answer),
}

impl Feeding {
    fn poll_write(&mut self, cx: &mut Context<'_>, piece: &mut Bytes) -> Poll<Fed> {
        while !piece.is_empty() {
            if let Poll::Ready(answer) = self.call.poll_answer(cx) {
                return Poll::Ready(Fed::Answered(answer));
            }
            if self.writer.poll_writable(cx).is_pending() {
                return Poll::Pending;
            }
            match self.writer.try_write(piece) {
                Ok(count) => drop(piece.split_to(count)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(Fed::Refused),
            }
        }
        Poll::Ready(Fed::All)
    }
}

/// Writes content until it ends or the agent answers.
pub(crate) async fn feed(call: Call, writer: Writer, mut content: ByteStream) -> Result<Answer> {
    let mut feeding = Feeding { call, writer };
    while let Some(piece) = content.next().await {
        let mut piece = piece?;
        match poll_fn(|cx| feeding.poll_write(cx, &mut piece)).await {
            Fed::All => {}
            Fed::Refused => break,
            Fed::Answered(answer) => {
                feeding.call.done();
                return Ok(answer);
            }
        }
    }
    let Feeding { call, writer } = feeding;
    drop(writer);
    Ok(call.answer().await)
}

#[async_trait]
impl FileSystem for AgentFiles {
    async fn read(&self, path: &str, range: ByteRange) -> Result<ByteStream> {
        let target = self.target("read_file", path)?;
        let limit = |value: u64| number(i64::try_from(value).unwrap_or(i64::MAX));
        let length = range.length.map_or_else(|| number(-1), limit);
        let fd_transfer =
            self.fd_transfer.as_deref().filter(|fd_transfer| fd_transfer.may_be_there());
        let arguments = [limit(range.offset), length, flag(fd_transfer.is_some())];
        let (call, reader) =
            Call::reading(&self.connection, "read", &target.arguments(&arguments))?;
        let (answer, guard) = call.answered().await;
        let answer = answer.map_err(|error| target.failed(&error))?;
        if let (Some(fd_transfer), false) = (fd_transfer, answer.is_empty()) {
            if let Some(content) = fd_transfer.take(&self.connection, &answer, &target, range).await
            {
                return Ok(content);
            }
            guard.end_input();
        }
        let state = Some((reader, guard, target));
        Ok(Box::pin(stream::unfold(state, |state| async move {
            let (reader, guard, target) = state?;
            match poll_fn(|cx| reader.poll_piece(cx)).await {
                Ok(Some(piece)) => Some((Ok(piece), Some((reader, guard, target)))),
                Ok(None) => {
                    guard.done();
                    None
                }
                Err(error) => Some((Err(target.failed(&error)), None)),
            }
        })))
    }

    async fn write(&self, path: &str, content: ByteStream, options: WriteOptions) -> Result<u64> {
        let target = self.target("write_file", path)?;
        target.must_have_name()?;
        let mode = options.mode.unwrap_or(DEFAULT_MODE);
        target.about.check_mode(mode)?;
        // A negative time means now.
        let modified = options.modified.map_or(-1, |time| i64::try_from(time).unwrap_or(-1));
        let (append, parents) = (flag(options.append), flag(options.parents));
        let further = [append, parents, number(mode.into()), number(modified)];
        let (call, writer) = Call::writing(&self.connection, "write", &target.arguments(&further))?;
        let answer = feed(call, writer, content).await?;
        let answer = answer.map_err(|error| target.failed(&error))?;
        let written = answer.first().and_then(|field| field.as_slice().try_into().ok());
        written
            .and_then(|bytes| u64::try_from(i64::from_le_bytes(bytes)).ok())
            .ok_or_else(|| target.failed(&no_record()))
    }

    async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        let target = self.target("list_files", path)?;
        let parent = target.shown.clone();
        let mut found = self.records(&target, "list", &[], |record| info(&parent, record)).await?;
        sort_by_name(&mut found);
        Ok(found)
    }

    async fn stat(&self, path: &str) -> Result<FileInfo> {
        let target = self.target("stat_file", path)?;
        let answer = self.ask(&target, "stat", &[]).await?;
        let mut record = Vec::new();
        for field in &answer {
            record.extend(u32::try_from(field.len()).unwrap_or(u32::MAX).to_le_bytes());
            record.extend(field);
        }
        let mut info = info("/", &record).ok_or_else(|| target.failed(&no_record()))?;
        target.name_entry(&mut info);
        Ok(info)
    }

    async fn make_directory(&self, path: &str, parents: bool) -> Result<()> {
        let target = self.target("create_directory", path)?;
        if !parents {
            target.must_have_name()?;
        }
        self.ask(&target, "make_directory", &[flag(parents)]).await.map(drop)
    }

    async fn remove(&self, path: &str, recursive: bool) -> Result<()> {
        let target = self.target("remove_file", path)?;
        target.must_have_name()?;
        let answer = self.ask(&target, "remove", &[flag(recursive)]).await;
        answer.map(drop).map_err(with_removal_hint)
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.between("rename_file", "rename", from, to).await
    }

    async fn set_mode(&self, path: &str, mode: u32) -> Result<()> {
        let target = self.target("set_file_mode", path)?;
        target.about.check_mode(mode)?;
        self.ask(&target, "set_mode", &[number(mode.into())]).await.map(drop)
    }

    async fn copy(&self, from: &str, to: &str) -> Result<()> {
        self.between("copy_file", "copy", from, to).await
    }

    async fn find(&self, query: FindFiles) -> Result<Vec<FoundFile>> {
        let target = self.target("find_files", &query.root)?;
        let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
        if limit == 0 || limit > MAX_RESULTS {
            return Err(target.about.invalid("limit", "a limit is 1 to 100000"));
        }
        let wanted = query.contains.clone().unwrap_or_default();
        let bad = wanted.is_empty() || wanted.contains('\n') || wanted.len() > MAX_PATTERN_SIZE;
        if query.contains.is_some() && bad {
            let message = "the text to look for must be part of one line and not empty";
            return Err(target.about.invalid("contains", message));
        }
        let pattern = query.name.as_deref().map(names::to_bytes);
        let further = [
            pattern.clone().unwrap_or_default(),
            flag(pattern.is_some()),
            wanted.into_bytes(),
            flag(query.contains.is_some()),
            number(i64::try_from(limit).unwrap_or(i64::MAX)),
        ];
        let root = target.shown.trim_end_matches('/').to_owned();
        let has_lines = query.contains.is_some();
        let found = |record: &[u8]| {
            let mut fields = Fields::new(record);
            let path = format!("{root}/{}", names::to_text(fields.bytes("path").ok()?));
            if !has_lines {
                return Some(FoundFile { path, line: None });
            }
            let line = fields.number("line").ok()?;
            let text = String::from_utf8_lossy(fields.bytes("text").ok()?).into_owned();
            Some(FoundFile { path, line: Some((line, text)) })
        };
        let mut all = self.records(&target, "find", &further, found).await?;
        all.truncate(limit);
        Ok(all)
    }

    async fn read_archive(&self, path: &str) -> Result<ByteStream> {
        let target = self.target("read_archive", path)?;
        let (reader, guard) = self.stream(&target, "pack", &[]).await?;
        Ok(archive::packed(Records::new(reader), guard, target))
    }

    async fn write_archive(&self, path: &str, tar: ByteStream, links: Links) -> Result<()> {
        let target = self.target("write_archive", path)?;
        let arguments = target.arguments(&[flag(links == Links::Inside)]);
        let (call, writer) = Call::writing(&self.connection, "unpack", &arguments)?;
        let answer = archive::unpack(call, writer, tar, links).await?;
        answer.map(drop).map_err(|error| target.failed(&error))
    }

    async fn watch(&self, path: &str, recursive: bool) -> Result<WatchStream> {
        let target = self.target("watch_files", path)?;
        let (reader, guard) = self.stream(&target, "watch", &[flag(recursive)]).await?;
        let state = Some((Records::new(reader), guard, target));
        Ok(Box::pin(stream::unfold(state, |state| async move {
            let (mut records, guard, target) = state?;
            match records.next(&target).await {
                Ok(Some(record)) => match change(&target.shown, &record) {
                    Some(event) => Some((Ok(event), Some((records, guard, target)))),
                    None => Some((Err(target.failed(&no_record())), None)),
                },
                Ok(None) => {
                    guard.done();
                    None
                }
                Err(error) => Some((Err(error), None)),
            }
        })))
    }
}

impl AgentFiles {
    async fn between(
        &self,
        operation: &'static str,
        verb: &str,
        from: &str,
        to: &str,
    ) -> Result<()> {
        let (from, to) = (self.target(operation, from)?, self.target(operation, to)?);
        from.must_have_name()?;
        let call =
            Call::begin(&self.connection, verb, &from.arguments(std::slice::from_ref(&to.bytes)))?;
        // A missing source is reported before any problem of the target.
        to.must_have_name()?;
        call.answer().await.map(drop).map_err(|error| {
            let about_target = matches!(error.detail.as_slice(), b"to" | b"rename")
                || (error.detail == b"copy" && error.code == super::error::INSIDE_ITSELF);
            if about_target { to.failed(&error) } else { from.failed(&error) }
        })
    }
}

/// Decodes one change: its kind, path, new path and time in microseconds.
fn change(root: &str, record: &[u8]) -> Option<WatchEvent> {
    let mut fields = Fields::new(record);
    let kind = match fields.int("kind").ok()? {
        0 => WatchEventKind::Create,
        1 => WatchEventKind::Modify,
        2 => WatchEventKind::Delete,
        3 => WatchEventKind::Rename,
        4 => WatchEventKind::Overflow,
        _ => return None,
    };
    let shown = |path: &[u8]| match path {
        b"" => root.to_owned(),
        path => format!("{}/{}", root.trim_end_matches('/'), names::to_text(path)),
    };
    let path = shown(fields.bytes("path").ok()?);
    let new = fields.bytes("new path").ok()?;
    let new_path = (kind == WatchEventKind::Rename).then(|| shown(new));
    #[expect(clippy::cast_precision_loss, reason = "seconds as JSON has them")]
    let timestamp = fields.int("time").ok()? as f64 / 1e6;
    Some(WatchEvent { kind, path, timestamp, new_path })
}
