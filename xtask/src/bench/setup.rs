//! What a run of the table was asked to do, and with which programs.

use std::path::PathBuf;

use code_sandboxes::{IsolationMode, Registry, Sandbox, SandboxBuilder};

use crate::sample::{Measured, text};

/// The command line.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    /// Where the rows go as JSON.
    pub(crate) json: Option<PathBuf>,
    /// Measure what has this name, or names that begin with it.
    pub(crate) only: Option<String>,
    /// Print the table as Markdown.
    pub(crate) markdown: bool,
    /// Print what the measurements need, and measure nothing.
    pub(crate) needs: bool,
    quick: bool,
    image: Option<String>,
    packages_python: PathBuf,
    jupyter_python: PathBuf,
    datalayer_python: PathBuf,
    e2b_python: PathBuf,
    peers_python: PathBuf,
    cli: PathBuf,
}

impl Arguments {
    /// Reads those of this process.
    pub(crate) fn parse() -> Result<Self, lexopt::Error> {
        use lexopt::prelude::*;

        let mut given = Self::default();
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("quick") => given.quick = true,
                Long("needs") => given.needs = true,
                Long("markdown") => given.markdown = true,
                Long("only") => given.only = Some(parser.value()?.string()?),
                Long("json") => given.json = Some(parser.value()?.into()),
                Long("cli") => given.cli = parser.value()?.into(),
                Long("packages-python") => given.packages_python = parser.value()?.into(),
                Long("image") => given.image = Some(parser.value()?.string()?),
                Long("jupyter-python") => given.jupyter_python = parser.value()?.into(),
                Long("datalayer-python") => given.datalayer_python = parser.value()?.into(),
                Long("e2b-python") => given.e2b_python = parser.value()?.into(),
                Long("peers-python") => given.peers_python = parser.value()?.into(),
                other => return Err(other.unexpected()),
            }
        }
        Ok(given)
    }
}

/// The programs that are measured, and how much.
#[derive(Debug)]
pub(crate) struct Setup {
    /// The interpreter that sandboxes use when nothing is said, without a shim before it.
    pub(crate) python: PathBuf,
    /// An interpreter that has numpy and pandas.
    pub(crate) packages_python: PathBuf,
    /// The image of containers, where there is an engine that has it.
    pub(crate) image: Option<String>,
    /// An interpreter that has ipykernel, jupyter_client and a Jupyter Server.
    pub(crate) jupyter_python: PathBuf,
    /// An interpreter that may have the Python library before this one.
    pub(crate) datalayer_python: PathBuf,
    /// An interpreter that may have the official SDK of E2B.
    pub(crate) e2b_python: PathBuf,
    /// An interpreter that may have the peers.
    pub(crate) peers_python: PathBuf,
    /// The `sandboxes` program, optimized.
    pub(crate) cli: PathBuf,
    /// Fewer samples, for a first impression.
    pub(crate) quick: bool,
}

impl Setup {
    /// Asks a sandbox which interpreter it is, so that yardsticks use the same.
    pub(crate) async fn find(arguments: &Arguments) -> Measured<Self> {
        let sandbox = Sandbox::builder().create().await.map_err(text)?;
        let asked = sandbox.run_code("import sys; print(sys.executable)").await.map_err(text)?;
        sandbox.terminate().await.map_err(text)?;
        Ok(Self {
            python: asked.stdout_trimmed().trim().into(),
            packages_python: arguments.packages_python.clone(),
            image: arguments.image.clone(),
            jupyter_python: arguments.jupyter_python.clone(),
            datalayer_python: arguments.datalayer_python.clone(),
            e2b_python: arguments.e2b_python.clone(),
            peers_python: arguments.peers_python.clone(),
            cli: arguments.cli.clone(),
            quick: arguments.quick,
        })
    }

    /// A sandbox as it is when nothing else is said.
    pub(crate) fn builder(isolation: IsolationMode) -> SandboxBuilder<Registry> {
        Sandbox::builder().isolation(isolation)
    }

    /// Samples of a round, and rounds.
    pub(crate) fn samples(&self) -> (usize, usize) {
        if self.quick { (40, 1) } else { (200, 3) }
    }

    /// The same where one sample moves the large file.
    pub(crate) fn large_samples(&self) -> (usize, usize) {
        if self.quick { (2, 1) } else { (5, 3) }
    }

    /// The same where one sample takes the better part of a second.
    pub(crate) fn slow_samples(&self) -> (usize, usize) {
        if self.quick { (5, 1) } else { (25, 3) }
    }
}
