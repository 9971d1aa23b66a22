//! Archives of whole directories, made by friends and by foes.

use futures_util::{StreamExt as _, stream};
use sandbox_core::tar::{END, Entry, EntryKind, encode, padding};
use sandbox_core::{ByteSize, ErrorKind, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, as_shown, eventually, ok, printed, refused};

pub(super) fn cases() -> Vec<Case> {
    cases!("archives", [files], {
        a_directory_goes_there_and_back;
        python_reads_what_is_packed needs run_code;
        what_python_packs_is_unpacked needs run_code;
        long_and_strange_names_survive needs run_code;
        an_empty_archive_is_an_empty_directory;
        existing_files_are_replaced_and_others_kept;
        another_kind_in_the_way_is_refused;
        names_that_lead_out_are_refused;
        names_of_extensions_are_judged_like_others;
        links_that_lead_out_are_refused;
        links_are_followed_while_files_move needs run_code;
        files_through_links_are_refused;
        names_that_come_twice_are_refused;
        devices_and_fifos_are_refused;
        hard_links_stay_inside;
        bits_that_change_the_user_are_dropped needs run_code;
        what_is_cut_or_damaged_leaves_nothing;
        what_is_no_tar_is_told;
        a_full_disk_leaves_nothing needs limit_disk;
        a_source_that_breaks_leaves_nothing;
        too_deep_is_refused;
        content_that_says_too_much_is_refused;
        a_file_that_cannot_be_read_is_an_error needs run_code, strict;
        links_of_the_target_are_not_followed needs run_code, strict;
        holes_are_no_bomb needs run_code, strict;
        names_of_one_file_are_no_bomb needs run_code, strict;
    })
}

fn entry(path: &str, kind: EntryKind, mode: u32) -> Vec<u8> {
    encode(&Entry { path: path.into(), kind, mode, modified: 1_000_000_000 })
}

fn file(path: &str, content: &[u8]) -> Vec<u8> {
    let size = content.len() as u64;
    let mut out = entry(path, EntryKind::File(size), 0o644);
    out.extend_from_slice(content);
    out.resize(out.len() + padding(size), 0);
    out
}

fn link(path: &str, target: &str) -> Vec<u8> {
    entry(path, EntryKind::Symlink(target.into()), 0o777)
}

fn archive(parts: &[Vec<u8>]) -> Vec<u8> {
    [parts.concat(), END.to_vec()].concat()
}

/// Changes bytes of the first header and makes its checksum right again.
fn patched(mut archive: Vec<u8>, place: usize, bytes: &[u8]) -> Vec<u8> {
    archive[place..place + bytes.len()].copy_from_slice(bytes);
    archive[148..156].copy_from_slice(b"        ");
    let sum: u32 = archive[..512].iter().map(|byte| u32::from(*byte)).sum();
    archive[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive
}

async fn unpack(sandbox: &Sandbox, path: &str, archive: Vec<u8>) -> sandbox_core::Result<()> {
    let pieces: Vec<_> = archive.chunks(10_000).map(|piece| Ok(piece.to_vec().into())).collect();
    sandbox.files().write_archive(path, Box::pin(stream::iter(pieces))).await
}

async fn pack(sandbox: &Sandbox, path: &str) -> Checked<Vec<u8>> {
    let mut archive = sandbox.files().read_archive(path).await?;
    let mut all = Vec::new();
    while let Some(piece) = archive.next().await {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

/// Unpacking is refused, and the directory is as it was: `kept` alone, and nothing beside.
async fn leaves_nothing(
    sandbox: &Sandbox,
    archive: Vec<u8>,
    kind: ErrorKind,
) -> Checked<sandbox_core::Error> {
    let files = sandbox.files();
    files.write("into/kept", "old").await?;
    let error = refused(unpack(sandbox, "into", archive.clone()).await, kind)?;
    let tidy = async |path: &str, count: usize| {
        eventually("tidying", WAIT_TIMEOUT, async || Ok(files.list(path).await?.len() == count))
            .await
    };
    tidy("into", 1).await?;
    ensure_eq!(files.read_text("into/kept").await?, "old");
    refused(unpack(sandbox, "new", archive).await, kind)?;
    tidy(".", 1).await?;
    Ok(error)
}

async fn a_directory_goes_there_and_back(f: Fixture) -> Checked {
    let (one, other) = (f.sandbox().await?, f.sandbox().await?);
    let large: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 253) as u8).collect();
    one.files().write("d/large", large.clone()).await?;
    one.files().write("d/sub/small", "x").await?;
    one.files().mkdir("d/empty").await?;
    let packed = pack(&one, "d").await?;
    unpack(&other, "made/here", packed).await?;
    ensure!(other.files().read("made/here/large").await? == large, "another content");
    ensure_eq!(other.files().read_text("made/here/sub/small").await?, "x");
    ensure!(other.files().stat("made/here/empty").await?.is_directory(), "no directory");
    ensure_eq!(other.files().list("made").await?.len(), 1, "nothing is left beside it");
    Ok(())
}

async fn python_reads_what_is_packed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let long = format!("{}/{}", "d".repeat(200), "n".repeat(200));
    let files = sandbox.files();
    files.write(&format!("d/{long}"), "deep").await?;
    files.write("d/é", vec![1; 1000]).await?;
    files.chmod("d/é", 0o750).await?;
    ok(&sandbox, "import os; os.symlink('é', 'd/link'); os.mkfifo('d/fifo')").await?;
    let packed = pack(&sandbox, "d").await?;
    files.write("packed.tar", packed).await?;
    let code = "
import tarfile
with tarfile.open('packed.tar') as t:
    for m in t: print(len(m.name), oct(m.mode), m.size, m.type.decode(), m.linkname, m.uid)";
    let listed = printed(&sandbox, code).await?;
    ensure_eq!(
        listed,
        "200 0o755 0 5  0\n401 0o644 4 0  0\n4 0o777 0 2 é 0\n1 0o750 1000 0  0\n".to_owned()
    );
    Ok(())
}

