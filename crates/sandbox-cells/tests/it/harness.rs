//! Starts zygotes and workers without isolation and talks to them, with a limit on every wait.

use std::{
    io::IoSlice,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType, recv, sendmsg, socketpair,
    },
};
use sandbox_cells::{Fork, Start, ZygoteReply, ZygoteRequest};
use sandbox_engine::{
    FrameReader, MimeData, Reply, Request, Run, RunMode, WireDisplayKind, WireFailureKind,
};
use sandbox_python as python;

/// The longest wait for anything.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// The interpreter under test: `SANDBOX_TEST_PYTHON`, else `python3` of `PATH`.
pub(crate) static PYTHON: LazyLock<PathBuf> = LazyLock::new(|| {
    let given = std::env::var("SANDBOX_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    // A shim on PATH is resolved once, so that measures and kills meet the interpreter itself.
    let found = Command::new(&given).args(["-c", "import sys; print(sys.executable)"]).output();
    let found = found.unwrap_or_else(|error| panic!("cannot start {given}: {error}"));
    String::from_utf8(found.stdout).expect("UTF-8 path").trim().into()
});

/// A warm zygote that the tests share.
pub(crate) static WARM: LazyLock<Arc<Zygote>> = LazyLock::new(|| {
    Zygote::start(&Start { warm: true, preimports: vec![], ..Start::default() }).expect("zygote")
});

pub(crate) struct Zygote {
    control: Mutex<OwnedFd>,
    pub(crate) child: Mutex<Child>,
    pub(crate) hello: ZygoteReply,
}

impl Zygote {
    /// Starts one, or gives the error it answers.
    pub(crate) fn start(start: &Start) -> Result<Arc<Self>, String> {
        Self::start_by(&[], start)
    }

    /// The same by another program, which is told what to become.
    pub(crate) fn start_by(program_before: &[&str], start: &Start) -> Result<Arc<Self>, String> {
        let (host, zygote) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("socket pair");
        let (program, arguments, variables) = if start.program.is_empty() {
            let arguments = python::ARGUMENTS.map(str::to_owned).to_vec();
            (python::program().into_bytes(), arguments, Vec::new())
        } else {
            let variables = [python::PROGRAM_VARIABLES.as_slice(), &[("LANG", "C.UTF-8")]].concat();
            let arguments = [&start.program[..], &[python::VERSION_FLAG.to_owned()]].concat();
            (python::archive(), arguments, variables)
        };
        let program = memory_file(program);
        // Only descriptors 0 to 2 can be given safely, so a shell moves them on.
        let mut child = Command::new("/bin/sh")
            .args(["-c", r#"exec "$0" "$@" 3<&0 4<&1 0</dev/null 1>&2"#])
            .args(program_before)
            .arg(&*PYTHON)
            .args(arguments)
            .env_clear()
            .envs(variables)
            .stdin(Stdio::from(zygote))
            .stdout(Stdio::from(program))
            .spawn()
            .expect("python starts");
        send_packet(host.as_fd(), &ZygoteRequest::Start(start.clone()), &[]);
        let hello = match receive_packet(host.as_fd()) {
            ZygoteReply::Error { message } => {
                child.wait().expect("the zygote ends");
                return Err(message);
            }
            hello => hello,
        };
        Ok(Arc::new(Self { control: Mutex::new(host), child: Mutex::new(child), hello }))
    }

    fn control(&self) -> MutexGuard<'_, OwnedFd> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn request(&self, request: &ZygoteRequest, fds: &[BorrowedFd<'_>]) -> ZygoteReply {
        let control = self.control();
        send_packet(control.as_fd(), request, fds);
        receive_packet(control.as_fd())
    }

    /// The end of the host.
    pub(crate) fn hang_up(&self) {
        let (other, _) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("socket pair");
        *self.control() = other;
    }
}

/// The home of workers. Nobody else writes there, so programs find it empty and can write.
pub(crate) static HOME: OnceLock<String> = OnceLock::new();

/// What a worker of the tests is forked with.
pub(crate) fn plain_fork() -> Fork {
    let home = HOME.get().expect("a home").as_str();
    Fork {
        work_dir: "/tmp".into(),
        env: [("PATH", "/usr/bin:/bin"), ("HOME", home)].map(|(k, v)| (k.into(), v.into())).into(),
        subreaper: true,
        ..Fork::default()
    }
}

/// How a run ended, and everything that came before.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// All but those about marks.
    pub(crate) replies: Vec<Reply>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    /// Length of standard output over time.
    pub(crate) progress: Vec<(Instant, usize)>,
    /// How many reads of the control stream it took.
    pub(crate) reads: usize,
    pub(crate) marked: Box<Marked>,
}

