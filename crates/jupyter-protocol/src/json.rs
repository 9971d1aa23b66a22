//! Checks the outer shape of JSON text without parsing it.
//!
//! Signatures cover the concatenation of the four JSON frames, so moving a byte from one frame to the next keeps the
//! signature valid. A frame is accepted as an object only if its brackets form one complete object, which detects such
//! moves. The same pass counts values and depth, so that the cost of parsing is known beforehand.

use bytes::Bytes;
use memchr::{memchr2, memchr2_iter};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::limits::{Limits, MAX_JSON_DEPTH};

/// A JSON object.
pub type JsonMap = serde_json::Map<String, serde_json::Value>;

/// The reason why text is not accepted as a JSON object.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ShapeError {
    /// The text does not start with `{`.
    #[error("not a JSON object")]
    NotAnObject,
    /// A bracket or a quote is not closed.
    #[error("JSON ends too early")]
    Unfinished,
    /// The brackets do not match.
    #[error("JSON has brackets that do not match")]
    Unbalanced,
    /// The object is followed by more text.
    #[error("JSON object is followed by other text")]
    Trailing,
    /// The text is nested deeper than [`Limits::json_depth`].
    #[error("JSON is nested deeper than {limit}")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
    /// The text has more values than [`Limits::json_values`].
    #[error("JSON has more than {limit} values")]
    TooManyValues {
        /// The limit.
        limit: usize,
    },
}

/// Checks that the brackets of `text` form one JSON object, within the limits.
///
/// The text between the brackets is not checked. Takes linear time and no memory.
pub(crate) fn check_object(text: &[u8], limits: &Limits) -> Result<(), ShapeError> {
    let start = text.iter().position(|byte| !is_space(*byte)).ok_or(ShapeError::NotAnObject)?;
    if text[start] != b'{' {
        return Err(ShapeError::NotAnObject);
    }
    let end = end_of_object(&text[start..], limits)?;
    let rest = &text[start + end..];
    if rest.iter().all(|byte| is_space(*byte)) { Ok(()) } else { Err(ShapeError::Trailing) }
}

/// The reason why text is not parsed as an object.
#[derive(Debug, Error)]
pub(crate) enum ObjectError {
    /// The shape is invalid, or over a limit.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The object does not fit the type.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Parses text that is one object within the limits, with numbers of any size. Other text is not parsed.
///
/// The parser makes all the checks of [`check_object`] except for the limits, so a text that cannot exceed them is read
/// once.
pub(crate) fn parse_object<T: DeserializeOwned>(
    text: &[u8],
    limits: &Limits,
) -> Result<T, ObjectError> {
    if fits_limits(text, limits)
        && let Ok(object) = parse(text)
    {
        return Ok(object);
    }
    check_object(text, limits)?;
    Ok(parse(text)?)
}

/// Returns true if the text starts as an object, and is too short and has too few brackets to exceed a limit.
fn fits_limits(text: &[u8], limits: &Limits) -> bool {
    text.first() == Some(&b'{')
        && text.len() + OBJECT_COST * MAX_JSON_DEPTH <= limits.json_values
        && memchr2_iter(b'{', b'[', text).nth(limits.json_depth.min(MAX_JSON_DEPTH)).is_none()
}

/// Parses text with numbers of any size.
///
/// Python's numbers are unbounded. The parser rounds what exceeds 64 bits to a float, and fails for what exceeds a
/// float. Such a number must not make the whole message unreadable, so it becomes the nearest float.
fn parse<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(text).or_else(|error| match clamp_numbers(text) {
        Some(text) => serde_json::from_slice(&text).map_err(|_| error),
        None => Err(error),
    })
}

