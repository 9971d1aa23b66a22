//! Files.

use std::sync::Arc;

use futures_util::StreamExt as _;
use sandbox_core::{
    ByteRange, ErrorKind, FileKind, FindFiles, FoundFile, WatchEventKind, WriteOptions,
};
use sandbox_engine::host::{FileSystem, Links, ProcessHost as _, WorkerSpec};

use crate::support::{TestBox, bytes, collect, may_look};

#[tokio::test]
async fn what_is_written_is_read_again() {
    let place = TestBox::start().await;
    let files = place.files();
    let large: Vec<u8> = (0..3_000_000u32).map(|number| (number % 253) as u8).collect();
    for (name, content) in [("empty", &b""[..]), ("small", b"hello"), ("large", &large)] {
        let written = files.write(name, bytes(&[content]), WriteOptions::default()).await.unwrap();
        assert_eq!(written, content.len() as u64);
        let read = collect(files.read(name, ByteRange::default()).await.unwrap()).await.unwrap();
        assert!(read == content, "{name}");
    }
    let append = WriteOptions { append: true, ..WriteOptions::default() };
    files.write("small", bytes(&[b" again"]), append).await.unwrap();
    let range = ByteRange { offset: 6, length: Some(3) };
    assert_eq!(collect(files.read("small", range).await.unwrap()).await.unwrap(), b"aga");
    let names: Vec<_> =
        files.list(".").await.unwrap().into_iter().map(|info| (info.name, info.size)).collect();
    assert_eq!(names, [("empty".into(), 0), ("large".into(), 3_000_000), ("small".into(), 11)]);
    assert_eq!(files.stat("large").await.unwrap().kind, FileKind::File);
}

#[tokio::test]
async fn a_write_whose_content_fails_leaves_nothing() {
    let place = TestBox::start().await;
    let files = place.files();
    files.write("kept", bytes(&[b"old"]), WriteOptions::default()).await.unwrap();
    let broken = futures_util::stream::iter([
        Ok(bytes::Bytes::from_static(b"new")),
        Err(sandbox_core::Error::invalid("content", "breaks")),
    ]);
    files.write("kept", Box::pin(broken), WriteOptions::default()).await.unwrap_err();
    let read = collect(files.read("kept", ByteRange::default()).await.unwrap()).await.unwrap();
    assert_eq!(read, b"old");
    assert_eq!(files.list(".").await.unwrap().len(), 1);
}

/// Counts what an agent has open, where this user may access it, and lists what it has started.
fn open_and_started(pid: u32) -> (Option<usize>, String) {
    let open =
        may_look().then(|| std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count());
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    (open, children.expect("it runs"))
}

#[tokio::test]
async fn large_files_go_and_leave_nothing_open() {
    const LARGE: usize = 20 << 20;
    let place = TestBox::start().await;
    let files = place.files();
    files.write("small", bytes(&[b"small"]), WriteOptions::default()).await.unwrap();
    let before = open_and_started(place.agent.id().unwrap());
    std::fs::create_dir(place.path("tree")).unwrap();
    let make = |name: &str| {
        std::fs::write(place.path(name), vec![7; LARGE]).unwrap();
        std::fs::File::open(place.path(name)).unwrap()
    };
    let gone = ["removed", "replaced", "renamed over", "copied over", "tree/below"].map(make);
    let kept = make("kept");
    std::fs::hard_link(place.path("kept"), place.path("other name")).unwrap();

    files.remove("removed", false).await.unwrap();
    files.write("replaced", bytes(&[b"small"]), WriteOptions::default()).await.unwrap();
    files.copy("small", "copied over").await.unwrap();
    files.rename("small", "renamed over").await.unwrap();
    files.remove("tree", true).await.unwrap();
    files.remove("kept", false).await.unwrap();

    for name in ["replaced", "copied over", "renamed over"] {
        assert_eq!(std::fs::read(place.path(name)).unwrap(), b"small", "{name}");
    }
    let mut names: Vec<_> =
        files.list(".").await.unwrap().into_iter().map(|info| info.name).collect();
    names.sort();
    assert_eq!(names, ["copied over", "other name", "renamed over", "replaced"]);
    // Processes that had them open have them still, complete.
    for file in gone.iter().chain([&kept]) {
        let about = file.metadata().unwrap();
        assert_eq!(about.len(), LARGE as u64);
    }
    assert_eq!(std::fs::read(place.path("other name")).unwrap(), vec![7; LARGE]);
    assert_eq!(open_and_started(place.agent.id().unwrap()), before);
}

