//! The files of a sandbox (`daytona_toolbox_api_client/api/file_system_api.py`, `daytona/_sync/filesystem.py`).

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Multipart, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{
    ByteRange, ByteStream, Error, ErrorKind, FileInfo, FileKind, FindFiles, Sandbox, WriteOptions,
};
use serde_json::{Value, json};

use super::api::error;
use super::sandboxes::Registry;
use super::toolbox::{Shared, no_content, started};

type Fields = Query<HashMap<String, String>>;

/// Finds the cell, and a parameter of the query.
fn found(
    registry: &Arc<Registry>,
    id: &str,
    query: &HashMap<String, String>,
    name: &str,
) -> Result<(Sandbox, String), Response> {
    let (_, cell) = started(registry, id)?;
    match query.get(name).filter(|value| !value.is_empty()) {
        Some(value) => Ok((cell, value.clone())),
        None => Err(error(400, &format!("{name} is required"))),
    }
}

fn refuse(failed: &Error) -> Response {
    let status = match failed.kind() {
        ErrorKind::NotFound => 404,
        ErrorKind::PermissionDenied => 403,
        _ => 400,
    };
    error(status, &failed.to_string())
}

pub(crate) async fn download(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Fields,
) -> Response {
    let (cell, path) = match found(&registry, &id, &query, "path") {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    match cell.files().stream(&path, ByteRange::default()).await {
        Ok(content) => {
            let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
            (kind, Body::from_stream(content)).into_response()
        }
        Err(failed) => refuse(&failed),
    }
}

/// Writes a field of a form as a file. Missing directories are made.
async fn store(
    cell: &Sandbox,
    path: &str,
    field: axum::extract::multipart::Field<'_>,
) -> Result<u64, Response> {
    // A field is read while its form is: bounded by what is waiting.
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, Error>>(4);
    let content: ByteStream = Box::pin(stream::unfold(receiver, |mut receiver| async {
        let item = receiver.recv().await?;
        Some((item, receiver))
    }));
    let files = cell.files();
    let writing = files.write_stream(path, content, WriteOptions::default());
    let reading = async move {
        let mut field = field;
        loop {
            let chunk = match field.chunk().await {
                Ok(Some(chunk)) => Ok(chunk),
                Ok(None) => return,
                Err(broken) => {
                    Err(Error::new(ErrorKind::ConnectionLost, "upload", broken.to_string()))
                }
            };
            if sender.send(chunk).await.is_err() {
                return;
            }
        }
    };
    let (written, ()) = tokio::join!(writing, reading);
    written.map_err(|failed| refuse(&failed))
}

pub(crate) async fn upload(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Fields,
    mut form: Multipart,
) -> Response {
    let (cell, path) = match found(&registry, &id, &query, "path") {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    while let Ok(Some(field)) = form.next_field().await {
        if field.name() == Some("file") {
            return match store(&cell, &path, field).await {
                Ok(_) => StatusCode::OK.into_response(),
                Err(refused) => refused,
            };
        }
    }
    error(400, "file is required")
}

/// Pairs of fields `files[N].path` and `files[N].file`.
pub(crate) async fn bulk_upload(
    State(registry): Shared,
    Path(id): Path<String>,
    mut form: Multipart,
) -> Response {
    let (_, cell) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let (mut path, mut done) = (String::new(), Vec::new());
    while let Ok(Some(field)) = form.next_field().await {
        let name = field.name().unwrap_or_default().to_owned();
        if name.ends_with(".path") {
            path = field.text().await.unwrap_or_default();
        } else if name.ends_with(".file") {
            match store(&cell, &path, field).await {
                Ok(size) => done.push(json!({"path": path, "bytes": size})),
                Err(refused) => return refused,
            }
        }
    }
    Json(json!({"files": done})).into_response()
}

pub(crate) async fn bulk_download(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let (_, cell) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    const BOUNDARY: &str = "DAYTONA-FILE-BOUNDARY";
    let mut parts: Vec<ByteStream> = Vec::new();
    for path in body["paths"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let (name, size, content) = match opened(&cell, path).await {
            Ok((size, content)) => ("file", size, content),
            Err(failed) => {
                let status = if failed.kind() == ErrorKind::NotFound { 404 } else { 400 };
                let told = json!({"message": failed.to_string(), "statusCode": status}).to_string();
                ("error", told.len() as u64, one_piece(told))
            }
        };
        let kind = if name == "file" { "application/octet-stream" } else { "application/json" };
        parts.push(one_piece(format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{path}\"\r\n\
             Content-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
        )));
        parts.push(content);
        parts.push(one_piece("\r\n".to_owned()));
    }
    parts.push(one_piece(format!("--{BOUNDARY}--\r\n")));
    let kind = [(header::CONTENT_TYPE, format!("multipart/form-data; boundary={BOUNDARY}"))];
    (kind, Body::from_stream(stream::iter(parts).flatten())).into_response()
}

/// Opens a file, and returns its size and content.
async fn opened(cell: &Sandbox, path: &str) -> Result<(u64, ByteStream), Error> {
    let files = cell.files();
    let size = files.stat(path).await?.size;
    let content = files.stream(path, ByteRange::default()).await?;
    Ok((size, content.boxed()))
}

fn one_piece(text: String) -> ByteStream {
    stream::iter([Ok(Bytes::from(text))]).boxed()
}

fn object(info: &FileInfo) -> Value {
    let bits = u32::from_str_radix(&info.permissions, 8).unwrap_or(0);
    let letters = "rwxrwxrwx".chars().enumerate();
    let letters: String =
        letters.map(|(at, letter)| if bits >> (8 - at) & 1 == 1 { letter } else { '-' }).collect();
    let kind = match info.kind {
        FileKind::Directory => 'd',
        FileKind::Symlink => 'L',
        _ => '-',
    };
    let time = chrono::DateTime::from_timestamp(info.modified as i64, 0).unwrap_or_default();
    json!({
        "name": info.name, "path": info.path, "size": info.size, "mode": format!("{kind}{letters}"),
        "modTime": time.to_string(), "modifiedAt": time.to_rfc3339(), "isDir": info.kind == FileKind::Directory,
        "owner": "daytona", "group": "daytona", "permissions": format!("0{}", info.permissions),
    })
}

pub(crate) async fn list(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Fields,
) -> Response {
    let (_, cell) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let path = query.get("path").map_or(".", String::as_str);
    match cell.files().list(path).await {
        Ok(all) => Json(all.iter().map(object).collect::<Vec<_>>()).into_response(),
        Err(failed) => refuse(&failed),
    }
}

pub(crate) async fn info(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Fields,
) -> Response {
    let (cell, path) = match found(&registry, &id, &query, "path") {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    match cell.files().stat(&path).await {
        Ok(info) => Json(object(&info)).into_response(),
        Err(failed) => refuse(&failed),
    }
}

pub(crate) async fn remove(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Fields,
) -> Response {
    let (cell, path) = match found(&registry, &id, &query, "path") {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let is_recursive = query.get("recursive").is_some_and(|value| value == "true");
    match cell.files().remove(&path, is_recursive).await {
        Ok(()) => no_content(),
        Err(failed) => refuse(&failed),
    }
}

pub(crate) async fn folder(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Fields,
) -> Response {
    let (cell, path) = match found(&registry, &id, &query, "path") {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let made = cell.files().mkdir(&path).await;
    let mode = query.get("mode").and_then(|mode| u32::from_str_radix(mode, 8).ok());
    let made = match (made, mode) {
        (Ok(()), Some(mode)) => cell.files().chmod(&path, mode).await,
        (made, _) => made,
    };
    match made {
        Ok(()) => StatusCode::CREATED.into_response(),
        Err(failed) => refuse(&failed),
    }
}

pub(crate) async fn rename(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Fields,
) -> Response {
    let (cell, from) = match found(&registry, &id, &query, "source") {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let to = query.get("destination").cloned().unwrap_or_default();
    match cell.files().rename(&from, &to).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(failed) => refuse(&failed),
    }
}

pub(crate) async fn permissions(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Fields,
) -> Response {
    let (cell, path) = match found(&registry, &id, &query, "path") {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let mode = query.get("mode").and_then(|mode| u32::from_str_radix(mode, 8).ok());
    match cell.files().chmod(&path, mode.unwrap_or(0o644)).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(failed) => refuse(&failed),
    }
}

/// Files by name.
pub(crate) async fn search(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Fields,
) -> Response {
    let (cell, path) = match found(&registry, &id, &query, "path") {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let pattern = query.get("pattern").cloned().unwrap_or_default();
    match cell.files().find(&path, &pattern).await {
        Ok(files) => Json(json!({"files": files})).into_response(),
        Err(failed) => refuse(&failed),
    }
}

/// Files by content.
pub(crate) async fn find(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Fields,
) -> Response {
    let (cell, path) = match found(&registry, &id, &query, "path") {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let mut wanted = FindFiles::below(path);
    wanted.contains = query.get("pattern").cloned();
    match cell.files().search(wanted).await {
        Ok(found) => {
            let lines = found.into_iter().filter_map(|found| {
                let (line, content) = found.line?;
                Some(json!({"file": found.path, "line": line, "content": content}))
            });
            Json(lines.collect::<Vec<_>>()).into_response()
        }
        Err(failed) => refuse(&failed),
    }
}
