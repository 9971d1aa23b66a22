//! `sandboxes cp`: copies files and directories to a sandbox and from it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use code_sandboxes::{ByteSize, Error, ErrorKind, Sandbox, Transferred};
use serde_json::json;

use super::run::Interrupts;
use super::target::{attach_running, disk_limit};
use crate::args::CopyArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::progress;

/// Maximum size of the headers of an archive, beside the content of its files.
const MAX_HEADERS: u64 = 256 << 20;

/// One end of a copy.
#[derive(Debug, PartialEq, Eq)]
enum CopyEndpoint<'a> {
    Here(&'a Path),
    Inside { sandbox: &'a str, path: &'a str },
}

/// Copies files and directories to the last endpoint. The first failure ends the command.
pub(crate) async fn cp(args: &CopyArgs, printer: &Printer) -> Result<u8, CliError> {
    let endpoints =
        args.endpoints.iter().map(|text| endpoint(text)).collect::<Result<Vec<_>, _>>()?;
    let Some((to, sources)) = endpoints.split_last().filter(|(_, sources)| !sources.is_empty())
    else {
        return Err(CliError::usage("the target of the copy is missing", "give FROM and TO"));
    };
    let mut interrupts = Interrupts::listen()?;
    let done = tokio::select! {
        done = copy(args, to, sources, printer) => done?,
        () = interrupts.next() => {
            return Err(Error::new(ErrorKind::Cancelled, "cp", "interrupted").into());
        }
    };
    for path in &done.skipped {
        let why = "it leads out of the directory, or is neither a file nor a directory";
        printer.warning(&format!("not copied, because {why}: {path}"));
    }
    if printer.format() != Format::Text {
        let object = json!({"bytes": done.bytes, "files": done.files, "skipped": done.skipped});
        printer.json(&object).await?;
    }
    Ok(exit::SUCCESS)
}

async fn copy(
    args: &CopyArgs,
    to: &CopyEndpoint<'_>,
    sources: &[CopyEndpoint<'_>],
    printer: &Printer,
) -> Result<Transferred, CliError> {
    let mut done = Transferred::default();
    // Several sources go into a directory; a single source may get a new name.
    let one = sources.len() == 1;
    match to {
        CopyEndpoint::Inside { sandbox, path } => {
            let sources = sources_on_other_side(sources, |source| match source {
                CopyEndpoint::Here(path) => Some(*path),
                CopyEndpoint::Inside { .. } => None,
            })?;
            let sandbox = attach_running(sandbox, &args.provider).await?;
            let path = from_home(&sandbox, path).await?;
            if !one && !can_take_many(&sandbox, &path).await {
                return Err(not_for_many(&path));
            }
            for source in sources {
                add(&mut done, upload(&sandbox, source, &path, one, printer).await?);
            }
        }
        CopyEndpoint::Here(to) => {
            let sources = sources_on_other_side(sources, |source| match source {
                CopyEndpoint::Inside { sandbox, path } => Some((*sandbox, *path)),
                CopyEndpoint::Here(_) => None,
            })?;
            if !one && !to.is_dir() {
                return Err(not_for_many(&to.to_string_lossy()));
            }
            for (name, path) in sources {
                let sandbox = attach_running(name, &args.provider).await?;
                let path = from_home(&sandbox, path).await?;
                add(&mut done, download(&sandbox, &path, to, printer).await?);
            }
        }
    }
    Ok(done)
}

/// Returns the sources, which must all be on the other side of the copy.
fn sources_on_other_side<'p, T>(
    sources: &'p [CopyEndpoint<'p>],
    other_side: impl Fn(&'p CopyEndpoint<'p>) -> Option<T>,
) -> Result<Vec<T>, CliError> {
    sources.iter().map(other_side).collect::<Option<_>>().ok_or_else(|| {
        let message =
            "either the sources or the target must be in a sandbox, and the other on this host";
        CliError::usage(message, "write SANDBOX:PATH for a path in a sandbox")
    })
}

fn not_for_many(path: &str) -> CliError {
    CliError::usage(
        format!("{path} is not a directory, so it cannot take several files"),
        "name an existing directory, or in the sandbox a path that ends in `/`",
    )
}

fn add(sum: &mut Transferred, more: Transferred) {
    sum.bytes += more.bytes;
    sum.files += more.files;
    sum.skipped.extend(more.skipped);
}

async fn can_take_many(sandbox: &Sandbox, path: &str) -> bool {
    path.ends_with('/') || is_directory(sandbox, path).await
}

async fn is_directory(sandbox: &Sandbox, path: &str) -> bool {
    path == "." || sandbox.files().stat(path).await.is_ok_and(|info| info.is_directory())
}