async fn what_python_packs_is_unpacked(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for format in ["USTAR", "GNU", "PAX"] {
        let code = format!(
            "
import tarfile, os, shutil
shutil.rmtree('src', ignore_errors=True)
os.makedirs('src/sub/é')
open('src/sub/é/file', 'w').write('content'); os.chmod('src/sub/é/file', 0o755)
os.utime('src/sub/é/file', (1, 1234567890))
os.link('src/sub/é/file', 'src/z-hard'); os.symlink('sub/é', 'src/link')
with tarfile.open('{format}.tar', 'w', format=tarfile.{format}_FORMAT) as t: t.add('src', '.')"
        );
        ok(&sandbox, &code).await?;
        let files = sandbox.files();
        let packed = files.read(&format!("{format}.tar")).await?;
        unpack(&sandbox, format, packed.to_vec()).await?;
        let info = files.stat(&format!("{format}/sub/é/file")).await?;
        ensure_eq!((info.permissions.as_str(), info.modified), ("755", 1_234_567_890.0));
        ensure_eq!(files.read_text(&format!("{format}/z-hard")).await?, "content");
        ensure_eq!(files.read_text(&format!("{format}/link/file")).await?, "content");
    }
    Ok(())
}

async fn long_and_strange_names_survive(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os
os.mkdir('d')
for name in [b'\\xff', b'a\\nb', b'n' * 255, b' ', b'-rf']:
    open(b'd/' + name, 'wb').write(name)
os.symlink(b'\\xff', 'd/link')";
    ok(&sandbox, code).await?;
    let packed = pack(&sandbox, "d").await?;
    unpack(&sandbox, "e", packed).await?;
    let code =
        "print(sorted(os.listdir(b'd')) == sorted(os.listdir(b'e')), os.readlink(b'e/link'))";
    ensure_eq!(printed(&sandbox, code).await?, "True b'\\xff'\n");
    Ok(())
}

async fn an_empty_archive_is_an_empty_directory(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().mkdir("empty").await?;
    let packed = pack(&sandbox, "empty").await?;
    ensure_eq!(packed, END.to_vec());
    unpack(&sandbox, "other", packed).await?;
    ensure_eq!(sandbox.files().list("other").await?.len(), 0);
    Ok(())
}

async fn existing_files_are_replaced_and_others_kept(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("d/sub/kept", "kept").await?;
    files.write("d/sub/changed", "old").await?;
    let parts = [file("sub/changed", b"new"), file("sub/added", b"added"), file("top/x", b"x")];
    unpack(&sandbox, "d", archive(&parts)).await?;
    for (path, content) in
        [("sub/kept", "kept"), ("sub/changed", "new"), ("sub/added", "added"), ("top/x", "x")]
    {
        ensure_eq!(files.read_text(&format!("d/{path}")).await?, content, "{path}");
    }
    ensure_eq!(files.list("d").await?.len(), 2, "nothing is left beside them");
    Ok(())
}

