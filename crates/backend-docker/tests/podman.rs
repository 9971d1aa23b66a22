//! Containers with Podman. Needs a Podman service with the image, at the address in `SANDBOX_TEST_PODMAN`: `cargo xtask
//! test-docker`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::future::IntoFuture as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_docker::{DockerBackend, DockerConfig};
use sandbox_core::{
    Backend as _, ByteSize, ErrorKind, FailureKind, Mount, NetworkPolicy, Sandbox, SandboxBuilder,
    SingleBackend,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::sleep;

/// Variable with the service's address, set by `cargo xtask test-docker`.
const VARIABLE: &str = "SANDBOX_TEST_PODMAN";

/// Variable that is set in the owner that is killed.
const OWNER: &str = "SANDBOX_TEST_PODMAN_OWNER";

/// Limits a step of a test, with time for an engine on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn host() -> String {
    std::env::var(VARIABLE).expect("there is no Podman to test with")
}

fn backend() -> Arc<DockerBackend> {
    let mut config = DockerConfig::default();
    config.host = Some(host());
    Arc::new(DockerBackend::new(config))
}

fn builder() -> SandboxBuilder<SingleBackend> {
    Sandbox::builder(backend())
}

async fn create() -> Sandbox {
    builder().create().await.expect("a sandbox")
}

fn container(sandbox: &Sandbox) -> String {
    sandbox.info().metadata["container"].as_str().expect("a name").to_owned()
}

/// Runs Docker's client against the service.
async fn engine(arguments: &[&str]) -> String {
    let mut docker = Command::new("docker");
    let output = docker.args(["--host", &host()]).args(arguments).output().await.expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

async fn is_gone(name: &str) -> bool {
    let filter = format!("name={name}");
    let started = Instant::now();
    while started.elapsed() < TEST_TIMEOUT {
        if engine(&["ps", "--all", "--quiet", "--filter", &filter]).await.is_empty() {
            return true;
        }
        sleep(Duration::from_millis(100)).await;
    }
    false
}

/// Returns true when no files for the service are left, once those of tests that run in parallel are removed.
fn no_files_are_left() -> bool {
    let own = |name: &str| name.starts_with("code-sandboxes-") && name.len() == 31;
    let is_left = || {
        let entries = std::fs::read_dir(std::env::temp_dir()).expect("a folder");
        entries.flatten().any(|entry| {
            own(&entry.file_name().to_string_lossy())
                && entry.path().join("system-calls.json").exists()
        })
    };
    let end = Instant::now() + Duration::from_secs(30);
    while is_left() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    !is_left()
}

#[tokio::test]
#[ignore = "needs Podman: cargo xtask test-docker"]
async fn code_commands_and_files_work_and_nothing_is_left() {
    let health = backend().health(&sandbox_core::CallContext::new()).await.unwrap();
    assert!(health.usable && health.checks[0].detail.contains("Podman"), "{health:?}");
    let sandbox = create().await;
    let name = container(&sandbox);
    sandbox.run_code("x = 41").await.unwrap();
    assert_eq!(sandbox.run_code("x + 1").await.unwrap().text(), Some("42"));
    let command = sandbox.commands().run("echo so > made; cat made; exit 3").await.unwrap();
    assert_eq!((command.stdout.as_str(), command.exit_code), ("so\n", 3));
    assert_eq!(sandbox.files().read_text("made").await.unwrap(), "so\n");
    sandbox.files().write("given", vec![7_u8; 3_000_000]).await.unwrap();
    let size = sandbox.run_code("import os; os.path.getsize('given')").await.unwrap();
    assert_eq!(size.text(), Some("3000000"));
    let interrupted =
        sandbox.run_code("while True: pass").timeout(Duration::from_secs(1)).await.unwrap();
    assert_eq!(interrupted.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("41"));
    sandbox.pause().await.unwrap();
    sandbox.resume().await.unwrap();
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("41"));
    sandbox.terminate().await.unwrap();
    assert!(is_gone(&name).await, "{name} stays after its end");
}

