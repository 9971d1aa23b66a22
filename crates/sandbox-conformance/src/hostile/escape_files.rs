//! Code that looks for a way to the files of the host.

use std::os::unix::fs::{MetadataExt as _, chown};
use std::time::{Duration, Instant};

use sandbox_core::{ErrorKind, Mount};

use super::support::{all_denied, attack, attack_for, found, on_host};
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, as_shown, describe, is_usable, ok, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("escape_files", [run_code, local], {
        c61_the_first_process_shows_nothing needs strict;
        c64_no_control_groups_to_write needs strict;
        c71_modes_are_not_set_through_links needs strict, files;
        c74_file_capabilities_mean_nothing needs strict;
        c77_nothing_of_the_system_can_be_written needs strict;
        canary_files_are_out_of_reach needs contained;
        mounting_in_every_way needs strict;
        handles_of_files needs strict;
        a_root_that_is_replaced needs strict, files;
        a_working_directory_that_is_a_link needs strict;
        descriptors_that_were_inherited needs strict;
        kernel_files_that_write needs contained;
        device_nodes_cannot_be_made needs strict;
        a_lease_on_a_mounted_file_holds_up_nobody needs mounts, strict;
    })
}

async fn c61_the_first_process_shows_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
read = lambda path: (lambda: open(path, 'rb').read(100))
probes = {name: read('/proc/1/' + name) for name in
    ['environ', 'mem', 'maps', 'auxv', 'stack', 'syscall', 'io', 'pagemap', 'personality']}
probes |= {'root': lambda: os.listdir('/proc/1/root'), 'fd': lambda: os.listdir('/proc/1/fd'),
    'cwd': lambda: os.readlink('/proc/1/cwd'), 'exe': lambda: os.readlink('/proc/1/exe'),
    'map_files': lambda: os.listdir('/proc/1/map_files'),
    'mem for writing': lambda: open('/proc/1/mem', 'r+b'),
    'oom': lambda: os.write(os.open('/proc/1/oom_score_adj', os.O_WRONLY), b'1000')}";
    all_denied(&sandbox, probes).await?;
    let control =
        found(&sandbox, "print(json.dumps(tried(lambda: open('/proc/self/maps').read(5))))");
    ensure!(!control.await?.as_str().unwrap_or("E").starts_with('E'), "the control");
    Ok(())
}

async fn c64_no_control_groups_to_write(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
probes = {
    'mkdir': lambda: os.mkdir('/sys/fs/cgroup/x'),
    'release_agent': lambda: os.open('/sys/fs/cgroup/release_agent', os.O_WRONLY),
    'mount cgroup': lambda: libc.mount(b'c', b'/tmp', b'cgroup', 0, b'memory') and call(-1),
    'uevent': lambda: os.open('/sys/kernel/uevent_helper', os.O_WRONLY),
}";
    all_denied(&sandbox, probes).await
}

async fn c71_modes_are_not_set_through_links(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import os\nopen('target', 'w').close(); os.chmod('target', 0o600)\nos.symlink('target', 'l'); os.symlink('/etc/passwd', 'p')").await?;
    for link in ["l", "p"] {
        let answer = sandbox.files().chmod(link, 0o777).await;
        ensure!(answer.is_err(), "the mode was set through {link}");
    }
    ensure_eq!(
        text(&sandbox, "oct(os.stat('target').st_mode & 0o777)").await?,
        as_shown("'0o600'")
    );
    Ok(())
}

async fn c74_file_capabilities_mean_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import shutil
shutil.copy('/bin/cat', 'c'); os.chmod('c', 0o6755)
value = struct.pack('<IIIII', 0x02000001, 0xffffffff, 0, 0xffffffff, 0)
set_it = tried(lambda: os.setxattr('c', 'security.capability', value))
seen = subprocess.run(['./c', '/proc/self/status'], capture_output=True, text=True).stdout
lines = dict(line.split(':', 1) for line in seen.splitlines())
print(json.dumps({'effective': lines['CapEff'].strip(), 'bounding': lines['CapBnd'].strip(), 'users': lines['Uid'].split(), 'set': set_it}))";
    let found = found(&sandbox, code).await?;
    for field in ["effective", "bounding"] {
        let bits = found[field].as_str().unwrap_or_default();
        ensure!(!bits.is_empty() && bits.bytes().all(|b| b == b'0'), "{found}");
    }
    let users = found["users"].as_array().cloned().unwrap_or_default();
    ensure!(users.len() == 4 && users.iter().all(|user| *user == users[0]), "{found}");
    Ok(())
}

