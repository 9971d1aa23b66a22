//! The languages of `run`, as data.

use std::path::Path;

/// Name for the language of the sandbox's kernel.
pub(crate) const KERNEL: &str = "kernel";

/// A language, and how to run its programs.
#[derive(Debug, PartialEq)]
pub(crate) struct Language {
    /// The name in results.
    pub(crate) name: &'static str,
    /// Other names for `--lang`.
    aliases: &'static [&'static str],
    /// File extensions, without the dot.
    extensions: &'static [&'static str],
    /// Name of the program file when the code is not in a file.
    file: &'static str,
    /// The engine that runs it.
    pub(crate) engine: Engine,
}

/// An engine that runs programs.
#[derive(Debug, PartialEq)]
pub(crate) enum Engine {
    /// The sandbox's interpreter, which can run scripts.
    Interpreter,
    /// The sandbox's interpreter in its own language: all code is a cell.
    Kernel,
    /// Tools in the sandbox.
    Tools {
        /// Runners; the first one whose tools the sandbox has is used.
        runners: &'static [Runner],
        /// Instructions to install the tools.
        install: &'static str,
        /// The dependencies of `--deps`.
        dependencies: Option<&'static Dependencies>,
        /// True when a program is put into the working directory, because modules are found relative to the program.
        beside: bool,
    },
}

/// The download of the dependencies of a program before it runs.
#[derive(Debug, PartialEq)]
pub(crate) struct Dependencies {
    /// Their name, for messages.
    pub(crate) label: &'static str,
    /// The file beside the program that lists the dependencies.
    pub(crate) manifest: &'static str,
    /// Optional files beside the manifest.
    pub(crate) optional: &'static [&'static str],
    /// The shell script that downloads them. `$1` is the program file.
    pub(crate) script: &'static str,
    /// Environment variables of the program.
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// Hosts of the downloads.
    pub(crate) hosts: &'static [&'static str],
}

/// One way to run a program file.
#[derive(Debug, PartialEq)]
pub(crate) struct Runner {
    /// The name, for messages about missing tools.
    pub(crate) label: &'static str,
    /// Required programs.
    pub(crate) needs: &'static [&'static str],
    /// A shell command that must succeed, too; empty for none.
    pub(crate) check: &'static str,
    /// The shell script that runs the program. `$1` is the program file, in its own directory; the others are its arguments.
    pub(crate) script: &'static str,
}

const fn exec(tool: &'static [&'static str], script: &'static str) -> Runner {
    Runner { label: tool[0], needs: tool, check: "", script }
}

/// Go programs are built first, because `go run` turns every exit status into 1.
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
    // The build may add entries to go.sum.
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
        // Types are not checked, as with the runners above; only syntax errors (TS1nnn) are fatal.
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

/// Runner of Python programs, for a sandbox whose interpreter has another language.
pub(crate) const PYTHON: &[Runner] = &[exec(&["python3"], r#"exec python3 "$@""#)];

/// Instructions to install Python.
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

/// Finds a language by name or alias, ignoring case.
///
/// # Errors
/// For an unknown name, with the known ones.
pub(crate) fn find(name: &str) -> Result<&'static Language, String> {
    let wanted = name.trim().to_ascii_lowercase();
    LANGUAGES
        .iter()
        .find(|language| language.name == wanted || language.aliases.contains(&wanted.as_str()))
        .ok_or_else(|| format!("known languages are {}", names()))
}

/// Finds a language by the extension of a file.
pub(crate) fn by_file(path: &Path) -> Option<&'static Language> {
    LANGUAGES.iter().find(|language| language.has_extension(path))
}

/// Finds a language by the first line of a script, such as `#!/bin/sh` or `#!/usr/bin/env -S python3 -u`.
pub(crate) fn by_first_line(line: &str) -> Option<&'static Language> {
    let mut words = line.strip_prefix("#!")?.split_whitespace();
    let program = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let mut name = program(words.next()?);
    if name == "env" {
        name = program(words.find(|word| !word.starts_with('-') && !word.contains('='))?);
    }
    // Without a version: python3.12, node22.
    let plain = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    find(&name).or_else(|_| find(plain)).ok().or_else(|| find("sh").ok().filter(|_| name == "dash"))
}

/// Returns the names of all languages, for messages.
pub(crate) fn names() -> String {
    LANGUAGES.iter().map(|language| language.name).collect::<Vec<_>>().join(", ")
}

impl Language {
    fn has_extension(&self, path: &Path) -> bool {
        path.extension().and_then(|extension| extension.to_str()).is_some_and(|extension| {
            self.extensions.iter().any(|known| extension.eq_ignore_ascii_case(known))
        })
    }

    /// Returns the name of a program file in the sandbox: its own name if the tools accept it.
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
            assert_eq!(by_file(Path::new(file)).map(|found| found.name), language, "{file}");
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
            assert_eq!(by_first_line(line).map(|found| found.name), language, "{line}");
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
    fn errors_about_unknown_languages_list_the_known_ones() {
        assert_eq!(
            find("cobol").unwrap_err(),
            "known languages are python, node, typescript, go, rust, bash, sh, kernel"
        );
    }
}
