//! Commands that a later process may find: what the toolbox keeps of a command is its line, which begins with a note.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_shell::KeptProgram;

/// First words of such a line.
const KEPT: &str = ": code-sandboxes";

/// Returns the beginning of a command line by which a later process finds the command. The shell passes it over.
pub(crate) fn kept(kept: &KeptProgram, has_input: bool) -> String {
    let input = if has_input { "input" } else { "none" };
    format!("{KEPT} {input} {} {}; ", kept.word, STANDARD.encode(&kept.label))
}

/// Reads the beginning that [`kept`] wrote: the command, and true where it has an input.
pub(crate) fn find_kept(line: &str) -> Option<(KeptProgram, bool)> {
    let mut words = line.strip_prefix(KEPT)?.split(';').next()?.split_whitespace();
    let (input, word, label) = (words.next()?, words.next()?, words.next()?);
    let label = String::from_utf8(STANDARD.decode(label).ok()?).ok()?;
    Some((KeptProgram { label, word: word.to_owned() }, input == "input"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn commands_that_stay_are_found_by_their_line() {
        let program = KeptProgram { label: r#"{"line": "it's; $x"}"#.into(), word: "ab12".into() };
        let command = kept(&program, true) + "( exit 3 )";
        assert_eq!(find_kept(&command), Some((program.clone(), true)));
        assert_eq!(find_kept(&kept(&program, false)), Some((program, false)));
        for other in ["make", ": code-sandboxes", ": code-sandboxes input w %%; make"] {
            assert_eq!(find_kept(other), None);
        }
        // No shell does anything with it.
        let done = Command::new("/bin/sh").args(["-c", &format!("{command}; echo $?")]).output();
        let done = done.unwrap();
        assert_eq!((&done.stdout[..], &done.stderr[..]), (&b"3\n"[..], &b""[..]));
    }
}
