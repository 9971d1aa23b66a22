//! Start of a command as its shell reports it, and what keeps a command from starting.

use sandbox_core::{Error, ErrorKind, Result};
use sandbox_engine::host::Spawn;

use super::exit::ProcessIdentity;

/// The kernel's limits of one argument, and of all arguments with the environment.
const MAX_ARGUMENT: usize = (128 << 10) - 1;
const MAX_ARGUMENTS: usize = (2 << 20) - (128 << 10);

/// Longest part of a program's name, and of what a shell has said, in an error.
const MAX_SHOWN_NAME: usize = 100;
const MAX_SHOWN_TEXT: usize = 500;

/// Refuses arguments that the kernel would refuse: hosts do not report that reason.
///
/// # Errors
/// `InvalidArgument` for arguments, or an environment, that are too long.
pub fn check_arguments(spec: &Spawn) -> Result<()> {
    let variables = spec.env.iter().map(|(name, value)| name.len() + 1 + value.len());
    let sizes: Vec<usize> = spec.argv.iter().map(String::len).chain(variables).collect();
    let all: usize = sizes.iter().map(|size| size + 9).sum();
    if sizes.iter().all(|size| *size <= MAX_ARGUMENT) && all <= MAX_ARGUMENTS {
        return Ok(());
    }
    let program: String = program(spec).chars().take(MAX_SHOWN_NAME).collect();
    let message = format!("{program}: the arguments and the environment are too long");
    Err(Error::new(ErrorKind::InvalidArgument, "start_command", message))
}

/// Parses the report of a shell that has started the command, or could not.
///
/// # Errors
/// `NotFound` for a program or a working directory that is missing; `PermissionDenied` for a program that is not executable.
pub fn parse_start(spec: &Spawn, line: &str) -> Result<ProcessIdentity> {
    let mut words = line.split(' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some("started"), Some(pid), Some(since), leader) => {
            let number = |text: &str| text.parse().unwrap_or_default();
            let leader = leader.map_or(0, number);
            Ok(ProcessIdentity { pid: number(pid), since: since.to_owned(), leader })
        }
        (_, why, what, _) => Err(refusal(spec, why, what)),
    }
}

/// Makes the error for a command whose shell has ended, or has not answered, with what the shell has said.
pub fn not_started(why: &str) -> Error {
    let why: String = why.trim().chars().take(MAX_SHOWN_TEXT).collect();
    let message = format!("no process could start: {why}");
    Error::new(ErrorKind::ResourceExhausted, "start_command", message)
}

fn program(spec: &Spawn) -> &str {
    spec.argv.first().map_or("", String::as_str)
}

fn refusal(spec: &Spawn, why: Option<&str>, what: Option<&str>) -> Error {
    let make = |kind, message: String| Error::new(kind, "start_command", message);
    match (why, what) {
        (Some("find"), Some("directory")) => {
            let message = format!("working directory {}: no such directory", spec.cwd);
            make(ErrorKind::NotFound, message).with_context("directory", spec.cwd.as_str())
        }
        (Some("find"), _) => {
            make(ErrorKind::NotFound, format!("{}: command not found", program(spec)))
        }
        _ => make(ErrorKind::PermissionDenied, format!("{}: not executable", program(spec))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(argv: &[&str]) -> Spawn {
        Spawn {
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
            env: std::collections::BTreeMap::new(),
            cwd: "/nowhere".to_owned(),
            stdin: false,
            terminal: None,
            label: None,
            as_root: false,
            limit: None,
        }
    }

    #[test]
    fn a_report_is_an_identity_or_the_reason() {
        let spec = spec(&["tool"]);
        let identity = parse_start(&spec, "started 7 1234 5").unwrap();
        assert_eq!((identity.pid, &*identity.since, identity.leader), (7, "1234", 5));
        for (line, kind, text) in [
            ("cannot find directory", ErrorKind::NotFound, "/nowhere: no such directory"),
            ("cannot find program", ErrorKind::NotFound, "tool: command not found"),
            ("cannot execute", ErrorKind::PermissionDenied, "tool: not executable"),
        ] {
            let error = parse_start(&spec, line).unwrap_err();
            assert_eq!(error.kind(), kind, "{line}");
            assert!(error.message().ends_with(text), "{line}: {error}");
        }
    }

    #[test]
    fn arguments_are_as_long_as_the_kernel_takes_them() {
        let longest = "x".repeat(MAX_ARGUMENT);
        check_arguments(&spec(&["tool", &longest])).unwrap();
        let longer = format!("{longest}x");
        let error = check_arguments(&spec(&["tool", &longer])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let many = vec![&*longest; 16];
        check_arguments(&spec(&many)).unwrap_err();
    }
}
