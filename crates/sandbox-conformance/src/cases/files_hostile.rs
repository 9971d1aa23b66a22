//! Code that lays traps for file operations from outside.

use std::fs;
use std::time::{Duration, Instant};

use sandbox_core::{ErrorKind, FindFiles, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host::token;
use crate::support::{WAIT_TIMEOUT, is_usable, ok, refused, within};

pub(super) fn cases() -> Vec<Case> {
    cases!("files_hostile", [files, run_code, strict, local], {
        links_lead_nowhere_outside;
        dots_lead_nowhere_outside;
        magic_links_are_not_followed;
        the_kernel_is_not_shown;
        fifos_are_refused_at_once;
        devices_and_sockets_are_refused_at_once;
        links_are_not_written_through;
        removing_never_follows_links;
        copying_never_follows_links;
        hard_links_give_no_new_rights;
        circles_of_links_end;
        a_renaming_loop_leads_nowhere_outside;
        a_swapped_parent_leads_nowhere_outside;
        a_file_that_becomes_a_fifo_is_refused;
        a_changing_file_is_read_to_some_end;
        deep_trees_are_removed;
        deep_trees_end_searches;
        much_that_is_found_ends_searches;
        others_do_not_see_its_files;
        what_is_made_is_not_roots;
        set_user_bits_mean_nothing;
    })
}

/// A file of the host that nothing may reach, in a place that a cell does not show.
struct Canary {
    folder: std::path::PathBuf,
    secret: String,
}

impl Canary {
    fn new() -> Checked<Self> {
        let (name, secret) = (token("canary"), token("secret"));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder)?;
        fs::write(folder.join("file"), &secret)?;
        Ok(Self { folder, secret })
    }

    fn path(&self) -> String {
        self.folder.join("file").to_string_lossy().into_owned()
    }

    fn check(&self) -> Checked {
        ensure_eq!(fs::read_to_string(self.folder.join("file"))?, self.secret, "the canary");
        ensure_eq!(fs::read_dir(&self.folder)?.count(), 1, "files beside the canary");
        Ok(())
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Tries everything with a path that must not lead to the canary.
async fn leads_nowhere(sandbox: &Sandbox, canary: &Canary, path: &str) -> Checked {
    let files = sandbox.files();
    if let Ok(content) = files.read(path).await {
        let found = String::from_utf8_lossy(&content).into_owned();
        ensure!(!found.contains(&canary.secret), "{path} was read");
    }
    // Whatever these answer, they do not reach outside.
    let _ = files.append(path, "x").await;
    let _ = files.write(path, "x").await;
    let _ = files.chmod(path, 0o777).await;
    let _ = files.copy(path, "copied").await;
    if let Ok(content) = files.read("copied").await {
        ensure!(!String::from_utf8_lossy(&content).contains(&canary.secret), "{path} was copied");
    }
    let _ = files.list(path).await;
    let _ = files.remove(path, true).await;
    canary.check()
}

async fn links_lead_nowhere_outside(f: Fixture) -> Checked {
    let (sandbox, canary) = (f.sandbox().await?, Canary::new()?);
    for target in [canary.path(), format!("/proc/1/root{}", canary.path())] {
        let code = format!("import os\nos.symlink({target:?}, 'link')");
        ok(&sandbox, &code).await?;
        ensure!(sandbox.files().read("link").await.is_err(), "{target} was read");
        leads_nowhere(&sandbox, &canary, "link").await?;
        ok(&sandbox, "import os\nif os.path.lexists('link'): os.remove('link')").await?;
    }
    let code =
        "import os\nos.symlink('/etc/shadow', 'shadow'); os.symlink('/etc/passwd', 'passwd')";
    ok(&sandbox, code).await?;
    refused(sandbox.files().read("shadow").await, ErrorKind::NotFound)?;
    ensure!(sandbox.files().read_text("passwd").await?.contains("sandbox"), "its own passwd");
    Ok(())
}

async fn dots_lead_nowhere_outside(f: Fixture) -> Checked {
    let (sandbox, canary) = (f.sandbox().await?, Canary::new()?);
    let up = "../".repeat(50);
    let path = canary.path();
    for way in [format!("{up}{path}"), format!("/{up}{path}"), format!("/tmp/{up}/oldroot{path}")] {
        refused(sandbox.files().read(&way).await, ErrorKind::NotFound)?;
        leads_nowhere(&sandbox, &canary, &way).await?;
    }
    ensure_eq!(sandbox.files().stat("/../..").await?.kind, sandbox_core::FileKind::Directory);
    Ok(())
}

async fn magic_links_are_not_followed(f: Fixture) -> Checked {
    let (sandbox, canary) = (f.sandbox().await?, Canary::new()?);
    let path = canary.path();
    for way in
        ["/proc/self/root", "/proc/1/root", "/proc/self/cwd", "/proc/1/cwd", "/proc/self/fd/3"]
    {
        for full in [format!("{way}{path}"), format!("{way}/etc/hostname"), way.to_owned()] {
            let read = sandbox.files().read(&full).await;
            ensure!(read.is_err(), "{full} was read: {read:?}");
            ensure!(sandbox.files().list(&full).await.is_err(), "{full} was listed");
        }
        ok(&sandbox, &format!("import os\nos.symlink({way:?}, 'magic')")).await?;
        ensure!(sandbox.files().list("magic").await.is_err(), "{way} was listed through a link");
        leads_nowhere(&sandbox, &canary, &format!("magic{path}")).await?;
        sandbox.files().remove("magic", false).await?;
    }
    Ok(())
}

/// `/proc/self` would be the process that looks: this one.
async fn the_kernel_is_not_shown(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import os\nos.symlink('/proc', 'proc'); os.symlink('/proc/meminfo', 'memory')")
        .await?;
    for path in [
        "/proc/self/environ",
        "/proc/1/environ",
        "/proc/meminfo",
        "/proc/sys/kernel/hostname",
        "/proc/sysrq-trigger",
        "proc/meminfo",
        "memory",
    ] {
        let read = sandbox.files().read(path).await;
        ensure!(read.is_err(), "{path} was read");
        let written = sandbox.files().write(path, "x").await;
        ensure!(written.is_err(), "{path} was written");
        ensure!(sandbox.files().append(path, "x").await.is_err(), "{path} was appended to");
    }
    let error = refused(sandbox.files().read("/proc/meminfo").await, ErrorKind::PermissionDenied)?;
    ensure!(error.hint().is_some(), "no hint: {error:?}");
    refused(sandbox.files().list("/proc").await, ErrorKind::PermissionDenied)?;
    ensure!(sandbox.files().find("/", "meminfo").await?.is_empty(), "a search went into /proc");
    Ok(())
}

async fn refused_at_once(sandbox: &Sandbox, path: &str) -> Checked {
    let soon = Duration::from_secs(5);
    let files = sandbox.files();
    for answer in [
        within(soon, files.read(path)).await?.map(drop),
        within(soon, files.write(path, "x")).await?,
        within(soon, files.append(path, "x")).await?,
        within(soon, files.copy(path, "copied")).await?,
    ] {
        let error = refused(answer, ErrorKind::InvalidArgument)?;
        ensure!(error.context().iter().any(|(_, v)| v == "not_a_regular_file"), "{error:?}");
    }
    ensure!(!files.exists("copied").await?, "it was copied");
    within(soon, files.grep(".", "x")).await??;
    let mut archive = files.read_archive(".").await?;
    while let Some(piece) = within(soon, futures_util::StreamExt::next(&mut archive)).await? {
        piece?;
    }
    Ok(())
}

async fn fifos_are_refused_at_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import os\nos.mkfifo('fifo'); os.symlink('fifo', 'link')").await?;
    refused_at_once(&sandbox, "fifo").await?;
    let read = within(WAIT_TIMEOUT, sandbox.files().read("link")).await?;
    refused(read, ErrorKind::InvalidArgument)?;
    sandbox.files().remove("fifo", false).await?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn devices_and_sockets_are_refused_at_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import socket\ns = socket.socket(socket.AF_UNIX); s.bind('socket'); s.listen()")
        .await?;
    refused_at_once(&sandbox, "socket").await?;
    for device in ["/dev/zero", "/dev/urandom", "/dev/null", "/dev/tty"] {
        let read = within(WAIT_TIMEOUT, sandbox.files().read(device)).await?;
        refused(read, ErrorKind::InvalidArgument)?;
        ensure!(sandbox.files().write(device, "x").await.is_err(), "{device} was written");
    }
    Ok(())
}

async fn links_are_not_written_through(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import os\nopen('target', 'w').write('old'); os.symlink('target', 'link')")
        .await?;
    let files = sandbox.files();
    for answer in [
        files.write("link", "new").await,
        files.append("link", "new").await,
        files.chmod("link", 0o777).await,
    ] {
        let error = refused(answer, ErrorKind::InvalidArgument)?;
        ensure!(error.to_string().contains("link"), "{error}");
    }
    ensure_eq!(files.read_text("link").await?, "old", "reading follows it");
    ensure_eq!(files.stat("target").await?.permissions, "644");
    Ok(())
}

async fn removing_never_follows_links(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os
os.makedirs('kept/deep'); open('kept/deep/file', 'w').write('x')
os.makedirs('tree'); os.symlink('../kept', 'tree/link'); os.symlink('kept', 'top')";
    ok(&sandbox, code).await?;
    sandbox.files().remove("tree", true).await?;
    sandbox.files().remove("top", true).await?;
    ensure_eq!(sandbox.files().read_text("kept/deep/file").await?, "x");
    ensure_eq!(sandbox.files().list(".").await?.len(), 1);
    Ok(())
}

async fn copying_never_follows_links(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code =
        "import os\nos.mkdir('tree'); os.symlink('/usr', 'tree/usr'); os.symlink('.', 'tree/self')";
    ok(&sandbox, code).await?;
    sandbox.files().copy("tree", "copy").await?;
    ensure_eq!(sandbox.files().stat("copy/usr").await?.target.as_deref(), Some("/usr"));
    let mut archive = sandbox.files().read_archive("tree").await?;
    let mut size = 0;
    while let Some(piece) = futures_util::StreamExt::next(&mut archive).await {
        size += piece?.len();
    }
    ensure_eq!(size, 4 * 512, "two links and an end");
    ensure_eq!(sandbox.files().find("tree", "*").await?.len(), 2);
    Ok(())
}

async fn hard_links_give_no_new_rights(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os
made = []
for path in ['/usr/bin/env', '/etc/passwd', '/dev/null', '/proc/version']:
    try: os.link(path, 'hard'); made.append(path)
    except OSError: pass
print(made)";
    ensure_eq!(crate::support::printed(&sandbox, code).await?, "[]\n");
    ok(&sandbox, "import os\nopen('a', 'w').write('x'); os.link('a', 'b')").await?;
    sandbox.files().write("a", "new").await?;
    ensure_eq!(sandbox.files().read_text("b").await?, "x", "a new file is in place of one name");
    Ok(())
}

async fn circles_of_links_end(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os\nos.symlink('b', 'a'); os.symlink('a', 'b'); os.symlink('self', 'self'); os.symlink('gone', 'dangling')";
    ok(&sandbox, code).await?;
    let files = sandbox.files();
    refused(files.read("a").await, ErrorKind::InvalidArgument)?;
    refused(files.list("self/self").await, ErrorKind::InvalidArgument)?;
    refused(files.read("dangling").await, ErrorKind::NotFound)?;
    ensure!(files.exists("dangling").await?, "the link is there");
    ensure_eq!(files.list(".").await?.len(), 4);
    for name in ["a", "b", "self", "dangling"] {
        files.remove(name, true).await?;
    }
    ensure_eq!(files.list(".").await?.len(), 0);
    Ok(())
}

/// Starts code that does something over and over until the file `stop` is there.
async fn looping(
    sandbox: &Sandbox,
    before: &str,
    body: &str,
) -> Checked<tokio::task::JoinHandle<()>> {
    ok(sandbox, &format!("import os, stat\n{before}")).await?;
    let code = format!(
        "
while not os.path.exists('/workspace/stop'):
    for _ in range(50):
        try:
            {body}
        except OSError: pass"
    );
    let sandbox = sandbox.clone();
    let running = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { drop(sandbox.run_code(code).timeout(Duration::from_secs(60)).await) }
    });
    crate::support::until_executing(&sandbox).await?;
    Ok(running)
}

