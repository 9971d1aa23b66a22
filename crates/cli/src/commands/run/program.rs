//! Programs that tools in the sandbox run. Their text is the standard input of a command, so it needs no quoting. The same
//! command finds out which tools the sandbox has.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use code_sandboxes::{CommandBuilder, CommandResult, Error, ErrorKind, FailureKind, Sandbox};
use tracing::debug;

use super::source::{Fetch, Program, Source, Task};
use super::{RunOptions, child};
use crate::error::CliError;
use crate::input::ProgramInput;
use crate::languages::{self, Language, Runner};
use crate::notebook::{self, plain_language};

/// Makes a directory for the program `$1`, writes standard input into the file, and prints its path.
/// The home directory always belongs to the sandbox; without isolation the directory for temporary files is the host's.
const PLACE: &str = r#"set -e
base=${HOME:-/}
[ -w "$base" ] || base=${TMPDIR:-/tmp}
directory=$(mktemp -d "${base%/}/.sandboxes.XXXXXX")
cat >"$directory/$1"
printf '%s\n' "$directory/$1"
"#;

/// Prints the path of the program `$1` that was copied into the working directory.
const WITHIN: &str = r#"set -e
[ -f "$1" ]
cat >/dev/null
printf '%s\n' "$PWD/$1"
"#;

/// As [`PLACE`], but in the working directory if that is writable, under a unique name.
const PLACE_BESIDE: &str = r#"set -e
base=${HOME:-/}
[ -w "$base" ] || base=${TMPDIR:-/tmp}
directory=$(mktemp -d "${base%/}/.sandboxes.XXXXXX")
file=${PWD%/}/.${1%.*}.${directory##*.}.${1##*.}
if (set -C; : >"$file") 2>/dev/null; then rmdir "$directory"; else file=$directory/$1; fi
cat >"$file"
printf '%s\n' "$file"
"#;

/// Output of the script when no runner is usable.
const NO_RUNNER: &str = "none";

/// Time limit of removing a file.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(10);

impl Task {
    /// Adapts the task to an existing sandbox: inline code in the language of its kernel is a cell of that kernel.
    pub(crate) fn in_sandbox(mut self, sandbox: &Sandbox) -> Self {
        if let Source::Program(program) = &self.source
            && program.is_inline
            && kernel_language(sandbox).is_some_and(|own| own.name == program.language)
            && let Ok(code) = std::str::from_utf8(&program.text)
        {
            self.source = Source::Cell(code.to_owned());
        }
        self
    }

    /// Adapts the task to a sandbox whose kernel has another language: Python is a program there.
    pub(crate) fn or_program(mut self, sandbox: &Sandbox) -> Self {
        let of_kernel = own_language(sandbox).is_some_and(|own| own != self.language);
        if self.language != notebook::PYTHON || !of_kernel {
            return self;
        }
        self.source = match self.source {
            Source::Cell(code) => Source::Program(python(code, "", Vec::new())),
            Source::Script { code, name, arguments } => {
                Source::Program(python(code, &name, arguments))
            }
            other => other,
        };
        self
    }
}

/// Makes a program of Python code.
fn python(code: String, path: &str, arguments: Vec<String>) -> Program {
    let name = Path::new(path).file_name().and_then(|name| name.to_str()).unwrap_or("main.py");
    Program {
        language: notebook::PYTHON,
        runners: languages::PYTHON,
        install: languages::INSTALL_PYTHON,
        text: code.into(),
        is_inline: false,
        name: name.to_owned(),
        arguments,
        dependencies: None,
        file: None,
        within: None,
        beside: false,
    }
}

/// Returns the language of the sandbox's kernel, if it has one, as the kernel names it.
fn own_language(sandbox: &Sandbox) -> Option<String> {
    let info = sandbox.info();
    Some(plain_language(info.metadata.get("language")?.as_str()?))
}

/// Returns the language of the sandbox's kernel, if it is a known one.
fn kernel_language(sandbox: &Sandbox) -> Option<&'static Language> {
    languages::find(&own_language(sandbox)?).ok()
}

/// A program file in the sandbox, and its runner.
#[derive(Debug)]
pub(crate) struct PlacedProgram {
    path: String,
    runner: &'static Runner,
    env: &'static [(&'static str, &'static str)],
    beside: bool,
}

