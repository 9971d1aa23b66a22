//! Containers with a real engine: isolation, ends, images and snapshots. Needs an engine and the image: `cargo xtask
//! test-docker`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

#[path = "engine/calls.rs"]
mod calls;
#[path = "engine/downloads.rs"]
mod downloads;
#[path = "engine/prune.rs"]
mod prune;
#[path = "engine/remote.rs"]
mod remote;
#[path = "engine/system.rs"]
mod system;

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_docker::{DEFAULT_IMAGE, DockerBackend, DockerConfig, ImageBuild, Images};
use rustix::process::{Pid, Signal, kill_process};
use sandbox_core::{ByteSize, CallContext, ErrorKind, FailureKind, Sandbox};
use support::{TEST_TIMEOUT, build, docker, has_engine};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

/// Set in the child that is killed while it owns a sandbox.
const OWNER: &str = "SANDBOX_TEST_DOCKER_OWNER";

async fn create() -> Sandbox {
    Sandbox::builder(Arc::new(DockerBackend::default())).create().await.expect("a sandbox")
}

fn container(sandbox: &Sandbox) -> String {
    sandbox.info().metadata["container"].as_str().expect("a name").to_owned()
}

fn user(sandbox: &Sandbox) -> String {
    sandbox.info().metadata["user"].as_str().expect("a user").to_owned()
}

async fn is_gone(name: &str) -> bool {
    let filter = format!("name={name}");
    let started = Instant::now();
    while started.elapsed() < TEST_TIMEOUT {
        if docker(&["ps", "--all", "--quiet", "--filter", &filter]).await.is_empty() {
            return true;
        }
        sleep(Duration::from_millis(100)).await;
    }
    false
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_container_is_as_closed_as_info_reports() {
    assert!(has_engine(), "there is no engine to test with");
    let sandbox = create().await;
    let name = container(&sandbox);
    let format = "{{.HostConfig.NetworkMode}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}} {{.Config.User}}";
    let seen = docker(&["inspect", "--format", format, &name]).await;
    let user = user(&sandbox);
    assert_eq!(seen, format!("none true [ALL] {user}"));
    let code =
        "import os; f'{os.getuid()}:{os.getgid()}', {os.getgid()}.issuperset(os.getgroups())";
    let result = sandbox.run_code(code).await.unwrap();
    assert_eq!(result.text(), Some(&*format!("('{user}', True)")), "{result:?}");
    let layers = sandbox.info().isolation.unwrap().layers;
    for layer in ["no-capabilities", "seccomp", "read-only-root", "no-network"] {
        assert!(layers.iter().any(|known| known == layer), "{layer} in {layers:?}");
    }
    // Seen from inside: no paths of the host.
    let groups = "sorted({line.split(':', 2)[2].strip() for line in open('/proc/self/cgroup')})";
    assert_eq!(sandbox.run_code(groups).await.unwrap().text(), Some("['/']"));
    let code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n\
                def refusal(call, *arguments):\n    ctypes.set_errno(0)\n    \
                return call(*arguments) == -1 and ctypes.get_errno()\n\
                [refusal(libc.ptrace, 0, 0, 0, 0), refusal(libc.unshare, 0x10000000), \
                refusal(libc.syscall, 425, 8, 0), refusal(libc.getppid)]";
    // Without the filter the third call would fail with EFAULT.
    assert_eq!(sandbox.run_code(code).await.unwrap().text(), Some("[1, 1, 1, False]"));
    sandbox.terminate().await.unwrap();
    assert!(is_gone(&name).await, "{name} stays after its end");
}

/// Code with the descriptors of the init process could send messages in its place, and its end would end the sandbox.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn code_cannot_reach_the_init_process() {
    assert!(has_engine(), "there is no engine to test with");
    let sandbox = create().await;
    let code = "
import os, signal
found = []
for path in ['/proc/1/fd', '/proc/1/mem', '/proc/1/environ', '/proc/1/cwd']:
    try: found.append(os.listdir(path) if path.endswith('fd') else open(path, 'rb').read(1) if path != '/proc/1/cwd' else os.readlink(path))
    except PermissionError: pass
for number in [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP]:
    try: os.kill(1, number)
    except PermissionError: pass
found";
    let result = sandbox.run_code(code).await.unwrap();
    assert_eq!(result.text(), Some("[]"), "{result:?}");
    // Control: code can read these files of its own process.
    let own =
        "[bool(os.listdir('/proc/self/fd')), open('/proc/self/environ', 'rb').read(1) != None]";
    assert_eq!(sandbox.run_code(own).await.unwrap().text(), Some("[True, True]"));
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
        let count = tokio::io::AsyncReadExt::read(&mut output, &mut buffer).await.unwrap();
        assert!(count > 0, "the owner has ended: {printed}");
        printed += &String::from_utf8_lossy(&buffer[..count]);
    }
    let name = printed.split("container ").nth(1).unwrap().split('.').next().unwrap().to_owned();
    assert_eq!(docker(&["inspect", "--format", "{{.State.Running}}", &name]).await, "true");
    owner.start_kill().unwrap();
    owner.wait().await.unwrap();
    name
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn nothing_is_left_of_a_killed_owner() {
    assert!(has_engine(), "there is no engine to test with");
    if std::env::var_os(OWNER).is_some() {
        let sandbox = create().await;
        println!("container {}.", container(&sandbox));
        return sleep(TEST_TIMEOUT).await;
    }
    let name = container_of_a_killed_owner("nothing_is_left_of_a_killed_owner").await;
    assert!(is_gone(&name).await, "{name} outlives its owner");
}

