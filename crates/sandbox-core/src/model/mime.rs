//! MIME types that results commonly have.

use std::fmt;

/// A MIME type with an accessor of its own on [`ResultItem`](crate::ResultItem). Results may hold any other too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MimeType {
    /// `text/plain`
    TextPlain,
    /// `text/html`
    TextHtml,
    /// `text/markdown`
    TextMarkdown,
    /// `text/latex`
    TextLatex,
    /// `application/json`
    ApplicationJson,
    /// `application/javascript`
    ApplicationJavascript,
    /// `application/pdf`, base64
    ApplicationPdf,
    /// `image/png`, base64
    ImagePng,
    /// `image/jpeg`, base64
    ImageJpeg,
    /// `image/gif`, base64
    ImageGif,
    /// `image/svg+xml`
    ImageSvg,
}

impl MimeType {
    /// The name, such as `text/plain`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TextPlain => "text/plain",
            Self::TextHtml => "text/html",
            Self::TextMarkdown => "text/markdown",
            Self::TextLatex => "text/latex",
            Self::ApplicationJson => "application/json",
            Self::ApplicationJavascript => "application/javascript",
            Self::ApplicationPdf => "application/pdf",
            Self::ImagePng => "image/png",
            Self::ImageJpeg => "image/jpeg",
            Self::ImageGif => "image/gif",
            Self::ImageSvg => "image/svg+xml",
        }
    }
}

impl MimeType {
    /// Returns true for a type whose values are base64.
    pub fn is_binary(self) -> bool {
        matches!(self, Self::ApplicationPdf | Self::ImagePng | Self::ImageJpeg | Self::ImageGif)
    }
}

impl fmt::Display for MimeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
