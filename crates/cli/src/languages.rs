//! What `run` knows of languages, as data.

use std::path::Path;

/// Whatever the kernel runs.
pub(crate) const KERNEL: &str = "kernel";

/// A language and how its programs are run.
#[derive(Debug, PartialEq)]
pub(crate) struct Language {
    /// Its name in results.
    pub(crate) name: &'static str,
    /// Other names that `--lang` takes.
    aliases: &'static [&'static str],
    /// Extensions that mean it, without the dot.
    extensions: &'static [&'static str],
    /// Name of the program file when the code has none.
    file: &'static str,
    /// What runs it.
    pub(crate) engine: Engine,
}

/// What runs a program.
#[derive(Debug, PartialEq)]
pub(crate) enum Engine {
    /// The interpreter of the sandbox itself, which knows scripts.
    Interpreter,
    /// The interpreter of the sandbox itself, whatever language it has: all code is a cell.
    Kernel,
    /// Programs in the sandbox.
    Tools {
        /// Ways to run it. The first one that the sandbox has tools for is taken.
        runners: &'static [Runner],
        /// How to get the tools.
        install: &'static str,
        /// What `--deps` does.
        dependencies: Option<&'static Dependencies>,
        /// Puts a program into the working directory, because it finds its modules from the directory that it is in.
        beside: bool,
    },
}

/// How the dependencies of a program are fetched before it runs.
#[derive(Debug, PartialEq)]
pub(crate) struct Dependencies {
    /// What they are, for messages.
    pub(crate) label: &'static str,
    /// The file beside the program that lists them.
    pub(crate) manifest: &'static str,
    /// Files beside it that are taken along when they are there.
    pub(crate) optional: &'static [&'static str],
    /// The shell script that fetches them. `$1` is the program file.
    pub(crate) script: &'static str,
    /// Environment of the program itself.
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// Hosts they come from.
    pub(crate) hosts: &'static [&'static str],
}

/// One way to run a program file.
#[derive(Debug, PartialEq)]
pub(crate) struct Runner {
    /// What it is, for the message that says what is missing.
    pub(crate) label: &'static str,
    /// Programs that must be there.
    pub(crate) needs: &'static [&'static str],
    /// A shell command that must succeed besides; empty: none.
    pub(crate) check: &'static str,
    /// The shell script that runs it. `$1` is the program file, in a directory of its own; the rest are its arguments.
    pub(crate) script: &'static str,
}

const fn exec(tool: &'static [&'static str], script: &'static str) -> Runner {
    Runner { label: tool[0], needs: tool, check: "", script }
}

/// Go programs are built first because `go run` turns every exit status into 1.
const GO: &[Runner] = &[exec(
    &["go"],
    r#"directory=${1%/*} file=${1##*/}
shift
export HOME="${HOME:-$directory}"
(cd "$directory" && go build -o .program "$file" </dev/null >&2) || exit 1
exec "$directory/.program" "$@""#,
)];

const GO_MODULES: Dependencies = Dependencies {
    label: "Go modules",
    manifest: "go.mod",
    optional: &["go.sum"],
    script: r#"export HOME="${HOME:-${1%/*}}"
cd "${1%/*}" && exec go mod download"#,
    // The build may complete go.sum.
    env: &[("GOFLAGS", "-mod=mod")],
    hosts: &["proxy.golang.org", "sum.golang.org"],
};

const RUST: &[Runner] = &[Runner {
    label: "rustc with a linker (cc)",
    needs: &["rustc", "cc"],
    check: "",
    script: r#"directory=${1%/*} file=$1
shift
rustc --edition 2021 --crate-name main -o "$directory/.program" "$file" </dev/null >&2 || exit 1
exec "$directory/.program" "$@""#,
}];

