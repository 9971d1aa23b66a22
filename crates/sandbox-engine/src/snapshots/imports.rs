//! Names of modules that an interpreter in a sandbox reports as imported, for interpreters outside to start with.
//!
//! Code in the sandbox may report anything. `docs/snapshots.md` says what a hostile template gains by that.

use std::collections::BTreeSet;

/// Maximum number of modules of one snapshot.
const MAX_MODULES: usize = 256;

/// Maximum length of a name.
const MAX_NAME_LENGTH: usize = 100;

/// Modules, with everything below them, that are never imported for a template: importing them has an effect (`this`
/// prints, `antigravity` starts a browser), they are no libraries, they end or change the process, they read or write
/// files of the current user (`matplotlib`), or they need a terminal.
const NEVER: [&str; 43] = [
    "__hello__",
    "__main__",
    "__phello__",
    "antigravity",
    "bpython",
    "code",
    "conftest",
    "curses",
    "distutils",
    "ensurepip",
    "eventlet",
    "faulthandler",
    "gevent",
    "gi",
    "idlelib",
    "IPython",
    "ipykernel",
    "jupyter_core",
    "lib2to3",
    "matplotlib",
    "nose",
    "pip",
    "pkg_resources",
    "pycuda",
    "pygame",
    "pytest",
    "pyximport",
    "readline",
    "rlcompleter",
    "sandbox_inline",
    "seaborn",
    "setup",
    "setuptools",
    "site",
    "sitecustomize",
    "test",
    "tests",
    "this",
    "tkinter",
    "turtle",
    "turtledemo",
    "usercustomize",
    "venv",
];

/// Returns the names that can be used, each once, in their order.
pub(super) fn checked(names: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let usable = names.iter().filter(|name| is_usable(name) && seen.insert(name.as_str()));
    usable.take(MAX_MODULES).cloned().collect()
}

fn is_usable(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with(|c: char| c.is_ascii_digit())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            // Programs, and the tests of a package.
            && !matches!(part, "__main__" | "test" | "tests" | "conftest")
    };
    let top = name.split('.').next().unwrap_or_default();
    name.len() <= MAX_NAME_LENGTH
        && name.split('.').all(part)
        && !NEVER.contains(&top)
        // Parts of Python's own tests.
        && !top.starts_with("_test")
        && !top.starts_with("_xx")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(names: &[&str]) -> Vec<String> {
        checked(&names.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn only_names_of_modules_that_are_harmless_to_import_are_kept() {
        let usable = ["numpy", "xml.etree.ElementTree", "_decimal", "numpy.core._multiarray_umath"];
        assert_eq!(kept(&usable), usable);
        for bad in [
            "",
            ".",
            "a..b",
            ".a",
            "a.",
            "a b",
            "a;b",
            "../a",
            "1a",
            "a-b",
            "a\0",
            "a\n",
            "\u{e9}",
            "this",
            "antigravity",
            "__main__",
            "test.support",
            "idlelib.run",
            "numpy.tests.test_x",
            "numpy.__main__",
            "json.__main__",
            "_testcapi",
            "matplotlib.pyplot",
            &"a".repeat(MAX_NAME_LENGTH + 1),
        ] {
            assert_eq!(kept(&[bad]), [""; 0], "{bad:?}");
        }
    }

    #[test]
    fn there_are_few_and_each_is_there_once() {
        assert_eq!(kept(&["b", "a", "b"]), ["b", "a"]);
        let many: Vec<_> = (0..1000).map(|n| format!("m{n}")).collect();
        assert_eq!(checked(&many), many[..MAX_MODULES]);
    }
}
