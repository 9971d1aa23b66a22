//! Everyday use of files from outside.

use futures_util::{StreamExt as _, stream};
use sandbox_core::{
    ByteRange, Error, ErrorKind, FileKind, FindFiles, Result as CoreResult, WriteOptions,
};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, ok, printed, refused, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("files", [files], {
        what_is_written_is_read;
        bytes_are_exact;
        what_code_writes_is_read needs run_code;
        what_is_written_code_reads needs run_code;
        nothing_is_stale;
        empty_files_are_files;
        ranges_are_exact;
        ranges_beyond_the_end_are_empty;
        text_must_be_utf8;
        append_adds_at_the_end;
        appending_makes_the_file;
        parents_are_made;
        parents_are_not_made_unasked;
        modes_are_set_and_kept;
        attributes_are_those_of_the_file needs run_code, file_attributes;
        chmod_changes_what_code_sees needs run_code;
        stat_tells_what_is_there needs run_code;
        listings_are_sorted_and_complete;
        exists_tells_truth;
        mkdir_makes_parents_and_may_be_repeated;
        remove_needs_recursive_for_directories;
        rename_moves_and_replaces;
        copy_copies_files_and_trees needs run_code;
        copy_never_replaces_a_tree;
        find_matches_names_and_paths;
        grep_finds_lines_and_numbers;
        searches_are_limited;
        they_work_while_code_runs needs run_code;
        relative_paths_are_below_the_working_directory needs run_code;
        writes_of_a_stream_are_whole;
        many_at_once_are_all_right;
        a_killed_sandbox_says_so;
        files_outlive_a_reset needs run_code, restart;
    })
}

async fn what_is_written_is_read(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("a.txt", "one\r\ntwo\n").await?;
    ensure_eq!(files.read_text("a.txt").await?, "one\r\ntwo\n");
    files.write("a.txt", "three").await?;
    ensure_eq!(files.read_text("a.txt").await?, "three", "after it was replaced");
    ensure_eq!(files.list(".").await?.len(), 1, "nothing is left beside it");
    Ok(())
}

async fn bytes_are_exact(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let all: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    sandbox.files().write("bytes", all.clone()).await?;
    ensure!(sandbox.files().read("bytes").await? == all, "other bytes came back");
    Ok(())
}

async fn what_code_writes_is_read(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "open('by-code', 'w').write('hello')").await?;
    ensure_eq!(sandbox.files().read_text("by-code").await?, "hello");
    Ok(())
}

async fn what_is_written_code_reads(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("for-code", "hello").await?;
    ensure_eq!(printed(&sandbox, "print(open('for-code').read())").await?, "hello\n");
    ok(&sandbox, "open('for-code', 'a').write('!'); import os; os.rename('for-code', 'mine')")
        .await?;
    ensure_eq!(sandbox.files().read_text("mine").await?, "hello!", "it belongs to the code");
    Ok(())
}

/// A failed read has an error, and nothing of what was read before.
async fn nothing_is_stale(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("there", "content").await?;
    files.read("there").await?;
    let error = refused(files.read("missing").await, ErrorKind::NotFound)?;
    ensure!(error.to_string().contains("missing"), "which file: {error}");
    files.remove("there", false).await?;
    refused(files.read("there").await, ErrorKind::NotFound)?;
    refused(files.stat("there").await, ErrorKind::NotFound)?;
    refused(files.list("there").await, ErrorKind::NotFound)?;
    Ok(())
}

async fn empty_files_are_files(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("empty", "").await?;
    ensure_eq!(sandbox.files().read("empty").await?.len(), 0);
    let info = sandbox.files().stat("empty").await?;
    ensure!(info.is_file() && info.size == 0, "{info:?}");
    Ok(())
}

async fn ranges_are_exact(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let all: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    sandbox.files().write("long", all.clone()).await?;
    for (from, length) in [(0, 1), (1, 1), (7, 500_000), (262_143, 3), (999_999, 1)] {
        let part = sandbox.files().read_range("long", from as u64, length as u64).await?;
        ensure!(part == all[from..from + length], "{length} bytes from {from}");
    }
    let rest = sandbox.files().read_range("long", 999_990, 1000).await?;
    ensure!(rest == all[999_990..], "the last ten bytes");
    Ok(())
}