async fn another_kind_in_the_way_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let parts = [file("a-first", b"x"), file("kept/below", b"x")];
    let files = sandbox.files();
    files.write("into/kept", "old").await?;
    let answer = unpack(&sandbox, "into", archive(&parts)).await;
    refused(answer, ErrorKind::AlreadyExists)?;
    eventually("tidying", WAIT_TIMEOUT, async || Ok(files.list("into").await?.len() == 1)).await?;
    ensure_eq!(files.read_text("into/kept").await?, "old");
    refused(unpack(&sandbox, "into/kept", archive(&[])).await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn names_that_lead_out_are_refused(f: Fixture) -> Checked {
    for name in ["../x", "/tmp/x-archive", "a/../../x", "a/b/..", ".."] {
        let sandbox = f.sandbox().await?;
        let bad =
            patched(file(&"n".repeat(99), b""), 0, &[name.as_bytes(), &[0; 99]].concat()[..99]);
        leaves_nothing(&sandbox, archive(&[file("ok", b"x"), bad]), ErrorKind::InvalidArgument)
            .await?;
        ensure!(!sandbox.files().exists("/tmp/x-archive").await?, "{name} got out");
    }
    Ok(())
}

async fn names_of_extensions_are_judged_like_others(f: Fixture) -> Checked {
    // A record of `pax`: its own length, and what it sets.
    let record = |path: &str| {
        let rest = format!(" path={path}\n");
        let length = (rest.len()..).find(|all| all.to_string().len() + rest.len() == *all);
        format!("{}{rest}", length.unwrap_or_default()).into_bytes()
    };
    let extended = |path: &str| patched(file("extension", &record(path)), 156, b"x");
    let long = |path: &str| patched(file("extension", path.as_bytes()), 156, b"L");
    let sandbox = f.sandbox().await?;
    // The control: such names are those of the files.
    let deep = entry("deep", EntryKind::Directory, 0o755);
    let parts = [deep, extended("deep/one"), file("a", b"1"), long("deep/two"), file("b", b"2")];
    unpack(&sandbox, "fine", archive(&parts)).await?;
    ensure_eq!(sandbox.files().read_text("fine/deep/one").await?, "1");
    ensure_eq!(sandbox.files().read_text("fine/deep/two").await?, "2");
    sandbox.files().remove("fine", true).await?;
    for name in ["../x", "/tmp/x-archive", "a/../../x", ".."] {
        for extension in [extended(name), long(name)] {
            let parts = [file("ok", b"x"), extension, file("a", b"1")];
            leaves_nothing(&sandbox, archive(&parts), ErrorKind::InvalidArgument).await?;
        }
    }
    // A name of a gigabyte is refused before any of it is taken.
    let huge = patched(long("x"), 124, b"10000000000\0");
    leaves_nothing(&sandbox, archive(&[huge]), ErrorKind::InvalidArgument).await?;
    ensure!(!sandbox.files().exists("/tmp/x-archive").await?, "a file got out");
    Ok(())
}

async fn links_that_lead_out_are_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for target in ["/etc/passwd", "..", "a/../../..", "../x"] {
        let bad = archive(&[file("ok", b"x"), link("l", target)]);
        leaves_nothing(&sandbox, bad, ErrorKind::InvalidArgument).await?;
    }
    // Neither of them looks like it.
    let parts = [file("a/b/c/x", b""), link("a/b/c/up", "../../.."), link("out", "a/b/c/up/..")];
    leaves_nothing(&sandbox, archive(&parts), ErrorKind::InvalidArgument).await?;
    let parts = [file("sub/x", b""), link("sub/l", "../sub/x"), link("dangling", "sub/none")];
    unpack(&sandbox, "fine", archive(&parts)).await?;
    ensure_eq!(sandbox.files().stat("fine/sub/l").await?.target.as_deref(), Some("../sub/x"));
    Ok(())
}

/// The kernel cannot follow `..` while something moves anywhere, and says so.
async fn links_are_followed_while_files_move(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let names: Vec<_> = (0..500).map(|number| format!("sub/l{number}")).collect();
    let links = names.iter().map(|name| link(name, "../sub/../sub/../sub/x"));
    let content = archive(&std::iter::once(file("sub/x", b"")).chain(links).collect::<Vec<_>>());
    let code = "import os\nopen('a', 'w').close()\nwhile not os.path.exists('stop'):\n    \
                os.rename('a', 'b'); os.rename('b', 'a')";
    let unpacked = async {
        for round in 0..10 {
            unpack(&sandbox, &format!("fine{round}"), content.clone()).await?;
        }
        sandbox.files().write("stop", "").await?;
        Checked::Ok(())
    };
    let (moved, unpacked) = tokio::join!(async { ok(&sandbox, code).await }, unpacked);
    unpacked?;
    moved?;
    Ok(())
}

