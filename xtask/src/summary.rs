//! Counting what passed, failed and was skipped, over suites of every kind.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::command::{Ending, OutputMode, heard};
use crate::timing::Times;

/// As many failures of one command are tried again. More are no accident.
const SECOND_CHANCES: usize = 5;

/// What the message of a failure begins with that is final: the host was touched, whatever comes of a second try. The
/// suite of `sandbox-conformance` says it, see its `case.rs`.
const FINAL: &str = "final: ";

/// No command takes longer than that on any machine where the tests make sense: one that does has stopped to get on, and
/// would hold up everything after it.
const BOUND: Duration = Duration::from_secs(25 * 60);

/// Lines of each failure that are shown again at the end, where they are found.
const MAX_WORDS: usize = 12;

/// What came of everything so far.
#[derive(Debug, Default)]
pub(crate) struct TestSummary {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    failures: Vec<String>,
    unsteady: Vec<String>,
    reasons: BTreeMap<String, u64>,
    times: Times,
    voice: Option<OutputMode>,
    /// Tests that have said that they did nothing, and that the summary to come has among those that passed.
    did_nothing: u64,
    /// The test whose failure is told now.
    told: String,
    /// What was said of each failure, when it was last heard.
    words: BTreeMap<String, Vec<String>>,
    /// Those that get no second chance.
    finals: BTreeSet<String>,
}

impl TestSummary {
    /// One whose commands are shown when they have ended, for what runs beside something else.
    pub(crate) fn beside() -> Self {
        Self { voice: Some(OutputMode::AtTheEnd), ..Self::default() }
    }

