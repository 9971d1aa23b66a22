//! MIME bundles: data in several formats.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::JsonMap;

/// Returns true if data of a MIME type is a JSON value rather than text.
#[must_use]
pub fn is_json(mime_type: &str) -> bool {
    let of_application = mime_type.strip_prefix("application/");
    of_application.is_some_and(|kind| kind == "json" || kind.ends_with("+json"))
}

/// Converts data to the form of notebook files: any value for JSON types, and text for all others. Code may attach any
/// value to any type, and a file with a number for `text/html` is not valid.
///
/// ```
/// use jupyter_protocol::media::to_nbformat;
/// use serde_json::json;
///
/// assert_eq!(to_nbformat("text/html", &json!(5)), "5");
/// assert_eq!(to_nbformat("application/json", &json!(5)), 5);
/// ```
#[must_use]
pub fn to_nbformat(mime_type: &str, value: &Value) -> Value {
    match value {
        value if is_json(mime_type) => value.clone(),
        value => text(value).unwrap_or_else(|| value.to_string()).into(),
    }
}

/// Returns text, joining a list of lines as in notebook files.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) => lines.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

/// Data in several formats, by MIME type.
///
/// Text formats are strings, JSON formats any value, and binary formats strings in base64. Nothing is decoded.
///
/// ```
/// use jupyter_protocol::MimeBundle;
///
/// let bundle = MimeBundle::text("42").with("text/html", "<b>42</b>");
/// assert_eq!(bundle.plain().as_deref(), Some("42"));
/// assert_eq!(bundle.best(&["image/png", "text/html"]).unwrap().0, "text/html");
/// ```
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub struct MimeBundle(pub JsonMap);

impl MimeBundle {
    /// Creates a bundle with plain text only.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::default().with("text/plain", text.into())
    }

    /// Adds a format.
    #[must_use]
    pub fn with(mut self, mime_type: &str, value: impl Into<Value>) -> Self {
        self.0.insert(mime_type.to_owned(), value.into());
        self
    }

    /// Returns the data of a format, unchanged.
    #[must_use]
    pub fn get(&self, mime_type: &str) -> Option<&Value> {
        self.0.get(mime_type)
    }

    /// Returns the data of a format as text. A list of lines, as in notebook files, is joined.
    #[must_use]
    pub fn get_text(&self, mime_type: &str) -> Option<String> {
        text(self.get(mime_type)?)
    }

    /// Returns all formats in the form of notebook files: see [`to_nbformat`].
    #[must_use]
    pub fn to_nbformat(&self) -> Value {
        self.iter().map(|(mime_type, value)| (mime_type, to_nbformat(mime_type, value))).collect()
    }

    /// Returns the plain text.
    #[must_use]
    pub fn plain(&self) -> Option<String> {
        self.get_text("text/plain")
    }

    /// Returns the first of the wanted formats that exists.
    #[must_use]
    pub fn best<'a>(&'a self, wanted: &[&str]) -> Option<(&'a str, &'a Value)> {
        let found = wanted.iter().find_map(|mime_type| self.0.get_key_value(*mime_type));
        found.map(|(mime_type, value)| (mime_type.as_str(), value))
    }

    /// Iterates over all formats.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(mime_type, value)| (mime_type.as_str(), value))
    }

    /// Returns true if there are no formats.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<JsonMap> for MimeBundle {
    fn from(map: JsonMap) -> Self {
        Self(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_is_joined_from_lines() {
        let bundle = MimeBundle::default().with("text/plain", json!(["a\n", "b"]));
        assert_eq!(bundle.plain().as_deref(), Some("a\nb"));
        assert_eq!(bundle.clone().with("text/plain", json!(["a", 1])).plain(), None);
        assert_eq!(bundle.with("text/plain", json!({})).plain(), None);
    }

    #[test]
    fn the_first_wanted_format_wins() {
        let bundle = MimeBundle::text("t").with("image/png", "aGk=");
        assert_eq!(bundle.best(&["image/png", "text/plain"]).unwrap().1, "aGk=");
        assert_eq!(bundle.best(&["text/latex"]), None);
        assert_eq!(bundle.iter().count(), 2);
    }
}
