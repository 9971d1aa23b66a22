//! Files of a server, through its contents API.

use reqwest::{Method, Url};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::client::ServerClient;
use super::error::ServerError;
use crate::content::text_enum::text_enum;
use crate::json::JsonMap;

text_enum! {
    /// What is at a path.
    #[derive(Default)]
    pub enum ContentKind {
        /// A file.
        #[default]
        File = "file",
        /// A folder.
        Directory = "directory",
        /// A notebook document.
        Notebook = "notebook",
    }
}

text_enum! {
    /// How content is written in JSON.
    pub enum ContentFormat {
        /// As a string.
        Text = "text",
        /// As a string in base64.
        Base64 = "base64",
        /// As JSON: notebooks and lists of folders.
        Json = "json",
    }
}

/// A file or folder of a server.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
#[non_exhaustive]
pub struct Contents {
    /// Its name.
    pub name: String,
    /// Its path below the server's root.
    pub path: String,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: ContentKind,
    /// Whether it may be written.
    pub writable: bool,
    /// When it was changed last, ISO 8601.
    pub last_modified: Option<String>,
    /// Its size in bytes.
    pub size: Option<u64>,
    /// Its MIME type.
    pub mimetype: Option<String>,
    /// How the content is written. `None` when it was not asked for.
    pub format: Option<ContentFormat>,
    /// The content, in that format. For a folder, a list of what is in it.
    pub content: Value,
    /// Anything else the server says.
    #[serde(flatten)]
    pub extra: JsonMap,
}

/// What to write to a path.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SaveContents {
    /// What it shall be.
    #[serde(rename = "type")]
    pub kind: ContentKind,
    /// How the content is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<ContentFormat>,
    /// The content, in that format.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub content: Value,
    /// Which part of a long file this is, from 1; -1 for the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<i64>,
}

impl SaveContents {
    /// A text file.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::file(ContentFormat::Text, text.into())
    }

    /// Any file, its bytes in base64.
    #[must_use]
    pub fn base64(bytes: impl Into<String>) -> Self {
        Self::file(ContentFormat::Base64, bytes.into())
    }

    /// A folder.
    #[must_use]
    pub fn directory() -> Self {
        Self { kind: ContentKind::Directory, format: None, content: Value::Null, chunk: None }
    }

    fn file(format: ContentFormat, content: String) -> Self {
        Self { kind: ContentKind::File, format: Some(format), content: content.into(), chunk: None }
    }
}

impl ServerClient {
    /// What is at a path, with its content if asked for. In which format it comes: text for text, unless another is named.
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others. A file that is no text cannot be had as text.
    ///
    /// # Cancellation
    /// Changes nothing, and can be called again.
    pub async fn contents(
        &self,
        path: &str,
        with_content: bool,
        format: Option<ContentFormat>,
    ) -> Result<Contents, ServerError> {
        let mut url = self.contents_url(path);
        {
            let mut query = url.query_pairs_mut();
            query.append_pair("content", if with_content { "1" } else { "0" });
            if let Some(format) = &format {
                query.append_pair("format", format.as_str()).append_pair("type", "file");
            }
        }
        self.http().json(Method::GET, url, None).await
    }

    /// Writes to a path. The folder must exist.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// When the future is dropped, it may be written or not. This can be called again.
    pub async fn save_contents(
        &self,
        path: &str,
        save: &SaveContents,
    ) -> Result<Contents, ServerError> {
        let body = serde_json::to_value(save);
        let body = body.map_err(|error| ServerError::Malformed { why: error.to_string() })?;
        self.http().json(Method::PUT, self.contents_url(path), Some(&body)).await
    }

    /// Moves what is at a path.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// When the future is dropped, it may be moved or not. This can be called again, and finds nothing then if it is.
    pub async fn rename_contents(&self, path: &str, to: &str) -> Result<Contents, ServerError> {
        let body = json!({"path": to});
        self.http().json(Method::PATCH, self.contents_url(path), Some(&body)).await
    }

    /// Deletes what is at a path. Servers may refuse folders that are not empty.
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others.
    ///
    /// # Cancellation
    /// When the future is dropped, it may be deleted or not. This can be called again, and finds nothing then if it is.
    pub async fn delete_contents(&self, path: &str) -> Result<(), ServerError> {
        self.http().no_content(Method::DELETE, self.contents_url(path), None).await
    }

    fn contents_url(&self, path: &str) -> Url {
        let segments = path.split('/').filter(|segment| !segment.is_empty());
        self.address().resource(["api", "contents"].into_iter().chain(segments))
    }
}
