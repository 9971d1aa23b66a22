//! Headers: the sender and the type of a message, and its parent.

use std::fmt;

use bytes::Bytes;
use chrono::{DateTime, FixedOffset};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::Value;
use thiserror::Error;

use crate::json::{
    JsonMap, ObjectError, ShapeError, is_empty_object, parse_object, serialize_object,
};
use crate::limits::Limits;

/// The header of a message.
///
/// Reading is tolerant: only `msg_type` is required. A known field of a wrong type counts as absent and is kept in
/// [`Header::extra`] with all unknown fields, so that writing the header loses nothing.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Header {
    /// The id of the message. Replies carry it in their parent header.
    pub msg_id: String,
    /// The id of the sending process. A restarted kernel has another one.
    pub session: String,
    /// The name of the sender. Informative.
    pub username: String,
    /// The time of sending, in ISO 8601. See [`Header::sent_at`].
    pub date: String,
    /// The type of the content, such as `execute_request`.
    pub msg_type: String,
    /// The protocol version of the sender, such as `5.4`. Kernels are known to report inconsistent versions.
    pub version: String,
    /// The subshell that should process, or has processed, the request. Protocol 5.5.
    pub subshell_id: Option<String>,
    /// Fields that are not in the specification, and known fields of a wrong type.
    pub extra: JsonMap,
}

/// The reason why bytes are not a header.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The header is longer than [`Limits::header`].
    #[error("header of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// Length in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The text is not one JSON object.
    #[error("header: {0}")]
    Shape(#[from] ShapeError),
    /// The text is an object, but not valid JSON.
    #[error("header is not valid JSON: {0}")]
    Json(String),
    /// `msg_type` is missing, or not a string.
    #[error("header has no `msg_type`")]
    NoMessageType,
}

impl Header {
    /// Parses the text of a header.
    ///
    /// # Errors
    /// [`HeaderError`], see its variants.
    pub fn from_json(text: &[u8], limits: &Limits) -> Result<Self, HeaderError> {
        HeaderFields::from_json(text, limits)?.into_typed_header().ok_or(HeaderError::NoMessageType)
    }

    /// Reads a parsed header. Returns `None` without a `msg_type`.
    #[must_use]
    pub fn from_map(map: JsonMap) -> Option<Self> {
        let mut fields_read = HeaderFields::default();
        map.into_iter().for_each(|(name, value)| fields_read.take(FieldName::from(&*name), value));
        fields_read.into_typed_header()
    }

    /// Returns the header as a JSON object, with every field of [`Header::extra`].
    #[must_use]
    pub fn to_map(&self) -> JsonMap {
        let mut map = self.extra.clone();
        for (key, text) in self.fields() {
            map.entry(key).or_insert_with(|| Value::from(text));
        }
        map
    }

    /// Returns the header as JSON text.
    #[must_use]
    pub fn to_json(&self) -> Bytes {
        serialize_object(self)
    }

    /// Returns the fields of the specification that are present, by name.
    fn fields(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let subshell = self.subshell_id.as_deref().map(|id| ("subshell_id", id));
        let fields = [
            ("date", &self.date),
            ("msg_id", &self.msg_id),
            ("msg_type", &self.msg_type),
            ("session", &self.session),
            ("username", &self.username),
            ("version", &self.version),
        ];
        fields.into_iter().map(|(key, text)| (key, text.as_str())).chain(subshell)
    }

    /// Returns the time of sending, if [`Header::date`] is a date.
    #[must_use]
    pub fn sent_at(&self) -> Option<DateTime<FixedOffset>> {
        DateTime::parse_from_rfc3339(&self.date).ok()
    }
}

