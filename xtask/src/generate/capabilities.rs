//! The table of what each cloud declares, and what the behaviour suite has shown of it.
//!
//! A backend whose sandboxes are elsewhere has `capabilities.json` beside its manifest, which its run of the suite compares.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::descriptor::{Backends, Descriptor};
use crate::workspace;

/// The file in the folder of a backend.
const RECORD: &str = "capabilities.json";

/// The list of all capabilities, with what each means.
const CAPABILITIES: &str = "crates/sandbox-core/src/capability.rs";

/// A backend and its capabilities, each with the word of the suite: `verified` or `declared`.
type Column<'a> = (&'a Descriptor, BTreeMap<String, String>);

/// Returns the table of all clouds that have a record.
///
/// # Errors
/// Says which file cannot be read.
pub(super) fn table(backends: &Backends) -> Result<String, String> {
    let path = workspace::root().join(CAPABILITIES);
    let source =
        std::fs::read_to_string(&path).map_err(|error| format!("{CAPABILITIES}: {error}"))?;
    let mut columns = Vec::new();
    for backend in backends.built.iter().filter(|backend| !backend.local) {
        let path = workspace::root().join(&backend.folder).join(RECORD);
        // A new backend has none until its suite has run whole.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let record = serde_json::from_str(&text)
            .map_err(|error| format!("{}/{RECORD}: {error}", backend.folder))?;
        columns.push((backend, record));
    }
    Ok(rows(&meanings(&source), &columns))
}

/// Returns the capabilities in their order, with the sentence that says what each means.
fn meanings(source: &str) -> Vec<(String, String)> {
    let list = source.split_once("capabilities! {").map_or("", |(_, list)| list);
    let (mut all, mut sentence) = (Vec::new(), String::new());
    for line in list.lines().map(str::trim).take_while(|line| *line != "}") {
        if let Some(text) = line.strip_prefix("///") {
            sentence = [sentence.as_str(), text.trim()].join(" ");
        } else if let Some(name) = line.strip_suffix(',') {
            let meaning = std::mem::take(&mut sentence);
            all.push((name.to_owned(), meaning.trim().trim_end_matches('.').to_owned()));
        }
    }
    all
}

fn rows(meanings: &[(String, String)], columns: &[Column<'_>]) -> String {
    let names: Vec<_> =
        columns.iter().map(|(backend, _)| format!("`{}`", backend.variant)).collect();
    let mut table = format!("| Capability | {} | Shown by |\n", names.join(" | "));
    let _ = writeln!(table, "|---|{}---|", "---|".repeat(columns.len()));
    for (name, meaning) in meanings {
        let cells: Vec<_> = columns.iter().map(|(_, record)| record.get(name)).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let shown: Vec<_> =
            cells.iter().map(|cell| if cell.is_some() { "yes" } else { "no" }).collect();
        let _ = writeln!(
            table,
            "| `{name}`: {meaning} | {} | {} |",
            shown.join(" | "),
            proof(name, columns)
        );
    }
    table
}

/// Says by what the capability is shown of all that declare it.
fn proof(name: &str, columns: &[Column<'_>]) -> String {
    let of = |word: &str| -> Vec<_> {
        let with = columns.iter().filter(|(backend, record)| {
            let in_tests = backend.shown_by_tests.iter().any(|shown| shown == name);
            record
                .get(name)
                .is_some_and(|known| if in_tests { word == "verified" } else { known == word })
        });
        with.map(|(backend, _)| format!("`{}`", backend.variant)).collect()
    };
    let (verified, declared) = (of("verified"), of("declared"));
    match (verified.is_empty(), declared.is_empty()) {
        (false, true) => "verified against our server".to_owned(),
        (true, _) => "only the live service can show".to_owned(),
        (false, false) => format!(
            "verified against our server; of {} only the live service can show",
            declared.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::tests::example;

    const SOURCE: &str = "macro\ncapabilities! {\n    /// Files are\n    /// written.\n    files,\n    /// GPUs.\n    gpu,\n\
                          /// Nobody has it.\n    none,\n}\nimpl X {}\n";

    #[test]
    fn each_row_says_who_has_it_and_what_has_shown_it() {
        let backends = Backends::read(&example()).unwrap();
        let column = |words: &[(&str, &str)]| {
            let word = |(name, word): &(&str, &str)| ((*name).to_owned(), (*word).to_owned());
            (&backends.built[0], words.iter().map(word).collect())
        };
        let columns = [
            column(&[("files", "verified"), ("gpu", "declared")]),
            column(&[("files", "declared")]),
        ];
        let table = rows(&meanings(SOURCE), &columns);
        let lines: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| `files`: Files are written | yes | yes | verified against our server; of `local-toy` only the live service can show |",
                "| `gpu`: GPUs | yes | no | only the live service can show |",
            ]
        );
    }

    #[test]
    fn the_list_of_capabilities_is_found() {
        let path = workspace::root().join(CAPABILITIES);
        let all = meanings(&std::fs::read_to_string(path).unwrap());
        assert!(all.len() > 40, "{all:?}");
        assert!(
            all.iter().all(|(name, meaning)| !name.is_empty() && !meaning.is_empty()),
            "{all:?}"
        );
        assert_eq!(all[0].0, "run_code");
    }
}
