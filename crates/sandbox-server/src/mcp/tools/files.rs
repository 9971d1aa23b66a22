//! `read_file`, `write_file`, `edit_file`, `list_files` and `find_files`

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use futures_util::StreamExt as _;
use sandbox_core::{
    ByteRange, Error, ErrorKind, FileKind, FindFiles, Result, Sandbox, WriteOptions,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::cut::prefix;
use super::super::reply::{ReplyContent, ToolReply};
use super::super::toolset::Call;

/// Entries that one listing has at most.
const MAX_ENTRIES: usize = 500;

/// Levels that one listing has at most.
const MAX_DEPTH: u32 = 10;

/// Results that one search has at most.
const MAX_FOUND: usize = 200;

/// Bytes of a file that is edited.
const MAX_EDITED: u64 = 16 << 20;

/// Form of the content of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Text,
    Base64,
}

/// Arguments of `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ReadFile {
    /// Path in the sandbox; a relative one is below its working directory.
    path: String,
    /// First line, from 1. Default: 1.
    line: Option<u64>,
    /// Maximum number of lines. Default: as many as an answer has room for.
    lines: Option<u64>,
    /// Form of the content: text, or base64 for other files. Images are shown as images either way. Default: text.
    encoding: Option<Encoding>,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Answer of `read_file`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in super::super) struct FileAnswer {
    /// Path that was read.
    path: String,
    /// The content, or the part of it that was asked for and has room.
    content: String,
    /// Form of the content: text, base64 or image.
    encoding: String,
    /// Size of the whole file in bytes.
    size: u64,
    /// Number of the first line of the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_line: Option<u64>,
    /// Number of the last line of the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_line: Option<u64>,
    /// True when the file goes on behind the content.
    more: bool,
}

/// Reads a file.
pub(in super::super) async fn read_file(call: &Call<'_>, arguments: ReadFile) -> Result<ToolReply> {
    let entry = call.sandbox(arguments.sandbox.as_deref()).await?;
    let (sandbox, path) = (&entry.sandbox, arguments.path.as_str());
    let head = sandbox.files().read_range(path, 0, 8192).await?;
    let size = size_of(sandbox, path, head.len() as u64).await?;
    let mut answer = FileAnswer { path: path.to_owned(), size, ..FileAnswer::default() };
    if let Some(mime_type) = image_type(&head) {
        return read_image(call, sandbox, mime_type, answer).await;
    }
    if arguments.encoding == Some(Encoding::Base64) {
        let most = call.options().max_text as u64 / 4 * 3;
        let content = sandbox.files().read_range(path, 0, most).await?;
        answer.more = size > content.len() as u64;
        (answer.content, answer.encoding) = (STANDARD.encode(content), "base64".to_owned());
        return Ok(ToolReply::new(answer.content.clone(), &answer));
    }
    if is_binary(&head) {
        let message = format!("{path} is not text; it has {size} bytes");
        return Err(Error::new(ErrorKind::InvalidArgument, "read_file", message)
            .with_hint("give `encoding`: \"base64\", or read it with run_code"));
    }
    read_lines(call, sandbox, &arguments, answer).await
}

async fn size_of(sandbox: &Sandbox, path: &str, read: u64) -> Result<u64> {
    let info = sandbox.files().stat(path).await?;
    // A link has a size of its own.
    Ok(if info.kind == FileKind::File { info.size } else { read })
}

async fn read_image(
    call: &Call<'_>,
    sandbox: &Sandbox,
    mime_type: &str,
    mut answer: FileAnswer,
) -> Result<ToolReply> {
    let most = call.options().max_image;
    if answer.size > most.as_u64() {
        let message =
            format!("{} is an image of {} bytes, more than {most}", answer.path, answer.size);
        return Err(Error::new(ErrorKind::ResourceExhausted, "read_file", message)
            .with_hint("make it smaller in the sandbox first, and read the result"));
    }
    let data = STANDARD.encode(sandbox.files().read(&answer.path).await?);
    answer.encoding = "image".to_owned();
    let text = format!("{}: {mime_type}, {} bytes", answer.path, answer.size);
    let mut reply = ToolReply::new(text, &answer);
    reply.content.push(ReplyContent::Image { data, mime_type: mime_type.to_owned() });
    Ok(reply)
}

