//! `cargo xtask test-backend NAME`: every test program of one backend, with every case of the behaviour suite.

use crate::descriptor::{Backends, Descriptor};
use crate::environment::Environment;
use crate::metadata::Metadata;
use crate::suites::cargo;
use crate::summary::TestSummary;
use crate::test_plan::FULL;

/// Runs them. A backend is named by its variant, an alias or its cargo feature.
pub(crate) fn test(arguments: &[String]) -> Result<bool, String> {
    let backends = Backends::read(&Metadata::read()?)?;
    let known = || {
        let names = backends.built.iter().map(|one| &*one.variant);
        format!("the backends are {}", names.collect::<Vec<_>>().join(", "))
    };
    let [name] = arguments else { return Err(format!("name one backend; {}", known())) };
    let is_named = |one: &&Descriptor| {
        one.variant == *name || one.feature == *name || one.aliases.contains(name)
    };
    let backend = backends.built.iter().find(is_named);
    let backend = backend.ok_or_else(|| format!("there is no backend {name:?}; {}", known()))?;
    let (environment, missing) = Environment::prepare();
    let mut tally = TestSummary::default();
    for what in missing {
        tally.check(&what, false);
    }
    let command = |alone: Option<&str>| {
        let mut command = cargo(&["test", "--package", &backend.package, "--no-fail-fast", "--"]);
        if let Some(name) = alone {
            command.args(["--exact", name]);
        }
        environment.apply(command.env(FULL, "1"));
        command
    };
    let folder = backend.dependency();
    tally.run(folder, folder, &mut command(None), |name| command(Some(name)));
    Ok(tally.close())
}