/// The agent runs while all other processes are paused.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn nothing_is_left_of_a_paused_sandbox_of_a_killed_owner() {
    assert!(has_engine(), "there is no engine to test with");
    if std::env::var_os(OWNER).is_some() {
        let sandbox = create().await;
        sandbox.pause().await.unwrap();
        println!("container {}.", container(&sandbox));
        return sleep(TEST_TIMEOUT).await;
    }
    let test = "nothing_is_left_of_a_paused_sandbox_of_a_killed_owner";
    let name = container_of_a_killed_owner(test).await;
    assert!(is_gone(&name).await, "{name} stays");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_missing_image_is_reported_with_how_to_get_it() {
    assert!(has_engine(), "there is no engine to test with");
    let builder = Sandbox::builder(Arc::new(DockerBackend::default()));
    let error = builder.image("no-such-image:at-all").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.hint().is_some_and(|hint| hint.contains("Images::pull(..)")), "{error:?}");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn images_are_listed_and_built_on_one_another() {
    assert!(has_engine(), "there is no engine to test with");
    let images = Images::connect(&DockerConfig::default()).await.unwrap();
    let names = async || -> Vec<String> {
        images.list().await.unwrap().into_iter().map(|image| image.name).collect()
    };
    assert!(names().await.contains(&DEFAULT_IMAGE.to_owned()));

    let mut build = ImageBuild::default();
    build.name = Some("code-sandboxes-test:built".to_owned());
    build.base = Some("no-such-base:at-all".to_owned());
    let error = images.build(&build, |_| ()).await.unwrap_err();
    assert!(error.message().contains("code-sandboxes-test:built"), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("ImageBuild::base")), "{error:?}");

    // The base has everything that is fetched, so the build needs no network.
    build.base = Some(DEFAULT_IMAGE.to_owned());
    build.network = Some("none".to_owned());
    let mut lines = Vec::new();
    let built = images.build(&build, |line| lines.push(line.to_owned())).await;
    assert_eq!(built.unwrap(), "code-sandboxes-test:built", "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("Successfully built")), "{lines:#?}");
    assert!(names().await.contains(&"code-sandboxes-test:built".to_owned()));
    let builder = Sandbox::builder(Arc::new(DockerBackend::default()));
    let sandbox = builder.image("code-sandboxes-test:built").create().await.unwrap();
    let result = sandbox.run_code("6 * 7").await.unwrap();
    assert_eq!(result.text(), Some("42"));
    sandbox.terminate().await.unwrap();
    docker(&["image", "rm", "--force", "code-sandboxes-test:built"]).await;
}

/// The kernel counts some resources by user, which no limit of a container counts.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn resources_of_users_are_counted_for_each_container() {
    assert!(has_engine(), "there is no engine to test with");
    let (one, other) = (create().await, create().await);
    assert_ne!(user(&one), user(&other));
    let code = "
import ctypes
libc = ctypes.CDLL(None)
held = 0
while held < 1000 and libc.inotify_init() >= 0: held += 1
held";
    // Control: the kernel's limit for users is reached.
    let all = one.run_code(code).await.unwrap();
    let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap();
    let most: u32 = most.trim().parse::<u32>().unwrap().min(1000);
    assert_eq!(all.text(), Some(&*most.to_string()), "{all:?}");
    let all = other.run_code(code).await.unwrap();
    assert_eq!(all.text(), Some(&*most.to_string()), "{all:?}");
}

