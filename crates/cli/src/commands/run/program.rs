//! Programs that tools in the sandbox run. Their text goes in as standard input of a command, so nothing in it needs
//! quoting; the sandbox itself is asked which tools it has.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use code_sandboxes::{CommandBuilder, CommandResult, Error, ErrorKind, FailureKind, Sandbox};
use tracing::debug;

use super::source::{Fetch, Program, Source, Task};
use super::{Extras, guest};
use crate::input::ProgramInput;
use crate::languages::{self, Language, Runner};
use crate::notebook::{self, plain_language};
use crate::problem::Problem;

/// Makes a directory for the program `$1`, fills the file from standard input, and says where it is.
/// The home directory is the sandbox's own whatever the isolation; the one for temporary files may be the host's.
const PLACE: &str = r#"set -e
base=${HOME:-/}
[ -w "$base" ] || base=${TMPDIR:-/tmp}
directory=$(mktemp -d "${base%/}/.sandboxes.XXXXXX")
cat >"$directory/$1"
printf '%s\n' "$directory/$1"
"#;

/// Says where the program `$1` is that was copied into the working directory.
const WITHIN: &str = r#"set -e
[ -f "$1" ]
cat >/dev/null
printf '%s\n' "$PWD/$1"
"#;

/// The same in the working directory, where that can be written to, under a name that no other file has.
const PLACE_BESIDE: &str = r#"set -e
base=${HOME:-/}
[ -w "$base" ] || base=${TMPDIR:-/tmp}
directory=$(mktemp -d "${base%/}/.sandboxes.XXXXXX")
file=${PWD%/}/.${1%.*}.${directory##*.}.${1##*.}
if (set -C; : >"$file") 2>/dev/null; then rmdir "$directory"; else file=$directory/$1; fi
cat >"$file"
printf '%s\n' "$file"
"#;

/// What follows when no runner is usable.
const NO_RUNNER: &str = "none";

/// Longest time for the removal of one file.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(10);

impl Task {
    /// The same in a sandbox that is there. Inline code in the language of its kernel is a cell of that kernel: so it is
    /// when the kernel is named, and the sandbox names it too.
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

    /// The same where nobody named the kernel of the sandbox: Python is a program there when that speaks another language.
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

/// Python for an interpreter that is none of the sandbox's own.
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

/// What the sandbox's kernel calls its language, if it has one.
fn own_language(sandbox: &Sandbox) -> Option<String> {
    let info = sandbox.info()?;
    Some(plain_language(info.metadata.get("language")?.as_str()?))
}

/// The language of the sandbox's kernel, if it has one that is known here.
fn kernel_language(sandbox: &Sandbox) -> Option<&'static Language> {
    languages::find(&own_language(sandbox)?).ok()
}

/// A program in the sandbox, and what runs it.
#[derive(Debug)]
pub(crate) struct Place {
    path: String,
    runner: &'static Runner,
    env: &'static [(&'static str, &'static str)],
    beside: bool,
}

/// Puts the program into the sandbox, finds what runs it, and fetches its dependencies.
///
/// # Errors
/// `Unsupported` when the sandbox lacks the tools; it names them and how to get them.
pub(crate) async fn place(
    sandbox: &Sandbox,
    program: &Program,
    timeout: Option<Duration>,
    extras: &Extras,
) -> Result<Place, Problem> {
    let (place, name) = match &program.within {
        Some(within) => (WITHIN, within),
        None if program.beside => (PLACE_BESIDE, &program.name),
        None => (PLACE, &program.name),
    };
    let script = place_script(place, program.runners);
    let command = shell(sandbox, &script, name, timeout).stdin(program.text.clone());
    let command = match (program.within.is_some() || program.beside, &extras.workdir) {
        (true, Some(directory)) => command.cwd(directory),
        _ => command,
    };
    let answer = succeed(command.await?, "the program could not be put into the sandbox")?;
    let (path, runner) = answer.trim_end().rsplit_once('\n').unwrap_or_default();
    let runner = runner.parse().ok().and_then(|index: usize| program.runners.get(index));
    let Some(runner) = runner else {
        if program.is_placed_beside() {
            remove(sandbox, path).await;
        }
        return Err(missing(program));
    };
    debug!(path, runner = runner.label, "program is in place");
    let mut place =
        Place { path: path.into(), runner, env: &[], beside: program.is_placed_beside() };
    if let Some(dependencies) = &program.dependencies {
        fetch(sandbox, &place.path, dependencies, timeout).await?;
        place.env = dependencies.how.env;
    }
    Ok(place)
}

impl Place {
    /// The program in the working directory, which is removed when it has run.
    pub(crate) fn to_remove(&self) -> Option<String> {
        self.beside.then(|| self.path.clone())
    }

    /// The command that runs the program.
    pub(crate) fn command<'a>(
        &self,
        sandbox: &'a Sandbox,
        arguments: Vec<String>,
        timeout: Option<Duration>,
        stdin: Option<ProgramInput>,
    ) -> CommandBuilder<'a> {
        let mut argv = shell_argv(self.runner.script, &self.path);
        argv.extend(arguments);
        let command = guest::command(sandbox, argv, timeout, stdin);
        self.env.iter().fold(command, |command, (name, value)| command.env(*name, *value))
    }
}