/// What became of the marks in the output.
#[derive(Debug, Default)]
pub(crate) struct Marked {
    /// The run and the numbers of each reply about marks.
    pub(crate) marks: Vec<(i64, [i64; 2])>,
    /// Standard output between the marks that were named.
    pub(crate) places: Vec<String>,
    /// Standard output before the mark of a start, which belongs to no run. `None`: there is no such mark.
    pub(crate) before_start: Option<String>,
    /// Set when later runs were said to mark their start.
    pub(crate) announces_starts: bool,
}

impl Outcome {
    /// Requires that each mark which was named is there, in order, and takes it out of the output.
    fn take_out_marks(&mut self, run: i64) {
        for (which, text) in [&mut self.stdout, &mut self.stderr].into_iter().enumerate() {
            let (mut rest, mut whole) = (std::mem::take(text), Vec::new());
            let start = [&b"\xfemark\xfe"[..], &run.to_le_bytes(), &[0; 8]].concat();
            if let Some(at) = rest.windows(start.len()).position(|window| window == start) {
                if which == 0 {
                    let before = String::from_utf8_lossy(&rest[..at]);
                    self.marked.before_start = Some(before.into_owned());
                }
                rest.drain(..at + start.len());
            }
            for (id, numbers) in &self.marked.marks {
                assert_eq!(*id, run, "the run of a mark");
                if numbers[which] == 0 {
                    continue;
                }
                let mark = [&b"\xfemark\xfe"[..], &id.to_le_bytes(), &numbers[which].to_le_bytes()]
                    .concat();
                let at = rest.windows(mark.len()).position(|window| window == mark);
                let at = at.unwrap_or_else(|| panic!("no mark {} in {which}", numbers[which]));
                whole.extend_from_slice(&rest[..at]);
                if which == 0 {
                    self.marked.places.push(String::from_utf8_lossy(&rest[..at]).into_owned());
                }
                rest.drain(..at + mark.len());
            }
            whole.extend_from_slice(&rest);
            if which == 0 {
                self.marked.places.push(String::from_utf8_lossy(&rest).into_owned());
            }
            *text = whole;
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        self.displays().find_map(|(kind, bundle)| {
            (kind == WireDisplayKind::Result).then(|| bundle[0].data.as_str())
        })
    }

    pub(crate) fn displays(&self) -> impl Iterator<Item = (WireDisplayKind, &[MimeData])> {
        self.replies.iter().filter_map(|reply| match reply {
            Reply::Display { kind, bundle, .. } => Some((*kind, bundle.as_slice())),
            _ => None,
        })
    }

    pub(crate) fn error(&self) -> Option<(&str, &str, &str)> {
        self.replies.iter().find_map(|reply| match reply {
            Reply::Error { name, value, traceback, .. } => {
                Some((name.as_str(), value.as_str(), traceback.as_str()))
            }
            _ => None,
        })
    }

    pub(crate) fn exit(&self) -> Option<i64> {
        self.replies.iter().find_map(|reply| match reply {
            Reply::Exit { code, .. } => Some(*code),
            _ => None,
        })
    }

    pub(crate) fn failed(&self) -> Option<WireFailureKind> {
        self.replies.iter().find_map(|reply| match reply {
            Reply::Failed { kind, .. } => Some(*kind),
            _ => None,
        })
    }

    /// execution count, interrupted, threads
    pub(crate) fn done(&self) -> (i64, bool, u32) {
        match self.replies.last() {
            Some(Reply::Done { execution_count, interrupted, background_threads, .. }) => {
                (*execution_count, *interrupted, *background_threads)
            }
            other => panic!("the last reply is {other:?}"),
        }
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

pub(crate) struct Worker {
    zygote: Arc<Zygote>,
    pub(crate) pid: u32,
    control: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    reader: FrameReader,
    last_id: i64,
    reaped: bool,
    pub(crate) ready: Reply,
}

impl Worker {
    pub(crate) fn new() -> Self {
        Self::fork(&WARM, &plain_fork()).expect("worker")
    }

    /// Forks a worker and waits for its first message.
    pub(crate) fn fork(zygote: &Arc<Zygote>, fork: &Fork) -> Result<Self, String> {
        Self::fork_with(zygote, fork, &[])
    }

    /// The same with further descriptors.
    pub(crate) fn fork_with(
        zygote: &Arc<Zygote>,
        fork: &Fork,
        further: &[BorrowedFd<'_>],
    ) -> Result<Self, String> {
        let stream = || {
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .expect("socket pair")
        };
        let pipe = || rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("pipe");
        let (control, control_of_worker) = stream();
        let (stdout, stdout_of_worker) = pipe();
        let (stderr, stderr_of_worker) = pipe();
        let null: OwnedFd = std::fs::File::open("/dev/null").expect("/dev/null").into();
        let files = [
            control_of_worker.as_fd(),
            null.as_fd(),
            stdout_of_worker.as_fd(),
            stderr_of_worker.as_fd(),
        ];
        let files = [&files[..], further].concat();
        let pid = match zygote.request(&ZygoteRequest::Fork(fork.clone()), &files) {
            ZygoteReply::Forked { pid } => pid,
            ZygoteReply::Error { message } => return Err(message),
            other => panic!("not an answer to a fork: {other:?}"),
        };
        rustix::io::write(&control, &fork.environment()).expect("room for the environment");
        for file in [&stdout, &stderr] {
            rustix::fs::fcntl_setfl(file, rustix::fs::OFlags::NONBLOCK).expect("fcntl");
        }
        drop((control_of_worker, stdout_of_worker, stderr_of_worker));
        let mut worker = Self {
            zygote: Arc::clone(zygote),
            pid,
            control,
            stdout,
            stderr,
            reader: FrameReader::new(),
            last_id: 0,
            reaped: false,
            ready: Reply::Value { id: 0, json: String::new() },
        };
        worker.ready = worker.reply().expect("a first message");
        Ok(worker)
    }

    /// Runs a cell to its end.
    pub(crate) fn run(&mut self, code: &str) -> Outcome {
        self.run_with(&cell(code))
    }

    pub(crate) fn run_with(&mut self, run: &Run) -> Outcome {
        self.start(run, None);
        self.finish().expect("the worker lives")
    }

    /// Sends a run without waiting for it.
    pub(crate) fn start(&mut self, run: &Run, stdin: Option<BorrowedFd<'_>>) {
        self.last_id += 1;
        let run = Run { id: self.last_id, has_stdin: stdin.is_some(), ..run.clone() };
        self.send(&Request::Run(run), stdin);
    }

    pub(crate) fn send(&mut self, request: &Request, file: Option<BorrowedFd<'_>>) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes).expect("short enough");
        let mut sent = send_with_files(self.control.as_fd(), &bytes, file.as_slice());
        while sent < bytes.len() {
            sent += send_with_files(self.control.as_fd(), &bytes[sent..], &[]);
        }
    }

    /// Asks something that has one reply.
    pub(crate) fn ask(&mut self, request: &Request) -> Reply {
        self.send(request, None);
        self.reply().expect("a reply")
    }

    /// Collects until the run is done. `Err` holds what came when the worker went away.
    pub(crate) fn finish(&mut self) -> Result<Outcome, Outcome> {
        let mut outcome = Outcome::default();
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < TIMEOUT, "no end of the run; so far {outcome:?}");
            let ready = wait(&[self.control.as_fd(), self.stdout.as_fd(), self.stderr.as_fd()]);
            let alive = !ready[0] || self.read_control(&mut outcome);
            self.drain(&mut outcome);
            if !alive {
                outcome.take_out_marks(self.last_id);
                return Err(outcome);
            }
            if matches!(outcome.replies.last(), Some(Reply::Done { .. })) {
                self.drain(&mut outcome);
                for reply in &outcome.replies {
                    assert_eq!(id_of(reply), self.last_id, "{reply:?}");
                }
                outcome.take_out_marks(self.last_id);
                return Ok(outcome);
            }
        }
    }

    /// Waits until standard output has begun; what it was is not kept.
    pub(crate) fn wait_for_output(&mut self) {
        let mut seen = Vec::new();
        eventually("output", || {
            drain(&self.stdout, &mut seen);
            !seen.is_empty()
        });
    }

    /// Bytes of the control stream as they are.
    pub(crate) fn read_some(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 65536];
        eventually("bytes on the control stream", || wait(&[self.control.as_fd()])[0]);
        let length = rustix::io::read(&self.control, &mut bytes[..]).expect("read");
        bytes.truncate(length);
        bytes
    }

    /// Lets a program begin, and waits until it has ended. Gives what it wrote.
    pub(crate) fn begin(&mut self) -> Outcome {
        rustix::io::write(&self.control, &[1]).expect("room for a byte");
        let mut outcome = Outcome::default();
        eventually("the end of the program", || {
            self.drain(&mut outcome);
            std::fs::read_to_string(format!("/proc/{}/stat", self.pid))
                .is_ok_and(|stat| stat.contains(") Z "))
        });
        self.drain(&mut outcome);
        outcome
    }

    fn read_control(&mut self, outcome: &mut Outcome) -> bool {
        let mut bytes = vec![0; 1 << 20];
        let length = rustix::io::read(&self.control, &mut bytes[..]).unwrap_or(0);
        outcome.reads += 1;
        self.reader.push(&bytes[..length]);
        while let Some(frame) = self.reader.next_frame().expect("frames") {
            match Reply::decode(frame).expect("a reply") {
                Reply::Marked { stdout: -1, stderr: -1, .. } => {
                    outcome.marked.announces_starts = true;
                }
                Reply::Marked { id, stdout, stderr } => {
                    outcome.marked.marks.push((id, [stdout, stderr]))
                }
                reply => outcome.replies.push(reply),
            }
        }
        length > 0
    }

    fn drain(&mut self, outcome: &mut Outcome) {
        let before = outcome.stdout.len();
        drain(&self.stdout, &mut outcome.stdout);
        drain(&self.stderr, &mut outcome.stderr);
        if outcome.stdout.len() > before {
            outcome.progress.push((Instant::now(), outcome.stdout.len()));
        }
    }

    /// The next single reply; `None` at the end of the stream.
    pub(crate) fn reply(&mut self) -> Option<Reply> {
        let start = Instant::now();
        loop {
            if let Some(frame) = self.reader.next_frame().expect("frames") {
                match Reply::decode(frame).expect("a reply") {
                    Reply::Marked { .. } => continue,
                    reply => return Some(reply),
                }
            }
            assert!(start.elapsed() < TIMEOUT, "no reply");
            if wait(&[self.control.as_fd()])[0] {
                let mut bytes = [0; 65536];
                let length = rustix::io::read(&self.control, &mut bytes[..]).unwrap_or(0);
                if length == 0 {
                    return None;
                }
                self.reader.push(&bytes[..length]);
            }
        }
    }

    pub(crate) fn interrupt(&self) {
        let pid = rustix::process::Pid::from_raw(self.pid.cast_signed()).expect("a process id");
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("kill");
    }

    pub(crate) fn reap(&mut self) -> ZygoteReply {
        self.reaped = true;
        self.zygote.request(&ZygoteRequest::Reap { pid: self.pid }, &[])
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.reaped && !std::thread::panicking() {
            self.reap();
        }
    }
}

pub(crate) fn cell(code: &str) -> Run {
    Run {
        id: 0,
        mode: RunMode::Cell,
        code: code.into(),
        filename: String::new(),
        cwd: String::new(),
        env: Vec::new(),
        argv: Vec::new(),
        has_stdin: false,
    }
}

pub(crate) fn script(code: &str) -> Run {
    Run { mode: RunMode::Script, ..cell(code) }
}

/// Whether the process exists and is not a zombie.
pub(crate) fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A file in memory holding this text.
pub(crate) fn memory_file(content: impl AsRef<[u8]>) -> OwnedFd {
    let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    let mut rest = content.as_ref();
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest).expect("write");
        rest = &rest[written..];
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).expect("seek");
    file
}