async fn c77_nothing_of_the_system_can_be_written(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
bad = []
for folder, names, files in os.walk('/', topdown=True):
    names[:] = [n for n in names if os.path.join(folder, n) not in
        ('/proc', '/workspace', '/data', '/run', '/tmp', '/home/sandbox', '/var/tmp', '/dev/shm', '/dev/pts')
        and not os.path.islink(os.path.join(folder, n))]
    if folder.count('/') > 3: names.clear()
    try:
        path = os.path.join(folder, '.probe')
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY)); bad.append(path)
    except OSError: pass
for path in ['/etc/passwd', '/etc/hosts', '/etc/resolv.conf', '/bin/sh', '/usr/bin/env', '/lib']:
    for probe in [lambda: os.utime(path), lambda: os.chmod(path, 0o777), lambda: os.remove(path),
                  lambda: os.rename(path, path + 'x'), lambda: os.truncate(path, 0)]:
        try: probe(); bad.append(path)
        except OSError: pass
print(json.dumps(bad))";
    let found = found(&sandbox, code).await?;
    ensure_eq!(found.as_array().map(Vec::len), Some(0), "written: {found}");
    Ok(())
}

async fn canary_files_are_out_of_reach(f: Fixture) -> Checked {
    let tree = f.canaries()?.tree.display().to_string();
    let sandbox = f.sandbox().await?;
    let probes = format!(
        "
tree = {tree:?}
probes = {{}}
for name in ['readme', 'private/key', 'tool', 'public/open', 'link']:
    path = os.path.join(tree, name)
    for way in ['', '/proc/self/root', '/proc/1/root', '/proc/self/cwd/../../../../../..', '/dev/fd/../../../..', '/workspace/../..']:
        probes[way + name] = lambda path=way + path: open(path, 'rb').read()
    probes['append ' + name] = lambda path=path: open(path, 'ab').write(b'x')
    probes['link ' + name] = lambda path=path: (os.link(path, 'stolen'), open('stolen').read())
    probes['symlink ' + name] = lambda path=path: (os.path.lexists('way') and os.remove('way'), os.symlink(path, 'way'), open('way').read())
    probes['run ' + name] = lambda path=path: subprocess.run([path], capture_output=True)
    probes['chmod ' + name] = lambda path=path: os.chmod(path, 0o777)
    probes['remove ' + name] = lambda path=path: os.remove(path)
probes['make'] = lambda: open(tree + '/public/new', 'w')
probes['rename'] = lambda: os.rename(tree + '/public/open', tree + '/public/moved')
probes['mkdir'] = lambda: os.mkdir(tree + '/public/folder')"
    );
    all_denied(&sandbox, &probes).await
}

async fn mounting_in_every_way(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
CALLS = {'x86_64': dict(mount=165, umount2=166, pivot_root=155, chroot=161), 'aarch64': dict(mount=40, umount2=39, pivot_root=41, chroot=51)}[platform.machine()]
probes = {
    'mount': lambda: call(CALLS['mount'], b'x', b'/tmp', b'tmpfs', 0, 0),
    'bind': lambda: call(CALLS['mount'], b'/', b'/tmp', b'', 4096, 0),
    'remount': lambda: call(CALLS['mount'], b'none', b'/usr', b'', 32 | 4096, 0),
    'proc': lambda: call(CALLS['mount'], b'proc', b'/tmp', b'proc', 0, 0),
    'umount': lambda: call(CALLS['umount2'], b'/proc', 2),
    'pivot_root': lambda: call(CALLS['pivot_root'], b'/tmp', b'/tmp'),
    'chroot': lambda: call(CALLS['chroot'], b'/tmp'),
    'open_tree': lambda: call(428, -100, b'/', 1 | 0x80000),
    'move_mount': lambda: call(429, -100, b'/tmp', -100, b'/workspace', 0),
    'fsopen': lambda: call(430, b'tmpfs', 0),
    'fspick': lambda: call(433, -100, b'/', 0),
    'mount_setattr': lambda: call(442, -100, b'/', 0, struct.pack('QQQQ', 0, 1, 0, 0), 32),
}";
    all_denied(&sandbox, probes).await
}

async fn handles_of_files(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // A handle names an inode of a file system, whatever is mounted where.
    let probes = "
handle = struct.pack('Ii', 8, 1) + struct.pack('II', 2, 0) + bytes(120)
numbers = {'x86_64': (303, 304), 'aarch64': (264, 265)}[platform.machine()]
probes = {
    'root of the host': lambda: call(numbers[1], os.open('/usr', os.O_RDONLY), handle, 0),
    'by descriptor': lambda: call(numbers[1], os.open('/workspace', os.O_RDONLY), handle, 0),
    'quotactl': lambda: call({'x86_64': 179}.get(platform.machine(), 60), 0x80000700, b'/dev/root', 0, bytes(100)),
    'fanotify': lambda: call({'x86_64': 300}.get(platform.machine(), 262), 4, 0),
    'swapon': lambda: call({'x86_64': 167}.get(platform.machine(), 224), b'/tmp/x', 0),
    'acct': lambda: call({'x86_64': 163}.get(platform.machine(), 89), b'/tmp/x'),
}";
    all_denied(&sandbox, probes).await
}