async fn stopped(sandbox: &Sandbox, running: tokio::task::JoinHandle<()>) -> Checked {
    sandbox.files().write("/workspace/stop", "").await?;
    within(WAIT_TIMEOUT, running).await??;
    Ok(())
}

async fn a_renaming_loop_leads_nowhere_outside(f: Fixture) -> Checked {
    let (sandbox, canary) = (f.sandbox().await?, Canary::new()?);
    let before = "os.makedirs('d/tmp'); os.symlink('/', 'root'); os.symlink('/proc/1/root', 'magic'); os.symlink('d', 'way')";
    let body = "os.rename('root', 'way'); os.symlink('/', 'root'); os.rename('magic', 'way'); os.symlink('/proc/1/root', 'magic'); os.symlink('d', 'next'); os.rename('next', 'way')";
    let running = looping(&sandbox, before, body).await?;
    let path = format!("way{}", canary.path());
    let (began, mut tries) = (Instant::now(), 0);
    // However slow the machine is, there are some.
    while began.elapsed() < Duration::from_secs(2) || tries <= 100 {
        for _ in 0..50 {
            tries += 1;
            let read = sandbox.files().read(&path).await;
            ensure!(read.is_err(), "read after {tries} tries");
            // Written beside it, if ever anywhere.
            let _ = sandbox.files().write(&format!("{path}.new"), "x").await;
        }
        let _ = sandbox.files().remove(&path, true).await;
    }
    stopped(&sandbox, running).await?;
    canary.check()
}