async fn files_through_links_are_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for parts in [
        vec![file("d/x", b""), link("l", "d"), file("l/y", b"through")],
        vec![link("l", "nowhere"), file("l", b"through")],
        vec![link("l", "l2"), link("l2", "l"), file("l/y", b"")],
    ] {
        leaves_nothing(&sandbox, archive(&parts), ErrorKind::InvalidArgument).await?;
    }
    Ok(())
}

async fn names_that_come_twice_are_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let directory = |path| entry(path, EntryKind::Directory, 0o755);
    for parts in [
        vec![file("a", b"1"), file("a", b"2")],
        vec![file("a", b"1"), link("a", "b")],
        vec![file("a", b"1"), directory("a")],
        vec![file("a", b"1"), file("./a", b"2")],
    ] {
        leaves_nothing(&sandbox, archive(&parts), ErrorKind::InvalidArgument).await?;
    }
    let parts = [directory("d"), file("d/x", b"1"), directory("d")];
    unpack(&sandbox, "fine", archive(&parts)).await?;
    Ok(())
}

async fn devices_and_fifos_are_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for kind in *b"346SZ" {
        let bad = patched(file("x", b""), 156, &[kind]);
        let bad = archive(&[file("ok", b"x"), bad]);
        leaves_nothing(&sandbox, bad, ErrorKind::InvalidArgument).await?;
    }
    Ok(())
}

async fn hard_links_stay_inside(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let hard = |path, target: &str| entry(path, EntryKind::HardLink(target.into()), 0o644);
    let parts = [file("d/a", b"x"), hard("b", "d/a")];
    unpack(&sandbox, "fine", archive(&parts)).await?;
    ensure_eq!(sandbox.files().read_text("fine/b").await?, "x");
    sandbox.files().remove("fine", true).await?;
    for parts in [
        vec![hard("b", "missing")],
        vec![hard("b", "/etc/passwd")],
        vec![hard("b", "../kept")],
        vec![file("d/a", b"x"), link("l", "d/a"), hard("b", "l")],
        vec![file("d/a", b"x"), link("l", "d"), hard("b", "l/a")],
        vec![file("d/a", b"x"), hard("b", "d")],
        vec![hard("b", "kept")],
    ] {
        leaves_nothing(&sandbox, archive(&parts), ErrorKind::InvalidArgument).await?;
    }
    Ok(())
}

async fn bits_that_change_the_user_are_dropped(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let parts = [patched(file("tool", b""), 100, b"0006777\0")];
    unpack(&sandbox, "d", archive(&parts)).await?;
    let mode = crate::support::text(&sandbox, "import os; oct(os.stat('d/tool').st_mode)").await?;
    ensure_eq!(mode, as_shown("'0o100755'"));
    Ok(())
}

async fn what_is_cut_or_damaged_leaves_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let whole = archive(&[file("a", &[7; 5000]), file("b", b"x")]);
    for end in [0, 1, 511, 512, 600, 5000, 5632, whole.len() - 1024] {
        let cut = whole[..end].to_vec();
        leaves_nothing(&sandbox, cut, ErrorKind::InvalidArgument).await?;
    }
    let mut damaged = whole.clone();
    damaged[3] ^= 1;
    leaves_nothing(&sandbox, damaged, ErrorKind::InvalidArgument).await?;
    let twice = [whole.clone(), whole].concat();
    leaves_nothing(&sandbox, twice, ErrorKind::InvalidArgument).await?;
    Ok(())
}

async fn what_is_no_tar_is_told(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let compressed = [&[0x1f, 0x8b, 8][..], &[9; 2000]].concat();
    let error = leaves_nothing(&sandbox, compressed, ErrorKind::InvalidArgument).await?;
    ensure!(error.to_string().contains("compressed"), "{error}");
    leaves_nothing(&sandbox, vec![b'x'; 2048], ErrorKind::InvalidArgument).await?;
    leaves_nothing(&sandbox, vec![b'\n'; 100], ErrorKind::InvalidArgument).await?;
    Ok(())
}

async fn a_full_disk_leaves_nothing(f: Fixture) -> Checked {
    let sandbox = f.with_room(ByteSize::mib(16)).await?;
    let parts = [file("a", &[1; 6 << 20]), file("b", &[1; 24 << 20])];
    leaves_nothing(&sandbox, archive(&parts), ErrorKind::ResourceExhausted).await?;
    sandbox.files().write("again", vec![1; 12 << 20]).await?;
    Ok(())
}

