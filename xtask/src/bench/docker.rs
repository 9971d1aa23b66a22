//! Containers of an engine, where the run of the table has one: `cargo xtask bench --containers`.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use code_sandboxes::pool::SandboxPool;
use code_sandboxes::{ByteSize, Registry, Sandbox, SandboxBuilder};
use futures_util::future::try_join_all;
use tokio::time::timeout;

use crate::files::{self, Folder};
use crate::interleaved::InterleavedBaseline;
use crate::row::{Bar, Row, Yardstick};
use crate::sample::{Measured, alone, apart, bare, compare, fed, median, settle, since, text};
use crate::sandboxes;
use crate::setup::Setup;

/// As much as our containers are kept in, as far as a command line can say it.
const HARDENED: [&str; 16] = [
    "run",
    "--rm",
    "--network=none",
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--pids-limit=256",
    "--memory=2g",
    "--memory-swap=2g",
    "--user=65532:65532",
    "--log-driver=none",
    "--tmpfs=/workspace",
    "--tmpfs=/home/sandbox",
    "--tmpfs=/data",
    "--tmpfs=/tmp",
    "--tmpfs=/var/tmp",
];

type Compared = (f64, Yardstick);

/// How many are alive at once.
const MANY: usize = 50;
/// How long what ends or is made off the clock may take.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(2);

/// None where there is no engine.
pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    let Some(image) = setup.image.as_deref() else { return Vec::new() };
    let below = |name: &str, value, most| Row::plain(name, "ms", value, Bar::Below(most));
    let (returning, gone) = apart(end(setup).await);
    let (up, down) = apart(large(setup, image).await);
    let speed = |moved: &Measured<Compared>| {
        moved.as_ref().map(|(took, _)| files::LARGE as f64 / 1e3 / took).map_err(Clone::clone)
    };
    let (speed_up, speed_down) = (speed(&up), speed(&down));
    let interrupted = async { files::interrupts(setup, &roomy().await?).await }.await;
    vec![
        Row::compared(
            "container: create to first result",
            create(setup, image).await,
            Bar::Ratio(1.0),
        ),
        below("container: from a pool to first result", pooled(setup).await, 10.0),
        Row::compared(
            "container: kernel, create to first result",
            create_kernel(setup, image).await,
            Bar::Ratio(1.0),
        ),
        Row::compared(
            "container: kernel, warm run_code",
            warm_kernel(setup, image).await,
            Bar::Ratio(1.3),
        ),
        Row::compared("container: command `true`", command(setup, image).await, Bar::Ratio(0.06)),
        below("container: warm run_code", warm(setup).await, 1.0),
        below("container: file write and read of 1 KiB", small(setup).await, 2.0),
        Row::plain("container: upload of 1 GB", "MB/s", speed_up, Bar::Least(300.0)),
        Row::compared("container: upload of 1 GB beside a stream", up, Bar::Ratio(1.0)),
        Row::plain("container: download of 1 GB", "MB/s", speed_down, Bar::Least(300.0)),
        Row::compared("container: download of 1 GB beside a stream", down, Bar::Ratio(1.0)),
        below("container: interrupt during a transfer of 1 GB, p99", interrupted, 20.0),
        below("container: terminate, until it returns", returning, 10.0),
        below("container: terminate, until the engine has none", gone, 300.0),
        Row::information(
            format!("container: {MANY} at once, until each has a result"),
            many().await,
        ),
    ]
}

fn builder() -> SandboxBuilder<Registry> {
    Sandbox::builder().variant("local-docker")
}

fn with_kernel() -> SandboxBuilder<Registry> {
    builder().provider_option("engine", "jupyter")
}

async fn create(setup: &Setup, image: &str) -> Measured<Compared> {
    let ours = async || created(builder()).await;
    let bare = async || docker_run(image);
    compare(setup.slow_samples(), "docker run python3 -c pass", ours, bare).await
}

/// Beside a container that does nothing, and 1.1 times what its kernel needs for a first result without us.
async fn create_kernel(setup: &Setup, image: &str) -> Measured<Compared> {
    let other = Other::start(image)?;
    let mut kernel = other.turns("start")?;
    let ours = async || created(with_kernel()).await;
    let bare = async || Ok(docker_run(image)? + 1.1 * kernel.sample()?);
    compare(setup.slow_samples(), "docker run, and 1.1 times its ipykernel", ours, bare).await
}

/// Creates one, and waits off the clock until it is gone: the command line removes its own before it ends, too.
async fn created(builder: SandboxBuilder<Registry>) -> Measured {
    let (took, sandbox) = sandboxes::create(builder, "1+1", "2").await?;
    let container = Container::of_sandbox(&sandbox)?;
    sandbox.terminate().await.map_err(text)?;
    container.wait_for_end().await?;
    Ok(took)
}

fn docker_run(image: &str) -> Measured {
    let mut docker = Command::new("docker");
    bare(docker.args(HARDENED).args([image, "python3", "-c", "pass"]))
}

async fn pooled(setup: &Setup) -> Measured {
    let pool = SandboxPool::start(1, builder).await.map_err(text)?;
    let one = async || {
        // The next one is made off the clock.
        let ready = async {
            while pool.status().available == 0 {
                tokio::time::sleep(LOOK).await;
            }
        };
        timeout(WAIT_TIMEOUT, ready).await.map_err(|_| "the pool stays empty".to_owned())?;
        sandboxes::pooled(&pool).await
    };
    let took = alone(setup.slow_samples(), one).await;
    pool.close().await.map_err(text)?;
    took
}

