//! The sandbox that a command is about: finding it by its argument, and checking what it can do.

use std::time::Duration;

use code_sandboxes::{
    Capabilities, Error, ErrorKind, Registry, Sandbox, SandboxInfo, SandboxStatus, seconds,
};

use super::run::{Interrupts, RunOptions, interrupted, warn_of_weak_isolation};
use crate::args::{ProviderArgs, SandboxArgs, SandboxTarget};
use crate::error::CliError;
use crate::printer::Printer;
use crate::settings;

/// Default disk of a local sandbox, in bytes.
const DEFAULT_DISK: u64 = 1 << 30;

/// Attaches to the sandbox with this id, unique beginning of an id, or name, of the given variant if there is one.
pub(crate) async fn attach(id: &str, provider: &ProviderArgs) -> Result<Sandbox, CliError> {
    if id.trim().is_empty() {
        let hint = "`sandboxes ls` lists them";
        return Err(CliError::usage("the name of the sandbox is empty", hint));
    }
    if provider.provider.is_none() || id.contains('/') {
        return Ok(Sandbox::attach(id).await?);
    }
    let variant = settings::variant(provider)?;
    Ok(Sandbox::attach(&format!("{variant}/{id}")).await?)
}

/// As [`attach`], but refuses a sandbox that has ended.
pub(crate) async fn attach_running(id: &str, provider: &ProviderArgs) -> Result<Sandbox, CliError> {
    let sandbox = attach(id, provider).await?;
    if sandbox.status() != SandboxStatus::Terminated {
        return Ok(sandbox);
    }
    let id = sandbox.id();
    let error = Error::new(ErrorKind::Terminated, "attach", format!("{id} has ended"))
        .with_context("sandbox_id", id)
        .with_hint(
            "it cannot start again, its files are gone; `sandboxes logs` shows what was run in it",
        );
    Err(error.into())
}

/// Refuses a verb that the sandbox does not have, and names the variants that have it.
///
/// # Errors
/// `Unsupported`.
pub(super) fn check_capability(
    sandbox: &Sandbox,
    verb: &'static str,
    can: impl Fn(&Capabilities) -> bool,
) -> Result<(), CliError> {
    if can(&sandbox.capabilities()) {
        return Ok(());
    }
    let registry = Registry::new();
    let backends = registry.variants().into_iter().filter(|status| status.available);
    let able: Vec<_> = backends
        .filter_map(|status| registry.backend(status.variant).ok())
        .filter(|backend| can(&backend.capabilities()))
        .map(|backend| backend.variant().to_string())
        .collect();
    let variant = sandbox.variant();
    let own = able.iter().any(|name| name == variant.as_str());
    let message = match own {
        true => format!("this sandbox of {variant} does not have `{verb}`"),
        false => format!("sandboxes of {variant} do not have `{verb}`"),
    };
    let hint = match able.as_slice() {
        [] => "no variant of this build has it".to_owned(),
        able => format!(
            "variants that have it: {}; choose one with -p when the sandbox is created",
            able.join(", ")
        ),
    };
    Err(Error::unsupported(verb, message).with_hint(hint).into())
}

/// Returns how many bytes the files of a sandbox may take together; `None` where nothing limits them, or no limit is known.
pub(crate) fn disk_limit(info: &SandboxInfo) -> Option<u64> {
    // Mounted directories are not on the disk of the sandbox.
    if !info.mounts.is_empty() {
        return None;
    }
    let terms = info.metadata.get("terms");
    if let Some(disk) = terms.and_then(|terms| terms.get("disk")?.as_u64()) {
        return Some(disk);
    }
    let isolation = info.isolation.as_ref()?;
    let has_layer = |name: &str| isolation.layers.iter().any(|layer| layer == name);
    let is_limited = match isolation.boundary.as_str() {
        "cell" => has_layer("private-root"),
        "container" => has_layer("read-only-root"),
        _ => false,
    };
    is_limited.then_some(DEFAULT_DISK)
}

/// The sandbox of an interactive command, and the settings of its runs.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) sandbox: Sandbox,
    /// True when the sandbox outlives the command.
    pub(super) stays: bool,
    /// Time limit of each run; `None` for no limit.
    pub(super) timeout: Option<Duration>,
    /// Options of each run. A sandbox that the command creates has them from its creation.
    pub(super) options: RunOptions,
}

/// Attaches to the sandbox that is named, or creates one.
pub(super) async fn find(
    target: &SandboxTarget,
    context: Option<String>,
    interrupts: &mut Interrupts,
    printer: &Printer,
) -> Result<Found, CliError> {
    let args = &target.sandbox;
    let timeout = args.timeout.is_finite().then(|| seconds("timeout", args.timeout)).transpose()?;
    let find = async {
        match &target.id {
            Some(id) => {
                if let Some(flag) = args.creation_flag() {
                    let message = format!("{flag} is for a new sandbox, and {id} is there already");
                    return Err(CliError::usage(message, "leave the sandbox or the flag out"));
                }
                let options = RunOptions::from_args(&args.env, args.workdir.clone(), context)?;
                let sandbox = attach_running(id, &args.provider).await?;
                warn_of_weak_isolation(&sandbox, printer);
                Ok(Found { sandbox, stays: true, timeout, options })
            }
            None => {
                let options = RunOptions::from_args(&[], None, context)?;
                #[cfg(feature = "docker")]
                super::image::pull_missing(args, printer).await?;
                let sandbox = create(args).await?;
                warn_of_weak_isolation(&sandbox, printer);
                Ok(Found { sandbox, stays: false, timeout, options })
            }
        }
    };
    tokio::select! {
        found = find => found,
        () = interrupts.next() => Err(interrupted()),
    }
}

async fn create(args: &SandboxArgs) -> Result<Sandbox, CliError> {
    let mut args = args.clone();
    if args.timeout.is_infinite() {
        // The runs have no limit; this one is for helper commands.
        args.timeout = code_sandboxes::DEFAULT_TIMEOUT.as_secs_f64();
    }
    Ok(settings::builder(&args, None)?.create().await?)
}
