//! The rules for lines and scripts of a shell.

use tree_sitter::Node;

use super::findings::Findings;
use super::text::{Literal, unescaped};
use super::tree::{note_unread, parse, source, walk};
use super::{ScanRule, commands};

/// Maximum number of parts of one word, and of words of one command, that are looked at.
const MAX_PARTS: usize = 256;

/// Looks at a line or a script.
pub(super) fn look(text: &str, findings: &mut Findings<'_>) {
    let Some(tree) = parse(text, &tree_sitter_bash::LANGUAGE.into(), findings) else { return };
    let mut broken = None;
    let too_deep = walk(&tree, |node, _| {
        let row = node.start_position().row;
        if node.is_error() || node.is_missing() {
            broken.get_or_insert(row);
        }
        match node.kind() {
            "command" => commands::check(&words(node, text), row, findings),
            "pipeline" => check_pipeline(node, text, row, findings),
            "redirected_statement" => check_heredoc(node, text, row, findings),
            "file_redirect" => check_redirect(node, text, row, findings),
            "function_definition" => check_function(node, text, row, findings),
            "comment" => return false,
            _ => {}
        }
        true
    });
    note_unread(too_deep, broken, findings);
}

/// Returns the program of a command and its arguments.
fn words(command: Node<'_>, text: &str) -> Vec<Literal> {
    let mut cursor = command.walk();
    let children = command.named_children(&mut cursor);
    let is_word = |node: &Node<'_>| {
        !matches!(
            node.kind(),
            "variable_assignment" | "file_redirect" | "heredoc_redirect" | "herestring_redirect"
        )
    };
    children.filter(is_word).take(MAX_PARTS).map(|node| word(node, text)).collect()
}

/// Returns a word as far as the text shows it.
fn word(node: Node<'_>, text: &str) -> Literal {
    let mut literal = Literal { text: String::new(), is_whole: true };
    let (mut left, mut parts) = (vec![node], 0);
    while let Some(node) = left.pop() {
        parts += 1;
        if parts > MAX_PARTS {
            literal.is_whole = false;
            break;
        }
        let written = source(node, text);
        match node.kind() {
            "word" | "number" | "test_operator" | "regex" | "extglob_pattern" => {
                literal.text.push_str(&without_backslashes(written));
            }
            "string_content" => literal.text.push_str(&without_backslashes(written)),
            "raw_string" => literal.text.push_str(written.trim_matches('\'')),
            "ansi_c_string" => {
                let inner = written.strip_prefix("$'").and_then(|rest| rest.strip_suffix('\''));
                literal.text.push_str(&unescaped(inner.unwrap_or(written)));
            }
            "command_name" | "string" | "concatenation" | "translated_string" => {
                let count = u32::try_from(node.named_child_count()).unwrap_or_default();
                left.extend((0..count).rev().filter_map(|index| node.named_child(index)));
            }
            _ => {
                literal.is_whole = false;
                break;
            }
        }
    }
    literal
}

fn without_backslashes(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let (mut plain, mut is_escaped) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        if c == '\\' && !is_escaped {
            is_escaped = true;
        } else {
            is_escaped = false;
            plain.push(c);
        }
    }
    plain
}

/// Finds a shell or an interpreter that runs what a pipeline gives it.
fn check_pipeline(node: Node<'_>, text: &str, row: usize, findings: &mut Findings<'_>) {
    let count = u32::try_from(node.named_child_count()).unwrap_or_default();
    let last = count.checked_sub(1).and_then(|last| node.named_child(last));
    let Some(last) = last.filter(|last| count > 1 && last.kind() == "command") else { return };
    let words = words(last, text);
    let Some((program, arguments)) = words.split_first() else { return };
    let reads_code = arguments.iter().all(|word| matches!(word.text.as_str(), "-" | "-s"));
    if commands::language_of(&program.text).is_some() && reads_code {
        let reason = format!("`{}` runs what it is given as code", program.text);
        findings.add(ScanRule::DynamicCode, row, reason);
    }
}

/// Looks at code that an interpreter gets as a document in the text.
fn check_heredoc(node: Node<'_>, text: &str, row: usize, findings: &mut Findings<'_>) {
    let Some(body) = node.child_by_field_name("body").filter(|body| body.kind() == "command")
    else {
        return;
    };
    let words = words(body, text);
    let language = words.first().and_then(|program| commands::language_of(&program.text));
    let Some(language) = language else { return };
    let mut cursor = node.walk();
    for redirect in node.named_children(&mut cursor) {
        let mut inner = redirect.walk();
        let code = redirect.named_children(&mut inner).find(|part| part.kind() == "heredoc_body");
        if let Some(code) = code {
            findings.look_inside(source(code, text), language, row);
        }
    }
}

/// Checks the file of a redirection.
fn check_redirect(node: Node<'_>, text: &str, row: usize, findings: &mut Findings<'_>) {
    let Some(target) = node.child_by_field_name("destination") else { return };
    let target = word(target, text);
    if target.text.starts_with("/dev/tcp/") || target.text.starts_with("/dev/udp/") {
        return findings.add(ScanRule::Network, row, "a redirection opens a connection");
    }
    if !target.text.is_empty() {
        findings.check_path(&target.text, target.is_whole, row);
    }
}

/// Finds a function that starts itself again and again.
fn check_function(node: Node<'_>, text: &str, row: usize, findings: &mut Findings<'_>) {
    let (name, body) = (node.child_by_field_name("name"), node.child_by_field_name("body"));
    let Some((name, body)) = name.zip(body) else { return };
    let (name, body) = (source(name, text).trim(), source(body, text));
    let calls = body
        .split(|c: char| c.is_whitespace() || "{}|&;()".contains(c))
        .filter(|word| !name.is_empty() && *word == name)
        .count();
    if calls >= 2 && body.contains(['|', '&']) {
        let reason = "a function starts itself more than once: a fork bomb";
        findings.add(ScanRule::Process, row, reason);
    }
}
