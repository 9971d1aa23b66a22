//! Files with bad names, of the wrong kind, without permission, too large.

use sandbox_core::{ByteSize, ErrorKind, FileKind, WriteOptions};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host::resident_memory;
use crate::support::{WAIT_TIMEOUT, ok, refused, within};

pub(super) fn cases() -> Vec<Case> {
    let mut all = cases!("files", [files], {
        strange_names_are_names;
        names_that_are_not_utf8_are_found_again needs run_code;
        impossible_names_are_refused;
        a_directory_is_no_file;
        a_file_is_no_directory;
        what_has_no_permission_is_refused needs run_code;
        the_system_cannot_be_changed needs strict;
        system_files_are_readable needs strict;
        a_full_disk_keeps_the_old_content needs limit_disk;
        a_full_disk_leaves_nothing_of_a_copy needs limit_disk;
        newlines_alone_are_content;
        more_than_memory_is_refused;
        times_of_all_ages_are_told needs run_code, strict;
        listings_are_limited needs run_code, strict;
    });
    all.extend(
        cases!("files", [files, local], {
            large_files_take_little_memory;
        })
        .into_iter()
        .map(Case::alone),
    );
    all
}

async fn strange_names_are_names(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.mkdir("d").await?;
    let long = "n".repeat(255);
    let names = [
        " ",
        "a b",
        "a\nb",
        "-rf",
        "--help",
        "'; rm -rf .",
        "$(id)",
        "*",
        "~",
        "é",
        "e\u{301}",
        "🦀",
        "a.",
        "a ",
        "con",
        "...",
        "\\",
        "\u{10feff}x",
        &long,
    ];
    for name in names {
        files.write(&format!("d/{name}"), name.to_owned()).await?;
    }
    let mut listed: Vec<String> = files.list("d").await?.into_iter().map(|i| i.name).collect();
    // A private character is how a byte of a name is shown that is no UTF-8; this one is that byte.
    let mut expected: Vec<String> = names.map(str::to_owned).into();
    listed.sort();
    expected.sort();
    ensure_eq!(listed, expected);
    for name in names {
        let path = format!("d/{name}");
        ensure_eq!(files.read_text(&path).await?, name);
        files.rename(&path, "d/moved").await?;
        ensure!(!files.exists(&path).await?, "{name:?} is still there");
        files.rename("d/moved", &path).await?;
        files.remove(&path, false).await?;
    }
    ensure_eq!(files.list("d").await?.len(), 0);
    Ok(())
}

async fn names_that_are_not_utf8_are_found_again(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os
for name in [b'caf\\xe9', b'\\xff', b'a\\xc3', '\\U0010feff'.encode()]:
    open(b'names-' + name, 'wb').write(name)";
    ok(&sandbox, code).await?;
    let listed = sandbox.files().list(".").await?;
    ensure_eq!(listed.len(), 4, "{listed:?}");
    for info in listed {
        let content = sandbox.files().read(&info.name).await?;
        let plain = info.name.trim_start_matches("names-").as_bytes().to_vec();
        ensure!(!content.is_empty() && plain != content.to_vec(), "{:?} is as it was", info.name);
        sandbox.files().remove(&info.path, false).await?;
    }
    ensure_eq!(sandbox.files().list(".").await?.len(), 0);
    Ok(())
}

async fn impossible_names_are_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    let (long_name, long_path) = ("n".repeat(256), "d/".repeat(2100));
    for path in ["", "a\0b", &*long_name, &*long_path] {
        refused(files.write(path, "x").await, ErrorKind::InvalidArgument)?;
        refused(files.read(path).await, ErrorKind::InvalidArgument)?;
        refused(files.stat(path).await, ErrorKind::InvalidArgument)?;
        refused(files.remove(path, true).await, ErrorKind::InvalidArgument)?;
        refused(files.mkdir(path).await, ErrorKind::InvalidArgument)?;
    }
    ensure_eq!(files.list(".").await?.len(), 0);
    Ok(())
}

