//! Hints for code and commands without a network.

use sandbox_core::{ErrorKind, NetworkPolicy, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::refused;

/// Fails, and says why only in its status.
const CONNECT: &str =
    "exec 2>&1; python3 -c \"import socket; socket.create_connection(('198.51.100.1', 80), 5)\"";

pub(super) fn cases() -> Vec<Case> {
    cases!("network", [run_code, local, strict, network_none], {
        a_command_without_network_is_told_what_opens_it needs commands;
        code_whose_command_has_no_network_is_told_too;
        who_reaches_for_nothing_is_told_nothing needs commands;
        what_can_never_be_reached_is_refused needs network_allowlist;
    })
}

async fn closed(f: &Fixture) -> Checked<Sandbox> {
    f.create(|builder| builder.network(NetworkPolicy::none())).await
}

async fn a_command_without_network_is_told_what_opens_it(f: Fixture) -> Checked {
    let sandbox = closed(&f).await?;
    let result = sandbox.commands().run(CONNECT).await?;
    ensure_eq!(result.exit_code, 1, "{result:?}");
    let hint = result.hint.unwrap_or_default();
    ensure!(hint.contains("NetworkPolicy::allowlist") && !hint.contains("--"), "hint {hint:?}");
    Ok(())
}

async fn code_whose_command_has_no_network_is_told_too(f: Fixture) -> Checked {
    let sandbox = closed(&f).await?;
    let code = format!("import subprocess; subprocess.run({CONNECT:?}, shell=True); None");
    let result = sandbox.run_code(code).await?;
    ensure!(result.success(), "{result:?}");
    let hint = result.hint.unwrap_or_default();
    ensure!(hint.contains("NetworkPolicy::allowlist"), "hint {hint:?}");
    Ok(())
}

async fn who_reaches_for_nothing_is_told_nothing(f: Fixture) -> Checked {
    let sandbox = closed(&f).await?;
    for line in ["exit 3", "true"] {
        let result = sandbox.commands().run(line).await?;
        ensure_eq!(result.hint, None, "{line}");
    }
    Ok(())
}

async fn what_can_never_be_reached_is_refused(f: Fixture) -> Checked {
    for host in ["127.0.0.1:8000", "localhost", "fe80::1"] {
        let policy = NetworkPolicy::allowlist([host])?;
        let made = f.builder().network(policy).create().await;
        let error = refused(made, ErrorKind::InvalidArgument)?.to_string();
        ensure!(error.contains(host), "{host}: {error}");
    }
    Ok(())
}
