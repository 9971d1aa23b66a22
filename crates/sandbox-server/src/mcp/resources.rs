//! Files of sandboxes as resources.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::future::ready;
use futures_util::{Stream, StreamExt as _};
use rmcp::ErrorData;
use rmcp::model::{
    ListResourceTemplatesResult, ListResourcesResult, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};
use sandbox_core::{Error, ErrorKind, FileKind, WatchEventKind};
use serde_json::json;

use super::toolset::Toolset;

/// Beginning of the addresses.
const SCHEME: &str = "sandbox://";

/// Files that a listing has at most.
const MAX_LISTED: usize = 500;

/// Bytes of a file that is read as a resource.
const MAX_READ: u64 = 16 << 20;

/// Returns the address of a file.
pub(super) fn uri(sandbox: &str, path: &str) -> String {
    let mut uri = format!("{SCHEME}{sandbox}");
    if !path.starts_with('/') {
        uri.push('/');
    }
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(byte)),
            // Writing to a string does not fail.
            byte => drop(write!(uri, "%{byte:02X}")),
        }
    }
    uri
}

/// Returns the sandbox and the path of an address.
pub(super) fn parse(uri: &str) -> Option<(&str, String)> {
    let (sandbox, path) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    let mut bytes = vec![b'/'];
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    let path = String::from_utf8(bytes).ok()?;
    (!sandbox.is_empty() && path.len() > 1).then_some((sandbox, path))
}

/// Lists the files in the working directory of the session's sandbox, if there is one.
pub(super) async fn list(tools: &Toolset) -> Result<ListResourcesResult, ErrorData> {
    let Some(entry) = tools.own() else { return Ok(ListResourcesResult::default()) };
    let listed = entry.sandbox.files().list(".").await;
    let listed = listed.map_err(|error| failed(&error, &uri(&entry.id, "/")))?;
    let files = listed.into_iter().filter(|info| info.kind == FileKind::File).take(MAX_LISTED);
    let resources = files.map(|info| {
        let resource =
            Resource::new(uri(&entry.id, &info.path), info.name.clone()).with_size(info.size);
        match mime_type(&info.name) {
            Some(mime_type) => resource.with_mime_type(mime_type),
            None => resource,
        }
    });
    Ok(ListResourcesResult::with_all_items(resources.collect()))
}

/// Returns the template of the addresses.
pub(super) fn templates() -> ListResourceTemplatesResult {
    let template = ResourceTemplate::new(format!("{SCHEME}{{sandbox}}/{{+path}}"), "sandbox-file")
        .with_title("A file of a sandbox")
        .with_description("Content of a file, by the id of its sandbox and its absolute path");
    ListResourceTemplatesResult::with_all_items(vec![template])
}

/// Reads a file.
pub(super) async fn read(tools: &Toolset, address: &str) -> Result<ReadResourceResult, ErrorData> {
    let not_found = || not_found(format!("there is no resource {address}"), address);
    let (sandbox, path) = parse(address).ok_or_else(not_found)?;
    let entry = tools.find(sandbox).map_err(|_| not_found())?;
    let files = entry.sandbox.files();
    let info = files.stat(&path).await.map_err(|error| failed(&error, address))?;
    if info.size > MAX_READ {
        let message = format!("{path} has {} bytes, more than {MAX_READ}", info.size);
        return Err(ErrorData::invalid_params(message, None));
    }
    let content = files.read(&path).await.map_err(|error| failed(&error, address))?;
    let mime_type = mime_type(&path);
    let contents = match String::from_utf8(content.to_vec()) {
        Ok(text) => {
            ResourceContents::text(text, address).with_mime_type(mime_type.unwrap_or("text/plain"))
        }
        Err(_) => ResourceContents::blob(STANDARD.encode(content), address)
            .with_mime_type(mime_type.unwrap_or("application/octet-stream")),
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

/// Watches a file: an item for each change.
pub(super) async fn watch(
    tools: &Toolset,
    address: &str,
) -> Result<impl Stream<Item = ()> + Send + 'static, ErrorData> {
    let not_found = || not_found(format!("there is no resource {address}"), address);
    let (sandbox, path) = parse(address).ok_or_else(not_found)?;
    let entry = tools.find(sandbox).map_err(|_| not_found())?;
    let directory = match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((directory, _)) => directory,
    };
    let changes = entry.sandbox.files().watch(directory, false).await;
    let changes = changes.map_err(|error| failed(&error, address))?;
    Ok(changes.filter_map(move |change| {
        let is_about = change.is_ok_and(|change| {
            change.path == path
                || change.new_path.as_deref() == Some(&path)
                || change.kind == WatchEventKind::Overflow
        });
        ready(is_about.then_some(()))
    }))
}

/// Makes the error of a missing resource. Its code depends on the revision, which the library knows.
fn not_found(message: String, address: &str) -> ErrorData {
    ErrorData::resource_not_found(message, Some(json!({ "uri": address })))
}

fn failed(error: &Error, address: &str) -> ErrorData {
    match error.kind() {
        ErrorKind::NotFound => not_found(error.to_string(), address),
        ErrorKind::InvalidArgument | ErrorKind::PermissionDenied => {
            ErrorData::invalid_params(error.to_string(), None)
        }
        _ => ErrorData::internal_error(error.to_string(), None),
    }
}

/// Returns the type of a file by the extension of its name.
fn mime_type(name: &str) -> Option<&'static str> {
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension.to_ascii_lowercase().as_str() {
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "py" => "text/x-python",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "json" => "application/json",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for path in ["/workspace/a b%.txt", "/ü/x?y#z", "/a/../b"] {
            let uri = uri("0a1b", path);
            assert_eq!(parse(&uri), Some(("0a1b", path.to_owned())), "{uri}");
        }
        assert_eq!(uri("x", "/a b"), "sandbox://x/a%20b");
        for bad in [
            "file:///x",
            "sandbox://",
            "sandbox://x",
            "sandbox:///x",
            "sandbox://x/%",
            "sandbox://x/%zz",
            "sandbox://x/%ff",
            "sandbox://x/",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
