//! What many hostile cases do.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use sandbox_core::{CommandResult, ExecutionResult, FailureKind, InterpreterState, Sandbox};
use serde_json::Value;

use crate::case::{Checked, Failure, ensure, ensure_eq};
use crate::support::{SLACK, describe, failed_with, tells_no_secret, within};

/// How long hostile code may run.
pub(crate) const LIMIT: Duration = Duration::from_secs(2);

/// Runs hostile code with [`LIMIT`]. It ends in time, and tells nothing of the host.
pub(crate) async fn attack(sandbox: &Sandbox, code: &str) -> Checked<ExecutionResult> {
    attack_for(sandbox, code, LIMIT).await
}

/// The same with another limit.
pub(crate) async fn attack_for(
    sandbox: &Sandbox,
    code: &str,
    limit: Duration,
) -> Checked<ExecutionResult> {
    let result = within(limit + SLACK, sandbox.run_code(code).timeout(limit)).await??;
    tells_no_secret(&result)?;
    Ok(result)
}

/// Runs a hostile line in a shell with that limit. It ends in time, and tells nothing of the host.
pub(crate) async fn attack_shell(
    sandbox: &Sandbox,
    line: &str,
    limit: Duration,
) -> Checked<CommandResult> {
    let result = within(limit + SLACK, sandbox.commands().run(line).timeout(limit)).await??;
    tells_no_secret(&result)?;
    Ok(result)
}

/// Code that must be killed, and whose sandbox works afterwards without what it knew.
pub(crate) async fn is_killed(sandbox: &Sandbox, code: &str) -> Checked<ExecutionResult> {
    let began = Instant::now();
    let result = attack(sandbox, code).await?;
    failed_with(&result, FailureKind::Timeout)?;
    ensure_eq!(result.state, InterpreterState::Lost, "state after {code:?}");
    ensure_eq!(result.exit_code, Some(137), "exit code after {code:?}");
    ensure!(began.elapsed() >= LIMIT, "it was killed before its time");
    Ok(result)
}

/// Runs code whose last value is a JSON text.
pub(crate) async fn found(sandbox: &Sandbox, code: &str) -> Checked<Value> {
    let limit = Duration::from_secs(30);
    let result = attack_for(sandbox, &format!("{TRIED}\n{code}"), limit).await?;
    let output = result.logs.stdout_exact();
    let last = output.lines().last().unwrap_or_default();
    serde_json::from_str(last)
        .map_err(|_| Failure::new(format!("nothing was found: {}", describe(&result))))
}

/// Runs `probes`, a Python dictionary of functions, and requires that each is refused by one of these errors.
pub(crate) async fn all_denied(sandbox: &Sandbox, probes: &str) -> Checked {
    let code = format!(
        "{probes}\nprint(json.dumps({{name: tried(probe) for name, probe in probes.items()}}))"
    );
    let found = found(sandbox, &code).await?;
    let found = found.as_object().cloned().unwrap_or_default();
    ensure!(!found.is_empty(), "no probe was run");
    for (name, outcome) in found {
        let outcome = outcome.as_str().unwrap_or_default();
        ensure!(DENIED.contains(&outcome), "{name}: {outcome}");
    }
    Ok(())
}

/// Runs the same probes in an interpreter of the host, and tells what each came to: the controls.
pub(crate) fn on_host(probes: &str) -> Checked<Vec<(String, String)>> {
    let code = format!(
        "{TRIED}\n{probes}\nprint(json.dumps({{name: tried(probe) for name, probe in probes.items()}}))"
    );
    let output = Command::new("python3").args(["-I", "-c", &code]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found: BTreeMap<String, String> = serde_json::from_str(text.trim()).map_err(|_| {
        Failure::new(format!("no controls: {}", String::from_utf8_lossy(&output.stderr)))
    })?;
    ensure!(!found.is_empty(), "no control was run");
    Ok(found.into_iter().collect())
}

/// Names of errors that say no.
const DENIED: [&str; 23] = [
    "EPERM",
    "EACCES",
    "EROFS",
    "ENOSYS",
    "ENOENT",
    "ESRCH",
    "EXDEV",
    "EINVAL",
    "EAFNOSUPPORT",
    "EOPNOTSUPP",
    "ENOTSUP",
    "EPROTONOSUPPORT",
    "ENETUNREACH",
    "EHOSTUNREACH",
    "ECONNREFUSED",
    "EBUSY",
    "ENODEV",
    "ENXIO",
    "ENOTDIR",
    "ELOOP",
    "ESOCKTNOSUPPORT",
    "ENOPROTOOPT",
    "ENOTTY",
];

/// What probes are made of: `tried` tells the name of the error, or what came instead; `call` is a system call.
pub(super) const TRIED: &str = r#"
import ctypes, errno, json, os, platform, resource, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
def tried(probe):
    try: return repr(probe())[:300]
    except subprocess.SubprocessError as e: return repr(e)[:300]
    except OSError as e: return errno.errorcode.get(e.errno, type(e).__name__)
    except BaseException as e: return repr(e)[:300]
"#;
