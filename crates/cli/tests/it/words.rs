//! Libraries speak of their API: no text of theirs has a flag or a command of the command line.

use std::fs;
use std::path::{Path, PathBuf};

/// Crates whose users have the command line, or that are it.
const FACES: [&str; 3] = ["cli", "sandbox-server", "sandbox-supervisor"];

/// Flags of ours that other programs have too, so that a text may mean theirs.
const OF_OTHERS: [&str; 5] = ["--help", "--version", "--timeout", "--name", "--no-input"];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs" || ending == "py") {
            found.push(path);
        }
    }
}

/// Returns the flags of the commands that make and use sandboxes.
fn flags() -> Vec<String> {
    let mut all = Vec::new();
    for command in ["run", "create", "serve"] {
        let help = crate::support::sandboxes([command, "--help"]).output();
        let words = help.text().split_whitespace();
        let flags = words.filter(|word| word.starts_with("--"));
        all.extend(flags.map(|flag| flag.trim_end_matches([',', ']', '.']).to_owned()));
    }
    all.retain(|flag| flag.len() > 3 && !OF_OTHERS.contains(&flag.as_str()));
    all.sort();
    all.dedup();
    all
}

#[test]
fn texts_of_libraries_have_no_flag_and_no_command_of_ours() {
    let flags = flags();
    assert!(flags.iter().any(|flag| flag == "--network") && flags.len() > 20, "{flags:?}");
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let directory = entry.unwrap().path();
        let name = directory.file_name().unwrap().to_string_lossy().into_owned();
        if FACES.contains(&name.as_str()) || !directory.join("src").is_dir() {
            continue;
        }
        let mut found = Vec::new();
        sources(&directory.join("src"), &mut found);
        for path in found {
            // The table that turns calls into flags.
            if path.ends_with("sandbox-core/src/hint.rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
            for (number, line) in text[..tests].lines().enumerate() {
                let code = line.trim_start();
                if code.starts_with("//") || code.starts_with('#') {
                    continue;
                }
                let has = |flag: &String| {
                    line.contains(&format!("`{flag}`"))
                        || line.contains(&format!("`{flag} "))
                        || line.contains(&format!("({flag} "))
                };
                if flags.iter().any(has) || line.contains("`sandboxes ") {
                    wrong.push(format!("{}:{}: {code}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
