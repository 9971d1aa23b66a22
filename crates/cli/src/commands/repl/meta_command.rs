//! Commands of the session. They begin with a colon, which no code does.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use chrono::{DateTime, Local};
use code_sandboxes::{FileInfo, FileKind};

/// Text of `:help`.
pub(super) const HELP: &str = "\
:files [DIR]   list the files of the sandbox
:reset         restart the interpreter; files are kept
:save FILE     write the cells of this session into a file of this host
:help          show this text
:quit          leave, like Ctrl-D

Enter runs the code when it is complete; an empty line ends a block. Alt-Enter always starts a new line.
Tab completes names. Up and Ctrl-R search the history; code that begins with a space is not stored in it.
Ctrl-C clears the input, or interrupts the running code; a second Ctrl-C ends its interpreter.
`!ls` runs a command in the sandbox.
";

const NAMES: [&str; 5] = [":files", ":help", ":quit", ":reset", ":save"];

/// A command of the session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MetaCommand {
    Files(Option<String>),
    Reset,
    Save(String),
    Help,
    Quit,
    /// Not a command.
    Unknown(String),
}

/// Returns true for a command of the session.
pub(super) fn is_command(text: &str) -> bool {
    text.starts_with(':') && !text.contains('\n')
}

/// Parses a command of the session; `None` for code.
pub(super) fn parse(text: &str) -> Option<MetaCommand> {
    let text = text.trim_end();
    if matches!(text, "exit" | "exit()" | "quit" | "quit()") {
        return Some(MetaCommand::Quit);
    }
    if !is_command(text) {
        return None;
    }
    let (name, argument) = match text.split_once(char::is_whitespace) {
        Some((name, argument)) => (name, Some(argument.trim().to_owned())),
        None => (text, None),
    };
    Some(match (name, argument) {
        (":files" | ":ls", directory) => MetaCommand::Files(directory),
        (":reset", None) => MetaCommand::Reset,
        (":save", Some(file)) => MetaCommand::Save(file),
        (":help" | ":h" | ":?", None) => MetaCommand::Help,
        (":quit" | ":q" | ":exit", None) => MetaCommand::Quit,
        _ => MetaCommand::Unknown(text.to_owned()),
    })
}

/// Returns the commands that begin with the text.
pub(super) fn completions(before: &str) -> Vec<String> {
    let fitting = NAMES.iter().filter(|name| name.starts_with(before));
    fitting.map(|name| (*name).to_owned()).collect()
}

/// Makes rows of files: permissions, size, last change, name.
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

/// Writes cells as a program. Does not replace a file.
pub(super) fn save(path: &Path, cells: &[String]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(cells.join("\n\n").as_bytes())?;
    file.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_distinguished_from_code() {
        let files = |path: &str| Some(MetaCommand::Files(Some(path.into())));
        for (text, expected) in [
            (":files", Some(MetaCommand::Files(None))),
            (":files /tmp/a b ", files("/tmp/a b")),
            (":q", Some(MetaCommand::Quit)),
            ("exit()", Some(MetaCommand::Quit)),
            (":reset", Some(MetaCommand::Reset)),
            (":save x.py", Some(MetaCommand::Save("x.py".into()))),
            (":save", Some(MetaCommand::Unknown(":save".into()))),
            (":nope", Some(MetaCommand::Unknown(":nope".into()))),
            ("exit = 1", None),
            ("x[:2]", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text:?}");
        }
        assert!(NAMES.iter().all(|name| HELP.contains(name)));
        assert_eq!(completions(":re"), [":reset"]);
    }

    #[test]
    fn saving_overwrites_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cells.py");
        save(&path, &["x = 1".into(), "x + 1".into()]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "x = 1\n\nx + 1\n");
        save(&path, &[]).unwrap_err();
    }
}
