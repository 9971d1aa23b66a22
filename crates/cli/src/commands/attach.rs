//! Finding the sandbox that an argument names.

use code_sandboxes::Sandbox;

use crate::args::ProviderArgs;
use crate::problem::Problem;
use crate::settings;

/// The sandbox of that id, beginning of an id, or name; of the variant, when one is named.
pub(crate) async fn attach(id: &str, provider: &ProviderArgs) -> Result<Sandbox, Problem> {
    if provider.provider.is_none() || id.contains('/') {
        return Ok(Sandbox::attach(id).await?);
    }
    let variant = settings::variant(provider)?;
    Ok(Sandbox::attach(&format!("{variant}/{id}")).await?)
}