async fn ranges_beyond_the_end_are_empty(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("short", "abc").await?;
    for (offset, length) in [(3, 1), (4, 10), (u64::MAX, u64::MAX), (1 << 62, 1), (0, 0)] {
        let part = sandbox.files().read_range("short", offset, length).await?;
        ensure_eq!(part.len(), 0, "{length} bytes from {offset}");
    }
    Ok(())
}

async fn text_must_be_utf8(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("latin", b"caf\xe9".to_vec()).await?;
    refused(sandbox.files().read_text("latin").await, ErrorKind::InvalidArgument)?;
    ensure_eq!(sandbox.files().read("latin").await?.len(), 4);
    Ok(())
}

async fn append_adds_at_the_end(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("log", "a").await?;
    for _ in 0..3 {
        sandbox.files().append("log", "b").await?;
    }
    ensure_eq!(sandbox.files().read_text("log").await?, "abbb");
    Ok(())
}

async fn appending_makes_the_file(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().append("new/log", "x").await?;
    ensure_eq!(sandbox.files().read_text("new/log").await?, "x");
    Ok(())
}

async fn parents_are_made(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("a/b/../c//./d", "x").await?;
    ensure_eq!(sandbox.files().read_text("a/c/d").await?, "x");
    Ok(())
}

async fn parents_are_not_made_unasked(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let options = WriteOptions { parents: false, ..WriteOptions::default() };
    let written = sandbox.files().write_with("no/such", "x", options).await;
    refused(written, ErrorKind::NotFound)?;
    ensure!(!sandbox.files().exists("no").await?, "a directory was made");
    Ok(())
}

