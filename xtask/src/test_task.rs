//! `cargo xtask test` and `cargo xtask ci`.

use crate::environment::Environment;
use crate::setup::{install, is_root};
use crate::suites::{build, examples, static_checks, tests};
use crate::tally::Tally;
use crate::{graph, ordinary_user};

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
    let environment = prepare(options, missing, &mut tally);
    if !options.as_user_only {
        static_checks(&mut tally)?;
        graph::run(&mut tally)?;
        tests(&environment, &mut tally);
        examples(&environment, &mut tally)?;
    }
    if is_root() {
        match build() {
            Ok(built) => ordinary_user::run(&built, &environment, &mut tally)?,
            Err(why) => tally.check(&why, false),
        }
    } else {
        tally.skip("the run as another user", "this one is an ordinary user already");
    }
    Ok(tally.close())
}

fn prepare(options: Options, missing: Missing, tally: &mut Tally) -> Environment {
    if options.no_setup {
        return Environment::found();
    }
    let mut lacking = install();
    let (environment, more) = Environment::prepare();
    lacking.extend(more);
    for what in lacking {
        println!("missing: {what}");
        match missing {
            Missing::IsSkipped => tally.skip("tests that need it", &format!("{what} is missing")),
            Missing::IsFailure => tally.check(&format!("{what} is missing"), false),
        }
    }
    environment
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
