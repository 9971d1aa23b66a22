//! `sandboxes cp`: files and directories to a sandbox and from it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use code_sandboxes::{Sandbox, Transferred};
use serde_json::json;

use super::attach::attach_running;
use crate::args::CopyArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Here(&'a Path),
    Inside { sandbox: &'a str, path: &'a str },
}

/// Copies a file or a directory.
pub(crate) async fn cp(args: &CopyArgs, printer: &Printer) -> Result<u8, Problem> {
    let done = match (place(&args.from)?, place(&args.to)?) {
        (Place::Here(from), Place::Inside { sandbox, path }) => {
            let sandbox = attach_running(sandbox, &args.provider).await?;
            upload(&sandbox, from, path).await?
        }
        (Place::Inside { sandbox, path }, Place::Here(to)) => {
            let sandbox = attach_running(sandbox, &args.provider).await?;
            download(&sandbox, path, to).await?
        }
        _ => {
            let message = "one of both must be in a sandbox, and the other here";
            return Err(Problem::usage(message, "write SANDBOX:PATH for the one in the sandbox"));
        }
    };
    for path in &done.skipped {
        let why = "it leads out of the directory, or is neither a file nor a directory";
        printer.warning(&format!("left out, because {why}: {path}"));
    }
    if printer.format() != Format::Text {
        let object = json!({"bytes": done.bytes, "files": done.files, "skipped": done.skipped});
        printer.json(&object).await?;
    }
    Ok(exit::SUCCESS)
}

/// What comes before the first colon is a sandbox, unless it looks like the beginning of a path.
fn place(text: &OsStr) -> Result<Place<'_>, Problem> {
    if text == "-" {
        return Err(Problem::usage(
            "standard input and output cannot be copied",
            "`sandboxes exec SANDBOX cat FILE` prints a file, and `sandboxes exec SANDBOX 'cat > FILE'` reads one; \
             `./-` is a file of that name",
        ));
    }
    let bytes = text.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':');
    let Some(colon) =
        colon.filter(|at| *at > 0 && !bytes.starts_with(b".") && !bytes.starts_with(b"/"))
    else {
        return Ok(Place::Here(Path::new(text)));
    };
    let (sandbox, path) = text.to_str().map(|text| text.split_at(colon)).ok_or_else(|| {
        let message = format!("{text:?} is not UTF-8 text, as paths in a sandbox are");
        Problem::usage(message, "a local name with a colon is written with `./` before it")
    })?;
    let path = &path[1..];
    Ok(Place::Inside { sandbox, path: if path.is_empty() { "." } else { path } })
}

async fn upload(sandbox: &Sandbox, from: &Path, to: &str) -> Result<Transferred, Problem> {
    let into = to.ends_with('/')
        || to == "."
        || sandbox.files().stat(to).await.is_ok_and(|info| info.is_directory());
    let target = match from.file_name().filter(|_| into) {
        Some(name) => {
            let name = name.to_str().ok_or_else(|| {
                let message = format!("{name:?} is not UTF-8 text, as names in a sandbox are");
                Problem::usage(
                    message,
                    format!("give it another one: {}/NAME", to.trim_end_matches('/')),
                )
            })?;
            format!("{}/{name}", to.trim_end_matches('/'))
        }
        None => to.to_owned(),
    };
    Ok(sandbox.files().upload(from, &target).await?)
}

async fn download(sandbox: &Sandbox, from: &str, to: &Path) -> Result<Transferred, Problem> {
    let into = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let name = from.trim_end_matches('/').rsplit('/').next().filter(|name| *name != ".");
    let target: PathBuf = match name.filter(|_| into) {
        Some(name) => to.join(name),
        None => to.to_owned(),
    };
    Ok(sandbox.files().download(from, target).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_means_a_sandbox_unless_it_is_in_a_path() {
        let inside = |sandbox, path| Place::Inside { sandbox, path };
        let place_of = |text| place(OsStr::new(text)).unwrap();
        assert_eq!(place_of("9f3a:x"), inside("9f3a", "x"));
        assert_eq!(place_of("local-eval/9f3a:/a:b"), inside("local-eval/9f3a", "/a:b"));
        assert_eq!(place_of("name::b"), inside("name", ":b"));
        assert_eq!(place_of("name:"), inside("name", "."));
        for path in ["x", "./a:b", "/a:b", "../a:b", ":x", "a/b"] {
            assert_eq!(place(OsStr::new(path)).unwrap(), Place::Here(Path::new(path)));
        }
        let bytes = OsStr::from_bytes(b"./caf\xe9");
        assert_eq!(place(bytes).unwrap(), Place::Here(Path::new(bytes)));
        for refused in [&b"name:caf\xe9"[..], b"-"] {
            assert!(matches!(place(OsStr::from_bytes(refused)), Err(Problem::Usage { .. })));
        }
    }
}
