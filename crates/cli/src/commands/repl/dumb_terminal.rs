//! Reads lines from a terminal without editing: a dumb terminal, or one of unknown type.

use std::env;
use std::io::{self, BufRead, Write as _};

use rustyline::error::ReadlineError;

/// Terminals without a cursor that can be moved.
const DUMB_TERMINALS: [&str; 3] = ["dumb", "cons25", "emacs"];

/// Returns true when the terminal of this process is dumb.
pub(super) fn is_dumb() -> bool {
    match env::var("TERM") {
        Ok(name) => {
            name.is_empty() || DUMB_TERMINALS.iter().any(|dumb| name.eq_ignore_ascii_case(dumb))
        }
        Err(_) => true,
    }
}

/// Prints a prompt and reads a complete text.
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
    fn invalid_bytes_are_replaced() {
        let mut input = &b"'a\xff'\r\nif x:\n  y\n\nrest"[..];
        let is_complete = |text: &str| !text.starts_with("if") || text.ends_with('\n');
        let mut read = || read_from(&mut input, is_complete);
        assert_eq!(read().unwrap(), "'a\u{fffd}'");
        assert_eq!(read().unwrap(), "if x:\n  y\n");
        assert_eq!(read().unwrap(), "rest");
        assert!(matches!(read(), Err(ReadlineError::Eof)));
    }
}
