//! The suite itself: that it finds what it is there to find, and leaves out what does not apply.

mod fake;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fake::{Behaviour, Fake};
use sandbox_conformance::{
    CaseReport, HOSTILE_TABLE, Outcome, Report, Target, case_names, hostile_case_names,
};
use sandbox_core::{Backend, Capabilities, ErrorKind, Result, Sandbox};

/// A fake that declares strict isolation, so that its sandboxes can be made.
fn behaviour() -> Behaviour {
    let capabilities = Capabilities { isolation_strict: true, ..Capabilities::default() };
    Behaviour { capabilities, ..Behaviour::default() }
}

fn run(behaviour: Behaviour, arguments: &[&str]) -> Result<Report, String> {
    let target = Target::new("fake", move || Arc::new(Fake(behaviour)));
    sandbox_conformance::run(target, ["--quiet"].iter().chain(arguments).copied())
}

fn case<'a>(report: &'a Report, name: &str) -> &'a CaseReport {
    report.cases.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("no case {name}"))
}

#[test]
fn what_is_not_declared_is_ignored_with_its_reason() {
    let report = run(behaviour(), &[]).unwrap();
    assert_eq!(report.failed, 0, "{report:#?}");
    let ignored = case(&report, "conformance::exec::state_persists");
    assert_eq!(ignored.outcome, Outcome::Ignored);
    assert_eq!(ignored.reason.as_deref(), Some("capability `run_code` is not declared"));
    assert_eq!(report.passed + report.ignored, report.cases.len());
}

#[test]
fn groups_that_are_left_out_say_why() {
    let fake = || Target::new("fake", || Arc::new(Fake(behaviour())));
    let named = "conformance::unsupported::undeclared_set_tags";
    let report = sandbox_conformance::run(fake().only(["exec"], "for later"), ["--quiet"]).unwrap();
    assert_eq!(case(&report, named).reason.as_deref(), Some("for later"));
    let report = sandbox_conformance::run(fake().only(["unsupported"], "for later"), ["--quiet"]);
    assert_eq!(case(&report.unwrap(), named).outcome, Outcome::Passed);
}

#[test]
fn every_verb_that_is_not_declared_is_called() {
    let report = run(behaviour(), &["unsupported"]).unwrap();
    let undeclared = Capabilities::default().entries().len() - 1;
    assert_eq!(report.cases.len(), undeclared);
    let without_verb: Vec<_> = report
        .cases
        .iter()
        .filter(|case| case.outcome == Outcome::Ignored)
        .map(|case| case.name.rsplit("undeclared_").next().unwrap())
        .collect();
    assert_eq!(without_verb, ["idempotent_create", "live_output", "rich_results", "sizes"]);
    assert_eq!(report.passed, undeclared - without_verb.len());
}

#[test]
fn a_verb_that_works_undeclared_is_found() {
    let report = run(Behaviour { lies_about_tags: true, ..behaviour() }, &["unsupported"]).unwrap();
    let found = case(&report, "conformance::unsupported::undeclared_set_tags");
    assert_eq!((report.failed, found.outcome), (1, Outcome::Failed));
    assert!(found.reason.as_deref().unwrap().contains("is not declared"), "{found:?}");
}

#[test]
fn another_error_than_unsupported_is_found() {
    let report =
        run(Behaviour { fails_at_metrics: true, ..behaviour() }, &["unsupported"]).unwrap();
    let found = case(&report, "conformance::unsupported::undeclared_metrics");
    assert_eq!((report.failed, found.outcome), (1, Outcome::Failed));
    assert!(found.reason.as_deref().unwrap().contains("not now"), "{found:?}");
}

#[test]
fn a_backend_that_can_make_nothing_is_an_error() {
    let mut wanted = behaviour();
    wanted.capabilities.run_code = true;
    let why = run(wanted, &[]).unwrap_err();
    assert!(why.starts_with("no fake sandbox can be made here"), "{why}");
    let why = run(Behaviour { runs_are_silent: true, ..wanted }, &[]).unwrap_err();
    assert!(why.contains("text of 1+1"), "{why}");
}

#[test]
fn names_are_unique_and_well_formed() {
    let names = case_names();
    assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len());
    for name in &names {
        let parts: Vec<_> = name.split("::").collect();
        assert!(parts.len() == 3 && parts[0] == "conformance", "{name}");
    }
}

