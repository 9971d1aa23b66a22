//! `cargo xtask test-hostile` and `cargo xtask soak`: parts of the order of everything, alone.

use crate::environment::Environment;
use crate::setup::is_root;
use crate::suites::{TestProgram, build, cargo};
use crate::summary::TestSummary;
use crate::test_plan::FULL;
use crate::unprivileged::OrdinaryUser;

/// The test programs of the hostile suite, one for each mode.
const HOSTILE: [&str; 6] = [
    "hostile",
    "hostile_best_effort",
    "hostile_off",
    "hostile_without_landlock",
    "degraded",
    "broken_host",
];
const SOAK: [&str; 1] = ["soak"];
/// Where they are.
const PACKAGE: &str = "backend-eval";

/// Runs the hostile suite in every mode that this host can have.
pub(crate) fn hostile(arguments: &[String]) -> Result<bool, String> {
    match arguments {
        [] => run(&HOSTILE, &[(FULL, "1".to_owned())]),
        [other, ..] => Err(format!("unknown argument {other:?}")),
    }
}

/// How many live one after the other when nothing is said. Among the other tests it is a tenth of that.
const LIVES: &str = "10000";

/// Runs the soak: `--count N`, `--alive N`, `--json FILE`.
pub(crate) fn soak(arguments: &[String]) -> Result<bool, String> {
    let mut variables = variables(arguments)?;
    if variables.iter().all(|(name, _)| *name != COUNT) {
        variables.push((COUNT, LIVES.to_owned()));
    }
    run(&SOAK, &variables)
}

const COUNT: &str = "SANDBOX_SOAK_COUNT";

fn variables(arguments: &[String]) -> Result<Vec<(&'static str, String)>, String> {
    let mut variables = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = rest.next().ok_or_else(|| format!("{argument} needs a value"))?;
        let is_number = value.parse::<usize>().is_ok_and(|number| number > 0);
        variables.push(match argument.as_str() {
            "--count" if is_number => (COUNT, value.clone()),
            "--alive" if is_number => ("SANDBOX_SOAK_ALIVE", value.clone()),
            "--json" => ("SANDBOX_SOAK_JSON", value.clone()),
            other => return Err(format!("unknown argument {other:?} {value:?}")),
        });
    }
    Ok(variables)
}

fn run(programs: &[&str], variables: &[(&str, String)]) -> Result<bool, String> {
    let environment = Environment::found();
    let mut tally = TestSummary::default();
    let command = |arguments: &[&str]| {
        let mut command = cargo(&["test", "--package", "code-sandboxes-backend-eval"]);
        command.arg("--no-fail-fast");
        command.args(programs.iter().flat_map(|program| ["--test", program]));
        environment.apply(command.args(arguments));
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command
    };
    tally.run("cargo test", PACKAGE, &mut command(&[]), |name| command(&["--", "--exact", name]));
    if is_root() {
        let built = build()?;
        let user = OrdinaryUser::prepare(&built, &environment, &mut tally)?;
        // A file of root's is not theirs to write.
        let theirs = variables.iter().filter(|(name, _)| *name != "SANDBOX_SOAK_JSON");
        let theirs: Vec<_> = theirs.cloned().collect();
        for program in built.tests.iter().filter(|test| is_one_of(test, programs)) {
            user.run(program, &theirs, &mut tally)?;
        }
    } else {
        tally.skip("the run as another user", "this one is an ordinary user already");
    }
    Ok(tally.close())
}

fn is_one_of(test: &TestProgram, programs: &[&str]) -> bool {
    test.package == PACKAGE && programs.contains(&test.target.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        let parse = |line: &str| {
            let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            variables(&arguments)
        };
        assert_eq!(parse("--count 7").unwrap(), [("SANDBOX_SOAK_COUNT", "7".to_owned())]);
        assert_eq!(parse("--json x --alive 3").unwrap().len(), 2);
        for bad in ["--count", "--count 0", "--count many", "--cuont 7"] {
            parse(bad).unwrap_err();
        }
    }
}
