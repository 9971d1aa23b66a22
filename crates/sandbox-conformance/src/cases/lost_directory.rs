//! Code that puts something else in the place of its working directory, where it may. Interpreters of later runs start
//! there.

use sandbox_core::{ErrorKind, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, is_usable, ok, refused, run, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("lost_directory", [run_code, strict, local], {
        one_that_was_removed_is_made_again;
        a_link_to_a_directory_is_followed;
        a_link_leads_nowhere_that_code_cannot_go;
        what_is_no_directory_is_named needs commands;
    })
}

/// Puts something else there and ends the interpreter.
async fn replaced(f: &Fixture, by: &str) -> Checked<Sandbox> {
    let sandbox = f.create(|b| b.working_dir("/tmp/place")).await?;
    let code = format!(
        "import os\nos.chdir('/')\nos.rename('/tmp/place', '/tmp/former')\n{by}\nprint('replaced', flush=True)\nos._exit(1)"
    );
    let result = run(&sandbox, &code).await?;
    ensure_eq!(result.stdout_trimmed(), "replaced", "{by}: {:?}", result.code_error);
    Ok(sandbox)
}

async fn one_that_was_removed_is_made_again(f: Fixture) -> Checked {
    let sandbox = replaced(&f, "").await?;
    ensure!(is_usable(&sandbox).await?.restarted, "the next run does not say `restarted`");
    ensure_eq!(text(&sandbox, "import os; os.getcwd()").await?, as_shown("'/tmp/place'"));
    ok(&sandbox, "open('made', 'w').write('x')").await?;
    Ok(())
}

async fn a_link_to_a_directory_is_followed(f: Fixture) -> Checked {
    let sandbox = replaced(&f, "os.symlink('/tmp/former', '/tmp/place')").await?;
    ensure_eq!(text(&sandbox, "import os; os.getcwd()").await?, as_shown("'/tmp/former'"));
    Ok(())
}

/// Where a process starts may be nowhere that it could not go by itself.
async fn a_link_leads_nowhere_that_code_cannot_go(f: Fixture) -> Checked {
    for target in [
        "/proc/1/root",
        "/proc/1/cwd",
        "/proc/1/root/workspace",
        "/proc/self/fd/0",
        "/proc/self/fd/100",
        "/proc/self/fd/101",
        "/proc/self/cwd",
        "/proc/self/root",
        "/proc/self/ns",
        "/proc/1/ns",
    ] {
        let sandbox = replaced(&f, &format!("os.symlink('{target}', '/tmp/place')")).await?;
        let code = "
import os
def identity(path):
    status = os.stat(path)
    return status.st_dev, status.st_ino
def entries(path):
    try: return sorted(os.listdir(path))
    except OSError: return None
here, root = identity('.'), identity('/')
named = os.getcwd()
(here == identity(named), named, here == root, entries('.') == entries(named))";
        match sandbox.run_code(code).await {
            Ok(result) => {
                ensure_eq!(result.code_error.as_ref().map(ToString::to_string), None, "{target}");
                let found = result.text().unwrap_or_default().to_owned();
                ensure!(
                    found.starts_with("(True,") && found.ends_with("True)"),
                    "{target}: {found}"
                );
            }
            Err(error) => ensure_eq!(error.kind(), ErrorKind::NotFound, "{target}: {error}"),
        }
    }
    Ok(())
}

async fn what_is_no_directory_is_named(f: Fixture) -> Checked {
    for by in [
        "open('/tmp/place', 'w').close()",
        "os.symlink('/nowhere/at/all', '/tmp/place')",
        "os.symlink('/tmp/place', '/tmp/place')",
        "os.symlink('/etc/passwd', '/tmp/place')",
        "os.mkfifo('/tmp/place')",
    ] {
        let sandbox = replaced(&f, by).await?;
        for _ in 0..2 {
            let error = refused(sandbox.run_code("1").await, ErrorKind::NotFound)?;
            ensure!(error.to_string().contains("/tmp/place"), "{by}: {error}");
            ensure!(error.hint().is_some(), "{by}: no hint");
        }
        let error = refused(sandbox.commands().run("true").await, ErrorKind::NotFound)?;
        ensure!(error.to_string().contains("/tmp/place"), "{by}: {error}");
        // The hint is right.
        let mended = sandbox.commands().run("rm -rf /tmp/place && mv /tmp/former /tmp/place");
        let mended = mended.cwd("/").await?;
        ensure_eq!(mended.exit_code, 0, "{by}: {mended:?}");
        ensure!(is_usable(&sandbox).await?.restarted, "{by}: no word of the restart");
        ensure_eq!(text(&sandbox, "import os; os.getcwd()").await?, as_shown("'/tmp/place'"));
    }
    Ok(())
}
