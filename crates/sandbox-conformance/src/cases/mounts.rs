//! Files of the host that a sandbox is given: as far as was said, and not a step further.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sandbox_core::{ErrorKind, IsolationMode, Mount};
use tempfile::TempDir;

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, ok, refused, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("mounts", [mounts, run_code, local], {
        a_directory_is_read_and_not_changed needs strict, files, commands;
        a_writable_directory_is_changed_from_both_sides needs strict, files, commands;
        nothing_is_written_after_the_end needs strict;
        a_single_file_is_mounted needs strict;
        the_way_to_a_mounted_file_is_the_sandboxs_own needs strict;
        what_is_written_belongs_to_the_owner_of_the_directory needs strict;
        no_program_of_the_host_gets_the_rights_of_its_owner needs strict;
        what_the_host_has_there_gains_nothing_inside needs strict;
        nothing_beside_it_is_reached needs strict, files;
        it_can_be_the_working_directory needs strict;
        each_is_told needs strict;
        what_is_not_given_away_is_refused_with_the_reason needs strict;
        what_was_judged_is_what_is_mounted needs strict;
        without_isolation_there_are_none;
    })
}

/// How long something is tried that has to happen both ways, where a sandbox takes long to make.
const LONG_ENOUGH: Duration = Duration::from_secs(5);

/// A private directory of this host with a file in it, by its real path.
fn folder() -> Checked<TempDir> {
    // Another one than that for temporary files, which a cell has of its own.
    let folder = tempfile::Builder::new().prefix("mount-").tempdir_in("/var/tmp")?;
    of_the_user(folder.path())?;
    let note = folder.path().join("note");
    fs::write(&note, "of the host")?;
    fs::set_permissions(&note, fs::Permissions::from_mode(0o600))?;
    of_the_user(&note)?;
    Ok(folder)
}

/// Gives a file of root's to an ordinary user, as files that are given to code should be.
fn of_the_user(path: &Path) -> Checked {
    const USER: u32 = 1000;
    if fs::metadata(path)?.uid() == 0 {
        chown(path, Some(USER), Some(USER))?;
    }
    Ok(())
}

/// The name of the error that code gets, or the value.
const TRY: &str = "
import errno, os
def attempt(what, *arguments, **named):
    try: return what(*arguments, **named)
    except OSError as e: return errno.errorcode[e.errno]
def write(path, content='x'):
    with open(path, 'w') as file: return file.write(content)
";

async fn a_directory_is_read_and_not_changed(f: Fixture) -> Checked {
    let folder = folder()?;
    let sandbox = f.create(|b| b.mount(Mount::new(folder.path(), "/data/in"))).await?;
    ok(&sandbox, TRY).await?;
    ensure_eq!(text(&sandbox, "open('/data/in/note').read()").await?, as_shown("'of the host'"));
    for change in [
        "write, '/data/in/note'",
        "write, '/data/in/new'",
        "os.unlink, '/data/in/note'",
        "os.chmod, '/data/in/note', 0o777",
        "os.mkdir, '/data/in/sub'",
        "os.rename, '/data/in/note', '/data/in/other'",
        "os.utime, '/data/in/note'",
    ] {
        ensure_eq!(
            text(&sandbox, &format!("attempt({change})")).await?,
            as_shown("'EROFS'"),
            "{change}"
        );
    }
    // Control: beside it code may.
    ensure_eq!(text(&sandbox, "attempt(write, '/data/own')").await?, "1");
    ensure_eq!(sandbox.files().read_text("/data/in/note").await?, "of the host");
    ensure!(sandbox.files().write("/data/in/note", "x").await.is_err(), "a file verb wrote");
    ensure!(sandbox.files().remove("/data/in/note", false).await.is_err(), "a file verb removed");
    let command = sandbox.commands().run("cat /data/in/note; echo >/data/in/note").await?;
    ensure!(command.exit_code != 0 && command.stdout == "of the host", "{command:?}");
    ensure_eq!(fs::read_to_string(folder.path().join("note"))?, "of the host");
    ensure_eq!(fs::read_dir(folder.path())?.count(), 1, "entries on the host");
    Ok(())
}

