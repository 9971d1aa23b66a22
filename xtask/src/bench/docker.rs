//! Containers of an engine, where the run of the table has one: `cargo xtask bench --containers`.

use std::process::{Command, Stdio};
use std::time::Instant;

use code_sandboxes::pool::SandboxPool;
use code_sandboxes::{Registry, Sandbox, SandboxBuilder};
use futures_util::future::try_join_all;

use crate::row::{Bar, Row, Yardstick};
use crate::sample::{Measured, alone, bare, compare, settle, since, text};
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

/// How many are alive at once.
const MANY: usize = 50;

/// None where there is no engine.
pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    let Some(image) = setup.image.as_deref() else { return Vec::new() };
    let below = |name: &str, value, most| Row::plain(name, "ms", value, Bar::Below(most));
    let (returning, gone) = match end(setup).await {
        Ok((returning, gone)) => (Ok(returning), Ok(gone)),
        Err(why) => (Err(why.clone()), Err(why)),
    };
    vec![
        Row::compared(
            "container: create to first result",
            create(setup, image).await,
            Bar::Ratio(1.0),
        ),
        below("container: from a pool to first result", pooled(setup).await, 10.0),
        Row::compared("container: command `true`", command(setup, image).await, Bar::Ratio(0.06)),
        below("container: warm run_code", warm(setup).await, 1.0),
        below("container: file write and read of 1 KiB", files(setup).await, 2.0),
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

async fn once(sandbox: &Sandbox) -> Measured {
    let began = Instant::now();
    let result = sandbox.run_code("1+1").await.map_err(text)?;
    let took = since(began);
    if result.text() == Some("2") { Ok(took) } else { Err(format!("{result:?}")) }
}

async fn create(setup: &Setup, image: &str) -> Measured<(f64, Yardstick)> {
    let ours = async || {
        let began = Instant::now();
        let sandbox = builder().create().await.map_err(text)?;
        once(&sandbox).await?;
        let took = since(began);
        sandbox.terminate().await.map_err(text)?;
        drop(sandbox);
        settle().await;
        Ok(took)
    };
    let bare = async || {
        let mut docker = Command::new("docker");
        let took = bare(docker.args(HARDENED).args([image, "python3", "-c", "pass"]));
        settle().await;
        took
    };
    compare(setup.slow_samples(), "docker run python3 -c pass", ours, bare).await
}

async fn pooled(setup: &Setup) -> Measured {
    let pool = SandboxPool::start(1, builder).await.map_err(text)?;
    let (samples, rounds) = setup.slow_samples();
    alone((samples, rounds), async || {
        // The next one is made meanwhile.
        tokio::time::sleep(std::time::Duration::from_millis(600)).await;
        let began = Instant::now();
        let sandbox = pool.acquire().await.map_err(text)?;
        once(&sandbox).await?;
        let took = since(began);
        pool.release(sandbox).await.map_err(text)?;
        Ok(took)
    })
    .await
}

async fn command(setup: &Setup, image: &str) -> Measured<(f64, Yardstick)> {
    let sandbox = builder().create().await.map_err(text)?;
    let other = Other::start(image)?;
    let ours = async || {
        let began = Instant::now();
        let result = sandbox.commands().run(["/bin/true"]).await.map_err(text)?;
        let took = since(began);
        if result.success() { Ok(took) } else { Err(format!("{result:?}")) }
    };
    let exec = async || bare(Command::new("docker").args(["exec", &other.id, "/bin/true"]));
    let (samples, rounds) = setup.samples();
    compare((samples / 4, rounds), "docker exec", ours, exec).await
}

async fn warm(setup: &Setup) -> Measured {
    let sandbox = builder().create().await.map_err(text)?;
    alone(setup.samples(), async || once(&sandbox).await).await
}

async fn files(setup: &Setup) -> Measured {
    let sandbox = builder().create().await.map_err(text)?;
    let content = [b'x'; 1024];
    alone(setup.samples(), async || {
        let began = Instant::now();
        sandbox.files().write("small", content.to_vec()).await.map_err(text)?;
        let read = sandbox.files().read("small").await.map_err(text)?;
        let took = since(began);
        if *read == content { Ok(took) } else { Err("another content".to_owned()) }
    })
    .await
}

/// Until `terminate` returns, and until the engine has none of ours any more.
async fn end(setup: &Setup) -> Measured<(f64, f64)> {
    let mut gone = f64::INFINITY;
    let returning = alone((if setup.quick { 3 } else { 15 }, 1), async || {
        let sandbox = builder().create().await.map_err(text)?;
        once(&sandbox).await?;
        let began = Instant::now();
        sandbox.terminate().await.map_err(text)?;
        let took = since(began);
        while is_any_left()? {}
        gone = gone.min(since(began));
        Ok(took)
    });
    let returning = returning.await?;
    Ok((returning, gone))
}

fn is_any_left() -> Measured<bool> {
    let mut docker = Command::new("docker");
    let listed = docker.args(["ps", "--all", "--quiet", "--filter", "label=code-sandboxes.owner"]);
    let output = listed.output().map_err(text)?;
    Ok(!output.stdout.is_empty())
}

async fn many() -> Measured {
    let began = Instant::now();
    let all = (0..MANY).map(async |_| {
        let sandbox = builder().memory(code_sandboxes::ByteSize::mib(256)).create().await;
        let sandbox = sandbox.map_err(text)?;
        once(&sandbox).await?;
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
}

impl Drop for Other {
    fn drop(&mut self) {
        let mut docker = Command::new("docker");
        let _ = docker.args(["rm", "--force", &self.id]).stdout(Stdio::null()).status();
    }
}