/// Writable directories are not mounted `noexec`.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_copied_program_and_a_copied_library_run() {
    assert!(has_engine(), "there is no engine to test with");
    let sandbox = create().await;
    let code = "
import ctypes, glob, shutil, subprocess
shutil.copy('/bin/echo', 'say')
shutil.copy(glob.glob('/lib/*/libm.so.6')[0], 'own.so')
cosine = ctypes.CDLL('./own.so').cos
cosine.restype, cosine.argtypes = ctypes.c_double, [ctypes.c_double]
subprocess.run(['./say', 'so'], capture_output=True, text=True).stdout, cosine(0)";
    let result = sandbox.run_code(code).await.unwrap();
    assert_eq!(result.text(), Some("('so\\n', 1.0)"), "{result:?}");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn fifty_answer_at_once() {
    assert!(has_engine(), "there is no engine to test with");
    let backend = Arc::new(DockerBackend::default());
    let one = async |number: usize| {
        let sandbox = Sandbox::builder(Arc::<DockerBackend>::clone(&backend)).create().await?;
        let result = sandbox.run_code(format!("{number} * 2")).await?;
        Ok::<_, sandbox_core::Error>((sandbox, result.text().map(str::to_owned)))
    };
    let answers = futures_util::future::join_all((0..50).map(one)).await;
    // All sandboxes are alive until here.
    let answers = answers.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    for (number, (_, answer)) in answers.iter().enumerate() {
        assert_eq!(answer.as_deref(), Some(&*(number * 2).to_string()));
    }
}

/// Seconds since 1970, as engines count them.
fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("it is later").as_secs()
}

async fn until(is_so: impl AsyncFn() -> bool, otherwise: &str) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < TEST_TIMEOUT, "{otherwise}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// An engine finishes a request of a cancelled create, and the container that it creates is removed.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn nothing_is_left_of_a_cancelled_create() {
    assert!(has_engine(), "there is no engine to test with");
    // Distinguishes these containers from those of other tests.
    let image = "sandbox-test-cancelled";
    docker(&["tag", DEFAULT_IMAGE, image]).await;
    let backend = Arc::new(DockerBackend::default());
    let create = || Sandbox::builder(Arc::<DockerBackend>::clone(&backend)).image(image).create();
    // The first create takes longer, and any other may on a busy engine.
    let mut whole = Duration::MAX;
    for _ in 0..4 {
        let started = Instant::now();
        let sandbox = create().await.unwrap();
        whole = whole.min(started.elapsed());
        sandbox.terminate().await.unwrap();
    }
    // Events are selected by whole seconds, and the creates above do not count.
    sleep(Duration::from_secs(1)).await;
    let since = now();
    // From before the request for a container to after its start, at the speed of this machine.
    let mut cancelled = 0;
    for part in 1..=12 {
        cancelled += u32::from(timeout(whole * part / 14, create()).await.is_err());
    }
    assert!(cancelled > 6, "{cancelled} were cancelled");
    let label = format!("label=code-sandboxes.image={image}");
    let is_left =
        async || !docker(&["ps", "--all", "--quiet", "--filter", &label]).await.is_empty();
    sleep(Duration::from_secs(1)).await;
    until(async || !is_left().await, "a container of a cancelled create stays").await;
    // Control: some of the containers existed.
    let (since, until) = (since.to_string(), now().to_string());
    let events = ["events", "--since", &since, "--until", &until, "--format", "{{.Action}}"];
    let created =
        docker(&[&events[..], &["--filter", &label, "--filter", "event=create"]].concat()).await;
    let (created, cancelled) = (created.lines().count(), usize::try_from(cancelled).unwrap());
    assert!(
        created > 12 - cancelled,
        "{created} of 12 containers were created, and {cancelled} cancelled"
    );
    docker(&["image", "rm", image]).await;
}

