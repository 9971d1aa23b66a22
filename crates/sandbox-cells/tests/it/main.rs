//! The zygote, the worker and its driver as a host sees them, with a real interpreter.
//!
//! `SANDBOX_TEST_PYTHON` names an interpreter that has pandas, matplotlib and Pillow. Without it
//! the cases that need them are reported as ignored.

mod cells;
mod display;
mod harness;
mod hostile;
mod interrupts;
mod measures;
mod packages;
mod scripts;
mod streams;
mod variables;
mod zygotes;

use libtest_mimic::{Arguments, Trial};

/// A named test.
pub(crate) type Case = (&'static str, fn());

fn main() {
    let arguments = Arguments::from_args();
    let groups: [(&str, &[Case]); 9] = [
        ("cells", cells::CASES),
        ("display", display::CASES),
        ("hostile", hostile::CASES),
        ("interrupts", interrupts::CASES),
        ("measures", measures::CASES),
        ("scripts", scripts::CASES),
        ("streams", streams::CASES),
        ("variables", variables::CASES),
        ("zygotes", zygotes::CASES),
    ];
    let mut trials: Vec<Trial> = groups
        .iter()
        .flat_map(|(group, cases)| cases.iter().map(move |case| trial(group, *case)))
        .collect();
    let without = std::env::var_os("SANDBOX_TEST_PYTHON").is_none();
    trials.extend(
        packages::CASES.iter().map(|case| trial("packages", *case).with_ignored_flag(without)),
    );
    let home = tempfile::tempdir().expect("a home for workers");
    harness::HOME.set(home.path().display().to_string()).expect("set once");
    let conclusion = libtest_mimic::run(&arguments, trials);
    harness::WARM.hang_up();
    drop(home);
    conclusion.exit();
}

fn trial(group: &str, (name, case): Case) -> Trial {
    Trial::test(format!("{group}::{name}"), move || {
        case();
        Ok(())
    })
}
