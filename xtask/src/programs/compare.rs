//! What differs between two transcripts, and which of it is expected.

use std::collections::BTreeMap;
use std::time::Duration;

/// The table of expected differences: blocks of a name, lines `- ` and `+ ` as below, and the reason.
const EXPECTED: &str = include_str!("differences.txt");

/// Lines of a transcript that differ in a known way.
#[derive(Debug)]
pub(super) struct Expected {
    /// The program that does it.
    pub(super) program: String,
    /// Patterns of lines: `- ` those outside alone, `+ ` those inside alone; a `*` is any text.
    pub(super) lines: Vec<String>,
    pub(super) reason: String,
}

/// The expected differences.
pub(super) fn expected() -> Result<Vec<Expected>, String> {
    parse(EXPECTED)
}

fn parse(text: &str) -> Result<Vec<Expected>, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for block in lines.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        let (program, rest) = block.split_once('\n').unwrap_or((block, ""));
        let (lines, reason): (Vec<&str>, Vec<&str>) =
            rest.lines().map(str::trim).partition(|l| l.starts_with("- ") || l.starts_with("+ "));
        if lines.is_empty() || reason.is_empty() {
            return Err(format!("differences.txt: {program:?} has no lines or no reason"));
        }
        let lines = lines.into_iter().map(str::to_owned).collect();
        found.push(Expected { program: program.to_owned(), lines, reason: reason.join(" ") });
    }
    Ok(found)
}

/// Differences of a program.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Those in the table, below their reason.
    pub(super) explained: BTreeMap<String, Vec<String>>,
    pub(super) unexpected: Vec<String>,
    /// Those in the table that were not seen.
    pub(super) gone: Vec<String>,
}

impl Verdict {
    pub(super) fn print(&self, name: &str, took: Duration) {
        let word = match (self.unexpected.is_empty(), self.explained.is_empty()) {
            (false, _) => "FAILED  ",
            (true, false) => "expected",
            (true, true) => "alike   ",
        };
        println!("{word} {name} ({:.1} s)", took.as_secs_f64());
        self.unexpected.iter().for_each(|line| println!("    {line}"));
        for (reason, lines) in &self.explained {
            println!("    {reason}");
            lines.iter().for_each(|line| println!("        {line}"));
        }
        self.gone.iter().for_each(|line| println!("    not seen this time: {line}"));
    }
}

/// Compares what a program did in both places.
pub(super) fn judge(
    program: &str,
    outside: &[String],
    inside: &[String],
    expected: &[Expected],
) -> Verdict {
    let own: Vec<_> = expected.iter().filter(|expected| expected.program == program).collect();
    let differences = differences(outside, inside);
    let mut verdict = Verdict::default();
    for line in &differences {
        let why = own.iter().find(|e| e.lines.iter().any(|pattern| matches(line, pattern)));
        match why {
            Some(expected) => {
                verdict.explained.entry(expected.reason.clone()).or_default().push(line.clone());
            }
            None => verdict.unexpected.push(line.clone()),
        }
    }
    let patterns = own.iter().flat_map(|expected| &expected.lines);
    let gone = patterns.filter(|pattern| !differences.iter().any(|line| matches(line, pattern)));
    verdict.gone = gone.cloned().collect();
    verdict
}

/// Lines that one transcript has alone, in order: `- ` for the first and `+ ` for the second.
fn differences(first: &[String], second: &[String]) -> Vec<String> {
    // `common[i][j]` is the length of the longest common subsequence of what follows line i and line j.
    let mut common = vec![vec![0_usize; second.len() + 1]; first.len() + 1];
    for i in (0..first.len()).rev() {
        for j in (0..second.len()).rev() {
            common[i][j] = if first[i] == second[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut found = Vec::new();
    while i < first.len() || j < second.len() {
        if i < first.len() && j < second.len() && first[i] == second[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == second.len() || (i < first.len() && common[i + 1][j] >= common[i][j + 1]) {
            found.push(format!("- {}", first[i]));
            i += 1;
        } else {
            found.push(format!("+ {}", second[j]));
            j += 1;
        }
    }
    found
}

/// Whether a line is as a pattern has it, where a `*` stands for any text.
fn matches(line: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn differences_are_in_order_and_order_is_one() {
        assert_eq!(differences(&lines("a b c"), &lines("a x c d")), ["- b", "+ x", "+ d"]);
        assert_eq!(differences(&lines("a b"), &lines("b a")), ["- a", "+ a"]);
        assert!(differences(&lines("a b"), &lines("a b")).is_empty());
    }

    #[test]
    fn a_star_is_any_text() {
        assert!(matches("- out 12 of 30", "- out * of 30"));
        assert!(matches("- out x", "- out *") && matches("- out x", "- out x"));
        assert!(!matches("- out x", "- out") && !matches("- out x y", "- out *x"));
        assert!(!matches("+ out x", "- out *"));
    }

    #[test]
    fn what_the_table_does_not_have_is_unexpected() {
        let table = parse("# Comment\n\nls\n- a\n+ b\n  Because.\n").expect("a table");
        let verdict = judge("ls", &lines("a c"), &lines("b d"), &table);
        assert_eq!(verdict.explained["Because."], ["- a", "+ b"]);
        assert_eq!(verdict.unexpected, ["- c", "+ d"]);
        let verdict = judge("cp", &lines("a"), &lines("b"), &table);
        assert_eq!(verdict.unexpected, ["- a", "+ b"]);
        let verdict = judge("ls", &lines("c"), &lines("c"), &table);
        assert_eq!(verdict.gone, ["- a", "+ b"]);
    }

    #[test]
    fn a_difference_without_a_reason_is_refused() {
        assert!(parse("ls\n- a\n").is_err() && parse("ls\nBecause.\n").is_err());
        assert!(expected().is_ok());
    }
}
