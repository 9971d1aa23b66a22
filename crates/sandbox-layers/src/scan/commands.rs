//! The rules for one command: a program and its arguments.

use super::findings::Findings;
use super::text::Literal;
use super::{ScanLanguage, ScanRule};

/// Programs in front of programs that are followed.
const MAX_WRAPPERS: u32 = 4;

/// Programs that run the program that their arguments name.
const WRAPPERS: [&str; 13] = [
    "env", "sudo", "doas", "nohup", "setsid", "time", "timeout", "nice", "xargs", "exec",
    "command", "busybox", "stdbuf",
];

const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "ash"];

/// Programs that act on other processes or on the whole system.
const PROCESS: [&str; 21] = [
    "kill",
    "killall",
    "pkill",
    "setsid",
    "nohup",
    "disown",
    "crontab",
    "at",
    "batch",
    "systemctl",
    "service",
    "sudo",
    "doas",
    "su",
    "chroot",
    "nsenter",
    "unshare",
    "mount",
    "umount",
    "insmod",
    "docker",
];

/// Programs that open connections.
const NETWORK: [&str; 24] = [
    "curl",
    "wget",
    "nc",
    "ncat",
    "netcat",
    "socat",
    "ssh",
    "scp",
    "sftp",
    "rsync",
    "ftp",
    "tftp",
    "telnet",
    "ping",
    "dig",
    "nslookup",
    "host",
    "traceroute",
    "nmap",
    "aria2c",
    "lynx",
    "gh",
    "aws",
    "gsutil",
];

/// Programs of which some subcommands open connections.
const FETCHES: [(&str, &[&str]); 10] = [
    ("git", &["clone", "fetch", "pull", "push", "ls-remote", "submodule"]),
    ("pip", &["install", "download"]),
    ("pip3", &["install", "download"]),
    ("uv", &["pip", "add", "sync"]),
    ("npm", &["install", "i", "ci", "publish"]),
    ("npx", &[]),
    ("yarn", &["add", "install"]),
    ("cargo", &["install", "fetch", "publish"]),
    ("apt", &["install", "update"]),
    ("apt-get", &["install", "update"]),
];

/// Programs whose arguments are patterns or texts rather than paths.
const TEXTS: [&str; 8] = ["echo", "printf", "expr", "test", "[", "true", "false", "sed"];

/// Returns the name of a program without its directory.
pub(super) fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Returns the language of the code that a program runs.
pub(super) fn language_of(program: &str) -> Option<ScanLanguage> {
    let program = base(program);
    if SHELLS.contains(&program) {
        return Some(ScanLanguage::Shell);
    }
    program.starts_with("python").then_some(ScanLanguage::Python)
}

/// Looks at a command.
pub(super) fn check(words: &[Literal], row: usize, findings: &mut Findings<'_>) {
    check_below(words, row, MAX_WRAPPERS, findings);
}

fn check_below(words: &[Literal], row: usize, wrappers: u32, findings: &mut Findings<'_>) {
    let Some((program, arguments)) = words.split_first() else { return };
    if program.text.is_empty() || !program.is_whole {
        let reason = "the name of the program is computed";
        return findings.add(ScanRule::DynamicCode, row, reason);
    }
    let name = base(&program.text);
    if PROCESS.contains(&name) {
        findings.add(ScanRule::Process, row, format!("`{name}` acts on other processes"));
    }
    let subcommand =
        arguments.iter().map(|word| word.text.as_str()).find(|word| !word.starts_with('-'));
    let fetches = FETCHES.iter().any(|(program, verbs)| {
        *program == name && (verbs.is_empty() || subcommand.is_some_and(|sub| verbs.contains(&sub)))
    });
    if NETWORK.contains(&name) || fetches {
        findings.add(ScanRule::Network, row, format!("`{name}` opens connections"));
    }
    if name == "eval" {
        findings.add(ScanRule::DynamicCode, row, "`eval` runs text as code");
        let line: Vec<_> = arguments.iter().map(|word| word.text.as_str()).collect();
        if arguments.iter().all(|word| word.is_whole) {
            findings.look_inside(&line.join(" "), ScanLanguage::Shell, row);
        }
    }
    if let Some(language) = language_of(name) {
        check_code(language, arguments, row, findings);
    }
    if !TEXTS.contains(&name) {
        check_arguments(arguments, row, findings);
    }
    if WRAPPERS.contains(&name) && wrappers > 0 {
        let is_option = |word: &Literal| {
            word.text.starts_with('-')
                || word.text.contains('=')
                || word.text.starts_with(|c: char| c.is_ascii_digit())
        };
        if let Some(at) = arguments.iter().position(|word| !is_option(word)) {
            check_below(&arguments[at..], row, wrappers - 1, findings);
        }
    }
}

/// Looks at the code of `-c`.
fn check_code(
    language: ScanLanguage,
    arguments: &[Literal],
    row: usize,
    findings: &mut Findings<'_>,
) {
    let is_flag = |word: &Literal| {
        word.text
            .strip_prefix('-')
            .is_some_and(|flags| !flags.starts_with('-') && flags.ends_with('c'))
    };
    let Some(at) = arguments.iter().position(is_flag) else { return };
    match arguments.get(at + 1) {
        Some(code) if code.is_whole => findings.look_inside(&code.text, language, row),
        Some(_) => findings.add(ScanRule::DynamicCode, row, "computed text is run as code"),
        None => {}
    }
}

fn check_arguments(arguments: &[Literal], row: usize, findings: &mut Findings<'_>) {
    for argument in arguments {
        let value = match argument.text.split_once('=') {
            Some((name, value)) if name.starts_with('-') => value,
            _ => argument.text.as_str(),
        };
        if value.starts_with(['/', '~', '.']) {
            findings.check_path(value, argument.is_whole, row);
        }
    }
}
