//! Lines from a terminal on which nothing can be edited: what it is like is not known, or it can do no more.

use std::env;
use std::io::{self, BufRead, Write as _};

use rustyline::error::ReadlineError;

/// Terminals without a cursor that can be moved.
const SIMPLE: [&str; 3] = ["dumb", "cons25", "emacs"];

/// Whether the terminal of this process is one.
pub(super) fn is_simple() -> bool {
    match env::var("TERM") {
        Ok(name) => {
            name.is_empty() || SIMPLE.iter().any(|simple| name.eq_ignore_ascii_case(simple))
        }
        Err(_) => true,
    }
}

/// Reads a text that is complete, after a prompt.
pub(super) fn read(
    prompt: &str,
    is_complete: impl Fn(&str) -> bool,
) -> Result<String, ReadlineError> {
    let mut stdout = io::stdout();
    stdout.write_all(prompt.as_bytes())?;
    stdout.flush()?;
    read_from(&mut io::stdin().lock(), is_complete)
}

fn read_from(
    from: &mut impl BufRead,
    is_complete: impl Fn(&str) -> bool,
) -> Result<String, ReadlineError> {
    let mut text = String::new();
    loop {
        let mut line = Vec::new();
        if from.read_until(b'\n', &mut line)? == 0 {
            return Err(ReadlineError::Eof);
        }
        let line = String::from_utf8_lossy(&line);
        text.push_str(line.trim_end_matches(['\r', '\n']));
        if is_complete(&text) {
            return Ok(text);
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_replaced_and_end_nothing() {
        let mut input = &b"'a\xff'\r\nif x:\n  y\n\nrest"[..];
        let is_complete = |text: &str| !text.starts_with("if") || text.ends_with('\n');
        let mut read = || read_from(&mut input, is_complete);
        assert_eq!(read().unwrap(), "'a\u{fffd}'");
        assert_eq!(read().unwrap(), "if x:\n  y\n");
        assert_eq!(read().unwrap(), "rest");
        assert!(matches!(read(), Err(ReadlineError::Eof)));
    }
}
