//! The table of the README matches the crate.

use std::collections::BTreeSet;

use jupyter_protocol::Content;

const README: &str = include_str!("../README.md");

/// The tests with real kernels, `tests/it/answers.rs`, check the claims of the table.
#[test]
fn the_table_has_every_type_of_message() {
    let (_, table) = README
        .split_once("| Message | IPython | Bash | xeus-python | Deno |\n|---|---|---|---|---|\n")
        .unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let listed: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    let (replies, others): (BTreeSet<&str>, BTreeSet<&str>) =
        Content::MSG_TYPES.iter().partition(|msg_type| msg_type.ends_with("_reply"));
    assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), others);
    assert_eq!(listed.len(), others.len(), "each is listed once");
    let answers = others.iter().filter_map(|msg_type| msg_type.strip_suffix("_request"));
    let answers: BTreeSet<String> = answers.map(|request| format!("{request}_reply")).collect();
    assert_eq!(replies, answers.iter().map(String::as_str).collect(), "a reply for each request");
}
