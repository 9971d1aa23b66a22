//! Arguments of `sandboxes image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(super) const IMAGE_EXAMPLES: &str = "\
Examples:
  sandboxes image build                          the default image of local-docker
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

/// The commands about images.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build an image for local-docker
    Build(BuildArgs),
    /// List the images of the engine
    #[command(visible_alias = "ls")]
    List,
    /// Pull an image from its registry
    Pull {
        /// Name of the image; the default tag is latest
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

    /// Base image: a Debian with python3 3.9 or later and venv [default: python:3.13-slim-bookworm]
    #[arg(long, value_name = "IMAGE")]
    pub(crate) base: Option<String>,

    /// Python package to install, such as numpy or numpy==2.2.0; can be repeated
    #[arg(long, value_name = "PACKAGE")]
    pub(crate) package: Vec<String>,

    /// Index of pip; the history of the image has this URL, so it must have no password
    #[arg(long, value_name = "URL")]
    pub(crate) index_url: Option<String>,

    /// Certificates (PEM) to trust while packages are downloaded; they are not kept in the image
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_bundle: Option<PathBuf>,

    /// Default engine of its sandboxes: python, jupyter or jupyter:KERNEL [default: that of the base, or python]
    #[arg(long, value_name = "NAME")]
    pub(crate) engine: Option<String>,

    /// Network of the build, such as host
    #[arg(long, value_name = "NETWORK")]
    pub(crate) build_network: Option<String>,
}
