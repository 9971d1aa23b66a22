//! The map: every crate with what it builds on, and every file with the sentence that it begins with.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::outputs::Outputs;
use crate::metadata::{Metadata, Package};
use crate::workspace;

/// Folders of a crate that are not on the map.
const LEFT_OUT: [&str; 4] = ["tests", "benches", "examples", "vectors"];

pub(super) fn write(metadata: &Metadata, outputs: &mut Outputs) -> Result<(), String> {
    let crates = in_order(&metadata.packages);
    outputs.part("ARCHITECTURE.md", "crates", &table(&crates))?;
    let mut map = "# Map\n\nEvery file of every crate, with the sentence that it begins with; tests, examples and benchmarks are left out. What builds on others comes before them. Written by `cargo xtask generate`; not to be edited.\n".to_owned();
    for package in crates {
        map.push_str(&section(package)?);
    }
    outputs.whole("docs/map.md", map);
    Ok(())
}

/// The crates, what needs others first.
fn in_order(packages: &[Package]) -> Vec<&Package> {
    let by_name: BTreeMap<_, _> = packages.iter().map(|one| (&*one.name, one)).collect();
    let mut order: Vec<_> = packages.iter().collect();
    order.sort_by_key(|one| (std::cmp::Reverse(height(one, &by_name)), &one.folder));
    order
}

/// How many crates are on the longest way down from this one.
fn height(package: &Package, by_name: &BTreeMap<&str, &Package>) -> usize {
    let below = package.needs.iter().filter_map(|name| by_name.get(&**name));
    below.map(|one| height(one, by_name) + 1).max().unwrap_or(0)
}

fn table(crates: &[&Package]) -> String {
    let folder_of =
        |name: &String| crates.iter().find(|one| one.name == *name).map(|one| short(&one.folder));
    let mut table = "| Crate | Holds | Builds on |\n|---|---|---|\n".to_owned();
    for package in crates {
        let needs: Vec<_> = package.needs.iter().filter_map(folder_of).collect();
        let _ = writeln!(
            table,
            "| [`{0}`](docs/map.md#{0}) | {1} | {2} |",
            short(&package.folder),
            package.description,
            needs.join(", ")
        );
    }
    table
}

fn short(folder: &str) -> &str {
    folder.trim_start_matches("crates/")
}

fn section(package: &Package) -> Result<String, String> {
    let folder = workspace::root().join(&package.folder);
    let mut section = format!("\n## {}\n\n", short(&package.folder));
    if !package.description.is_empty() {
        let _ = writeln!(section, "{}.\n", package.description);
    }
    for path in workspace::files(&folder, &["rs", "py"])? {
        let shown = path.strip_prefix(&folder).unwrap_or(&path);
        if is_left_out(shown) {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|error| format!("{path:?}: {error}"))?;
        if let Some(sentence) = sentence(&text) {
            let _ = writeln!(section, "- `{}`: {sentence}", shown.display());
        }
    }
    Ok(section)
}

fn is_left_out(path: &Path) -> bool {
    let is_folder = path.iter().any(|part| LEFT_OUT.iter().any(|name| part == *name));
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    is_folder || name == "tests" || name.ends_with("_tests")
}

/// The first sentence of what a file says of itself. `None` when its page is another file.
fn sentence(text: &str) -> Option<String> {
    let lines: Vec<_> = match text.strip_prefix("\"\"\"") {
        Some(rest) => rest.split("\"\"\"").next()?.lines().collect(),
        None => text.lines().map_while(|line| line.strip_prefix("//!")).collect(),
    };
    let paragraph = lines.iter().map(|line| line.trim()).take_while(|line| !line.is_empty());
    let paragraph = paragraph.collect::<Vec<_>>().join(" ");
    let end = paragraph.find(". ").map_or(paragraph.len(), |end| end + 1);
    let sentence = paragraph[..end].trim();
    (!sentence.is_empty()).then(|| sentence.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sentence_is_the_one_on_the_map() {
        let rust =
            "//! One thing, over\n//! two lines. And more.\n//!\n//! Not this.\nfn main() {}\n";
        assert_eq!(sentence(rust).unwrap(), "One thing, over two lines.");
        assert_eq!(sentence("\"\"\"A tool.\n\nMore.\"\"\"\nimport os\n").unwrap(), "A tool.");
        assert_eq!(sentence("\"\"\"A tool\"\"\"\n").unwrap(), "A tool");
        assert_eq!(sentence("#![doc = include_str!(\"../README.md\")]\n"), None);
    }

    #[test]
    fn what_builds_on_others_comes_first() {
        let package = |name: &str, needs: &[&str]| Package {
            name: name.into(),
            folder: format!("crates/{name}"),
            needs: needs.iter().map(ToString::to_string).collect(),
            description: "Things".into(),
            ..Package::default()
        };
        let packages = [package("a", &[]), package("b", &["a", "c"]), package("c", &["a"])];
        let order: Vec<_> = in_order(&packages).iter().map(|one| &*one.name).collect();
        assert_eq!(order, ["b", "c", "a"]);
        assert_eq!(
            table(&in_order(&packages)).lines().nth(2),
            Some("| [`b`](docs/map.md#b) | Things | a, c |")
        );
    }

    #[test]
    fn tests_are_not_on_the_map() {
        assert!(is_left_out(Path::new("tests/it/main.rs")));
        assert!(is_left_out(Path::new("src/policy/tests.rs")));
        assert!(is_left_out(Path::new("src/link_tests.rs")));
        assert!(!is_left_out(Path::new("src/link.rs")));
    }
}