/// `REFERENCE.md` has a row for each of the forty, and names no case that is not there.
#[test]
fn all_forty_reference_cases_are_mapped() {
    let mapping = include_str!("../../REFERENCE.md");
    let rows: Vec<_> = mapping.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let numbers: Vec<u32> = rows
        .iter()
        .filter_map(|row| row.split('|').nth(1).and_then(|cell| cell.trim().parse().ok()))
        .collect();
    assert_eq!(numbers, (1..=40).collect::<Vec<_>>());
    let names = case_names();
    let mut named = BTreeSet::new();
    for quoted in mapping.split('`').skip(1).step_by(2).filter(|text| text.contains("::case_")) {
        let full = format!("conformance::{quoted}");
        assert!(names.contains(&full), "{full} does not exist");
        named.insert(full);
    }
    let own: BTreeSet<_> = names.into_iter().filter(|name| name.contains("::case_")).collect();
    assert_eq!(named, own);
}

/// `HOSTILE.md` has a row for each number, names no case that is not there, and every case of the suite is in it.
#[test]
fn the_hostile_list_and_its_cases_agree() {
    let rows = HOSTILE_TABLE.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (number, what) = (cells.next()?, cells.next()?);
        let digits = number.strip_prefix(|letter: char| letter.is_ascii_uppercase())?;
        let cases = cells.next()?.trim_end_matches(" |");
        digits.parse::<u32>().ok().map(|digits| (digits, number, what, cases))
    });
    let rows: Vec<_> = rows.collect();
    assert_eq!(rows.len(), 150, "rows");
    assert!(rows.is_sorted_by(|a, b| a.0 < b.0), "numbers ascend");
    let (own, conformance) = (hostile_case_names(), case_names());
    let full = |case: &str, suite: &str| format!("{suite}::{case}");
    for (_, number, what, cases) in &rows {
        let named: Vec<_> = cases.split('`').skip(1).step_by(2).collect();
        let reason = cases.strip_prefix("not applicable: ");
        assert!(
            !what.is_empty() && reason.is_some_and(|r| !r.is_empty()) || !named.is_empty(),
            "{number}"
        );
        for case in named.iter().filter(|case| !case.contains(".rs: ") && reason.is_none()) {
            let there = own.contains(&full(case, "hostile"))
                || conformance.contains(&full(case, "conformance"));
            assert!(there, "{number}: {case} does not exist");
        }
        for test in named.iter().filter(|case| case.contains(".rs: ")) {
            let (file, name) = test.split_once(": ").unwrap();
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
            // Where this crate alone was packaged, its neighbours are not there.
            if let Ok(text) = std::fs::read_to_string(path) {
                assert!(text.contains(&format!("fn {name}")), "{number}: {test} does not exist");
            }
        }
    }
    let mut numbered = 0;
    for name in &own {
        let case = name.strip_prefix("hostile::").unwrap();
        assert!(HOSTILE_TABLE.contains(&format!("`{case}`")), "{case} is not in the table");
        let short = case.rsplit("::").next().unwrap();
        let (number, _) = short.split_once('_').unwrap();
        if number.len() > 1 && number[1..].chars().all(|c| c.is_ascii_digit()) {
            numbered += 1;
            let digits: u32 = number[1..].parse().unwrap();
            let row = rows.iter().find(|row| row.0 == digits);
            assert!(row.is_some_and(|row| row.3.contains(case)), "{case} is in another row");
        }
    }
    assert!(numbered > 50, "only {numbered} cases have a number");
}

#[test]
fn a_limit_that_is_not_declared_is_refused_before_anybody_is_asked() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let answer = |limits_cpu_time| {
        let mut behaviour = Behaviour { takes_commands: true, ..behaviour() };
        behaviour.capabilities.commands = true;
        behaviour.capabilities.limit_command_cpu_time = limits_cpu_time;
        let backend: Arc<dyn Backend> = Arc::new(Fake(behaviour));
        let answer: Result<_> = runtime.block_on(async {
            let sandbox = Sandbox::builder(backend).create().await?;
            sandbox.commands().run("x").cpu_time(Duration::from_secs(1)).await
        });
        answer.unwrap_err().kind()
    };
    assert_eq!(answer(false), ErrorKind::Unsupported);
    assert_eq!(answer(true), ErrorKind::NotFound, "control");
}
