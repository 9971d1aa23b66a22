//! Running other programs, shown as they run.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

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
pub(crate) enum Voice {
    /// Line by line, as it comes.
    AtOnce,
    /// All of it when the program has ended, so that it does not mix with that of another one.
    AtTheEnd,
}

/// Runs a command, passes its output on, and gives each line of standard output to `hear`; whether it succeeded.
///
/// With [`Voice::AtTheEnd`] the lines of standard error are among them.
pub(crate) fn heard(command: &mut Command, voice: Voice, hear: impl FnMut(&str)) -> bool {
    match try_heard(command, voice, hear) {
        Ok(succeeded) => succeeded,
        Err(error) => {
            eprintln!("error: {}: {error}", command.get_program().display());
            false
        }
    }
}

fn try_heard(
    command: &mut Command,
    voice: Voice,
    mut hear: impl FnMut(&str),
) -> std::io::Result<bool> {
    let mut shown = format!("$ {}\n", line_of(command));
    let (reader, writer) = std::io::pipe()?;
    if voice == Voice::AtTheEnd {
        command.stderr(writer.try_clone()?);
    } else {
        print!("{}", std::mem::take(&mut shown));
    }
    let child = command.stdout(writer).spawn();
    // The command keeps its ends of the pipe, and there is no end of it before they are closed.
    command.stdout(Stdio::null()).stderr(Stdio::inherit());
    let mut child = child?;
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        hear(text.trim_end());
        if voice == Voice::AtOnce {
            print!("{text}");
        } else {
            shown.push_str(&text);
        }
        line.clear();
    }
    let status = child.wait()?;
    print!("{shown}");
    Ok(status.success())
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
fn line_of(command: &Command) -> String {
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

    fn lines_of(voice: Voice) -> Vec<String> {
        let mut lines = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three"]);
        assert!(heard(&mut command, voice, |line| lines.push(line.to_owned())));
        lines
    }

    #[test]
    fn both_streams_are_heard_when_they_are_shown_at_the_end() {
        assert_eq!(lines_of(Voice::AtTheEnd), ["one", "two", "three"]);
        assert_eq!(lines_of(Voice::AtOnce), ["one", "three"]);
    }

    #[test]
    fn a_program_that_is_not_there_is_no_success() {
        assert!(!heard(&mut Command::new("/nowhere/program"), Voice::AtOnce, |_| ()));
    }
}
