//! `install_packages` and `expose_port`

use std::collections::BTreeMap;

use sandbox_core::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::reply::ToolReply;
use super::super::toolset::Call;

/// Packages that one call installs at most.
const MAX_PACKAGES: usize = 100;

/// Arguments of `install_packages`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct InstallPackagesArguments {
    /// Packages, as pip names them: "requests", "rich>=13".
    pub(in super::super) packages: Vec<String>,
    /// Installs packages of the operating system instead of Python packages. Default: false.
    system: Option<bool>,
    /// Upgrades packages that are there already. Default: false.
    upgrade: Option<bool>,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Answer of `install_packages`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct InstalledAnswer {
    /// The packages that are installed now.
    installed: Vec<String>,
    /// Id of the sandbox.
    sandbox: String,
}

/// Installs packages.
pub(in super::super) async fn install_packages(
    call: &Call<'_>,
    arguments: InstallPackagesArguments,
) -> Result<ToolReply> {
    let InstallPackagesArguments { packages, system, upgrade, sandbox } = arguments;
    if packages.is_empty() || packages.len() > MAX_PACKAGES {
        let message = format!("must be 1 to {MAX_PACKAGES} packages, got {}", packages.len());
        return Err(Error::invalid("packages", message));
    }
    let (system, upgrade) = (system.unwrap_or_default(), upgrade.unwrap_or_default());
    if system && upgrade {
        return Err(Error::invalid("upgrade", "is for Python packages"));
    }
    let entry = call.sandbox(sandbox.as_deref()).await?;
    let wanted = packages.iter().map(String::as_str);
    match (system, upgrade) {
        (true, _) => entry.sandbox.install_system_packages(wanted).await?,
        (false, true) => entry.sandbox.upgrade_packages(wanted).await?,
        (false, false) => entry.sandbox.install_packages(wanted).await?,
    }
    let text = format!("installed: {}", packages.join(", "));
    Ok(ToolReply::new(text, &InstalledAnswer { installed: packages, sandbox: entry.id.clone() }))
}

/// Arguments of `expose_port`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ExposePort {
    /// Port of a server in the sandbox.
    #[schemars(range(min = 1))]
    pub(in super::super) port: u16,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Answer of `expose_port`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct PortAnswer {
    /// Address of the server, for a browser of the user.
    url: String,
    /// Port in the sandbox.
    port: u16,
    /// Headers that requests need, such as a token.
    headers: BTreeMap<String, String>,
    /// Id of the sandbox.
    sandbox: String,
}

/// Makes a port reachable.
pub(in super::super) async fn expose_port(
    call: &Call<'_>,
    arguments: ExposePort,
) -> Result<ToolReply> {
    if arguments.port == 0 {
        return Err(Error::invalid("port", "must be from 1 to 65535"));
    }
    let entry = call.sandbox(arguments.sandbox.as_deref()).await?;
    let tunnel = entry.sandbox.expose_port(arguments.port).await?;
    let (url, headers) = (tunnel.url, tunnel.headers);
    let mut text = format!("port {} is reachable at {url}", arguments.port);
    if !headers.is_empty() {
        let named: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        text = format!("{text} with the headers {}", named.join(", "));
    }
    let sandbox = entry.id.clone();
    Ok(ToolReply::new(text, &PortAnswer { url, port: arguments.port, headers, sandbox }))
}
