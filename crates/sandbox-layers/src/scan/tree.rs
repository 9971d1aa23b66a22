//! Syntax trees, within bounds of size, time and depth.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tree_sitter::{Language, Node, ParseOptions, Parser, Tree, TreeCursor};

use super::ScanRule;
use super::findings::Findings;

/// Maximum length of a text.
const MAX_TEXT: usize = 4 << 20;

/// Maximum time for parsing one text.
const MAX_TIME: Duration = Duration::from_millis(400);

/// Maximum depth of nodes that are looked at. Python itself refuses 200 brackets in each other.
const MAX_DEPTH: u32 = 2_000;

/// Parses a text. Whatever keeps it from being read whole is a finding.
pub(super) fn parse(text: &str, language: &Language, findings: &mut Findings<'_>) -> Option<Tree> {
    if text.len() > MAX_TEXT {
        let reason = format!("the text has more than {} MiB and is not looked at", MAX_TEXT >> 20);
        findings.add(ScanRule::Unread, 0, reason);
        return None;
    }
    let mut parser = Parser::new();
    if parser.set_language(language).is_err() {
        findings.add(ScanRule::Unread, 0, "the grammar cannot be used");
        return None;
    }
    let until = Instant::now() + MAX_TIME;
    let mut progress = |_: &tree_sitter::ParseState| {
        if Instant::now() > until { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = ParseOptions::new().progress_callback(&mut progress);
    let bytes = text.as_bytes();
    let mut read = |at: usize, _| bytes.get(at..).unwrap_or_default();
    let tree = parser.parse_with_options(&mut read, None, Some(options));
    if tree.is_none() {
        let reason = "the syntax takes too long to read, so the text is not looked at";
        findings.add(ScanRule::Unread, 0, reason);
    }
    tree
}

/// Visits every node, parents first, with the cursor that is at the node. The children of a node for which `visit` returns
/// false are left out. Returns the row of the first node that is too deep, if there is one.
pub(super) fn walk<'tree>(
    tree: &'tree Tree,
    mut visit: impl FnMut(Node<'tree>, &TreeCursor<'tree>) -> bool,
) -> Option<usize> {
    let mut cursor = tree.walk();
    let (mut depth, mut too_deep) = (0_u32, None);
    loop {
        let node = cursor.node();
        let mut descends = visit(node, &cursor);
        if descends && depth >= MAX_DEPTH {
            too_deep.get_or_insert(node.start_position().row);
            descends = false;
        }
        if descends && cursor.goto_first_child() {
            depth += 1;
            continue;
        }
        if !next(&mut cursor, &mut depth) {
            return too_deep;
        }
    }
}

/// Goes to the next node that is no descendant.
fn next(cursor: &mut TreeCursor<'_>, depth: &mut u32) -> bool {
    loop {
        if cursor.goto_next_sibling() {
            return true;
        }
        if !cursor.goto_parent() {
            return false;
        }
        *depth -= 1;
    }
}

/// Adds findings for what the parser could not read.
pub(super) fn note_unread(
    too_deep: Option<usize>,
    broken: Option<usize>,
    findings: &mut Findings<'_>,
) {
    if let Some(row) = too_deep {
        let reason = format!("nested more than {MAX_DEPTH} deep; what is deeper is not looked at");
        findings.add(ScanRule::Unread, row, reason);
    }
    if let Some(row) = broken {
        let reason = "the syntax is broken here, so what follows may not be recognized";
        findings.add(ScanRule::Unread, row, reason);
    }
}

/// Returns the text of a node.
pub(super) fn source<'text>(node: Node<'_>, text: &'text str) -> &'text str {
    text.get(node.byte_range()).unwrap_or_default()
}