impl Serialize for Header {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let own = self.fields().filter(|(key, _)| !self.extra.contains_key(*key));
        let mut map = serializer.serialize_map(None)?;
        for (key, text) in own {
            map.serialize_entry(key, text)?;
        }
        for (key, value) in &self.extra {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// The fields of the specification.
const FIELD_NAMES: [&str; 7] =
    ["msg_type", "msg_id", "session", "username", "date", "version", "subshell_id"];

/// The name of a field.
enum FieldName {
    /// An index into [`FIELD_NAMES`].
    Known(usize),
    Other(String),
}

impl From<&str> for FieldName {
    fn from(text: &str) -> Self {
        let known = FIELD_NAMES.iter().position(|name| *name == text);
        known.map_or_else(|| Self::Other(text.to_owned()), Self::Known)
    }
}

impl<'de> Deserialize<'de> for FieldName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = FieldName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_str<E>(self, text: &str) -> Result<FieldName, E> {
                Ok(FieldName::from(text))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

/// The fields of a header while it is read.
#[derive(Default)]
struct HeaderFields {
    /// By their index in [`FIELD_NAMES`].
    texts: [Option<String>; FIELD_NAMES.len()],
    extra: JsonMap,
}

impl HeaderFields {
    fn from_json(text: &[u8], limits: &Limits) -> Result<Self, HeaderError> {
        if text.len() > limits.header {
            return Err(HeaderError::TooLong { length: text.len(), limit: limits.header });
        }
        parse_object(text, limits).map_err(|error| match error {
            ObjectError::Shape(error) => HeaderError::Shape(error),
            ObjectError::Json(error) => HeaderError::Json(error.to_string()),
        })
    }

    /// Takes a field. A value that is not text, or not in the specification, is kept unchanged. The last field of a
    /// name wins.
    fn take(&mut self, name: FieldName, value: Value) {
        match (name, value) {
            (FieldName::Known(at), Value::String(text)) => {
                self.texts[at] = Some(text);
                self.extra.remove(FIELD_NAMES[at]);
            }
            (FieldName::Known(at), value) => {
                self.texts[at] = None;
                self.extra.insert(FIELD_NAMES[at].to_owned(), value);
            }
            (FieldName::Other(name), value) => {
                self.extra.insert(name, value);
            }
        }
    }

    fn into_typed_header(self) -> Option<Header> {
        self.texts[0].is_some().then(|| self.header())
    }

    fn header(self) -> Header {
        let [msg_type, msg_id, session, username, date, version, subshell_id] = self.texts;
        Header {
            msg_id: msg_id.unwrap_or_default(),
            session: session.unwrap_or_default(),
            username: username.unwrap_or_default(),
            date: date.unwrap_or_default(),
            msg_type: msg_type.unwrap_or_default(),
            version: version.unwrap_or_default(),
            subshell_id,
            extra: self.extra,
        }
    }
}

impl<'de> Deserialize<'de> for HeaderFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = HeaderFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderFields, A::Error> {
                let mut fields_read = HeaderFields::default();
                while let Some((name, value)) = map.next_entry()? {
                    fields_read.take(name, value);
                }
                Ok(fields_read)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// The parent of a message: the message that it answers.
///
/// Keeps the original text, so that it is forwarded unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Parent {
    /// None: the message is not an answer.
    #[default]
    None,
    /// The message with this header.
    Header {
        /// The parsed header.
        header: Box<Header>,
        /// The original text.
        text: Bytes,
    },
    /// A text that is not a header. The message has no usable parent, but is kept.
    Malformed {
        /// The original text.
        text: Bytes,
        /// The error of the text.
        error: HeaderError,
    },
}

impl Parent {
    /// Parses the text of a parent header. Never fails: see [`Parent::Malformed`].
    #[must_use]
    pub fn from_json(text: Bytes, limits: &Limits) -> Self {
        if is_empty_object(&text) {
            return Self::None;
        }
        // A parent needs no type: only its `msg_id` is used.
        match HeaderFields::from_json(&text, limits).map(HeaderFields::header) {
            Ok(header) => Self::Header { header: Box::new(header), text },
            Err(error) => Self::Malformed { text, error },
        }
    }

    /// Creates the parent of a message that answers the one with this header.
    #[must_use]
    pub fn from_header(header: &Header) -> Self {
        Self::Header { header: Box::new(header.clone()), text: header.to_json() }
    }

    /// Returns the header, if there is one.
    #[must_use]
    pub fn header(&self) -> Option<&Header> {
        match self {
            Self::Header { header, .. } => Some(header),
            Self::None | Self::Malformed { .. } => None,
        }
    }

    /// Returns the id of the parent. `None` also if it is empty.
    #[must_use]
    pub fn msg_id(&self) -> Option<&str> {
        self.header().map(|header| header.msg_id.as_str()).filter(|id| !id.is_empty())
    }

    /// Returns the original text.
    #[must_use]
    pub fn to_json(&self) -> Bytes {
        match self {
            Self::None => Bytes::from_static(b"{}"),
            Self::Header { text, .. } | Self::Malformed { text, .. } => text.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(value: &Value) -> Result<Header, HeaderError> {
        Header::from_json(value.to_string().as_bytes(), &Limits::default())
    }

    #[test]
    fn nothing_is_lost() {
        let value = json!({"msg_id": "a", "session": "s", "username": "u", "date": 7, "msg_type": "status",
            "version": "5.4", "subshell_id": "x", "vendor": {"key": [1]}});
        let header = parse(&value).unwrap();
        assert_eq!((header.date.as_str(), header.subshell_id.as_deref()), ("", Some("x")));
        assert_eq!(serde_json::from_slice::<Value>(&header.to_json()).unwrap(), value);
    }

    #[test]
    fn the_last_of_a_name_counts() {
        let read = |text: &str| Header::from_json(text.as_bytes(), &Limits::default());
        let header = read(r#"{"msg_type":1,"msg_type":"a","date":"d","date":7}"#).unwrap();
        assert_eq!((header.msg_type.as_str(), header.date.as_str()), ("a", ""));
        assert_eq!(Value::Object(header.extra), json!({"date": 7}));
        let untyped = read(r#"{"msg_type":"a","msg_type":1}"#);
        assert_eq!(untyped, Err(HeaderError::NoMessageType));
    }

    #[test]
    fn only_the_type_is_needed() {
        assert_eq!(parse(&json!({"msg_type": "status"})).unwrap().msg_type, "status");
        assert_eq!(parse(&json!({"msg_id": "a"})), Err(HeaderError::NoMessageType));
        assert_eq!(parse(&json!({"msg_type": 1})), Err(HeaderError::NoMessageType));
        let limits = Limits { header: 8, ..Limits::default() };
        let error = HeaderError::TooLong { length: 18, limit: 8 };
        assert_eq!(Header::from_json(br#"{"msg_type":"abc"}"#, &limits), Err(error));
    }

    #[test]
    fn dates_of_every_precision_are_read() {
        for date in
            ["2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00.5+01:00"]
        {
            let header = Header { date: date.to_owned(), ..Header::default() };
            assert!(header.sent_at().is_some(), "{date}");
        }
        assert_eq!(Header::default().sent_at(), None);
    }

    #[test]
    fn a_parent_without_a_type_still_correlates() {
        let limits = Limits::default();
        let parent =
            Parent::from_json(Bytes::from_static(br#"{"msg_id":"a","msg_type":3}"#), &limits);
        assert_eq!(parent.msg_id(), Some("a"));
        assert_eq!(parent.header().unwrap().extra["msg_type"], 3);
        assert_eq!(parent.to_json(), &br#"{"msg_id":"a","msg_type":3}"#[..]);
        for text in ["", "{}", " { } "] {
            assert_eq!(Parent::from_json(Bytes::from(text), &limits), Parent::None, "{text}");
        }
        for text in ["null", "[1]", "{", "{}{"] {
            let parent = Parent::from_json(Bytes::from(text), &limits);
            assert!(matches!(parent, Parent::Malformed { .. }), "{text}");
            assert_eq!(parent.to_json(), text, "passed on as it came");
        }
    }
}
