//! Code that looks for a way to the processes and the kernel of the host.

use sandbox_core::{FailureKind, random_hex};

use super::support::{all_denied, attack, found};
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{WAIT_TIMEOUT, describe, failed_with, is_usable, json, ok, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("escape_processes", [run_code, local], {
        d96_another_numbering_of_calls_ends_the_interpreter needs strict;
        d86_the_decoy_lives needs contained;
        d87_nothing_can_be_traced needs strict;
        d91_clone3_is_not_there_and_programs_start needs strict;
        d94_privileges_do_not_come_back needs strict;
        d97_calls_that_open_the_kernel needs strict;
        d99_no_keys_are_kept_in_the_kernel needs strict;
        d104_the_personality_stays needs strict;
        d106_a_program_in_memory_has_the_same_walls needs strict;
        d107_a_core_goes_nowhere needs strict;
        d111_the_secret_is_not_in_its_memory needs strict;
        d111_secrets_of_others_are_not_in_its_memory needs strict;
        d112_later_sandboxes_are_not_poisoned;
        limits_of_others_stay needs strict;
        namespaces_by_clone needs strict;
        more_programs_than_it_shows needs strict;
        signals_to_everybody needs strict;
        messages_to_other_sandboxes needs strict;
        siblings_of_its_interpreter;
    })
}

async fn d86_the_decoy_lives(f: Fixture) -> Checked {
    let decoy = f.canaries()?.decoy();
    let own = std::process::id();
    let sandbox = f.sandbox().await?;
    let probes = format!(
        "
probes = {{}}
for pid in [{decoy}, {own}, -{decoy}, -{own}]:
    for number in [0, 9, 15, 19]:
        probes[f'kill {{pid}} {{number}}'] = lambda pid=pid, number=number: os.kill(pid, number)
    if pid < 0: continue
    # Naming a process is no deed; sending it something is.
    probes[f'pidfd {{pid}}'] = lambda pid=pid: signal.pidfd_send_signal(os.pidfd_open(pid), 15)
    probes[f'prlimit {{pid}}'] = lambda pid=pid: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0))
    probes[f'priority {{pid}}'] = lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, 19)
    probes[f'affinity {{pid}}'] = lambda pid=pid: os.sched_setaffinity(pid, [0])
    probes[f'environ {{pid}}'] = lambda pid=pid: open(f'/proc/{{pid}}/environ').read()
    probes[f'cwd {{pid}}'] = lambda pid=pid: os.listdir(f'/proc/{{pid}}/cwd/')
    probes[f'mem {{pid}}'] = lambda pid=pid: open(f'/proc/{{pid}}/mem', 'r+b')"
    );
    // In a cell the same numbers may be those of its own processes: none of these is that high.
    let own_processes = "max(int(p) for p in os.listdir('/proc') if p.isdigit())";
    let highest = found(&sandbox, &format!("print({own_processes})")).await?;
    ensure!(highest.as_u64().is_none_or(|highest| highest != u64::from(decoy)), "the numbers meet");
    all_denied(&sandbox, &probes).await
}

async fn d87_nothing_can_be_traced(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
trace = {'x86_64': 101}.get(platform.machine(), 117)
read = {'x86_64': 310}.get(platform.machine(), 270)
io = struct.pack('QQ', 0x1000, 8)
probes = {
    'attach 1': lambda: call(trace, 16, 1, 0, 0), 'seize 1': lambda: call(trace, 0x4206, 1, 0, 0),
    'traceme': lambda: call(trace, 0, 0, 0, 0), 'read 1': lambda: call(read, 1, io, 1, io, 1, 0),
    'write 1': lambda: call(read + 1, 1, io, 1, io, 1, 0), 'kcmp': lambda: call({'x86_64': 312}.get(platform.machine(), 272), 1, os.getpid(), 0, 0, 0),
    'pidfd_getfd': lambda: call(438, os.pidfd_open(1), 0, 0),
    'process_madvise': lambda: call(440, os.pidfd_open(1), io, 1, 4, 0),
    'move_pages': lambda: call({'x86_64': 279}.get(platform.machine(), 239), 1, 0, 0, 0, 0, 0) and call(-1),
}
if platform.machine() == 'x86_64': probes['migrate_pages'] = lambda: call(256, 1, 8, struct.pack('Q', 1), struct.pack('Q', 1)) and call(-1)";
    let checked = all_denied(&sandbox, probes).await;
    is_usable(&sandbox).await?;
    checked
}

