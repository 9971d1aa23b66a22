//! Strings and paths in code.

use tree_sitter::Node;

use super::tree::source;

/// Parts of one string that are put together.
const MAX_PARTS: usize = 64;

/// A string as far as the code shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Literal {
    /// The text, up to the first part that is computed.
    pub(super) text: String,
    /// False when a computed part follows.
    pub(super) is_whole: bool,
}

/// Returns the string that a Python expression is: a literal, literals side by side, or a sum of literals.
pub(super) fn python_literal(node: Node<'_>, text: &str) -> Option<Literal> {
    let mut literal = Literal { text: String::new(), is_whole: true };
    let (mut left, mut parts) = (vec![node], 0);
    while let Some(node) = left.pop() {
        parts += 1;
        if parts > MAX_PARTS {
            literal.is_whole = false;
            break;
        }
        match node.kind() {
            "string" => {
                if !push_string(node, text, &mut literal) {
                    break;
                }
            }
            "concatenated_string" | "parenthesized_expression" => {
                push_children(node, &mut left);
            }
            "binary_operator" if has_plus(node, text) => push_children(node, &mut left),
            "comment" => {}
            // A sum that begins with text shows at least its beginning.
            _ if parts > 1 => {
                literal.is_whole = false;
                break;
            }
            _ => return None,
        }
    }
    (literal.is_whole || !literal.text.is_empty()).then_some(literal)
}

fn push_children<'tree>(node: Node<'tree>, left: &mut Vec<Node<'tree>>) {
    let count = u32::try_from(node.named_child_count().min(MAX_PARTS)).unwrap_or_default();
    left.extend((0..count).rev().filter_map(|index| node.named_child(index)));
}

fn has_plus(node: Node<'_>, text: &str) -> bool {
    node.child_by_field_name("operator").is_some_and(|operator| source(operator, text) == "+")
}

/// Adds a string token. Returns false when it has a computed part.
fn push_string(node: Node<'_>, text: &str, literal: &mut Literal) -> bool {
    let is_raw = node.child(0).is_some_and(|start| source(start, text).contains(['r', 'R']));
    let mut cursor = node.walk();
    for child in node.named_children(&mut cursor) {
        match child.kind() {
            "string_content" if is_raw => literal.text.push_str(source(child, text)),
            "string_content" => literal.text.push_str(&unescaped(source(child, text))),
            "interpolation" => {
                literal.is_whole = false;
                return false;
            }
            _ => {}
        }
    }
    true
}

/// Replaces the escape sequences of Python, and of `$'..'` in a shell.
pub(super) fn unescaped(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let mut characters = after.chars();
        let kind = characters.next();
        rest = characters.as_str();
        let digits = match kind {
            Some('x') => Some((2, 16)),
            Some('u') => Some((4, 16)),
            Some('U') => Some((8, 16)),
            Some('0'..='7') => Some((3, 8)),
            _ => None,
        };
        match (kind, digits) {
            (_, Some((most, radix))) => {
                let from = if radix == 8 { after } else { rest };
                let length = from.chars().take(most).take_while(|c| c.is_digit(radix)).count();
                let code = u32::from_str_radix(&from[..length], radix).ok();
                plain.extend(code.and_then(char::from_u32));
                rest = &from[length..];
            }
            (Some('n'), _) => plain.push('\n'),
            (Some('t'), _) => plain.push('\t'),
            (Some('\n') | None, _) => {}
            (Some(other), _) => plain.push(other),
        }
    }
    plain.push_str(rest);
    plain
}

/// Devices that programs use as they use their own streams.
const HARMLESS: [&str; 8] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/stdin",
    "/dev/stdout",
    "/dev/stderr",
    "/dev/random",
    "/dev/urandom",
];

/// Returns true for a path, or the beginning of one, that leads out of all of these directories.
pub(super) fn leads_outside(path: &str, is_whole: bool, directories: &[String]) -> bool {
    let path = path.strip_prefix("file://").unwrap_or(path);
    if path.starts_with('~') {
        return true;
    }
    let Some(absolute) = path.strip_prefix('/') else { return depth(path) < 0 };
    if HARMLESS.contains(&path) || path.starts_with("/dev/fd/") {
        return false;
    }
    let Some(parts) = normal(absolute) else { return true };
    let inside = |directory: &String| {
        let Some(own) = normal(directory) else { return false };
        if parts.starts_with(&own) {
            return true;
        }
        // What follows the beginning of a path may lead inside.
        let end = if path.ends_with('/') { "/" } else { "" };
        let begin = format!("{}{end}", parts.join("/"));
        !is_whole && (parts.is_empty() || format!("{}/", own.join("/")).starts_with(&begin))
    };
    !directories.iter().any(inside)
}

/// Returns the parts of an absolute path without `.` and `..`. `None`: it leads above the root.
fn normal(path: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts)
}

/// Returns how far down a relative path leads at least on its way; below zero is outside.
fn depth(path: &str) -> i32 {
    let (mut depth, mut least) = (0, 0);
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => depth -= 1,
            _ => depth += 1,
        }
        least = least.min(depth);
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_what_they_stand_for() {
        for (written, plain) in [
            ("a", "a"),
            (r"\x2fetc", "/etc"),
            (r"\57etc", "/etc"),
            (r"\u002fetc", "/etc"),
            (r"a\nb", "a\nb"),
            (r"\\x", r"\x"),
            (r"end\", "end"),
            (r"\xzz", "zz"),
            (r"\é", "é"),
        ] {
            assert_eq!(unescaped(written), plain, "{written}");
        }
    }

    #[test]
    fn paths_are_inside_or_outside() {
        let directories = ["/workspace".to_owned(), "/tmp".to_owned()];
        let outside = |path| leads_outside(path, true, &directories);
        for inside in
            ["x", "a/../b", "/workspace", "/workspace/x", "/tmp/../workspace", "/dev/null", ""]
        {
            assert!(!outside(inside), "{inside}");
        }
        for path in [
            "/etc/passwd",
            "../x",
            "a/../../b",
            "~/x",
            "/workspaces",
            "/workspace/../etc",
            "/",
            "/..",
        ] {
            assert!(outside(path), "{path}");
        }
        let begins_outside = |path| leads_outside(path, false, &directories);
        assert!(!begins_outside("/work") && !begins_outside("/tmp/") && !begins_outside("/"));
        assert!(begins_outside("/etc/"));
    }
}