/// Checks from inside the container: Podman does not report the parts of a request that it ignores.
#[tokio::test]
#[ignore = "needs Podman: cargo xtask test-docker"]
async fn a_container_is_as_closed_as_with_docker() {
    let sandbox = create().await;
    let code = "
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def refusal(call, *arguments):
    ctypes.set_errno(0)
    return call(*arguments) == -1 and ctypes.get_errno()
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
def is_writable(path):
    try: os.close(os.open(path + '/x', os.O_CREAT | os.O_WRONLY)); os.unlink(path + '/x'); return True
    except OSError: return False
try: os.kill(1, 9)
except PermissionError: pass
print(refusal(libc.ptrace, 0, 0, 0, 0), refusal(libc.unshare, 0x10000000), refusal(libc.getppid))
print(status['CapBnd'].strip(), status['CapEff'].strip(), status['NoNewPrivs'].strip())
print(f'{os.getuid()}:{os.getgid()}')
print([path for path in ['/', '/etc', '/run', '/usr', '/dev', '/tmp', '/workspace', '/data'] if is_writable(path)])
print([line.split(':')[0].strip() for line in open('/proc/net/dev')][2:])
print(open('/etc/hosts').read().split())";
    let result = sandbox.run_code(code).await.unwrap();
    let stdout = result.stdout_trimmed();
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(
        lines,
        [
            "1 1 False",
            "0000000000000000 0000000000000000 1",
            sandbox.info().metadata["user"].as_str().unwrap(),
            "['/tmp', '/workspace', '/data']",
            "['lo']",
            "['127.0.0.1', 'localhost', 'sandbox', '::1', 'localhost']",
        ],
        "{result:?}"
    );
    assert!(no_files_are_left(), "files of the engine are left");
}

#[tokio::test]
#[ignore = "needs Podman: cargo xtask test-docker"]
async fn limits_are_enforced() {
    let sandbox = builder()
        .memory(ByteSize::mib(256))
        .disk(ByteSize::mib(64))
        .processes(20)
        .cpu(0.5)
        .create()
        .await
        .unwrap();
    let result = sandbox.run_code("held = bytearray(400 << 20)").await.unwrap();
    assert_eq!(
        result.failure.as_ref().map(|it| it.kind),
        Some(FailureKind::OutOfMemory),
        "{result:?}"
    );
    let code = "
import errno, os, subprocess, time
def refusal(do):
    try: do()
    except OSError as error: return errno.errorcode[error.errno]
def fill():
    with open('/workspace/full', 'wb') as file:
        for _ in range(100): file.write(bytes(1 << 20))
def fork():
    children = []
    try:
        for _ in range(40): children.append(subprocess.Popen(['sleep', '100']))
    finally:
        for child in children: child.kill(); child.wait()
print(refusal(fill), refusal(fork))
os.unlink('/workspace/full')
start = time.monotonic(), time.process_time()
while time.monotonic() - start[0] < 2: pass
print((time.process_time() - start[1]) / 2 < 0.75)";
    let result = sandbox.run_code(code).await.unwrap();
    assert_eq!(result.stdout_trimmed(), "ENOSPC EAGAIN\nTrue", "{result:?}");
    let error = builder().provider_option("runtime", "runsc").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("podman --runtime")), "{error:?}");
}

/// As root a gate in the network of the container enforces the policy, and resolves names.
#[tokio::test]
#[ignore = "needs Podman: cargo xtask test-docker"]
async fn allowlists_are_enforced() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // A name that resolves to this host everywhere.
    let allowed = format!("served.localhost:{}", server.local_addr().unwrap().port());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nso").await;
        }
    });
    let policy = NetworkPolicy::allowlist([
        allowed.clone(),
        allowed.replace("served.localhost", "127.0.0.1"),
    ])
    .unwrap();
    let sandbox = builder().network(policy).create().await.unwrap();
    let code = format!(
        "
import socket, urllib.request
def fetch(url):
    try: return urllib.request.urlopen(url, timeout=10).read()
    except OSError as error: return 'refused'
print(fetch('http://{allowed}/'), fetch('http://198.51.100.1/'))
print(open('/etc/resolv.conf').read().split()[1])"
    );
    let result = sandbox.run_code(code).await.unwrap();
    let layers = sandbox.info().isolation.unwrap().layers;
    assert!(layers.iter().any(|layer| layer == "network-gate"), "{layers:?}");
    assert_eq!(result.stdout_trimmed(), "b'so' refused\n127.0.0.1", "{result:?}");
    let denied: Vec<_> = result.network_denied.iter().map(ToString::to_string).collect();
    assert_eq!(denied, ["198.51.100.1:80"]);
}

