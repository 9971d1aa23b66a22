//! Code that looks for what other programs of its user have: terminals, messages, files, and what `/proc` has of them.
//!
//! In a cell it is out of sight. Without one, where isolation is the best that can be had, the code is that user.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use super::support::{all_denied, found, on_host};
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;

pub(super) fn cases() -> Vec<Case> {
    cases!("same_user", [run_code, local], {
        settings_of_the_kernel_stay needs contained;
        processes_are_not_written needs contained;
        terminals_are_not_heard needs contained;
        messages_are_not_found needs contained;
        files_are_neither_emptied_nor_given_away needs contained;
    })
}

/// A program of the host's user with a terminal, shared memory, semaphores and queues. It removes them at its end.
struct Neighbour {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// By what others find them.
    facts: Value,
}

/// Of the calls, so that it is the kernel that answers.
const NUMBERS: &str = "
N = dict(zip('shmget shmat shmctl semget semop semctl msgget msgsnd msgrcv msgctl mq_open mq_unlink'.split(),
    {'x86_64': [29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 240, 241],
     'aarch64': [194, 196, 195, 190, 193, 191, 186, 189, 188, 187, 180, 181]}[platform.machine()]))
n = lambda name, *arguments: call(N[name], *arguments)";

const NEIGHBOUR: &str = "
import pty, random
near, far = pty.openpty()
key, name = random.randrange(1, 1 << 30), b'neighbour-%d' % os.getpid()
shm, sem, msg = n('shmget', key, 4096, 0o1600), n('semget', key, 1, 0o1600), n('msgget', key, 0o1600)
queue = n('mq_open', name, os.O_CREAT | os.O_RDWR, 0o600, 0)
libc.shmat.restype = ctypes.c_void_p
memory = (ctypes.c_char * 4096).from_address(libc.shmat(shm, None, 0))
memory.value = b'of the host'
n('semctl', sem, 0, 16, 7); n('msgsnd', msg, struct.pack('l8s', 1, b'of the h'), 8, 0)
print(json.dumps(dict(key=key, name=name.decode(), shm=shm, sem=sem, msg=msg, pid=os.getpid(), near=near, terminal=os.ttyname(far))), flush=True)
for line in sys.stdin:
    import select
    there = [memory.value == b'of the host', n('semctl', sem, 0, 12) == 7, n('shmget', key, 0, 0) == shm,
        n('msgctl', msg, 2, bytes(512)) == 0, n('mq_open', name, os.O_RDWR, 0, 0) > 0, not select.select([near], [], [], 0.05)[0]]
    print(json.dumps(there), flush=True)
for remove in [lambda: n('shmctl', shm, 0, 0), lambda: n('semctl', sem, 0, 0), lambda: n('msgctl', msg, 0, 0), lambda: n('mq_unlink', name)]: tried(remove)";