/// Puts a program into the sandbox, finds its runner, and downloads its dependencies.
///
/// # Errors
/// `Unsupported` when the sandbox lacks the tools, with their names and how to install them.
pub(crate) async fn place(
    sandbox: &Sandbox,
    program: &Program,
    timeout: Option<Duration>,
    options: &RunOptions,
) -> Result<PlacedProgram, CliError> {
    let (script, name) = match &program.within {
        Some(within) => (WITHIN, within),
        None if program.beside => (PLACE_BESIDE, &program.name),
        None => (PLACE, &program.name),
    };
    let script = place_script(script, program.runners);
    let command = shell(sandbox, &script, name, timeout).stdin(program.text.clone());
    let command = match (program.within.is_some() || program.beside, &options.workdir) {
        (true, Some(directory)) => command.cwd(directory),
        _ => command,
    };
    let output = succeed(command.await?, "the program could not be put into the sandbox")?;
    let (path, runner) = output.trim_end().rsplit_once('\n').unwrap_or_default();
    let runner = runner.parse().ok().and_then(|index: usize| program.runners.get(index));
    let Some(runner) = runner else {
        if program.is_placed_beside() {
            remove(sandbox, path).await;
        }
        return Err(missing(program));
    };
    debug!(path, runner = runner.label, "program is in place");
    let mut place =
        PlacedProgram { path: path.into(), runner, env: &[], beside: program.is_placed_beside() };
    if let Some(dependencies) = &program.dependencies {
        fetch(sandbox, &place.path, dependencies, timeout).await?;
        place.env = dependencies.how.env;
    }
    Ok(place)
}

impl PlacedProgram {
    /// Returns the path of a program in the working directory, which is removed after the run.
    pub(crate) fn to_remove(&self) -> Option<String> {
        self.beside.then(|| self.path.clone())
    }

    /// Makes the command that runs the program.
    pub(crate) fn command<'a>(
        &self,
        sandbox: &'a Sandbox,
        arguments: Vec<String>,
        timeout: Option<Duration>,
        stdin: Option<ProgramInput>,
    ) -> CommandBuilder<'a> {
        let mut argv = shell_argv(self.runner.script, &self.path);
        argv.extend(arguments);
        let command = child::command(sandbox, argv, timeout, stdin);
        self.env.iter().fold(command, |command, (name, value)| command.env(*name, *value))
    }
}

/// Removes a program from the working directory.
pub(crate) async fn remove(sandbox: &Sandbox, path: &str) {
    let removed = shell(sandbox, r#"rm -f -- "$1""#, path, Some(REMOVE_TIMEOUT)).await;
    if let Err(error) = removed {
        debug!(path, %error, "could not remove the program");
    }
}

/// Makes a script such as [`PLACE`] that also prints the index of the first runner that the sandbox has.
fn place_script(place: &str, runners: &[Runner]) -> String {
    let mut script = place.to_owned();
    for (index, runner) in runners.iter().enumerate() {
        let tools = runner.needs.iter().map(|tool| format!("command -v {tool}"));
        let check = (!runner.check.is_empty()).then(|| runner.check.to_owned());
        let conditions: Vec<_> = tools.chain(check).collect();
        let conditions = conditions.join(" && ");
        // Writing to a string does not fail.
        let _ = writeln!(
            script,
            "if {{ {conditions}; }} >/dev/null 2>&1 </dev/null; then echo {index}; exit; fi"
        );
    }
    script.push_str("echo ");
    script.push_str(NO_RUNNER);
    script
}

async fn fetch(
    sandbox: &Sandbox,
    program: &str,
    fetch: &Fetch,
    timeout: Option<Duration>,
) -> Result<(), CliError> {
    let directory = program.rsplit_once('/').map_or("", |(directory, _)| directory);
    for (name, content) in &fetch.files {
        put(sandbox, &format!("{directory}/{name}"), content.clone(), timeout).await?;
    }
    let problem = format!("the {} could not be downloaded", fetch.how.label);
    let result = shell(sandbox, fetch.how.script, program, timeout).await?;
    succeed(result, &problem).map(drop).map_err(|error| {
        match network_flag(sandbox, fetch.how.hosts).filter(|_| fetch.network_is_closed) {
            Some(flag) => {
                error.with_hint(format!("the sandbox has no network; open it with `{flag}`"))
            }
            None => error,
        }
        .into()
    })
}

/// Returns the flag that opens the network to these hosts, and to as few others as the variant allows.
fn network_flag(sandbox: &Sandbox, hosts: &[&str]) -> Option<String> {
    let can = sandbox.capabilities();
    if can.network_allowlist {
        let allowed: String = hosts.iter().map(|host| format!(" --allow {host}")).collect();
        return Some(allowed.trim_start().to_owned());
    }
    let flags = [(can.network_all, "--network all"), (can.isolation_off, "--isolation off")];
    flags.into_iter().find_map(|(can, flag)| can.then(|| flag.to_owned()))
}

async fn put(
    sandbox: &Sandbox,
    path: &str,
    content: Bytes,
    timeout: Option<Duration>,
) -> Result<(), CliError> {
    let command = shell(sandbox, r#"cat >"$1""#, path, timeout).stdin(content);
    succeed(command.await?, "a file could not be put into the sandbox")?;
    Ok(())
}

/// Makes a command of a shell script with one argument.
fn shell<'a>(
    sandbox: &'a Sandbox,
    script: &str,
    argument: &str,
    timeout: Option<Duration>,
) -> CommandBuilder<'a> {
    child::command(sandbox, shell_argv(script, argument), timeout, None)
}