async fn a_swapped_parent_leads_nowhere_outside(f: Fixture) -> Checked {
    let (sandbox, canary) = (f.sandbox().await?, Canary::new()?);
    let (up, name) = ("../".repeat(8), canary.path());
    let before = "os.makedirs('a/b/c/d/e/f', exist_ok=True); os.makedirs('z', exist_ok=True)";
    let body = "os.rename('a/b/c', 'z/c'); os.rename('z/c', 'a/b/c')";
    let running = looping(&sandbox, before, body).await?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        let read = sandbox.files().read(&format!("a/b/c/d/e/f/{up}{name}")).await;
        ensure!(read.is_err(), "the canary was read");
        let _ = sandbox.files().list("a/b/c/d/../../../..").await;
    }
    stopped(&sandbox, running).await?;
    canary.check()
}

async fn a_file_that_becomes_a_fifo_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let before = "os.mkfifo('fifo'); open('plain', 'w').write('x'); os.link('plain', 'it')";
    let body =
        "os.link('fifo', 'f'); os.rename('f', 'it'); os.link('plain', 'p'); os.rename('p', 'it')";
    let running = looping(&sandbox, before, body).await?;
    let (began, mut read, mut refusals) = (Instant::now(), 0, 0);
    while began.elapsed() < Duration::from_secs(2) {
        match within(Duration::from_secs(10), sandbox.files().read("it")).await? {
            Ok(content) => {
                ensure_eq!(&*content, b"x", "another content");
                read += 1;
            }
            Err(error) => {
                ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
                refusals += 1;
            }
        }
        within(Duration::from_secs(10), sandbox.files().append("it", "")).await?.ok();
    }
    ensure!(read > 0 && refusals > 0, "{read} reads, {refusals} refusals: it did not race");
    stopped(&sandbox, running).await
}

