//! `cargo xtask test-datalayer`: the whole behaviour suite over cloud runtimes, and the tests of the backend.

use crate::environment::Environment;
use crate::suites::cargo;
use crate::summary::TestSummary;
use crate::test_plan::FULL;

const PACKAGE: &str = "code-sandboxes-backend-datalayer";
const PROGRAMS: [&str; 2] = ["it", "conformance"];

/// Runs them against a control plane of our own. Nothing in the cloud is asked.
pub(crate) fn test(arguments: &[String]) -> Result<bool, String> {
    if let [other, ..] = arguments {
        return Err(format!("unknown argument {other:?}"));
    }
    let (environment, missing) = Environment::prepare();
    let mut tally = TestSummary::default();
    for what in missing {
        tally.check(what, false);
    }
    for program in PROGRAMS {
        let command = |alone: Option<&str>| {
            let mut command = cargo(&["test", "--package", PACKAGE, "--test", program, "--"]);
            if let Some(name) = alone {
                command.args(["--exact", name]);
            }
            environment.apply(command.env(FULL, "1"));
            command
        };
        tally.run(program, "backend-datalayer", &mut command(None), |name| command(Some(name)));
    }
    Ok(tally.close())
}