#[tokio::test]
async fn what_is_no_file_is_refused_at_once() {
    let place = TestBox::start().await;
    let files = place.files();
    rustix::fs::mkfifoat(rustix::fs::CWD, place.path("fifo"), 0o600.into()).unwrap();
    std::os::unix::fs::symlink("/proc/self/environ", place.path("link")).unwrap();
    let read = |path| files.read(path, ByteRange::default());
    assert_eq!(read("fifo").await.err().unwrap().kind(), ErrorKind::InvalidArgument);
    assert_eq!(read("/proc/self/environ").await.err().unwrap().kind(), ErrorKind::PermissionDenied);
    assert_eq!(read("link").await.err().unwrap().kind(), ErrorKind::PermissionDenied);
    assert_eq!(read("missing").await.err().unwrap().kind(), ErrorKind::NotFound);
    let error = files.write("link", bytes(&[b"x"]), WriteOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn files_and_lines_are_found() {
    let place = TestBox::start().await;
    let files = place.files();
    std::fs::create_dir_all(place.path("deep/er")).unwrap();
    std::fs::write(place.path("deep/er/a.py"), "one\ntwo needle\nthree\nneedle").unwrap();
    std::fs::write(place.path("b.txt"), "needle").unwrap();
    let mut query = FindFiles::below(".");
    query.name = Some("*.py".into());
    query.contains = Some("needle".into());
    let found = files.find(query).await.unwrap();
    let path = place.path("deep/er/a.py");
    let expected = [(2, "two needle"), (4, "needle")]
        .map(|(line, text)| FoundFile { path: path.clone(), line: Some((line, text.to_owned())) });
    assert_eq!(found, expected);
}

#[tokio::test]
async fn an_archive_brings_a_tree_back() {
    let place = TestBox::start().await;
    let files = place.files();
    std::fs::create_dir_all(place.path("tree/deep")).unwrap();
    std::fs::write(place.path("tree/deep/file"), vec![7; 200_000]).unwrap();
    std::os::unix::fs::symlink("deep/file", place.path("tree/link")).unwrap();
    let archive = collect(files.read_archive("tree").await.unwrap()).await.unwrap();
    files.write_archive("copy", bytes(&[&archive]), Links::Inside).await.unwrap();
    assert_eq!(std::fs::read(place.path("copy/link")).unwrap(), vec![7; 200_000]);
    files.copy("copy", "again").await.unwrap();
    assert_eq!(std::fs::read(place.path("again/deep/file")).unwrap().len(), 200_000);
    files.remove("again", true).await.unwrap();
    files.rename("copy", "moved").await.unwrap();
    let names: Vec<_> = files.list(".").await.unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["moved", "tree"]);
}

// As in an environment of Python. Where links may not lead out, the agent finds one that does so through another.
#[tokio::test]
async fn links_lead_out_of_an_archive_where_they_may() {
    let place = TestBox::start().await;
    let files = place.files();
    for (target, through) in [("/usr/bin/python3", "a"), ("a/b/..", "..")] {
        let tree = place.path("tree");
        std::fs::create_dir_all(format!("{tree}/a")).unwrap();
        std::os::unix::fs::symlink(target, format!("{tree}/link")).unwrap();
        std::os::unix::fs::symlink(through, format!("{tree}/a/b")).unwrap();
        let archive = collect(files.read_archive("tree").await.unwrap()).await.unwrap();
        let refused = files.write_archive("inside", bytes(&[&archive]), Links::Inside).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument, "{target}");
        files.write_archive("any", bytes(&[&archive]), Links::Any).await.unwrap();
        let link = std::fs::read_link(place.path("any/link")).unwrap();
        assert_eq!(link, std::path::Path::new(target));
        for name in ["tree", "any"] {
            files.remove(name, true).await.unwrap();
        }
    }
}

#[tokio::test]
async fn changes_are_told() {
    let place = TestBox::start().await;
    let files = place.files();
    let mut changes = files.watch(".", true).await.unwrap();
    std::fs::create_dir(place.path("new")).unwrap();
    let first = changes.next().await.unwrap().unwrap();
    assert_eq!((first.kind, first.path), (WatchEventKind::Create, place.path("new")));
    std::fs::write(place.path("new/file"), "x").unwrap();
    let second = changes.next().await.unwrap().unwrap();
    assert_eq!((second.kind, second.path), (WatchEventKind::Create, place.path("new/file")));
}

// Large transfers wait when an interpreter is interrupted, and continue when that does not answer.
#[tokio::test]
async fn a_transfer_goes_on_after_an_interrupt() {
    const SIGINT: i32 = 2;
    const PIECES: usize = 64;
    let place = TestBox::start().await;
    let (files, cwd) = (place.files(), place.home.path().to_string_lossy().into_owned());
    let worker = place.pipe.start_worker(WorkerSpec { env: [].into(), cwd }).await.unwrap();
    let process = Arc::clone(&worker.process);
    let content = futures_util::stream::iter(0..PIECES).map(move |number| {
        if number == PIECES / 2 {
            process.signal(SIGINT).unwrap();
        }
        Ok(bytes::Bytes::from(vec![7; 64 << 10]))
    });
    let written = files.write("large", Box::pin(content), WriteOptions::default()).await.unwrap();
    assert_eq!(written, (PIECES * (64 << 10)) as u64);
    let mut read = files.read("large", ByteRange::default()).await.unwrap();
    let mut count = 0;
    while let Some(piece) = read.next().await {
        count += piece.unwrap().len();
        if count > 2 << 20 {
            worker.process.signal(SIGINT).unwrap();
        }
    }
    assert_eq!(count as u64, written);
}
