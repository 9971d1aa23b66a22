//! Programs and interpreters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sandbox_core::{CallContext, ErrorKind, EventKind, PtySize, RunCode};
use sandbox_engine::host::{ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::{InterpreterContext, RunRequest, ToolSet};
use sandbox_engine::process::EndReason;
use sandbox_python::agent::OpenFiles;
use tokio::time::{sleep, timeout};

use crate::support::{TestBox, read_all};

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_program_writes_and_exits_with_its_status() {
    let place = TestBox::start().await;
    let spawned =
        place.pipe.spawn(place.shell("echo out; echo err >&2; pwd; exit 7")).await.unwrap();
    let out = String::from_utf8(read_all(&*spawned.stdout).await).unwrap();
    assert!(out.starts_with("out\n") && out.contains("/tmp"), "{out}");
    assert_eq!(read_all(&*spawned.stderr.unwrap()).await, b"err\n");
    assert_eq!(spawned.process.exit().await.unwrap().code, Some(7));
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let place = TestBox::start().await;
    let mut spec = place.shell("");
    spec.argv = vec!["no-such-program".into()];
    let error = place.pipe.spawn(spec.clone()).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().contains("command not found")),
        (ErrorKind::NotFound, true)
    );
    spec.argv = vec!["/".into()];
    assert_eq!(place.pipe.spawn(spec).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    let mut spec = place.shell("true");
    spec.cwd = "/no/such/directory".into();
    assert_eq!(place.pipe.spawn(spec).await.unwrap_err().kind(), ErrorKind::NotFound);
}

// A limit that cannot be had is reported, and one that can be had is enforced.
#[tokio::test]
async fn open_files_are_as_many_as_asked_for_or_as_there_are() {
    let asked = OpenFiles { soft: 200, hard: 400 };
    for (there, soft, hard) in [(1000, 200, 400), (300, 200, 300), (150, 150, 150)] {
        let place = TestBox::start_with_open_files(there, asked).await;
        assert_eq!(place.pipe.open_files(), Some(hard));
        let spawned = place.pipe.spawn(place.shell("ulimit -Sn; ulimit -Hn")).await.unwrap();
        let said = String::from_utf8(read_all(&*spawned.stdout).await).unwrap();
        assert_eq!(said, format!("{soft}\n{hard}\n"));
    }
}

