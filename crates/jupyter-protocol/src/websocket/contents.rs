//! The contents API: files of a server.

use reqwest::{Method, Url};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::client::ServerClient;
use super::error::ServerError;
use crate::content::text_enum::text_enum;
use crate::json::JsonMap;

text_enum! {
    /// The type of an entry.
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
    /// The encoding of content in JSON.
    pub enum ContentFormat {
        /// Text, as a string.
        Text = "text",
        /// Any bytes, as a string in base64.
        Base64 = "base64",
        /// JSON, for notebooks and listings.
        Json = "json",
    }
}

/// An entry of a server: a file or a folder.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
#[non_exhaustive]
pub struct Contents {
    /// The name of the entry.
    pub name: String,
    /// The path below the server's root.
    pub path: String,
    /// The type of the entry.
    #[serde(rename = "type")]
    pub kind: ContentKind,
    /// True if the entry can be written.
    pub writable: bool,
    /// The time of the last change, in ISO 8601.
    pub last_modified: Option<String>,
    /// The size in bytes.
    pub size: Option<u64>,
    /// The MIME type.
    pub mimetype: Option<String>,
    /// The encoding of the content. `None` without content.
    pub format: Option<ContentFormat>,
    /// The content. For a folder, the list of its entries.
    pub content: Value,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: JsonMap,
}

/// An entry to write.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SaveContents {
    /// The type of the entry.
    #[serde(rename = "type")]
    pub kind: ContentKind,
    /// The encoding of the content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<ContentFormat>,
    /// The content.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub content: Value,
    /// The number of a chunk of a long file, from 1; -1 for the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<i64>,
}

impl SaveContents {
    /// Describes a text file.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::file(ContentFormat::Text, text.into())
    }

    /// Describes a file from its bytes in base64.
    #[must_use]
    pub fn base64(bytes: impl Into<String>) -> Self {
        Self::file(ContentFormat::Base64, bytes.into())
    }

    /// Describes a folder.
    #[must_use]
    pub fn directory() -> Self {
        Self { kind: ContentKind::Directory, format: None, content: Value::Null, chunk: None }
    }

    fn file(format: ContentFormat, content: String) -> Self {
        Self { kind: ContentKind::File, format: Some(format), content: content.into(), chunk: None }
    }
}

impl ServerClient {
    /// Reads an entry, with its content if requested. The default format of text files is text.
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others. Binary files cannot be read as text.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
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

    /// Writes an entry. Its folder must exist.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// If the future is dropped, the entry may be written or not. This method can be called again.
    pub async fn save_contents(
        &self,
        path: &str,
        save: &SaveContents,
    ) -> Result<Contents, ServerError> {
        let body = serde_json::to_value(save);
        let body = body.map_err(|error| ServerError::Malformed { why: error.to_string() })?;
        self.http().json(Method::PUT, self.contents_url(path), Some(&body)).await
    }

    /// Moves an entry.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// If the future is dropped, the entry may be moved or not. This method can be called again, and finds no entry
    /// after the first success.
    pub async fn rename_contents(&self, path: &str, to: &str) -> Result<Contents, ServerError> {
        let body = json!({"path": to});
        self.http().json(Method::PATCH, self.contents_url(path), Some(&body)).await
    }

    /// Deletes an entry. Servers may refuse to delete folders that are not empty.
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others.
    ///
    /// # Cancellation
    /// If the future is dropped, the entry may be deleted or not. This method can be called again, and finds no entry
    /// after the first success.
    pub async fn delete_contents(&self, path: &str) -> Result<(), ServerError> {
        self.http().no_content(Method::DELETE, self.contents_url(path), None).await
    }

    fn contents_url(&self, path: &str) -> Url {
        let segments = path.split('/').filter(|segment| !segment.is_empty());
        self.address().resource(["api", "contents"].into_iter().chain(segments))
    }
}
