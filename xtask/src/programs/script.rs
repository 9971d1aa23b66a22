//! The scripts: what each does, and what it needs.

use std::fs;
use std::path::PathBuf;

use crate::workspace;

/// A script, with what the comments at its beginning say.
///
/// The first says what it does. Others are `# KEY: VALUE`.
#[derive(Debug, Default)]
pub(super) struct Program {
    /// The name of the file, without `.sh`.
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// What it does, in half a sentence.
    pub(super) does: String,
    /// `has`: commands that must be there.
    pub(super) has: Vec<String>,
    /// `apt`: packages of Debian that have those commands.
    pub(super) apt: Vec<String>,
    /// `npm`: packages that are installed in a folder of their own.
    pub(super) npm: Vec<String>,
    /// `pip`: packages that are installed in a virtual environment.
    pub(super) pip: Vec<String>,
    /// `hide`: expressions of `sed -E` for what differs from run to run, such as times.
    pub(super) hide: Vec<String>,
    /// `options`: more flags of `sandboxes run`.
    pub(super) options: Vec<String>,
}

impl Program {
    fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut program = Self { name: name.to_owned(), ..Self::default() };
        let mut lines = text.lines().map_while(|line| line.strip_prefix("# "));
        program.does = lines.next().unwrap_or_default().trim_end_matches('.').to_owned();
        if program.does.is_empty() {
            return Err(format!("{name}.sh: its first line says what it does, after `# `"));
        }
        for line in lines {
            let (key, value) = line.split_once(": ").unwrap_or((line, ""));
            let list = match key {
                "has" => &mut program.has,
                "apt" => &mut program.apt,
                "npm" => &mut program.npm,
                "pip" => &mut program.pip,
                "options" => &mut program.options,
                "hide" => {
                    program.hide.push(value.to_owned());
                    continue;
                }
                _ => return Err(format!("{name}.sh: {key:?} is none of its keys")),
            };
            list.extend(value.split_whitespace().map(str::to_owned));
        }
        Ok(program)
    }
}

/// The folder with the scripts.
pub(super) fn folder() -> PathBuf {
    workspace::root().join("xtask/src/programs")
}

/// All scripts, by name.
pub(super) fn all() -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    for path in workspace::files(&folder(), &["sh"])? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).map_err(|error| format!("{path:?}: {error}"))?;
        programs.push(Program { path, ..Program::parse(&name, &text)? });
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_comments_at_the_beginning_say_what_is_needed() {
        let text =
            "# Adds numbers.\n# has: bc dc\n# hide: s/[0-9]+ ms/TIME/\n\n# other: comment\nbc\n";
        let program = Program::parse("sums", text).expect("a program");
        assert_eq!(program.does, "Adds numbers");
        assert_eq!(program.has, ["bc", "dc"]);
        assert_eq!(program.hide, ["s/[0-9]+ ms/TIME/"]);
        assert!(Program::parse("sums", "# Adds.\n# hass: bc\n").is_err());
        assert!(Program::parse("sums", "bc\n").is_err());
    }
}
