//! Scripts of this backend, and how words and answers of them are written.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandbox_core::{Error, ErrorKind, Result};
use sandbox_engine::shell::{SHELL, ScriptOutput};

/// Runs another script and encodes its answer.
const RUN: &str = include_str!("scripts/run.sh");

/// Runs a program of a session and encodes its output.
const SESSION: &str = include_str!("scripts/session.sh");

/// Returns a word as every shell reads it.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns a command line of these words.
pub(crate) fn line(words: &[&str]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

/// Returns the command line that runs a script. `input` and `output` are files, or empty.
pub(crate) fn run(
    word: &str,
    input: &str,
    output: &str,
    script: &str,
    arguments: &[&str],
) -> String {
    let mut words = vec![SHELL, "-c", RUN, "sh", word, input, output, script];
    words.extend(arguments);
    line(&words)
}

/// Returns the command line of a session that starts a program. Variables are set by the shell itself, so that no list of
/// processes shows them.
///
/// # Errors
/// `InvalidArgument` for a variable that no shell can set.
pub(crate) fn program(
    env: &[(String, String)],
    has_input: bool,
    argv: &[String],
) -> Result<String> {
    let mut words = vec![SHELL, "-c", SESSION, "sh", if has_input { "input" } else { "none" }];
    words.extend(argv.iter().map(String::as_str));
    Ok(format!("( {}exec {} )", exports(env)?, line(&words)))
}

/// Returns the lines of a file that removes itself, sets variables and becomes a program.
///
/// # Errors
/// As [`program`].
pub(crate) fn program_file(env: &[(String, String)], argv: &[String]) -> Result<String> {
    let words: Vec<&str> = argv.iter().map(String::as_str).collect();
    Ok(format!("rm -f \"$0\"\n{}exec {}\n", exports(env)?, line(&words)))
}

fn exports(env: &[(String, String)]) -> Result<String> {
    let is_name = |name: &str| {
        let mut chars = name.chars();
        chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if let Some((name, _)) = env.iter().find(|(name, _)| !is_name(name)) {
        return Err(Error::invalid(
            "env",
            format!(
                "has the name {name:?}; commands of daytona have names of letters, digits and `_`"
            ),
        ));
    }
    let set = |(name, value): &(String, String)| format!("export {name}={}; ", quote(value));
    Ok(env.iter().map(set).collect())
}

/// Reads the answer of [`run`].
///
/// # Errors
/// `Unsupported` for an image without the tools; `Protocol` for an answer of another form.
pub(crate) fn answer(operation: &'static str, word: &str, text: &str) -> Result<ScriptOutput> {
    if text.trim() == format!("{word} base64") {
        let message = "the image has no `base64`, which files and commands need";
        return Err(Error::unsupported(operation, message)
            .with_context("missing", "base64")
            .with_hint("put the usual tools (coreutils) into the image"));
    }
    let malformed = || {
        let shown: String = text.trim().chars().take(200).collect();
        Error::new(ErrorKind::Protocol, operation, format!("the sandbox answered {shown:?}"))
    };
    let decoded = STANDARD.decode(text.trim()).map_err(|_| malformed())?;
    let mark = format!("\n{word} ");
    let at = memchr::memmem::rfind(&decoded, mark.as_bytes()).ok_or_else(malformed)?;
    let errors = &decoded[at + mark.len()..];
    let status_at = memchr::memmem::rfind(errors, b"\nstatus ").ok_or_else(malformed)?;
    let status = String::from_utf8_lossy(&errors[status_at + 8..]);
    Ok(ScriptOutput {
        status: status.trim().parse().map_err(|_| malformed())?,
        stdout: decoded[..at].to_vec(),
        stderr: errors[..status_at].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs a command line in the shell of this host.
    fn shell(line: &str, input: &str) -> (Vec<u8>, Vec<u8>) {
        use std::io::Write as _;
        let mut child = Command::new(SHELL)
            .args(["-c", line])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.stdout, output.stderr)
    }

    fn decoded(lines: &[u8]) -> Vec<u8> {
        let lines = std::str::from_utf8(lines).unwrap().lines();
        lines.flat_map(|line| STANDARD.decode(line).unwrap()).collect()
    }

    #[test]
    fn answers_of_scripts_are_exact() {
        let script = r#"printf 'a\0\377 %s\n' "$1"; echo "it's bad" >&2; exit 7"#;
        let (out, _) = shell(&run("w0rd", "", "", script, &["it's $x"]), "");
        let found = answer("test", "w0rd", std::str::from_utf8(&out).unwrap()).unwrap();
        assert_eq!((found.status, &found.stdout[..]), (7, &b"a\0\xff it's $x\n"[..]));
        assert_eq!(found.last_error(), "it's bad");
        let error = answer("test", "w", "sh: not found").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert_eq!(answer("test", "w", "w base64\n").unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn programs_of_sessions_have_exact_streams() {
        let env = vec![("A_B".to_owned(), "it's $HOME".to_owned())];
        let argv =
            ["/bin/sh", "-c", r#"printf 'o\0\1\1\1'; printf "$A_B" >&2; cat"#].map(str::to_owned);
        let command = program(&env, true, &argv).unwrap();
        let (out, err) = shell(&command, &format!("{}\n.\nmore\n", STANDARD.encode(b"in\0\xff")));
        assert_eq!(decoded(&out), b"o\0\x01\x01\x01in\0\xff");
        assert_eq!(decoded(&err), b"it's $HOME");
        let bad = vec![("a.b".to_owned(), String::new())];
        assert_eq!(program(&bad, false, &argv).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