fn shell_argv(script: &str, argument: &str) -> Vec<String> {
    ["/bin/sh", "-c", script, "sandboxes", argument].map(str::to_owned).into()
}

/// Returns the output of a helper command, or the error `problem` with the reason.
fn succeed(result: CommandResult, problem: &str) -> Result<String, Error> {
    if result.success() {
        return Ok(result.stdout);
    }
    let (kind, reason) = match &result.failure {
        Some(failure) if failure.kind == FailureKind::Timeout => {
            (ErrorKind::Timeout, failure.message.clone())
        }
        Some(failure) => (ErrorKind::Unavailable, failure.message.clone()),
        None => {
            let last = result.stderr.lines().rev().find(|line| !line.trim().is_empty());
            let status = || format!("exit status {}", result.exit_code);
            (ErrorKind::Unavailable, last.map_or_else(status, str::to_owned))
        }
    };
    Err(Error::new(kind, "prepare", format!("{problem}: {reason}")))
}

fn missing(program: &Program) -> CliError {
    let mut labels: Vec<_> = program.runners.iter().map(|runner| runner.label).collect();
    labels.dedup();
    let message = match labels.as_slice() {
        [one] => {
            format!("{} programs need {one}, which the sandbox does not have", program.language)
        }
        many => format!(
            "{} programs need one of these, but the sandbox has none: {}",
            program.language,
            many.join(", ")
        ),
    };
    let hint = format!(
        "{}; local sandboxes have the tools on the PATH of this host, others those of their image",
        program.install
    );
    Error::unsupported("prepare", message).with_hint(hint).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::languages::{Engine, find};

    #[test]
    fn tools_are_looked_up_in_order() {
        let Engine::Tools { runners, .. } = &find("typescript").unwrap().engine else {
            panic!("typescript has tools");
        };
        insta::assert_snapshot!(place_script(PLACE, runners), @r#"
        set -e
        base=${HOME:-/}
        [ -w "$base" ] || base=${TMPDIR:-/tmp}
        directory=$(mktemp -d "${base%/}/.sandboxes.XXXXXX")
        cat >"$directory/$1"
        printf '%s\n' "$directory/$1"
        if { command -v node && node --experimental-transform-types -e 0; } >/dev/null 2>&1 </dev/null; then echo 0; exit; fi
        if { command -v node && node --experimental-strip-types -e 0; } >/dev/null 2>&1 </dev/null; then echo 1; exit; fi
        if { command -v tsx; } >/dev/null 2>&1 </dev/null; then echo 2; exit; fi
        if { command -v ts-node; } >/dev/null 2>&1 </dev/null; then echo 3; exit; fi
        if { command -v tsc && command -v node; } >/dev/null 2>&1 </dev/null; then echo 4; exit; fi
        echo none
        "#);
    }

    #[test]
    fn missing_tools_are_named() {
        let missing_for = |language| {
            let Engine::Tools { runners, install, .. } = &find(language).unwrap().engine else {
                panic!("{language} has tools");
            };
            missing(&Program {
                language,
                runners,
                install,
                text: Bytes::new(),
                is_inline: false,
                name: String::new(),
                arguments: Vec::new(),
                dependencies: None,
                file: None,
                within: None,
                beside: false,
            })
        };
        insta::assert_snapshot!(missing_for("typescript").message(), @"typescript programs need one of these, but the sandbox has none: node 22.6 or newer, tsx, ts-node, tsc with node");
        insta::assert_snapshot!(missing_for("rust").message(), @"rust programs need rustc with a linker (cc), which the sandbox does not have");
        insta::assert_snapshot!(missing_for("go").hint().unwrap(), @"install Go (package golang-go); local sandboxes have the tools on the PATH of this host, others those of their image");
    }
}
