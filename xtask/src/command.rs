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

/// Runs a command, passes its output on, and gives each line of standard output to `hear`; whether it succeeded.
pub(crate) fn heard(command: &mut Command, mut hear: impl FnMut(&str)) -> bool {
    println!("$ {}", line_of(command));
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("error: {}: {error}", command.get_program().display());
            return false;
        }
    };
    if let Some(stdout) = child.stdout.take() {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&line).into_owned();
            print!("{text}");
            hear(text.trim_end());
            line.clear();
        }
    }
    child.wait().is_ok_and(|status| status.success())
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
