//! Changes are told as they happen.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use sandbox_core::{ErrorKind, Result as CoreResult, WatchEvent, WatchEventKind};

use crate::case::{Case, Checked, Failure, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, ok, refused, within};

pub(super) fn cases() -> Vec<Case> {
    cases!("watch", [files, watch, run_code], {
        what_code_does_is_told;
        what_is_done_from_outside_is_told;
        renames_have_both_paths needs strict;
        new_directories_are_watched_too;
        without_recursive_only_the_directory_is;
        moved_directories_keep_their_paths_right needs strict;
        it_ends_with_the_directory;
        it_ends_with_the_sandbox;
        only_directories_are_watched;
        links_are_not_gone_through needs strict;
        a_flood_is_told_as_such;
        much_that_comes_with_its_directory_is_told_or_told_as_such needs strict;
    })
}

type Events = Pin<Box<dyn Stream<Item = CoreResult<WatchEvent>> + Send>>;

async fn next(events: &mut Events) -> Checked<WatchEvent> {
    match within(WAIT_TIMEOUT, events.next()).await? {
        Some(event) => Ok(event?),
        None => Err(Failure::new("the watch ended")),
    }
}

/// The next event of that kind about a path that ends so.
async fn until(events: &mut Events, kind: WatchEventKind, end: &str) -> Checked<WatchEvent> {
    loop {
        let event = next(events).await?;
        if event.kind == kind && event.path.ends_with(end) {
            return Ok(event);
        }
    }
}

async fn what_code_does_is_told(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut events = sandbox.files().watch(".", false).await?;
    ok(&sandbox, "open('a', 'w').write('x')").await?;
    let event = next(&mut events).await?;
    ensure_eq!(event.kind, WatchEventKind::Create, "{event:?}");
    ensure_eq!(event.path, sandbox.files().stat("a").await?.path);
    ensure!(event.timestamp > 1.7e9, "{event:?}");
    until(&mut events, WatchEventKind::Modify, "/a").await?;
    ok(&sandbox, "import os; os.remove('a')").await?;
    until(&mut events, WatchEventKind::Delete, "/a").await?;
    Ok(())
}

async fn what_is_done_from_outside_is_told(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut events = sandbox.files().watch(".", false).await?;
    sandbox.files().append("log", "x").await?;
    until(&mut events, WatchEventKind::Create, "/log").await?;
    sandbox.files().chmod("log", 0o600).await?;
    until(&mut events, WatchEventKind::Modify, "/log").await?;
    Ok(())
}

async fn renames_have_both_paths(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let files = sandbox.files();
    files.write("sub/a", "").await?;
    let mut events = files.watch(".", true).await?;
    files.rename("sub/a", "b").await?;
    let event = until(&mut events, WatchEventKind::Rename, "/sub/a").await?;
    ensure_eq!(event.new_path, Some(files.stat("b").await?.path));
    files.rename("b", "/tmp/elsewhere").await?;
    until(&mut events, WatchEventKind::Delete, "/b").await?;
    files.rename("/tmp/elsewhere", "c").await?;
    until(&mut events, WatchEventKind::Create, "/c").await?;
    Ok(())
}

async fn new_directories_are_watched_too(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut events = sandbox.files().watch(".", true).await?;
    ok(&sandbox, "import os\nos.makedirs('x/y/z'); open('x/y/z/first', 'w').close()").await?;
    for end in ["/x", "/x/y", "/x/y/z", "/x/y/z/first"] {
        let event = until(&mut events, WatchEventKind::Create, end).await?;
        ensure!(event.path.ends_with(end), "{event:?}");
    }
    ok(&sandbox, "open('x/y/z/later', 'w').close()").await?;
    until(&mut events, WatchEventKind::Create, "/x/y/z/later").await?;
    Ok(())
}

async fn without_recursive_only_the_directory_is(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().mkdir("sub").await?;
    let mut events = sandbox.files().watch(".", false).await?;
    ok(&sandbox, "open('sub/hidden', 'w').close(); open('seen', 'w').close()").await?;
    let event = next(&mut events).await?;
    ensure!(event.path.ends_with("/seen"), "{event:?}");
    Ok(())
}