// Code may open what another process of its user has open, and so keep the pipe open by which a new process reports.
#[tokio::test]
async fn a_process_that_holds_what_others_have_open_delays_no_start() {
    let place = TestBox::start().await;
    let mut holder = place.shell("");
    holder.argv = ["python3", "-c", HOLDER].map(str::to_owned).to_vec();
    let holder = place.pipe.spawn(holder).await.unwrap();
    let caught = place.path("caught");
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    while !std::fs::exists(&caught).unwrap() || slowest == Duration::ZERO {
        assert!(began.elapsed() < SOON, "nothing was ever held, so this shows nothing");
        let start = Instant::now();
        // A process that is stopped meanwhile is refused, which does not matter here.
        if let Ok(spawned) = place.pipe.spawn(place.shell("exit 7")).await {
            assert_eq!(spawned.process.exit().await.unwrap().code, Some(7));
        }
        slowest = slowest.max(start.elapsed());
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    holder.process.kill_tree().await.unwrap();
}

/// Stops each sibling as soon as it starts, opens its descriptor 3, and lets it continue.
const HOLDER: &str = "
import os, signal
siblings = '/proc/%d/task/%d/children' % (os.getppid(), os.getppid())
held = []
while True:
    for pid in open(siblings).read().split():
        if int(pid) == os.getpid(): continue
        try:
            os.kill(int(pid), signal.SIGSTOP)
            if os.readlink('/proc/%s/fd/3' % pid).startswith('pipe:'):
                held.append(os.open('/proc/%s/fd/3' % pid, os.O_WRONLY))
        except OSError: pass
        try: os.kill(int(pid), signal.SIGCONT)
        except OSError: pass
        if held: open('caught', 'w').close()
";

#[tokio::test]
async fn more_than_any_window_comes_whole_in_both_directions() {
    let place = TestBox::start().await;
    let mut spec = place.shell("cat");
    spec.stdin = true;
    let spawned = place.pipe.spawn(spec).await.unwrap();
    let input: Vec<u8> = (0..9_000_000u32).map(|number| (number % 251) as u8).collect();
    let (stdin, expected) = (spawned.stdin.unwrap(), input.clone());
    let write = async move {
        let mut rest = &input[..];
        while !rest.is_empty() {
            std::future::poll_fn(|cx| stdin.poll_writable(cx)).await.unwrap();
            match stdin.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
    };
    let both = async { tokio::join!(write, read_all(&*spawned.stdout)).1 };
    assert!(timeout(SOON, both).await.unwrap() == expected);
    assert_eq!(spawned.process.exit().await.unwrap().code, Some(0));
}

#[tokio::test]
async fn the_end_is_told_before_the_connection_closes() {
    let place = TestBox::start_with_connection_that_stays().await;
    let spawned = place.pipe.spawn(place.shell("sleep 1000 & exec sleep 1000")).await.unwrap();
    let process = format!("/proc/{}", spawned.process.pid());
    assert!(std::fs::exists(&process).unwrap());
    let began = Instant::now();
    place.pipe.end().await;
    // Two seconds are how long it waits for the connection.
    assert!(began.elapsed() < Duration::from_millis(1800), "{:?}", began.elapsed());
    assert!(!std::fs::exists(&process).unwrap());
}

#[tokio::test]
async fn output_that_nobody_reads_stops_the_program_and_nothing_else() {
    let place = TestBox::start().await;
    let stalled = place.pipe.spawn(place.shell("yes; echo never")).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    let other = place.pipe.spawn(place.shell("echo here")).await.unwrap();
    assert_eq!(timeout(SOON, read_all(&*other.stdout)).await.unwrap(), b"here\n");
    assert!(!stalled.process.is_dead());
    timeout(SOON, stalled.process.kill_tree()).await.unwrap().unwrap();
    assert_eq!(stalled.process.exit().await.unwrap().signal, Some(9));
}

#[tokio::test]
async fn a_tree_is_killed_with_its_daemons() {
    let place = TestBox::start().await;
    let script = "setsid sh -c 'sleep 600 & echo $! > orphan; wait' & sleep 1; exec sleep 600";
    let spawned = place.pipe.spawn(place.shell(script)).await.unwrap();
    let orphan = place.path("orphan");
    let pid = timeout(SOON, async {
        loop {
            match std::fs::read_to_string(&orphan)
                .ok()
                .and_then(|text| text.trim().parse::<u32>().ok())
            {
                Some(pid) => return pid,
                None => sleep(Duration::from_millis(20)).await,
            }
        }
    });
    let pid = pid.await.unwrap();
    assert!(is_alive(pid));
    spawned.process.kill_tree().await.unwrap();
    assert!(!is_alive(pid));
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[tokio::test]
async fn a_terminal_has_its_size() {
    let place = TestBox::start().await;
    let mut spec = place.shell("stty size; read line; stty size");
    spec.terminal = Some(PtySize { columns: 91, rows: 17 });
    let spawned = place.pipe.spawn(spec).await.unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    let look = async {
        while !seen.contains("17 91") {
            std::future::poll_fn(|cx| spawned.stdout.poll_readable(cx)).await.unwrap();
            if let Ok(count) = spawned.stdout.try_read(&mut buffer) {
                seen += &String::from_utf8_lossy(&buffer[..count]);
            }
        }
    };
    timeout(SOON, look).await.unwrap();
    spawned.terminal.unwrap().resize(PtySize { columns: 33, rows: 44 }).await.unwrap();
    spawned.stdin.unwrap().try_write(b"go\n").unwrap();
    timeout(SOON, spawned.process.exit()).await.unwrap().unwrap();
    std::future::poll_fn(|cx| spawned.stdout.poll_readable(cx)).await.unwrap();
    let count = spawned.stdout.try_read(&mut buffer).unwrap();
    let rest = String::from_utf8_lossy(&buffer[..count]).into_owned();
    assert!(rest.contains("44 33"), "{rest:?}");
}

fn interpreter(place: &TestBox) -> InterpreterContext {
    let home = place.home.path().to_string_lossy().into_owned();
    let spec = WorkerSpec { env: [("HOME".to_owned(), home.clone())].into(), cwd: home };
    let pipe = Arc::clone(&place.pipe);
    let host: Arc<dyn ProcessHost> = pipe;
    let ended = Arc::new(EndReason::new());
    InterpreterContext::new("default".into(), host, spec, ended, ToolSet::new())
}

#[tokio::test]
async fn text_keeps_its_place_among_displays() {
    let place = TestBox::start().await;
    let context = interpreter(&place);
    // More than the connection takes before it is read.
    let code = "for i in range(30):\n    print(f'{i:099}\\n' * 1000, end='')\n    display(i)";
    let request = RunRequest::new(&CallContext::default(), RunCode::new(code), "/");
    let mut events = context.run(request).await.unwrap();
    let mut told = vec![String::new()];
    while let Some(event) = events.next().await {
        match event.kind {
            EventKind::Output { data, .. } => {
                told.last_mut().unwrap().push_str(&String::from_utf8_lossy(&data));
            }
            EventKind::Display { .. } => {
                told.push(String::new());
                sleep(Duration::from_millis(5)).await;
            }
            _ => {}
        }
    }
    assert_eq!(told.len(), 31);
    for (i, text) in told[..30].iter().enumerate() {
        assert!(*text == format!("{i:099}\n").repeat(1000), "{} bytes before {i}", text.len());
    }
}

#[tokio::test]
async fn an_interpreter_keeps_its_state() {
    let place = TestBox::start().await;
    let context = interpreter(&place);
    context.set_variables([("x".to_owned(), 20.into())].into_iter().collect()).await.unwrap();
    assert_eq!(context.get_variable("x").await.unwrap(), 20);
}

#[tokio::test]
async fn what_was_begun_before_a_restart_does_not_touch_the_new_interpreter() {
    let place = TestBox::start().await;
    let context = interpreter(&place);
    context.warm_up().await.unwrap();
    let mut paused = context.pause().await.expect("nothing runs");
    context.restart(false).await;
    let code = RunCode::new("import time\nwhile True: time.sleep(0.01)");
    let run = RunRequest::new(&CallContext::default(), code, "/");
    let events = context.run(run).await.unwrap();
    paused.end().await;
    assert!(context.is_executing());
    assert!(context.interrupt());
    let events: Vec<_> = timeout(SOON, events.collect()).await.expect("it was interrupted");
    let errors = events.iter().filter(|event| matches!(event.kind, EventKind::Error(_)));
    assert_eq!(errors.count(), 1, "{events:?}");
}

#[tokio::test]
async fn the_end_of_the_connection_ends_everything() {
    let mut place = TestBox::start().await;
    let spawned = place.pipe.spawn(place.shell("exec sleep 600")).await.unwrap();
    let pid = spawned.process.pid();
    assert!(is_alive(pid));
    place.pipe.kill();
    timeout(SOON, place.agent.wait()).await.unwrap().unwrap();
    // It is killed before the agent ends, and dies when the kernel comes to it.
    let dead = async {
        while is_alive(pid) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, dead).await.expect("it lives on");
    assert!(spawned.process.exit().await.is_err());
    assert_eq!(
        place.pipe.spawn(place.shell("true")).await.unwrap_err().kind(),
        ErrorKind::Terminated
    );
}