async fn read_lines(
    call: &Call<'_>,
    sandbox: &Sandbox,
    arguments: &ReadFile,
    mut answer: FileAnswer,
) -> Result<ToolReply> {
    let first = arguments.line.unwrap_or(1);
    if first == 0 {
        return Err(Error::invalid("line", "must be at least 1"));
    }
    if arguments.lines == Some(0) {
        return Err(Error::invalid("lines", "must be at least 1"));
    }
    let room = call.options().max_text;
    let wanted = arguments.lines.unwrap_or(u64::MAX);
    let mut stream = sandbox.files().stream(&answer.path, ByteRange::default()).await?;
    let (mut line, mut content, mut is_full, mut ended) = (1, BytesMut::new(), false, true);
    let mut at_line_start = true;
    'file: while let Some(chunk) = stream.next().await.transpose()? {
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            if line >= first.saturating_add(wanted) || content.len() > room {
                (is_full, ended) = (true, false);
                break 'file;
            }
            if line >= first {
                content.extend_from_slice(piece);
            }
            at_line_start = piece.ends_with(b"\n");
            line += u64::from(at_line_start);
        }
    }
    let lines = if at_line_start { line.saturating_sub(1) } else { line };
    if ended && first > lines.max(1) {
        let message = format!("{} has {lines} lines, and line {first} was asked for", answer.path);
        return Err(Error::new(ErrorKind::InvalidArgument, "read_file", message));
    }
    let text = String::from_utf8_lossy(&content);
    let shown = prefix(&text, room);
    // A cut ends with a whole line, unless it is longer than all room.
    let shown = match shown.len() < text.len() {
        true => shown.rfind('\n').map_or(shown, |newline| &shown[..=newline]),
        false => shown,
    };
    answer.more = is_full || shown.len() < text.len();
    let count =
        shown.matches('\n').count() as u64 + u64::from(!shown.ends_with('\n') && !shown.is_empty());
    answer.first_line = Some(first);
    answer.last_line = Some((first + count).saturating_sub(1));
    (answer.content, answer.encoding) = (shown.to_owned(), "text".to_owned());
    let mut text = answer.content.clone();
    if answer.more {
        let last = answer.last_line.unwrap_or(first);
        let newline = if text.ends_with('\n') { "" } else { "\n" };
        text.push_str(&format!(
            "{newline}[lines {first} to {last} of a file of {} bytes; give `line`: {} for what follows]",
            answer.size,
            last + 1
        ));
    }
    if text.is_empty() {
        text.push_str("[empty]");
    }
    Ok(ToolReply::new(text, &answer))
}

