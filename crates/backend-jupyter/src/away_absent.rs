//! Stands for kernels elsewhere in a build without the feature `server`: a create that asks for one is refused.

use sandbox_core::{CreateSpec, Error, Result};

use crate::config::Target;
use crate::instance::JupyterInstance;

/// Kernels elsewhere, of which this build has none.
#[derive(Debug)]
pub(crate) enum Away {}

impl Away {
    pub(crate) fn finish(&self) {
        match *self {}
    }
}

/// Refuses the create, with the feature that it takes.
pub(crate) async fn create(
    _: &CreateSpec,
    _: &Target,
    _: Option<&str>,
    _: &[String],
) -> Result<JupyterInstance> {
    let message = "this build has no kernels of Jupyter Servers, and none that run already";
    Err(Error::unsupported("create", message).with_context("variant", "local-jupyter").with_hint(
        "build it with the cargo feature `jupyter-server`, or with `full`, which has every feature",
    ))
}