async fn a_root_that_is_replaced(f: Fixture) -> Checked {
    // Where the sandbox's own directories were, there are links and files when the host looks.
    let sandbox = f.sandbox().await?;
    let tree = f.canaries()?.tree.display().to_string();
    let code = format!(
        "
import os, shutil
os.chdir('/')
for name in ['/workspace', '/tmp', '/home/sandbox']:
    for inner in os.listdir(name):
        path = os.path.join(name, inner)
        # An interpreter that is below such a place is shown there, read-only.
        if os.path.isdir(path) and not os.path.islink(path): shutil.rmtree(path, ignore_errors=True)
        else:
            # The interpreter's own files may go at the same moment.
            try: os.remove(path)
            except OSError: pass
    for way in (lambda: os.rmdir(name), lambda: os.rename(name, '/workspace2'), lambda: os.symlink({tree:?}, name)):
        try: way()
        except OSError: pass
    try: os.symlink({tree:?}, name + '/tree')
    except OSError: pass"
    );
    let result = attack(&sandbox, &code).await?;
    ensure!(result.success(), "the attack did not come to its end: {}", describe(&result));
    for path in ["/workspace/tree/public/open", "tree/public/open", "/tmp/tree/readme"] {
        ensure!(sandbox.files().read(path).await.is_err(), "{path} of the host was read");
        ensure!(sandbox.files().write(path, "x").await.is_err(), "{path} of the host was written");
    }
    is_usable(&sandbox).await?;
    sandbox.files().write("after", "works").await?;
    Ok(())
}

async fn a_working_directory_that_is_a_link(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let tree = f.canaries()?.tree.display().to_string();
    ok(
        &sandbox,
        &format!("import os\nos.symlink({tree:?}, 'away')\nos.symlink('/proc/1/root', 'up')"),
    )
    .await?;
    for directory in ["away", "up", "/proc/1/root", "/proc/1/cwd", "/proc/self/fd/3"] {
        let run =
            sandbox.run_code("import os; os.listdir('.')").cwd(directory).timeout(WAIT_TIMEOUT);
        let outcome = run.await;
        let listed = outcome.as_ref().ok().and_then(|result| result.text());
        ensure!(listed.is_none_or(|listed| !listed.contains("readme")), "{directory}: {outcome:?}");
    }
    Ok(())
}

async fn descriptors_that_were_inherited(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // Whatever is open, nothing above the root can be reached from it.
    let code = "
seen = []
for name in os.listdir('/proc/self/fd'):
    fd = int(name)
    for path in ['.', '..', '../../../../../etc/hostname', 'etc/shadow']:
        try: seen.append((fd, os.readlink(f'/proc/self/fd/{fd}'), path, os.open(path, os.O_RDONLY, dir_fd=fd)))
        except OSError: pass
print(json.dumps([s for s in seen if not s[1].startswith('/workspace')]))";
    let result = found(&sandbox, code).await?;
    ensure_eq!(
        result.as_array().map(Vec::len),
        Some(0),
        "descriptors that lead somewhere: {result}"
    );
    let command =
        sandbox.commands().run("ls -l /proc/self/fd | grep -v -e pipe -e null -e /proc/ -e total");
    let command = command.timeout(WAIT_TIMEOUT).await?;
    ensure_eq!(command.stdout.trim(), "", "descriptors of a command");
    Ok(())
}

async fn kernel_files_that_write(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
write = lambda path, what: (lambda: os.write(os.open(path, os.O_WRONLY), what.encode()))
probes = {path: write(path, what) for path, what in {
    '/proc/sys/kernel/core_pattern': '|/x', '/proc/sysrq-trigger': 'b', '/proc/sys/vm/drop_caches': '3',
    '/proc/sys/kernel/modprobe': '/x', '/proc/sys/fs/binfmt_misc/register': ':x:M::MZ::/x:',
    '/proc/sys/kernel/ns_last_pid': '1', '/proc/self/uid_map': '0 0 1', '/proc/self/setgroups': 'allow',
    '/proc/self/timerslack_ns': '1', '/proc/1/timerslack_ns': '1', '/proc/self/loginuid': '0',
    '/proc/self/attr/exec': 'x', '/proc/sys/net/ipv4/ip_forward': '1', '/proc/sys/user/max_user_namespaces': '1',
    '/proc/irq/default_smp_affinity': '1', '/proc/mtrr': 'x', '/proc/acpi/wakeup': 'x', '/proc/scsi/scsi': 'x',
    '/sys/power/state': 'mem', '/dev/mem': 'x', '/dev/kmsg': 'x',
}.items() if path != '/proc/self/timerslack_ns'}
probes |= {path: (lambda path=path: open(path, 'rb').read(100) or call(-1)) for path in [
    '/proc/kcore', '/proc/kmsg', '/dev/kmsg', '/dev/mem', '/dev/port', '/proc/vmallocinfo', '/proc/slabinfo',
    '/proc/timer_list', '/proc/kpagecount', '/proc/config.gz.']}
probes |= {path: (lambda path=path: os.listdir(path) or call(-1)) for path in ['/boot', '/sys/kernel/security']}";
    all_denied(&sandbox, probes).await
}