async fn a_writable_directory_is_changed_from_both_sides(f: Fixture) -> Checked {
    let folder = folder()?;
    let mount = Mount::new(folder.path(), "/workspace/shared").writable();
    let sandbox = f.create(|b| b.mount(mount)).await?;
    let code = "import os\nos.makedirs('shared/sub')\nopen('shared/sub/made', 'w').write('inside')";
    ok(&sandbox, code).await?;
    let made = folder.path().join("sub/made");
    ensure_eq!(fs::read_to_string(&made)?, "inside");
    fs::write(&made, "outside")?;
    ensure_eq!(text(&sandbox, "open('shared/sub/made').read()").await?, as_shown("'outside'"));
    let files = sandbox.files();
    files.write("/workspace/shared/a/b", "by a verb").await?;
    ensure_eq!(fs::read_to_string(folder.path().join("a/b"))?, "by a verb");
    ensure_eq!(text(&sandbox, "open('shared/a/b').read()").await?, as_shown("'by a verb'"));
    sandbox.commands().run("rm -r shared/a shared/sub; echo c >shared/c").await?;
    ensure!(!made.exists(), "a command removes");
    ensure_eq!(fs::read_to_string(folder.path().join("c"))?, "c\n");
    // Its end takes nothing along.
    sandbox.terminate().await?;
    ensure_eq!(fs::read_to_string(folder.path().join("note"))?, "of the host");
    Ok(())
}

async fn nothing_is_written_after_the_end(f: Fixture) -> Checked {
    let folder = folder()?;
    let mount = Mount::new(folder.path(), "/workspace/shared").writable();
    let sandbox = f.create(|b| b.mount(mount)).await?;
    // More than there are processors, so that some have begun to write when they are ended, and do not run.
    let code = "
import os
for name in range(16):
    if os.fork() == 0:
        file = os.open(f'shared/{name}', os.O_CREAT | os.O_WRONLY)
        while True:
            for _ in range(200): os.write(file, b'x' * 4096)
            os.ftruncate(file, 0)";
    ok(&sandbox, code).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    sandbox.terminate().await?;
    let written = || -> Checked<Vec<_>> {
        let files = (0..16).map(|name| folder.path().join(name.to_string()));
        Ok(files.filter_map(|file| fs::metadata(file).ok()?.modified().ok()).collect())
    };
    let at_the_end = written()?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    ensure!(!at_the_end.is_empty(), "nothing was written at all");
    ensure!(written()? == at_the_end, "something was written after the end");
    Ok(())
}

async fn a_single_file_is_mounted(f: Fixture) -> Checked {
    let folder = folder()?;
    let (read, written) = (folder.path().join("note"), folder.path().join("written"));
    fs::write(&written, "old")?;
    of_the_user(&written)?;
    let sandbox = f
        .create(|b| {
            b.mount(Mount::new(&read, "/workspace/deep/note"))
                .mount(Mount::new(&written, "/data/written").writable())
        })
        .await?;
    ok(&sandbox, TRY).await?;
    ensure_eq!(text(&sandbox, "open('deep/note').read()").await?, as_shown("'of the host'"));
    ensure_eq!(text(&sandbox, "attempt(write, 'deep/note')").await?, as_shown("'EROFS'"));
    ensure_eq!(text(&sandbox, "attempt(write, '/data/written', 'new')").await?, "3");
    ensure_eq!(fs::read_to_string(&written)?, "new");
    ensure_eq!(text(&sandbox, "attempt(write, 'beside')").await?, "1", "control");
    ensure!(!folder.path().join("beside").exists(), "beside it is nothing of the host's");
    Ok(())
}

