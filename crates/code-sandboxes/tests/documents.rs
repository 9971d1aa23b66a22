//! The documents agree with the sources: programs are tests, and the reference of errors is complete.
#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::fs;
use std::path::{Path, PathBuf};

use syn::Item;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the names of the variants of a public enum.
fn variants(file: &str, name: &str) -> Vec<String> {
    let source = fs::read_to_string(root().join("crates/sandbox-core/src").join(file)).unwrap();
    let items = syn::parse_file(&source).unwrap().items;
    let found = items.into_iter().find_map(|item| match item {
        Item::Enum(found) if found.ident == name => Some(found),
        _ => None,
    });
    found.unwrap().variants.iter().map(|variant| variant.ident.to_string()).collect()
}

/// Turns `OutOfMemory` into `out_of_memory`.
fn wire_name(name: &str) -> String {
    let mut text = String::new();
    for (index, letter) in name.char_indices() {
        if letter.is_uppercase() && index > 0 {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

#[test]
fn the_reference_of_errors_has_every_kind() {
    let page = fs::read_to_string(root().join("docs/errors.md")).unwrap();
    let (errors, failures) = page.split_once("## Failures").unwrap();
    for (part, file, name) in
        [(errors, "error.rs", "ErrorKind"), (failures, "model/result.rs", "FailureKind")]
    {
        let rows: Vec<&str> = part.lines().filter(|line| line.starts_with("| `")).collect();
        let kinds = variants(file, name);
        assert!(kinds.len() > 10, "{kinds:?}");
        for kind in &kinds {
            let row = rows.iter().find(|row| row.contains(&format!("`{kind}`")));
            let row = row.unwrap_or_else(|| panic!("{name}::{kind} is not in docs/errors.md"));
            assert!(row.contains(&format!("`{}`", wire_name(kind))), "{row}");
            assert_eq!(row.matches(" | ").count(), 3, "meaning and advice: {row}");
        }
        // No row is about something that is not there any more.
        for row in rows {
            let named = row.split('|').nth(1).unwrap();
            for kind in named.split('`').skip(1).step_by(2) {
                assert!(kinds.iter().any(|known| known == kind), "{name} has no {kind}");
            }
        }
    }
}

#[test]
fn programs_in_documents_are_tests() {
    let facade = fs::read_to_string(root().join("crates/code-sandboxes/src/lib.rs")).unwrap();
    let mut seen = 0;
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // The programs of mcp.md are about the server, which the facade does not know.
        if !name.ends_with(".md") || name == "mcp.md" {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        if !text.contains("```rust") {
            continue;
        }
        seen += 1;
        assert!(!text.contains("```rust,ignore"), "{name} has a program that nothing compiles");
        assert!(facade.contains(&format!("docs/{name}\")")), "{name} is not among the tests");
    }
    assert!(seen >= 8, "{seen} documents with programs");
}
