//! Files, natively and by the agent.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{ByteRange, Error, ErrorKind, FileKind, WatchEventKind, WriteOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::Cloud;

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_works() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    let files = sandbox.files();
    files.write("a/b/x.txt", "0123456789").await.unwrap();
    assert_eq!(files.read_text("a/b/x.txt").await.unwrap(), "0123456789");
    assert_eq!(files.read_range("a/b/x.txt", 3, 4).await.unwrap(), "3456");
    assert_eq!(files.read_range("a/b/x.txt", 20, 4).await.unwrap(), "");
    files.append("a/b/x.txt", "ab").await.unwrap();
    assert_eq!(files.stat("a/b/x.txt").await.unwrap().size, 12);
    files.chmod("a/b/x.txt", 0o600).await.unwrap();
    files.write("a/b/x.txt", "new").await.unwrap();
    let stat = files.stat("a/b/x.txt").await.unwrap();
    assert_eq!((&*stat.permissions, stat.kind), ("600", FileKind::File), "a mode is kept");
    files.copy("a/b/x.txt", "a/copy").await.unwrap();
    files.rename("a/copy", "a/renamed").await.unwrap();
    let names: Vec<_> = files.list("a").await.unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["b", "renamed"]);
    let found = files.find("a", "*.txt").await.unwrap();
    assert!(found.len() == 1 && found[0].ends_with("/a/b/x.txt"), "{found:?}");
    assert_eq!(files.grep("a", "new").await.unwrap().len(), 2);
    files.mkdir("a/made/deep").await.unwrap();
    let tar = files.read_archive("a").await.unwrap();
    files.write_archive("unpacked", tar).await.unwrap();
    assert_eq!(files.read_text("unpacked/b/x.txt").await.unwrap(), "new");
    let full = files.remove("a", false).await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::InvalidArgument);
    files.remove("a", true).await.unwrap();
    assert!(!files.exists("a").await.unwrap());
    let missing = files.read("a/b/x.txt").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_any_size_go_both_ways() {
    const CHUNK: usize = 64 << 10;
    const CHUNKS: usize = 512;
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    let chunks = (0..CHUNKS).map(|number| Ok(Bytes::from(vec![(number % 251) as u8; CHUNK])));
    let files = sandbox.files();
    let content = Box::pin(stream::iter(chunks));
    let written = files.write_stream("big", content, WriteOptions::default()).await.unwrap();
    assert_eq!(written, (CHUNK * CHUNKS) as u64);
    let mut read = files.stream("big", ByteRange::default()).await.unwrap();
    let mut total = 0_usize;
    while let Some(chunk) = read.next().await {
        for byte in chunk.unwrap().iter().step_by(4096) {
            assert!(*byte < 251);
        }
        total += 1;
    }
    assert!(total > 1, "it comes in pieces");
    let sum = sandbox.commands().run("sha256sum big | cut -c 1-64; stat -c %s big").await.unwrap();
    assert!(sum.stdout.ends_with(&format!("{}\n", CHUNK * CHUNKS)), "{}", sum.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_upload_leaves_the_old_content_and_nothing_else() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    let files = sandbox.files();
    files.write("kept", "old").await.unwrap();
    let broken = || Error::new(ErrorKind::Cancelled, "test", "the source failed");
    let pieces = vec![Ok(Bytes::from_static(b"new")), Err(broken())];
    let content = Box::pin(stream::iter(pieces));
    files.write_stream("kept", content, WriteOptions::default()).await.unwrap_err();
    assert_eq!(files.read_text("kept").await.unwrap(), "old");
    let mut left = files.list(".").await.unwrap();
    for _ in 0..50 {
        left.retain(|info| info.name.starts_with(".sandbox-"));
        if left.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        left = files.list(".").await.unwrap();
    }
    panic!("a staged file is left: {left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_watched() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    sandbox.files().mkdir("watched").await.unwrap();
    let mut changes = sandbox.files().watch("watched", false).await.unwrap();
    sandbox.files().write("watched/x", "1").await.unwrap();
    sandbox.commands().run("rm watched/x").await.unwrap();
    let seen = async {
        let (mut created, mut deleted) = (false, false);
        while !(created && deleted) {
            let event = changes.next().await.unwrap().unwrap();
            if event.path.ends_with("/watched/x") {
                created |= event.kind == WatchEventKind::Create;
                deleted |= event.kind == WatchEventKind::Delete;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), seen).await.expect("both are seen");
}

/// Sends a request as a program without a key does, and returns the answer.
async fn request(url: &str, method: &str, body: &str) -> String {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let port = host.rsplit_once(':').unwrap().1;
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).await.unwrap();
    let length = body.len();
    let head = format!(
        "{method} /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
         content-type: application/octet-stream\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_addresses_need_no_key_and_are_for_one_use() {
    use backend_e2b::FileAccess;

    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    sandbox.files().write("x.txt", "content").await.unwrap();
    let path = sandbox.files().stat("x.txt").await.unwrap().path;
    let id = sandbox.id().parse().unwrap();
    let hour = Some(Duration::from_secs(3600));
    let backend = cloud.backend();
    let read = backend.signed_url(&id, &path, FileAccess::Read, hour).await.unwrap();
    let answer = request(&read, "GET", "").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("content"), "{answer}");
    let forged = read.replace("x.txt", "y.txt");
    assert!(request(&forged, "GET", "").await.starts_with("HTTP/1.1 401"));
    assert!(request(&read, "POST", "evil").await.starts_with("HTTP/1.1 401"));
    let write = backend.signed_url(&id, &path, FileAccess::Write, None).await.unwrap();
    assert!(request(&write, "POST", "replaced").await.starts_with("HTTP/1.1 200"));
    assert_eq!(sandbox.files().read_text("x.txt").await.unwrap(), "replaced");
}