async fn a_changing_file_is_read_to_some_end(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let before = "file = open('it', 'wb', 0); block = b'x' * 100000";
    let body = "file.write(block); (file.tell() > 10000000) and (file.truncate(0), file.seek(0))";
    let running = looping(&sandbox, before, body).await?;
    for _ in 0..50 {
        // It ends, or is larger than memory allows; it never panics, and what is there is what was written.
        match within(WAIT_TIMEOUT, sandbox.files().read("it")).await? {
            Ok(content) => ensure!(content.iter().all(|b| matches!(b, b'x' | 0)), "other content"),
            Err(error) => ensure_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error:?}"),
        }
    }
    stopped(&sandbox, running).await
}

const DEEP: &str = "
import os
# From the bottom up: with Landlock, every call takes the longer the deeper it is.
def deep(levels):
    for i in range(levels):
        os.mkdir('n')
        os.close(os.open('n/f', os.O_CREAT | os.O_WRONLY))
        if i: os.rename('d', 'n/d')
        os.rename('n', 'd')
deep(5000)";

async fn deep_trees_are_removed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, DEEP).await?;
    within(WAIT_TIMEOUT, sandbox.files().remove("d", true)).await??;
    ensure_eq!(sandbox.files().list(".").await?.len(), 0);
    Ok(())
}