fn id_of(reply: &Reply) -> i64 {
    match reply {
        Reply::Display { id, .. }
        | Reply::ClearOutput { id, .. }
        | Reply::Error { id, .. }
        | Reply::Exit { id, .. }
        | Reply::Done { id, .. }
        | Reply::Value { id, .. }
        | Reply::Failed { id, .. } => *id,
        other => panic!("not a reply to a run: {other:?}"),
    }
}

fn wait(files: &[BorrowedFd<'_>]) -> Vec<bool> {
    let mut polled: Vec<_> =
        files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut polled, Some(&second)).expect("poll");
    polled.iter().map(|file| !file.revents().is_empty()).collect()
}

fn drain(file: &OwnedFd, into: &mut Vec<u8>) {
    let mut bytes = [0; 65536];
    while let Ok(length @ 1..) = rustix::io::read(file, &mut bytes[..]) {
        into.extend_from_slice(&bytes[..length]);
    }
}

fn send_packet(to: BorrowedFd<'_>, request: &ZygoteRequest, files: &[BorrowedFd<'_>]) {
    let mut bytes = Vec::new();
    request.encode(&mut bytes).expect("short enough");
    send_with_files(to, &bytes, files);
}

fn send_with_files(to: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> usize {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
    }
    let flags = SendFlags::NOSIGNAL;
    sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, flags).expect("send")
}

fn receive_packet(from: BorrowedFd<'_>) -> ZygoteReply {
    let start = Instant::now();
    while !wait(&[from])[0] {
        assert!(start.elapsed() < TIMEOUT, "the zygote does not answer");
    }
    let mut bytes = vec![0; sandbox_engine::wire::MAX_PACKET];
    let (length, _) = recv(from, &mut bytes[..], RecvFlags::empty()).expect("receive");
    ZygoteReply::decode(&bytes[..length]).expect("a reply of the zygote")
}
