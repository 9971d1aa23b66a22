//! Counts the values of JSON that code wrote, which takes many times its text once it is parsed.

/// Values that one object counts as: a value takes some hundred bytes, and even an empty object takes seven times that.
const OF_AN_OBJECT: usize = 7;

/// Returns how many values a JSON text has, or a few more, where an object counts as seven. A text that is no JSON has
/// some number, too.
pub(super) fn count_values(text: &str) -> usize {
    let (mut count, mut quoted, mut escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' | b'[' if !quoted => count += 1,
            b'{' if !quoted => count += OF_AN_OBJECT,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings() {
        for (text, least, most) in [
            ("{}", 7, 8),
            (r#"{"a": "1,2,[{", "b\"": [1, 2, {"c": null}]}"#, 18, 20),
            ("[0,0,0,0]", 4, 6),
            (r#""\\""#, 1, 1),
        ] {
            let count = count_values(text);
            assert!((least..=most).contains(&count), "{text}: {count}");
        }
    }
}