async fn modes_are_set_and_kept(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("plain", "x").await?;
    ensure_eq!(files.stat("plain").await?.permissions, "644", "by default");
    let options = WriteOptions { mode: Some(0o750), ..WriteOptions::default() };
    files.write_with("tool", "x", options).await?;
    ensure_eq!(files.stat("tool").await?.permissions, "750");
    files.write("tool", "y").await?;
    ensure_eq!(files.stat("tool").await?.permissions, "750", "after it was replaced");
    let odd = WriteOptions { mode: Some(0o100_644), ..WriteOptions::default() };
    refused(files.write_with("odd", "x", odd).await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn attributes_are_those_of_the_file(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    let of = |name: &str, value: &str| {
        let attributes = [(name.to_owned(), value.to_owned())].into();
        WriteOptions { attributes, ..WriteOptions::default() }
    };
    files.write_with("marked", "x", of("author", "Ada")).await?;
    ensure_eq!(files.stat("marked").await?.attributes, of("author", "Ada").attributes);
    let code = "import os; print(os.getxattr('marked', 'user.author').decode())";
    ensure_eq!(printed(&sandbox, code).await?, "Ada\n");
    files.rename("marked", "moved").await?;
    let listed = files.list(".").await?;
    let moved = listed.into_iter().find(|info| info.name == "moved");
    let told = moved.map(|info| info.attributes);
    ensure_eq!(told, Some(of("author", "Ada").attributes), "in a listing, by another name");
    files.write("moved", "y").await?;
    ensure!(files.stat("moved").await?.attributes.is_empty(), "kept of a file that was replaced");
    refused(files.write_with("odd", "x", of("", "x")).await, ErrorKind::InvalidArgument)?;
    ensure!(!files.exists("odd").await?, "half of a file is left");
    Ok(())
}

async fn chmod_changes_what_code_sees(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("script", "#!/bin/sh\necho ran\n").await?;
    sandbox.files().chmod("script", 0o755).await?;
    let code = "import subprocess; print(subprocess.run(['./script'], capture_output=True, text=True).stdout)";
    ensure_eq!(printed(&sandbox, code).await?, "ran\n\n");
    sandbox.files().mkdir("folder").await?;
    sandbox.files().chmod("folder", 0o700).await?;
    ensure_eq!(sandbox.files().stat("folder").await?.permissions, "700");
    // A file that not even its owner can open.
    sandbox.files().chmod("script", 0).await?;
    sandbox.files().chmod("script", 0o600).await?;
    ensure_eq!(sandbox.files().stat("script").await?.permissions, "600");
    refused(sandbox.files().chmod("script", 0o10000).await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn stat_tells_what_is_there(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os
open('file', 'w').write('12345')
os.utime('file', (1, 1000000000.25))
os.mkdir('dir'); os.symlink('file', 'link'); os.symlink('nowhere', 'dangling'); os.mkfifo('fifo')";
    ok(&sandbox, code).await?;
    let files = sandbox.files();
    let info = files.stat("file").await?;
    ensure_eq!((info.kind, info.size, info.name.as_str()), (FileKind::File, 5, "file"));
    ensure_eq!(info.modified, 1_000_000_000.25);
    ensure!(info.path.starts_with('/') && info.path.ends_with("/file"), "{}", info.path);
    ensure_eq!(files.stat("dir").await?.kind, FileKind::Directory);
    ensure_eq!(files.stat("fifo").await?.kind, FileKind::Other);
    for (name, target) in [("link", "file"), ("dangling", "nowhere")] {
        let info = files.stat(name).await?;
        ensure_eq!((info.kind, info.target.as_deref()), (FileKind::Symlink, Some(target)));
    }
    ensure_eq!(files.stat("/").await?.path, "/");
    Ok(())
}

async fn listings_are_sorted_and_complete(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for name in ["b", "a", ".hidden", "C", "d/inside"] {
        sandbox.files().write(name, name).await?;
    }
    let names = |list: Vec<sandbox_core::FileInfo>| -> Vec<String> {
        list.into_iter().map(|info| info.name).collect()
    };
    ensure_eq!(names(sandbox.files().list(".").await?), [".hidden", "C", "a", "b", "d"]);
    let inside = sandbox.files().list("d").await?;
    ensure!(inside[0].path.ends_with("/d/inside"), "{inside:?}");
    sandbox.files().mkdir("nothing").await?;
    ensure_eq!(sandbox.files().list("nothing").await?.len(), 0);
    Ok(())
}

async fn exists_tells_truth(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure!(!sandbox.files().exists("x").await?, "before");
    sandbox.files().write("x", "").await?;
    ensure!(sandbox.files().exists("x").await?, "after");
    ensure!(sandbox.files().exists("/").await?, "the root");
    // Nothing can be below a file.
    refused(sandbox.files().exists("x/y").await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn mkdir_makes_parents_and_may_be_repeated(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.mkdir("a/b/c").await?;
    files.mkdir("a/b/c").await?;
    files.mkdir("a/b/c/").await?;
    ensure!(files.stat("a/b/c").await?.is_directory(), "no directory");
    files.write("file", "x").await?;
    refused(files.mkdir("file").await, ErrorKind::AlreadyExists)?;
    refused(files.mkdir("file/below").await, ErrorKind::InvalidArgument)?;
    ensure_eq!(files.read_text("file").await?, "x");
    Ok(())
}

async fn remove_needs_recursive_for_directories(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("tree/a/b", "x").await?;
    files.write("tree/c", "x").await?;
    let error = refused(files.remove("tree", false).await, ErrorKind::InvalidArgument)?;
    ensure!(error.hint().is_some(), "no hint: {error:?}");
    files.remove("tree/c", false).await?;
    files.remove("tree", true).await?;
    ensure!(!files.exists("tree").await?, "it is still there");
    refused(files.remove("tree", true).await, ErrorKind::NotFound)?;
    for path in ["/", ".", "..", "tree/.."] {
        refused(files.remove(path, true).await, ErrorKind::InvalidArgument)?;
    }
    Ok(())
}

async fn rename_moves_and_replaces(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("a", "a").await?;
    files.write("b", "b").await?;
    files.rename("a", "b").await?;
    ensure_eq!(files.read_text("b").await?, "a");
    refused(files.read("a").await, ErrorKind::NotFound)?;
    files.write("dir/x", "x").await?;
    files.rename("dir", "other").await?;
    ensure_eq!(files.read_text("other/x").await?, "x");
    refused(files.rename("missing", "y").await, ErrorKind::NotFound)?;
    refused(files.rename("b", "no/such/place").await, ErrorKind::NotFound)?;
    refused(files.rename("b", "other").await, ErrorKind::InvalidArgument)?;
    refused(files.rename("other", "other/inside").await, ErrorKind::InvalidArgument)?;
    ensure_eq!(files.read_text("b").await?, "a", "after refusals");
    Ok(())
}

async fn copy_copies_files_and_trees(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("one", vec![9; 3_000_000]).await?;
    files.copy("one", "two").await?;
    ensure!(files.read("two").await? == vec![9; 3_000_000], "the copy differs");
    let code = "
import os
os.makedirs('tree/sub')
open('tree/sub/x', 'w').write('x'); os.chmod('tree/sub/x', 0o751)
os.symlink('sub/x', 'tree/link'); os.symlink('/nowhere', 'tree/dangling')
os.mkdir('tree/closed'); open('tree/closed/y', 'w').close(); os.chmod('tree/closed', 0o555)";
    ok(&sandbox, code).await?;
    files.copy("tree", "again").await?;
    ensure_eq!(files.read_text("again/sub/x").await?, "x");
    ensure_eq!(files.stat("again/sub/x").await?.permissions, "751");
    ensure_eq!(files.stat("again/closed").await?.permissions, "555");
    ensure_eq!(files.stat("again/link").await?.target.as_deref(), Some("sub/x"));
    ensure_eq!(files.stat("again/dangling").await?.target.as_deref(), Some("/nowhere"));
    ensure_eq!(files.list(".").await?.len(), 4, "nothing is left beside them");
    Ok(())
}

async fn copy_never_replaces_a_tree(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("a/x", "a").await?;
    files.write("b/y", "b").await?;
    refused(files.copy("a", "b").await, ErrorKind::AlreadyExists)?;
    refused(files.copy("a", "a/inside").await, ErrorKind::InvalidArgument)?;
    refused(files.copy("missing", "c").await, ErrorKind::NotFound)?;
    refused(files.copy("a/x", "b").await, ErrorKind::InvalidArgument)?;
    ensure_eq!(files.list("a").await?.len(), 1, "after refusals");
    ensure_eq!(files.list("b").await?.len(), 1, "after refusals");
    Ok(())
}

async fn find_matches_names_and_paths(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    for name in ["a.py", "b.txt", "src/c.py", "src/deep/d.py", "src/deep/e.pyc"] {
        files.write(name, "").await?;
    }
    let found = async |pattern: &str| -> Checked<Vec<String>> {
        let here = files.stat(".").await?.path;
        let all = files.find(".", pattern).await?;
        let relative = |path: String| path.trim_start_matches(&*here).trim_matches('/').to_owned();
        Ok(all.into_iter().map(relative).collect())
    };
    ensure_eq!(found("*.py").await?, ["a.py", "src/c.py", "src/deep/d.py"]);
    ensure_eq!(found("src/*.py").await?, ["src/c.py"]);
    ensure_eq!(found("src/**/*.py").await?, ["src/c.py", "src/deep/d.py"]);
    ensure_eq!(found("deep").await?, ["src/deep"]);
    ensure_eq!(found("[ab].*").await?, ["a.py", "b.txt"]);
    ensure_eq!(found("none").await?, Vec::<String>::new());
    refused(files.find("missing", "*").await, ErrorKind::NotFound)?;
    refused(files.find("a.py", "*").await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn grep_finds_lines_and_numbers(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("a", "one\ntwo needle\nthree\nneedle again\n").await?;
    files.write("sub/b", "no newline at the end needle").await?;
    files.write("c", "nothing").await?;
    let found = files.grep(".", "needle").await?;
    let lines: Vec<_> = found.iter().filter_map(|found| found.line.clone()).collect();
    let expected = [(2, "two needle"), (4, "needle again"), (1, "no newline at the end needle")];
    ensure_eq!(lines, expected.map(|(line, text)| (line, text.to_owned())));
    ensure!(found[0].path.ends_with("/a") && found[2].path.ends_with("/sub/b"), "{found:?}");
    let long = "x".repeat(2_000_000) + "needle";
    files.write("long", long).await?;
    let mut query = FindFiles::below(".");
    (query.name, query.contains) = (Some("long".into()), Some("needle".into()));
    let found = files.search(query).await?;
    ensure!(found[0].line.as_ref().is_some_and(|line| line.1.len() <= 4096), "a line is cut");
    Ok(())
}

async fn searches_are_limited(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for i in 0..20 {
        sandbox.files().write(&format!("f{i:02}"), "x\nx\n").await?;
    }
    let mut query = FindFiles::below(".");
    query.limit = Some(7);
    ensure_eq!(sandbox.files().search(query.clone()).await?.len(), 7);
    query.contains = Some("x".into());
    ensure_eq!(sandbox.files().search(query.clone()).await?.len(), 7, "lines");
    query.limit = Some(0);
    refused(sandbox.files().search(query.clone()).await, ErrorKind::InvalidArgument)?;
    (query.limit, query.contains) = (None, Some("a\nb".into()));
    refused(sandbox.files().search(query).await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn they_work_while_code_runs(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let running = tokio::spawn({
        let sandbox = sandbox.clone();
        let code = "
import os, time
while not os.path.exists('go'): time.sleep(0.01)
print(open('go').read())";
        async move { sandbox.run_code(code).await }
    });
    crate::support::until_executing(&sandbox).await?;
    sandbox.files().write("go", "went").await?;
    ensure_eq!(running.await??.stdout_trimmed().trim(), "went");
    Ok(())
}

async fn relative_paths_are_below_the_working_directory(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("here", "").await?;
    let path = text(&sandbox, "import os; os.path.abspath('here')").await?;
    let told = format!("'{}'", sandbox.files().stat("here").await?.path);
    ensure_eq!(path, as_shown(&told));
    Ok(())
}

async fn writes_of_a_stream_are_whole(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    let pieces = stream::iter((0..100).map(|i| Ok(vec![i as u8; 10_000].into())));
    let written = files.write_stream("pieces", Box::pin(pieces), WriteOptions::default()).await?;
    ensure_eq!(written, 1_000_000);
    files.write("kept", "old").await?;
    let broken: Vec<CoreResult<_>> = vec![
        Ok(vec![1; 500_000].into()),
        Err(Error::new(ErrorKind::ConnectionLost, "test", "the source broke")),
    ];
    let content = Box::pin(stream::iter(broken));
    let answer = files.write_stream("kept", content, WriteOptions::default()).await;
    refused(answer, ErrorKind::ConnectionLost)?;
    ensure_eq!(files.read_text("kept").await?, "old", "after a source that broke");
    let unending = stream::iter([Ok(vec![2; 500_000].into())]).chain(stream::pending());
    let writing = files.write_stream("kept", Box::pin(unending), WriteOptions::default());
    let waited = tokio::time::timeout(std::time::Duration::from_millis(200), writing).await;
    ensure!(waited.is_err(), "it ended by itself");
    ensure_eq!(files.read_text("kept").await?, "old", "after a write that was dropped");
    crate::support::eventually("tidying", crate::support::WAIT_TIMEOUT, async || {
        Ok(files.list(".").await?.len() == 2)
    })
    .await
}

async fn many_at_once_are_all_right(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let one = |i: usize| {
        let sandbox = sandbox.clone();
        tokio::spawn(async move {
            let (name, content) = (format!("many/{i}"), vec![i as u8; i * 1000]);
            sandbox.files().write(&name, content.clone()).await?;
            Ok::<_, Error>(sandbox.files().read(&name).await? == content)
        })
    };
    for task in (0..200).map(one).collect::<Vec<_>>() {
        ensure!(task.await??, "another content");
    }
    ensure_eq!(sandbox.files().list("many").await?.len(), 200);
    Ok(())
}

async fn a_killed_sandbox_says_so(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("large", vec![1; 4 << 20]).await?;
    let mut content = sandbox.files().stream("large", ByteRange::default()).await?;
    ensure!(content.next().await.is_some_and(|piece| piece.is_ok()), "the first piece");
    let instance = sandbox.instance("test")?;
    let call = sandbox_core::CallContext::new();
    instance.life().kill(&call).await?;
    let mut last = None;
    while let Some(piece) = content.next().await {
        last = Some(piece);
    }
    ensure!(last.is_some_and(|piece| piece.is_err()), "a stream went on after the end");
    refused(instance.files()?.stat_file(&call, "large").await, ErrorKind::Terminated)?;
    let nothing = Box::pin(stream::empty());
    let options = WriteOptions::default();
    let written = instance.files()?.write_file(&call, "large", nothing, options).await;
    refused(written, ErrorKind::Terminated)?;
    refused(instance.files()?.list_files(&call, ".").await, ErrorKind::Terminated)?;
    Ok(())
}

async fn files_outlive_a_reset(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("kept", "x").await?;
    sandbox.reset().await?;
    ensure_eq!(sandbox.files().read_text("kept").await?, "x");
    ensure_eq!(printed(&sandbox, "print(open('kept').read())").await?, "x\n");
    Ok(())
}