/// Returns a backend with its snapshots in that folder.
fn with_snapshots_in(folder: &std::path::Path) -> Arc<DockerBackend> {
    let mut config = DockerConfig::default();
    config.snapshot_directory = Some(folder.join("snapshots"));
    Arc::new(DockerBackend::new(config))
}

/// Files keep their owner in the image of a snapshot, so sandboxes from it run as that user.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_sandbox_from_a_snapshot_owns_its_files() {
    assert!(has_engine(), "there is no engine to test with");
    let folder = tempfile::tempdir().unwrap();
    let backend = with_snapshots_in(folder.path());
    let builder = || Sandbox::builder(Arc::<DockerBackend>::clone(&backend));
    let changing = builder().provider_option("writable_root", true).create().await.unwrap();
    // A directory of the image that every user may write to, and one in memory.
    let code = "
import os
_ = os.umask(0o077)
for path in ['/run/lock/own', '/workspace/own']:
    with open(path, 'w') as file: _ = file.write('mine')";
    assert!(changing.run_code(code).await.unwrap().success());
    changing.create_snapshot("own").await.unwrap();
    let read = "[open(path, 'r+').read() for path in ['/run/lock/own', '/workspace/own']]";
    let from_it = async |option: Option<(&str, &str)>| {
        let mut from_it = builder().snapshot_name("own").provider_option("writable_root", true);
        if let Some((name, value)) = option {
            from_it = from_it.provider_option(name, value);
        }
        from_it.create().await.unwrap()
    };
    let restored = from_it(None).await;
    assert_eq!(user(&restored), user(&changing));
    let found = restored.run_code(read).await.unwrap();
    assert_eq!(found.text(), Some("['mine', 'mine']"), "{found:?}");
    // A requested user is another one, and only owns the files that were in memory.
    let other = from_it(Some(("user", "19999:19999"))).await;
    let error = other.run_code(read).await.unwrap().code_error.unwrap();
    assert_eq!(error.name, "PermissionError", "{error:?}");
    let own = other.run_code("open('/workspace/own', 'r+').read()").await.unwrap();
    assert_eq!(own.text(), Some("'mine'"), "{own:?}");
    for sandbox in [changing, restored, other] {
        sandbox.terminate().await.unwrap();
    }
    sandbox_core::Backend::delete_snapshot(&*backend, &CallContext::new(), "own").await.unwrap();
}

/// The image of a snapshot has the changes to a writable root, and is removed with the snapshot.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_snapshot_has_the_changed_files_of_the_image() {
    assert!(has_engine(), "there is no engine to test with");
    let folder = tempfile::tempdir().unwrap();
    let backend = with_snapshots_in(folder.path());
    let builder = || Sandbox::builder(Arc::<DockerBackend>::clone(&backend));
    let changing = builder()
        .provider_option("writable_root", true)
        .provider_option("user", "0:0")
        .create()
        .await
        .unwrap();
    let code = "_ = open('/etc/marker', 'w').write('changed'); _ = open('own', 'w').write('mine')";
    assert!(changing.run_code(code).await.unwrap().success());
    for millis in [2, 20, 100] {
        let cancelled = changing.create_snapshot("cancelled");
        assert!(timeout(Duration::from_millis(millis), cancelled).await.is_err());
    }
    assert_eq!(changing.run_code("1+1").await.unwrap().text(), Some("2"));
    let left = ["images", "--quiet", "--filter", "label=code-sandboxes.snapshot=cancelled"];
    // The engine completes each image, which is then removed.
    sleep(Duration::from_secs(1)).await;
    until(async || docker(&left).await.trim().is_empty(), "an image of a cancelled snapshot stays")
        .await;
    changing.create_snapshot("changed").await.unwrap();
    let images = async || {
        docker(&["images", "--quiet", "--filter", "label=code-sandboxes.snapshot=changed"]).await
    };
    assert_eq!(images().await.lines().count(), 1);
    // A name in use leaves no second image.
    let error = changing.create_snapshot("changed").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let is_one = async || images().await.lines().count() == 1;
    until(is_one, "the image of a snapshot that failed stays").await;
    changing.terminate().await.unwrap();

    let from_it = builder().snapshot_name("changed").create().await.unwrap();
    let found = from_it.run_code("open('/etc/marker').read() + open('own').read()").await.unwrap();
    assert_eq!(found.text(), Some("'changedmine'"), "{found:?}");
    let error = builder().snapshot_name("changed").image(DEFAULT_IMAGE).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);

    // A container keeps its image.
    sandbox_core::Backend::delete_snapshot(&*backend, &CallContext::new(), "changed")
        .await
        .unwrap();
    assert!(from_it.run_code("open('/etc/marker').read()").await.unwrap().success());
    assert!(is_one().await);
    from_it.terminate().await.unwrap();
    until(async || images().await.is_empty(), "the image of a deleted snapshot stays").await;
}

