//! Arguments of `sandboxes image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(super) const IMAGE_EXAMPLES: &str = "\
Examples:
  sandboxes image build                          the image that local-docker starts from
  sandboxes image build --package numpy --package pandas==2.2.3
  sandboxes image build --base code-sandboxes:latest --package pandas --name mine:latest
  sandboxes image pull python:3.13-slim-bookworm
  sandboxes run -p local-docker --image mine:latest --lang python '1 + 1'";

/// `sandboxes image`
#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

/// What to do about images.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build the image of this program
    Build(BuildArgs),
    /// List the images that the engine has
    #[command(visible_alias = "ls")]
    List,
    /// Fetch an image from its registry
    Pull {
        /// Its name; without a tag: latest
        #[arg(value_name = "IMAGE")]
        name: String,
    },
}

/// `sandboxes image build`
#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Name of the image [default: code-sandboxes:latest]
    #[arg(long, value_name = "IMAGE")]
    pub(crate) name: Option<String>,

    /// Image to start from: a Debian that has python3 with venv, 3.9 or later [default: python:3.13-slim-bookworm]
    #[arg(long, value_name = "IMAGE")]
    pub(crate) base: Option<String>,

    /// Python package that it has, such as numpy or numpy==2.2.0; can be repeated
    #[arg(long, value_name = "PACKAGE")]
    pub(crate) package: Vec<String>,

    /// Where pip fetches packages from; the history of the image keeps it, so without a password
    #[arg(long, value_name = "URL")]
    pub(crate) index_url: Option<String>,

    /// Certificates (PEM) that are trusted while packages are fetched; the image does not keep them
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_bundle: Option<PathBuf>,

    /// What runs the code of its sandboxes when they do not say it: python, jupyter or jupyter:KERNEL [default: what the base says, or python]
    #[arg(long, value_name = "NAME")]
    pub(crate) engine: Option<String>,

    /// Network of the build, such as host
    #[arg(long, value_name = "NETWORK")]
    pub(crate) build_network: Option<String>,
}
