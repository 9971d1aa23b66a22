//! Files of a sandbox, small and large, and an interrupt while a large one is on its way.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use code_sandboxes::{ByteSize, IsolationMode, Sandbox};

use crate::row::{Bar, Row, Yardstick};
use crate::sample::{Measured, alone, bare, compare, since, text};
use crate::sandboxes;
use crate::setup::Setup;

/// Bytes of the large file.
pub(crate) const LARGE: usize = 1_000_000_000;

/// A transfer may take that many times what `cp` takes: at least 0.6 of its speed.
const MOST: f64 = 1.66;

/// Where a file system in memory is on every Linux host, as that of a cell is.
const MEMORY: &str = "/dev/shm";

pub(crate) async fn small() -> Row {
    Row::information("file write and read of 1 KiB (0.2 ms expected)", write_and_read().await)
}

async fn write_and_read() -> Measured {
    let sandbox = sandbox().await?;
    alone((200, 3), async || sandboxes::small_file(&sandbox).await).await
}

pub(crate) async fn large(setup: &Setup) -> Vec<Row> {
    let (samples, bar) = (setup.large_samples(), Bar::Ratio(MOST));
    let up = async { upload(&sandbox().await?, samples, ("cp", Folder::cp)).await };
    let down = async { download(&sandbox().await?, samples, ("cp", Folder::cp)).await };
    vec![
        Row::compared("upload of 1 GB beside cp", up.await, bar),
        Row::compared("download of 1 GB beside cp", down.await, bar),
    ]
}

/// A sandbox with room for the large file.
async fn sandbox() -> Measured<Sandbox> {
    let builder = Setup::builder(IsolationMode::Strict).disk(ByteSize::gib(3));
    builder.create().await.map_err(text)
}

/// A folder in memory. Removed when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    fn with_large_file() -> Measured<Self> {
        let folder = Self(PathBuf::from(MEMORY).join(format!("bench-{}", std::process::id())));
        fs::create_dir_all(&folder.0).map_err(text)?;
        let content: Vec<u8> = (0..LARGE).map(|i| (i % 251) as u8).collect();
        fs::write(folder.from(), content).map_err(text)?;
        Ok(folder)
    }

    pub(crate) fn from(&self) -> PathBuf {
        self.0.join("from")
    }

    /// A name that nothing has, as every copy is of a file that is not there.
    fn new_name(&self) -> PathBuf {
        let path = self.0.join("to");
        let _ = fs::remove_file(&path);
        path
    }

    fn cp(&self) -> Measured {
        let to = self.new_name();
        let took = bare(Command::new("cp").arg(self.from()).arg(&to));
        let _ = fs::remove_file(&to);
        took
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Beside something else that moves as many bytes.
pub(crate) async fn upload(
    sandbox: &Sandbox,
    samples: (usize, usize),
    (name, other): (&'static str, impl Fn(&Folder) -> Measured),
) -> Measured<(f64, Yardstick)> {
    let folder = Folder::with_large_file()?;
    let up = async || {
        let began = Instant::now();
        let done = sandbox.files().upload(folder.from(), "large").await.map_err(text)?;
        let took = since(began);
        sandbox.files().remove("large", false).await.map_err(text)?;
        if done.bytes == LARGE as u64 { Ok(took) } else { Err("not all of it".to_owned()) }
    };
    compare(samples, name, up, async || other(&folder)).await
}

/// Beside something else that moves as many bytes.
pub(crate) async fn download(
    sandbox: &Sandbox,
    samples: (usize, usize),
    (name, other): (&'static str, impl Fn(&Folder) -> Measured),
) -> Measured<(f64, Yardstick)> {
    let folder = Folder::with_large_file()?;
    sandbox.files().upload(folder.from(), "large").await.map_err(text)?;
    let down = async || {
        let to = folder.new_name();
        let began = Instant::now();
        let done = sandbox.files().download("large", &to).await.map_err(text)?;
        let took = since(began);
        fs::remove_file(&to).map_err(text)?;
        if done.bytes == LARGE as u64 { Ok(took) } else { Err("not all of it".to_owned()) }
    };
    let measured = compare(samples, name, down, async || other(&folder)).await;
    sandbox.files().remove("large", false).await.map_err(text)?;
    measured
}

pub(crate) async fn interrupt(setup: &Setup) -> Row {
    let name = "interrupt during a transfer of 1 GB, p99";
    let measured = async { interrupts(setup, &sandbox().await?).await };
    Row::plain(name, "ms", measured.await, Bar::Below(20.0))
}

/// From the interrupt to the end of the run, while the same sandbox gets a large file over and over.
pub(crate) async fn interrupts(setup: &Setup, sandbox: &Sandbox) -> Measured {
    let folder = Folder::with_large_file()?;
    sandbox.run_code("1").await.map_err(text)?;
    let stop = Arc::new(AtomicBool::new(false));
    let transfers = tokio::spawn({
        let (sandbox, stop, from) = (sandbox.clone(), Arc::clone(&stop), folder.from());
        async move {
            while !stop.load(Ordering::Relaxed) {
                sandbox.files().upload(&from, "large").await?;
                sandbox.files().remove("large", false).await?;
            }
            code_sandboxes::Result::<()>::Ok(())
        }
    });
    let mut took = Vec::new();
    let count = if setup.quick { 30 } else { 200 };
    for _ in 0..count {
        took.push(one_interrupt(sandbox).await?);
    }
    stop.store(true, Ordering::Relaxed);
    transfers.await.map_err(text)?.map_err(text)?;
    took.sort_by(f64::total_cmp);
    took.get((took.len() * 99).div_ceil(100) - 1).copied().ok_or_else(|| "no samples".to_owned())
}

async fn one_interrupt(sandbox: &Sandbox) -> Measured {
    let run = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.run_code("while True: pass").await }
    });
    while !sandbox.is_executing() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    let began = Instant::now();
    sandbox.interrupt().await.map_err(text)?;
    let result = run.await.map_err(text)?.map_err(text)?;
    let took = since(began);
    if result.interrupted { Ok(took) } else { Err(format!("it was not interrupted: {result:?}")) }
}
