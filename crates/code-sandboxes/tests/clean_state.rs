//! Nothing of one run is left for the next owner: what is written everywhere in one sandbox is looked for from the next.

use std::time::Duration;

use code_sandboxes::pool::SandboxPool;
use code_sandboxes::{Sandbox, SingleUse};

/// Leaves something wherever code can.
const WRITE: &str = r#"
import builtins, ctypes, json, os, socket, subprocess, sys, threading, time
MARK = 'left-behind'
places = ['.', '/tmp', '/var/tmp', '/dev/shm', os.path.expanduser('~'), os.path.expanduser('~/.config')]
written = 0
for place in places:
    try:
        os.makedirs(place + '/a/b', exist_ok=True)
        for name in ('a/b/mark', 'json.py', 'sitecustomize.py', '.bashrc', '.profile', '.pythonrc'):
            with open(f'{place}/{name}', 'a') as file: file.write(f'# {MARK}\n')
            written += 1
    except OSError: pass
user = subprocess.run([sys.executable, '-m', 'site', '--user-site'], capture_output=True, text=True).stdout.strip()
if user:
    os.makedirs(user, exist_ok=True)
    open(user + '/mark.pth', 'w').write('import sys; sys.left_behind = True\n')
os.environ['LEFT_BEHIND'] = MARK
os.umask(0)
json.loads = lambda text: MARK
builtins.left_behind = MARK
sys.path.insert(0, '/tmp')
libc = ctypes.CDLL(None, use_errno=True)
segment = libc.shmget(0x1eaf, 4096, 0o1600)
queue = libc.msgget(0x1eaf, 0o1600)
abstract = socket.socket(socket.AF_UNIX); abstract.bind('\0left-behind'); abstract.listen()
tcp = socket.socket(); tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); tcp.bind(('127.0.0.1', 18765)); tcp.listen()
daemon = subprocess.Popen(['sh', '-c', 'while :; do sleep 1000; done # left-behind'], start_new_session=True)
# Its command line is there a moment after its start.
while b'left-behind' not in open(f'/proc/{daemon.pid}/cmdline', 'rb').read(): time.sleep(0.01)
threading.Thread(target=lambda: threading.Event().wait(), daemon=True).start()
written, segment >= 0, queue >= 0
"#;

/// Looks for everything that the other code leaves. The answer names what was found.
const LOOK: &str = r#"
import builtins, ctypes, json, os, socket, subprocess, sys, threading
MARK = 'left-behind'
found = []
for place in ['.', '/tmp', '/var/tmp', '/dev/shm', os.path.expanduser('~')]:
    for root, _, names in os.walk(place):
        for name in names:
            try: has = MARK in open(f'{root}/{name}', errors='replace').read(1 << 16)
            except OSError: has = False
            if has: found.append(f'file {root}/{name}')
if 'LEFT_BEHIND' in os.environ: found.append('environment')
if json.loads('1') != 1: found.append('module')
if hasattr(builtins, 'left_behind'): found.append('builtins')
if hasattr(sys, 'left_behind'): found.append('site')
if 'MARK_OF_OTHERS' in globals() or 'daemon' in globals(): found.append('variables')
libc = ctypes.CDLL(None, use_errno=True)
if libc.shmget(0x1eaf, 4096, 0o600) >= 0: found.append('shared memory')
if libc.msgget(0x1eaf, 0o600) >= 0: found.append('message queue')
try:
    with socket.socket(socket.AF_UNIX) as one: one.connect('\0left-behind')
    found.append('abstract socket')
except OSError: pass
try:
    socket.create_connection(('127.0.0.1', 18765), 2).close()
    found.append('port')
except OSError: pass
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: line = open(f'/proc/{pid}/cmdline').read()
    except OSError: continue
    if 'left-behind' in line and int(pid) != os.getpid(): found.append(f'process {line!r}')
if len(threading.enumerate()) > 1: found.append('threads')
mask = os.umask(0o022)
if mask == 0: found.append('umask')
sorted(set(found))
"#;

async fn look(sandbox: &Sandbox) -> String {
    let result = sandbox.run_code(LOOK).timeout(Duration::from_secs(60)).await.expect("a result");
    result.text().map_or_else(|| panic!("{result:?}"), str::to_owned)
}

/// Leaves everything, and checks that this very sandbox shows it: otherwise the test would find nothing anywhere.
async fn write(sandbox: &Sandbox) {
    let result = sandbox.run_code(WRITE).timeout(Duration::from_secs(60)).await.expect("a result");
    assert!(result.success(), "{result:?}");
    let control = look(sandbox).await;
    for what in
        ["file /tmp/", "environment", "module", "builtins", "process", "threads", "abstract socket"]
    {
        assert!(control.contains(what), "control: {what} is not in {control}");
    }
}

#[tokio::test]
async fn a_released_sandbox_leaves_nothing_to_the_next_of_the_pool() {
    let pool = SandboxPool::start(1, Sandbox::builder).await.unwrap();
    for _ in 0..2 {
        let sandbox = pool.acquire().await.unwrap();
        assert_eq!(look(&sandbox).await, "[]");
        write(&sandbox).await;
        pool.release(sandbox).await.unwrap();
    }
    let last = pool.acquire().await.unwrap();
    assert_eq!(look(&last).await, "[]");
    pool.close().await.unwrap();
}

#[tokio::test]
async fn sandboxes_of_single_use_have_nothing_of_each_other() {
    for _ in 0..2 {
        let sandbox = Sandbox::builder().single_use(SingleUse::Code).create().await.unwrap();
        assert_eq!(look(&sandbox).await, "[]");
        write(&sandbox).await;
        sandbox.terminate().await.unwrap();
    }
}

#[tokio::test]
async fn a_reset_leaves_the_files_and_nothing_that_runs() {
    let sandbox = Sandbox::builder().create().await.unwrap();
    write(&sandbox).await;
    sandbox
        .instance("reset")
        .unwrap()
        .life()
        .reset(&code_sandboxes::CallContext::new())
        .await
        .unwrap();
    let found = look(&sandbox).await;
    for gone in
        ["environment", "builtins", "variables", "process", "threads", "socket", "port", "umask"]
    {
        assert!(!found.contains(gone), "{gone} is in {found}");
    }
    assert!(found.contains("file /tmp/"), "files are kept: {found}");
    sandbox.terminate().await.unwrap();
}