async fn the_way_to_a_mounted_file_is_the_sandboxs_own(f: Fixture) -> Checked {
    let folder = folder()?;
    let mount = Mount::new(folder.path().join("note"), "/workspace/a/b/note");
    let sandbox = f.create(|b| b.mount(mount)).await?;
    ok(&sandbox, TRY).await?;
    ensure_eq!(
        text(&sandbox, "[attempt(write, p + 'new') for p in ('a/', 'a/b/')]").await?,
        "[1, 1]"
    );
    Ok(())
}

async fn what_is_written_belongs_to_the_owner_of_the_directory(f: Fixture) -> Checked {
    let folder = folder()?;
    let sandbox = f.create(|b| b.mount(Mount::new(folder.path(), "/data/out").writable())).await?;
    ok(&sandbox, "import os\nopen('/data/out/made', 'w').close(); os.mkdir('/data/out/sub')")
        .await?;
    let owner = fs::metadata(folder.path())?;
    for name in ["made", "sub"] {
        let made = fs::metadata(folder.path().join(name))?;
        ensure_eq!((made.uid(), made.gid()), (owner.uid(), owner.gid()), "owner of {name}");
    }
    // Inside, all of it is the sandbox's own.
    let ids = "{os.stat('/data/out/' + name).st_uid - os.getuid() for name in ('made', 'note')}";
    ensure_eq!(text(&sandbox, ids).await?, "{0}");
    Ok(())
}

async fn no_program_of_the_host_gets_the_rights_of_its_owner(f: Fixture) -> Checked {
    let folder = folder()?;
    let sandbox = f.create(|b| b.mount(Mount::new(folder.path(), "/data/out").writable())).await?;
    ok(&sandbox, TRY).await?;
    ok(&sandbox, "os.umask(0); write('/data/out/program')").await?;
    for change in [
        "os.chmod, '/data/out/program', 0o4755",
        "os.chmod, '/data/out/program', 0o2755",
        "os.fchmod, os.open('/data/out/program', os.O_RDWR), 0o6755",
        "os.open, '/data/out/new', os.O_CREAT | os.O_WRONLY, 0o4755",
        "os.mknod, '/data/out/node', 0o104755",
    ] {
        ensure_eq!(
            text(&sandbox, &format!("attempt({change})")).await?,
            as_shown("'EPERM'"),
            "{change}"
        );
    }
    // Where a filter sees no mode, there is no call.
    let openat2 = "
import ctypes
how = b''.join(value.to_bytes(8, 'little') for value in (os.O_CREAT | os.O_WRONLY, 0o4755, 0))
libc = ctypes.CDLL(None, use_errno=True)
[libc.syscall(437, -100, b'/data/out/hidden', how, len(how)), errno.errorcode[ctypes.get_errno()]]";
    ensure_eq!(text(&sandbox, openat2).await?, "[-1, 'ENOSYS']");
    ensure_eq!(
        text(&sandbox, "str(attempt(os.chmod, '/data/out/program', 0o755))").await?,
        as_shown("'None'")
    );
    for entry in fs::read_dir(folder.path())? {
        let mode = entry?.metadata()?.permissions().mode();
        ensure_eq!(mode & 0o6000, 0, "set-id bits in {mode:o}");
    }
    Ok(())
}

async fn what_the_host_has_there_gains_nothing_inside(f: Fixture) -> Checked {
    let folder = folder()?;
    let sandbox = f.create(|b| b.mount(Mount::new(folder.path(), "/data/out").writable())).await?;
    let line = "[l for l in open('/proc/self/mountinfo') if ' /data/out ' in l][0].split()[5]";
    let options = text(&sandbox, line).await?;
    ensure!(options.contains("nosuid") && options.contains("nodev"), "mounted with {options}");
    Ok(())
}

