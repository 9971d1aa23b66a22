//! Chooses a kernel for notebooks that need IPython, if this host has one.

use code_sandboxes::{Variant, list_environments};

use crate::args::SandboxArgs;
use crate::notebook::{Notebook, PYTHON, plain_language};
use crate::printer::Printer;
use crate::settings;

/// The name that IPython's own kernel has.
const USUAL: &str = "python3";

/// Chooses a kernel for a notebook with that magic, unless it was said where it runs. Where there is none, the interpreter
/// says at the magic what it lacks.
pub(super) async fn choose_kernel(
    args: &mut SandboxArgs,
    notebook: &Notebook,
    magic: &str,
    printer: &Printer,
) {
    let is_said = args.provider.provider.is_some()
        || args.kernel.is_given()
        || args.image.is_some()
        || args.environment.is_some()
        || args.snapshot.is_some();
    if is_said || settings::variant(&args.provider).ok() != Some(Variant::LOCAL_EVAL) {
        return;
    }
    let Ok(kernels) = list_environments(Variant::LOCAL_JUPYTER).await else { return };
    let is_there = |name: &str| {
        kernels
            .iter()
            .any(|kernel| kernel.name == name && plain_language(&kernel.language) == PYTHON)
    };
    let mut wanted = [notebook.kernel(), Some(USUAL)].into_iter().flatten();
    if let Some(kernel) = wanted.find(|name| is_there(name)) {
        printer.note(&format!(
            "{magic} needs IPython, so the notebook runs in the Jupyter kernel {kernel}; \
             -p local-eval runs it without"
        ));
        args.kernel.kernel = Some(kernel.to_owned());
    }
}
