//! Verbs that not every variant has.

use code_sandboxes::{Capabilities, Error, Registry, Sandbox};

use crate::problem::Problem;

/// Refuses a verb that the sandbox does not have, and names the variants that have it.
///
/// # Errors
/// `Unsupported`.
pub(super) fn check(
    sandbox: &Sandbox,
    verb: &'static str,
    can: impl Fn(&Capabilities) -> bool,
) -> Result<(), Problem> {
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
            "variants that have it: {}; choose one with -p when it is created",
            able.join(", ")
        ),
    };
    Err(Error::unsupported(verb, message).with_hint(hint).into())
}
