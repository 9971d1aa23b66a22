//! An own engine over TLS that the test starts, kills and starts again. Needs root, `dockerd`, `openssl`, and the image in
//! the running engine: `cargo xtask test-docker`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

use std::future::IntoFuture as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_docker::{DEFAULT_IMAGE, DockerBackend, DockerConfig, Images};
use sandbox_core::{ErrorKind, FailureKind, Sandbox, SandboxBuilder, SingleBackend};
use support::{TEST_TIMEOUT, has_engine};
use tokio::process::{Child, Command};
use tokio::time::sleep;

/// Variable that is set in the child process that uses a context.
const BY_CONTEXT: &str = "SANDBOX_TEST_DOCKER_CONTEXT";

async fn must(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().await.expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Makes an authority and a certificate that it has signed: `ca.pem`, `NAME.pem`, `NAME-key.pem`.
async fn signed(folder: &Path, name: &str, extensions: &str) {
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    if !folder.join("ca.pem").exists() {
        let more = ["-x509", "-days", "2", "-subj", "/CN=authority"];
        let files = ["-keyout", &path("ca-key.pem"), "-out", &path("ca.pem")];
        must("openssl", &[&new[..], &more, &files].concat()).await;
    }
    let subject = format!("/CN={name}");
    let key = path(&format!("{name}-key.pem"));
    let files = ["-subj", &subject, "-keyout", &key, "-out", &path("request")];
    must("openssl", &[&new[..], &files].concat()).await;
    std::fs::write(folder.join("extensions"), extensions).unwrap();
    let certificate = path(&format!("{name}.pem"));
    let arguments = [
        "x509",
        "-req",
        "-in",
        &path("request"),
        "-CA",
        &path("ca.pem"),
        "-CAkey",
        &path("ca-key.pem"),
        "-CAcreateserial",
    ];
    let more = ["-days", "2", "-extfile", &path("extensions"), "-out", &certificate];
    must("openssl", &[&arguments[..], &more].concat()).await;
}

/// Copies files under the names that clients of an engine use.
fn for_clients(from: &Path, to: &Path, names: &[(&str, &str)]) {
    std::fs::create_dir_all(to).unwrap();
    for (name, called) in names {
        std::fs::copy(from.join(name), to.join(called)).unwrap();
    }
}

/// Writes a runtime that changes the configuration and then runs `runc`.
fn runtime(folder: &Path, name: &str, change: &str) {
    let program = format!(
        "#!/usr/bin/env python3
import json, os, sys
given = sys.argv[1:]
if 'create' in given and '--bundle' in given:
    path = given[given.index('--bundle') + 1] + '/config.json'
    with open(path) as file: config = json.load(file)
    {change}
    with open(path, 'w') as file: json.dump(config, file)
os.execvp('runc', ['runc', *given])
"
    );
    let path = folder.join(name);
    std::fs::write(&path, program).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

struct Engine {
    folder: tempfile::TempDir,
    port: u16,
    child: Child,
}

impl Engine {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        signed(folder.path(), "engine", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth")
            .await;
        signed(folder.path(), "client", "extendedKeyUsage=clientAuth").await;
        let all = [("ca.pem", "ca.pem"), ("client.pem", "cert.pem"), ("client-key.pem", "key.pem")];
        for_clients(folder.path(), &folder.path().join("good"), &all);
        for_clients(folder.path(), &folder.path().join("bare"), &all[..1]);
        let other = folder.path().join("other");
        std::fs::create_dir(&other).unwrap();
        signed(&other, "client", "extendedKeyUsage=clientAuth").await;
        for_clients(&other, &folder.path().join("foreign"), &all);
        for_clients(folder.path(), &folder.path().join("unknown"), &all[..1]);
        for_clients(&other, &folder.path().join("unknown"), &all[1..]);
        runtime(folder.path(), "plain", "pass");
        runtime(folder.path(), "unfiltered", "config['linux'].pop('seccomp')");
        runtime(folder.path(), "unlimited", "config['linux']['resources'] = {}");
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let child = Self::spawn(folder.path(), port);
        let engine = Self { folder, port, child };
        engine.wait().await;
        engine
    }

    fn spawn(folder: &Path, port: u16) -> Child {
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let log = std::fs::File::options().create(true).append(true).open(path("log")).unwrap();
        let mut dockerd = Command::new("setpriv");
        dockerd
            .args([
                "--pdeathsig",
                "TERM",
                "dockerd",
                "--host",
                &format!("unix://{}", path("socket")),
            ])
            .args(["--host", &format!("tcp://127.0.0.1:{port}"), "--tlsverify"])
            .args(["--tlscacert", &path("ca.pem"), "--tlscert", &path("engine.pem")])
            .args(["--tlskey", &path("engine-key.pem"), "--data-root", &path("data")])
            .args(["--exec-root", &path("exec"), "--pidfile", &path("pid")])
            .args(["--add-runtime", "odd=/no/such/runtime", "--bridge=none"])
            .args(["--add-runtime", &format!("plain={}", path("plain"))])
            .args(["--add-runtime", &format!("unfiltered={}", path("unfiltered"))])
            .args(["--add-runtime", &format!("unlimited={}", path("unlimited"))])
            .args(["--iptables=false", "--ip6tables=false", "--ip-forward=false"]);
        dockerd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    async fn wait(&self) {
        let started = Instant::now();
        while !self.docker(&["version"]).output().await.unwrap().status.success() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(started.elapsed() < TEST_TIMEOUT * 2, "it does not start: {log}");
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn docker(&self, arguments: &[&str]) -> Command {
        let mut docker = Command::new("docker");
        let socket = format!("unix://{}", self.folder.path().join("socket").display());
        docker.args(["--host", &socket]).args(arguments);
        docker
    }

    async fn load(&self) {
        let mut saving = Command::new("docker")
            .args(["save", DEFAULT_IMAGE])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let archive: Stdio = saving.stdout.take().unwrap().try_into().unwrap();
        let loaded = self.docker(&["load", "--quiet"]).stdin(archive).output().await.unwrap();
        assert!(loaded.status.success(), "{loaded:?}");
        saving.wait().await.unwrap();
    }

    fn config(&self, certificates: &str) -> DockerConfig {
        let mut config = DockerConfig::default();
        config.host = Some(format!("tcp://127.0.0.1:{}", self.port));
        config.certificates = Some(self.folder.path().join(certificates));
        config
    }

    fn builder(&self) -> SandboxBuilder<SingleBackend> {
        Sandbox::builder(Arc::new(DockerBackend::new(self.config("good"))))
    }

    async fn containers(&self) -> Vec<String> {
        let listed =
            self.docker(&["ps", "--all", "--format", "{{.Names}}"]).output().await.unwrap();
        assert!(listed.status.success(), "{listed:?}");
        String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect()
    }

    async fn kill(&mut self) {
        self.child.start_kill().unwrap();
        self.child.wait().await.unwrap();
        self.remove_dead_containerd().await;
    }

    /// Removes the pid file of containerd, which dies with its engine: the next engine would wait for a zombie that a slow
    /// init process has not reaped yet.
    async fn remove_dead_containerd(&self) {
        let file = self.folder.path().join("exec/containerd/containerd.pid");
        let Ok(pid) = std::fs::read_to_string(&file) else { return };
        let is_dead = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|it| it.starts_with('Z')))
        };
        let started = Instant::now();
        while !is_dead() {
            assert!(started.elapsed() < TEST_TIMEOUT, "containerd {pid} outlives its engine");
            sleep(Duration::from_millis(50)).await;
        }
        std::fs::remove_file(file).unwrap();
    }

    /// Ends the engine and unmounts its file systems.
    async fn end(mut self) {
        let pid = self.child.id().unwrap().to_string();
        must("kill", &[&pid]).await;
        self.child.wait().await.unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let paths = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let below: Vec<_> =
            paths.filter(|path| Path::new(path).starts_with(self.folder.path())).collect();
        for path in below.iter().rev() {
            must("umount", &["--lazy", path]).await;
        }
    }
}

/// Connects only with certificates that both sides trust.
async fn both_sides_verify_certificates(engine: &Engine) {
    let sandbox = engine.builder().create().await.unwrap();
    assert_eq!(sandbox.run_code("6 * 7").await.unwrap().text(), Some("42"));
    sandbox.files().write("big", vec![1_u8; 5_000_000]).await.unwrap();
    assert_eq!(sandbox.files().read("big").await.unwrap().len(), 5_000_000);
    sandbox.terminate().await.unwrap();
    for (certificates, part) in [
        // No client certificate; one of another authority; an engine of another authority.
        ("bare", "certificate of this end"),
        ("unknown", "certificate of this end"),
        ("foreign", "not trusted"),
    ] {
        let error = Images::connect(&engine.config(certificates)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{certificates}: {error:?}");
        assert!(
            error.message().contains(part) && error.hint().is_some(),
            "{certificates}: {error:?}"
        );
    }
    let error = Images::connect(&engine.config("no-such-folder")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    let mut plain = engine.config("good");
    plain.certificates = None;
    let error = Images::connect(&plain).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("DOCKER_TLS_VERIFY")), "{error:?}");
}

/// Runs another process whose environment names a context with certificates.
async fn a_context_is_enough(engine: &Engine) {
    let settings = engine.folder.path().join("settings");
    let host = format!("host=tcp://127.0.0.1:{}", engine.port);
    let good = engine.folder.path().join("good");
    let file = |name: &str| good.join(name).display().to_string();
    let description =
        format!("{host},ca={},cert={},key={}", file("ca.pem"), file("cert.pem"), file("key.pem"));
    let created = Command::new("docker")
        .env("DOCKER_CONFIG", &settings)
        .args(["context", "create", "far", "--docker", &description])
        .output()
        .await
        .unwrap();
    assert!(created.status.success(), "{created:?}");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "an_engine_over_tls_that_dies"])
        .env("DOCKER_CONFIG", &settings)
        .env("DOCKER_CONTEXT", "far")
        .env_remove("DOCKER_HOST")
        .env(BY_CONTEXT, "1")
        .output()
        .await
        .unwrap();
    assert!(child.status.success(), "{child:?}");
}

