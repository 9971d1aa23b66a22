//! Kernels that die, are replaced, or are shared.

use std::time::Duration;

use jupyter_protocol::ExecuteRequest;
use jupyter_protocol::client::{ClientError, Effect, Observed};
use jupyter_protocol::execution::{End, Event};
use jupyter_protocol::zmq::{Options, connect};

use crate::Case;
use crate::harness::{Kernel, READY, collect, execute, run};

pub(crate) const CASES: &[Case] = &[
    ("tcp_works_too", tcp),
    ("a_second_client_sees_the_messages_of_the_first", second_client),
    ("a_busy_kernel_is_found_ready", busy),
    ("killing_a_kernel_ends_its_executions", killed),
    ("a_client_continues_with_the_next_kernel", replaced),
    ("a_stopped_kernel_is_waited_for", stopped),
    ("the_heart_beats", heartbeat),
    ("reconnecting_leaks_nothing", reconnecting),
];

fn tcp() {
    run(async {
        let kernel = Kernel::start_tcp("python3");
        let client = kernel.client().await;
        assert_eq!(execute(&client, "print('x' * 1000000)").await.stdout.len(), 1_000_001);
    });
}

fn second_client() {
    run(async {
        let kernel = Kernel::start("python3");
        let first = kernel.client().await;
        let second = kernel.client().await;
        let mut watch = second.watch();
        assert_eq!(execute(&first, "print('shared')").await.stdout, "shared\n");
        loop {
            match watch.next().await.unwrap() {
                Observed::Message { message, .. } if message.msg_type() == "stream" => break,
                _ => {}
            }
        }
        assert_eq!(execute(&second, "print('own')").await.stdout, "own\n");
    });
}

fn busy() {
    run(async {
        let kernel = Kernel::start("python3");
        let first = kernel.client().await;
        let mut running = first
            .execute(ExecuteRequest::new("print('in', flush=True)\nimport time; time.sleep(30)"))
            .await
            .unwrap();
        while !matches!(running.next().await, Some(Event::Stream(_))) {}
        let second = connect(&kernel.info, Options::default()).await.unwrap();
        let ready = second.ready(Duration::from_secs(10)).await.unwrap();
        assert_eq!(ready.kernel_info.implementation, "ipython");
        assert!(ready.busy);
    });
}

fn killed() {
    run(async {
        let mut kernel = Kernel::start("python3");
        let mut options = Options::default();
        options.client.reconnect_timeout = Duration::from_secs(1);
        let client = connect(&kernel.info, options).await.unwrap();
        client.ready(READY).await.unwrap();
        let mut running = client
            .execute(ExecuteRequest::new("print('in', flush=True)\nimport time; time.sleep(60)"))
            .await
            .unwrap();
        while !matches!(running.next().await, Some(Event::Stream(_))) {}
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.request(jupyter_protocol::content::CompleteRequest::default()).await }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        kernel.kill();
        let ran = collect(running).await;
        assert_eq!((ran.outcome.end, ran.outcome.started), (End::ConnectionLost, true));
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown);
    });
}

fn replaced() {
    run(async {
        let mut kernel = Kernel::start("python3");
        let client = kernel.client().await;
        assert_eq!(execute(&client, "x = 1").await.outcome.end, End::Replied);
        let mut running = client
            .execute(ExecuteRequest::new("print('in', flush=True)\nimport time; time.sleep(60)"))
            .await
            .unwrap();
        while !matches!(running.next().await, Some(Event::Stream(_))) {}
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.request(jupyter_protocol::content::CompleteRequest::default()).await }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        kernel.replace();
        let ran = collect(running).await;
        assert_eq!(ran.outcome.end, End::KernelRestarted, "{:?}", ran.outcome);
        let error = waiting.await.unwrap().unwrap_err();
        assert!(matches!(error, ClientError::KernelRestarted), "{error}");
        client.ready(READY).await.unwrap();
        let failed = execute(&client, "x").await;
        assert_eq!(failed.outcome.error.unwrap().ename, "NameError", "a new process");
    });
}

fn stopped() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        kernel.signal("STOP");
        let error = client.ready(Duration::from_secs(1)).await.unwrap_err();
        assert!(error.to_string().contains("not ready within 1s"), "{error}");
        kernel.signal("CONT");
        assert_eq!(execute(&client, "print(1)").await.stdout, "1\n");
    });
}

fn heartbeat() {
    run(async {
        let mut kernel = Kernel::start("python3");
        let mut options = Options::default();
        options.heartbeat = Some(Duration::from_millis(100));
        let client = connect(&kernel.info, options).await.unwrap();
        client.ready(READY).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(client.heartbeat().last.is_some() && client.heartbeat().missed == 0);
        kernel.signal("STOP");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(client.heartbeat().missed > 0);
        kernel.signal("CONT");
        // An unanswered handshake takes a while.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(client.heartbeat().missed, 0);
        kernel.kill();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(client.heartbeat().missed > 0);
    });
}

fn reconnecting() {
    run(async {
        let kernel = Kernel::start("python3");
        let descriptors = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        drop(kernel.client().await);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = descriptors();
        for _ in 0..30 {
            let client = kernel.client().await;
            assert_eq!(execute(&client, "print(1)").await.stdout, "1\n");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        // Other tests of this process open files meanwhile.
        assert!(descriptors() < before + 60, "{before} {}", descriptors());
    });
}
