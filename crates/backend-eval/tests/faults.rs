//! What a sandbox is made of dies under it: the truth is told at once, and nothing is left.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_eval::EvalBackend;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use sandbox_core::{ErrorKind, FailureKind, IsolationMode, Sandbox, SandboxStatus};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{sleep, timeout};

/// How soon the truth must be told.
const SOON: Duration = Duration::from_secs(1);

/// One test at a time: each finds its own processes by what was not there before.
static ALONE: Mutex<()> = Mutex::const_new(());

struct Faulty {
    sandbox: Sandbox,
    before: BTreeSet<u32>,
    _alone: MutexGuard<'static, ()>,
}

/// Every process that descends from this one.
fn descendants() -> BTreeSet<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut family = vec![std::process::id()];
    let mut found = BTreeSet::new();
    while let Some(parent) = family.pop() {
        let children = parents.iter().filter(|process| process.1 == parent).map(|(pid, _)| *pid);
        for pid in children {
            family.push(pid);
            found.insert(pid);
        }
    }
    found
}

/// The parent of a process that lives.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| state != "Z")
}

/// Its number in the innermost process namespace.
fn inner_pid(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

fn raw(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process number")
}

impl Faulty {
    async fn start(isolation: IsolationMode) -> Self {
        let alone = ALONE.lock().await;
        let before = descendants();
        let mut builder = Sandbox::builder(Arc::new(EvalBackend::default())).isolation(isolation);
        if let Ok(python) = std::env::var("SANDBOX_TEST_PYTHON") {
            builder = builder.provider_option("python", python);
        }
        let sandbox = builder.create().await.expect("a sandbox");
        let result = sandbox.run_code("1 + 1").await.expect("a result");
        assert_eq!(result.text(), Some("2"));
        Self { sandbox, before, _alone: alone }
    }

    fn processes(&self) -> BTreeSet<u32> {
        &descendants() - &self.before
    }

    /// The process that makes cells.
    fn maker(&self) -> u32 {
        let own = std::process::id();
        self.processes().into_iter().find(|pid| parent(*pid) == Some(own)).expect("a maker")
    }

    /// The interpreter outside of the cell that workers are forked from.
    fn warm_interpreter(&self) -> u32 {
        let own = std::process::id();
        let of_maker = |pid: &u32| parent(*pid).and_then(parent) == Some(own);
        let is_python = |pid: &u32| {
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command.contains("/dev/fd/4")
        };
        self.processes()
            .into_iter()
            .find(|pid| of_maker(pid) && is_python(pid))
            .expect("a warm interpreter")
    }

    /// The first process of the cell.
    fn init(&self) -> u32 {
        let is_init = |pid: &u32| inner_pid(*pid) == Some(1);
        self.processes().into_iter().find(is_init).expect("a first process")
    }

    fn send(pid: u32, signal: Signal) {
        kill_process(raw(pid), signal).expect("a signal");
    }

    fn kill(pid: u32) {
        Self::send(pid, Signal::KILL);
    }

    /// Requires that everybody is told that the sandbox is gone.
    async fn is_terminated(&self) {
        let began = Instant::now();
        // Death takes a moment: a run may still succeed, or be told of the end as its result.
        loop {
            match timeout(SOON, self.sandbox.run_code("2 + 2")).await.expect("an answer") {
                Ok(result) if result.success() => assert!(began.elapsed() < SOON, "it runs on"),
                Ok(result) => {
                    let failure = result.failure.expect("a failure");
                    assert_eq!(failure.kind, FailureKind::Terminated, "{failure:?}");
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
                    break;
                }
            }
        }
        self.is_said_to_be_terminated(began).await;
        let run = timeout(SOON, self.sandbox.run_code("2 + 2")).await.expect("an answer");
        assert_eq!(run.expect_err("an end").kind(), ErrorKind::Terminated);
        let command = timeout(SOON, self.sandbox.commands().run("true")).await.expect("an answer");
        assert_eq!(command.expect_err("an end").kind(), ErrorKind::Terminated);
        let variable = timeout(SOON, self.sandbox.get_variable::<serde_json::Value>("x"))
            .await
            .expect("an answer");
        assert_eq!(variable.expect_err("an end").kind(), ErrorKind::Terminated);
    }

    async fn is_said_to_be_terminated(&self, since: Instant) {
        let status = || self.sandbox.info().status;
        while status() != SandboxStatus::Terminated {
            assert!(since.elapsed() < SOON, "the status is {:?}", status());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Requires that no process of the cell is left, though the sandbox is still held.
    async fn leaves_nothing_running(&self) {
        let began = Instant::now();
        let in_cell = |pid: &u32| inner_pid(*pid).is_some_and(|inner| inner != *pid);
        while self.processes().iter().any(in_cell) {
            assert!(began.elapsed() < SOON, "left running: {:?}", self.processes());
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn leaves_nothing(self) {
        drop(self.sandbox);
        let began = Instant::now();
        loop {
            let left = &descendants() - &self.before;
            if left.is_empty() {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(5), "left behind: {left:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test]
async fn a_dead_maker_is_the_end() {
    let faulty = Faulty::start(IsolationMode::Strict).await;
    Faulty::kill(faulty.maker());
    faulty.is_terminated().await;
    faulty.leaves_nothing().await;
}

/// What it forked dies with it, and is a zombie where nobody takes orphans.
#[tokio::test]
async fn a_dead_warm_interpreter_is_replaced() {
    for isolation in [IsolationMode::Strict, IsolationMode::Off] {
        let faulty = Faulty::start(isolation).await;
        for round in 0..3 {
            let set = faulty.sandbox.run_code("kept = 1; open('file', 'w').close()").await;
            assert!(set.expect("a result").success(), "round {round}");
            Faulty::kill(faulty.warm_interpreter());
            // A run that comes before the death is known is told of it; the next one has a new interpreter.
            let began = Instant::now();
            let result = loop {
                assert!(began.elapsed() < Duration::from_secs(10), "round {round}: no interpreter");
                let code = "import os; 'kept' in globals(), os.path.exists('file')";
                let result = timeout(SOON * 10, faulty.sandbox.run_code(code)).await;
                let result = result.expect("an answer").expect("a result");
                if result.text() != Some("(True, True)") && result.success() {
                    break result;
                }
            };
            assert_eq!(result.text(), Some("(False, True)"), "round {round}: {result:?}");
        }
        faulty.leaves_nothing().await;
    }
}

#[tokio::test]
async fn a_dead_first_process_is_the_end() {
    let faulty = Faulty::start(IsolationMode::Strict).await;
    Faulty::kill(faulty.init());
    faulty.is_terminated().await;
    faulty.leaves_nothing().await;
}

#[tokio::test]
async fn the_end_is_told_though_nobody_runs_anything() {
    for isolation in [IsolationMode::Strict, IsolationMode::Off] {
        let faulty = Faulty::start(isolation).await;
        Faulty::kill(faulty.maker());
        faulty.is_said_to_be_terminated(Instant::now()).await;
        faulty.leaves_nothing().await;
    }
}

/// What dies with the maker stays a zombie where nobody takes orphans, so that the cell never ends completely.
#[tokio::test]
async fn the_end_is_told_though_the_dead_are_not_taken() {
    let faulty = Faulty::start(IsolationMode::Strict).await;
    // Stopped, the maker does not take its dead.
    Faulty::send(faulty.maker(), Signal::STOP);
    Faulty::kill(faulty.init());
    faulty.is_terminated().await;
    Faulty::send(faulty.maker(), Signal::CONT);
    faulty.leaves_nothing().await;
}

#[tokio::test]
async fn a_dead_maker_is_the_end_without_isolation() {
    let faulty = Faulty::start(IsolationMode::Off).await;
    Faulty::kill(faulty.maker());
    faulty.is_terminated().await;
    faulty.leaves_nothing().await;
}

#[tokio::test]
async fn a_run_under_way_is_told_of_the_end() {
    for of_the_maker in [true, false] {
        let faulty = Faulty::start(IsolationMode::Strict).await;
        let run = faulty.sandbox.run_code("import time; time.sleep(60)");
        let fault = async {
            sleep(Duration::from_millis(200)).await;
            Faulty::kill(if of_the_maker { faulty.maker() } else { faulty.init() });
        };
        let (result, ()) = tokio::join!(async { timeout(2 * SOON, run).await }, fault);
        let failure = result.expect("an end").unwrap().failure.expect("a failure");
        assert_eq!(failure.kind, FailureKind::Terminated, "{failure:?}");
        faulty.is_terminated().await;
        faulty.leaves_nothing().await;
    }
}

#[tokio::test]
async fn the_next_sandbox_of_a_backend_whose_maker_died_works() {
    let alone = ALONE.lock().await;
    let backend = Arc::new(EvalBackend::default());
    let make = || {
        let mut builder = Sandbox::builder(Arc::<EvalBackend>::clone(&backend));
        if let Ok(python) = std::env::var("SANDBOX_TEST_PYTHON") {
            builder = builder.provider_option("python", python);
        }
        builder
    };
    let before = descendants();
    let sandbox = make().create().await.unwrap();
    let faulty = Faulty { sandbox, before, _alone: alone };
    Faulty::kill(faulty.maker());
    faulty.is_terminated().await;
    let next = make().create().await.unwrap();
    assert_eq!(next.run_code("1 + 1").await.unwrap().text(), Some("2"));
    next.terminate().await.unwrap();
}

/// The first process of a cell that can open nothing cannot look for the processes of a tree.
#[tokio::test]
async fn a_tree_that_cannot_be_found_goes_with_its_cell() {
    let faulty = Faulty::start(IsolationMode::Strict).await;
    faulty.sandbox.run_code("beside = 1").context("other").await.unwrap();
    let code = "
import os, signal, time
signal.signal(2, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        while True: time.sleep(1)
print('forked', flush=True)
time.sleep(60)";
    let run = faulty.sandbox.run_code(code).timeout(SOON);
    let fault = async {
        sleep(SOON / 2).await;
        let none = Rlimit { current: Some(3), maximum: Some(3) };
        prlimit(Some(raw(faulty.init())), Resource::Nofile, none)
    };
    let (result, limited) = tokio::join!(async { timeout(10 * SOON, run).await }, fault);
    if limited.is_err() {
        return; // not ours to limit: the cell belongs to another user
    }
    let result = result.expect("an end").unwrap();
    assert_eq!(result.stdout_trimmed(), "forked");
    assert!(result.failure.is_some(), "{result:?}");
    faulty.is_terminated().await;
    faulty.leaves_nothing_running().await;
}

/// A signal that comes right before a call blocks does not wake it. Here another thread takes it, which is the same.
#[tokio::test]
async fn an_interrupt_that_woke_nobody_is_seen_all_the_same() {
    let _alone = ALONE.lock().await;
    let code = "\
        import signal, threading, time\n\
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n\
        try:\n    print('ready', flush=True)\n    time.sleep(20)\n\
        except KeyboardInterrupt:\n    print('interrupted')\n\
        finally:\n    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])";
    for mode in [IsolationMode::Strict, IsolationMode::Off] {
        let builder = Sandbox::builder(Arc::new(EvalBackend::default())).isolation(mode);
        let sandbox = builder.create().await.expect("a sandbox");
        let began = Instant::now();
        let result =
            sandbox.run_code(code).timeout(Duration::from_secs(1)).await.expect("a result");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert_eq!(result.stdout_trimmed(), "ready\ninterrupted", "{result:?}");
        assert_eq!(result.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
        let kept = sandbox.run_code("threading.active_count()").await.expect("a result");
        assert_eq!(kept.text(), Some("2"), "the state is kept: {kept:?}");
        sandbox.terminate().await.expect("an end");
    }
}

/// A file system whose server answers for its root, and never for the file `dead`.
const DEAD_FILES: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
device = os.open('/dev/fuse', os.O_RDWR)
options = f'fd={device},rootmode=40755,user_id=0,group_id=0,allow_other'.encode()
if libc.mount(b'dead', sys.argv[1].encode(), b'fuse.dead', 0, options): raise OSError(ctypes.get_errno(), 'mount')
print('mounted', flush=True)
ROOT = struct.pack('<QQQQQQ10I', 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
while True:
    request = os.read(device, 1 << 20)
    kind, number = struct.unpack_from('<IQ', request, 4)
    def answer(body=b'', error=0): os.write(device, struct.pack('<IiQ', 16 + len(body), error, number) + body)
    if kind == 26: answer(struct.pack('<IIIIHHIIHHIIIIII', 7, 31, 1 << 17, 0, 12, 10, 1 << 17, 1, 32, 0, 0, 0, 0, 0, 0, 0)[:64].ljust(64, bytes(1)))
    elif kind == 3: answer(struct.pack('<QII', 1000, 0, 0) + ROOT)
    elif kind == 27: answer(struct.pack('<QII', 1, 0, 0))
    elif kind in (29, 34): answer()
    elif kind == 17: answer(bytes(80))
    elif kind == 1 and request[40:].rstrip(bytes(1)) == b'dead': print('asked', flush=True)
    elif kind not in (2, 36, 38, 42): answer(error=-2 if kind == 1 else -38)
";

/// That file system, mounted. What waits for it goes on when this is dropped.
struct DeadFiles {
    server: std::process::Child,
    place: tempfile::TempDir,
}

impl DeadFiles {
    /// `None` where this process may not mount one.
    fn mount() -> Option<Self> {
        use std::io::BufRead as _;
        let place = tempfile::Builder::new().prefix("dead-").tempdir_in("/var/tmp").unwrap();
        let mut server = std::process::Command::new("python3")
            .args(["-I", "-c", DEAD_FILES])
            .arg(place.path())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut said = std::io::BufReader::new(server.stdout.take().unwrap()).lines();
        if said.next().is_none() {
            let _ = server.wait();
            return None;
        }
        std::thread::spawn(move || said.for_each(drop));
        Some(Self { server, place })
    }
}

impl Drop for DeadFiles {
    fn drop(&mut self) {
        // With its server the file system is over.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::process::Command::new("umount").arg("-l").arg(self.place.path()).status();
    }
}

#[tokio::test]
async fn what_waits_for_a_file_system_that_never_answers_is_told_within_its_bound() {
    let _alone = ALONE.lock().await;
    for isolation in [IsolationMode::Strict, IsolationMode::Off] {
        let Some(files) = DeadFiles::mount() else {
            println!("skipped: this process may not mount a file system of its own");
            return;
        };
        let place = files.place.path().to_str().unwrap();
        let mut builder = Sandbox::builder(Arc::new(EvalBackend::default())).isolation(isolation);
        if isolation == IsolationMode::Strict {
            builder = builder.mount(sandbox_core::Mount::new(place, place));
        }
        let sandbox = builder.create().await.unwrap();
        let code = format!("print('begun', flush=True)\nopen({place:?} + '/dead')");
        let run = sandbox.run_code(code).timeout(Duration::from_millis(500));
        let result = timeout(Duration::from_secs(40), run).await.expect("it is told").unwrap();
        let failure = result.failure.clone().expect("it has not succeeded");
        assert_eq!(failure.kind, FailureKind::Timeout, "{result:?}");
        assert_eq!(result.logs.stdout_exact(), "begun\n");
        if isolation == IsolationMode::Strict {
            let message = &failure.message;
            assert!(message.contains("the sandbox had to be ended"), "{result:?}");
            let ended = timeout(Duration::from_secs(20), sandbox.kill()).await;
            assert!(ended.is_ok(), "its end does not wait for it");
        }
    }
}