/// Removes a program from the working directory of a sandbox that stays, or that is a directory of this host.
pub(crate) async fn remove(sandbox: &Sandbox, path: &str) {
    let removed = shell(sandbox, r#"rm -f -- "$1""#, path, Some(REMOVE_TIMEOUT)).await;
    if let Err(error) = removed {
        debug!(path, %error, "the program stays where it was put");
    }
}

/// A script such as [`PLACE`] that prints, last, the index of the first runner the sandbox has.
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
) -> Result<(), Problem> {
    let directory = program.rsplit_once('/').map_or("", |(directory, _)| directory);
    for (name, content) in &fetch.files {
        put(sandbox, &format!("{directory}/{name}"), content.clone(), timeout).await?;
    }
    let what = format!("the {} could not be downloaded", fetch.how.label);
    let result = shell(sandbox, fetch.how.script, program, timeout).await?;
    succeed(result, &what).map(drop).map_err(|error| {
        match network_flag(sandbox, fetch.how.hosts).filter(|_| fetch.network_is_closed) {
            Some(flag) => error.with_hint(format!("no network was asked for; `{flag}` opens it")),
            None => error,
        }
        .into()
    })
}

/// The flag that opens the network to those hosts and to as little else as this variant can.
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
) -> Result<(), Problem> {
    let command = shell(sandbox, r#"cat >"$1""#, path, timeout).stdin(content);
    succeed(command.await?, "a file could not be put into the sandbox")?;
    Ok(())
}

/// A shell script with one argument.
fn shell<'a>(
    sandbox: &'a Sandbox,
    script: &str,
    argument: &str,
    timeout: Option<Duration>,
) -> CommandBuilder<'a> {
    guest::command(sandbox, shell_argv(script, argument), timeout, None)
}

fn shell_argv(script: &str, argument: &str) -> Vec<String> {
    ["/bin/sh", "-c", script, "sandboxes", argument].map(str::to_owned).into()
}

/// What a command of ours printed, when it did what it should.
fn succeed(result: CommandResult, what: &str) -> Result<String, Error> {
    if result.success() {
        return Ok(result.stdout);
    }
    let (kind, why) = match &result.failure {
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
    Err(Error::new(kind, "prepare", format!("{what}: {why}")))
}

fn missing(program: &Program) -> Problem {
    let mut labels: Vec<_> = program.runners.iter().map(|runner| runner.label).collect();
    labels.dedup();
    let message = match labels.as_slice() {
        [one] => {
            format!("{} programs need {one}, which the sandbox does not have", program.language)
        }
        many => format!(
            "{} programs need one of these, and the sandbox has none: {}",
            program.language,
            many.join(", ")
        ),
    };
    let hint = format!(
        "{}; a local sandbox has the tools on the PATH of this host, others those of their image",
        program.install
    );
    Error::unsupported("prepare", message).with_hint(hint).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::languages::{Engine, find};

    #[test]
    fn the_sandbox_is_asked_for_tools_in_order() {
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
    fn what_is_missing_is_named() {
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
        insta::assert_snapshot!(missing_for("typescript").message(), @"typescript programs need one of these, and the sandbox has none: node 22.6 or newer, tsx, ts-node, tsc with node");
        insta::assert_snapshot!(missing_for("rust").message(), @"rust programs need rustc with a linker (cc), which the sandbox does not have");
        insta::assert_snapshot!(missing_for("go").hint().unwrap(), @"install Go (package golang-go); a local sandbox has the tools on the PATH of this host, others those of their image");
    }
}