/// Replaces `~` at the beginning of a path in the sandbox with its home directory.
async fn from_home(sandbox: &Sandbox, path: &str) -> Result<String, CliError> {
    let Some(rest) = path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'))
    else {
        return Ok(path.to_owned());
    };
    let output = sandbox.commands().run(r#"printf %s "$HOME""#).await?;
    if !output.success() || !output.stdout.starts_with('/') {
        return Err(CliError::usage(
            format!("{path} is below the home directory of the sandbox, which has none"),
            "write the whole path",
        ));
    }
    Ok(format!("{}{rest}", output.stdout.trim_end_matches('/')))
}

/// Parses an endpoint: what precedes the first colon is a sandbox, unless it begins like a path.
fn endpoint(text: &OsStr) -> Result<CopyEndpoint<'_>, CliError> {
    if text == "-" {
        return Err(CliError::usage(
            "standard input and output cannot be copied",
            "`sandboxes exec SANDBOX cat FILE` prints a file, and `sandboxes exec SANDBOX 'cat > FILE'` writes one; \
             `./-` is a file with the name `-`",
        ));
    }
    let bytes = text.as_bytes();
    let colon = bytes.iter().position(|byte| *byte == b':');
    let Some(colon) =
        colon.filter(|at| *at > 0 && !bytes.starts_with(b".") && !bytes.starts_with(b"/"))
    else {
        return Ok(CopyEndpoint::Here(Path::new(text)));
    };
    let (sandbox, path) = text.to_str().map(|text| text.split_at(colon)).ok_or_else(|| {
        let message = format!("{text:?} is not UTF-8 text, as paths in a sandbox are");
        CliError::usage(message, "write `./` before a local name with a colon")
    })?;
    let path = &path[1..];
    Ok(CopyEndpoint::Inside { sandbox, path: if path.is_empty() { "." } else { path } })
}

async fn upload(
    sandbox: &Sandbox,
    from: &Path,
    to: &str,
    one: bool,
    printer: &Printer,
) -> Result<Transferred, CliError> {
    // `DIR/.` copies the content of the directory, not the directory itself.
    let content_only = from.as_os_str().as_bytes().ends_with(b"/.") && one;
    let into = !content_only && (!one || to.ends_with('/') || is_directory(sandbox, to).await);
    let target = match from.file_name().filter(|_| into) {
        Some(name) => {
            let name = name.to_str().ok_or_else(|| {
                let message = format!("{name:?} is not UTF-8 text, as names in a sandbox are");
                CliError::usage(
                    message,
                    format!("give the file another name: {}/NAME", to.trim_end_matches('/')),
                )
            })?;
            format!("{}/{name}", to.trim_end_matches('/'))
        }
        None => to.to_owned(),
    };
    let bar = progress::transfer(printer, format!("uploading {}", from.display()));
    Ok(sandbox.files().upload(from, &target).progress(bar).await?)
}

async fn download(
    sandbox: &Sandbox,
    from: &str,
    to: &Path,
    printer: &Printer,
) -> Result<Transferred, CliError> {
    let into = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let name = from.trim_end_matches('/').rsplit('/').next();
    let name = name.filter(|name| !matches!(*name, "" | "."));
    let target: PathBuf = match name.filter(|_| into) {
        Some(name) => to.join(name),
        None => to.to_owned(),
    };
    let bar = progress::transfer(printer, format!("downloading {from}"));
    let transfer = sandbox.files().download(from, target).merge().keep_permissions();
    let transfer = transfer.progress(bar);
    let Some(disk) = disk_limit(&sandbox.info()) else {
        return Ok(transfer.await?);
    };
    let max = ByteSize::bytes(disk.saturating_add(MAX_HEADERS));
    transfer.at_most(max).await.map_err(|error| {
        let is_about = |(key, value): &(&str, String)| *key == "cause" && value == "too_large";
        if !error.context().iter().any(is_about) {
            return error.into();
        }
        let disk = ByteSize::bytes(disk);
        let message = format!(
            "{from} is larger than the disk of the sandbox ({disk}), so it has sparse files; nothing was copied"
        );
        Error::new(ErrorKind::ResourceExhausted, "cp", message)
            .with_hint("copy single files, or pack them in the sandbox: `tar -cSzf`")
            .with_source(error)
            .into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_means_a_sandbox_unless_it_is_in_a_path() {
        let inside = |sandbox, path| CopyEndpoint::Inside { sandbox, path };
        let parsed = |text| endpoint(OsStr::new(text)).unwrap();
        assert_eq!(parsed("9f3a:x"), inside("9f3a", "x"));
        assert_eq!(parsed("local-eval/9f3a:/a:b"), inside("local-eval/9f3a", "/a:b"));
        assert_eq!(parsed("name::b"), inside("name", ":b"));
        assert_eq!(parsed("name:"), inside("name", "."));
        for path in ["x", "./a:b", "/a:b", "../a:b", ":x", "a/b"] {
            assert_eq!(endpoint(OsStr::new(path)).unwrap(), CopyEndpoint::Here(Path::new(path)));
        }
        let bytes = OsStr::from_bytes(b"./caf\xe9");
        assert_eq!(endpoint(bytes).unwrap(), CopyEndpoint::Here(Path::new(bytes)));
        for refused in [&b"name:caf\xe9"[..], b"-"] {
            assert!(matches!(endpoint(OsStr::from_bytes(refused)), Err(CliError::Usage { .. })));
        }
    }
}
