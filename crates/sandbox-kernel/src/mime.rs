//! Converts displays of a kernel to those of a worker.

use jupyter_protocol::MimeBundle;
use sandbox_engine::{Encoding, MimeData};
use serde_json::Value;

/// Maximum size of one representation, in bytes.
const ITEM_LIMIT: usize = 16 << 20;

/// Maximum size of the representations of one display, in bytes.
const BUNDLE_LIMIT: usize = 60 << 20;

/// Maximum size of the representations of one run, in bytes.
const RUN_LIMIT: usize = 64 << 20;

/// Maximum length of plain text, which is cut and not dropped.
const TEXT_LIMIT: usize = 1 << 20;

/// The remaining bytes for displays of one run.
#[derive(Debug)]
pub(crate) struct DisplayBudget(usize);

impl Default for DisplayBudget {
    fn default() -> Self {
        Self(RUN_LIMIT)
    }
}

impl DisplayBudget {
    /// Returns the representations that fit, plain text first. The others are named in `notes`.
    pub(crate) fn take(&mut self, bundle: &MimeBundle, notes: &mut Vec<String>) -> Vec<MimeData> {
        let mut items: Vec<MimeData> =
            bundle.iter().filter_map(|(mime, value)| item(mime, value)).collect();
        items.sort_by_key(|item| item.mime != "text/plain");
        let mut total = 0;
        items.retain(|item| {
            let length = item.data.len();
            let limit = if length > ITEM_LIMIT {
                format!("{} MiB for one item", ITEM_LIMIT >> 20)
            } else if total + length > BUNDLE_LIMIT {
                format!("{} MiB for one display", BUNDLE_LIMIT >> 20)
            } else if length > self.0 {
                format!("{} MiB for one run", RUN_LIMIT >> 20)
            } else {
                total += length;
                self.0 -= length;
                return true;
            };
            notes.push(format!(
                "{} of {length} bytes dropped: over the limit of {limit}",
                item.mime
            ));
            false
        });
        items
    }
}

fn item(mime: &str, value: &Value) -> Option<MimeData> {
    let is_json = mime == "application/json" || mime.ends_with("+json");
    let (encoding, data) = match value {
        Value::Null => return None,
        value if is_json => (Encoding::Json, value.to_string()),
        Value::String(text) if is_binary(mime) => {
            (Encoding::Base64, text.split_ascii_whitespace().collect())
        }
        Value::String(text) => (Encoding::Text, text.clone()),
        Value::Array(lines) if lines.iter().all(Value::is_string) => {
            (Encoding::Text, lines.iter().filter_map(Value::as_str).collect())
        }
        value => (Encoding::Json, value.to_string()),
    };
    let data = if mime == "text/plain" { cut(data) } else { data };
    Some(MimeData { mime: mime.to_owned(), encoding, data })
}

fn is_binary(mime: &str) -> bool {
    mime == "application/pdf" || mime.starts_with("image/") && mime != "image/svg+xml"
}

/// Cuts long text and adds a note. Text that the kernel program has cut is longer by its note, and is not cut again.
fn cut(text: String) -> String {
    const NOTE: usize = 64;
    let length = text.chars().count();
    if length <= TEXT_LIMIT + NOTE {
        return text;
    }
    let end = text.char_indices().nth(TEXT_LIMIT).map_or(text.len(), |(end, _)| end);
    format!("{}\n... [cut: {length} characters in all]", &text[..end])
}

/// Removes terminal escape sequences, such as colours.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['\u{1b}', '\u{9b}']) {
        plain.push_str(&rest[..at]);
        rest = after_code(&rest[at..]);
    }
    plain.push_str(rest);
    plain
}