async fn d91_clone3_is_not_there_and_programs_start(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let found =
        found(&sandbox, "print(json.dumps(tried(lambda: call(435, bytes(88), 88))))").await?;
    ensure_eq!(found.as_str(), Some("ENOSYS"), "clone3");
    let programs = "import os, subprocess, threading\nsubprocess.run(['true'], check=True)\nos.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)\nt = threading.Thread(target=print); t.start(); t.join()";
    ok(&sandbox, programs).await?;
    Ok(())
}

async fn d94_privileges_do_not_come_back(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
header, all = struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[0xffffffff] * 6)
capset = {'x86_64': 126}.get(platform.machine(), 91)
probes = {
    'capset': lambda: call(capset, header, all), 'setuid': lambda: os.setuid(0), 'setgid': lambda: os.setgid(0),
    'setresuid': lambda: os.setresuid(0, 0, 0), 'setgroups': lambda: os.setgroups([0]),
    'keep': lambda: libc.prctl(8, 1, 0, 0, 0) and call(-1), 'securebits': lambda: libc.prctl(28, 0, 0, 0, 0) == 0 or call(-1),
    'ambient': lambda: libc.prctl(47, 2, 21, 0, 0) == 0 or call(-1),
    'new privileges': lambda: libc.prctl(38, 0, 0, 0, 0) == 0 or call(-1),
    'subreaper': lambda: None, 'dumpable 2': lambda: libc.prctl(4, 2, 0, 0, 0) == 0 or call(-1),
}
for probe in probes.values(): tried(probe)
status = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines())
print(json.dumps([status[n].split() for n in ['CapEff', 'CapPrm', 'CapInh', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Uid']]))";
    let found = found(&sandbox, code).await?;
    for index in 0..5 {
        let bits = found[index][0].as_str().unwrap_or_default();
        ensure!(!bits.is_empty() && bits.bytes().all(|bit| bit == b'0'), "capabilities: {found}");
    }
    ensure_eq!((found[5][0].as_str(), found[6][0].as_str()), (Some("1"), Some("2")));
    let users = found[7].as_array().cloned().unwrap_or_default();
    ensure!(users.iter().all(|user| user.as_str().is_some_and(|user| user != "0")), "{found}");
    Ok(())
}

async fn d97_calls_that_open_the_kernel(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
X = platform.machine() == 'x86_64'
n = lambda x86, other: x86 if X else other
probes = {
    'io_uring_setup': lambda: call(425, 8, bytes(120)), 'bpf': lambda: call(n(321, 280), 0, bytes(128), 128),
    'perf_event_open': lambda: call(n(298, 241), bytes(128), 0, -1, -1, 0),
    'userfaultfd': lambda: call(n(323, 282), 0), 'userfaultfd user': lambda: call(n(323, 282), 1),
    'kexec_load': lambda: call(n(246, 104), 0, 0, 0, 0), 'init_module': lambda: call(n(175, 105), b'', 0, b''),
    'finit_module': lambda: call(n(313, 273), 0, b'', 0), 'delete_module': lambda: call(n(176, 106), b'x', 0),
    'reboot': lambda: call(n(169, 142), 0xfee1dead, 672274793, 0, 0), 'syslog': lambda: call(n(103, 116), 3, bytes(100), 100),
    'sethostname': lambda: socket.sethostname('evil'), 'setdomainname': lambda: call(n(171, 162), b'x', 1),
    'memfd_secret': lambda: call(447, 0), 'unshare user': lambda: call(n(272, 97), 0x10000000),
    'unshare mount': lambda: call(n(272, 97), 0x20000), 'unshare network': lambda: call(n(272, 97), 0x40000000),
    'unshare uts': lambda: call(n(272, 97), 0x4000000), 'unshare pid': lambda: call(n(272, 97), 0x20000000),
    'unshare time': lambda: call(n(272, 97), 0x80), 'unshare groups': lambda: call(n(272, 97), 0x2000000),
    'setns': lambda: call(n(308, 268), os.open('/proc/self/ns/uts', 0), 0),
    'lookup_dcookie': lambda: call(n(212, 18), 0, bytes(8), 8), 'vm86': lambda: call(n(172, 1000), 3),
    'modify_ldt': lambda: call(n(154, 1000), 17, bytes(16), 16), 'nfsservctl': lambda: call(n(180, 42), 0, 0, 0),
    'name_to_handle': lambda: None if not X else call(1000), 'packet': lambda: socket.socket(17, 3, 0),
    'netlink, events': lambda: socket.socket(16, 3, 15), 'netlink, any': lambda: socket.socket(16, 3, 16), 'netlink, keys': lambda: socket.socket(16, 3, 6),
    'raw': lambda: socket.socket(2, 3, 1), 'netlink, sockets': lambda: socket.socket(16, 3, 4), 'netlink, filters': lambda: socket.socket(16, 3, 12), 'vsock': lambda: socket.socket(40, 1, 0),
    'alg': lambda: socket.socket(38, 5, 0), 'can': lambda: socket.socket(29, 3, 1), 'bluetooth': lambda: socket.socket(31, 3, 1),
    'xdp': lambda: socket.socket(44, 3, 0), 'tipc': lambda: socket.socket(30, 1, 0), 'kcm': lambda: socket.socket(41, 2, 0),
    'smc': lambda: socket.socket(43, 1, 0), 'rds': lambda: socket.socket(21, 5, 0), 'qrtr': lambda: socket.socket(42, 2, 0),
    'sctp': lambda: socket.socket(2, 1, 132), 'mptcp': lambda: socket.socket(2, 1, 262), 'dccp': lambda: socket.socket(2, 6, 33),
    'udplite': lambda: socket.socket(2, 2, 136), 'l2tp': lambda: socket.socket(2, 2, 115), 'ping': lambda: None and socket.socket(2, 2, 1),
}
del probes['name_to_handle'], probes['ping']";
    all_denied(&sandbox, probes).await
}

async fn d99_no_keys_are_kept_in_the_kernel(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
first = 248 if platform.machine() == 'x86_64' else 217
probes = {
    'add_key': lambda: call(first, b'user', b'x', b'data', 4, -4), 'add_key session': lambda: call(first, b'user', b'x', b'data', 4, -3),
    'request_key': lambda: call(first + 1, b'user', b'x', 0, -4), 'keyctl join': lambda: call(first + 2, 1, b'evil', 0, 0, 0),
    'keyctl read': lambda: call(first + 2, 11, -4, bytes(100), 100, 0),
    'message queue': lambda: call({'x86_64': 240}.get(platform.machine(), 180), b'x', 0o102, 0o600, 0) and None,
}
del probes['message queue']";
    all_denied(&sandbox, probes).await
}

async fn d104_the_personality_stays(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
number = {'x86_64': 135}.get(platform.machine(), 92)
probes = {hex(bits): (lambda bits=bits: call(number, bits)) for bits in [0x0040000, 0x0400000, 0x0100000, 0x0440000]}";
    all_denied(&sandbox, probes).await
}

async fn d106_a_program_in_memory_has_the_same_walls(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
program = open('/bin/cat', 'rb').read()
held = os.memfd_create('program')
os.write(held, program)
open('/dev/shm/program', 'wb').write(program); os.chmod('/dev/shm/program', 0o755)
seen = []
for path in [f'/proc/self/fd/{held}', '/dev/shm/program']:
    try:
        done = subprocess.run([path, '/proc/self/status'], pass_fds=[held], capture_output=True, text=True)
        status = dict(line.split(':', 1) for line in done.stdout.splitlines())
        seen.append([status['Uid'].split()[0] == str(os.getuid()) != '0', status['Seccomp'].strip(), status['NoNewPrivs'].strip(), status['CapEff'].strip().strip('0')])
    except OSError as e: seen.append(['refused', e.errno])
print(json.dumps(seen))";
    let found = found(&sandbox, code).await?;
    for seen in found.as_array().into_iter().flatten() {
        let walls = serde_json::json!([true, "2", "1", ""]);
        ensure!(*seen == walls || seen[0] == "refused", "{found}");
    }
    ensure_eq!(found.as_array().map(Vec::len), Some(2));
    Ok(())
}

async fn d107_a_core_goes_nowhere(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let limits = "import resource\nresource.getrlimit(resource.RLIMIT_CORE)";
    ensure_eq!(text(&sandbox, limits).await?, "(0, 0)", "the limit of cores");
    let result = attack(&sandbox, "import os; os.abort()").await?;
    ensure_eq!(result.exit_code, Some(134));
    let files = text(
        &sandbox,
        "import os; [n for n in os.listdir('.') + os.listdir('/tmp') if 'core' in n]",
    );
    ensure_eq!(files.await?, "[]", "cores");
    // A program that a pipe would take its core from holds nothing of the host anyway.
    let filter =
        text(&sandbox, "open('/proc/self/coredump_filter').read().strip().strip('0')").await?;
    ensure_eq!(filter, "''", "what a core would hold");
    Ok(())
}

async fn d111_the_secret_is_not_in_its_memory(f: Fixture) -> Checked {
    let secret = host::secret().unwrap_or_default();
    ensure!(!secret.is_empty(), "there is no secret, so the case proves nothing");
    is_nowhere_in(&sandbox_of(&f).await?, secret).await
}

/// Whatever starts the interpreters of both was told of the first one's secret.
async fn d111_secrets_of_others_are_not_in_its_memory(f: Fixture) -> Checked {
    for _ in 0..3 {
        let secret = random_hex(32);
        let owner = f.create(|builder| builder.secret("KEY", secret.as_str())).await?;
        let known = text(&owner, "import os; len(os.environ['KEY'])").await?;
        ensure_eq!(known, "64");
        is_nowhere_in(&sandbox_of(&f).await?, &secret).await?;
    }
    Ok(())
}

/// Looks for it in all memory of the interpreter, whose code has it in halves.
async fn is_nowhere_in(sandbox: &sandbox_core::Sandbox, secret: &str) -> Checked {
    let (one, two) = secret.split_at(secret.len() / 2);
    let code = format!(
        "
import json
halves = [{one:?}.encode(), {two:?}.encode()]
def count():
    one, two = halves
    found, memory = 0, open('/proc/self/mem', 'rb', 0)
    for line in open('/proc/self/maps'):
        span, rights = line.split()[:2]
        start, end = (int(part, 16) for part in span.split('-'))
        if not rights.startswith('r') or end - start > 1 << 28: continue
        try:
            memory.seek(start)
            content = memory.read(end - start)
        except (OSError, ValueError, OverflowError): continue
        at = content.find(one)
        while at >= 0:
            found += content.startswith(two, at + len(one))
            at = content.find(one, at + 1)
    return found
before = count()
planted = b''.join(halves) * 20
print(json.dumps([before, count()]))"
    );
    let found = json(sandbox, &code).await?;
    ensure_eq!(found[0].as_u64(), Some(0), "it was found");
    ensure!(found[1].as_u64() >= Some(20), "the control: {found}");
    Ok(())
}

async fn sandbox_of(f: &Fixture) -> Checked<sandbox_core::Sandbox> {
    f.sandbox().await
}

async fn d112_later_sandboxes_are_not_poisoned(f: Fixture) -> Checked {
    let poisoner = f.sandbox().await?;
    let code = "
import builtins, ctypes, sys, json
builtins.x = 'poison'; json.poison = 1; sys.path.insert(0, '/evil'); int.__doc__
# A cached small integer is changed in place, in memory that all workers share until they write.
ctypes.c_int64.from_address(id(199) + 24 if sys.maxsize > 2**32 else id(199)).value = 7
ctypes.c_char.from_address(id('poison') + sys.getsizeof('') - 1).value = b'P'";
    attack(&poisoner, code).await?;
    poisoner.kill().await?;
    for _ in 0..3 {
        let later = f.sandbox().await?;
        let seen = "import builtins, json, sys\n(hasattr(builtins, 'x'), hasattr(json, 'poison'), '/evil' in sys.path, int('199') + 1, 'poison')";
        ensure_eq!(text(&later, seen).await?, "(False, False, False, 200, 'poison')");
    }
    Ok(())
}

async fn limits_of_others_stay(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
probes = {}
for pid in [1, os.getppid() or 1]:
    for name in ['NOFILE', 'NPROC', 'CPU', 'DATA', 'FSIZE', 'AS', 'STACK']:
        probes[f'{name} {pid}'] = lambda name=name, pid=pid: resource.prlimit(pid, getattr(resource, 'RLIMIT_' + name), (0, 0))
if platform.machine() == 'x86_64':
    # The kernel looks at the lower half of a process number.
    for number, arguments in [(302, (resource.RLIMIT_CPU, ctypes.create_string_buffer(16), 0)), (203, (8, ctypes.create_string_buffer(8)))]:
        probes[f'call {number} with more bits'] = lambda number=number, arguments=arguments: call(number, 1 | 1 << 32, *arguments)
    probes['priority with more bits'] = lambda: call(141, 0, 1 | 1 << 32, 19)
hard = {name: resource.getrlimit(getattr(resource, 'RLIMIT_' + name)) for name in ['NOFILE', 'NPROC', 'CORE', 'MEMLOCK', 'SIGPENDING']}
for name, (soft, most) in hard.items():
    def probe(name=name, most=most):
        try: resource.setrlimit(getattr(resource, 'RLIMIT_' + name), (most + 1, most + 1))
        except ValueError: call(-1)
    if most not in (-1, resource.RLIM_INFINITY): probes['more ' + name] = probe";
    all_denied(&sandbox, probes).await
}

async fn namespaces_by_clone(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // All combinations of flags, high bits set as well: the filter looks at 32 of 64 bits, or at all of them.
    let code = "
seen = []
base = 56 if platform.machine() == 'x86_64' else 220
for flag in [0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000]:
    for more in [0, 1 << 32, 1 << 63, 0x100]:
        pid = None
        try:
            pid = libc.syscall(ctypes.c_long(base), ctypes.c_ulong(flag | more | 17), 0, 0, 0, 0)
        finally:
            if pid == 0: os._exit(0)
        if pid > 0: seen.append(hex(flag | more)); os.waitpid(pid, 0)
print(json.dumps(seen))";
    let found = found(&sandbox, code).await?;
    ensure_eq!(found.as_array().map(Vec::len), Some(0), "namespaces were made: {found}");
    Ok(())
}

async fn more_programs_than_it_shows(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
seen = {pid: open(f'/proc/{pid}/cmdline').read() for pid in os.listdir('/proc') if pid.isdigit()}
print(json.dumps(seen))";
    let seen = found(&sandbox, code).await?;
    let count = seen.as_object().map_or(0, serde_json::Map::len);
    ensure!((1..=3).contains(&count), "{seen}");
    ensure!(!seen.to_string().contains("sandbox-hostile"), "{seen}");
    Ok(())
}

async fn signals_to_everybody(f: Fixture) -> Checked {
    for code in [
        "import os; os.kill(-1, 9)",
        "import os; os.killpg(0, 9)",
        "import os; os.kill(1, 9); os.kill(os.getppid(), 9) if os.getppid() > 1 else os.killpg(0, 9)",
        "import os\nfor s in range(1, 65):\n    for pid in (1, -1):\n        try: os.kill(pid, s)\n        except OSError: pass",
    ] {
        let sandbox = f.sandbox().await?;
        let other = f.sandbox().await?;
        ok(&other, "mine = 5").await?;
        attack(&sandbox, code).await?;
        is_usable(&sandbox).await?;
        ensure_eq!(text(&other, "mine").await?, "5", "another sandbox after {code}");
    }
    Ok(())
}

async fn messages_to_other_sandboxes(f: Fixture) -> Checked {
    let (one, two) = (f.sandbox().await?, f.sandbox().await?);
    let name = host::token("mail-");
    let send = format!(
        "
import ctypes, os, socket
libc = ctypes.CDLL(None)
key = 0x5eed
queue = libc.msgget(key, 0o1666); segment = libc.shmget(key, 4096, 0o1666)
s = socket.socket(socket.AF_UNIX); s.bind('\\0{name}'); s.listen()
t = socket.socket(); t.bind(('127.0.0.1', 45671)); t.listen()
for folder in ['/tmp', '/dev/shm', '/var/tmp', '/dev/mqueue', '/home/sandbox']:
    try: open(folder + '/{name}', 'w').write('mail')
    except OSError: pass
queue >= 0 or segment >= 0"
    );
    ensure_eq!(text(&one, &send).await?, "True", "the control: nothing could be sent at all");
    let receive = format!(
        "
import ctypes, os, socket
libc = ctypes.CDLL(None)
seen = [libc.msgget(0x5eed, 0o666) >= 0, libc.shmget(0x5eed, 4096, 0o666) >= 0]
for address, family in [('\\0{name}', socket.AF_UNIX), (('127.0.0.1', 45671), socket.AF_INET)]:
    try: socket.socket(family).connect(address); seen.append(True)
    except OSError: seen.append(False)
seen += [os.path.exists(folder + '/{name}') for folder in ['/tmp', '/dev/shm', '/var/tmp', '/dev/mqueue', '/home/sandbox']]
any(seen), seen"
    );
    let seen = ok(&two, &receive).await?;
    ensure!(seen.text().is_some_and(|seen| seen.starts_with("(False")), "{:?}", seen.text());
    ensure!(
        text(&one, &receive).await?.starts_with("(True"),
        "the control: the sender does not see it either within {WAIT_TIMEOUT:?}"
    );
    Ok(())
}

async fn d96_another_numbering_of_calls_ends_the_interpreter(f: Fixture) -> Checked {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    let sandbox = f.sandbox().await?;
    // `getpid` as 32-bit programs call it, by `int 0x80`.
    let code = "
import ctypes, mmap
page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex('b814000000cd80c3'))
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
print('before', flush=True)
ctypes.CFUNCTYPE(ctypes.c_int)(address)()
print('after', flush=True)";
    let result = attack(&sandbox, code).await?;
    ensure_eq!(result.exit_code, Some(159), "{}", describe(&result));
    failed_with(&result, FailureKind::KernelDied)?;
    ensure_eq!(result.logs.stdout_exact(), "before\n");
    ensure!(is_usable(&sandbox).await?.restarted, "it was not lost");
    // The control: the same function with the number of this architecture.
    let own = code.replace("b814000000cd80c3", "b8270000000f05c3");
    ok(&sandbox, &own).await?;
    Ok(())
}

async fn siblings_of_its_interpreter(f: Fixture) -> Checked {
    // A process that starts interpreters outside of all cells would have children of code, which end as quickly as code likes.
    let (other, sandbox) = (f.sandbox().await?, f.sandbox().await?);
    ok(&other, "kept = 42").await?;
    let code = "
import ctypes, os
libc, clone = ctypes.CDLL(None), {'x86_64': 56, 'aarch64': 220}[os.uname().machine]
for n in range(20_000):
    if libc.syscall(clone, 0x8000 | 17, 0, 0, 0, 0) == 0: libc._exit(0)";
    attack(&sandbox, code).await?;
    ensure_eq!(text(&other, "kept").await?, "42");
    is_usable(&sandbox).await?;
    Ok(())
}
