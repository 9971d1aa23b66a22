//! Downloads of large files: as transferred descriptors where the engine and its kernel are on this host, and otherwise
//! through the engine.

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

/// Size far above what an engine buffers.
const LARGE: usize = 100_000_000;

/// Range of a whole file.
const ALL: ByteRange = ByteRange { offset: 0, length: None };

/// Creates a sandbox with the local engine, and one with the same engine over TCP, like a remote one.
async fn sandboxes() -> [Sandbox; 2] {
    assert!(has_engine(), "there is no engine to test with");
    let mut config = DockerConfig::default();
    config.host = Some(engine_over_tcp().await);
    let remote = Sandbox::builder(Arc::new(DockerBackend::new(config)));
    let sandboxes = [create().await, remote.create().await.unwrap()];
    for sandbox in &sandboxes {
        let times = LARGE / 251 + 1;
        let content = format!("(bytes(range(251)) * {times})[:{LARGE}]");
        run(sandbox, &format!("with open('large', 'wb') as file: file.write({content})")).await;
    }
    sandboxes
}

async fn run(sandbox: &Sandbox, code: &str) {
    let done = sandbox.run_code(code).await.unwrap();
    assert!(done.success(), "{done:?}");
}

async fn collect(mut content: ByteStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(chunk) = content.next().await {
        all.extend_from_slice(&chunk.unwrap());
    }
    all
}

/// Compares content by chunks: byte by byte it would block this thread for many seconds, and a container ends when its host
/// is silent.
fn is_large(content: &[u8]) -> bool {
    let chunk: Vec<u8> = (0..251).collect();
    content.len() == LARGE && content.chunks(251).all(|other| chunk.starts_with(other))
}

/// A paused container sends nothing, so the content that arrives does not come from its agent.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn root_reads_a_large_file_directly_where_the_engine_is() {
    let [local, remote] = sandboxes().await;
    for (sandbox, is_direct) in [(&local, geteuid().is_root()), (&remote, false)] {
        let content = sandbox.files().stream("large", ALL).await.unwrap();
        let name = container(sandbox);
        docker(&["pause", &name]).await;
        let limit = if is_direct { TEST_TIMEOUT } else { Duration::from_millis(500) };
        let arrived = timeout(limit, collect(content)).await;
        docker(&["unpause", &name]).await;
        assert_eq!(arrived.is_ok_and(|content| is_large(&content)), is_direct);
        let again = sandbox.files().stream("large", ALL).await.unwrap();
        assert!(is_large(&collect(again).await));
        sandbox.terminate().await.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn large_files_are_downloaded_from_both() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("file");
    for sandbox in sandboxes().await {
        let files = sandbox.files();
        let download = async |path: &str, to: &Path| {
            let _ = std::fs::remove_file(to);
            files.download(path, to).await.map(|done| done.bytes)
        };
        assert_eq!(download("large", &to).await.unwrap(), LARGE as u64);
        assert!(is_large(&std::fs::read(&to).unwrap()));
        // A sparse file with data only at its end.
        let code = "import os\nwith open('sparse', 'wb') as file: file.seek(900 << 20); file.write(b'end')\n\
                    os.symlink('sparse', 'link')";
        run(&sandbox, code).await;
        let part = ByteRange { offset: (900 << 20) - (2 << 20), length: None };
        let part = collect(files.stream("link", part).await.unwrap()).await;
        assert!(part.len() == (2 << 20) + 3 && part.ends_with(b"\0end"));
        let most = files.download("large", &to).at_most(ByteSize::mib(10)).await;
        assert_eq!(most.unwrap_err().kind(), ErrorKind::ResourceExhausted);
        // A file of the image.
        let python = sandbox
            .commands()
            .run("readlink -f $(command -v python3); cat $(command -v python3) | wc -c");
        let output = python.await.unwrap().stdout;
        let (path, size) = output.trim().split_once('\n').unwrap();
        assert_eq!(download(path, &to).await.unwrap(), size.trim().parse::<u64>().unwrap());
        sandbox.terminate().await.unwrap();
    }
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn large_files_that_change_are_read_from_both() {
    for sandbox in sandboxes().await {
        let files = sandbox.files();
        let mut content = files.stream("large", ALL).await.unwrap();
        let first = content.next().await.unwrap().unwrap().len();
        run(&sandbox, "with open('large', 'ab') as file: file.write(b'more' * (1 << 20))").await;
        let rest = collect(content).await;
        assert_eq!(first + rest.len(), LARGE + (4 << 20));
        assert!(rest.ends_with(b"moremore"));

        let mut content = files.stream("large", ALL).await.unwrap();
        let first = content.next().await.unwrap().unwrap().len();
        // The file that had the name is read, not the one that gets it.
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
async fn unreadable_files_are_refused_alike() {
    let mut refusals = Vec::new();
    for sandbox in sandboxes().await {
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
        refusals.push(errors);
        sandbox.terminate().await.unwrap();
    }
    assert_eq!(refusals[0], refusals[1]);
}