async fn nothing_beside_it_is_reached(f: Fixture) -> Checked {
    let folder = folder()?;
    let given = folder.path().join("given");
    fs::create_dir(&given)?;
    of_the_user(&given)?;
    symlink("../note", given.join("up"))?;
    symlink(folder.path().join("note"), given.join("absolute"))?;
    let sandbox = f.create(|b| b.mount(Mount::new(&given, "/data/given").writable())).await?;
    ok(&sandbox, TRY).await?;
    let beside = folder.path().join("note");
    for path in [
        "/data/given/up".to_owned(),
        "/data/given/absolute".to_owned(),
        "/data/given/../note".to_owned(),
        beside.to_string_lossy().into_owned(),
    ] {
        let found = text(&sandbox, &format!("attempt(open, {path:?})")).await?;
        ensure_eq!(found, as_shown("'ENOENT'"), "{path}");
        refused(sandbox.files().read_text(&path).await, ErrorKind::NotFound)?;
    }
    // A link that code makes leads nowhere either, for the verbs of the host too.
    let target = beside.to_string_lossy().into_owned();
    ok(&sandbox, &format!("os.symlink({target:?}, '/data/given/made')")).await?;
    refused(sandbox.files().read_text("/data/given/made").await, ErrorKind::NotFound)?;
    ensure_eq!(fs::read_to_string(&beside)?, "of the host");
    Ok(())
}

async fn it_can_be_the_working_directory(f: Fixture) -> Checked {
    let folder = folder()?;
    let sandbox = f.create(|b| b.mount(Mount::new(folder.path(), "/workspace").writable())).await?;
    ensure_eq!(text(&sandbox, "open('note').read()").await?, as_shown("'of the host'"));
    ok(&sandbox, "open('made', 'w').write('x')").await?;
    ensure!(folder.path().join("made").exists(), "it is the host's");
    let read_only = f.create(|b| b.mount(Mount::new(folder.path(), "/workspace"))).await?;
    ensure_eq!(text(&read_only, "open('note').read()").await?, as_shown("'of the host'"));
    ok(&read_only, TRY).await?;
    ensure_eq!(text(&read_only, "attempt(write, 'more')").await?, as_shown("'EROFS'"));
    // So can a directory below it, which nothing of the sandbox's own covers.
    let below = folder.path().join("src");
    fs::create_dir(&below)?;
    of_the_user(&below)?;
    let mount = Mount::new(folder.path(), "/project").writable();
    let sandbox = f.create(|b| b.mount(mount).working_dir("/project/src")).await?;
    ok(&sandbox, "open('made', 'w').write(open('../note').read())").await?;
    ensure_eq!(fs::read_to_string(below.join("made"))?, "of the host");
    Ok(())
}

async fn each_is_told(f: Fixture) -> Checked {
    let folder = folder()?;
    let mounts = [Mount::new(folder.path(), "/data/a"), Mount::new(folder.path(), "/b").writable()];
    let [one, two] = mounts.clone();
    let sandbox = f.create(|b| b.mount(one).mount(two)).await?;
    ensure_eq!(sandbox.info().mounts, mounts.to_vec());
    ensure_eq!(Some(f.sandbox().await?.info().mounts), Some(Vec::new()), "of one without");
    Ok(())
}