#[tokio::test]
#[ignore = "needs Podman: cargo xtask test-docker"]
async fn mounts_are_read_only_by_default() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("there"), "so").unwrap();
    let open = |path: &Path, mode| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(folder.path(), 0o777);
    let code = "
def write():
    try: return open('/given/new', 'w').write('mine')
    except OSError as error: return error.errno
open('/given/there').read(), write()";
    for (mount, expected) in [
        (Mount::new(folder.path(), "/given"), "('so', 30)"),
        (Mount::new(folder.path(), "/given").writable(), "('so', 4)"),
    ] {
        let sandbox = builder().mount(mount).create().await.unwrap();
        assert_eq!(sandbox.run_code(code).await.unwrap().text(), Some(expected));
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("new")).unwrap(), "mine");
}

/// Runs a test as an owner in another process, kills it, and returns the container that it printed.
async fn container_of_a_killed_owner(test: &str) -> String {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", test])
        .env(OWNER, "1")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut printed = String::new();
    let mut output = owner.stdout.take().unwrap();
    let mut buffer = [0; 4096];
    while !printed.contains("container sandbox-") || !printed.contains('.') {
        let count = output.read(&mut buffer).await.unwrap();
        assert!(count > 0, "the owner has ended: {printed}");
        printed += &String::from_utf8_lossy(&buffer[..count]);
    }
    let name = printed.split("container ").nth(1).unwrap().split('.').next().unwrap().to_owned();
    let state = engine(&["inspect", "--format", "{{.State.Status}}", &name]).await;
    assert!(["running", "paused"].contains(&&*state), "{state}");
    owner.start_kill().unwrap();
    owner.wait().await.unwrap();
    name
}

/// The monitor of Podman, not its service, closes the input of a container with its connection.
#[tokio::test]
#[ignore = "needs Podman: cargo xtask test-docker"]
async fn nothing_is_left_of_a_killed_owner() {
    if std::env::var_os(OWNER).is_some() {
        let sandbox = create().await;
        println!("container {}.", container(&sandbox));
        return sleep(TEST_TIMEOUT).await;
    }
    let name = container_of_a_killed_owner("nothing_is_left_of_a_killed_owner").await;
    assert!(is_gone(&name).await, "{name} outlives its owner");
}

#[tokio::test]
#[ignore = "needs Podman: cargo xtask test-docker"]
async fn a_paused_sandbox_of_a_killed_owner_is_pruned() {
    if std::env::var_os(OWNER).is_some() {
        let sandbox = create().await;
        sandbox.pause().await.unwrap();
        println!("container {}.", container(&sandbox));
        return sleep(TEST_TIMEOUT).await;
    }
    let name = container_of_a_killed_owner("a_paused_sandbox_of_a_killed_owner_is_pruned").await;
    let _sandbox = create().await;
    assert!(is_gone(&name).await, "{name} stays");
}

#[tokio::test]
#[ignore = "needs Podman: cargo xtask test-docker"]
async fn a_removal_from_outside_is_reported() {
    let sandbox = create().await;
    let name = container(&sandbox);
    let run = sandbox
        .run_code("print('so far', flush=True)\nimport time; time.sleep(300)")
        .timeout(TEST_TIMEOUT * 10);
    let remove = async {
        sleep(Duration::from_secs(1)).await;
        engine(&["rm", "--force", &name]).await;
    };
    let (result, ()) = tokio::join!(run.into_future(), remove);
    let result = result.unwrap();
    assert_eq!(result.stdout_trimmed(), "so far");
    let failure = result.failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Terminated, "{failure:?}");
    assert!(failure.message.contains("ended"), "{failure:?}");
}

/// Checks that the errors are parsed from Podman's messages too.
#[tokio::test]
#[ignore = "needs Podman: cargo xtask test-docker"]
async fn impossible_creates_are_refused_and_leave_nothing() {
    let error = builder().image("no-such-image:at-all").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    let error = builder().provider_option("python", "no-such-python").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("Python 3.9")), "{error:?}");
    let error = builder().provider_option("platform", "linux/s390x").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    let left = async || engine(&["ps", "--all", "--filter", "status=created", "--quiet"]).await;
    let started = Instant::now();
    while !left().await.is_empty() {
        assert!(started.elapsed() < TEST_TIMEOUT, "a container that has not started is left");
        sleep(Duration::from_millis(100)).await;
    }
    assert!(no_files_are_left(), "files of the engine are left");
}
