//! `cargo xtask test` and `cargo xtask ci`.

use std::thread::{self, JoinHandle};

use crate::environment::Environment;
use crate::setup::{install, is_root};
use crate::suites::{Built, TestProgram, build, examples, static_checks, tests};
use crate::tally::Tally;
use crate::{docker, fuzz, ordinary_user};

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
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        for argument in arguments {
            match argument.as_str() {
                "--no-setup" => options.no_setup = true,
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
    let mut tally = Tally::default();
    let environment = Preparing::begin(options);
    let containers = if options.as_user_only || options.no_setup {
        None
    } else {
        docker::Lane::begin(missing, &mut tally)
    };
    if !options.as_user_only {
        static_checks(&mut tally)?;
    }
    let built = build();
    let environment = environment.end(missing, &mut tally);
    match built {
        Ok(mut built) => {
            let with_containers = containers.map(|lane| (lane, docker::Lane::take(&mut built)));
            tally.add(programs(options, &built, &environment, with_containers)?);
        }
        Err(why) => tally.check(&why, false),
    }
    Ok(tally.close())
}

/// The tests as this user and as an ordinary one, beside each other: most of them wait more than they work. Those with
/// containers come after the latter, which are done sooner.
fn programs(
    options: Options,
    built: &Built,
    environment: &Environment,
    with_containers: Option<(docker::Lane, Vec<TestProgram>)>,
) -> Result<Tally, String> {
    let beside = || {
        let mut tally = Tally::beside();
        if is_root() {
            ordinary_user::run(built, environment, &mut tally)?;
        } else {
            tally.skip("the run as another user", "this one is an ordinary user already");
        }
        if let Some((lane, programs)) = with_containers {
            lane.run(&programs, &mut tally)?;
        }
        Ok(tally)
    };
    if options.as_user_only {
        return beside();
    }
    thread::scope(|scope| {
        let other = scope.spawn(beside);
        let mut tally = Tally::default();
        tests(built, environment, &mut tally);
        examples(environment, &mut tally)?;
        fuzz::fuzz(fuzz::SECONDS, &[], &mut tally)?;
        let other = other.join().map_err(|_| "the tests beside ended early")?;
        tally.add(other?);
        Ok(tally)
    })
}

/// The environment of the tests, made while they are built.
struct Preparing {
    lacking: Vec<&'static str>,
    environment: JoinHandle<(Environment, Vec<&'static str>)>,
}

impl Preparing {
    fn begin(options: Options) -> Self {
        if options.no_setup {
            let environment = thread::spawn(|| (Environment::found(), Vec::new()));
            return Self { lacking: Vec::new(), environment };
        }
        Self { lacking: install(), environment: thread::spawn(Environment::prepare) }
    }

    fn end(self, missing: Missing, tally: &mut Tally) -> Environment {
        let made = self.environment.join();
        let (environment, lacking) =
            made.unwrap_or_else(|_| (Environment::default(), vec!["everything for the tests"]));
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
        assert!(parse(&["--as-user"]).unwrap().as_user_only);
        parse(&["--as-usr"]).unwrap_err();
    }
}
