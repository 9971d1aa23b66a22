//! Hints say what to do, in the words of both kinds of users: flags for the command line, methods for programs. The Rust part
//! comes last, behind a mark, so that the command line can leave it out.

/// Separates the general part from the part for programs.
const MARK: &str = "; in Rust: ";

/// A hint of two parts: what to do, with the flags of the command line, and the same for programs.
pub fn hint_with_rust(flags: &str, rust: &str) -> String {
    format!("{flags}{MARK}{rust}")
}

/// A text without the parts of hints that are for programs.
///
/// A parenthesis that the text opened before such a part stays closed.
pub fn without_rust(text: &str) -> String {
    let Some((before, rust)) = text.split_once(MARK) else { return text.to_owned() };
    let opened = before.matches('(').count() > before.matches(')').count();
    let close = if opened && rust.trim_end().ends_with(')') { ")" } else { "" };
    format!("{before}{close}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_programs_goes_and_the_rest_stays() {
        let hint = hint_with_rust("`--allow HOST` opens it", ".network(x([\"HOST\"])?)");
        assert_eq!(hint, "`--allow HOST` opens it; in Rust: .network(x([\"HOST\"])?)");
        assert_eq!(without_rust(&hint), "`--allow HOST` opens it");
        assert_eq!(without_rust(&format!("no ({hint})")), "no (`--allow HOST` opens it)");
        assert_eq!(without_rust("plain; text"), "plain; text");
    }
}
