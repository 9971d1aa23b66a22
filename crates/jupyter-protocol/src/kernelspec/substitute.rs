//! Placeholders in the arguments and the environment of a kernel.

/// Replaces every `{name}` for which `value` returns text. Others are unchanged.
pub(super) fn braces(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('{') {
        let (before, after) = rest.split_at(start);
        out.push_str(before);
        let name_end = after[1..].find(|c: char| !is_name(c)).map_or(after.len(), |end| end + 1);
        let replacement =
            after[name_end..].starts_with('}').then(|| value(&after[1..name_end])).flatten();
        match replacement {
            Some(replacement) if name_end > 1 => {
                out.push_str(&replacement);
                rest = &after[name_end + 1..];
            }
            _ => {
                out.push('{');
                rest = &after[1..];
            }
        }
    }
    out + rest
}

/// Replaces every `$name` and `${name}` for which `value` returns text, and `$$` by `$`. Others are unchanged.
pub(super) fn dollars(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('$') {
        let (before, after) = rest.split_at(start);
        out.push_str(before);
        let (replacement, length) = dollar(after, &value);
        out.push_str(&replacement);
        rest = &after[length..];
    }
    out + rest
}

/// Returns the replacement of the text at a `$`, and the length of the replaced text.
fn dollar(text: &str, value: impl Fn(&str) -> Option<String>) -> (String, usize) {
    if text[1..].starts_with('$') {
        return ("$".to_owned(), 2);
    }
    let braced = text[1..].starts_with('{');
    let start = if braced { 2 } else { 1 };
    let length = text[start..].find(|c: char| !is_name(c)).unwrap_or(text.len() - start);
    let name = &text[start..start + length];
    let end = start + length + usize::from(braced);
    let closed = !braced || text[start + length..].starts_with('}');
    let starts_well = name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
    match value(name).filter(|_| closed && starts_well) {
        Some(replacement) => (replacement, end),
        None => ("$".to_owned(), 1),
    }
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str) -> Option<String> {
        (name == "a_1").then(|| "X{a_1}$a_1".to_owned())
    }

    #[test]
    fn braces_are_replaced_anywhere_and_once() {
        for (text, expected) in [
            ("{a_1}", "X{a_1}$a_1"),
            ("--f={a_1}.json", "--f=X{a_1}$a_1.json"),
            ("{{a_1}}", "{X{a_1}$a_1}"),
            ("{b} {} { a_1 } {a_1", "{b} {} { a_1 } {a_1"),
            ("é{é}", "é{é}"),
        ] {
            assert_eq!(braces(text, value), expected);
        }
    }

    #[test]
    fn dollars_are_replaced_as_in_python_templates() {
        for (text, expected) in [
            ("$a_1", "X{a_1}$a_1"),
            ("${a_1}b", "X{a_1}$a_1b"),
            ("$$a_1", "$a_1"),
            ("$b ${b} $ ${a_1 $1 $é", "$b ${b} $ ${a_1 $1 $é"),
            ("", ""),
        ] {
            assert_eq!(dollars(text, value), expected);
        }
    }
}