async fn a_directory_is_no_file(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("dir/x", "x").await?;
    let error = refused(files.read("dir").await, ErrorKind::InvalidArgument)?;
    ensure!(error.to_string().contains("is a directory"), "{error}");
    ensure!(error.context().contains(&("cause", "is_a_directory".into())), "{error:?}");
    refused(files.write("dir", "x").await, ErrorKind::InvalidArgument)?;
    refused(files.append("dir", "x").await, ErrorKind::InvalidArgument)?;
    refused(files.write("new/", "x").await, ErrorKind::InvalidArgument)?;
    refused(files.write("dir/.", "x").await, ErrorKind::InvalidArgument)?;
    refused(files.write("..", "x").await, ErrorKind::InvalidArgument)?;
    ensure_eq!(files.read_text("dir/x").await?, "x");
    Ok(())
}

async fn a_file_is_no_directory(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("file", "x").await?;
    refused(files.list("file").await, ErrorKind::InvalidArgument)?;
    refused(files.read("file/x").await, ErrorKind::InvalidArgument)?;
    refused(files.write("file/x", "y").await, ErrorKind::InvalidArgument)?;
    refused(files.read("file/").await, ErrorKind::InvalidArgument)?;
    refused(files.remove("file/", false).await, ErrorKind::InvalidArgument)?;
    refused(files.read_archive("file").await.map(drop), ErrorKind::InvalidArgument)?;
    ensure_eq!(files.read_text("file").await?, "x");
    Ok(())
}

/// As code would be refused: its own bits count, though the caller may be root outside.
async fn what_has_no_permission_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os
open('closed', 'w').write('x'); os.chmod('closed', 0)
os.mkdir('locked'); open('locked/y', 'w').close(); os.chmod('locked', 0)
open('fixed', 'w').write('old'); os.chmod('fixed', 0o444)
def may(path):
    try: open(path).close()
    except PermissionError: return False
    return True
may('closed')";
    // Without isolation code may be root, and so may the caller.
    let may = crate::support::text(&sandbox, code).await? == "True";
    let files = sandbox.files();
    if may {
        ensure_eq!(files.read_text("closed").await?, "x");
        return Ok(());
    }
    refused(files.read("closed").await, ErrorKind::PermissionDenied)?;
    refused(files.read("locked/y").await, ErrorKind::PermissionDenied)?;
    refused(files.list("locked").await, ErrorKind::PermissionDenied)?;
    refused(files.write("locked/z", "x").await, ErrorKind::PermissionDenied)?;
    refused(files.write("fixed", "new").await, ErrorKind::PermissionDenied)?;
    refused(files.append("fixed", "new").await, ErrorKind::PermissionDenied)?;
    ensure_eq!(files.read_text("fixed").await?, "old");
    files.chmod("closed", 0o600).await?;
    ensure_eq!(files.read_text("closed").await?, "x", "after chmod");
    Ok(())
}

async fn the_system_cannot_be_changed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    for path in ["/usr/bin/env", "/etc/passwd", "/usr/new", "/etc/new", "/dev/new"] {
        refused(files.write(path, "x").await, ErrorKind::PermissionDenied)?;
        let there = files.exists(path).await?;
        let kind = if there { ErrorKind::PermissionDenied } else { ErrorKind::NotFound };
        refused(files.remove(path, true).await, kind)?;
        refused(files.chmod(path, 0o777).await, kind)?;
        let moved = files.rename(path, "/tmp/x").await;
        ensure!(moved.is_err(), "{path} was renamed");
        ensure_eq!(files.exists(path).await?, there, "{path} after all of that");
    }
    refused(files.mkdir("/usr/new").await, ErrorKind::PermissionDenied)?;
    Ok(())
}

async fn system_files_are_readable(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    ensure!(files.read_text("/etc/passwd").await?.contains("sandbox"), "its own passwd");
    ensure!(files.stat("/usr/bin").await?.is_directory(), "programs");
    ensure!(files.list("/usr/bin").await?.len() > 10, "programs");
    files.copy("/etc/passwd", "mine").await?;
    files.append("mine", "x").await?;
    Ok(())
}

