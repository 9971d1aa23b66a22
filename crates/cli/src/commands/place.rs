//! The sandbox of an interactive command: one that is there, or one of its own.

use std::time::Duration;

use code_sandboxes::{Sandbox, seconds};

use super::attach::attach_running;
use super::run::{Extras, Interrupts, interrupted, warn_of_weak_isolation};
use crate::args::{Place, SandboxArgs};
use crate::printer::Printer;
use crate::problem::Problem;
use crate::settings;

/// A sandbox to be in.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) sandbox: Sandbox,
    /// Whether it is there afterwards.
    pub(super) stays: bool,
    /// How long something may run in it.
    pub(super) timeout: Option<Duration>,
    /// What is said of each run there. A sandbox of our own has it from the beginning.
    pub(super) extras: Extras,
}

/// Attaches to the sandbox that is named, or makes one.
pub(super) async fn find(
    place: &Place,
    context: Option<String>,
    interrupts: &mut Interrupts,
    printer: &Printer,
) -> Result<Found, Problem> {
    let args = &place.sandbox;
    let timeout = args.timeout.is_finite().then(|| seconds("timeout", args.timeout)).transpose()?;
    let find = async {
        match &place.id {
            Some(id) => {
                if let Some(flag) = args.flag_of_creation() {
                    let message = format!("{flag} is for a new sandbox, and {id} is there already");
                    return Err(Problem::usage(message, "leave the sandbox or the flag out"));
                }
                let extras = Extras::of(&args.env, args.workdir.clone(), context)?;
                let sandbox = attach_running(id, &args.provider).await?;
                warn_of_weak_isolation(&sandbox, printer);
                Ok(Found { sandbox, stays: true, timeout, extras })
            }
            None => {
                let extras = Extras::of(&[], None, context)?;
                #[cfg(feature = "docker")]
                super::image::pull_missing(args, printer).await?;
                let sandbox = create(args).await?;
                warn_of_weak_isolation(&sandbox, printer);
                Ok(Found { sandbox, stays: false, timeout, extras })
            }
        }
    };
    tokio::select! {
        found = find => found,
        () = interrupts.next() => Err(interrupted()),
    }
}

async fn create(args: &SandboxArgs) -> Result<Sandbox, Problem> {
    let mut args = args.clone();
    if args.timeout.is_infinite() {
        // Each run says for itself that it has no limit; this is the one of the helpers.
        args.timeout = code_sandboxes::DEFAULT_TIMEOUT.as_secs_f64();
    }
    Ok(settings::builder(&args, None)?.create().await?)
}
