//! Commands: processes of the daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use backend_e2b::E2bBackend;
use futures_util::StreamExt as _;
use sandbox_core::{CommandEvent, ErrorKind, FailureKind, PtySize, Sandbox};
use tokio::net::{TcpListener, TcpStream};

use super::attached;
use super::support::Cloud;

/// Counts processes of the sandbox whose command line begins with the word.
async fn count(sandbox: &Sandbox, word: &str) -> usize {
    let line = format!(
        "for file in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$file 2>/dev/null; echo; done | grep -c '^{word}'"
    );
    let result = sandbox.commands().run(line).await.unwrap();
    result.stdout.trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_streams_status_and_input() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().env("COLOUR", "green").create().await.unwrap();
    let commands = sandbox.commands();
    let result = commands.run("echo \"$COLOUR $SHADE\"; echo err >&2; exit 3").env("SHADE", "dark");
    let result = result.await.unwrap();
    assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("green dark\n", "err\n"));
    assert_eq!(result.exit_code, 3);
    let result = commands.run("kill -TERM $$").await.unwrap();
    assert_eq!((result.exit_code, result.signal), (143, Some(15)));
    let input = vec![b'x'; 700_000];
    let result = commands.run("wc -c").stdin(input).await.unwrap();
    assert_eq!(result.stdout.trim(), "700000");
    let missing = commands.run(["no-such-program"]).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let missing = commands.run("true").cwd("/not/there").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let refused = commands.run(["/etc/passwd"]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_has_a_size_that_changes() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    let size = PtySize { columns: 91, rows: 17 };
    let line = "stty size; read x; stty size; [ -t 1 ] && echo terminal";
    let mut command = sandbox.commands().run(line).pty(size).start().await.unwrap();
    let mut seen = String::new();
    let mut is_resized = false;
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { data, .. } => seen += &String::from_utf8_lossy(&data),
            CommandEvent::Finished(outcome) => assert_eq!(outcome.exit_code, 0, "{seen}"),
            _ => {}
        }
        if seen.contains("17 91") && !is_resized {
            is_resized = true;
            command.control.resize(PtySize { columns: 100, rows: 30 }).await.unwrap();
            command.control.write_stdin(b"\n".as_slice().into()).await.unwrap();
        }
    }
    assert!(seen.contains("30 100") && seen.contains("terminal"), "{seen}");
}

/// The daemon's own time limit would leave children, which is why limits are not left to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_leaves_no_child() {
    let cloud = Cloud::start().await;
    cloud.faults.set_process_traps(true);
    let sandbox = cloud.builder().create().await.unwrap();
    // The last one has no parent left in the command.
    let line = "sleep 777001 & setsid sleep 777002 & (sleep 777004 &); sleep 777003; true";
    let begun = Instant::now();
    let result = sandbox.commands().run(line).timeout(Duration::from_secs(1)).await.unwrap();
    assert_eq!(result.failure.unwrap().kind, FailureKind::Timeout);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(count(&sandbox, "sleep 77700").await, 0);
}

/// The daemon reports the end of a process when the last child has closed its streams.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_holds_the_streams_does_not_delay_the_end() {
    let cloud = Cloud::start().await;
    cloud.faults.set_process_traps(true);
    let sandbox = cloud.builder().create().await.unwrap();
    let begun = Instant::now();
    let result = sandbox.commands().run("echo begun; sleep 778001 & exit 4").await.unwrap();
    assert_eq!((result.exit_code, result.stdout.as_str()), (4, "begun\n"));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // What a command leaves in the background stays.
    assert_eq!(count(&sandbox, "sleep 778001").await, 1);
}

/// The daemon keeps a process whose client is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_command_is_ended() {
    let cloud = Cloud::start().await;
    cloud.faults.set_process_traps(true);
    let sandbox = cloud.builder().create().await.unwrap();
    let command = sandbox.commands().run("sleep 779001 & sleep 779002").start().await.unwrap();
    let begun = Instant::now();
    while count(&sandbox, "sleep 77900").await == 0 {
        assert!(begun.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(command);
    let begun = Instant::now();
    while count(&sandbox, "sleep 77900").await > 0 {
        assert!(begun.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_finds_what_runs_in_the_background() {
    let cloud = Cloud::start().await;
    let builder = cloud.builder().detached(Duration::from_secs(60));
    let sandbox = builder.create().await.unwrap();
    let line = "while read line; do echo \"got $line\"; done; exit 5";
    let started = sandbox.commands().run(line).interactive().background().start().await.unwrap();
    let other = attached(&cloud, &sandbox.id()).await;
    let listed = other.commands().list().await.unwrap();
    let found = listed.iter().find(|info| info.command == line).expect("it is listed");
    assert!(found.exit_code.is_none() && found.background);
    assert_eq!(sandbox.commands().list().await.unwrap().len(), 1, "its own is listed once");
    let mut command = other.commands().connect(&found.id).await.unwrap();
    command.control.write_stdin(b"this\n".as_slice().into()).await.unwrap();
    let mut seen = String::new();
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { data, .. } => seen += &String::from_utf8_lossy(&data),
            CommandEvent::Finished(outcome) => assert_eq!(outcome.exit_code, 5, "{outcome:?}"),
            _ => {}
        }
        if seen.contains("got this") {
            command.control.close_stdin().await.unwrap();
        }
    }
    assert_eq!(seen, "got this\n");
    drop(started);
    sandbox.terminate().await.unwrap();
}

/// The signal is for the command, and not for the shell that reports its end.
#[tokio::test(flavor = "multi_thread")]
async fn another_process_ends_what_runs_in_the_background() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().detached(Duration::from_secs(60)).create().await.unwrap();
    let line = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut started = sandbox.commands().run(line).background().start().await.unwrap();
    // The trap is set when there is output.
    while !matches!(started.events.next().await.unwrap(), CommandEvent::Output { .. }) {}
    let other = attached(&cloud, &sandbox.id()).await;
    let listed = other.commands().list().await.unwrap();
    let found = listed.iter().find(|info| info.command == line).expect("it is listed");
    let mut command = other.commands().connect(&found.id).await.unwrap();
    command.control.signal(15, false).await.unwrap();
    let (mut seen, mut status) = (String::new(), None);
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { data, .. } => seen += &String::from_utf8_lossy(&data),
            CommandEvent::Finished(outcome) => status = Some(outcome.exit_code),
            _ => {}
        }
    }
    assert_eq!((&*seen, status), ("caught\n", Some(7)));
    sandbox.terminate().await.unwrap();
}

/// Passes connections on to an address, and counts them. Returns the address of its own.
async fn counting_proxy(to: String) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let to = to.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(to).await.unwrap();
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    });
    (address, count)
}

/// Each further connection would cost a command two or three journeys to the provider.
#[tokio::test(flavor = "multi_thread")]
async fn commands_one_after_the_other_use_one_connection() {
    let cloud = Cloud::start().await;
    let mut config = cloud.config();
    let server = config.sandbox_url.take().unwrap();
    let (address, connections) = counting_proxy(server.replace("http://", "")).await;
    config.sandbox_url = Some(address);
    let backend = Arc::new(E2bBackend::new(config));
    let sandbox = Sandbox::builder(backend).create().await.unwrap();
    for number in 0..5 {
        let result = sandbox.commands().run(format!("echo {number}")).await.unwrap();
        assert_eq!(result.stdout, format!("{number}\n"));
        // The end of an answer follows the end of its command.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1);
    sandbox.terminate().await.unwrap();
}
