//! Large files: in parts that are on their way side by side, and by requests of their own. Nothing temporary stays.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{ByteRange, ByteStream, Error, ErrorKind, Sandbox, WriteOptions};

use crate::{BOTH, Fixture};

/// More than two parts, and no multiple of one.
const SIZE: usize = (40 << 20) + 12_345;

fn content() -> Bytes {
    let all: Vec<u8> = (0..SIZE).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect();
    Bytes::from(all)
}

/// Waits until no temporary file is in a directory of the sandbox.
async fn nothing_left(sandbox: &Sandbox) {
    let begun = Instant::now();
    loop {
        let line = "ls -a /workspace /tmp | grep '^.sandbox-' || true";
        let found = sandbox.commands().run(line).await.expect("a list").stdout;
        if found.is_empty() {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{found}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_are_exact_in_both_directions_wherever_they_are() {
    let all = content();
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.sandbox().await;
        let files = sandbox.files();
        for path in ["/workspace/it's large", "/tmp/deep/large"] {
            files.write(path, all.clone()).await.unwrap();
            let found = files.read(path).await.unwrap();
            assert!(found == all, "{generation:?}: {} bytes of {path}", found.len());
            let part = files.read_range(path, 20_000_000, 5).await.unwrap();
            assert_eq!(part, all.slice(20_000_000..20_000_005));
        }
        // A link is read, and the file behind it stays.
        sandbox.commands().run("ln -s /tmp/deep/large link; chmod 600 link").await.unwrap();
        assert!(files.read("link").await.unwrap() == all);
        // What is there keeps its mode, and is replaced as a whole.
        files.write("/tmp/deep/large", all.slice(1..)).await.unwrap();
        let told = "stat -c '%a %s' /tmp/deep/large; ls -l link | cut -c1";
        let told = sandbox.commands().run(told).await.unwrap();
        assert_eq!(told.stdout, format!("600 {}\nl\n", SIZE - 1));
        nothing_left(&sandbox).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_ends_early_leaves_nothing_and_changes_nothing() {
    let all = content();
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.sandbox().await;
        let files = sandbox.files();
        files.write("/tmp/large", all.clone()).await.unwrap();
        let mut some = files.stream("/tmp/large", ByteRange::default()).await.unwrap();
        assert!(!some.next().await.unwrap().unwrap().is_empty());
        drop(some);
        for path in ["/tmp/large", "/workspace/large"] {
            let broken = Error::new(ErrorKind::Unavailable, "read", "the disk is broken");
            let pieces: ByteStream = Box::pin(stream::iter([Ok(all.clone()), Err(broken)]));
            let failed = files.write_stream(path, pieces, WriteOptions::default()).await;
            let failed = failed.unwrap_err();
            assert!(failed.to_string().contains("disk is broken"), "{failed:?}");
        }
        assert!(files.read("/tmp/large").await.unwrap() == all);
        let missing = files.read("/workspace/large").await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        nothing_left(&sandbox).await;
    }
}