/// The disk limit counts only files in memory.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn files_that_no_limit_counts_are_refused() {
    assert!(has_engine(), "there is no engine to test with");
    let (name, folder) = ("code-sandboxes-test:volumes", tempfile::tempdir().expect("a folder"));
    let recipe = |volume: &str| format!("FROM {DEFAULT_IMAGE}\nVOLUME {volume}\n");
    let create = || Sandbox::builder(Arc::new(DockerBackend::default())).image(name).create();
    for volume in ["/kept", "/data/kept"] {
        build(name, &recipe(volume), folder.path()).await;
        let error = create().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.message().contains(volume), "{error:?}");
    }
    // This path is in memory in every container.
    build(name, &recipe("/data"), folder.path()).await;
    let sandbox = create().await.unwrap();
    let code =
        "next(line.split()[2] for line in open('/proc/mounts') if line.split()[1] == '/data')";
    assert_eq!(sandbox.run_code(code).await.unwrap().text(), Some("'tmpfs'"));
    sandbox.terminate().await.unwrap();
    docker(&["image", "rm", "--force", name]).await;

    let unlimited = Sandbox::builder(Arc::new(DockerBackend::default()))
        .provider_option("writable_root", true)
        .disk(ByteSize::mib(64));
    let error = unlimited.create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    assert!(error.message().contains("writable_root"), "{error:?}");
}

/// An engine without privileges cannot raise its own limit.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn the_reported_limit_of_open_files_is_enforced() {
    assert!(has_engine(), "there is no engine to test with");
    let limits = "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)";
    let sandbox = create().await;
    let fewer = sandbox.info().metadata.get("open_files").and_then(|most| most.as_u64());
    let most = fewer.unwrap_or(4096);
    let expected = format!("({}, {most})", most.min(1024));
    assert_eq!(sandbox.run_code(limits).await.unwrap().text(), Some(&*expected));
    let command = sandbox.commands().run("ulimit -Hn").await.unwrap();
    assert_eq!(command.stdout.trim(), most.to_string());
    sandbox.terminate().await.unwrap();
    // The engine's default limit, and the limits that it can set: seen in containers of `docker run`.
    let run = ["run", "--rm", "--network", "none"];
    let default = docker(&[&run[..], &[DEFAULT_IMAGE, "sh", "-c", "ulimit -Hn"]].concat()).await;
    let default = default.parse().unwrap_or(u32::MAX);
    let raises = async |most: u32| {
        let limit = format!("nofile=1024:{most}");
        let started = Command::new("docker")
            .args(run)
            .args(["--ulimit", &limit, DEFAULT_IMAGE, "true"])
            .output();
        started.await.unwrap().status.success()
    };
    let has = async |limit: u32| raises(limit + 4096).await || default >= limit;
    assert_eq!(fewer.is_none(), has(4096).await, "the default is {default}, reported {fewer:?}");
    for limit in [500, 5000, 500_000] {
        let builder = Sandbox::builder(Arc::new(DockerBackend::default())).open_files(limit);
        if has(limit).await {
            let sandbox = builder.create().await.unwrap();
            let found = sandbox.run_code(limits).await.unwrap();
            assert_eq!(found.text(), Some(&*format!("({limit}, {limit})")));
            sandbox.terminate().await.unwrap();
        } else {
            let error = builder.create().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(error.message().contains(&default.to_string()), "{error:?}");
        }
    }
}

