//! Tests with real kernels, Jupyter's own tools and a real Jupyter Server.
//!
//! `SANDBOX_TEST_JUPYTER_PYTHON` names an interpreter with the packages ipykernel, jupyter_client, jupyter_server,
//! bash_kernel, xeus_python and deno. Without it these tests are reported as ignored, and fail if `CI` is set.
#![cfg_attr(not(unix), expect(unused, reason = "kernels are reached over Unix sockets"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod answers;
mod bash;
mod both_sides;
mod examples;
mod execute;
mod harness;
mod kernelspecs;
mod life;
mod manager;
mod peer;
mod protocol;
mod random;
mod reference;
mod server;

use libtest_mimic::{Arguments, Trial};

/// A named test.
pub(crate) type Case = (&'static str, fn());

fn main() {
    let arguments = Arguments::from_args();
    let groups: &[(&str, &[Case])] = &[
        ("answers", answers::CASES),
        ("bash", bash::CASES),
        ("both_sides", both_sides::CASES),
        ("examples", examples::CASES),
        ("execute", execute::CASES),
        ("kernelspecs", kernelspecs::CASES),
        ("life", life::CASES),
        ("manager", manager::CASES),
        ("protocol", protocol::CASES),
        ("reference", reference::CASES),
        ("server", server::CASES),
    ];
    let missing = harness::python().is_none();
    let needed = std::env::var_os("CI").is_some_and(|value| !value.is_empty());
    let trials = groups.iter().flat_map(|(group, cases)| {
        cases.iter().map(move |(name, case)| {
            let run = move || {
                if harness::python().is_none() {
                    return Err(format!("{} is not set", harness::VARIABLE).into());
                }
                case();
                Ok(())
            };
            Trial::test(format!("{group}::{name}"), run).with_ignored_flag(missing && !needed)
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