async fn command(setup: &Setup, image: &str) -> Measured<Compared> {
    let sandbox = builder().create().await.map_err(text)?;
    let other = Other::start(image)?;
    let ours = async || sandboxes::command(&sandbox).await;
    let exec = async || {
        let took = bare(Command::new("docker").args(["exec", &other.id, "/bin/true"]));
        settle().await;
        took
    };
    let (samples, rounds) = setup.samples();
    compare((samples / 4, rounds), "docker exec", ours, exec).await
}

async fn warm(setup: &Setup) -> Measured {
    let sandbox = sandboxes::warm(builder()).await?;
    alone(setup.samples(), async || sandboxes::run(&sandbox).await).await
}

/// Beside sockets that block, in the container of such a kernel.
async fn warm_kernel(setup: &Setup, image: &str) -> Measured<Compared> {
    let other = Other::start(image)?;
    let mut kernel = other.turns("own")?;
    let sandbox = sandboxes::warm(with_kernel()).await?;
    let ours = async || sandboxes::run(&sandbox).await;
    compare(setup.samples(), "the kernel's own reply", ours, async || kernel.sample()).await
}

async fn small(setup: &Setup) -> Measured {
    let sandbox = builder().create().await.map_err(text)?;
    alone(setup.samples(), async || sandboxes::small_file(&sandbox).await).await
}

/// Room for the large file. A container's files are memory.
async fn roomy() -> Measured<Sandbox> {
    let builder = builder().memory(ByteSize::gib(2)).disk(ByteSize::mib(1536));
    builder.create().await.map_err(text)
}

/// Into a container and out of it, beside as many bytes over the standard streams of one.
async fn large(setup: &Setup, image: &str) -> Measured<(Compared, Compared)> {
    let (sandbox, samples) = (roomy().await?, setup.large_samples());
    let streams = |input: Stdio, program: &str| {
        let mut docker = Command::new("docker");
        fed(input, docker.args(HARDENED).args(["--interactive", image, "sh", "-c", program]))
    };
    let into = |folder: &Folder| {
        let file = File::open(folder.from()).map_err(text)?;
        streams(file.into(), "cat > /dev/null")
    };
    let from = |_: &Folder| streams(Stdio::null(), "head -c 1000000000 /dev/zero");
    let up = files::upload(&sandbox, samples, ("docker run cat", into)).await?;
    let down = files::download(&sandbox, samples, ("docker run head", from)).await?;
    Ok((up, down))
}

/// Until `terminate` returns, and until the engine has no such container any more.
async fn end(setup: &Setup) -> Measured<(f64, f64)> {
    let (mut returning, mut gone) = (Vec::new(), Vec::new());
    for _ in 0..if setup.quick { 3 } else { 15 } {
        let (_, sandbox) = sandboxes::create(builder(), "1+1", "2").await?;
        let container = Container::of_sandbox(&sandbox)?;
        let began = Instant::now();
        sandbox.terminate().await.map_err(text)?;
        returning.push(since(began));
        container.wait_for_end().await?;
        gone.push(since(began));
    }
    Ok((median(&mut returning), median(&mut gone)))
}

/// The container of one of our sandboxes, seen from outside.
struct Container {
    filter: String,
}

impl Container {
    fn of_sandbox(sandbox: &Sandbox) -> Measured<Self> {
        let info = sandbox.info();
        let name = info.metadata["container"].as_str().ok_or("the container has no name")?;
        let container = Self { filter: format!("name=^/{name}$") };
        if container.is_there()? { Ok(container) } else { Err("it is not there".to_owned()) }
    }

    fn is_there(&self) -> Measured<bool> {
        let mut docker = Command::new("docker");
        let listed = docker.args(["ps", "--all", "--quiet", "--filter", &self.filter]);
        let output = listed.output().map_err(text)?;
        Ok(!output.stdout.is_empty())
    }

    async fn wait_for_end(&self) -> Measured<()> {
        let begun = Instant::now();
        while self.is_there()? {
            if begun.elapsed() > WAIT_TIMEOUT {
                return Err("the container does not go".to_owned());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

async fn many() -> Measured {
    let began = Instant::now();
    let all = (0..MANY).map(async |_| {
        let sandbox = builder().memory(ByteSize::mib(256)).create().await;
        let sandbox = sandbox.map_err(text)?;
        sandboxes::run(&sandbox).await?;
        Measured::Ok(sandbox)
    });
    let all = try_join_all(all).await?;
    let took = since(began);
    for sandbox in all {
        sandbox.terminate().await.map_err(text)?;
    }
    Ok(took)
}

/// A container that waits. It ends with this.
struct Other {
    id: String,
}

impl Other {
    fn start(image: &str) -> Measured<Self> {
        let mut docker = Command::new("docker");
        docker.args(HARDENED).args(["--detach", image, "sleep", "3600"]);
        let output = docker.stdin(Stdio::null()).output().map_err(text)?;
        if output.status.success() {
            return Ok(Self { id: String::from_utf8_lossy(&output.stdout).trim().to_owned() });
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// A yardstick in it.
    fn turns(&self, what: &str) -> Measured<InterleavedBaseline> {
        let mut docker = Command::new("docker");
        docker.args(["exec", "--interactive", &self.id, "python3"]);
        InterleavedBaseline::with(docker, &[what])
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let mut docker = Command::new("docker");
        let _ = docker.args(["rm", "--force", &self.id]).stdout(Stdio::null()).status();
    }
}
