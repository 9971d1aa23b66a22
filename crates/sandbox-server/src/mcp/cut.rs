//! Cutting of text to the window of a model.

/// Characters that a line may have before a cut looks for another place.
const LINE_SEARCH: usize = 400;

/// A text that may have been cut.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The text, with a line in the place of what was left out.
    pub(super) text: String,
    /// True when something was left out.
    pub(super) is_cut: bool,
}

/// Keeps the beginning and the end of a text that is longer than `most` bytes. `remedy` says how to read the rest.
pub(super) fn cut(text: &str, most: usize, remedy: &str) -> Cut {
    if text.len() <= most {
        return Cut { text: text.to_owned(), is_cut: false };
    }
    let head = &text[..line_end_before(text, most * 3 / 5)];
    let rest = &text[head.len()..];
    let tail = &rest[line_start_after(rest, rest.len().saturating_sub(most * 2 / 5))..];
    let left_out = text.len() - head.len() - tail.len();
    let newline = if head.is_empty() || head.ends_with('\n') { "" } else { "\n" };
    let notice = format!("[{left_out} of {} bytes left out here; {remedy}]", text.len());
    Cut { text: format!("{head}{newline}{notice}\n{tail}"), is_cut: true }
}

/// Keeps the beginning of a text that is longer than `most` bytes, and returns how much that is.
pub(super) fn prefix(text: &str, most: usize) -> &str {
    if text.len() <= most { text } else { &text[..floor_boundary(text, most)] }
}

/// Returns the last place for a cut that is not behind `at`: after a line if one ends near, else between characters.
fn line_end_before(text: &str, at: usize) -> usize {
    let at = floor_boundary(text, at);
    let near = floor_boundary(text, at.saturating_sub(LINE_SEARCH));
    text[near..at].rfind('\n').map_or(at, |newline| near + newline + 1)
}

fn line_start_after(text: &str, at: usize) -> usize {
    let at = ceil_boundary(text, at);
    let near = ceil_boundary(text, (at + LINE_SEARCH).min(text.len()));
    text[at..near].find('\n').map_or(at, |newline| at + newline + 1)
}

/// Returns the last boundary of a character that is not behind `at`.
pub(super) fn floor_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Returns the first boundary of a character that is not before `at`.
pub(super) fn ceil_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_text_stays() {
        assert_eq!(cut("a\nb", 3, "x"), Cut { text: "a\nb".into(), is_cut: false });
    }

    #[test]
    fn the_ends_stay_and_the_middle_is_counted() {
        let text: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let cut = cut(&text, 1000, "read it");
        assert!(cut.is_cut && cut.text.len() < 1100, "{}", cut.text.len());
        assert!(cut.text.starts_with("line 0\n") && cut.text.ends_with("line 999\n"));
        let notice = cut.text.lines().find(|line| line.starts_with('[')).unwrap();
        let left_out: usize = notice[1..].split(' ').next().unwrap().parse().unwrap();
        assert_eq!(cut.text.len() - notice.len() - 1 + left_out, text.len(), "{notice}");
        assert!(notice.ends_with("; read it]"), "{notice}");
    }

    #[test]
    fn characters_are_never_split() {
        let text = "ü".repeat(4000);
        for most in 0..50 {
            assert!(cut(&text, most, "x").is_cut);
        }
        assert_eq!(prefix("üü", 3), "ü");
    }
}
