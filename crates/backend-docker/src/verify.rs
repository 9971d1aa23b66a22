//! Verifies from inside a container, before any code runs there, that the engine enforces what was requested.
//!
//! Some engines silently leave out what they or their kernel cannot enforce. A runtime may have its own kernel, of which the
//! engine knows nothing.

use bollard::models::{ContainerCreateBody, HostConfig};
use sandbox_agent_client::AgentConnection;
use sandbox_core::{CreateSpec, Error, ErrorKind, Result};

use crate::config::Options;
use crate::probe::run_python;

/// The checks in the order of the program's statuses, with the hint of one that fails.
const CHECKS: [(&str, &str); 11] = [
    ("the limit of memory", CGROUPS_HINT),
    ("the limit of processes", CGROUPS_HINT),
    ("the limit of cpu", CGROUPS_HINT),
    ("the limit of disk", ENGINE_HINT),
    ("`no-new-privileges`", ENGINE_HINT),
    ("the filter of system calls", ENGINE_HINT),
    ("no capabilities", ENGINE_HINT),
    ("the user", ENGINE_HINT),
    ("a root that is read-only", ENGINE_HINT),
    ("no other writable directory", ENGINE_HINT),
    ("no network", ENGINE_HINT),
];

const CGROUPS_HINT: &str = "its kernel needs the control groups `memory`, `pids` and `cpu`, and an engine without privileges needs them \
                            delegated (cgroups of version 2, `Delegate=yes` of its user's service)";
const ENGINE_HINT: &str = "update the engine, or use another one";

/// Hint for a runtime, which itself applies the rules for system calls and protects the init process.
const RUNTIME_HINT: &str = "gVisor needs the flags `--oci-seccomp` and `--signal-unkillable-policy=linux` for `runsc`, where the engine \
                            has its runtimes, and Kata Containers `disable_guest_seccomp=false`; or use another runtime";

/// Names of the first checks: limits of control groups, which the own kernel of a runtime may not show.
const CGROUP_LIMITS: [&str; 3] = ["memory", "processes", "cpu"];

/// Status of the program when the first check fails.
const FIRST_STATUS: i32 = 100;

/// Compares the container with the arguments, `name=value`.
const PROGRAM: &str = "import ctypes, os, stat, socket, sys
given = [argument.partition('=')[::2] for argument in sys.argv[1:]]
asked = dict(given)
def number(*paths):
    for path in paths:
        try:
            with open('/sys/fs/cgroup/' + path) as file: words = file.read().split()
        except OSError: continue
        return [float('inf') if word in ('max', '-1') else int(word) for word in words]
    return [float('inf'), 1]
def within(name, found): return name not in asked or found <= float(asked[name])
status = {'CapAmb': ['0']}
for line in open('/proc/self/status'):
    name, _, value = line.partition(':')
    status[name] = value.split()
places = [(name[6:], int(size)) for name, size in given if name.startswith('tmpfs:')]
free = [name[5:] for name, _ in given if name.startswith('free:')]
def is_limited(path, size):
    found = os.statvfs(path)
    return os.stat(path).st_dev != os.stat('/').st_dev and found.f_blocks * found.f_frsize < size + 65536
def is_closed(path):
    if path in free or path in dict(places) or path == '/': return True
    try: mode = os.stat(path).st_mode
    except OSError: return True
    is_file = stat.S_ISDIR(mode) or stat.S_ISREG(mode)
    return not is_file or not os.access(path, os.W_OK)
def mounted():
    for line in open('/proc/self/mounts'):
        yield line.split(' ')[1].encode().decode('unicode_escape')
def filtered():
    try: socket.socket(16, 3, 0).close()
    except OSError as error: return error.errno == 95
    return False
