//! The calls of the service `filesystem.Filesystem`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::http::HeaderMap;
use chrono::{DateTime, SecondsFormat};
use sandbox_core::{CallContext, ErrorKind, FileInfo, FileKind, FileOps};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::app::Sandbox;
use super::envelope::Unary;
use super::error::{Code, ConnectError};
use super::record::Record;
use super::user::User;

/// Most entries of one listing of several levels.
const MAX_ENTRIES: usize = 100_000;

pub(super) type Answer = Result<Json<Value>, ConnectError>;

/// The user that the kernel shows for files of no user of the sandbox.
const NOBODY: u32 = 65_534;

/// One entry as clients see it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntryInfo {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    size: String,
    mode: u32,
    permissions: String,
    owner: String,
    group: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    modified_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

impl EntryInfo {
    pub(super) fn new(user: &User, info: FileInfo) -> Self {
        let mode = u32::from_str_radix(&info.permissions, 8).unwrap_or_default() & 0o777;
        let kind = match info.kind {
            FileKind::File => "FILE_TYPE_FILE",
            FileKind::Directory => "FILE_TYPE_DIRECTORY",
            FileKind::Symlink => "FILE_TYPE_SYMLINK",
            _ => "FILE_TYPE_UNSPECIFIED",
        };
        #[expect(clippy::cast_possible_truncation, reason = "seconds of a time of last change")]
        let modified = DateTime::from_timestamp_nanos((info.modified * 1e9) as i64);
        let name_of = |id: Option<u32>| match id {
            Some(0) => "root".to_owned(),
            Some(NOBODY) => "nobody".to_owned(),
            Some(1000) | None => user.name.clone(),
            Some(other) => other.to_string(),
        };
        Self {
            permissions: permissions(info.kind, mode),
            owner: name_of(info.uid),
            group: name_of(info.gid),
            name: info.name,
            kind,
            path: info.path,
            size: info.size.to_string(),
            mode,
            modified_time: Some(modified.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
            symlink_target: info.target,
            metadata: info.attributes,
        }
    }
}

/// Returns permissions as Go prints them, such as `drwxr-xr-x`.
fn permissions(kind: FileKind, mode: u32) -> String {
    let first = match kind {
        FileKind::Directory => 'd',
        FileKind::Symlink => 'L',
        _ => '-',
    };
    let bits = "rwxrwxrwx".chars().enumerate();
    let bits = bits.map(|(at, letter)| if mode & (0o400 >> at) != 0 { letter } else { '-' });
    std::iter::once(first).chain(bits).collect()
}

#[derive(Deserialize)]
pub(super) struct PathRequest {
    #[serde(default)]
    path: String,
}

#[derive(Deserialize)]
pub(super) struct MoveRequest {
    #[serde(default)]
    source: String,
    #[serde(default)]
    destination: String,
}

#[derive(Deserialize)]
pub(super) struct ListRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    depth: u32,
}

/// Returns the error of a verb about a path in the words of envd.
pub(super) fn about(path: &str, error: sandbox_core::Error) -> ConnectError {
    if error.kind() == ErrorKind::NotFound {
        let message = format!("file not found: lstat {path}: no such file or directory");
        return ConnectError::new(Code::NotFound, message);
    }
    error.into()
}

/// Returns an entry; a link is described with its target.
pub(super) async fn stat(
    Sandbox(record): Sandbox,
    headers: HeaderMap,
    Unary(request): Unary<PathRequest>,
) -> Answer {
    record.user.check_headers(&headers)?;
    let path = record.user.absolute(&request.path);
    Ok(entry_answer(&entry(&record, &path).await?))
}

/// Reads one entry.
pub(super) async fn entry(record: &Record, path: &str) -> Result<EntryInfo, ConnectError> {
    let files = record.instance.files()?;
    let info = files.stat_file(&CallContext::new(), path).await;
    info.map(|info| EntryInfo::new(&record.user, info)).map_err(|error| about(path, error))
}

fn entry_answer(entry: &EntryInfo) -> Json<Value> {
    Json(json!({ "entry": entry }))
}

