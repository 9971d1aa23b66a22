//! The table of the programs in the documents.

use std::fmt::Write as _;
use std::fs;

use super::compare;
use super::script::Program;
use crate::workspace;

/// The page that has the table.
pub(super) const PAGE: &str = "docs/compatibility.md";

/// The lines around the table.
const MARKS: [&str; 2] =
    ["<!-- programs: written by `cargo xtask test-programs` -->\n", "<!-- end of programs -->"];

/// Writes the table into the page; whether it was another one.
pub(super) fn write(programs: &[Program]) -> Result<bool, String> {
    let path = workspace::root().join(PAGE);
    let page = fs::read_to_string(&path).map_err(|error| format!("{PAGE}: {error}"))?;
    let new = with_table(&page, &table(programs)?)?;
    if new == page {
        return Ok(false);
    }
    fs::write(&path, new).map_err(|error| format!("{PAGE}: {error}"))?;
    Ok(true)
}

fn with_table(page: &str, table: &str) -> Result<String, String> {
    let [begin, end] = MARKS;
    let marks = || format!("{PAGE} has no place for the table of programs: {MARKS:?}");
    let (before, rest) = page.split_once(begin).ok_or_else(marks)?;
    let (_, after) = rest.split_once(end).ok_or_else(marks)?;
    Ok(format!("{before}{begin}\n{table}\n{end}{after}"))
}

fn table(programs: &[Program]) -> Result<String, String> {
    let expected = compare::expected()?;
    let mut table = "| Program | Outside | Inside | Why |\n|---|---|---|---|\n".to_owned();
    for Program { name, does, .. } in programs {
        let mut own = expected.iter().filter(|expected| expected.program == *name).peekable();
        if own.peek().is_none() {
            let _ = writeln!(table, "| `{name}`: {does} | | the same | |");
        }
        for expected in own {
            let side = |sign| {
                let lines = expected.lines.iter().filter_map(|line| line.strip_prefix(sign));
                let lines = lines.map(|line| format!("`{}`", line.replace('|', "\\|")));
                lines.collect::<Vec<_>>().join(", ")
            };
            let (outside, inside) = (side("- "), side("+ "));
            let _ = writeln!(
                table,
                "| `{name}`: {does} | {outside} | {inside} | {} |",
                expected.reason
            );
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::script;

    #[test]
    fn the_page_has_the_table_of_today() {
        let page = fs::read_to_string(workspace::root().join(PAGE)).expect("the page");
        let today = with_table(&page, &table(&script::all().expect("programs")).expect("a table"));
        assert!(today.expect("marks") == page, "`cargo xtask test-programs` writes it again");
    }

    #[test]
    fn every_expected_difference_is_of_a_program() {
        let programs = script::all().expect("programs");
        for expected in compare::expected().expect("a table") {
            let known = programs.iter().any(|program| program.name == expected.program);
            assert!(known, "{}", expected.program);
        }
    }
}