async fn a_full_disk_keeps_the_old_content(f: Fixture) -> Checked {
    let sandbox = f.with_room(ByteSize::mib(16)).await?;
    let files = sandbox.files();
    files.write("data", "old").await?;
    let error =
        refused(files.write("data", vec![1; 32 << 20]).await, ErrorKind::ResourceExhausted)?;
    ensure!(error.to_string().contains("disk is full"), "{error}");
    ensure_eq!(files.read_text("data").await?, "old");
    crate::support::eventually("tidying", WAIT_TIMEOUT, async || {
        Ok(files.list(".").await?.len() == 1)
    })
    .await?;
    files.write("data", vec![1; 8 << 20]).await?;
    ensure_eq!(files.stat("data").await?.size, 8 << 20, "there is room again");
    Ok(())
}

async fn a_full_disk_leaves_nothing_of_a_copy(f: Fixture) -> Checked {
    let sandbox = f.with_room(ByteSize::mib(16)).await?;
    let files = sandbox.files();
    files.write("tree/a", vec![1; 5 << 20]).await?;
    files.write("tree/b", vec![1; 5 << 20]).await?;
    refused(files.copy("tree", "other").await, ErrorKind::ResourceExhausted)?;
    ensure_eq!(files.list(".").await?.len(), 1);
    files.copy("tree/a", "room").await.map_err(|error| {
        crate::case::Failure::new(format!("what a copy took was not given back: {error}"))
    })
}

async fn newlines_alone_are_content(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("lines", vec![b'\n'; 64 << 20]).await?;
    ensure_eq!(files.stat("lines").await?.size, 64 << 20);
    let content = files.read("lines").await?;
    ensure!(content.len() == 64 << 20 && content.iter().all(|b| *b == b'\n'), "other content");
    ensure_eq!(within(WAIT_TIMEOUT, files.grep(".", "x")).await??.len(), 0);
    Ok(())
}

async fn more_than_memory_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("large", vec![7; (64 << 20) + 1]).await?;
    let error = refused(files.read("large").await, ErrorKind::ResourceExhausted)?;
    ensure!(error.hint().is_some(), "no hint: {error:?}");
    ensure_eq!(files.read_range("large", 64 << 20, 10).await?.len(), 1);
    Ok(())
}

async fn times_of_all_ages_are_told(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os
for i, time in enumerate([-2177452800, -1, 0, 2**31, 16000000000]):
    open(f't{i}', 'w').close(); os.utime(f't{i}', (time, time))";
    ok(&sandbox, code).await?;
    let times: Vec<f64> =
        sandbox.files().list(".").await?.into_iter().map(|info| info.modified).collect();
    ensure_eq!(times, [-2_177_452_800.0, -1.0, 0.0, 2_147_483_648.0, 16_000_000_000.0]);
    drop(sandbox.files().read_archive(".").await?);
    Ok(())
}

async fn listings_are_limited(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os
os.mkdir('many')
for i in range(100001): os.link('/workspace/x', f'many/{i}') if i else open('/workspace/x', 'w').close()
open('many/0', 'w').close()";
    ok(&sandbox, code).await?;
    let files = sandbox.files();
    let error = refused(files.list("many").await, ErrorKind::ResourceExhausted)?;
    ensure!(error.hint().is_some(), "no hint: {error:?}");
    ensure_eq!(files.find("many", "*77777*").await?.len(), 1);
    within(WAIT_TIMEOUT, files.remove("many", true)).await??;
    Ok(())
}

/// A file of 300 MB, both ways, in a few megabytes.
async fn large_files_take_little_memory(f: Fixture) -> Checked {
    use futures_util::{StreamExt as _, stream};
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    let piece = bytes_of(1 << 20);
    let before = resident_memory()?;
    let content = stream::iter((0..300).map(move |_| Ok(piece.clone())));
    let options = WriteOptions::default();
    ensure_eq!(files.write_stream("large", Box::pin(content), options).await?, 300 << 20);
    let mut highest = resident_memory()?;
    let mut content = files.stream("large", sandbox_core::ByteRange::default()).await?;
    let mut total = 0;
    while let Some(piece) = content.next().await {
        total += piece?.len();
        highest = highest.max(resident_memory()?);
    }
    ensure_eq!(total, 300 << 20);
    let grown = highest.saturating_sub(before);
    ensure!(grown < 32 << 20, "it took {grown} bytes of memory");
    ensure_eq!(files.stat("large").await?.kind, FileKind::File);
    Ok(())
}

fn bytes_of(size: usize) -> bytes::Bytes {
    vec![5; size].into()
}