cpu = number('cpu.max')
if cpu == [float('inf'), 1]: cpu = [number('cpu/cpu.cfs_quota_us')[0], number('cpu/cpu.cfs_period_us')[0]]
swap = number('memory.swap.max') if os.path.exists('/sys/fs/cgroup/memory.swap.max') else [0]
checks = [
    within('memory', number('memory.max', 'memory/memory.limit_in_bytes')[0]) and swap[0] == 0,
    within('processes', number('pids.max', 'pids/pids.max')[0]),
    within('cpu', cpu[0] / cpu[1]),
    all(is_limited(*place) for place in places),
    ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) == 1,
    status.get('Seccomp') == ['2'] and filtered(),
    all(int(status[name][0], 16) == 0 for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')),
    status['Uid'] == [asked['user']] * 4 and status['Gid'] == [asked['group']] * 4,
    'root' in asked or bool(os.statvfs('/').f_flag & 1),
    all(map(is_closed, mounted())),
    [line.split(':')[0].strip() for line in open('/proc/net/dev')][2:] == ['lo'],
]
for at, holds in enumerate(checks):
    if not holds: sys.exit(100 + at)
";

/// Sends the init process a signal in the way of code. The kernel ignores it.
const KILL: &str = "import os
try: os.kill(1, 9)
except OSError: pass
";

/// Layers that were verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VerifiedLimits {
    /// Memory, processes and CPU are limited.
    pub(crate) limits: bool,
}

/// Compares a container with its request, and verifies that code cannot end the init process.
///
/// # Errors
/// `Unsupported` for a part of the request that is not enforced.
pub(crate) async fn verify(
    agent: &AgentConnection,
    spec: &CreateSpec,
    options: &Options,
    request: &ContainerCreateBody,
) -> Result<VerifiedLimits> {
    let (python, is_runtime) = (&*options.python, options.runtime.is_some());
    let mut arguments = arguments(request);
    let mut status = run_python(agent, python, PROGRAM, arguments.clone()).await?;
    let mut verified = VerifiedLimits {
        limits: request.host_config.as_ref().is_some_and(|host| host.memory.is_some()),
    };
    if is_runtime && failed_limit(status).is_some() {
        // A limit that the caller did not request may be missing, and is not claimed then.
        arguments.retain(|argument| !is_cgroup_limit(argument) || is_requested(spec, argument));
        verified.limits = false;
        status = run_python(agent, python, PROGRAM, arguments).await?;
    }
    evaluate(status, is_runtime)?;
    let killed = run_python(agent, python, KILL, Vec::new()).await;
    evaluate_init_process(killed, is_runtime)?;
    Ok(verified)
}

/// Returns the index of the check that failed.
fn failed_check(status: Option<i32>) -> Option<usize> {
    usize::try_from(status?.checked_sub(FIRST_STATUS)?).ok().filter(|at| *at < CHECKS.len())
}

/// Returns the limit of a control group that is missing.
fn failed_limit(status: Option<i32>) -> Option<&'static str> {
    CGROUP_LIMITS.get(failed_check(status)?).copied()
}

fn name_of(argument: &str) -> &str {
    argument.split_once('=').map_or(argument, |(name, _)| name)
}

fn is_cgroup_limit(argument: &str) -> bool {
    CGROUP_LIMITS.contains(&name_of(argument))
}

fn is_requested(spec: &CreateSpec, argument: &str) -> bool {
    match name_of(argument) {
        "memory" => spec.memory.is_some(),
        "processes" => spec.processes.is_some(),
        _ => spec.cpu.is_some(),
    }
}

fn evaluate(status: Option<i32>, is_runtime: bool) -> Result<()> {
    let failed = failed_check(status).and_then(|at| CHECKS.get(at));
    match (status, failed) {
        (Some(0), _) => Ok(()),
        (_, Some((what, hint))) => {
            let part = if is_runtime { "runtime" } else { "engine" };
            let message = format!("the {part} does not enforce {what}, and does not report that");
            let hint = if is_runtime { RUNTIME_HINT } else { *hint };
            Err(Error::unsupported("create", message).with_hint(hint))
        }
        _ => Err(Error::new(
            ErrorKind::Unavailable,
            "create",
            "the container could not be verified: the program of the check did not work",
        )),
    }
}

