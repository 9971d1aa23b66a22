//! Helpers of the tests.

use std::fs;
use std::io::{BufRead as _, BufReader, PipeReader, Read as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sandbox_isolation::{Cell, CellLauncher, CellProcess, CellSpec, Exit, SpawnSpec};

/// An interpreter every cell can see.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// Makes a default strict cell with a launcher of its own.
pub(crate) async fn strict_cell() -> Cell {
    cell(&CellSpec::strict()).await
}

/// Makes a cell with a launcher of its own.
pub(crate) async fn cell(spec: &CellSpec) -> Cell {
    let launcher = CellLauncher::start().await.expect("a launcher");
    launcher.cell(spec).await.expect("a cell")
}

/// Returns a program with a plain environment.
pub(crate) fn program<const N: usize>(argv: [&str; N]) -> SpawnSpec {
    SpawnSpec::new(argv).env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", "/home/sandbox")
}

/// Returns a shell script as a program.
pub(crate) fn shell(script: &str) -> SpawnSpec {
    program(["/bin/sh", "-c", script])
}

/// Returns a Python script as a program.
pub(crate) fn python(script: &str) -> SpawnSpec {
    program([PYTHON, "-I", "-S", "-c", script])
}

/// Starts a program whose output and errors go to one pipe.
pub(crate) async fn start(cell: &Cell, mut spec: SpawnSpec) -> (CellProcess, PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    spec.stderr = Some(writer.try_clone().unwrap().into());
    spec.stdout = Some(writer.into());
    (cell.spawn(spec).await.unwrap(), reader)
}

/// Starts a program and waits for its first line.
pub(crate) async fn start_until_line(cell: &Cell, spec: SpawnSpec) -> (CellProcess, String) {
    let (process, reader) = start(cell, spec).await;
    (process, first_line(reader).await)
}

/// Reads the first line of a pipe.
pub(crate) async fn first_line(reader: PipeReader) -> String {
    let line = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(reader).read_line(&mut line).unwrap();
        line
    });
    line.await.unwrap().trim().to_owned()
}

/// Runs a program to its end; returns its exit and all output.
pub(crate) async fn run(cell: &Cell, spec: SpawnSpec) -> (Exit, String) {
    let (process, mut reader) = start(cell, spec).await;
    let output = tokio::task::spawn_blocking(move || {
        let mut output = Vec::new();
        reader.read_to_end(&mut output).unwrap();
        String::from_utf8_lossy(&output).into_owned()
    });
    let exit = process.wait().await.unwrap();
    (exit, output.await.unwrap())
}

/// Returns the output of a program that must succeed.
pub(crate) async fn output(cell: &Cell, spec: SpawnSpec) -> String {
    let (exit, output) = run(cell, spec).await;
    assert_eq!(exit.status.code(), Some(0), "{output}");
    output
}

/// Returns a field of the host's `/proc/<pid>/status`.
pub(crate) fn status_field(pid: u32, label: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(label))?;
    Some(line[label.len()..].trim().to_owned())
}

/// Returns the host processes, without zombies, that have a word in their command line.
pub(crate) fn processes_with(word: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains(word) && is_alive(pid) {
            found.push(pid);
        }
    }
    found
}

/// Returns true when a host process is alive and not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    status_field(pid, "State:").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// Waits until a condition holds; panics after some seconds.
pub(crate) async fn eventually(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the directory on the host that a cell without a file system of its own has, and removes at the end.
pub(crate) fn private_directory(cell: &Cell) -> PathBuf {
    cell.work_dir().parent().unwrap().to_owned()
}

/// Returns an argument of `sleep` that no other test uses, to find processes by.
pub(crate) fn unique_sleep() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let serial = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}.{serial:04}", 10_000_000 + std::process::id())
}
