//! Limits how deeply JSON values nest, because values are walked by recursion and the stack is limited.

use std::io;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

use crate::error::{Error, Result};

/// Levels of nested lists and objects. Every value that can be set can be read back.
pub(crate) const MAX_DEPTH: usize = 100;

/// The value as JSON.
pub(crate) fn to_value(name: &str, value: impl Serialize) -> Result<Value> {
    let not_json = |error| Error::invalid("value", format!("of {name} is not JSON: {error}"));
    // The first time through, nothing is made: it ends where it is too deep.
    let mut counting = Serializer::with_formatter(io::sink(), DepthCounter(0));
    value.serialize(&mut counting).map_err(not_json)?;
    serde_json::to_value(value).map_err(not_json)
}

/// Refuses a value that nests too deep.
pub(crate) fn check(name: &str, value: &Value) -> Result<()> {
    let mut look = vec![(value, 1)];
    while let Some((value, level)) = look.pop() {
        let inner = level + 1;
        match value {
            Value::Array(_) | Value::Object(_) if level > MAX_DEPTH => {
                return Err(Error::invalid("value", format!("of {name} is not JSON: {TOO_DEEP}")));
            }
            Value::Array(values) => look.extend(values.iter().map(|value| (value, inner))),
            Value::Object(values) => look.extend(values.values().map(|value| (value, inner))),
            _ => {}
        }
    }
    Ok(())
}

const TOO_DEEP: &str = "it nests more than 100 levels";

/// Counts how many lists and objects are open.
struct DepthCounter(usize);

impl DepthCounter {
    fn enter(&mut self) -> io::Result<()> {
        self.0 += 1;
        if self.0 > MAX_DEPTH { Err(io::Error::other(TOO_DEEP)) } else { Ok(()) }
    }
}

impl Formatter for DepthCounter {
    fn begin_array<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.enter()
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.0 -= 1;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.enter()
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.0 -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(Value::Null, |inner, level| {
            if level % 2 == 0 {
                Value::from(vec![inner])
            } else {
                serde_json::json!({ "x": inner })
            }
        })
    }

    #[test]
    fn both_ways_have_the_same_limit() {
        let deepest = nested(MAX_DEPTH);
        assert_eq!(to_value("x", &deepest).unwrap(), deepest);
        check("x", &deepest).unwrap();
        let deeper = nested(MAX_DEPTH + 1);
        for error in [to_value("x", &deeper).unwrap_err(), check("x", &deeper).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("100 levels"), "{error}");
        }
    }

    #[test]
    fn width_is_no_depth() {
        let wide = Value::from(vec![nested(2); 1000]);
        assert_eq!(to_value("x", &wide).unwrap(), wide);
        check("x", &wide).unwrap();
    }
}
