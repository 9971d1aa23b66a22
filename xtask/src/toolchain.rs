//! The compiler that builds this, and the oldest one that is promised to.

use std::process::Command;

use crate::command::output;
use crate::summary::TestSummary;
use crate::workspace;

/// Checks that the compiler is not older than what `Cargo.toml` promises, which is what clippy goes by, too: it refuses what
/// only newer compilers have.
pub(crate) fn check(tally: &mut TestSummary) -> Result<(), String> {
    let manifest = std::fs::read_to_string(workspace::root().join("Cargo.toml"));
    let manifest = manifest.map_err(|error| format!("Cargo.toml: {error}"))?;
    let promised = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let promised = promised.and_then(version).ok_or("Cargo.toml promises no `rust-version`")?;
    let said = output(Command::new("rustc").arg("--version"))?;
    let used = said.split(' ').nth(1).and_then(version).ok_or("rustc does not say its version")?;
    let what =
        format!("the compiler ({}.{}) is at least {}.{}", used.0, used.1, promised.0, promised.1);
    tally.check(&what, used >= promised);
    Ok(())
}

/// Major and minor number.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim_matches('"').split(['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version("\"1.95\""), Some((1, 95)));
        assert_eq!(version("1.100.0-nightly"), Some((1, 100)));
        assert!(version("1.100.0") > version("1.95"));
        assert_eq!(version("stable"), None);
    }

    #[test]
    fn this_compiler_is_new_enough() {
        let mut tally = TestSummary::default();
        check(&mut tally).unwrap();
        assert_eq!((tally.passed, tally.failed), (1, 0));
    }
}