async fn a_source_that_breaks_leaves_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    let half: Vec<u8> = file("a", &[1; 300_000])[..200_000].to_vec();
    let lost = sandbox_core::Error::new(ErrorKind::ConnectionLost, "test", "lost");
    let broken = stream::iter([Ok(half.clone().into()), Err(lost)]);
    let answer = files.write_archive("d", Box::pin(broken)).await;
    refused(answer, ErrorKind::ConnectionLost)?;
    let unending = stream::iter([Ok(half.into())]).chain(stream::pending());
    let writing = files.write_archive("d", Box::pin(unending));
    let short = std::time::Duration::from_millis(200);
    ensure!(tokio::time::timeout(short, writing).await.is_err(), "it ended by itself");
    eventually("tidying", WAIT_TIMEOUT, async || Ok(files.list(".").await?.is_empty())).await
}

async fn too_deep_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let path = |levels| vec!["d"; levels].join("/");
    let bad = archive(&[file(&path(65), b"")]);
    leaves_nothing(&sandbox, bad, ErrorKind::InvalidArgument).await?;
    unpack(&sandbox, "fine", archive(&[file(&path(64), b"x")])).await?;
    ensure_eq!(sandbox.files().read_text(&format!("fine/{}", path(64))).await?, "x");
    Ok(())
}

/// Sizes of data that does not follow, and names that are large themselves.
async fn content_that_says_too_much_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for size in [&b"77777777777\0"[..], b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"] {
        let bad = patched(archive(&[file("sparse", b"x")]), 124, size);
        leaves_nothing(&sandbox, bad, ErrorKind::InvalidArgument).await?;
    }
    let long = patched(archive(&[file("name", b"")]), 124, b"10000000000\0");
    let long = patched(long, 156, b"L");
    leaves_nothing(&sandbox, long, ErrorKind::InvalidArgument).await?;
    Ok(())
}

async fn a_file_that_cannot_be_read_is_an_error(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("d/closed", "x").await?;
    sandbox.files().chmod("d/closed", 0).await?;
    let mut packed = sandbox.files().read_archive("d").await.map_err(Some);
    let mut end = packed.as_mut().err().and_then(Option::take).map_or(Ok(()), Err);
    if let Ok(packed) = &mut packed {
        while let Some(piece) = packed.next().await {
            end = piece.map(drop);
        }
    }
    refused(end, ErrorKind::PermissionDenied)?;
    Ok(())
}

/// A link that is in the directory already is replaced, and not gone through.
async fn links_of_the_target_are_not_followed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code =
        "import os\nos.mkdir('into'); os.mkdir('/tmp/other'); open('/tmp/victim', 'w').write('old')
os.symlink('/tmp/victim', 'into/file'); os.symlink('/tmp/other', 'into/dir')";
    ok(&sandbox, code).await?;
    unpack(&sandbox, "into", archive(&[file("file", b"new")])).await?;
    ensure_eq!(sandbox.files().read_text("/tmp/victim").await?, "old");
    ensure_eq!(sandbox.files().read_text("into/file").await?, "new");
    let answer = unpack(&sandbox, "into", archive(&[file("dir/x", b"new")])).await;
    refused(answer, ErrorKind::AlreadyExists)?;
    ensure_eq!(sandbox.files().list("/tmp/other").await?.len(), 0);
    Ok(())
}

/// Files that take no room in the sandbox, and would take terabytes outside.
async fn holes_are_no_bomb(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os
os.mkdir('d')
for i in range(1000):
    with open(f'd/{i}', 'w') as file: file.truncate(1 << 30)";
    ok(&sandbox, code).await?;
    is_refused_in_time(&sandbox).await
}

async fn is_refused_in_time(sandbox: &Sandbox) -> Checked {
    let mut packed = sandbox.files().read_archive("d").await?;
    let (mut size, mut end) = (0_u64, Ok(()));
    while let Some(piece) = packed.next().await {
        size += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        end = piece.map(drop);
    }
    refused(end, ErrorKind::ResourceExhausted)?;
    ensure!(size < 2 << 30, "{size} bytes came before");
    Ok(())
}

/// A file has room for its content once, whatever it is called.
async fn names_of_one_file_are_no_bomb(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os
os.mkdir('d')
with open('d/0', 'wb') as file: file.write(os.urandom(1 << 20))
for i in range(1, 2000): os.link('d/0', f'd/{i}')";
    ok(&sandbox, code).await?;
    is_refused_in_time(&sandbox).await
}