/// Replaces the numbers that exceed a float. Returns `None` if there are none.
fn clamp_numbers(text: &[u8]) -> Option<Vec<u8>> {
    let (mut new, mut copied, mut at) = (Vec::new(), 0, 0);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at += 1 + end_of_string(&text[at + 1..]).ok()?,
            b'-' | b'0'..=b'9' => {
                let is_more =
                    |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let length = text[at..].iter().take_while(|byte| is_more(byte)).count();
                let number = std::str::from_utf8(&text[at..at + length]).ok()?.parse::<f64>();
                if let Ok(number) = number
                    && number.is_infinite()
                {
                    new.extend_from_slice(&text[copied..at]);
                    new.extend_from_slice(format!("{:e}", f64::MAX.copysign(number)).as_bytes());
                    copied = at + length;
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    new.extend_from_slice(&text[copied..]);
    (copied > 0).then_some(new)
}

/// Serializes a value that is always an object with text keys, which cannot fail.
pub(crate) fn serialize_object(object: &impl Serialize) -> Bytes {
    // Large enough for nearly every message, so that the text is not moved while it grows.
    let mut text = Vec::with_capacity(512);
    match serde_json::to_writer(&mut text, object) {
        Ok(()) => text.into(),
        Err(_) => Bytes::from_static(b"{}"),
    }
}

/// Returns true if the text is an empty object, or empty.
pub(crate) fn is_empty_object(text: &[u8]) -> bool {
    let mut visible = text.iter().copied().filter(|byte| !is_space(*byte));
    match visible.next() {
        None => true,
        Some(b'{') => visible.eq([b'}']),
        Some(_) => false,
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// The number of values that an object counts as, because of its memory.
const OBJECT_COST: usize = 7;

/// Returns the length of the bracketed text at the start.
fn end_of_object(text: &[u8], limits: &Limits) -> Result<usize, ShapeError> {
    let mut open = Brackets::new(limits.json_depth.min(MAX_JSON_DEPTH));
    let mut values = 0_usize;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'"' => at += end_of_string(&text[at..])?,
            b'{' | b'[' => {
                open.push(*byte == b'{')?;
                values += if *byte == b'{' { OBJECT_COST } else { 1 };
            }
            b',' | b':' => values += 1,
            b'}' | b']' => {
                open.pop(*byte == b'}')?;
                if open.is_empty() {
                    return Ok(at);
                }
            }
            _ => {}
        }
        if values > limits.json_values {
            return Err(ShapeError::TooManyValues { limit: limits.json_values });
        }
    }
    Err(ShapeError::Unfinished)
}

/// Returns the length of the rest of a string, with its closing quote.
fn end_of_string(text: &[u8]) -> Result<usize, ShapeError> {
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if text[at] == b'"' {
            return Ok(at + 1);
        }
        at += 2;
    }
    Err(ShapeError::Unfinished)
}

/// The open brackets: one bit each, set for a brace.
struct Brackets {
    bits: u128,
    depth: usize,
    limit: usize,
}

impl Brackets {
    fn new(limit: usize) -> Self {
        Self { bits: 0, depth: 0, limit }
    }

    fn push(&mut self, brace: bool) -> Result<(), ShapeError> {
        if self.depth >= self.limit {
            return Err(ShapeError::TooDeep { limit: self.limit });
        }
        self.bits = self.bits << 1 | u128::from(brace);
        self.depth += 1;
        Ok(())
    }

    fn pop(&mut self, brace: bool) -> Result<(), ShapeError> {
        if self.depth == 0 || (self.bits & 1 == 1) != brace {
            return Err(ShapeError::Unbalanced);
        }
        self.bits >>= 1;
        self.depth -= 1;
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.depth == 0
    }
}

/// Memory in bytes of a string besides its text, of a list entry, of an object entry, and of a non-empty object, whose
/// tree nodes have eleven slots that are mostly free.
const STRING_SIZE: usize = 48;
const VALUE_SIZE: usize = 40;
const ENTRY_SIZE: usize = 120;
const NODE_SIZE: usize = 700;

/// Estimates the memory of parsed JSON from below, in bytes. Many small values take far more than their text.
pub(crate) fn memory(map: &JsonMap) -> usize {
    let entries = map.iter().map(|(name, value)| ENTRY_SIZE + name.len() + memory_of(value));
    entries.fold(if map.is_empty() { 0 } else { NODE_SIZE }, usize::saturating_add)
}

fn memory_of(value: &serde_json::Value) -> usize {
    use serde_json::Value;
    match value {
        Value::String(text) => STRING_SIZE + text.len(),
        Value::Array(values) => values
            .iter()
            .map(|value| VALUE_SIZE + memory_of(value))
            .fold(STRING_SIZE, usize::saturating_add),
        Value::Object(map) => memory(map),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn shape(text: &str) -> Result<(), ShapeError> {
        check_object(text.as_bytes(), &Limits::default())
    }

    #[test]
    fn one_whole_object_passes() {
        for text in ["{}", " {\n} ", r#"{"a":[1,{"b":"}]\"{"}]}"#, r#"{"a":NaN}"#, r#"{"\\":1}"#] {
            assert_eq!(shape(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn anything_else_is_rejected() {
        for (text, error) in [
            ("", ShapeError::NotAnObject),
            ("null", ShapeError::NotAnObject),
            ("[]", ShapeError::NotAnObject),
            ("{", ShapeError::Unfinished),
            ("}{}", ShapeError::NotAnObject),
            ("{}{", ShapeError::Trailing),
            ("{[}]", ShapeError::Unbalanced),
            (r#"{"a}"#, ShapeError::Unfinished),
            (r#"{"a\"#, ShapeError::Unfinished),
        ] {
            assert_eq!(shape(text), Err(error), "{text}");
        }
    }

    #[test]
    fn depth_and_number_of_values_are_bounded() {
        let nested =
            |depth: usize| format!("{}{}", "{\"a\":".repeat(depth) + "1", "}".repeat(depth));
        assert_eq!(shape(&nested(100)), Ok(()));
        assert_eq!(shape(&nested(101)), Err(ShapeError::TooDeep { limit: 100 }));
        let limits = Limits { json_values: 10, ..Limits::default() };
        assert_eq!(check_object(b"{\"a\":[1,2]}", &limits), Ok(()));
        let error = ShapeError::TooManyValues { limit: 10 };
        assert_eq!(check_object(b"{\"a\":[1,2,3]}", &limits), Err(error));
        // Empty objects take memory as well.
        assert_eq!(check_object(b"{\"a\":{}}", &limits), Err(error));
    }

    #[test]
    fn the_fast_path_accepts_what_the_check_accepts() {
        let limits = Limits { json_values: 40, json_depth: 3, ..Limits::default() };
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(40));
        let cases = [
            "{}",
            " {}",
            "{} ",
            "{\"a\":[{}]}",
            "{\"a\":\"[[[[{{{{\"}",
            "{\"a\":[[[0]]]}",
            "{\"a\":[0,{]}",
            "{}{}",
            "[]",
            "null",
            "",
            "{",
            "{\"a\":1}x",
            &many,
        ];
        for text in cases {
            let parsed = parse_object::<JsonMap>(text.as_bytes(), &limits);
            match (check_object(text.as_bytes(), &limits), parsed) {
                (Ok(()), Ok(map)) => assert_eq!(map, serde_json::from_str(text).unwrap()),
                (Err(expected), Err(ObjectError::Shape(error))) => assert_eq!(error, expected),
                other => panic!("{text}: {other:?}"),
            }
        }
        let error = parse_object::<JsonMap>(b"{\"a\":NaN}", &limits).unwrap_err();
        assert!(matches!(error, ObjectError::Json(_)), "{error}");
    }

    #[test]
    fn numbers_have_no_bounds() {
        let huge = format!("1{}", "0".repeat(400));
        let text =
            format!(r#"{{"a":[-{huge},1e999, 5],"1{huge}":"{huge}","b":18446744073709551616}}"#);
        let value: Value = parse(text.as_bytes()).unwrap();
        assert_eq!(value["a"], serde_json::json!([-f64::MAX, f64::MAX, 5]));
        assert_eq!(value[format!("1{huge}")], huge, "strings are left alone");
        assert_eq!(value["b"], 18_446_744_073_709_551_616.0);
        for text in ["{\"a\":1e999", "{\"a\":1e999-}", "{\"a\":-}", "{\"a\":NaN}"] {
            assert!(parse::<Value>(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn empty_objects_are_recognized() {
        assert!(is_empty_object(b"") && is_empty_object(b"{}") && is_empty_object(b" { } "));
        assert!(
            !is_empty_object(b"{\"a\":1}") && !is_empty_object(b"null") && !is_empty_object(b"{")
        );
    }
}
