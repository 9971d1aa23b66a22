//! Starts, restarts and ends kernels.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jupyter_protocol::client::{Client, ClientError, CloseReason, Observed};
use jupyter_protocol::content::InterruptRequest;
use jupyter_protocol::execution::{End, Event};
use jupyter_protocol::kernelspec::InterruptMode;
use jupyter_protocol::manager::{Kernel, KernelError, KernelOptions};
use jupyter_protocol::zmq::{Options, connect};
use jupyter_protocol::{ExecuteRequest, Limits, MessageContent as _, Transport};
use tokio::time::timeout;

use crate::Case;
use crate::harness::{READY, collect, execute, installed, python, run};

pub(crate) const CASES: &[Case] = &[
    ("a_kernel_is_started_used_and_ended", whole_life),
    ("kernels_of_both_transports_are_interrupted_and_started_again", interrupted_and_restarted),
    ("a_busy_kernel_is_interrupted_before_it_ends", busy_ones_end),
    ("a_kernel_is_interrupted_by_a_message_if_its_specification_requires_it", by_message),
    ("a_death_is_reported_at_once_and_the_kernel_can_be_restarted", dies),
    ("nothing_outlives_a_kernel_that_is_dropped", dropped),
    ("one_that_speaks_tcp_alone_is_started_over_it", falls_back),
    ("a_long_path_is_no_longer_than_kernels_take", short_paths),
    ("environment_and_working_directory_are_the_options", options),
];

/// Far less than the time after which a lost connection is noticed.
const AT_ONCE: Duration = Duration::from_secs(5);

const SLEEPS: &str = "print('in', flush=True)\nimport time\ntime.sleep(60)";

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

fn is_there(pid: &str) -> bool {
    let mut kill = Command::new("kill");
    kill.args(["-0", pid]).stderr(Stdio::null()).status().unwrap().success()
}

/// Starts code, and waits until it runs.
async fn start(client: &Client, code: &str) -> jupyter_protocol::client::ExecutionStream {
    let mut running = client.execute(ExecuteRequest::new(code)).await.unwrap();
    while !matches!(running.next().await, Some(Event::Stream(_))) {}
    running
}

fn whole_life() {
    run(async {
        let kernel = Kernel::start(&installed("python3")).await.unwrap();
        assert_eq!(kernel.kernel_info().implementation, "ipython");
        let file = kernel.connection_file().to_owned();
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        assert_eq!(execute(kernel.client(), "6 * 7").await.value().as_deref(), Some("42"));
        assert!(kernel.is_alive());
        let (client, pid) = (kernel.client().clone(), kernel.pid().unwrap().to_string());
        let status = kernel.shutdown().await.unwrap();
        assert!(status.unwrap().success(), "it ended by itself: {status:?}");
        assert!(!is_there(&pid));
        assert!(matches!(client.closed().await, CloseReason::KernelDied));
        assert!(!file.parent().unwrap().exists());
    });
}

fn interrupted_and_restarted() {
    run(async {
        for transport in [Transport::Ipc, Transport::Tcp] {
            let mut options = KernelOptions::default();
            options.transport = transport;
            let mut kernel = Kernel::start_with(&installed("python3"), options).await.unwrap();
            let running = start(kernel.client(), SLEEPS).await;
            kernel.interrupt().await.unwrap();
            assert_eq!(collect(running).await.outcome.error.unwrap().ename, "KeyboardInterrupt");

            assert!(execute(kernel.client(), "x = 1").await.outcome.is_ok());
            let running = start(kernel.client(), SLEEPS).await;
            let before = kernel.pid();
            kernel.restart().await.unwrap();
            assert_ne!(kernel.pid(), before);
            let outcome = collect(running).await.outcome;
            let interrupted =
                outcome.error.as_ref().is_some_and(|error| error.ename == "KeyboardInterrupt");
            assert!(interrupted || outcome.end == End::KernelDied, "{outcome:?}");
            assert_eq!(
                execute(kernel.client(), "x").await.outcome.error.unwrap().ename,
                "NameError"
            );
        }
    });
}

/// Code of other clients is interrupted as well.
fn busy_ones_end() {
    run(async {
        for own in [true, false] {
            let mut options = KernelOptions::default();
            // Less than the code takes.
            options.shutdown_timeout = Duration::from_secs(40);
            let kernel = Kernel::start_with(&installed("python3"), options).await.unwrap();
            let other = connect(kernel.connection_info(), Options::default()).await.unwrap();
            other.ready(READY).await.unwrap();
            let client = if own { kernel.client() } else { &other };
            let _running = start(client, SLEEPS).await;
            let status = kernel.shutdown().await.unwrap().unwrap();
            assert!(status.success(), "it ended by itself: {status:?}");
        }
    });
}