/// The engine reports a missing program of a runtime at the start of a container, in words that could mean other programs.
async fn a_runtime_without_a_program_is_named(engine: &Engine) {
    let error = engine.builder().provider_option("runtime", "odd").create().await.unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("runtime odd")), "{error:?}");
    let error =
        engine.builder().provider_option("runtime", "none-such").create().await.unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("docker info")), "{error:?}");
    let error = engine.builder().provider_option("python", "no-python").create().await.unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("Python 3.9")), "{error:?}");
}

/// The engine does not know what a runtime leaves out, so each container of a runtime is verified.
async fn parts_that_a_runtime_leaves_out_are_found(engine: &Engine) {
    let with_runtime = |name: &str| engine.builder().provider_option("runtime", name);
    let layers = |sandbox: &Sandbox| sandbox.info().isolation.unwrap().layers;
    let sandbox = with_runtime("plain").create().await.unwrap();
    let claimed = layers(&sandbox);
    for layer in ["seccomp", "limits", "runtime:plain"] {
        assert!(claimed.iter().any(|known| known == layer), "{layer} in {claimed:?}");
    }
    sandbox.terminate().await.unwrap();

    let error = with_runtime("unfiltered").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("filter of system calls"), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("--oci-seccomp")), "{error:?}");

    // A missing limit is not claimed by default, and refused where it was requested.
    let sandbox = with_runtime("unlimited").create().await.unwrap();
    let claimed = layers(&sandbox);
    assert!(!claimed.iter().any(|layer| layer == "limits"), "{claimed:?}");
    assert!(claimed.iter().any(|layer| layer == "seccomp"), "{claimed:?}");
    sandbox.terminate().await.unwrap();
    let error = with_runtime("unlimited").processes(100).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("limit of processes"), "{error:?}");
}