    /// Adds what another one has counted.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.unsteady.extend(other.unsteady);
        self.times.add(other.times);
        self.words.extend(other.words);
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }

    /// Counts one check.
    pub(crate) fn check(&mut self, what: &str, passed: bool) {
        if passed {
            self.passed += 1;
        } else {
            self.failed += 1;
            self.failures.push(what.to_owned());
        }
    }

    /// Counts one check, and the time that it takes.
    pub(crate) fn timed(&mut self, what: &str, check: impl FnOnce() -> bool) {
        let passed = self.stage(what, check);
        self.check(what, passed);
    }

    /// Notes the time that a stage takes.
    pub(crate) fn stage<T>(&mut self, what: &str, stage: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let done = stage();
        self.times.stage(what, started.elapsed());
        done
    }

    /// Counts something that was not done.
    pub(crate) fn skip(&mut self, what: &str, reason: &str) {
        self.skipped += 1;
        *self.reasons.entry(format!("{what}: {reason}")).or_default() += 1;
    }

    /// Hears a line of a test program: one of the single tests, or the summary.
    pub(crate) fn hear(&mut self, line: &str) {
        if let Some(summary) = line.strip_prefix("test result: ") {
            self.told.clear();
            let did_nothing = std::mem::take(&mut self.did_nothing);
            self.passed += number(summary, "passed").saturating_sub(did_nothing);
            self.failed += number(summary, "failed");
            self.skipped += number(summary, "ignored");
        } else if let Some(reason) = line.strip_prefix("skipped: ") {
            self.did_nothing += 1;
            self.skip("a test", reason);
        } else if let Some(heading) = line.strip_prefix("---- ") {
            heading.split(' ').next().unwrap_or_default().clone_into(&mut self.told);
            self.words.insert(self.told.clone(), Vec::new());
        } else if line == "failures:" {
            self.told.clear();
        } else if let Some((name, outcome)) =
            line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
        {
            self.hear_one(name.trim(), outcome.trim());
        } else if let Some(words) = self.words.get_mut(&self.told) {
            if line.starts_with(FINAL) {
                self.finals.insert(self.told.clone());
            }
            if !line.is_empty() && words.len() < MAX_WORDS {
                words.push(line.to_owned());
            }
        }
    }

    fn hear_one(&mut self, name: &str, outcome: &str) {
        if outcome.starts_with("FAILED") {
            self.failures.push(name.to_owned());
        } else if let Some(reason) = outcome.strip_prefix("ignored") {
            let reason = reason.trim_start_matches([',', ' ']);
            let reason =
                reason.strip_prefix('(').and_then(|r| r.strip_suffix(')')).unwrap_or(reason);
            let reason = if reason.is_empty() { name } else { reason };
            *self.reasons.entry(reason.to_owned()).or_default() += 1;
        }
    }

    /// Runs test programs of a crate, by its folder. What fails runs once more, alone: when it passes then, it is unsteady, which is said and
    /// counted and is no failure, because a machine that is busy with something else must not decide. A failure that says
    /// that it is final stays one.
    pub(crate) fn run(
        &mut self,
        what: &str,
        package: &str,
        command: &mut Command,
        alone: impl Fn(&str) -> Command,
    ) {
        let (failed_before, known) = (self.failed, self.failures.len());
        let voice = self.voice.unwrap_or(OutputMode::AtOnce);
        let started = Instant::now();
        let ending = heard(command, voice, BOUND, |line| self.hear(line));
        self.times.program(what, package, started.elapsed());
        let mut names = self.failures[known..].to_vec();
        names.sort();
        names.dedup();
        let finals = std::mem::take(&mut self.finals);
        names.retain(|name| !finals.contains(name));
        if ending == Ending::TookTooLong {
            self.check(&format!("{what}: ended after {} minutes", BOUND.as_secs() / 60), false);
        }
        self.ended(what, ending == Ending::Succeeded, failed_before);
        if names.len() > SECOND_CHANCES {
            return;
        }
        for name in names {
            let mut again = Self::default();
            let ending = heard(&mut alone(&name), voice, BOUND, |line| again.hear(line));
            let passed = ending == Ending::Succeeded && again.passed > 0 && again.failed == 0;
            self.words.extend(again.words);
            self.second_chance(&name, known, passed);
        }
    }

    /// Takes back the failures of that name from there on, when it passed alone.
    fn second_chance(&mut self, name: &str, from: usize, passed: bool) {
        if !passed {
            return;
        }
        let before = self.failures.len();
        let late = self.failures.split_off(from);
        self.failures.extend(late.into_iter().filter(|failure| failure != name));
        let taken_back = (before - self.failures.len()) as u64;
        self.failed = self.failed.saturating_sub(taken_back);
        self.passed += taken_back;
        self.unsteady.push(name.to_owned());
    }

    /// Takes a run of a test program that ended. One that failed without saying how is a failure too.
    pub(crate) fn ended(&mut self, what: &str, succeeded: bool, failed_before: u64) {
        if !succeeded && self.failed == failed_before {
            self.check(what, false);
        }
    }

    /// Checks the budgets of the crates.
    pub(crate) fn check_budgets(&mut self) {
        for over in self.times.over_budget() {
            self.check(&over, false);
        }
    }

    /// Says how long everything took, what was skipped and what failed, then the closing line.
    pub(crate) fn close(&self) -> bool {
        println!();
        print!("{}", self.times.table());
        for (reason, count) in &self.reasons {
            println!("skipped ({count}): {reason}");
        }
        for name in &self.unsteady {
            println!("unsteady: {name} failed once, and passed alone");
            self.repeat(name);
        }
        for failure in &self.failures {
            println!("failed: {failure}");
            self.repeat(failure);
        }
        println!("{}", self.line());
        self.failed == 0 && self.passed > 0
    }

    /// Says again what was said of a failure.
    fn repeat(&self, name: &str) {
        for line in self.words.get(name).into_iter().flatten() {
            println!("    {line}");
        }
    }

    fn line(&self) -> String {
        let mut line =
            format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped);
        if !self.unsteady.is_empty() {
            line += &format!(", {} unsteady", self.unsteady.len());
        }
        line
    }
}