const TYPESCRIPT: &[Runner] = &[
    Runner {
        label: "node 22.6 or newer",
        needs: &["node"],
        check: "node --experimental-transform-types -e 0",
        script: r#"exec node --experimental-transform-types --disable-warning=ExperimentalWarning \
    --disable-warning=MODULE_TYPELESS_PACKAGE_JSON "$@""#,
    },
    Runner {
        label: "node 22.6 or newer",
        needs: &["node"],
        check: "node --experimental-strip-types -e 0",
        script: r#"exec node --experimental-strip-types --disable-warning=ExperimentalWarning \
    --disable-warning=MODULE_TYPELESS_PACKAGE_JSON "$@""#,
    },
    exec(&["tsx"], r#"exec tsx "$@""#),
    exec(&["ts-node"], r#"exec ts-node "$@""#),
    Runner {
        label: "tsc with node",
        needs: &["tsc", "node"],
        check: "",
        // Types are not checked, as with the runners above; only code that does not parse (errors TS1nnn) is refused.
        script: r#"directory=${1%/*} file=${1##*/}
shift
compiled=$(mktemp -d "${HOME:-/tmp}/.sandboxes.XXXXXX") || exit 1
cd_and_compile() {
    cd "$directory" && tsc --outDir "$compiled" --target es2022 --module commonjs --esModuleInterop \
        --skipLibCheck --pretty false "$file" </dev/null
}
report=$(cd_and_compile)
program="$compiled/${file%ts}js"
case "$report" in *'error TS1'[0-9][0-9][0-9]:*) unparsable=yes ;; *) unparsable= ;; esac
if [ -n "$unparsable" ] || ! [ -e "$program" ]; then
    printf '%s\n' "$report" >&2
    exit 1
fi
export NODE_PATH="$directory/node_modules${NODE_PATH:+:$NODE_PATH}"
exec node "$program" "$@""#,
    },
];

