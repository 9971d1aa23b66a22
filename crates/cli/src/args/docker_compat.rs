//! Flags of container engines, such as `docker run -it --rm -v SRC:DST`: some are accepted, for others there is a tip with
//! the flag of `sandboxes`.

use std::ffi::{OsStr, OsString};

/// Commands that run a program.
const RUNNING: [&str; 3] = ["run", "exec", "shell"];

/// Replaces `-it` before the first word with the flag for a terminal, and removes `-i`. Returns `None` without such flags.
pub(super) fn translated(argv: &[OsString]) -> Option<Vec<OsString>> {
    let command = argv.get(1)?.to_str().filter(|command| RUNNING.contains(command))?;
    let flags =
        argv.iter().skip(2).take_while(|argument| argument.as_encoded_bytes().starts_with(b"-"));
    let end = 2 + flags.count();
    let is_terminal = |argument: &OsStr| argument == "-it" || argument == "-ti";
    let is_input = |argument: &OsStr| command == "exec" && argument == "-i";
    let at = argv[..end].iter().position(|argument| is_terminal(argument) || is_input(argument))?;
    let mut translated = argv.to_vec();
    // A shell is always on the terminal.
    match is_input(&argv[at]) || command == "shell" {
        true => drop(translated.remove(at)),
        false => translated[at] = "--tty".into(),
    }
    Some(translated)
}

/// Returns the tip for a flag of a container engine that `sandboxes` does not have.
pub(super) fn pointer(command: &str, flag: &str) -> Option<&'static str> {
    let pointer = match (command, flag) {
        ("run", "--rm") => "leave it out: the sandbox ends with its run, unless --keep is given",
        ("run" | "create", "-d" | "--detach") => {
            "`sandboxes create` makes a sandbox that stays, and `sandboxes exec -d` runs a command in it in the background"
        }
        (_, "-i" | "--interactive") => {
            "leave it out: standard input is passed on, and --tty is for a terminal"
        }
        (_, "-it" | "-ti") => "--tty is for a terminal",
        ("run", "--name") => "`sandboxes create --name NAME` makes a sandbox with a name",
        (_, "-u" | "--user") => {
            "code runs as the user of the sandbox; `sandboxes exec --user root` is for a command of root"
        }
        (_, "-P" | "--publish") => "`sandboxes expose SANDBOX PORT` makes a port reachable",
        (_, "--net") => "--network none, --network all, or --allow HOST",
        (_, "--rm") => "`sandboxes rm` ends a sandbox, and --lifetime limits its life",
        _ => return None,
    };
    Some(pointer)
}

/// Finds the mount of `-v SRC:DST` among the flags before the words. Here `-v` has no value.
pub(super) fn volume(before: &[OsString], words: &[String]) -> Option<String> {
    if before.last().is_some_and(|last| last == "-v") {
        return words.first().filter(|word| is_volume(word)).cloned();
    }
    let pairs = before.windows(2).filter(|pair| pair[0] == "-v");
    let mut values = pairs.filter_map(|pair| pair[1].to_str());
    values.find(|value| is_volume(value)).map(str::to_owned)
}

/// Returns true for `SRC:DST` with an absolute path in the sandbox.
fn is_volume(word: &str) -> bool {
    let paths = word.split_once(':').filter(|(source, _)| !source.is_empty());
    paths.is_some_and(|(_, target)| target.starts_with('/') && !target.starts_with("//"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(line: &str) -> Vec<OsString> {
        line.split(' ').map(Into::into).collect()
    }

    #[test]
    fn terminal_flags_of_container_engines_are_accepted() {
        for (typed, meant) in [
            ("sandboxes exec -it b bash", "sandboxes exec --tty b bash"),
            ("sandboxes run -ti bash", "sandboxes run --tty bash"),
            ("sandboxes exec -i b cat", "sandboxes exec b cat"),
            ("sandboxes shell -it b", "sandboxes shell b"),
        ] {
            assert_eq!(translated(&argv(typed)), Some(argv(meant)), "{typed}");
        }
        for typed in
            ["sandboxes exec b grep -it x", "sandboxes run -i image ls", "sandboxes ls -it"]
        {
            assert_eq!(translated(&argv(typed)), None, "{typed}");
        }
    }

    #[test]
    fn volumes_look_like_two_paths() {
        let words = |text: &str| vec![text.to_owned()];
        let found = volume(&argv("sandboxes run -v"), &words("/a:/b"));
        assert_eq!(found.as_deref(), Some("/a:/b"));
        assert!(volume(&argv("sandboxes run -v"), &words("./a:/b:ro")).is_some());
        assert!(volume(&argv("sandboxes create -v /a:/b"), &[]).is_some());
        for word in ["ls", "a:b", "http://x/", ":/b"] {
            assert_eq!(volume(&argv("sandboxes run -v"), &words(word)), None, "{word}");
        }
        assert_eq!(volume(&argv("sandboxes run"), &words("/a:/b")), None);
    }
}