async fn what_is_not_given_away_is_refused_with_the_reason(f: Fixture) -> Checked {
    let folder = folder()?;
    let path = |name: &str| folder.path().join(name);
    symlink("/etc", path("to-etc"))?;
    symlink("/proc/self", path("to-proc"))?;
    let _listener = UnixListener::bind(path("socket"))?;
    fs::create_dir(path("sub"))?;
    let refuse = async |source: &Path, target: &str, why: &str| -> Checked {
        let made = f.builder().mount(Mount::new(source, target)).create().await;
        let error = refused(made, ErrorKind::InvalidArgument)?;
        ensure!(error.to_string().contains(why), "{source:?} at {target}: {error}");
        Ok(())
    };
    for (source, why) in [
        ("/", "shared"),
        ("/proc", "/proc"),
        ("/sys", "/sys"),
        ("/dev", "/dev"),
        ("/etc", "/etc"),
        ("/etc/passwd", "/etc"),
        ("/root", "shared"),
        ("/home", "shared"),
        ("~/data", "not absolute"),
        ("data", "not absolute"),
        ("/nowhere-at-all", "not there"),
    ] {
        refuse(Path::new(source), "/data/x", why).await?;
    }
    refuse(&path("to-etc"), "/data/x", "leads to /etc").await?;
    refuse(&path("to-proc"), "/data/x", "leads to /proc").await?;
    refuse(&path("to-etc").join("passwd"), "/data/x", "leads to /etc/passwd").await?;
    refuse(&path("socket"), "/data/x", "socket").await?;
    refuse(folder.path(), "/data/x", "listens").await?;
    for target in ["/", "/proc", "/proc/x", "/usr", "/usr/x", "/workspace/../usr", "data", "/tmp"] {
        refuse(&path("sub"), target, "has the target").await?;
    }
    let twice = f.builder().mount(Mount::new(path("sub"), "/data/x"));
    let twice = twice.mount(Mount::new(path("note"), "/data/x")).create().await;
    refused(twice, ErrorKind::InvalidArgument)?;
    let system = f.builder().mount(Mount::new("/usr/share", "/data/x").writable()).create().await;
    refused(system, ErrorKind::InvalidArgument)?;
    // Control: what is left is taken.
    let sandbox = f.create(|b| b.mount(Mount::new(path("sub"), "/data/x"))).await?;
    ok(&sandbox, "import os; os.listdir('/data/x')").await?;
    Ok(())
}

/// A directory above the source changes all the time between one that may be given away and one that may not.
async fn what_was_judged_is_what_is_mounted(f: Fixture) -> Checked {
    let folder = folder()?;
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path("good/ssl"))?;
    fs::write(path("good/ssl/which"), "good")?;
    symlink(path("good"), path("now"))?;
    let stop = Arc::new(AtomicBool::new(false));
    let flipper = {
        let (stop, now, next) = (Arc::clone(&stop), path("now"), path("next"));
        let targets = [PathBuf::from("/etc"), path("good")];
        std::thread::spawn(move || -> std::io::Result<()> {
            for target in targets.iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                symlink(target, &next)?;
                fs::rename(&next, &now)?;
            }
            Ok(())
        })
    };
    let (mut made, mut refused) = (0, 0);
    let mut seen = Vec::new();
    let began = Instant::now();
    for _ in 0..60 {
        if began.elapsed() > LONG_ENOUGH && made > 0 && refused > 0 {
            break;
        }
        match f.builder().mount(Mount::new(path("now").join("ssl"), "/data/x")).create().await {
            Ok(sandbox) => {
                made += 1;
                seen.push(text(&sandbox, "import os; os.listdir('/data/x')").await);
                sandbox.kill().await?;
            }
            Err(_) => refused += 1,
        }
    }
    stop.store(true, Ordering::Relaxed);
    ensure!(flipper.join().is_ok_and(|flipped| flipped.is_ok()), "the directory does not change");
    for listing in seen {
        ensure_eq!(listing?, "['which']", "what a sandbox saw");
    }
    ensure!(made > 0 && refused > 0, "{made} made and {refused} refused prove nothing");
    Ok(())
}

async fn without_isolation_there_are_none(f: Fixture) -> Checked {
    let folder = folder()?;
    if !f.backend().capabilities().isolation_off {
        return Ok(());
    }
    let builder = f.builder().isolation(IsolationMode::Off);
    let made = builder.mount(Mount::new(folder.path(), "/data/x")).create().await;
    let error = refused(made, ErrorKind::Unsupported)?;
    ensure!(error.to_string().contains("`mounts`"), "{error}");
    Ok(())
}