/// Evaluates the attempt of a program to end the init process, which is the agent and reports how that program ended. The
/// kernel lets no signal from within a namespace end its init process, unless the process handles the signal.
fn evaluate_init_process(attempt: Result<Option<i32>>, is_runtime: bool) -> Result<()> {
    let why = match attempt {
        Ok(Some(0)) => return Ok(()),
        Ok(_) => None,
        Err(error) => Some(error),
    };
    let message = "code could end the first process of the container, which is the agent";
    let error = Error::unsupported("create", message).with_hint(if is_runtime {
        RUNTIME_HINT
    } else {
        ENGINE_HINT
    });
    Err(match why {
        Some(why) => error.with_source(why),
        None => error,
    })
}

fn arguments(request: &ContainerCreateBody) -> Vec<String> {
    let default = HostConfig::default();
    let host = request.host_config.as_ref().unwrap_or(&default);
    let mut given = Vec::new();
    let mut add = |name: &str, value: String| given.push(format!("{name}={value}"));
    if let Some((user, group)) = request.user.as_deref().and_then(|user| user.split_once(':')) {
        add("user", user.to_owned());
        add("group", group.to_owned());
    }
    if let Some(memory) = host.memory {
        add("memory", memory.to_string());
    }
    if let Some(processes) = host.pids_limit {
        add("processes", processes.to_string());
    }
    if let Some(cores) = host.nano_cpus {
        // Engines round to the unit of the kernel.
        add("cpu", format!("{}.{:09}", cores / 1_000_000_000, cores % 1_000_000_000 + 1_000_000));
    }
    if host.readonly_rootfs != Some(true) {
        add("root", String::new());
    }
    for (path, options) in host.tmpfs.iter().flatten() {
        let size = options.split(',').find_map(|option| option.strip_prefix("size="));
        if let Some(size) = size.filter(|_| options.starts_with("rw")) {
            add(&format!("tmpfs:{path}"), size.to_owned());
        }
    }
    if let Some(size) = host.shm_size {
        add("tmpfs:/dev/shm", size.to_string());
    }
    // The engine's own directory, which has a limit, and the requested mounts of this host.
    add("free:/dev", String::new());
    for mount in host.mounts.iter().flatten().filter(|mount| mount.read_only != Some(true)) {
        add(&format!("free:{}", mount.target.as_deref().unwrap_or_default()), String::new());
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_is_refused_with_its_hint() {
        for (at, (what, hint)) in CHECKS.iter().enumerate() {
            let code = Some(FIRST_STATUS + i32::try_from(at).unwrap());
            let error = evaluate(code, false).unwrap_err();
            assert!(error.message().contains(what), "{error:?}");
            assert_eq!((error.kind(), error.hint()), (ErrorKind::Unsupported, Some(*hint)));
            let error = evaluate(code, true).unwrap_err();
            assert!(error.message().contains(what), "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("--oci-seccomp")), "{error:?}");
            assert_eq!(failed_limit(code).is_some(), at < CGROUP_LIMITS.len());
        }
        evaluate(Some(0), true).unwrap();
        for code in [None, Some(1), Some(FIRST_STATUS - 1), Some(255)] {
            assert_eq!(evaluate(code, true).unwrap_err().kind(), ErrorKind::Unavailable);
            assert_eq!(failed_limit(code), None);
        }
    }

    /// On a kernel that lets code end the agent, the agent does not answer any more.
    #[test]
    fn an_init_process_that_code_can_end_is_refused() {
        evaluate_init_process(Ok(Some(0)), true).unwrap();
        let gone = || Error::new(ErrorKind::Unavailable, "create", "the connection has ended");
        for attempt in [Ok(None), Ok(Some(1)), Err(gone())] {
            let error = evaluate_init_process(attempt, true).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            let hint = error.hint().unwrap();
            assert!(hint.contains("--signal-unkillable-policy=linux"), "{error:?}");
        }
    }

    #[test]
    fn limits_that_were_not_requested_are_left_out() {
        let mut spec = CreateSpec::default();
        spec.processes = Some(7);
        let given = ["memory=5", "processes=7", "cpu=1.5", "user=1", "tmpfs:/memory=9"];
        let kept = |argument: &&&str| !is_cgroup_limit(argument) || is_requested(&spec, argument);
        let kept: Vec<_> = given.iter().filter(kept).copied().collect();
        assert_eq!(kept, ["processes=7", "user=1", "tmpfs:/memory=9"]);
    }
}
