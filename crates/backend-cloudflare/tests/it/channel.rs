//! The channel, in both generations: many commands over one connection, and what is told when it breaks.

use sandbox_conformance::channel::{is_over_channel, use_channel};
use sandbox_core::FailureKind;
use sandbox_test_server::Fault;
use sandbox_test_server::cloudflare::Generation;

use crate::{BOTH, Fixture};

#[tokio::test(flavor = "multi_thread")]
async fn commands_over_it_are_those_of_the_bridge() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.builder().env("A_WORD", "it's $HOME").create().await.unwrap();
        // What a shell sets for itself is left out.
        let line = "unset OLDPWD SHLVL; env | grep -v ^_= | sort; umask; pwd; ulimit -n";
        let before = sandbox.commands().run(line).await.unwrap();
        use_channel(&sandbox).await.unwrap();
        let after = sandbox.commands().run(line).await.unwrap();
        assert_eq!(before.stdout, after.stdout, "the environment is the same");
        let done = sandbox.commands().run("printf 'o\\0\\n'; printf e >&2; exit 3").await.unwrap();
        assert_eq!((&*done.stdout, &*done.stderr, done.exit_code), ("o\0\n", "e", 3));
        let killed = sandbox.commands().run("kill -9 $$").await.unwrap();
        assert_eq!((killed.exit_code, killed.signal), (137, Some(9)));
        // Input of more than is on its way at once, with every byte.
        let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
        let sum = sandbox.commands().run("sleep 0.3; md5sum").stdin(bytes.clone()).await.unwrap();
        sandbox.files().write("bytes", bytes).await.unwrap();
        let expected = sandbox.commands().run("md5sum <bytes").await.unwrap().stdout;
        assert_eq!(sum.stdout, expected);
        assert!(is_over_channel(&sandbox).await.unwrap());
        sandbox.terminate().await.unwrap();
    }
}

/// Prints much and says that it ran.
const MUCH: &str = "echo x >>ran; i=0; while [ $i -lt 60000 ]; do echo line $i; i=$((i+1)); done; \
                    echo end >&2; exit 4";

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_is_made_again_by_the_next_generation() {
    let f = Fixture::new(Generation::Processes).await;
    let sandbox = f.sandbox().await;
    f.server.faults().add("", "terminal", Fault::Cut(30_000), 1);
    f.server.faults().add("", "terminal", Fault::Cut(200_000), 1);
    use_channel(&sandbox).await.unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(2_000_000).collect();
    sandbox.files().write("bytes", bytes.clone()).await.unwrap();
    let expected = sandbox.commands().run("md5sum <bytes").await.unwrap().stdout;
    let taken =
        async { sandbox.commands().run("sleep 0.5; md5sum").stdin(bytes).await.unwrap().stdout };
    let long = async { sandbox.commands().run(MUCH).output_limit("8m").await.unwrap() };
    let (done, taken) = tokio::join!(long, taken);
    let lines: String = (0..60_000).map(|number| format!("line {number}\n")).collect();
    assert!(done.stdout == lines, "{} of {} bytes", done.stdout.len(), lines.len());
    assert_eq!((&*done.stderr, done.exit_code, taken), ("end\n", 4, expected));
    assert!(f.server.faults().is_empty(), "both cuts happened");
    assert_eq!(&sandbox.files().read("ran").await.unwrap()[..], b"x\n", "it ran once");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_breaks_in_the_stable_generation_is_reported() {
    let f = Fixture::new(Generation::Exec).await;
    let sandbox = f.sandbox().await;
    f.server.faults().add("", "pty", Fault::Cut(30_000), 1);
    use_channel(&sandbox).await.unwrap();
    let cut = sandbox.commands().run(MUCH).await.unwrap();
    assert_eq!(cut.failure.map(|failure| failure.kind), Some(FailureKind::ConnectionLost));
    assert_eq!(sandbox.commands().run("echo again").await.unwrap().stdout, "again\n");
    use_channel(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_was_started_again_is_told_over_it() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.sandbox().await;
        use_channel(&sandbox).await.unwrap();
        // With a command on its way, and without one.
        let waiting = sandbox.commands().run("sleep 30").start().await.unwrap();
        for _ in 0..2 {
            f.server.sleep(sandbox.id().rsplit('/').next().unwrap()).await;
            let error = sandbox.commands().run("echo x >>ran").await.unwrap_err();
            assert!(error.message().contains("are lost"), "{generation:?} {error:?}");
            use_channel(&sandbox).await.unwrap();
            assert!(sandbox.files().read("ran").await.is_err(), "the command was not run");
        }
        let outcome = waiting.wait().await;
        assert!(outcome.failure.is_some(), "{outcome:?}");
        sandbox.terminate().await.unwrap();
    }
}
