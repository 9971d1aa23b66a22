//! How much of each test program a run has, and as which user.
//!
//! A run without `--full` has every unit and integration test, the behaviour suite whole over `local-eval` and in a
//! container, and of every other combination the groups that can differ there. Those that a test program chooses itself
//! are in its `main`; here are the choices that depend on the user.

use std::fmt;

use crate::suites::TestProgram;

/// The user that runs a test program, when two could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunAs {
    /// The user that started the tests.
    ThisOne,
    /// A user without any privilege.
    Ordinary,
}

impl fmt::Display for RunAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ThisOne => "root",
            Self::Ordinary => "an ordinary user",
        })
    }
}

/// How much of a test program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Whole,
    /// These groups of the suite alone, with commas between them.
    Groups(&'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

/// What asks test programs for every case, and what names the only groups that they run; see `target.rs` of
/// `sandbox-conformance`.
pub(crate) const FULL: &str = "SANDBOX_TEST_FULL";
const GROUPS: &str = "SANDBOX_TEST_GROUPS";

impl Amount {
    /// Returns the variables that tell a test program so.
    pub(crate) fn variables(self, full: bool) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        if full {
            variables.push((FULL, "1".to_owned()));
        }
        if let Self::Groups(groups) = self {
            variables.push((GROUPS, groups.to_owned()));
        }
        variables
    }
}

const NO_DIFFERENCE: &str = "it makes little difference to them";
const LEFT_TO_FULL: &str = "left to `cargo xtask test --full`";

/// Test programs that one user runs, by the folder of their package and their own name (none: all of the package). It
/// makes little difference to them which; what they share with the others runs as both users there.
const ONCE: [(&str, Option<&str>, RunAs); 12] = [
    ("xtask", None, RunAs::ThisOne),
    ("jupyter-protocol", None, RunAs::ThisOne),
    ("sandbox-core", None, RunAs::ThisOne),
    ("sandbox-conformance", None, RunAs::ThisOne),
    ("sandbox-egress", None, RunAs::ThisOne),
    ("sandbox-rpc", None, RunAs::ThisOne),
    ("sandbox-kernel", None, RunAs::ThisOne),
    ("sandbox-cloud", None, RunAs::ThisOne),
    ("backend-jupyter", None, RunAs::ThisOne),
    ("backend-datalayer", None, RunAs::ThisOne),
    ("backend-eval", Some("conformance_off"), RunAs::ThisOne),
    ("cli", Some("conformance_detached"), RunAs::Ordinary),
];

/// Parts of a test program that one user runs unless everything is asked for.
const PARTS: [(&str, &str, RunAs, Amount); 9] = [
    (
        "backend-eval",
        "conformance",
        RunAs::Ordinary,
        Amount::Groups(
            "cleanup,files_hostile,unsupported,isolation,lifecycle,limits,limits_memory,metrics,mounts,network,pause,ports,snapshots",
        ),
    ),
    (
        "backend-eval",
        "hostile",
        RunAs::Ordinary,
        Amount::Groups("escape_files,escape_processes,noisy_neighbour,reach"),
    ),
    (
        "backend-eval",
        "hostile_best_effort",
        RunAs::Ordinary,
        Amount::Groups("escape_files,escape_processes,reach"),
    ),
    ("backend-eval", "hostile_off", RunAs::Ordinary, Amount::Nothing(LEFT_TO_FULL)),
    ("backend-eval", "hostile_without_landlock", RunAs::Ordinary, Amount::Nothing(LEFT_TO_FULL)),
    ("backend-eval", "faults", RunAs::Ordinary, Amount::Nothing(LEFT_TO_FULL)),
    ("backend-eval", "templates", RunAs::Ordinary, Amount::Nothing(LEFT_TO_FULL)),
    ("backend-eval", "soak", RunAs::Ordinary, Amount::Nothing(LEFT_TO_FULL)),
    ("backend-eval", "soak", RunAs::ThisOne, Amount::Nothing(LEFT_TO_FULL)),
];

