//! Running other programs, shown as they run.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, PipeReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long output may still come from a program that was ended: what it has started may hold the other end of the pipe.
const AFTER_THE_END: Duration = Duration::from_secs(5);

/// Runs a command with the terminal of this one; whether it succeeded.
pub(crate) fn shown(command: &mut Command) -> bool {
    println!("$ {}", line_of(command));
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("error: {}: {error}", command.get_program().display());
            false
        }
    }
}

/// When the output of a program is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputMode {
    /// Line by line, as it comes.
    AtOnce,
    /// All of it when the program has ended, so that it does not mix with that of another one.
    AtTheEnd,
}

/// How a program that was listened to ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Succeeded,
    Failed,
    /// It was ended, with all that it had started, because it took longer than it may.
    TookTooLong,
}

/// Runs a command for no longer than `bound`, passes its output on, and gives each line of standard output to `hear`.
///
/// With [`OutputMode::AtTheEnd`] the lines of standard error are among them.
pub(crate) fn heard(
    command: &mut Command,
    voice: OutputMode,
    bound: Duration,
    hear: impl FnMut(&str),
) -> Ending {
    match try_heard(command, voice, bound, hear) {
        Ok(ending) => ending,
        Err(error) => {
            eprintln!("error: {}: {error}", command.get_program().display());
            Ending::Failed
        }
    }
}

fn try_heard(
    command: &mut Command,
    voice: OutputMode,
    bound: Duration,
    mut hear: impl FnMut(&str),
) -> std::io::Result<Ending> {
    let mut shown = format!("$ {}\n", line_of(command));
    let (reader, writer) = std::io::pipe()?;
    if voice == OutputMode::AtTheEnd {
        command.stderr(writer.try_clone()?);
    } else {
        print!("{}", std::mem::take(&mut shown));
    }
    let child = command.stdout(writer).spawn();
    // The command keeps its ends of the pipe, and there is no end of it before they are closed.
    command.stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut child = child?;
    let lines = lines_of(reader);
    let mut until = Instant::now() + bound;
    let mut took_too_long = false;
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let text = String::from_utf8_lossy(&line);
                hear(text.trim_end());
                match voice {
                    OutputMode::AtOnce => print!("{text}"),
                    OutputMode::AtTheEnd => shown.push_str(&text),
                }
            }
            Err(RecvTimeoutError::Timeout) if !took_too_long => {
                took_too_long = true;
                until = Instant::now() + AFTER_THE_END;
                end(&mut child);
            }
            Err(_) => break,
        }
    }
    let status = child.wait()?;
    print!("{shown}");
    Ok(match status.success() {
        _ if took_too_long => Ending::TookTooLong,
        true => Ending::Succeeded,
        false => Ending::Failed,
    })
}

/// The lines that come out of a pipe, as they come.
fn lines_of(reader: PipeReader) -> Receiver<Vec<u8>> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        loop {
            let mut line = Vec::new();
            match reader.read_until(b'\n', &mut line) {
                Ok(1..) if sender.send(line).is_ok() => (),
                _ => break,
            }
        }
    });
    lines
}

/// Kills a program and what it has started, parents first, so that nothing is started anew.
fn end(child: &mut Child) {
    let family = descendants(child.id());
    let _ = child.kill();
    let pids = family.iter().map(u32::to_string);
    quietly(Command::new("kill").arg("-KILL").args(pids));
}

/// The processes below one, from the top.
fn descendants(of: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name of the program comes before, in parentheses, and may have any character.
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        if let Some(parent) = parent.and_then(|parent| parent.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![of];
    while let Some(pid) = next.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        found.extend(&below);
        next.extend(below);
    }
    found
}

/// Runs a command without showing it; its standard output when it succeeded.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let line = line_of(command);
    let output = command.output().map_err(|error| format!("{line}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a command succeeds, seen from its exit status alone.
pub(crate) fn quietly(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Whether a program is on `PATH`.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| is_program(&folder.join(program)))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The command as one would type it, long ones cut.
pub(crate) fn line_of(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn lines_with(voice: OutputMode) -> Vec<String> {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three"]);
        let ending = heard(&mut command, voice, LONG, |line| lines.push(line.to_owned()));
        assert_eq!(ending, Ending::Succeeded);
        lines
    }

    #[test]
    fn both_streams_are_heard_when_they_are_shown_at_the_end() {
        assert_eq!(lines_with(OutputMode::AtTheEnd), ["one", "two", "three"]);
        assert_eq!(lines_with(OutputMode::AtOnce), ["one", "three"]);
    }

    #[test]
    fn a_program_that_is_not_there_is_no_success() {
        let mut command = Command::new("/nowhere/program");
        assert_eq!(heard(&mut command, OutputMode::AtOnce, LONG, |_| ()), Ending::Failed);
    }

    /// Also what it has started, which would hold the pipe open.
    #[test]
    fn a_program_that_hangs_is_ended_with_what_it_has_started() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; sleep 600 & echo $!; sh -c 'sleep 601; :'"]);
        let mut lines = Vec::new();
        let began = Instant::now();
        let bound = Duration::from_secs(1);
        let ending =
            heard(&mut command, OutputMode::AtTheEnd, bound, |line| lines.push(line.to_owned()));
        assert_eq!(ending, Ending::TookTooLong);
        assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
        assert_eq!(lines.len(), 2, "{lines:?}");
        let sleeper = fs::read_to_string(format!("/proc/{}/stat", lines[1])).unwrap_or_default();
        assert!(sleeper.is_empty() || sleeper.contains(") Z "), "{sleeper}");
    }
}