async fn deep_trees_end_searches(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, DEEP).await?;
    let files = sandbox.files();
    refused(files.find(".", "nothing").await, ErrorKind::ResourceExhausted)?;
    refused(files.copy("d", "e").await, ErrorKind::ResourceExhausted)?;
    ensure!(!files.exists("e").await?, "part of a copy is left");
    let end = match files.read_archive(".").await {
        Ok(mut archive) => {
            let mut end = Ok(());
            while let Some(piece) = futures_util::StreamExt::next(&mut archive).await {
                end = piece.map(drop);
            }
            end
        }
        Err(error) => Err(error),
    };
    refused(end, ErrorKind::ResourceExhausted)?;
    within(WAIT_TIMEOUT, files.remove("d", true)).await??;
    Ok(())
}

async fn much_that_is_found_ends_searches(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // A short file, each line of which is found with a long path.
    let code = "
import os
top = os.getcwd()
for _ in range(14):
    os.mkdir('d' * 250)
    os.chdir('d' * 250)
with open('file', 'w') as file: file.write('x\\n' * 30_000)
os.chdir(top)";
    ok(&sandbox, code).await?;
    let mut query = FindFiles::default();
    (query.root, query.contains) = (".".into(), Some("x".into()));
    ensure_eq!(sandbox.files().search(query.clone()).await?.len(), 10_000, "control");
    query.limit = Some(30_000);
    refused(sandbox.files().search(query).await, ErrorKind::ResourceExhausted)?;
    Ok(())
}

async fn others_do_not_see_its_files(f: Fixture) -> Checked {
    let (one, other) = (f.sandbox().await?, f.sandbox().await?);
    for path in ["/workspace/secret", "/tmp/secret", "/dev/shm/secret"] {
        one.files().write(path, "x").await?;
        refused(other.files().read(path).await, ErrorKind::NotFound)?;
        let code = format!("import os; os.path.exists({path:?})");
        ensure_eq!(crate::support::text(&other, &code).await?, "False");
        ensure_eq!(crate::support::text(&one, &code).await?, "True", "control");
    }
    Ok(())
}

async fn what_is_made_is_not_roots(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("w", "x").await?;
    files.append("a", "x").await?;
    files.mkdir("p/q").await?;
    files.copy("w", "c").await?;
    files.copy("p", "t").await?;
    let code = "
import os
{name: (os.stat(name).st_uid, os.stat(name).st_gid) == (os.getuid(), os.getgid())
 for name in ['w', 'a', 'p', 'p/q', 'c', 't', 't/q']}";
    let owned = crate::support::text(&sandbox, code).await?;
    ensure!(!owned.contains("False"), "{owned}");
    Ok(())
}

async fn set_user_bits_mean_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().copy("/usr/bin/id", "id").await?;
    let _ = sandbox.files().chmod("id", 0o6755).await;
    let code = "import subprocess; print(subprocess.run(['./id', '-u'], capture_output=True, text=True).stdout.strip())";
    let user = crate::support::printed(&sandbox, code).await?;
    ensure!(user.trim() != "0", "it ran as root: {user}");
    Ok(())
}