/// Returns how much of a test program that user runs. `both` says that there are two users to choose from.
pub(crate) fn amount(program: &TestProgram, who: RunAs, both: bool, full: bool) -> Amount {
    let is_named = |package: &str, target: Option<&str>| {
        program.package == package && target.is_none_or(|target| target == program.target)
    };
    let of_the_other = |(package, target, runs): &(&str, Option<&str>, RunAs)| {
        *runs != who && is_named(package, *target)
    };
    if both && ONCE.iter().any(of_the_other) {
        return Amount::Nothing(NO_DIFFERENCE);
    }
    let part = PARTS
        .iter()
        .find(|(package, target, runs, _)| *runs == who && is_named(package, Some(target)))
        .filter(|(.., part)| !full && (both || matches!(part, Amount::Nothing(_))));
    part.map_or(Amount::Whole, |(.., amount)| *amount)
}

/// Test programs that take minutes, those that took longest first. They start before all others.
const LONG: [(&str, &str); 10] = [
    ("backend-jupyter", "conformance"),
    ("backend-jupyter", "conformance_server"),
    ("backend-datalayer", "conformance"),
    ("backend-datalayer", "it"),
    ("backend-eval", "conformance"),
    ("cli", "conformance_detached"),
    ("sandbox-rpc", "conformance"),
    ("backend-jupyter", "it"),
    ("backend-eval", "conformance_off"),
    ("backend-eval", "hostile"),
];

/// Returns the programs with the longest first, so that both lanes end at about the same time.
pub(crate) fn in_order(programs: &[TestProgram]) -> Vec<&TestProgram> {
    let mut programs: Vec<_> = programs.iter().collect();
    let place = |program: &TestProgram| {
        LONG.iter()
            .position(|(package, target)| *package == program.package && *target == program.target)
    };
    programs.sort_by_key(|program| place(program).unwrap_or(LONG.len()));
    programs
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn program(package: &str, target: &str) -> TestProgram {
        let (package, target) = (package.to_owned(), target.to_owned());
        TestProgram { package, target, manifest: PathBuf::new(), executable: PathBuf::new() }
    }

    #[test]
    fn a_full_run_has_everything_and_another_one_parts() {
        let suite = program("backend-eval", "conformance");
        assert_eq!(amount(&suite, RunAs::ThisOne, true, false), Amount::Whole);
        assert!(matches!(amount(&suite, RunAs::Ordinary, true, false), Amount::Groups(_)));
        assert_eq!(amount(&suite, RunAs::Ordinary, true, true), Amount::Whole);
        let soak = program("backend-eval", "soak");
        assert!(matches!(amount(&soak, RunAs::ThisOne, false, false), Amount::Nothing(_)));
        assert_eq!(amount(&soak, RunAs::ThisOne, false, true), Amount::Whole);
    }

    #[test]
    fn the_suite_reads_what_is_written_here() {
        let suite = include_str!("../../crates/sandbox-conformance/src/target.rs");
        assert!(suite.contains(&format!("pub const FULL: &str = {FULL:?};")));
        assert!(suite.contains(&format!("pub const GROUPS: &str = {GROUPS:?};")));
    }

    #[test]
    fn what_is_left_to_another_user_is_run_where_there_is_none() {
        let detached = program("cli", "conformance_detached");
        assert!(matches!(amount(&detached, RunAs::ThisOne, true, false), Amount::Nothing(_)));
        assert_eq!(amount(&detached, RunAs::ThisOne, false, false), Amount::Whole);
        let off = program("backend-eval", "conformance_off");
        assert!(matches!(amount(&off, RunAs::Ordinary, true, true), Amount::Nothing(_)));
    }

    /// An ordinary user that starts the tests is the only one, and runs the suite whole.
    #[test]
    fn a_user_alone_runs_the_suite_whole() {
        let suite = program("backend-eval", "conformance");
        assert_eq!(amount(&suite, RunAs::ThisOne, false, false), Amount::Whole);
    }
}
