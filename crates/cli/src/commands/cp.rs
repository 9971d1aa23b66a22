//! `sandboxes cp`: files and directories to a sandbox and from it.

use std::path::{Path, PathBuf};

use code_sandboxes::{Error, Sandbox, Transferred};
use serde_json::json;

use super::attach::attach_running;
use crate::args::CopyArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Here(&'a str),
    Inside { sandbox: &'a str, path: &'a str },
}

/// Copies a file or a directory.
pub(crate) async fn cp(args: &CopyArgs, printer: &Printer) -> Result<u8, Problem> {
    let done = match (place(&args.from), place(&args.to)) {
        (Place::Here(from), Place::Inside { sandbox, path }) => {
            let sandbox = attach_running(sandbox, &args.provider).await?;
            upload(&sandbox, Path::new(from), path).await?
        }
        (Place::Inside { sandbox, path }, Place::Here(to)) => {
            let sandbox = attach_running(sandbox, &args.provider).await?;
            download(&sandbox, path, Path::new(to)).await?
        }
        _ => {
            let message = "one of both must be in a sandbox, and the other here";
            return Err(Problem::usage(message, "write SANDBOX:PATH for the one in the sandbox"));
        }
    };
    for path in &done.skipped {
        printer.warning(&format!("left out, because it leads out of the directory: {path}"));
    }
    if printer.format() != Format::Text {
        let object = json!({"bytes": done.bytes, "files": done.files, "skipped": done.skipped});
        printer.json(&object).await?;
    }
    Ok(exit::SUCCESS)
}

/// What comes before the first colon is a sandbox, unless it looks like the beginning of a path.
fn place(text: &str) -> Place<'_> {
    match text.split_once(':') {
        Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.starts_with(['.', '/']) => {
            Place::Inside { sandbox, path: if path.is_empty() { "." } else { path } }
        }
        _ => Place::Here(text),
    }
}

async fn upload(sandbox: &Sandbox, from: &Path, to: &str) -> Result<Transferred, Error> {
    let into = to.ends_with('/')
        || to == "."
        || sandbox.files().stat(to).await.is_ok_and(|info| info.is_directory());
    let target = match from.file_name().and_then(|name| name.to_str()).filter(|_| into) {
        Some(name) => format!("{}/{name}", to.trim_end_matches('/')),
        None => to.to_owned(),
    };
    sandbox.files().upload(from, &target).await
}

async fn download(sandbox: &Sandbox, from: &str, to: &Path) -> Result<Transferred, Error> {
    let into = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let name = from.trim_end_matches('/').rsplit('/').next().filter(|name| *name != ".");
    let target: PathBuf = match name.filter(|_| into) {
        Some(name) => to.join(name),
        None => to.to_owned(),
    };
    sandbox.files().download(from, target).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_means_a_sandbox_unless_it_is_in_a_path() {
        let inside = |sandbox, path| Place::Inside { sandbox, path };
        assert_eq!(place("9f3a:x"), inside("9f3a", "x"));
        assert_eq!(place("local-eval/9f3a:/a:b"), inside("local-eval/9f3a", "/a:b"));
        assert_eq!(place("name:"), inside("name", "."));
        for path in ["x", "./a:b", "/a:b", "../a:b", ":x", "a/b"] {
            assert_eq!(place(path), Place::Here(path));
        }
    }
}