/// Returns the text after the escape sequence that it starts with. An unfinished sequence extends to the end.
fn after_code(text: &str) -> &str {
    let mut chars = text.chars();
    let first = chars.next();
    let introducer = if first == Some('\u{9b}') { Some('[') } else { chars.next() };
    let body = chars.as_str();
    match introducer {
        Some('[') => match body.find(|c: char| !(' '..='?').contains(&c)) {
            // Without a final letter, this is no escape sequence.
            Some(end) if body[end..].starts_with(|c: char| ('@'..='~').contains(&c)) => {
                &body[end + 1..]
            }
            Some(end) => &body[end..],
            None => "",
        },
        // A string for the terminal, such as its title or a link, up to a bell or the string terminator.
        Some(']' | 'P' | 'X' | '^' | '_') => match body.find(['\u{7}', '\u{1b}']) {
            Some(end) if body[end..].starts_with('\u{7}') => &body[end + 1..],
            Some(end) => body[end..].strip_prefix("\u{1b}\\").unwrap_or(&body[end..]),
            None => "",
        },
        // A character set, named by one more character.
        Some(' '..='/') => {
            let end = body.find(|c: char| !(' '..='/').contains(&c)).unwrap_or(body.len());
            let mut left = body[end..].chars();
            left.next();
            left.as_str()
        }
        Some('0'..='~') => body,
        // No escape sequence: the rest is text.
        Some(_) => &text[1..],
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn take(bundle: Value) -> (Vec<MimeData>, Vec<String>) {
        let mut notes = Vec::new();
        let Value::Object(bundle) = bundle else { panic!("not an object") };
        let items = DisplayBudget::default().take(&MimeBundle(bundle), &mut notes);
        (items, notes)
    }

    #[test]
    fn every_kind_of_content_keeps_its_form() {
        let (items, notes) = take(json!({
            "image/png": "aGk=\n", "image/svg+xml": "<svg/>", "text/plain": ["a\n", "b"],
            "application/json": "text", "text/html": null,
        }));
        let found: Vec<_> = items
            .iter()
            .map(|item| (item.mime.as_str(), item.encoding, item.data.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("text/plain", Encoding::Text, "a\nb"),
                ("application/json", Encoding::Json, "\"text\""),
                ("image/png", Encoding::Base64, "aGk="),
                ("image/svg+xml", Encoding::Text, "<svg/>"),
            ]
        );
        assert_eq!(notes, Vec::<String>::new());
    }

    #[test]
    fn oversized_data_is_cut_or_named() {
        let long = "é".repeat(ITEM_LIMIT / 2 + 1);
        let (items, notes) = take(json!({"text/plain": long, "text/html": long}));
        assert_eq!(items.len(), 1);
        assert!(items[0].data.ends_with("characters in all]"));
        assert!(notes[0].starts_with("text/html of 16777218 bytes dropped"), "{notes:?}");
    }

    #[test]
    fn escape_sequences_are_removed() {
        assert_eq!(plain("\u{1b}[0;31mred\u{1b}[0m and \u{1b}[1mbold\u{1b}"), "red and bold");
        assert_eq!(plain("no\u{1b}[31"), "no");
        for (code, left) in [
            ("\u{1b}[38;5;245m", ""),
            ("\u{1b}[38:2::1:2:3m", ""),
            ("\u{1b}[?25l", ""),
            ("\u{9b}31m", ""),
            ("\u{1b}]0;title\u{7}", ""),
            ("\u{1b}]8;;http://h/\u{1b}\\", ""),
            ("\u{1b}(B", ""),
            ("\u{1b}7", ""),
            ("\u{1b}[31\n", "\n"),
            ("\u{1b}\u{e9}", "\u{e9}"),
            ("\u{1b}\u{1b}[0m", ""),
            ("\u{1b}]never ends", ""),
        ] {
            assert_eq!(plain(&format!("a{code}")), format!("a{left}"), "{code:?}");
        }
        assert_eq!(plain("\u{1b}]8;;http://h/\u{1b}\\link\u{1b}]8;;\u{1b}\\!"), "link!");
        assert_eq!(plain("array[0] and [31m stay"), "array[0] and [31m stay");
    }
}
