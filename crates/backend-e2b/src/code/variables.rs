//! Variables as JSON, by code in the interpreter.

use sandbox_core::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

/// Reads or sets variables, and prints the answer behind a secret word. It leaves no name behind.
const PROGRAM: &str = include_str!("variables.py");

/// Returns the code that reads a variable.
pub(super) fn get_code(word: &str, name: &str) -> String {
    code(&json!({"word": word, "get": name}))
}

/// Returns the code that sets variables.
pub(super) fn set_code(word: &str, values: &Map<String, Value>) -> String {
    code(&json!({"word": word, "set": values}))
}

/// Returns one statement.
fn code(settings: &Value) -> String {
    format!(
        "(lambda b: b.exec({}, {{'names': globals(), 'settings': b.__import__('json').loads({})}}))(__import__('builtins'))",
        literal(PROGRAM),
        literal(&settings.to_string()),
    )
}

/// Returns a text as a literal of Python: one of JSON is one, with escapes for all that is not ASCII.
pub(super) fn literal(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    let mut literal = String::with_capacity(quoted.len());
    for c in quoted.chars() {
        match c {
            c if c.is_ascii() && c != '\u{7f}' => literal.push(c),
            c => literal.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    literal
}

/// Checks the name of a variable.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn check_name(name: &str) -> Result<()> {
    let is_start = |c: char| c.is_alphabetic() || c == '_';
    let is_name = name.chars().next().is_some_and(is_start)
        && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    if is_name {
        return Ok(());
    }
    Err(Error::invalid("name", format!("must be an identifier, got {name:?}")))
}

/// Checks the name of a variable that is set.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn check_new_name(name: &str) -> Result<()> {
    check_name(name)?;
    if name.starts_with("__") && name.ends_with("__") {
        let message = format!("must not be one of the interpreter's own, got {name:?}");
        return Err(Error::invalid("name", message));
    }
    Ok(())
}

/// Reads the answer in what was printed.
///
/// # Errors
/// `NotFound`; `InvalidArgument` for a value that JSON cannot hold.
pub(super) fn answer(
    operation: &'static str,
    name: &str,
    word: &str,
    printed: &str,
) -> Result<Value> {
    let line = printed.lines().find_map(|line| line.split_once(word).map(|(_, answer)| answer));
    let answer: Option<Value> = line.and_then(|line| serde_json::from_str(line).ok());
    let Some(mut answer) = answer else {
        let message = "the interpreter did not answer";
        return Err(Error::new(ErrorKind::Protocol, operation, message));
    };
    match (answer.get("kind").and_then(Value::as_str), answer.get("why").and_then(Value::as_str)) {
        (None, _) => Ok(answer["value"].take()),
        (Some("missing"), _) => {
            let message = format!("variable {name:?} not found");
            Err(Error::new(ErrorKind::NotFound, operation, message))
        }
        (Some("name"), why) => Err(Error::invalid("name", why.unwrap_or_default())),
        (_, why) => Err(Error::invalid(
            "value",
            format!("of {name:?} cannot be held by JSON: {}", why.unwrap_or_default()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Runs code in a real interpreter after that preparation.
    fn run(before: &str, code: &str) -> String {
        let code = format!(
            "{before}\n{code}\nprint('names:', sorted(n for n in globals() if n[0] != '_'))"
        );
        let output = Command::new("python3").args(["-c", &code]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn values_go_both_ways_and_no_name_is_left() {
        let values = json!({"a": {"b": [1, null, "ü\n\u{1f600}\u{2028}'\""]}, "c": 1.5});
        let set = set_code("w1", values.as_object().unwrap());
        let printed = run(&set, &get_code("w2", "a"));
        assert_eq!(answer("test", "", "w1", &printed).unwrap(), Value::Null);
        assert_eq!(answer("test", "a", "w2", &printed).unwrap(), values["a"]);
        assert!(printed.contains("names: ['a', 'c']"), "{printed}");
    }

    #[test]
    fn what_is_not_there_and_what_json_cannot_hold() {
        let kind = |before: &str, name: &str| {
            let printed = run(before, &get_code("w", name));
            answer("test", name, "w", &printed).unwrap_err().kind()
        };
        assert_eq!(kind("", "x"), ErrorKind::NotFound);
        for value in ["float('nan')", "object()", "{1: 2}", "b'x'", "{1, 2}", "'\\ud800'"] {
            assert_eq!(kind(&format!("x = {value}"), "x"), ErrorKind::InvalidArgument, "{value}");
        }
        let circle = "x = []\nx.append(x)";
        assert_eq!(kind(circle, "x"), ErrorKind::InvalidArgument);
    }

    #[test]
    fn names_are_identifiers() {
        check_name("größe_2").unwrap();
        for name in ["", "2x", "a b", "a.b", "x;y"] {
            check_name(name).unwrap_err();
        }
        check_new_name("__builtins__").unwrap_err();
    }
}
