//! The house rules about files that no compiler checks.

use std::fs;
use std::path::Path;

use crate::workspace;

/// Maximum length of a file. Most are much shorter.
const MAX_LINES: usize = 900;

/// The one crate that may contain unsafe code.
const UNSAFE_CRATE: &str = "sandbox-isolation";

/// Prints every violation; whether there was none.
pub(crate) fn run() -> Result<bool, String> {
    let mut problems = Vec::new();
    for folder in ["crates", "xtask"] {
        for path in workspace::files(&workspace::root().join(folder), &["rs", "py"])? {
            let text = fs::read_to_string(&path).map_err(|error| format!("{path:?}: {error}"))?;
            let is_rust = path.extension().is_some_and(|extension| extension == "rs");
            let own = check_file(&text, is_rust);
            problems.extend(own.into_iter().map(|problem| format!("{}: {problem}", shown(&path))));
        }
    }
    for folder in workspace::crates()? {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = folder.join("Cargo.toml");
        let manifest = fs::read_to_string(&path).map_err(|error| format!("{path:?}: {error}"))?;
        let own = check_manifest(&name, &manifest);
        problems.extend(own.into_iter().map(|problem| format!("{}: {problem}", shown(&path))));
    }
    for problem in &problems {
        println!("{problem}");
    }
    println!("tidy: {}", if problems.is_empty() { "ok" } else { "FAILED" });
    Ok(problems.is_empty())
}

fn shown(path: &Path) -> String {
    path.strip_prefix(workspace::root()).unwrap_or(path).display().to_string()
}

fn check_file(text: &str, is_rust: bool) -> Vec<String> {
    let mut problems = Vec::new();
    let start = if is_rust { "//!" } else { "\"\"\"" };
    // The page of a crate may be its README.
    let is_readme = is_rust && text.starts_with("#![doc = include_str!");
    if !text.starts_with(start) && !is_readme {
        problems.push(format!("does not begin with `{start}`: what is it for?"));
    }
    let lines = text.lines().count();
    if lines > MAX_LINES {
        problems.push(format!("has {lines} lines, the most is {MAX_LINES}"));
    }
    for (number, line) in text.lines().enumerate() {
        for mark in unfinished_marks() {
            if line.contains(&mark) {
                problems.push(format!("line {} has `{mark}`", number + 1));
            }
        }
    }
    problems
}

/// Marks of work that was put off. Put together here, so that this file has none.
fn unfinished_marks() -> [String; 3] {
    [["TO", "DO"], ["FIX", "ME"], ["todo", "!("]].map(|parts| parts.concat())
}

fn check_manifest(folder: &str, manifest: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let package = value(manifest, "[package]", "name").unwrap_or_default();
    if package != package_of(folder) {
        problems
            .push(format!("package is {package:?}, the folder asks for {:?}", package_of(folder)));
    }
    let library = folder.replace('-', "_");
    if manifest.contains("[lib]") && value(manifest, "[lib]", "name") != Some(library.as_str()) {
        problems.push(format!("library is not {library:?}"));
    }
    let takes_lints = manifest.contains("[lints]\nworkspace = true");
    if !takes_lints && folder != UNSAFE_CRATE {
        problems.push("does not take the lints of the workspace".to_owned());
    }
    problems
}

/// `sandbox-core` is the package `code-sandboxes-core`, `cli` is `code-sandboxes-cli`.
fn package_of(folder: &str) -> String {
    match folder {
        "code-sandboxes" => folder.to_owned(),
        other => format!("code-sandboxes-{}", other.strip_prefix("sandbox-").unwrap_or(other)),
    }
}

/// The string of a key in a section.
fn value<'a>(manifest: &'a str, section: &str, key: &str) -> Option<&'a str> {
    let (_, rest) = manifest.split_once(section)?;
    let section = rest.split("\n[").next()?;
    let line = section.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_prefix('='))?;
    Some(line.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_checked() {
        assert!(check_file("//! A file.\nfn main() {}\n", true).is_empty());
        assert!(check_file("\"\"\"A file.\"\"\"\n", false).is_empty());
        assert_eq!(check_file("fn main() {}\n", true).len(), 1);
        assert_eq!(check_file("import os\n", false).len(), 1);
        let long = format!("//! Long.\n{}", "//\n".repeat(MAX_LINES));
        assert_eq!(check_file(&long, true), ["has 901 lines, the most is 900"]);
        let marked = format!("//! A file.\n// {} later\n", unfinished_marks()[0]);
        assert!(check_file(&marked, true)[0].starts_with("line 2 has"));
    }

    #[test]
    fn names_follow_from_folders() {
        let manifest = |name: &str, lib: &str| {
            format!(
                "[package]\nname = \"{name}\"\n\n[lib]\nname = \"{lib}\"\n\n[lints]\nworkspace = true\n"
            )
        };
        assert!(
            check_manifest("sandbox-core", &manifest("code-sandboxes-core", "sandbox_core"))
                .is_empty()
        );
        assert!(
            check_manifest(
                "backend-eval",
                &manifest("code-sandboxes-backend-eval", "backend_eval")
            )
            .is_empty()
        );
        assert!(
            check_manifest("code-sandboxes", &manifest("code-sandboxes", "code_sandboxes"))
                .is_empty()
        );
        assert_eq!(check_manifest("sandbox-core", &manifest("sandbox-core", "core")).len(), 2);
        assert_eq!(check_manifest("cli", "[package]\nname = \"code-sandboxes-cli\"\n").len(), 1);
    }
}