/// Returns the type of an image that models take, by its first bytes.
fn image_type(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xFF, 0xD8, 0xFF, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

fn is_binary(head: &[u8]) -> bool {
    match std::str::from_utf8(head) {
        Ok(text) => text.contains('\0'),
        // A character may be cut at the end.
        Err(error) => error.error_len().is_some() || head.contains(&0),
    }
}

/// Arguments of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct WriteFile {
    /// Path in the sandbox; a relative one is below its working directory. Missing directories are made.
    pub(in super::super) path: String,
    /// The whole content.
    content: String,
    /// Form of the content: text or base64. Default: text.
    encoding: Option<Encoding>,
    /// Adds to the end of the file instead of replacing it. Default: false.
    append: Option<bool>,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Answer of `write_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct WriteAnswer {
    /// Path that was written.
    path: String,
    /// Bytes that were written.
    bytes: u64,
}

/// Writes a file.
pub(in super::super) async fn write_file(
    call: &Call<'_>,
    arguments: WriteFile,
) -> Result<ToolReply> {
    let content = match arguments.encoding.unwrap_or_default() {
        Encoding::Text => arguments.content.into_bytes(),
        Encoding::Base64 => STANDARD
            .decode(arguments.content.trim())
            .map_err(|error| Error::invalid("content", format!("is not base64: {error}")))?,
    };
    let entry = call.sandbox(arguments.sandbox.as_deref()).await?;
    let append = arguments.append.unwrap_or_default();
    let (bytes, options) =
        (content.len() as u64, WriteOptions { append, ..WriteOptions::default() });
    entry.sandbox.files().write_with(&arguments.path, content, options).await?;
    let done = if append { "added to" } else { "written to" };
    let text = format!("{bytes} bytes {done} {}", arguments.path);
    Ok(ToolReply::new(text, &WriteAnswer { path: arguments.path, bytes }))
}

/// Arguments of `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct EditFile {
    /// Path in the sandbox.
    path: String,
    /// Text that is in the file, exactly as it is there, with enough around it to be there only once.
    old_text: String,
    /// Text to put in its place.
    new_text: String,
    /// Replaces every place instead of the only one. Default: false.
    replace_all: Option<bool>,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Answer of `edit_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct EditAnswer {
    /// Path of the file.
    path: String,
    /// Number of places that were replaced.
    replaced: usize,
    /// Line of the first place.
    line: usize,
}

/// Replaces text in a file.
pub(in super::super) async fn edit_file(call: &Call<'_>, arguments: EditFile) -> Result<ToolReply> {
    let EditFile { path, old_text, new_text, replace_all, sandbox } = arguments;
    if old_text.is_empty() {
        return Err(Error::invalid(
            "old_text",
            "must not be empty; write_file writes a whole file",
        ));
    }
    let entry = call.sandbox(sandbox.as_deref()).await?;
    let files = entry.sandbox.files();
    let info = files.stat(&path).await?;
    if info.size > MAX_EDITED {
        let message = format!("{path} has {} bytes, more than {MAX_EDITED}", info.size);
        return Err(Error::new(ErrorKind::ResourceExhausted, "edit_file", message)
            .with_hint("change it with run_code or run_command"));
    }
    let text = files.read_text(&path).await?;
    let found = text.matches(&old_text).count();
    let problem = |message: String, hint: &str| {
        Error::new(ErrorKind::InvalidArgument, "edit_file", message).with_hint(hint)
    };
    let Some(at) = text.find(&old_text) else {
        return Err(missing(&path, &text, &old_text));
    };
    if found > 1 && !replace_all.unwrap_or_default() {
        let message = format!("`old_text` is {found} times in {path}, and has to be there once");
        let hint = "give more of the text around it, or `replace_all`: true";
        return Err(problem(message, hint));
    }
    if old_text == new_text {
        return Err(problem(
            "`new_text` is the same as `old_text`".to_owned(),
            "nothing was changed",
        ));
    }
    let changed = text.replace(&old_text, &new_text);
    let mode = u32::from_str_radix(&info.permissions, 8).ok();
    let options = WriteOptions { mode, ..WriteOptions::default() };
    files.write_with(&path, changed, options).await?;
    let line = text[..at].matches('\n').count() + 1;
    let places = if found == 1 { "1 place".to_owned() } else { format!("{found} places") };
    let text = format!("{places} replaced in {path}, the first in line {line}");
    Ok(ToolReply::new(text, &EditAnswer { path, replaced: found, line }))
}

/// Says why a text is not in a file, where that can be seen.
fn missing(path: &str, text: &str, old_text: &str) -> Error {
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let hint = if squeezed(text).contains(&squeezed(old_text)) {
        "a text with other spaces, tabs or line ends is there: copy it exactly from read_file"
    } else {
        "read the file with read_file, and copy the text from there"
    };
    let message = format!("`old_text` is not in {path}");
    Error::new(ErrorKind::NotFound, "edit_file", message).with_hint(hint)
}

/// Arguments of `list_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ListFiles {
    /// Directory in the sandbox. Default: its working directory.
    path: Option<String>,
    /// Levels of directories to list, at most 10. Default: 1, the directory alone.
    depth: Option<u32>,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Answer of `list_files`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in super::super) struct ListedAnswer {
    /// The entries.
    entries: Vec<EntryAnswer>,
    /// True when there are more than an answer has.
    more: bool,
}

/// An entry of a directory.
#[derive(Debug, Serialize, JsonSchema)]
struct EntryAnswer {
    /// Absolute path.
    path: String,
    /// Type: file, directory, link or other.
    kind: String,
    /// Size in bytes.
    size: u64,
    /// Time of the last change, in seconds since 1970.
    modified: f64,
}

/// Lists a directory.
pub(in super::super) async fn list_files(
    call: &Call<'_>,
    arguments: ListFiles,
) -> Result<ToolReply> {
    let depth = arguments.depth.unwrap_or(1);
    if !(1..=MAX_DEPTH).contains(&depth) {
        return Err(Error::invalid("depth", format!("must be from 1 to {MAX_DEPTH}, got {depth}")));
    }
    let entry = call.sandbox(arguments.sandbox.as_deref()).await?;
    let mut answer = ListedAnswer::default();
    let mut level = vec![arguments.path.unwrap_or_else(|| ".".to_owned())];
    let mut lines = Vec::new();
    for _ in 0..depth {
        let mut next = Vec::new();
        for directory in std::mem::take(&mut level) {
            for info in entry.sandbox.files().list(&directory).await? {
                if answer.entries.len() == MAX_ENTRIES {
                    answer.more = true;
                    break;
                }
                let (kind, mark) = match info.kind {
                    FileKind::File => ("file", ""),
                    FileKind::Directory => ("directory", "/"),
                    FileKind::Symlink => ("link", "@"),
                    _ => ("other", "?"),
                };
                if info.is_directory() {
                    next.push(info.path.clone());
                }
                let size =
                    if info.is_file() { format!("  {} bytes", info.size) } else { String::new() };
                lines.push(format!("{}{mark}{size}", info.path));
                let (path, kind) = (info.path, kind.to_owned());
                answer.entries.push(EntryAnswer {
                    path,
                    kind,
                    size: info.size,
                    modified: info.modified,
                });
            }
        }
        level = next;
    }
    if answer.more {
        lines.push(format!(
            "[more than {MAX_ENTRIES} entries: list a directory below, or use find_files]"
        ));
    }
    if lines.is_empty() {
        lines.push("[empty]".to_owned());
    }
    Ok(ToolReply::new(lines.join("\n"), &answer))
}

/// Arguments of `find_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct FindFilesArguments {
    /// Pattern of the name, such as "*.py", or of the path below the directory, such as "src/**/*.py".
    name: Option<String>,
    /// Text that a line of the file contains, exactly as it is; no regular expression.
    contains: Option<String>,
    /// Directory to search. Default: the working directory of the sandbox.
    path: Option<String>,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Answer of `find_files`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in super::super) struct FoundAnswer {
    /// The files, or the lines.
    found: Vec<FoundEntry>,
    /// True when there are more than an answer has.
    more: bool,
}

/// A file that was found, or a line in it.
#[derive(Debug, Serialize, JsonSchema)]
struct FoundEntry {
    /// Absolute path.
    path: String,
    /// Number of the line.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    /// The line.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Finds files by name, by content, or by both.
pub(in super::super) async fn find_files(
    call: &Call<'_>,
    arguments: FindFilesArguments,
) -> Result<ToolReply> {
    if arguments.name.is_none() && arguments.contains.is_none() {
        return Err(Error::invalid("name", "or `contains` must be given"));
    }
    let entry = call.sandbox(arguments.sandbox.as_deref()).await?;
    let mut query = FindFiles::below(arguments.path.as_deref().unwrap_or("."));
    (query.name, query.contains) = (arguments.name, arguments.contains);
    query.limit = Some(MAX_FOUND + 1);
    let found = entry.sandbox.files().search(query).await?;
    let mut answer = FoundAnswer { more: found.len() > MAX_FOUND, ..FoundAnswer::default() };
    let mut lines = Vec::new();
    let mut room = call.options().max_text;
    for file in found.into_iter().take(MAX_FOUND) {
        let shown = match &file.line {
            Some((number, text)) => format!("{}:{number}: {}", file.path, text.trim_end()),
            None => file.path.clone(),
        };
        if shown.len() > room {
            answer.more = true;
            break;
        }
        room -= shown.len();
        lines.push(shown);
        let (line, text) = file.line.unzip();
        answer.found.push(FoundEntry { path: file.path, line, text });
    }
    if answer.more {
        lines.push(
            "[more were found: search a directory below, or with a narrower pattern]".to_owned(),
        );
    }
    if lines.is_empty() {
        lines.push("[nothing found]".to_owned());
    }
    Ok(ToolReply::new(lines.join("\n"), &answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_images_and_the_rest_are_told_apart() {
        assert_eq!(image_type(b"\x89PNG\r\n"), Some("image/png"));
        assert_eq!(image_type(b"RIFF1234WEBPVP8 "), Some("image/webp"));
        assert_eq!(image_type(b"text"), None);
        assert!(!is_binary("größe".as_bytes()) && !is_binary(&"ü".as_bytes()[..1]));
        assert!(is_binary(b"a\0b") && is_binary(&[b'a', 0xFF, b'b']));
    }

    #[test]
    fn other_spaces_are_pointed_out() {
        let error = missing("x", "a =  1\n", "a = 1");
        assert!(error.hint().unwrap().contains("other spaces"), "{error:?}");
        let error = missing("x", "b", "a = 1");
        assert!(error.hint().unwrap().starts_with("read the file"), "{error:?}");
    }
}
