//! The Python sources that run inside of a sandbox, and how to start them.
//!
//! Nothing is installed and nothing is written to disk: the host puts [`program`] into a memory
//! file, gives it to the interpreter as descriptor [`PROGRAM_FD`] with the arguments
//! [`ARGUMENTS`], and the control socket as descriptor [`CONTROL_FD`]. The zygote of a program
//! has the arguments of the program instead, [`archive`] as [`PROGRAM_FD`], and the variables
//! [`PROGRAM_VARIABLES`].

pub mod agent;
pub mod cache;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// The descriptor on which the zygote finds its packet socket.
pub const CONTROL_FD: i32 = 3;

/// The descriptor on which the interpreter finds [`program`].
pub const PROGRAM_FD: i32 = 4;

/// The interpreter's arguments: isolated from the environment and the user's site directory, no
/// byte code files, UTF-8 everywhere, program from [`PROGRAM_FD`].
pub const ARGUMENTS: [&str; 5] = ["-I", "-B", "-X", "utf8", "/dev/fd/4"];

/// The home directory in every cell. An interpreter outside of cells runs what is installed in its home, so no user of
/// this host may have this directory as home.
pub const HOME: &str = "/home/sandbox";

/// The environment variables with which the interpreter of a program finds the zygote, and those that the program finds in
/// every cell: modules that are imported before may remember their values.
pub const PROGRAM_VARIABLES: [(&str, &str); 4] = [
    ("PYTHONPATH", "/proc/self/fd/4"),
    ("HOME", HOME),
    ("USER", "sandbox"),
    ("LOGNAME", "sandbox"),
];

/// The last argument of the zygote of a program, which workers do not have. Should an interpreter ever pass by the zygote,
/// the program prints its version and ends, and does nothing outside of a cell.
pub const VERSION_FLAG: &str = "--version";

/// The zygote: forks workers, and never runs user code.
pub const ZYGOTE: &str = include_str!("worker/zygote.py");

/// The source that comes before each program. It finds the parts.
pub const LOADER: &str = include_str!("worker/loader.py");

/// The source that compiles programs, also for programs that start elsewhere.
pub const BYTECODE: &str = include_str!("worker/bytecode.py");

/// Sources that a program compiles when it first needs them, by name.
pub const PARTS: [(&str, &str); 33] = [
    ("codec", include_str!("worker/codec.py")),
    ("bytecode", BYTECODE),
    ("worker", include_str!("worker/worker.py")),
    ("driver", include_str!("worker/driver.py")),
    ("streams", include_str!("worker/streams.py")),
    ("library", include_str!("worker/library.py")),
    ("directory", include_str!("worker/directory.py")),
    ("run_settings", include_str!("worker/run_settings.py")),
    ("system_exit", include_str!("worker/system_exit.py")),
    ("startup", include_str!("worker/startup.py")),
    ("scripts", include_str!("worker/scripts.py")),
    ("cell", include_str!("worker/cell.py")),
    ("errors", include_str!("worker/errors.py")),
    ("top_level_await", include_str!("worker/top_level_await.py")),
    ("variables", include_str!("worker/variables.py")),
    ("builtins_api", include_str!("worker/builtins_api.py")),
    ("tools", include_str!("worker/tools.py")),
    ("hooks", include_str!("worker/hooks.py")),
    ("rich", include_str!("worker/rich.py")),
    ("charts", include_str!("worker/charts.py")),
    ("tables", include_str!("worker/tables.py")),
    ("shell", include_str!("worker/shell.py")),
    ("double_fork", include_str!("worker/double_fork.py")),
    ("checkpoint", include_str!("worker/checkpoint.py")),
    ("variable_export", include_str!("worker/variable_export.py")),
    ("pickle_by_value", include_str!("worker/pickle_by_value.py")),
    ("imported", include_str!("worker/imported.py")),
    ("matplotlib_inline", include_str!("worker/matplotlib_inline.py")),
    ("magics", include_str!("worker/magics.py")),
    ("installed", include_str!("worker/installed.py")),
    ("warmup", include_str!("worker/warmup.py")),
    ("template", include_str!("worker/template.py")),
    ("program", include_str!("worker/program.py")),
];

/// The whole program as one Python source: a table of the parts, then the zygote.
///
/// The parts are string constants, so that each is compiled when it is needed and not before. The interpreter also
/// takes the program as byte code that it gave itself: see the request that starts a zygote.
#[must_use]
pub fn program() -> String {
    assemble(&PARTS, ZYGOTE)
}

