//! Commands of the session itself. They begin with a colon, as no code does.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use chrono::{DateTime, Local};
use code_sandboxes::{FileInfo, FileKind};

/// What `:help` says.
pub(super) const HELP: &str = "\
:files [DIR]   list the files of the sandbox
:reset         begin again with a fresh interpreter; files stay
:save FILE     write the cells of this session into a file of this host
:help          this text
:quit          leave, as Ctrl-D does

Enter runs the code when it is complete; an empty line ends a block. Alt-Enter always begins a line.
Tab completes names. Up and Ctrl-R find what was typed before; a space at the beginning keeps it out.
Ctrl-C clears what was typed, or interrupts the code that runs; a second one ends its interpreter.
`!ls` runs a command in the sandbox.
";

const NAMES: [&str; 5] = [":files", ":help", ":quit", ":reset", ":save"];

/// One of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Colon {
    Files(Option<String>),
    Reset,
    Save(String),
    Help,
    Quit,
    /// None that there is.
    Unknown(String),
}

/// Whether that is meant for the session and not for the interpreter.
pub(super) fn is_command(text: &str) -> bool {
    text.starts_with(':') && !text.contains('\n')
}

/// What the text asks for. `None`: it is code.
pub(super) fn parse(text: &str) -> Option<Colon> {
    let text = text.trim_end();
    if matches!(text, "exit" | "exit()" | "quit" | "quit()") {
        return Some(Colon::Quit);
    }
    if !is_command(text) {
        return None;
    }
    let (name, argument) = match text.split_once(char::is_whitespace) {
        Some((name, argument)) => (name, Some(argument.trim().to_owned())),
        None => (text, None),
    };
    Some(match (name, argument) {
        (":files" | ":ls", directory) => Colon::Files(directory),
        (":reset", None) => Colon::Reset,
        (":save", Some(file)) => Colon::Save(file),
        (":help" | ":h" | ":?", None) => Colon::Help,
        (":quit" | ":q" | ":exit", None) => Colon::Quit,
        _ => Colon::Unknown(text.to_owned()),
    })
}

/// Those that begin like this.
pub(super) fn completions(before: &str) -> Vec<String> {
    let fitting = NAMES.iter().filter(|name| name.starts_with(before));
    fitting.map(|name| (*name).to_owned()).collect()
}

/// Rows about files: permissions, size, last change, name.
pub(super) fn rows(files: &[FileInfo]) -> Vec<Vec<String>> {
    files.iter().map(row).collect()
}

fn row(file: &FileInfo) -> Vec<String> {
    let name = match (&file.kind, &file.target) {
        (FileKind::Directory, _) => format!("{}/", file.name),
        (FileKind::Symlink, Some(target)) => format!("{} -> {target}", file.name),
        _ => file.name.clone(),
    };
    #[expect(clippy::cast_possible_truncation, reason = "seconds since 1970 fit for a while")]
    let changed = DateTime::from_timestamp(file.modified as i64, 0);
    let changed = changed.map_or_else(String::new, |time| {
        time.with_timezone(&Local).format("%Y-%m-%d %H:%M").to_string()
    });
    vec![file.permissions.clone(), file.size.to_string(), changed, name]
}

/// Writes cells as a program. A file that is there stays as it is.
pub(super) fn save(path: &Path, cells: &[String]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(cells.join("\n\n").as_bytes())?;
    file.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_code_are_told_apart() {
        let files = |path: &str| Some(Colon::Files(Some(path.into())));
        for (text, meant) in [
            (":files", Some(Colon::Files(None))),
            (":files /tmp/a b ", files("/tmp/a b")),
            (":q", Some(Colon::Quit)),
            ("exit()", Some(Colon::Quit)),
            (":reset", Some(Colon::Reset)),
            (":save x.py", Some(Colon::Save("x.py".into()))),
            (":save", Some(Colon::Unknown(":save".into()))),
            (":nope", Some(Colon::Unknown(":nope".into()))),
            ("exit = 1", None),
            ("x[:2]", None),
            ("", None),
        ] {
            assert_eq!(parse(text), meant, "{text:?}");
        }
        assert!(NAMES.iter().all(|name| HELP.contains(name)));
        assert_eq!(completions(":re"), [":reset"]);
    }

    #[test]
    fn what_is_saved_overwrites_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cells.py");
        save(&path, &["x = 1".into(), "x + 1".into()]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "x = 1\n\nx + 1\n");
        save(&path, &[]).unwrap_err();
    }
}