/// Makes a directory and the missing ones above it.
pub(super) async fn make_dir(
    Sandbox(record): Sandbox,
    headers: HeaderMap,
    Unary(request): Unary<PathRequest>,
) -> Answer {
    record.user.check_headers(&headers)?;
    let path = record.user.absolute(&request.path);
    let (call, files) = (CallContext::new(), record.instance.files()?);
    match files.stat_file(&call, &path).await {
        Ok(info) if info.is_directory() => {
            let message = format!("directory already exists: {path}");
            return Err(ConnectError::new(Code::AlreadyExists, message));
        }
        Ok(_) => {
            let message = format!("path already exists but it is not a directory: {path}");
            return Err(ConnectError::new(Code::InvalidArgument, message));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    files.create_directory(&call, &path, true).await?;
    Ok(entry_answer(&entry(&record, &path).await?))
}

/// Renames, and makes the directories above the new path.
pub(super) async fn move_entry(
    Sandbox(record): Sandbox,
    headers: HeaderMap,
    Unary(request): Unary<MoveRequest>,
) -> Answer {
    record.user.check_headers(&headers)?;
    let from = record.user.absolute(&request.source);
    let to = record.user.absolute(&request.destination);
    let (call, files) = (CallContext::new(), record.instance.files()?);
    files.stat_file(&call, &from).await.map_err(|error| about(&from, error))?;
    if let Some((parent, _)) = to.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
        files.create_directory(&call, parent, true).await?;
    }
    files.rename_file(&call, &from, &to).await.map_err(|error| about(&from, error))?;
    Ok(entry_answer(&entry(&record, &to).await?))
}

/// Removes a file or a whole tree. What is not there is no error.
pub(super) async fn remove(
    Sandbox(record): Sandbox,
    headers: HeaderMap,
    Unary(request): Unary<PathRequest>,
) -> Answer {
    record.user.check_headers(&headers)?;
    let path = record.user.absolute(&request.path);
    match record.instance.files()?.remove_file(&CallContext::new(), &path, true).await {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(Json(json!({}))),
    }
}

/// Lists a directory, down to some depth. Links are not followed below it.
pub(super) async fn list_dir(
    Sandbox(record): Sandbox,
    headers: HeaderMap,
    Unary(request): Unary<ListRequest>,
) -> Answer {
    record.user.check_headers(&headers)?;
    let path = record.user.absolute(&request.path);
    let files = record.instance.files()?;
    let found = walk(files, &path, request.depth.max(1)).await?;
    let entries = found.into_iter().map(|info| EntryInfo::new(&record.user, info));
    Ok(Json(json!({ "entries": entries.collect::<Vec<_>>() })))
}

async fn walk(files: &dyn FileOps, path: &str, depth: u32) -> Result<Vec<FileInfo>, ConnectError> {
    let call = CallContext::new();
    let first = files.list_files(&call, path).await.map_err(|error| {
        let is_no_directory = error.context().iter().any(|(_, value)| value == "not_a_directory");
        if is_no_directory {
            let message = format!("path is not a directory: {path}");
            return ConnectError::new(Code::InvalidArgument, message);
        }
        about(path, error)
    })?;
    // In the order of a walk: each directory is followed by what is below it.
    let mut pending: Vec<(u32, FileInfo)> = first.into_iter().rev().map(|info| (1, info)).collect();
    let mut found = Vec::new();
    while let Some((level, info)) = pending.pop() {
        if found.len() == MAX_ENTRIES {
            let message = format!("{path} has more than {MAX_ENTRIES} entries");
            return Err(ConnectError::new(Code::ResourceExhausted, message));
        }
        if info.is_directory() && level < depth {
            match files.list_files(&call, &info.path).await {
                Ok(below) => pending.extend(below.into_iter().rev().map(|info| (level + 1, info))),
                // It is gone, or code in the sandbox has closed it.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::PermissionDenied
                    ) => {}
                Err(error) => return Err(error.into()),
            }
        }
        found.push(info);
    }
    Ok(found)
}

/// Describes what is at a path of an event, if it is still there.
pub(super) async fn entry_of_event(record: &Arc<Record>, path: &str) -> Option<EntryInfo> {
    entry(record, path).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_described_as_envd_does() {
        let root = crate::e2b::user::Root::Served;
        let user = User { name: "user".into(), home: "/home/user".into(), root };
        let info = FileInfo {
            name: "a.txt".into(),
            path: "/home/user/a.txt".into(),
            size: 5,
            modified: 1_700_000_000.5,
            permissions: "640".into(),
            uid: Some(1000),
            gid: Some(NOBODY),
            ..FileInfo::default()
        };
        let shown = serde_json::to_value(EntryInfo::new(&user, info)).unwrap();
        let expected = json!({
            "name": "a.txt", "type": "FILE_TYPE_FILE", "path": "/home/user/a.txt", "size": "5", "mode": 0o640,
            "permissions": "-rw-r-----", "owner": "user", "group": "nobody",
            "modifiedTime": "2023-11-14T22:13:20.500Z"
        });
        assert_eq!(shown, expected);
        assert_eq!(permissions(FileKind::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(permissions(FileKind::Symlink, 0o777), "Lrwxrwxrwx");
    }
}
