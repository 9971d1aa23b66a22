//! A look into a container, before any code runs there: whether what was asked for is so.
//!
//! Some engines leave out what they or their kernel cannot enforce, and say nothing of it.

use bollard::models::{ContainerCreateBody, HostConfig};
use sandbox_core::{Error, ErrorKind, Result};

use crate::boxed::DockerBox;

/// What is looked at, in the order of the program's statuses, and what helps where it is not so.
const LOOKED_AT: [(&str, &str); 11] = [
    ("the limit of memory", GROUPS),
    ("the limit of processes", GROUPS),
    ("the limit of cpu", GROUPS),
    ("the limit of disk", ENGINE),
    ("`no-new-privileges`", ENGINE),
    ("the filter of system calls", ENGINE),
    ("no capabilities", ENGINE),
    ("the user", ENGINE),
    ("a root that is read-only", ENGINE),
    ("no other place that can be written to", ENGINE),
    ("no network", ENGINE),
];

const GROUPS: &str = "its kernel needs the control groups `memory`, `pids` and `cpu`, and an engine without privileges has to be \
                      given them (cgroups of version 2, `Delegate=yes` of its user's service)";
const ENGINE: &str = "update the engine, or use another one";

/// The first status, which is that of the first of these.
const FIRST: i32 = 100;

/// Everything is compared with its arguments: `name=value`.
const PROGRAM: &str = "import os, stat, socket, sys
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
status = {}
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
    status['NoNewPrivs'] == ['1'],
    status['Seccomp'] == ['2'] and filtered(),
    all(int(status[name][0], 16) == 0 for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')),
    status['Uid'] == [asked['user']] * 4 and status['Gid'] == [asked['group']] * 4,
    'root' in asked or bool(os.statvfs('/').f_flag & 1),
    all(map(is_closed, mounted())),
    [line.split(':')[0].strip() for line in open('/proc/net/dev')][2:] == ['lo'],
]
for at, holds in enumerate(checks):
    if not holds: sys.exit(100 + at)
";

/// Compares what a container of that request is with what the request says.
///
/// # Errors
/// `Unsupported` for what is not so.
pub(crate) async fn look(
    made: &DockerBox,
    python: &str,
    asked: &ContainerCreateBody,
) -> Result<()> {
    let given = arguments(asked);
    let code = made.run(python, PROGRAM, given).await?;
    let failed = code.and_then(|code| LOOKED_AT.get(usize::try_from(code - FIRST).ok()?));
    match (code, failed) {
        (Some(0), _) => Ok(()),
        (_, Some((what, hint))) => {
            let message = format!("the engine does not enforce {what}, and does not say so");
            Err(Error::unsupported("create", message).with_hint(*hint))
        }
        _ => Err(Error::new(
            ErrorKind::Unavailable,
            "create",
            "what the engine has made of the container could not be looked at",
        )),
    }
}

fn arguments(asked: &ContainerCreateBody) -> Vec<String> {
    let default = HostConfig::default();
    let host = asked.host_config.as_ref().unwrap_or(&default);
    let mut given = Vec::new();
    let mut add = |name: &str, value: String| given.push(format!("{name}={value}"));
    if let Some((user, group)) = asked.user.as_deref().and_then(|user| user.split_once(':')) {
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
        // Engines round to what the kernel counts in.
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
    // The engine's own, which has a limit, and what was asked for of this host.
    add("free:/dev", String::new());
    for mount in host.mounts.iter().flatten().filter(|mount| mount.read_only != Some(true)) {
        add(&format!("free:{}", mount.target.as_deref().unwrap_or_default()), String::new());
    }
    given
}
