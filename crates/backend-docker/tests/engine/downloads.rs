//! Large files out of containers: taken as open files where the engine and its kernel are here, and else through the engine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use backend_docker::{DockerBackend, DockerConfig};
use futures_util::StreamExt as _;
use rustix::process::geteuid;
use sandbox_core::{ByteRange, ByteSize, ByteStream, ErrorKind, Sandbox};
use tokio::time::timeout;

use super::remote::engine_over_tcp;
use super::support::{TEST_TIMEOUT, docker, has_engine};
use super::{container, create};

/// Far more than can be on its way through an engine.
const LARGE: usize = 100_000_000;

/// What a whole file is read by.
const ALL: ByteRange = ByteRange { offset: 0, length: None };

/// One whose engine is here, and one whose engine might be anywhere.
async fn ways() -> [Sandbox; 2] {
    assert!(has_engine(), "there is no engine to test with");
    let mut config = DockerConfig::default();
    config.host = Some(engine_over_tcp().await);
    let elsewhere = Sandbox::builder(Arc::new(DockerBackend::new(config)));
    let made = [create().await, elsewhere.create().await.unwrap()];
    for sandbox in &made {
        let times = LARGE / 251 + 1;
        let content = format!("(bytes(range(251)) * {times})[:{LARGE}]");
        run(sandbox, &format!("with open('large', 'wb') as file: file.write({content})")).await;
    }
    made
}

async fn run(sandbox: &Sandbox, code: &str) {
    let done = sandbox.run_code(code).await.unwrap();
    assert!(done.success(), "{done:?}");
}

async fn collect(mut content: ByteStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = content.next().await {
        all.extend_from_slice(&piece.unwrap());
    }
    all
}

/// Compared by pieces: byte by byte would keep this thread from everything else for many seconds, and a container ends that
/// hears nothing of its host.
fn is_large(content: &[u8]) -> bool {
    let piece: Vec<u8> = (0..251).collect();
    content.len() == LARGE && content.chunks(251).all(|other| piece.starts_with(other))
}

/// Nothing in a container that is paused says anything.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_large_file_is_taken_by_root_where_the_engine_is() {
    let [here, elsewhere] = ways().await;
    for (sandbox, is_taken) in [(&here, geteuid().is_root()), (&elsewhere, false)] {
        let content = sandbox.files().stream("large", ALL).await.unwrap();
        let name = container(sandbox);
        docker(&["pause", &name]).await;
        let patience = if is_taken { TEST_TIMEOUT } else { Duration::from_millis(500) };
        let arrived = timeout(patience, collect(content)).await;
        docker(&["unpause", &name]).await;
        assert_eq!(arrived.is_ok_and(|content| is_large(&content)), is_taken);
        let again = sandbox.files().stream("large", ALL).await.unwrap();
        assert!(is_large(&collect(again).await));
        sandbox.terminate().await.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn large_files_are_downloaded_alike() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("file");
    for sandbox in ways().await {
        let files = sandbox.files();
        let download = async |path: &str, to: &Path| {
            let _ = std::fs::remove_file(to);
            files.download(path, to).await.map(|done| done.bytes)
        };
        assert_eq!(download("large", &to).await.unwrap(), LARGE as u64);
        assert!(is_large(&std::fs::read(&to).unwrap()));
        // One that is all holes but for its end.
        let code = "import os\nwith open('sparse', 'wb') as file: file.seek(900 << 20); file.write(b'end')\n\
                    os.symlink('sparse', 'link')";
        run(&sandbox, code).await;
        let part = ByteRange { offset: (900 << 20) - (2 << 20), length: None };
        let part = collect(files.stream("link", part).await.unwrap()).await;
        assert!(part.len() == (2 << 20) + 3 && part.ends_with(b"\0end"));
        let most = files.download("large", &to).at_most(ByteSize::mib(10)).await;
        assert_eq!(most.unwrap_err().kind(), ErrorKind::ResourceExhausted);
        // One of the image.
        let python = sandbox
            .commands()
            .run("readlink -f $(command -v python3); cat $(command -v python3) | wc -c");
        let said = python.await.unwrap().stdout;
        let (path, size) = said.trim().split_once('\n').unwrap();
        assert_eq!(download(path, &to).await.unwrap(), size.trim().parse::<u64>().unwrap());
        sandbox.terminate().await.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn large_files_that_change_are_read_alike() {
    for sandbox in ways().await {
        let files = sandbox.files();
        let mut content = files.stream("large", ALL).await.unwrap();
        let first = content.next().await.unwrap().unwrap().len();
        run(&sandbox, "with open('large', 'ab') as file: file.write(b'more' * (1 << 20))").await;
        let rest = collect(content).await;
        assert_eq!(first + rest.len(), LARGE + (4 << 20));
        assert!(rest.ends_with(b"moremore"));

        let mut content = files.stream("large", ALL).await.unwrap();
        let first = content.next().await.unwrap().unwrap().len();
        // What had the name is read, and not what gets it.
        run(
            &sandbox,
            "import os\nos.truncate('large', 8 << 20)\nos.rename('large', 'x')\n\
                       with open('large', 'wb') as file: file.write(bytes(100 << 20))",
        )
        .await;
        let rest = timeout(TEST_TIMEOUT, collect(content)).await.unwrap();
        assert!((8 << 20..LARGE).contains(&(first + rest.len())), "{}", rest.len());
        sandbox.terminate().await.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn what_is_no_file_to_read_is_refused_alike() {
    let mut told = Vec::new();
    for sandbox in ways().await {
        let files = sandbox.files();
        run(&sandbox, "import os\nos.chmod('large', 0)\nos.mkfifo('fifo')\nos.symlink('/proc/1/environ', 'link')").await;
        let mut errors = Vec::new();
        for path in [
            "large",
            "fifo",
            "link",
            "/dev/zero",
            "/proc/kcore",
            "/proc/self/mem",
            "missing",
            "/workspace",
        ] {
            let refused = timeout(TEST_TIMEOUT, files.stream(path, ALL)).await.unwrap();
            let error = refused.err().unwrap_or_else(|| panic!("{path} is read"));
            errors.push((path, error.kind(), error.message().to_owned()));
        }
        assert_eq!(errors[0].1, ErrorKind::PermissionDenied, "{errors:?}");
        assert_eq!(errors[1].1, ErrorKind::InvalidArgument, "{errors:?}");
        told.push(errors);
        sandbox.terminate().await.unwrap();
    }
    assert_eq!(told[0], told[1]);
}
