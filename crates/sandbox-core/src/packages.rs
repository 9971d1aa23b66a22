//! Installing packages, from a handle.

use crate::call::CallContext;
use crate::error::Result;
use crate::request::InstallPackages;
use crate::sandbox::Sandbox;

impl Sandbox {
    /// Installs Python packages, as pip names them, such as `requests>=2`. Runs, contexts and commands that begin after
    /// it see them. One call at a time; each has to fit what earlier ones asked for.
    ///
    /// # Errors
    /// `NotFound` for a package or version that does not exist, `InvalidArgument` for what is no name or conflicts,
    /// `Unavailable` when the index cannot be reached, `ResourceExhausted` when the disk is full; `NotStarted`,
    /// `Terminated`, `Unsupported`.
    ///
    /// # Cancellation
    /// Dropping the future stops it. Nothing is installed then, or part of it.
    pub async fn install_packages<S: Into<String>>(
        &self,
        packages: impl IntoIterator<Item = S>,
    ) -> Result<()> {
        self.install(InstallPackages::Python(packages.into_iter().map(Into::into).collect())).await
    }

    /// Installs Python packages as [`Sandbox::install_packages`] does, in the newest version that fits, also where an older
    /// one is there.
    ///
    /// # Errors
    /// As [`Sandbox::install_packages`].
    pub async fn upgrade_packages<S: Into<String>>(
        &self,
        packages: impl IntoIterator<Item = S>,
    ) -> Result<()> {
        self.install(InstallPackages::Upgrade(packages.into_iter().map(Into::into).collect())).await
    }

    /// Installs packages of the system's package manager.
    ///
    /// # Errors
    /// As [`Sandbox::install_packages`].
    pub async fn install_system_packages<S: Into<String>>(
        &self,
        packages: impl IntoIterator<Item = S>,
    ) -> Result<()> {
        self.install(InstallPackages::System(packages.into_iter().map(Into::into).collect())).await
    }

    async fn install(&self, packages: InstallPackages) -> Result<()> {
        self.instance("install_packages")?
            .packages()?
            .install_packages(&CallContext::new(), packages)
            .await
    }
}