async fn moved_directories_keep_their_paths_right(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().mkdir("old/deep").await?;
    let mut events = sandbox.files().watch(".", true).await?;
    ok(&sandbox, "import os\nos.rename('old', 'new'); open('new/deep/file', 'w').close()").await?;
    until(&mut events, WatchEventKind::Create, "/new/deep/file").await?;
    ok(&sandbox, "os.rename('new', '/tmp/away'); open('/tmp/away/deep/unseen', 'w').close(); open('seen', 'w').close()")
        .await?;
    until(&mut events, WatchEventKind::Delete, "/new").await?;
    let event = next(&mut events).await?;
    ensure!(event.path.ends_with("/seen"), "{event:?}");
    Ok(())
}

async fn it_ends_with_the_directory(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().mkdir("gone").await?;
    let mut events = sandbox.files().watch("gone", true).await?;
    sandbox.files().remove("gone", true).await?;
    until(&mut events, WatchEventKind::Delete, "/gone").await?;
    ensure!(within(WAIT_TIMEOUT, events.next()).await?.is_none(), "it goes on");
    Ok(())
}

async fn it_ends_with_the_sandbox(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut events = sandbox.files().watch(".", true).await?;
    sandbox.kill().await?;
    let mut last = None;
    while let Some(event) = within(WAIT_TIMEOUT, events.next()).await? {
        last = Some(event);
    }
    let Some(Err(error)) = last else { return Err(Failure::new("no error at the end")) };
    ensure_eq!(error.kind(), ErrorKind::Terminated);
    Ok(())
}

async fn only_directories_are_watched(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.files().write("file", "").await?;
    let files = sandbox.files();
    refused(files.watch("file", false).await.map(drop), ErrorKind::InvalidArgument)?;
    refused(files.watch("missing", false).await.map(drop), ErrorKind::NotFound)?;
    refused(files.watch("/proc", false).await.map(drop), ErrorKind::PermissionDenied)?;
    Ok(())
}

async fn links_are_not_gone_through(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os\nos.mkdir('/tmp/other'); os.symlink('/tmp/other', 'link'); os.symlink('/', 'root')";
    ok(&sandbox, code).await?;
    let mut events = sandbox.files().watch(".", true).await?;
    ok(&sandbox, "open('/tmp/other/unseen', 'w').close(); open('seen', 'w').close()").await?;
    let event = next(&mut events).await?;
    ensure!(event.path.ends_with("/seen"), "{event:?}");
    ok(&sandbox, "import shutil; shutil.rmtree('/tmp/other')").await?;
    Ok(())
}

/// More happens without a reader than the kernel keeps.
async fn a_flood_is_told_as_such(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut events = sandbox.files().watch(".", false).await?;
    let code = "
import os
for i in range(60000):
    open('a', 'w').close(); os.remove('a')";
    let result = sandbox.run_code(code).timeout(Duration::from_secs(60)).await?;
    ensure!(result.success(), "{result:?}");
    loop {
        let event = next(&mut events).await?;
        if event.kind == WatchEventKind::Overflow {
            break;
        }
    }
    sandbox.files().write("after", "").await?;
    loop {
        let event = next(&mut events).await?;
        if event.path.ends_with("/after") || event.new_path.is_some_and(|p| p.ends_with("/after")) {
            return Ok(());
        }
    }
}

async fn much_that_comes_with_its_directory_is_told_or_told_as_such(f: Fixture) -> Checked {
    // Each is told of by its name and that of its directory: far more than came from the kernel as one event.
    const FILES: usize = 30_000;
    let sandbox = f.sandbox().await?;
    let code = format!(
        "import os
os.makedirs('new/below')
for n in range({FILES}): os.close(os.open(f'new/below/{{n:0250}}', os.O_CREAT))
os.mkdir('watched')"
    );
    ok(&sandbox, &code).await?;
    let mut events = sandbox.files().watch("watched", true).await?;
    ok(&sandbox, "os.rename('new', 'watched/new')").await?;
    let mut told = 0;
    while told < FILES {
        let event = next(&mut events).await?;
        if event.kind == WatchEventKind::Overflow {
            break;
        }
        told += usize::from(event.path.contains("/new/below/"));
    }
    ok(&sandbox, "open('watched/new/below/last', 'w').close()").await?;
    until(&mut events, WatchEventKind::Create, "/new/below/last").await?;
    Ok(())
}
