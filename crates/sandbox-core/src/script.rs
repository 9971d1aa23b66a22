//! Programs that are given as their text, as commands.

use crate::error::{Error, Result};

/// Bytes of text. More does not fit the arguments of a process beside everything else.
const MAX_TEXT: usize = 1 << 20;

/// Bytes of one argument. The kernel takes 128 KiB.
const CHUNK_SIZE: usize = 96 << 10;

/// `$1` is the name of the file, `$2` says in how many pieces its text follows. After them comes the program that runs it,
/// or nothing when the file says so itself, and the arguments.
const START: &str = r#"d="${HOME:-/tmp}/.scripts"
umask 077
mkdir -p -- "$d" && d=$(mktemp -d "$d/XXXXXXXX") || exit 125
f=$d/$1 n=$2
shift 2
while [ "$n" -gt 0 ]; do
    printf %s "$1" >>"$f" || exit 125
    shift
    n=$((n - 1))
done
umask 022
n=$1
shift
case $n in
'') chmod 700 "$f" && exec "$f" "$@" ;;
*) exec "$n" "$f" "$@" ;;
esac"#;

/// The interpreters of languages by name: program, and name of the file.
const LANGUAGES: &[(&[&str], &str, &str)] = &[
    (&["python", "python3", "py"], "python3", "script.py"),
    (&["sh", "shell"], "sh", "script.sh"),
    (&["bash"], "bash", "script.sh"),
    (&["zsh"], "zsh", "script.zsh"),
    (&["node", "javascript", "js"], "node", "script.js"),
    (&["ruby", "rb"], "ruby", "script.rb"),
    (&["perl", "pl"], "perl", "script.pl"),
    (&["php"], "php", "script.php"),
    (&["lua"], "lua", "script.lua"),
    (&["r"], "Rscript", "script.R"),
];

/// The program and arguments that put a text into a file and run it.
pub(crate) fn script_command(language: &str, text: &str, args: Vec<String>) -> Result<Vec<String>> {
    let (program, file, text) = runner(language.trim(), text)?;
    if text.len() > MAX_TEXT {
        let message = format!("must be at most {MAX_TEXT} bytes, has {}", text.len());
        return Err(Error::invalid("script", message)
            .with_hint("write it to a file of the sandbox, and run that"));
    }
    if text.contains('\0') {
        return Err(Error::invalid("script", "must not contain NUL"));
    }
    let pieces = pieces(&text);
    let mut argv: Vec<String> = vec!["/bin/sh".into(), "-c".into(), START.into(), "sh".into()];
    argv.extend([file.to_owned(), pieces.len().to_string()]);
    argv.extend(pieces.into_iter().map(str::to_owned));
    argv.push(program.to_owned());
    argv.extend(args);
    Ok(argv)
}

/// The interpreter of a text, its file name, and the text with its interpreter line.
fn runner(language: &str, text: &str) -> Result<(&'static str, &'static str, String)> {
    if language.starts_with("#!") {
        if language.contains('\n') {
            return Err(Error::invalid("language", "must be a name, or a single line after `#!`"));
        }
        return Ok(("", "script", format!("{language}\n{text}")));
    }
    if language.is_empty() {
        if text.starts_with("#!") {
            return Ok(("", "script", text.to_owned()));
        }
        let message = "must be named, unless the text begins with `#!`";
        return Err(Error::invalid("language", message));
    }
    let wanted = language.to_ascii_lowercase();
    let known = LANGUAGES.iter().find(|(names, ..)| names.contains(&wanted.as_str()));
    let Some((_, program, file)) = known else {
        let names: Vec<_> = LANGUAGES.iter().map(|(names, ..)| names[0]).collect();
        return Err(Error::invalid("language", format!("{language:?} is not known"))
            .with_hint(format!("{}, or a line such as `#!/usr/bin/env deno`", names.join(", "))));
    };
    Ok((program, file, text.to_owned()))
}

/// The text in pieces that fit an argument each, cut between characters.
fn pieces(mut text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    loop {
        let (piece, rest) = text.split_at(text.floor_char_boundary(CHUNK_SIZE));
        pieces.push(piece);
        if rest.is_empty() {
            return pieces;
        }
        text = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_nothing_is_lost() {
        let text = "\u{1F389}a".repeat(CHUNK_SIZE / 2);
        let pieces = pieces(&text);
        assert!(pieces.len() > 2 && pieces.iter().all(|piece| piece.len() <= CHUNK_SIZE));
        assert_eq!(pieces.concat(), text);
        assert_eq!(super::pieces(""), [""]);
    }

    #[test]
    fn what_runs_it_is_named_by_language_or_first_line() {
        let program = |language: &str, text: &str| {
            let argv = script_command(language, text, vec!["a".into()]).unwrap();
            argv[argv.len() - 2].clone()
        };
        assert_eq!(program("Python", "1"), "python3");
        assert_eq!(program("", "#!/bin/sh\n:"), "");
        assert_eq!(program("#!/bin/sh", ":"), "");
        for (language, text) in [("", "no line"), ("cobol", ""), ("#!/bin/sh\nx", ""), ("sh", "\0")]
        {
            script_command(language, text, Vec::new()).expect_err(language);
        }
        script_command("sh", &"x".repeat(MAX_TEXT + 1), Vec::new()).expect_err("too long");
    }
}