fn by_message() {
    run(async {
        let mut message = installed("python3");
        message.spec.interrupt_mode = InterruptMode::Message;
        for (installed, expected) in [(message, true), (installed("python3"), false)] {
            let kernel = Kernel::start(&installed).await.unwrap();
            let mut watch = kernel.client().watch();
            let running = start(kernel.client(), SLEEPS).await;
            kernel.interrupt().await.unwrap();
            let outcome = collect(running).await.outcome;
            assert_eq!(outcome.error.unwrap().ename, "KeyboardInterrupt");
            // The message is the kernel's status of another client's request.
            let mut asked = false;
            while let Ok(Some(seen)) = timeout(Duration::from_secs(1), watch.next()).await {
                let Observed::Message { message, .. } = seen else { continue };
                let parent = message.parse(&Limits::default()).parent;
                let parent = parent.header().map(|header| header.msg_type.clone());
                asked |= parent.as_deref() == Some(InterruptRequest::MSG_TYPE);
            }
            assert_eq!(asked, expected);
        }
    });
}

fn dies() {
    run(async {
        let mut kernel = Kernel::start(&installed("python3")).await.unwrap();
        let before = Instant::now();
        let code = "import os; os.write(2, b'last words\\n'); os._exit(3)";
        let ran = execute(kernel.client(), code).await;
        assert_eq!(ran.outcome.end, End::KernelDied);
        assert_eq!(kernel.wait().await.unwrap().code(), Some(3));
        let error = kernel.client().execute(ExecuteRequest::new("1")).await.unwrap_err();
        let reason = CloseReason::KernelDied;
        assert!(matches!(&error, ClientError::Closed { reason: found, .. } if *found == reason));
        assert_eq!(error.to_string(), "not connected: the kernel died");
        assert!(before.elapsed() < AT_ONCE, "{:?}", before.elapsed());
        assert!(!kernel.is_alive());
        assert_eq!(kernel.pid(), None);
        let error = kernel.interrupt().await.unwrap_err();
        assert_eq!(error.to_string(), "not connected: the kernel died");
        kernel.restart().await.unwrap();
        assert_eq!(execute(kernel.client(), "1 + 1").await.value().as_deref(), Some("2"));
    });
}

fn dropped() {
    run(async {
        let kernel = Kernel::start(&installed("python3")).await.unwrap();
        let code = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid)";
        let child = execute(kernel.client(), code).await.stdout.trim().to_owned();
        let own = kernel.pid().unwrap().to_string();
        let folder = kernel.connection_file().parent().unwrap().to_owned();
        assert!(is_there(&child) && is_there(&own) && folder.exists());
        drop(kernel);
        let before = Instant::now();
        while is_there(&child) || is_there(&own) || folder.exists() {
            assert!(before.elapsed() < AT_ONCE, "something is left");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// A kernel that refuses Unix sockets, as those of some languages do.
fn falls_back() {
    run(async {
        let mut picky = installed("python3");
        let refuses = "grep -q '\"transport\": *\"ipc\"' \"$0\" && { echo tcp alone >&2; exit 1; }; exec \"$@\"";
        let wrapped = ["sh", "-c", refuses, "{connection_file}"].map(str::to_owned);
        picky.spec.argv[0] = python().unwrap().to_str().unwrap().to_owned();
        picky.spec.argv.splice(0..0, wrapped);
        let error = Kernel::start(&picky).await.unwrap_err();
        let KernelError::Ended { transport, stderr, .. } = &error else { panic!("{error}") };
        assert_eq!((*transport, stderr.as_str()), (Transport::Ipc, "tcp alone"));

        let mut options = KernelOptions::default();
        options.fall_back_to_tcp = true;
        let mut kernel = Kernel::start_with(&picky, options.clone()).await.unwrap();
        assert_eq!(kernel.connection_info().transport, Transport::Tcp);
        assert_eq!(execute(kernel.client(), "6 * 7").await.value().as_deref(), Some("42"));
        kernel.restart().await.unwrap();
        assert_eq!(execute(kernel.client(), "1 + 1").await.value().as_deref(), Some("2"));

        let kernel = Kernel::start_with(&installed("python3"), options).await.unwrap();
        assert_eq!(kernel.connection_info().transport, Transport::Ipc, "where it can");
    });
}

/// Some kernels accept paths of at most 23 bytes.
fn short_paths() {
    run(async {
        let kernel = Kernel::start(&installed("python3")).await.unwrap();
        let ip = &kernel.connection_info().ip;
        let below = std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_else(|| "/tmp".into());
        let own = Path::new(ip)
            .strip_prefix(Path::new(&below))
            .or_else(|_| Path::new(ip).strip_prefix("/tmp"));
        assert!(own.unwrap().as_os_str().len() <= 8, "{ip}");
    });
}

fn options() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let mut options = KernelOptions::default();
        options.working_directory = Some(folder.path().to_owned());
        options.env.push(("GREETING".to_owned(), "hello".to_owned()));
        let kernel = Kernel::start_with(&installed("bash"), options).await.unwrap();
        let ran = execute(kernel.client(), "echo $GREETING; pwd -P").await;
        let expected = folder.path().canonicalize().unwrap();
        assert_eq!(ran.stdout, format!("hello\n{}\n", expected.display()));
        kernel.shutdown().await.unwrap();
    });
}
