//! `cargo xtask test` and `cargo xtask ci`.

use std::sync::OnceLock;
use std::thread::{self, JoinHandle};

use crate::environment::Environment;
use crate::job_queue::Job;
use crate::setup::{install, is_root};
use crate::suites::{Built, TestProgram, build, documented, examples, static_checks, test};
use crate::summary::TestSummary;
use crate::test_plan::{Amount, RunAs, TestPlan};
use crate::unprivileged::OrdinaryUser;
use crate::{docker, fuzz, job_queue};

/// What it means when something that the tests need is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// What depends on it is skipped, and the count of skips says so.
    IsSkipped,
    /// The whole task fails.
    IsFailure,
}

impl Missing {
    /// A failure under continuous integration.
    pub(crate) fn of_environment() -> Self {
        let ci = std::env::var("CI").unwrap_or_default();
        if matches!(ci.as_str(), "" | "false" | "0") { Self::IsSkipped } else { Self::IsFailure }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Options {
    no_setup: bool,
    as_user_only: bool,
    /// Every case of every combination.
    full: bool,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        for argument in arguments {
            match argument.as_str() {
                "--no-setup" => options.no_setup = true,
                "--full" => options.full = true,
                "--as-user" => options.as_user_only = true,
                other => return Err(format!("unknown argument {other:?}")),
            }
        }
        Ok(options)
    }
}

/// Runs everything. The closing line counts it.
pub(crate) fn run(arguments: &[String], missing: Missing) -> Result<bool, String> {
    let options = Options::parse(arguments)?;
    let mut tally = TestSummary::default();
    let environment = Preparing::begin(options);
    let containers = if options.as_user_only || options.no_setup {
        None
    } else {
        docker::Tests::begin(missing, options.full, &mut tally)
    };
    if !options.as_user_only {
        static_checks(options.full, &mut tally)?;
    }
    let built = tally.stage("build of the test programs, with lints", build);
    let environment = environment.end(missing, &mut tally);
    match built {
        Ok(mut built) => {
            tally.check("clippy", built.lints == 0);
            let with_containers = containers.map(|tests| (tests, docker::Tests::take(&mut built)));
            tally.add(programs(options, &built, &environment, with_containers)?);
            tally.check_budgets();
        }
        Err(why) => tally.check(&why, false),
    }
    Ok(tally.close())
}

/// The tests as every user that there is here, those with containers, and what cargo itself runs.
fn programs(
    options: Options,
    built: &Built,
    environment: &Environment,
    with_containers: Option<(docker::Tests, Vec<TestProgram>)>,
) -> Result<TestSummary, String> {
    let user = OnceLock::new();
    let run_as = |who: RunAs, program: &TestProgram, amount: Amount, tally: &mut TestSummary| {
        let variables = amount.variables(options.full);
        match who {
            RunAs::ThisOne => {
                test(program, environment, &variables, tally);
                Ok(())
            }
            RunAs::Ordinary => {
                let user = user.get_or_init(|| OrdinaryUser::prepare(built, environment, tally));
                user.as_ref().map_err(Clone::clone)?.run(program, &variables, tally)
            }
        }
    };
    let run_as = &run_as;
    let mut jobs = Vec::new();
    // The longest first, so that all lanes end at about the same time.
    if let Some((tests, programs)) = with_containers {
        jobs.push(Job::new("containers", move |tally| tests.run(&programs, tally)));
    }
    // It compiles, so it goes well beside programs that wait.
    if !options.as_user_only {
        jobs.push(Job::new("cargo", |tally| {
            documented(environment, tally);
            examples(built, environment, tally)?;
            if options.full {
                return fuzz::fuzz(fuzz::SECONDS, &[], tally);
            }
            tally.skip("fuzzing", "left to `cargo xtask test --full` and `cargo xtask fuzz`");
            Ok(())
        }));
    }
    let mut skipped = TestSummary::default();
    let users = users(options);
    if !is_root() {
        skipped.skip("the run as another user", "this one is an ordinary user already");
    }
    let plan = TestPlan::get()?;
    for program in plan.in_order(&built.tests) {
        for &who in users {
            match plan.amount(program, who, is_root(), options.full) {
                Amount::Nothing(reason) => skipped.skip(&format!("programs as {who}"), reason),
                amount => jobs.push(Job::new(program.name(), move |tally| {
                    run_as(who, program, amount, tally)
                })),
            }
        }
    }
    let mut tally = job_queue::run(jobs)?;
    tally.add(skipped);
    Ok(tally)
}

/// The users as which the test programs run. Only root can run them as another user.
fn users(options: Options) -> &'static [RunAs] {
    match (is_root(), options.as_user_only) {
        (true, false) => &[RunAs::ThisOne, RunAs::Ordinary],
        (true, true) => &[RunAs::Ordinary],
        (false, false) => &[RunAs::ThisOne],
        (false, true) => &[],
    }
}

/// The environment of the tests, made while they are built.
struct Preparing {
    lacking: Vec<String>,
    environment: JoinHandle<(Environment, Vec<String>)>,
}

impl Preparing {
    fn begin(options: Options) -> Self {
        if options.no_setup {
            let environment = thread::spawn(|| (Environment::found(), Vec::new()));
            return Self { lacking: Vec::new(), environment };
        }
        let lacking = install().into_iter().map(str::to_owned).collect();
        Self { lacking, environment: thread::spawn(Environment::prepare) }
    }

    fn end(self, missing: Missing, tally: &mut TestSummary) -> Environment {
        let made = self.environment.join();
        let (environment, lacking) = made.unwrap_or_else(|_| {
            (Environment::default(), vec!["everything for the tests".to_owned()])
        });
        for what in self.lacking.into_iter().chain(lacking) {
            println!("missing: {what}");
            let missed = format!("{what} is missing");
            match missing {
                Missing::IsSkipped => tally.skip("tests that need it", &missed),
                Missing::IsFailure => tally.check(&missed, false),
            }
        }
        environment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        let parse = |arguments: &[&str]| {
            let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
            Options::parse(&arguments)
        };
        assert!(parse(&["--no-setup"]).unwrap().no_setup);
        assert!(parse(&["--full"]).unwrap().full);
        assert!(parse(&["--as-user"]).unwrap().as_user_only);
        parse(&["--as-usr"]).unwrap_err();
    }
}
