//! Guesses whether code is complete when no interpreter can answer. It knows brackets, strings and blocks of Python, and in
//! doubt considers code complete.

/// Brackets and strings that are open at the end of a text.
#[derive(Debug, Default)]
struct Open {
    brackets: usize,
    /// The quote of an open string over several lines.
    string: Option<char>,
}

/// Returns true when nothing is open: no bracket, no triple-quoted string, no continued line, and no block without an empty
/// line.
pub(super) fn is_complete(code: &str) -> bool {
    let open = open_at_end(code);
    let last = code.rsplit('\n').next().unwrap_or_default();
    if open.string.is_some() || open.brackets > 0 || last.ends_with('\\') {
        return false;
    }
    let is_indented = last.starts_with([' ', '\t']) && !last.trim().is_empty();
    !last.trim_end().ends_with(':') && !is_indented
}

fn open_at_end(code: &str) -> Open {
    let mut open = Open::default();
    let mut rest = code;
    while let Some(c) = rest.chars().next() {
        let mut step = c.len_utf8();
        match open.string {
            Some(_) if c == '\\' => step += rest[step..].chars().next().map_or(0, char::len_utf8),
            Some(quote) if is_triple(rest, quote) => {
                open.string = None;
                step = 3;
            }
            Some(_) => {}
            None => match c {
                '(' | '[' | '{' => open.brackets += 1,
                ')' | ']' | '}' => open.brackets = open.brackets.saturating_sub(1),
                '#' => step = rest.find('\n').unwrap_or(rest.len()),
                '"' | '\'' if is_triple(rest, c) => {
                    open.string = Some(c);
                    step = 3;
                }
                '"' | '\'' => step = end_of_string(rest, c),
                _ => {}
            },
        }
        rest = &rest[step..];
    }
    open
}

fn is_triple(text: &str, quote: char) -> bool {
    text.chars().take(3).filter(|c| *c == quote).count() == 3
}

/// Returns the length of a string of one line with its quotes. An unterminated string ends with its line.
fn end_of_string(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '\n' if !is_escaped => return at,
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::is_complete;

    #[test]
    fn open_code_is_not_complete() {
        for code in [
            "f(1,",
            "x = [\n  1,",
            "s = '''a\nb",
            "\"\"\"it's (",
            "x = 1 + \\",
            "if x:",
            "if x:  ",
            "def f():\n    return 1",
            "'\\'' + (",
        ] {
            assert!(!is_complete(code), "{code:?}");
        }
        for code in [
            "1 + 1",
            "f(1)",
            "s = '(['",
            "s = 'it\\'s ('",
            "x  # (",
            "s = '''a\nb'''",
            "if x:\n    y\n",
            "if x:\n    y\n    ",
            ")",
            "'unfinished (",
            "",
            "é = '日本語'",
        ] {
            assert!(is_complete(code), "{code:?}");
        }
    }
}