/// The number before a word, in a summary such as `ok. 3 passed; 1 failed; 0 ignored`.
fn number(summary: &str, word: &str) -> u64 {
    let parts = summary.split(['.', ';']);
    let part = parts.map(str::trim).find_map(|part| part.strip_suffix(word));
    part.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_add_up() {
        let mut tally = TestSummary::default();
        for line in [
            "running 3 tests",
            "test a::b ... ok",
            "test conformance::x::y   ... ignored (capability `files` is not declared)",
            "test c - should panic ... ignored, needs a terminal",
            "test d ... FAILED",
            "test result: ok. 12 passed; 0 failed; 2 ignored; 0 measured; 3 filtered out; finished in 0.01s",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        ] {
            tally.hear(line);
        }
        tally.check("format", true);
        tally.skip("docker", "not installed");
        assert_eq!(tally.line(), "14 passed, 1 failed, 3 skipped");
        assert_eq!(tally.failures, ["d"]);
        let reasons: Vec<_> = tally.reasons.keys().map(String::as_str).collect();
        assert_eq!(
            reasons,
            ["capability `files` is not declared", "docker: not installed", "needs a terminal"]
        );
    }

    /// Such a test is green to its harness, which knows no other way.
    #[test]
    fn tests_that_did_nothing_have_not_passed() {
        let mut tally = TestSummary::default();
        for line in [
            "test a ... ",
            "skipped: VARIABLE is not set",
            "ok",
            "skipped: VARIABLE is not set",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        ] {
            tally.hear(line);
        }
        assert_eq!(tally.line(), "4 passed, 0 failed, 2 skipped");
        assert_eq!(tally.reasons["a test: VARIABLE is not set"], 2);
    }

    #[test]
    fn a_program_that_dies_without_a_summary_is_a_failure() {
        let mut tally = TestSummary::default();
        tally.ended("it", false, 0);
        assert_eq!(tally.line(), "0 passed, 1 failed, 0 skipped");
        tally.hear("test result: FAILED. 0 passed; 2 failed; 0 ignored");
        tally.ended("it", false, 1);
        assert_eq!(tally.failed, 3);
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const ONE_FAILS: &str = "echo 'test a ... ok'; echo 'test b ... FAILED'
echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 1";

    #[test]
    fn what_passes_alone_is_unsteady() {
        let mut tally = TestSummary::default();
        let passes = "echo 'test b ... ok'; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
        tally.run("it", "xtask", &mut shell(ONE_FAILS), |name| {
            assert_eq!(name, "b");
            shell(passes)
        });
        assert_eq!(tally.line(), "2 passed, 0 failed, 0 skipped, 1 unsteady");
        assert!(tally.close());
    }

    #[test]
    fn what_is_final_gets_no_second_chance() {
        let both = "echo 'test a ... FAILED'; echo 'test b ... FAILED'
echo '---- a ----'; echo 'final: the host was reached: [] (at x.rs:1)'; echo
echo '---- b ----'; echo 'it took too long, and this is not final: at all'
echo 'test result: FAILED. 0 passed; 2 failed; 0 ignored'; exit 1";
        let passes = "echo 'test x ... ok'; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'";
        let mut tally = TestSummary::default();
        tally.run("it", "xtask", &mut shell(both), |name| {
            assert_eq!(name, "b", "the other one has escaped");
            shell(passes)
        });
        assert_eq!(tally.line(), "1 passed, 1 failed, 0 skipped, 1 unsteady");
        assert_eq!(tally.failures, ["a"]);
        assert_eq!(tally.words["a"], ["final: the host was reached: [] (at x.rs:1)"]);
        assert_eq!(tally.words["b"], ["it took too long, and this is not final: at all"]);
        assert!(!tally.close());
        // It is about that run alone.
        tally.run("it", "xtask", &mut shell(ONE_FAILS), |_| shell(passes));
        assert_eq!(tally.failures, ["a"]);
    }

    #[test]
    fn the_suite_says_final_as_it_is_heard() {
        let suite = include_str!("../../crates/sandbox-conformance/src/case.rs");
        assert!(suite.contains(&format!("const FINAL: &str = {FINAL:?};")));
    }

    #[test]
    fn what_fails_again_is_a_failure() {
        for alone in [ONE_FAILS, "exit 0", "exit 1"] {
            let mut tally = TestSummary::default();
            tally.run("it", "xtask", &mut shell(ONE_FAILS), |_| shell(alone));
            assert_eq!(tally.line(), "1 passed, 1 failed, 0 skipped", "{alone}");
            assert!(!tally.close());
        }
    }

    #[test]
    fn a_program_that_only_dies_is_a_failure() {
        let mut tally = TestSummary::default();
        tally.run("it", "xtask", &mut shell("exit 1"), |_| unreachable!("there is no name"));
        assert_eq!(tally.line(), "0 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn two_tallies_are_one() {
        let (mut one, mut other) = (TestSummary::default(), TestSummary::beside());
        one.check("format", true);
        other.check("lint", false);
        other.skip("docker", "not installed");
        one.add(other);
        assert_eq!(one.line(), "1 passed, 1 failed, 1 skipped");
        assert_eq!(one.failures, ["lint"]);
        assert_eq!(one.reasons.len(), 1);
    }

    #[test]
    fn nothing_at_all_is_not_a_success() {
        assert!(!TestSummary::default().close());
    }
}
