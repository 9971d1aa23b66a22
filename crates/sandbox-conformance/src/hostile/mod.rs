//! The hostile suite: code that is out to do harm, and a host that watches.
//!
//! `HOSTILE.md` is the list. A case of this module carries its number in its name; where a case of the other suite is
//! exactly what a number of the list asks for, the table names it, and it is run here too, with the canaries watching.

mod bombs;
mod canary;
mod concurrency;
mod escape_files;
mod escape_processes;
mod interpreter_tampering;
mod noisy_neighbour;
mod program;
mod reach;
mod same_user;
mod settings;
mod support;
mod unkillable;

pub(crate) use canary::{Canaries, SECRET};
pub use program::hostile;

use sandbox_core::IsolationMode;

use crate::case::Case;
use crate::cases;

/// The list, with the cases behind each number.
pub const TABLE: &str = include_str!("../../HOSTILE.md");

/// The cases that are written for this suite.
fn own() -> Vec<Case> {
    let groups = [
        bombs::cases(),
        noisy_neighbour::cases(),
        unkillable::cases(),
        escape_files::cases(),
        escape_processes::cases(),
        reach::cases(),
        same_user::cases(),
        interpreter_tampering::cases(),
        concurrency::cases(),
        settings::cases(),
    ];
    groups.into_iter().flatten().map(Case::hostile).collect()
}

/// Every case: those of this suite, and those of the other that the table names. Those that must be alone come last.
/// Without isolation those of the other would be the same as there: there is nothing that could be kept from canaries.
pub(crate) fn all(isolation: IsolationMode) -> Vec<Case> {
    let mut all = own();
    if isolation != IsolationMode::Off {
        all.extend(cases::all().into_iter().filter(is_named).map(Case::hostile));
    }
    all.sort_by_key(|case| case.alone);
    all
}

/// Whether the table names that case.
fn is_named(case: &Case) -> bool {
    TABLE.contains(&format!("`{}::{}`", case.group, case.name))
}

/// The names of the cases that are written for this suite.
pub fn case_names() -> Vec<String> {
    own().iter().map(Case::full_name).collect()
}
