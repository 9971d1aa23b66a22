//! Measures how long it takes to make cells and to run programs in them.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement for people")]

use std::process::Command;
use std::time::{Duration, Instant};

use sandbox_isolation::{CellLauncher, CellSpec, SpawnSpec};

const SAMPLES: usize = 200;

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort();
    samples[samples.len() / 2]
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let started = Instant::now();
    let launcher = CellLauncher::start().await.unwrap();
    println!("launcher start           {:?} ({:?})", started.elapsed(), launcher.privilege());

    let mut create = Vec::new();
    let mut close = Vec::new();
    for _ in 0..SAMPLES {
        let started = Instant::now();
        let cell = launcher.cell(&CellSpec::strict()).await.unwrap();
        create.push(started.elapsed());
        let started = Instant::now();
        cell.kill();
        cell.closed().await;
        close.push(started.elapsed());
    }
    println!("cell, strict          {:?}", median(create));
    println!("kill until gone       {:?}", median(close));

    let started = Instant::now();
    let mut cells = Vec::new();
    for _ in 0..SAMPLES {
        cells.push(launcher.cell(&CellSpec::strict()).await.unwrap());
    }
    println!("cells back to back    {:?} each", started.elapsed() / SAMPLES as u32);
    let started = Instant::now();
    for cell in &cells {
        cell.kill();
    }
    for cell in &cells {
        cell.closed().await;
    }
    println!("kill {SAMPLES} cells        {:?}", started.elapsed());
    drop(cells);

    let mut off = Vec::new();
    for _ in 0..SAMPLES {
        let started = Instant::now();
        let cell = launcher.cell(&CellSpec::off()).await.unwrap();
        off.push(started.elapsed());
        cell.kill();
        cell.closed().await;
    }
    println!("cell, off             {:?}", median(off));

    let strict = launcher.cell(&CellSpec::strict()).await.unwrap();
    let open = launcher.cell(&CellSpec::off()).await.unwrap();
    let (mut inside, mut outside, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        for (cell, samples) in [(&strict, &mut inside), (&open, &mut outside)] {
            let started = Instant::now();
            let process = cell.spawn(SpawnSpec::new(["/bin/true"])).await.unwrap();
            process.wait().await.unwrap();
            samples.push(started.elapsed());
        }
        let started = Instant::now();
        Command::new("/bin/true").env_clear().status().unwrap();
        plain.push(started.elapsed());
    }
    println!("true in strict cell   {:?}", median(inside));
    println!("true without          {:?}", median(outside));
    println!("true by posix_spawn   {:?}", median(plain));
}
