//! Commands that a later process may find: the bridge tells the arguments of a process, and one of them is a note.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_shell::KeptProgram;

/// Beginning of a note.
const NOTE: &str = "code-sandboxes:";

/// Returns the note about a program: its FIFO or `-`, its word in two parts, so that no list of processes has it, and its label.
pub(crate) fn note(kept: &KeptProgram, fifo: &str) -> String {
    let (first, second) = kept.word.split_at(kept.word.len() / 2);
    format!("{NOTE}{fifo}:{first}:{second}:{}", STANDARD.encode(&kept.label))
}

/// Reads what [`note`] wrote: the program, and its FIFO where it has one.
pub(crate) fn find_note(word: &str) -> Option<(KeptProgram, Option<String>)> {
    let mut parts = word.strip_prefix(NOTE)?.split(':');
    let (fifo, first, second) = (parts.next()?, parts.next()?, parts.next()?);
    let label = String::from_utf8(STANDARD.decode(parts.next()?).ok()?).ok()?;
    let fifo = (fifo != "-").then(|| fifo.to_owned());
    Some((KeptProgram { label, word: format!("{first}{second}") }, fifo))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written() {
        let kept = KeptProgram { label: r#"{"line": "it's: $x"}"#.into(), word: "ab12".into() };
        let fifo = "/tmp/.sandbox-1";
        assert_eq!(find_note(&note(&kept, fifo)), Some((kept.clone(), Some(fifo.to_owned()))));
        assert!(!note(&kept, fifo).contains(&kept.word));
        assert_eq!(find_note(&note(&kept, "-")), Some((kept, None)));
        for other in ["make", NOTE, "code-sandboxes:-:a:b:%%"] {
            assert_eq!(find_note(other), None, "{other}");
        }
    }
}