/// Ends a container from outside during a run, and checks that the run fails at once with that reason.
async fn check_reported_end(end: impl AsyncFnOnce(&str), why: &str) {
    assert!(has_engine(), "there is no engine to test with");
    let sandbox = create().await;
    let name = container(&sandbox);
    let code = "print('so far', flush=True)\nimport time; time.sleep(300)";
    let run = async {
        let result = sandbox.run_code(code).timeout(TEST_TIMEOUT * 10).await;
        (result.expect("a result with the output so far"), Instant::now())
    };
    let end = async {
        sleep(Duration::from_secs(1)).await;
        end(&name).await;
        Instant::now()
    };
    let ((result, ended), removed) = tokio::join!(run, end);
    let late = ended.saturating_duration_since(removed);
    assert!(late < Duration::from_secs(3), "it took {late:?}");
    assert_eq!(result.stdout_trimmed(), "so far");
    let failure = result.failure.expect("a failure");
    assert_eq!(failure.kind, FailureKind::Terminated, "{failure:?}");
    assert!(failure.message.contains(why), "{failure:?}");
    let next = sandbox.run_code("1").await.expect_err("it has ended");
    assert_eq!(next.kind(), ErrorKind::Terminated, "{next:?}");
    assert!(next.message().contains(why), "{next:?}");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_removal_from_outside_is_reported() {
    let remove = async |name: &str| drop(docker(&["rm", "--force", name]).await);
    check_reported_end(remove, "ended through the engine").await;
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn the_death_of_the_init_process_is_reported() {
    let kill = async |name: &str| {
        let seen = docker(&["inspect", "--format", "{{.State.Pid}} {{.Id}}", name]).await;
        let (pid, id) = seen.split_once(' ').expect("both");
        // A remote engine has other processes with such numbers.
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        assert!(groups.contains(id), "the engine is not of this host");
        let pid = Pid::from_raw(pid.parse().expect("a number")).expect("a process");
        kill_process(pid, Signal::KILL).expect("it is alive, and this is root");
    };
    check_reported_end(kill, "ended with status 137").await;
}

/// Usually takes a tenth of a second. After two seconds the engine is asked to end the container.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_container_ends_with_its_connection_and_is_removed() {
    const END_LIMIT: Duration = Duration::from_secs(2);
    assert!(has_engine(), "there is no engine to test with");
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let sandbox = create().await;
        let name = container(&sandbox);
        let started = Instant::now();
        sandbox.terminate().await.unwrap();
        assert!(is_gone(&name).await, "{name} stays");
        shortest = shortest.min(started.elapsed());
    }
    // A busy machine may be slower once or twice.
    assert!(shortest < END_LIMIT, "the quickest took {shortest:?}");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn many_sandboxes_at_once_all_answer_and_all_end() {
    const MANY: usize = 50;
    const END_LIMIT: Duration = Duration::from_secs(180);
    assert!(has_engine(), "there is no engine to test with");
    let backend = Arc::new(DockerBackend::default());
    let all = (0..MANY).map(|number| {
        let backend = Arc::<DockerBackend>::clone(&backend);
        tokio::spawn(async move {
            let builder = Sandbox::builder(backend).memory(ByteSize::mib(128));
            let sandbox = builder.create().await.unwrap();
            let result = sandbox.run_code(format!("{number} * 2")).await.unwrap();
            assert_eq!(result.text(), Some((number * 2).to_string().as_str()));
            sandbox
        })
    });
    let all = timeout(END_LIMIT, futures_util::future::join_all(all)).await.expect("they answer");
    let mut names = Vec::new();
    for sandbox in all {
        let sandbox = sandbox.unwrap();
        names.push(container(&sandbox));
        sandbox.terminate().await.unwrap();
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), MANY);
    for name in names {
        assert!(is_gone(&name).await, "{name} stays");
    }
}