/// The whole program as an archive (zip) with one module, which an interpreter looks for right before its program.
#[must_use]
pub fn archive() -> Vec<u8> {
    const NAME: &[u8; 16] = b"sitecustomize.py";
    let program = program();
    let length = u32::try_from(program.len()).unwrap_or(u32::MAX);
    // Version, flags, method (stored), time, date (1980-01-01), checksum (which no interpreter looks at), both sizes, length
    // of the name, length of the extra field.
    let mut about = Vec::new();
    for half in [20_u16, 0, 0, 0, 0x21, 0, 0] {
        about.extend(half.to_le_bytes());
    }
    about.extend([length.to_le_bytes(), length.to_le_bytes()].concat());
    about.extend([16, 0, 0, 0]);
    let local = [b"PK\x03\x04", &about[..], NAME, program.as_bytes()].concat();
    let entry = [b"PK\x01\x02\x14\0", &about[..], &[0; 14], NAME].concat();
    let end = [&[0; 4][..], &[1, 0, 1, 0], &size(&entry), &size(&local), &[0, 0]].concat();
    [&local[..], &entry, b"PK\x05\x06", &end].concat()
}

fn size(part: &[u8]) -> [u8; 4] {
    u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes()
}

/// Puts together a table of the parts, the loader that finds them, and the source that begins.
pub fn assemble<'a>(parts: impl IntoIterator<Item = &'a (&'a str, &'a str)>, main: &str) -> String {
    let parts: Vec<String> = parts
        .into_iter()
        .map(|(name, source)| format!("{}: {}", literal(name), literal(source)))
        .collect();
    format!("SOURCES = {{{}}}\n{LOADER}\n\n{main}", parts.join(", "))
}

/// Returns one part by its name, such as `tools`, for another program with the same vocabulary. A part finds other parts
/// by a function `load`, which the program must provide. The function returns the names of a part.
#[must_use]
pub fn part(name: &str) -> Option<&'static str> {
    PARTS.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}

/// Tells one version of [`program`] from another. For caches: it may differ between builds.
#[must_use]
pub fn program_id() -> u64 {
    let mut hasher = DefaultHasher::new();
    (LOADER, ZYGOTE, PARTS).hash(&mut hasher);
    hasher.finish()
}

/// Writes a Python string literal: a JSON string of ASCII text is one.
fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Compares numbers that are written on both sides of a connection.
#[cfg(any(test, feature = "test-util"))]
pub mod numbers {
    use std::collections::BTreeSet;

    /// Lists constants with their names.
    #[macro_export]
    macro_rules! named {
        ($($name:ident)*) => { [$((stringify!($name), i128::try_from($name).unwrap())),*] };
    }
    pub use named;

    /// Fails unless the sources have each of the constants, with the same number at each place.
    #[track_caller]
    pub fn agree<'a>(
        sources: impl IntoIterator<Item = &'a (&'a str, &'a str)>,
        ours: &[(&str, i128)],
    ) {
        let mut found = BTreeSet::new();
        for (source, text) in sources {
            for (name, number) in text.lines().filter_map(assigned).flatten() {
                if let Some((name, ours)) = ours.iter().find(|(ours, _)| *ours == name) {
                    assert_eq!(number, *ours, "{name} in {source}");
                    found.insert(*name);
                }
            }
        }
        let missing: Vec<_> = ours.iter().filter(|(name, _)| !found.contains(name)).collect();
        assert!(missing.is_empty(), "not found: {missing:?}");
    }

    /// Reads the constants that a line gives numbers, in one of the forms that the sources have.
    fn assigned(line: &str) -> Option<Vec<(&str, i128)>> {
        let (names, values) = line.split('#').next()?.split_once(" = ")?;
        let names: Vec<_> = names.split(", ").collect();
        let constant = |name: &&str| name.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'_'));
        if !names.iter().all(constant) {
            return None;
        }
        let number = |text: &str| {
            let mut shifted = text.trim().split(" << ").map(|part| part.parse::<i128>().ok());
            let first = shifted.next()??;
            shifted.try_fold(first, |number, bits| Some(number << bits?))
        };
        let values: Vec<_> = match values.trim().strip_prefix("range(") {
            Some(range) => {
                let bounds: Option<Vec<_>> =
                    range.strip_suffix(')')?.split(", ").map(number).collect();
                match bounds?[..] {
                    [end] => (0..end).collect(),
                    [start, end] => (start..end).collect(),
                    _ => return None,
                }
            }
            None => values.split(", ").map(number).collect::<Option<_>>()?,
        };
        (names.len() == values.len()).then(|| names.into_iter().zip(values).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_ascii_so_that_their_literals_are_python() {
        for (name, source) in PARTS.iter().chain([&("zygote", ZYGOTE), &("loader", LOADER)]) {
            assert!(source.is_ascii(), "{name}");
            assert!(source.starts_with("\"\"\""), "{name} has no docstring");
        }
    }

    #[test]
    fn the_program_holds_every_part_on_its_first_line() {
        let program = program();
        let (table, rest) = program.split_once('\n').expect("two parts");
        assert!(rest.starts_with(LOADER) && rest.ends_with(ZYGOTE));
        for (name, _) in PARTS {
            assert!(table.contains(&format!("\"{name}\": ")), "{name}");
        }
    }
}