/// A run fails at once when the engine dies, and no container is left when the engine is back.
async fn the_death_of_the_engine_is_reported(engine: &mut Engine) {
    let backend = Arc::new(DockerBackend::new(engine.config("good")));
    let sandbox = Sandbox::builder(Arc::<DockerBackend>::clone(&backend)).create().await.unwrap();
    let code = "print('so far', flush=True)\nimport time; time.sleep(300)";
    let run = sandbox.run_code(code).timeout(TEST_TIMEOUT * 10).into_future();
    let killed = async {
        sleep(Duration::from_secs(2)).await;
        engine.kill().await;
        Instant::now()
    };
    let (result, since) = tokio::join!(run, killed);
    assert!(since.elapsed() < Duration::from_secs(5), "it took {:?}", since.elapsed());
    let result = result.unwrap();
    assert_eq!(result.stdout_trimmed(), "so far");
    let failure = result.failure.unwrap();
    assert_eq!(failure.kind, FailureKind::ConnectionLost, "{failure:?}");
    let error = Sandbox::builder(Arc::<DockerBackend>::clone(&backend)).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.hint().is_some(), "{error:?}");
    drop(sandbox);

    engine.child = Engine::spawn(engine.folder.path(), engine.port);
    engine.wait().await;
    let sandbox = Sandbox::builder(backend).create().await.unwrap();
    let name = sandbox.info().metadata["container"].as_str().unwrap().to_owned();
    let started = Instant::now();
    while engine.containers().await != [name.as_str()] {
        assert!(
            started.elapsed() < TEST_TIMEOUT,
            "{:?} are left beside {name}",
            engine.containers().await
        );
        sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(sandbox.run_code("1 + 1").await.unwrap().text(), Some("2"));
    sandbox.terminate().await.unwrap();
}

#[tokio::test]
#[ignore = "needs root and a container engine: cargo xtask test-docker"]
async fn an_engine_over_tls_that_dies() {
    assert!(has_engine(), "there is no engine to test with");
    if std::env::var_os(BY_CONTEXT).is_some() {
        let images = Images::connect(&DockerConfig::default()).await.unwrap();
        let images = images.list().await.unwrap();
        return assert!(images.iter().any(|image| image.name == DEFAULT_IMAGE), "{images:?}");
    }
    let mut engine = Engine::start().await;
    engine.load().await;
    both_sides_verify_certificates(&engine).await;
    a_context_is_enough(&engine).await;
    a_runtime_without_a_program_is_named(&engine).await;
    parts_that_a_runtime_leaves_out_are_found(&engine).await;
    the_death_of_the_engine_is_reported(&mut engine).await;
    engine.end().await;
}
