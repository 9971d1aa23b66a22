//! How much of each test program a run has, and as which user.
//!
//! A run without `--full` has every unit and integration test, the behaviour suite whole over `local-eval` and in a
//! container, and of every other combination the groups that can differ there. Those that a test program chooses itself
//! are in its `main`; the choices that depend on the user, the time that programs take and what they need installed are in
//! the manifest of each crate, as `[package.metadata.sandbox-tests]`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::metadata::Metadata;
use crate::suites::TestProgram;

/// The user that runs a test program, when two could.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Whole,
    /// These groups of the suite alone, with commas between them.
    Groups(String),
    /// Nothing, for this reason.
    Nothing(&'static str),
}

/// What asks test programs for every case, and what names the only groups that they run; see `target.rs` of
/// `sandbox-conformance`.
pub(crate) const FULL: &str = "SANDBOX_TEST_FULL";
const GROUPS: &str = "SANDBOX_TEST_GROUPS";

impl Amount {
    /// Returns the variables that tell a test program so.
    pub(crate) fn variables(&self, full: bool) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        if full {
            variables.push((FULL, "1".to_owned()));
        }
        if let Self::Groups(groups) = self {
            variables.push((GROUPS, groups.clone()));
        }
        variables
    }
}

const NO_DIFFERENCE: &str = "it makes little difference to them";
const LEFT_TO_FULL: &str = "left to `cargo xtask test --full`";

/// Where the manifest of a crate says this.
const TESTS: &str = "sandbox-tests";

/// The tests of one crate.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct PackageTests {
    /// The largest share, in percent, that its test programs may have of the time of all test programs.
    share: Option<u32>,
    /// The one user that runs its test programs. It makes little difference to them which; what they share with other
    /// crates runs as both users there.
    once: Option<RunAs>,
    /// Its test programs by name, as far as there is something to say.
    programs: BTreeMap<String, ProgramTests>,
    /// Variables that name an interpreter, and the packages that it has.
    python: BTreeMap<String, Vec<String>>,
    /// Variables that name a directory, and the packages of npm that its `node_modules` has.
    node: BTreeMap<String, Vec<String>>,
}

/// One test program.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct ProgramTests {
    /// About how long it takes. Programs that take long start before the others.
    seconds: u32,
    once: Option<RunAs>,
    /// The groups of the suite that this user runs unless everything is asked for; with none, nothing.
    this_one: Option<Vec<String>>,
    ordinary: Option<Vec<String>>,
}

/// What the manifests say of the tests.
#[derive(Debug, Default)]
pub(crate) struct TestPlan {
    /// By the folder of the crate.
    packages: BTreeMap<String, PackageTests>,
}

static PLAN: LazyLock<Result<TestPlan, String>> =
    LazyLock::new(|| TestPlan::read(&Metadata::read()?));

impl TestPlan {
    /// The plan of this workspace.
    ///
    /// # Errors
    /// Says which manifest is wrong, and how.
    pub(crate) fn get() -> Result<&'static Self, String> {
        PLAN.as_ref().map_err(Clone::clone)
    }

    fn read(metadata: &Metadata) -> Result<Self, String> {
        let mut packages = BTreeMap::new();
        for package in &metadata.packages {
            let Some(value) = package.metadata.get(TESTS) else { continue };
            let tests = PackageTests::deserialize(value).map_err(|why| {
                format!("{}/Cargo.toml: [package.metadata.{TESTS}] {why}", package.folder)
            })?;
            packages.insert(package.folder.trim_start_matches("crates/").to_owned(), tests);
        }
        Ok(Self { packages })
    }

    fn program(&self, program: &TestProgram) -> Option<&ProgramTests> {
        self.packages.get(&program.package)?.programs.get(&program.target)
    }

    /// Returns how much of a test program that user runs. `both` says that there are two users to choose from.
    pub(crate) fn amount(
        &self,
        program: &TestProgram,
        who: RunAs,
        both: bool,
        full: bool,
    ) -> Amount {
        let tests = self.program(program);
        let once = tests.and_then(|tests| tests.once);
        let once = once.or_else(|| self.packages.get(&program.package)?.once);
        if both && once.is_some_and(|runs| runs != who) {
            return Amount::Nothing(NO_DIFFERENCE);
        }
        let groups = tests.and_then(|tests| match who {
            RunAs::ThisOne => tests.this_one.as_ref(),
            RunAs::Ordinary => tests.ordinary.as_ref(),
        });
        match groups {
            Some(groups) if groups.is_empty() && !full => Amount::Nothing(LEFT_TO_FULL),
            Some(groups) if both && !full => Amount::Groups(groups.join(",")),
            _ => Amount::Whole,
        }
    }

    /// Returns the programs with the longest first, so that all lanes end at about the same time.
    pub(crate) fn in_order<'a>(&self, programs: &'a [TestProgram]) -> Vec<&'a TestProgram> {
        let mut programs: Vec<_> = programs.iter().collect();
        programs
            .sort_by_key(|program| Reverse(self.program(program).map_or(0, |tests| tests.seconds)));
        programs
    }

    /// Returns the largest share, in percent, that the test programs of a crate may take. `None`: it has none of its own.
    pub(crate) fn share(&self, package: &str) -> Option<u32> {
        self.packages.get(package)?.share
    }

    /// Returns variables that name an interpreter, and the packages that it has.
    pub(crate) fn pythons(&self) -> impl Iterator<Item = (&str, &[String])> {
        let pythons = self.packages.values().flat_map(|tests| &tests.python);
        pythons.map(|(variable, packages)| (&**variable, &**packages))
    }

    /// Returns variables that name a directory, and the packages of npm that it has.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&str, &[String])> {
        let nodes = self.packages.values().flat_map(|tests| &tests.node);
        nodes.map(|(variable, packages)| (&**variable, &**packages))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;
    use crate::metadata::Package;

    fn program(package: &str, target: &str) -> TestProgram {
        let (package, target) = (package.to_owned(), target.to_owned());
        TestProgram { package, target, manifest: PathBuf::new(), executable: PathBuf::new() }
    }

    fn amount(program: &TestProgram, who: RunAs, both: bool, full: bool) -> Amount {
        TestPlan::get().unwrap().amount(program, who, both, full)
    }

    #[test]
    fn mistakes_in_manifests_are_named() {
        let package = Package {
            folder: "crates/sandbox-x".into(),
            metadata: json!({"sandbox-tests": {"programs": {"it": {"sedonds": 3}}}}),
            ..Package::default()
        };
        let metadata = Metadata { packages: vec![package], ..Metadata::default() };
        let problem = TestPlan::read(&metadata).unwrap_err();
        assert!(problem.starts_with("crates/sandbox-x/Cargo.toml: "), "{problem}");
        assert!(problem.contains("unknown field `sedonds`"), "{problem}");
    }

    #[test]
    fn long_programs_start_first() {
        let programs = ["unit", "faults", "conformance"].map(|name| program("backend-eval", name));
        let order: Vec<_> = TestPlan::get().unwrap().in_order(&programs);
        let order: Vec<_> = order.iter().map(|program| &*program.target).collect();
        assert_eq!(order, ["conformance", "unit", "faults"]);
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
