//! Reads the state of a process from the host's `/proc`.

use std::fs;

/// The state of a process. Times are in ticks of 10 ms, which are the same on every architecture.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcStat {
    pub(super) pid: u32,
    pub(super) parent: u32,
    /// The start time, since the host was booted.
    pub(super) start: u64,
    pub(super) times: Times,
    /// Set when the process is dead, though not yet reaped. A process with a live thread is not dead.
    pub(super) dead: bool,
}

/// Processor times of a process, in ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) own: u64,
    /// Time of children that it has reaped, with that of their children.
    pub(super) waited: u64,
}

impl ProcStat {
    /// Reads the state. `None`: there is no such process.
    pub(super) fn read(pid: u32) -> Option<Self> {
        Self::parse(pid, &read(pid, "stat")?)
    }

    fn parse(pid: u32, stat: &str) -> Option<Self> {
        // The name, in parentheses, may itself contain anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let times = Times { own: number(11)? + number(12)?, waited: number(13)? + number(14)? };
        let dead = match *fields.first()? {
            // Its first thread has ended, and others may live.
            "Z" => number(17)? <= 1,
            state => matches!(state, "X" | "x"),
        };
        Some(Self { pid, parent: number(1)?.try_into().ok()?, start: number(19)?, times, dead })
    }
}

/// Returns the ids of all processes.
pub(super) fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns a field of the `status` of a process.
pub(super) fn status(pid: u32, field: &str) -> Option<String> {
    let status = read(pid, "status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.map(|value| value.trim().to_owned())
}

/// Returns the memory of a process that is its own or shared with others, in bytes, without files. An exact figure has its
/// share of shared memory. A process that forbids to be measured counts by the other figure.
pub(super) fn memory_of(pid: u32, exact: bool) -> u64 {
    let rollup = exact.then(|| read(pid, "smaps_rollup")).flatten();
    let sum = |text: &str, fields: &[&str]| fields.iter().map(|name| kib(text, name)).sum::<u64>();
    match rollup {
        Some(text) => sum(&text, &["Pss_Anon:", "Pss_Shmem:", "SwapPss:"]),
        None => {
            let text = read(pid, "status").unwrap_or_default();
            sum(&text, &["RssAnon:", "RssShmem:", "VmSwap:"])
        }
    }
}

/// Returns a field in KiB as bytes. Without the field, zero.
fn kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or_default().saturating_mul(1024)
}

/// Reads a file as text. The name of a process may have any bytes, and both files contain it.
fn read(pid: u32, file: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    const REST: &str = "7 1 1 0 -1 4194560 0 0 0 0 30 12 5 1 20 0";

    #[test]
    fn names_and_first_threads_hide_nothing() {
        for (stat, dead) in [
            (format!("9 (a) R 1 ) S {REST} 1 0 900 0"), false),
            (format!("9 (a) Z {REST} 1 0 900 0"), true),
            (format!("9 (a) Z {REST} 2 0 900 0"), false),
            (format!("9 (a) X {REST} 0 0 900 0"), true),
        ] {
            let seen = ProcStat::parse(9, &stat).unwrap();
            assert_eq!((seen.parent, seen.start, seen.dead), (7, 900, dead), "{stat}");
            assert_eq!((seen.times.own, seen.times.waited), (42, 6), "{stat}");
        }
    }

    #[test]
    fn memory_is_measured_in_both_ways() {
        let before = [true, false].map(|exact| memory_of(std::process::id(), exact));
        let held = vec![1_u8; 64 << 20];
        for (exact, before) in [true, false].into_iter().zip(before) {
            let grown = memory_of(std::process::id(), exact).saturating_sub(before);
            assert!((60 << 20..90 << 20).contains(&grown), "exact {exact}: {grown}");
        }
        assert_eq!(std::hint::black_box(held).len(), 64 << 20);
    }

    #[test]
    fn a_name_of_any_bytes_hides_nothing() {
        let script = r#"printf "\377" > /proc/$$/comm; echo; read line"#;
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let name = fs::read(format!("/proc/{}/comm", shell.id())).unwrap();
        assert_eq!(name, b"\xff\n", "control");
        assert_eq!(ProcStat::read(shell.id()).unwrap().parent, std::process::id());
        assert!(status(shell.id(), "VmHWM").is_some_and(|memory| memory.ends_with("kB")));
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
