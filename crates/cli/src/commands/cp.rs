//! `sandboxes cp`: files and directories to a sandbox and from it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use code_sandboxes::{ByteSize, Error, ErrorKind, Sandbox, Transferred};
use serde_json::json;

use super::attach::attach_running;
use super::disk::disk_of;
use super::run::Interrupts;
use crate::args::CopyArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;

/// What the headers of an archive take beside the content of its files.
const MAX_HEADERS: u64 = 256 << 20;

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Here(&'a Path),
    Inside { sandbox: &'a str, path: &'a str },
}

/// Copies files and directories: the last place is where to. The first that fails ends it.
pub(crate) async fn cp(args: &CopyArgs, printer: &Printer) -> Result<u8, Problem> {
    let places = args.places.iter().map(|text| place(text)).collect::<Result<Vec<_>, _>>()?;
    let Some((to, sources)) = places.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(Problem::usage("nothing is named to copy to", "give FROM and TO"));
    };
    let mut interrupts = Interrupts::listen()?;
    let done = tokio::select! {
        done = copy(args, to, sources) => done?,
        () = interrupts.next() => {
            return Err(Error::new(ErrorKind::Cancelled, "cp", "interrupted").into());
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

async fn copy(
    args: &CopyArgs,
    to: &Place<'_>,
    sources: &[Place<'_>],
) -> Result<Transferred, Problem> {
    let mut done = Transferred::default();
    // Several go into a directory, and one by itself may get a new name.
    let one = sources.len() == 1;
    match to {
        Place::Inside { sandbox, path } => {
            let sources = all(sources, |source| match source {
                Place::Here(path) => Some(*path),
                Place::Inside { .. } => None,
            })?;
            let sandbox = attach_running(sandbox, &args.provider).await?;
            let path = from_home(&sandbox, path).await?;
            if !one && !is_place_for_many(&sandbox, &path).await {
                return Err(not_for_many(&path));
            }
            for source in sources {
                add(&mut done, upload(&sandbox, source, &path, one).await?);
            }
        }
        Place::Here(to) => {
            let sources = all(sources, |source| match source {
                Place::Inside { sandbox, path } => Some((*sandbox, *path)),
                Place::Here(_) => None,
            })?;
            if !one && !to.is_dir() {
                return Err(not_for_many(&to.to_string_lossy()));
            }
            for (name, path) in sources {
                let sandbox = attach_running(name, &args.provider).await?;
                let path = from_home(&sandbox, path).await?;
                add(&mut done, download(&sandbox, &path, to).await?);
            }
        }
    }
    Ok(done)
}

/// Every source, when all of them are on the other side of the copy.
fn all<'p, T>(
    sources: &'p [Place<'p>],
    other_side: impl Fn(&'p Place<'p>) -> Option<T>,
) -> Result<Vec<T>, Problem> {
    sources.iter().map(other_side).collect::<Option<_>>().ok_or_else(|| {
        let message = "what is copied and where to must be one in a sandbox, and the other here";
        Problem::usage(message, "write SANDBOX:PATH for the one in the sandbox")
    })
}

fn not_for_many(path: &str) -> Problem {
    Problem::usage(
        format!("{path} is no directory, and several files cannot have one name"),
        "name a directory that is there, or in the sandbox one that ends in `/`",
    )
}

fn add(sum: &mut Transferred, more: Transferred) {
    sum.bytes += more.bytes;
    sum.files += more.files;
    sum.skipped.extend(more.skipped);
}

async fn is_place_for_many(sandbox: &Sandbox, path: &str) -> bool {
    path.ends_with('/') || is_directory(sandbox, path).await
}

async fn is_directory(sandbox: &Sandbox, path: &str) -> bool {
    path == "." || sandbox.files().stat(path).await.is_ok_and(|info| info.is_directory())
}

/// A path with `~` for the home directory in the sandbox, which no shell has replaced.
async fn from_home(sandbox: &Sandbox, path: &str) -> Result<String, Problem> {
    let Some(rest) = path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'))
    else {
        return Ok(path.to_owned());
    };
    let asked = sandbox.commands().run(r#"printf %s "$HOME""#).await?;
    if !asked.success() || !asked.stdout.starts_with('/') {
        return Err(Problem::usage(
            format!("{path} is below the home directory of the sandbox, which has none"),
            "write the whole path",
        ));
    }
    Ok(format!("{}{rest}", asked.stdout.trim_end_matches('/')))
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

async fn upload(
    sandbox: &Sandbox,
    from: &Path,
    to: &str,
    one: bool,
) -> Result<Transferred, Problem> {
    // What is in a directory goes where the directory itself would go by its name.
    let content_alone = from.as_os_str().as_bytes().ends_with(b"/.") && one;
    let into = !content_alone && (!one || to.ends_with('/') || is_directory(sandbox, to).await);
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
    let name = from.trim_end_matches('/').rsplit('/').next();
    let name = name.filter(|name| !matches!(*name, "" | "."));
    let target: PathBuf = match name.filter(|_| into) {
        Some(name) => to.join(name),
        None => to.to_owned(),
    };
    let transfer = sandbox.files().download(from, target).merge().keep_permissions();
    let Some(disk) = sandbox.info().as_ref().and_then(disk_of) else { return Ok(transfer.await?) };
    let most = ByteSize::bytes(disk.saturating_add(MAX_HEADERS));
    transfer.at_most(most).await.map_err(|error| {
        let is_about = |(key, value): &(&str, String)| *key == "cause" && value == "too_large";
        if !error.context().iter().any(is_about) {
            return error.into();
        }
        let disk = ByteSize::bytes(disk);
        let message = format!(
            "{from} is larger than the {disk} that the sandbox may have on its disk, as files with holes are; nothing was copied"
        );
        Error::new(ErrorKind::ResourceExhausted, "cp", message)
            .with_hint("copy the files that are needed one by one, or pack them inside: `tar -cSzf`")
            .with_source(error)
            .into()
    })
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