async fn device_nodes_cannot_be_made(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
probes = {kind + where: (lambda kind=kind, where=where: os.mknod(where + '/node', 0o666 | mode, os.makedev(1, 1)))
    for where in ['/workspace', '/tmp', '/dev/shm', '/dev'] for kind, mode in [('char', 0o020000), ('block', 0o060000)]}
probes |= {'null': lambda: os.unlink('/dev/null'), 'rename null': lambda: os.rename('/dev/null', '/dev/shm/null'),
    'tty ioctl': lambda: __import__('fcntl').ioctl(os.open('/dev/tty', os.O_RDWR), 0x5412, b'x')}";
    all_denied(&sandbox, probes).await?;
    // What is moved away may leave a node behind, for which no privilege is asked.
    let moving = "
import shutil, tempfile
def leave_a_node(place):
    folder = tempfile.mkdtemp(dir=place)
    try:
        open(folder + '/a', 'w').close()
        number = 316 if platform.machine() == 'x86_64' else 276
        result = libc.syscall(number, -100, (folder + '/a').encode(), -100, (folder + '/b').encode(), 4)
        if result: raise OSError(ctypes.get_errno(), 'not left')
    finally: shutil.rmtree(folder, True)
probes = {place: (lambda place=place: leave_a_node(place)) for place in ['/workspace', '/tmp', '/dev/shm'] if os.path.isdir(place)}";
    let controls = on_host(moving)?;
    ensure!(controls.iter().any(|(_, outcome)| outcome == "None"), "controls: {controls:?}");
    all_denied(&sandbox, moving).await?;
    let dev = "import os\nos.stat('/dev/null').st_rdev, open('/dev/null').read()";
    ensure_eq!(text(&sandbox, dev).await?, "(259, '')", "/dev/null is itself");
    let shadow = sandbox.files().read("/etc/shadow").await;
    ensure!(
        shadow
            .as_ref()
            .is_err_and(|e| [ErrorKind::NotFound, ErrorKind::PermissionDenied].contains(&e.kind())),
        "{shadow:?}"
    );
    attack_for(&sandbox, "1", WAIT_TIMEOUT).await?;
    Ok(())
}

async fn a_lease_on_a_mounted_file_holds_up_nobody(f: Fixture) -> Checked {
    const USER: u32 = 1000;
    let folder = tempfile::Builder::new().prefix("lease-").tempdir_in("/var/tmp")?;
    let note = folder.path().join("note");
    std::fs::write(&note, "of the host")?;
    // A program of the host that owns the file may take a lease.
    let own = format!("import fcntl; fcntl.fcntl(open({note:?}), 1024, 0)");
    let control = std::process::Command::new("python3").args(["-c", &own]).output()?;
    ensure!(control.status.success(), "no lease on the host either: {control:?}");
    if std::fs::metadata(&note)?.uid() == 0 {
        chown(folder.path(), Some(USER), Some(USER))?;
        chown(&note, Some(USER), Some(USER))?;
    }
    let sandbox = f.create(|b| b.mount(Mount::new(folder.path(), "/data/in"))).await?;
    let probes = "
import fcntl, signal
note = open('/data/in/note')
signal.signal(signal.SIGIO, signal.SIG_IGN)
high = 1 << 32
probes = {f'{kind} {command:x}': (lambda c=command, k=kind: call(72 if platform.machine() == 'x86_64' else 25, note.fileno(), c, k))
    for command in (1024, 1024 | high) for kind in (0, 1)}
folder = os.open('/data/in', os.O_RDONLY)
probes['notify'] = lambda: fcntl.fcntl(folder, 1026, 1)";
    all_denied(&sandbox, probes).await?;
    let began = Instant::now();
    let path = note.clone();
    let opened = tokio::task::spawn_blocking(move || {
        std::fs::File::options().write(true).open(path).map(drop)
    });
    crate::support::within(WAIT_TIMEOUT, opened)
        .await?
        .map_err(|error| crate::case::Failure::new(error.to_string()))??;
    ensure!(began.elapsed() < Duration::from_secs(5), "the host waited {:?}", began.elapsed());
    // What is held with it still works: locks.
    ok(&sandbox, "import fcntl\nfcntl.flock(open('/data/in/note'), fcntl.LOCK_SH | fcntl.LOCK_NB)")
        .await?;
    Ok(())
}