impl Neighbour {
    fn start() -> Checked<Self> {
        let code = format!("{}\n{NUMBERS}\n{NEIGHBOUR}", super::support::TRIED);
        let mut child = Command::new("python3")
            .args(["-I", "-c", &code])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or_else(|| "no output".to_owned())?);
        let mut neighbour = Self { child, input, output, facts: Value::Null };
        neighbour.facts = neighbour.line()?;
        Ok(neighbour)
    }

    fn line(&mut self) -> Checked<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Whether everything is there and as it was.
    fn is_untouched(&mut self) -> Checked {
        self.input.as_mut().ok_or_else(|| "no input".to_owned())?.write_all(b"look\n")?;
        let there = self.line()?;
        let all =
            there.as_array().is_some_and(|all| all.iter().all(|one| *one == Value::Bool(true)));
        ensure!(all, "something of another program was changed: {there}");
        Ok(())
    }

    /// Probes that know them by `facts`. What they call is known to them, too.
    fn probes(&self, probes: &str) -> String {
        format!("facts = json.loads({:?})\n{NUMBERS}\n{probes}", self.facts.to_string())
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// That on the host each probe finds something: what is refused inside is there to be found.
fn all_found_on_host(probes: &str) -> Checked {
    for (name, outcome) in on_host(probes)? {
        ensure!(!outcome.starts_with('E'), "the control {name} found nothing: {outcome}");
    }
    Ok(())
}

async fn settings_of_the_kernel_stay(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
seen, opened = 0, []
for folder, names, files in os.walk('/proc/sys'):
    for name in files:
        seen += 1
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            try: os.close(os.open(os.path.join(folder, name), flags)); opened.append(os.path.join(folder, name))
            except OSError: pass
print(json.dumps([seen, opened[:20]]))";
    let found = found(&sandbox, code).await?;
    ensure!(found[0].as_u64().is_some_and(|seen| seen > 100), "there was nothing to try: {found}");
    ensure_eq!(found[1].as_array().map(Vec::len), Some(0), "settings to write: {found}");
    let probes = "
probes = {path: (lambda path=path: os.open(path, os.O_WRONLY)) for path in [
    '/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sys/vm/drop_caches', '/proc/sysrq-trigger',
    '/proc/irq/default_smp_affinity', '/proc/mtrr', '/proc/bus/pci/devices', '/sys/kernel/uevent_helper', '/sys/power/state']}
probes |= {'truncate': lambda: os.truncate('/proc/sys/kernel/core_pattern', 0), 'mode': lambda: os.chmod('/proc/sys/kernel/core_pattern', 0o666)}";
    all_denied(&sandbox, probes).await
}

async fn processes_are_not_written(f: Fixture) -> Checked {
    let (decoy, own) = (f.canaries()?.decoy(), std::process::id());
    let files = "['oom_score_adj', 'coredump_filter', 'clear_refs']";
    let writing = format!(
        "
probes = {{f'{{pid}} {{name}}': (lambda pid=pid, name=name: os.open(f'/proc/{{pid}}/{{name}}', os.O_WRONLY))
    for pid in [{decoy}, {own}] for name in {files}}}"
    );
    let further = format!(
        "{writing}
for pid in [{decoy}, {own}]:
    for name in ['mem', 'comm', 'autogroup', 'timerslack_ns', 'sched', 'loginuid', 'uid_map', 'setgroups', 'attr/exec', 'oom_adj']:
        probes[f'{{pid}} {{name}}'] = lambda pid=pid, name=name: os.open(f'/proc/{{pid}}/{{name}}', os.O_WRONLY)
        probes[f'{{pid}} task {{name}}'] = lambda pid=pid, name=name: os.open(f'/proc/{{pid}}/task/{{pid}}/{{name}}', os.O_WRONLY)
    for name in ['environ', 'mem', 'maps', 'auxv', 'stack', 'syscall', 'io', 'pagemap']:
        probes[f'{{pid}} read {{name}}'] = lambda pid=pid, name=name: open(f'/proc/{{pid}}/{{name}}', 'rb').read(8)
    for name in ['root', 'cwd', 'map_files']:
        probes[f'{{pid}} list {{name}}'] = lambda pid=pid, name=name: os.listdir(f'/proc/{{pid}}/{{name}}/')
    # How many descriptors there are is told, and not what they are.
    for name in ['exe', 'fd/0', 'fd/1']:
        probes[f'{{pid}} link {{name}}'] = lambda pid=pid, name=name: os.readlink(f'/proc/{{pid}}/{{name}}')
        probes[f'{{pid}} open {{name}}'] = lambda pid=pid, name=name: os.open(f'/proc/{{pid}}/{{name}}', os.O_RDONLY)"
    );
    let sandbox = f.sandbox().await?;
    // In a cell the same numbers may be those of its own processes: none of these is that high.
    let highest = "print(max(int(p) for p in os.listdir('/proc') if p.isdigit()) if not os.path.exists('/proc/{pid}') else 0)";
    let highest = found(&sandbox, &highest.replace("{pid}", &decoy.to_string())).await?;
    ensure!(highest.as_u64().is_none_or(|highest| highest < u64::from(decoy)), "the numbers meet");
    all_denied(&sandbox, &further).await?;
    all_found_on_host(&writing)
}

async fn terminals_are_not_heard(f: Fixture) -> Checked {
    let mut neighbour = Neighbour::start()?;
    let probes = neighbour.probes(
        "
name = facts['terminal']
probes = {str(flags): (lambda flags=flags: os.open(name, flags | os.O_NOCTTY)) for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR)}
probes |= {'speaks': lambda: os.write(os.open(name, os.O_WRONLY | os.O_NOCTTY), b'x'),
    'held': lambda: os.open(f\"/proc/{facts['pid']}/fd/{facts['near']}\", os.O_RDWR) or call(-1)}",
    );
    let sandbox = f.sandbox().await?;
    all_denied(&sandbox, &probes).await?;
    neighbour.is_untouched()?;
    let controls = format!("{probes}\ndel probes['held']");
    all_found_on_host(&controls)
}

async fn messages_are_not_found(f: Fixture) -> Checked {
    let mut neighbour = Neighbour::start()?;
    let probes = neighbour.probes(
        "
key, name = facts['key'], facts['name'].encode()
probes = {
    'memory': lambda: n('shmat', n('shmget', key, 0, 0), 0, 0), 'memory by number': lambda: n('shmat', facts['shm'], 0, 0o10000),
    'memory told': lambda: n('shmctl', facts['shm'], 2, bytes(512)), 'semaphores': lambda: n('semctl', n('semget', key, 0, 0), 0, 12),
    'semaphores by number': lambda: n('semctl', facts['sem'], 0, 16, 3), 'wait': lambda: n('semop', facts['sem'], struct.pack('Hhh', 0, -1, 0o4000), 1),
    'queue': lambda: n('msgctl', n('msgget', key, 0), 2, bytes(512)), 'queue by number': lambda: n('msgsnd', facts['msg'], struct.pack('l8s', 2, b'x'), 8, 0o4000),
    'taken': lambda: n('msgrcv', facts['msg'], ctypes.create_string_buffer(64), 8, 1, 0o4000),
    'named queue': lambda: n('mq_open', name, os.O_RDWR, 0, 0),
    'memory removed': lambda: n('shmctl', facts['shm'], 0, 0), 'semaphores removed': lambda: n('semctl', facts['sem'], 0, 0),
    'queue removed': lambda: n('msgctl', facts['msg'], 0, 0), 'named queue removed': lambda: n('mq_unlink', name),
}",
    );
    let sandbox = f.sandbox().await?;
    all_denied(&sandbox, &probes).await?;
    neighbour.is_untouched()?;
    all_found_on_host(&probes)
}

async fn files_are_neither_emptied_nor_given_away(f: Fixture) -> Checked {
    let probes = |tree: &str| {
        format!(
            "
tree = {tree:?}
probes = {{}}
for name in ['readme', 'public/open']:
    path = os.path.join(tree, name)
    probes['truncate ' + name] = lambda path=path: os.truncate(path, 0)
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        probes[f'empty {{flags}} ' + name] = lambda path=path, flags=flags: os.open(path, flags | os.O_TRUNC)
    probes['owner ' + name] = lambda path=path: os.chown(path, os.getuid(), os.getgid())
    probes['owner of a link ' + name] = lambda path=path: os.lchown(path, os.getuid(), os.getgid())
    for mode in (0o666, 0o777, 0o4755, 0o2755, 0o620):
        probes[f'mode {{mode:o}} ' + name] = lambda path=path, mode=mode: os.chmod(path, mode)
    probes['attribute ' + name] = lambda path=path: os.setxattr(path, 'user.x', b'x')
    probes['attribute of a link ' + name] = lambda path=path: os.setxattr(path, 'user.x', b'x', follow_symlinks=False)
    probes['attribute removed ' + name] = lambda path=path: os.removexattr(path, 'user.x')"
        )
    };
    let sandbox = f.sandbox().await?;
    all_denied(&sandbox, &probes(&f.canaries()?.tree.display().to_string())).await?;
    f.is_untouched()?;
    // The controls: its own files are its own, and on the host all of it works.
    let own = "
open('f', 'w').write('x'); os.truncate('f', 0); os.close(os.open('f', os.O_RDONLY | os.O_TRUNC)); os.chmod('f', 0o755)
print(json.dumps(os.stat('f').st_size))";
    ensure_eq!(found(&sandbox, own).await?.as_u64(), Some(0), "its own file");
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("public"))?;
    for name in ["readme", "public/open"] {
        std::fs::write(folder.path().join(name), "of the host")?;
    }
    let controls = probes(&folder.path().display().to_string());
    // Not every file system has them.
    all_found_on_host(&format!(
        "{controls}\nprobes = {{name: probe for name, probe in probes.items() if not name.startswith('attribute')}}"
    ))
}
