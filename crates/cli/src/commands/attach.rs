//! Finding the sandbox that an argument names.

use code_sandboxes::{Error, ErrorKind, Sandbox, SandboxStatus};

use crate::args::ProviderArgs;
use crate::problem::Problem;
use crate::settings;

/// The sandbox of that id, beginning of an id, or name; of the variant, when one is named.
pub(crate) async fn attach(id: &str, provider: &ProviderArgs) -> Result<Sandbox, Problem> {
    if id.trim().is_empty() {
        let hint = "`sandboxes ls` lists them";
        return Err(Problem::usage("the name of the sandbox is empty", hint));
    }
    if provider.provider.is_none() || id.contains('/') {
        return Ok(Sandbox::attach(id).await?);
    }
    let variant = settings::variant(provider)?;
    Ok(Sandbox::attach(&format!("{variant}/{id}")).await?)
}

/// The same, when something is to be done in it: one that has ended is refused with what there still is of it.
pub(crate) async fn attach_running(id: &str, provider: &ProviderArgs) -> Result<Sandbox, Problem> {
    let sandbox = attach(id, provider).await?;
    if sandbox.status() != SandboxStatus::Terminated {
        return Ok(sandbox);
    }
    let id = sandbox.id().unwrap_or_default();
    let error = Error::new(ErrorKind::Terminated, "attach", format!("{id} has ended"))
        .with_context("sandbox_id", id)
        .with_hint(
            "it cannot start again, its files are gone; `sandboxes logs` shows what was run in it",
        );
    Err(error.into())
}