/// Python as a program, where the interpreter of the sandbox is one of another language.
pub(crate) const PYTHON: &[Runner] = &[exec(&["python3"], r#"exec python3 "$@""#)];

/// How to get it.
pub(crate) const INSTALL_PYTHON: &str = "install Python (package python3)";

/// Every language, in the order of the help text.
pub(crate) const LANGUAGES: &[Language] = &[
    Language {
        name: "python",
        aliases: &["py", "python3"],
        extensions: &["py"],
        file: "main.py",
        engine: Engine::Interpreter,
    },
    Language {
        name: "node",
        aliases: &["js", "javascript", "nodejs"],
        extensions: &["js", "mjs", "cjs"],
        file: "main.js",
        engine: Engine::Tools {
            runners: &[exec(&["node"], r#"exec node "$@""#)],
            install: "install Node.js (package nodejs)",
            dependencies: None,
            beside: true,
        },
    },
    Language {
        name: "typescript",
        aliases: &["ts"],
        extensions: &["ts", "mts", "cts"],
        file: "main.ts",
        engine: Engine::Tools {
            runners: TYPESCRIPT,
            install: "install Node.js 22.6 or newer, or `npm install --global tsx`",
            dependencies: None,
            beside: true,
        },
    },
    Language {
        name: "go",
        aliases: &["golang"],
        extensions: &["go"],
        file: "main.go",
        engine: Engine::Tools {
            runners: GO,
            install: "install Go (package golang-go)",
            dependencies: Some(&GO_MODULES),
            beside: false,
        },
    },
    Language {
        name: "rust",
        aliases: &["rs"],
        extensions: &["rs"],
        file: "main.rs",
        engine: Engine::Tools {
            runners: RUST,
            install: "install Rust from https://rustup.rs (or the package rustc) and gcc",
            dependencies: None,
            beside: false,
        },
    },
    Language {
        name: "bash",
        aliases: &[],
        extensions: &["sh", "bash"],
        file: "main.bash",
        engine: Engine::Tools {
            runners: &[exec(&["bash"], r#"exec bash "$@""#)],
            install: "install bash, or use --lang sh",
            dependencies: None,
            beside: false,
        },
    },
    Language {
        name: "sh",
        aliases: &["shell"],
        extensions: &[],
        file: "main.sh",
        engine: Engine::Tools {
            runners: &[exec(&["sh"], r#"exec sh "$@""#)],
            install: "choose an environment that has a shell",
            dependencies: None,
            beside: false,
        },
    },
    Language { name: KERNEL, aliases: &[], extensions: &[], file: "main", engine: Engine::Kernel },
];

/// The language of that name or alias, in any case.
///
/// # Errors
/// Lists the known ones.
pub(crate) fn find(name: &str) -> Result<&'static Language, String> {
    let wanted = name.trim().to_ascii_lowercase();
    LANGUAGES
        .iter()
        .find(|language| language.name == wanted || language.aliases.contains(&wanted.as_str()))
        .ok_or_else(|| format!("known languages are {}", names()))
}

/// The language that the extension of a file means.
pub(crate) fn of_file(path: &Path) -> Option<&'static Language> {
    LANGUAGES.iter().find(|language| language.has_extension(path))
}

/// The language that the first line of a script means: `#!/bin/sh`, `#!/usr/bin/env -S python3 -u` and the like.
pub(crate) fn of_first_line(line: &str) -> Option<&'static Language> {
    let mut words = line.strip_prefix("#!")?.split_whitespace();
    let program = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let mut name = program(words.next()?);
    if name == "env" {
        name = program(words.find(|word| !word.starts_with('-') && !word.contains('='))?);
    }
    // Versions are none of the language: python3.12, node22.
    let plain = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    find(&name).or_else(|_| find(plain)).ok().or_else(|| find("sh").ok().filter(|_| name == "dash"))
}

/// Every name, for messages.
pub(crate) fn names() -> String {
    LANGUAGES.iter().map(|language| language.name).collect::<Vec<_>>().join(", ")
}

impl Language {
    fn has_extension(&self, path: &Path) -> bool {
        path.extension().and_then(|extension| extension.to_str()).is_some_and(|extension| {
            self.extensions.iter().any(|known| extension.eq_ignore_ascii_case(known))
        })
    }

    /// The name that a program file gets in the sandbox: its own where the tools accept it.
    pub(crate) fn file_name(&self, path: Option<&Path>) -> String {
        path.filter(|path| self.has_extension(path))
            .and_then(|path| path.file_name()?.to_str())
            .unwrap_or(self.file)
            .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_aliases_and_extensions_find_one_language_each() {
        for (name, language) in [
            ("python", "python"),
            ("PY", "python"),
            ("javascript", "node"),
            ("js", "node"),
            ("ts", "typescript"),
            ("rs", "rust"),
            ("shell", "sh"),
        ] {
            assert_eq!(find(name).unwrap().name, language);
        }
        for (file, language) in [
            ("a.py", Some("python")),
            ("dir.js/a.MJS", Some("node")),
            ("a.cjs", Some("node")),
            ("a.sh", Some("bash")),
            ("a.rs.go", Some("go")),
            ("Makefile", None),
            (".py", None),
        ] {
            assert_eq!(of_file(Path::new(file)).map(|found| found.name), language, "{file}");
        }
        let mut all: Vec<_> = LANGUAGES
            .iter()
            .flat_map(|language| language.aliases.iter().chain([&language.name]))
            .collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count, "an alias means two languages");
    }

    #[test]
    fn a_first_line_names_the_language() {
        for (line, language) in [
            ("#!/bin/sh", Some("sh")),
            ("#! /bin/bash -e", Some("bash")),
            ("#!/usr/bin/env python3", Some("python")),
            ("#!/usr/bin/env -S A=1 python3.12 -u", Some("python")),
            ("#!/usr/bin/node\r", Some("node")),
            ("#!/usr/bin/perl", None),
            ("print(1)", None),
        ] {
            assert_eq!(of_first_line(line).map(|found| found.name), language, "{line}");
        }
    }

    #[test]
    fn a_program_keeps_its_name_where_the_tools_accept_it() {
        let go = find("go").unwrap();
        assert_eq!(go.file_name(Some(Path::new("/x/it's a.go"))), "it's a.go");
        assert_eq!(go.file_name(Some(Path::new("/x/prog.txt"))), "main.go");
        assert_eq!(go.file_name(None), "main.go");
    }

    #[test]
    fn unknown_languages_are_told_the_known_ones() {
        assert_eq!(
            find("cobol").unwrap_err(),
            "known languages are python, node, typescript, go, rust, bash, sh, kernel"
        );
    }
}
