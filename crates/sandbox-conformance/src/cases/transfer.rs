//! Files of this computer to a sandbox and back.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox_core::{ByteSize, ErrorKind, Progress};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host::token;
use crate::support::{WAIT_TIMEOUT, eventually, ok, refused, run};

pub(super) fn cases() -> Vec<Case> {
    cases!("transfer", [files], {
        a_file_goes_there_and_back;
        a_directory_goes_there_and_back;
        progress_is_told;
        a_limit_is_kept;
        programs_stay_programs;
        times_and_modes_of_directories_are_kept;
        a_directory_is_merged_when_that_is_said;
        an_upload_replaces_at_once;
        a_missing_side_is_told;
        no_local_link_is_written_through;
        nothing_local_is_replaced_by_a_directory;
        links_that_lead_out_are_left_out needs run_code;
        local_traps_are_refused;
        a_dropped_download_leaves_nothing;
        a_failed_download_keeps_the_old_file;
        names_of_the_sandbox_stay_in_the_directory needs run_code;
        what_code_does_meanwhile_does_not_matter needs run_code;
    })
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Checked<Self> {
        let path = std::env::temp_dir().join(token("transfer-"));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn count(&self) -> Checked<usize> {
        Ok(fs::read_dir(&self.0)?.count())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

async fn a_file_goes_there_and_back(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    for size in [0, 1, 256 * 1024, 256 * 1024 + 1, 5_000_000] {
        let content: Vec<u8> = (0..size).map(|i: u32| (i % 249) as u8).collect();
        fs::write(folder.join("up"), &content)?;
        let done = sandbox.files().upload(folder.join("up"), "deep/er/file").await?;
        ensure_eq!((done.bytes, done.files), (u64::from(size), 1));
        ensure_eq!(sandbox.files().stat("deep/er/file").await?.size, u64::from(size));
        let done = sandbox.files().download("deep/er/file", folder.join("down")).await?;
        ensure_eq!((done.bytes, done.files), (u64::from(size), 1));
        ensure!(fs::read(folder.join("down"))? == content, "{size} bytes differ");
    }
    ensure_eq!(folder.count()?, 2, "nothing is left beside them");
    Ok(())
}

async fn a_directory_goes_there_and_back(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    let up = folder.join("up");
    fs::create_dir_all(up.join("a/b"))?;
    fs::create_dir(up.join("empty"))?;
    fs::write(up.join("a/b/large"), vec![3; 2_000_000])?;
    fs::write(up.join("x\ny"), "strange")?;
    symlink("a/b", up.join("link"))?;
    let done = sandbox.files().upload(&up, "there").await?;
    ensure_eq!((done.files, done.bytes, done.skipped.len()), (2, 2_000_007, 0));
    ensure_eq!(sandbox.files().stat("there/link").await?.target.as_deref(), Some("a/b"));
    let done = sandbox.files().download("there", folder.join("down")).await?;
    ensure_eq!((done.files, done.bytes), (2, 2_000_007));
    ensure!(fs::read(folder.join("down/a/b/large"))? == vec![3; 2_000_000], "another content");
    ensure_eq!(fs::read_to_string(folder.join("down/x\ny"))?, "strange");
    ensure_eq!(fs::read_link(folder.join("down/link"))?, Path::new("a/b"));
    ensure!(folder.join("down/empty").is_dir(), "an empty directory is missing");
    ensure_eq!(folder.count()?, 2, "nothing is left beside them");
    Ok(())
}

async fn progress_is_told(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    let size = 20 << 20;
    fs::write(folder.join("up"), vec![1; size as usize])?;
    let is_right = |told: &[Progress]| {
        let grows = told.windows(2).all(|two| two[0].bytes <= two[1].bytes);
        let end = Progress { bytes: size, total: Some(size) };
        grows && told.len() > 3 && told.last() == Some(&end)
    };
    let mut told = Vec::new();
    sandbox.files().upload(folder.join("up"), "x").progress(|progress| told.push(progress)).await?;
    ensure!(is_right(&told), "up: {told:?}");
    told.clear();
    sandbox.files().download("x", folder.join("down")).progress(|p| told.push(p)).await?;
    ensure!(is_right(&told), "down: {told:?}");
    Ok(())
}

async fn a_limit_is_kept(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    let (files, most) = (sandbox.files(), ByteSize::mib(1));
    fs::create_dir(folder.join("up"))?;
    fs::write(folder.join("up/x"), vec![1; 2 << 20])?;
    refused(
        files.upload(folder.join("up/x"), "x").at_most(most).await,
        ErrorKind::ResourceExhausted,
    )?;
    refused(
        files.upload(folder.join("up"), "d").at_most(most).await,
        ErrorKind::ResourceExhausted,
    )?;
    eventually("tidying", WAIT_TIMEOUT, async || Ok(files.list(".").await?.is_empty())).await?;
    files.upload(folder.join("up"), "d").await?;
    for path in ["d", "d/x"] {
        let down = files.download(path, folder.join("down")).at_most(most).await;
        refused(down, ErrorKind::ResourceExhausted)?;
    }
    ensure_eq!(folder.count()?, 1);
    files.download("d/x", folder.join("down")).at_most(ByteSize::mib(2)).await?;
    Ok(())
}

async fn programs_stay_programs(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    fs::write(folder.join("tool"), "#!/bin/sh\n")?;
    fs::set_permissions(folder.join("tool"), fs::Permissions::from_mode(0o755))?;
    fs::write(folder.join("plain"), "")?;
    sandbox.files().upload(folder.join("tool"), "d/tool").await?;
    sandbox.files().upload(folder.join("plain"), "d/plain").await?;
    ensure_eq!(sandbox.files().stat("d/tool").await?.permissions, "755");
    sandbox.files().download("d/tool", folder.join("t")).await?;
    sandbox.files().download("d", folder.join("down")).await?;
    let mode = |name| -> Checked<u32> {
        Ok(fs::metadata(folder.join(name))?.permissions().mode() & 0o777)
    };
    ensure_eq!((mode("t")?, mode("down/tool")?, mode("down/plain")?), (0o700, 0o700, 0o600));
    Ok(())
}

async fn times_and_modes_of_directories_are_kept(f: Fixture) -> Checked {
    const TIME: u64 = 1_000_000_000;
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    let old = std::time::UNIX_EPOCH + Duration::from_secs(TIME);
    let set = |name: &str| fs::File::open(folder.join(name))?.set_modified(old);
    fs::create_dir_all(folder.join("d/sub"))?;
    fs::write(folder.join("d/sub/x"), "x")?;
    fs::set_permissions(folder.join("d/sub"), fs::Permissions::from_mode(0o750))?;
    fs::set_permissions(folder.join("d"), fs::Permissions::from_mode(0o700))?;
    for name in ["d/sub/x", "d/sub"] {
        set(name)?;
    }
    let files = sandbox.files();
    files.upload(folder.join("d"), "d").await?;
    files.upload(folder.join("d/sub/x"), "x").await?;
    for name in ["x", "d/sub/x", "d/sub"] {
        ensure_eq!(files.stat(name).await?.modified, TIME as f64, "{name}");
    }
    let modes = (files.stat("d").await?.permissions, files.stat("d/sub").await?.permissions);
    ensure_eq!(modes, ("700".to_owned(), "750".to_owned()));
    files.download("d", folder.join("back")).await?;
    files.download("x", folder.join("x")).await?;
    for name in ["x", "back/sub/x", "back/sub"] {
        ensure_eq!(fs::metadata(folder.join(name))?.modified()?, old, "{name}");
    }
    // By default what is new is its owner's alone; with their permissions, others may use it as the umask says.
    ensure_eq!(fs::metadata(folder.join("back/sub"))?.permissions().mode() & 0o777, 0o700);
    files.download("d", folder.join("kept")).keep_permissions().await?;
    let kept = fs::metadata(folder.join("kept/sub"))?.permissions().mode();
    ensure_eq!(kept & 0o707, 0o700, "{kept:o}");
    Ok(())
}

async fn a_directory_is_merged_when_that_is_said(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    let files = sandbox.files();
    for (name, text) in [("d/same", "new"), ("d/sub/b", "b"), ("d/link", "l")] {
        files.write(name, text).await?;
    }
    fs::create_dir_all(folder.join("d/sub"))?;
    fs::write(folder.join("d/same"), "old")?;
    fs::write(folder.join("d/sub/a"), "a")?;
    fs::write(folder.join("outside"), "outside")?;
    symlink("../outside", folder.join("d/link"))?;
    refused(files.download("d", folder.join("d")).await, ErrorKind::AlreadyExists)?;
    files.download("d", folder.join("d")).merge().await?;
    for (name, text) in [
        ("d/same", "new"),
        ("d/sub/a", "a"),
        ("d/sub/b", "b"),
        ("d/link", "l"),
        ("outside", "outside"),
    ] {
        ensure_eq!(fs::read_to_string(folder.join(name))?, text, "{name}");
    }
    // A link to a directory is not gone through, and then nothing is changed.
    fs::create_dir(folder.join("elsewhere"))?;
    fs::remove_dir_all(folder.join("d/sub"))?;
    symlink("../elsewhere", folder.join("d/sub"))?;
    fs::write(folder.join("d/same"), "old")?;
    refused(files.download("d", folder.join("d")).merge().await, ErrorKind::InvalidArgument)?;
    ensure_eq!(fs::read_to_string(folder.join("d/same"))?, "old");
    ensure_eq!(fs::read_dir(folder.join("elsewhere"))?.count(), 0);
    ensure_eq!(fs::read_dir(folder.join("d"))?.count(), 3, "the draft is gone");
    Ok(())
}

async fn an_upload_replaces_at_once(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    sandbox.files().write("x", "old").await?;
    fs::write(folder.join("up"), vec![1; 30 << 20])?;
    let uploading = sandbox.files().upload(folder.join("up"), "x");
    let short = tokio::time::timeout(Duration::from_millis(1), uploading).await;
    let size = sandbox.files().stat("x").await?.size;
    ensure!(size == 3 || (size == 30 << 20 && short.is_ok()), "part of it: {size}");
    sandbox.files().upload(folder.join("up"), "x").await?;
    ensure_eq!(sandbox.files().stat("x").await?.size, 30 << 20);
    Ok(())
}

async fn a_missing_side_is_told(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    let error =
        refused(sandbox.files().upload(folder.join("none"), "x").await, ErrorKind::NotFound)?;
    ensure!(error.context().iter().any(|(key, _)| *key == "local"), "{error:?}");
    ensure!(!sandbox.files().exists("x").await?, "it was made");
    let error =
        refused(sandbox.files().download("none", folder.join("x")).await, ErrorKind::NotFound)?;
    ensure!(error.context().iter().all(|(key, _)| *key != "local"), "{error:?}");
    sandbox.files().write("x", "x").await?;
    let nowhere = folder.join("no/such/place");
    refused(sandbox.files().download("x", nowhere).await, ErrorKind::NotFound)?;
    ensure_eq!(folder.count()?, 0);
    Ok(())
}

async fn no_local_link_is_written_through(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    sandbox.files().write("d/x", "new").await?;
    fs::write(folder.join("victim"), "old")?;
    symlink("victim", folder.join("link"))?;
    symlink("nowhere", folder.join("dangling"))?;
    for name in ["link", "dangling"] {
        let down = sandbox.files().download("d/x", folder.join(name)).await;
        refused(down, ErrorKind::InvalidArgument)?;
        let down = sandbox.files().download("d", folder.join(name)).await;
        refused(down, ErrorKind::AlreadyExists)?;
    }
    ensure_eq!(fs::read_to_string(folder.join("victim"))?, "old");
    ensure_eq!(folder.count()?, 3);
    Ok(())
}

async fn nothing_local_is_replaced_by_a_directory(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    sandbox.files().write("d/x", "new").await?;
    fs::create_dir(folder.join("there"))?;
    fs::write(folder.join("file"), "old")?;
    for name in ["there", "file"] {
        let down = sandbox.files().download("d", folder.join(name)).await;
        refused(down, ErrorKind::AlreadyExists)?;
    }
    let down = sandbox.files().download("d/x", folder.join("there")).await;
    refused(down, ErrorKind::InvalidArgument)?;
    ensure_eq!(fs::read_to_string(folder.join("file"))?, "old");
    Ok(())
}

async fn links_that_lead_out_are_left_out(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    let code = "
import os
os.makedirs('d/a/b/c'); open('d/real', 'w').write('x')
os.symlink('/etc/passwd', 'd/absolute'); os.symlink('../../..', 'd/up'); os.symlink('real', 'd/fine')
os.symlink('../../..', 'd/a/b/c/top'); os.symlink('a/b/c/top/..', 'd/through')";
    ok(&sandbox, code).await?;
    let mut done = sandbox.files().download("d", folder.join("down")).await?;
    done.skipped.sort();
    ensure_eq!(done.skipped, ["absolute", "through", "up"]);
    ensure_eq!(fs::read_to_string(folder.join("down/fine"))?, "x");
    ensure!(fs::symlink_metadata(folder.join("down/absolute")).is_err(), "it is there");
    Ok(())
}

async fn local_traps_are_refused(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    fs::create_dir(folder.join("up"))?;
    let made = std::process::Command::new("mkfifo").arg(folder.join("up/fifo")).status()?;
    ensure!(made.success(), "mkfifo failed");
    let upload = sandbox.files().upload(folder.join("up/fifo"), "x").await;
    refused(upload, ErrorKind::InvalidArgument)?;
    let upload = sandbox.files().upload(folder.join("up"), "x").await;
    refused(upload, ErrorKind::InvalidArgument)?;
    ensure!(!sandbox.files().exists("x").await?, "part of it is there");
    Ok(())
}

async fn a_dropped_download_leaves_nothing(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    sandbox.files().write("d/x", vec![1; 50 << 20]).await?;
    for path in ["d/x", "d"] {
        let down = sandbox.files().download(path, folder.join("down"));
        let short = tokio::time::timeout(Duration::from_millis(3), down).await;
        crate::support::eventually("tidying", crate::support::WAIT_TIMEOUT, async || {
            Ok(folder.count()? == usize::from(short.is_ok()))
        })
        .await?;
        let _ = fs::remove_file(folder.join("down"));
        let _ = fs::remove_dir_all(folder.join("down"));
    }
    Ok(())
}

async fn a_failed_download_keeps_the_old_file(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    sandbox.files().write("x", vec![1; 50 << 20]).await?;
    fs::write(folder.join("down"), "old")?;
    let mut killed = false;
    let instance = sandbox.instance("test")?;
    let (kill, wait) = tokio::sync::oneshot::channel::<()>();
    let mut kill = Some(kill);
    let ending = tokio::spawn(async move {
        let _ = wait.await;
        instance.life().kill(&sandbox_core::CallContext::new()).await
    });
    let down = sandbox.files().download("x", folder.join("down")).progress(|progress| {
        if progress.bytes > 1 << 20
            && let Some(kill) = kill.take()
        {
            killed = kill.send(()).is_ok();
            // So that it is dead before the rest is read.
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let answer = down.await;
    ending.await??;
    ensure!(killed, "it was never killed");
    refused(answer, ErrorKind::Terminated)?;
    ensure_eq!(fs::read_to_string(folder.join("down"))?, "old");
    ensure_eq!(folder.count()?, 1);
    Ok(())
}

async fn names_of_the_sandbox_stay_in_the_directory(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    let code = "
import os
os.mkdir('d')
for name in [b'\\xff', b'..a', b'...', b'~', b'C:', b'a\\\\b', b'-rf', b'$(id)']:
    open(b'd/' + name, 'wb').close()";
    ok(&sandbox, code).await?;
    let done = sandbox.files().download("d", folder.join("down")).await?;
    ensure_eq!(done.files, 8);
    ensure_eq!(fs::read_dir(folder.join("down"))?.count(), 8);
    ensure_eq!(folder.count()?, 1);
    Ok(())
}

async fn what_code_does_meanwhile_does_not_matter(f: Fixture) -> Checked {
    let (sandbox, folder) = (f.sandbox().await?, Folder::new()?);
    fs::write(folder.join("up"), vec![1; 30 << 20])?;
    let running = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.run_code("while True: pass").no_timeout().await }
    });
    crate::support::until_executing(&sandbox).await?;
    sandbox.files().upload(folder.join("up"), "x").await?;
    sandbox.files().download("x", folder.join("down")).await?;
    ensure_eq!(fs::metadata(folder.join("down"))?.len(), 30 << 20);
    ensure!(sandbox.interrupt().await?, "nothing ran any more");
    running.await??;
    ensure!(run(&sandbox, "1").await?.success(), "it is of no use any more");
    Ok(())
}
