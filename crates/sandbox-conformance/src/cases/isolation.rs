//! What code under strict isolation can see of the host's files and environment: nothing.

use std::fs;

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{as_shown, is_usable, json, ok, raises, run, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("isolation", [run_code, local, strict], {
        the_host_environment_is_absent;
        descriptors_of_the_host_are_absent;
        a_file_of_the_host_is_absent;
        password_hashes_are_absent;
        the_home_of_the_host_user_is_absent;
        system_files_are_read_only;
        kernel_settings_are_read_only;
        the_host_is_not_named;
        the_system_tree_is_empty;
        devices_are_harmless;
        mounts_cannot_be_changed;
        hard_links_to_the_host_fail;
        the_files_of_another_sandbox_are_absent;
        a_later_sandbox_sees_no_trace;
        no_memory_of_the_host_is_mapped;
        it_says_what_it_is;
    })
}

/// Variables that a sandbox has on its own, whatever the host has.
const DOCUMENTED: [&str; 9] =
    ["PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "USER", "TZ", "SHLVL"];

async fn the_host_environment_is_absent(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.env("CONTROL_VARIABLE", "seen")).await?;
    let code = "
import json, os
raw = dict(item.split(b'=', 1) for item in open('/proc/self/environ', 'rb').read().split(b'\\0') if b'=' in item)
print(json.dumps([dict(os.environ), {k.decode(): v.decode(errors='replace') for k, v in raw.items()}]))";
    let found = json(&sandbox, code).await?;
    ensure_eq!(found[0]["CONTROL_VARIABLE"], "seen", "the control variable");
    let mut compared = 0;
    for (name, value) in std::env::vars() {
        if DOCUMENTED.contains(&name.as_str()) || value.is_empty() {
            continue;
        }
        compared += 1;
        for seen in [&found[0], &found[1]] {
            ensure!(
                seen.get(&name).is_none_or(|seen| seen != &value),
                "{name} of the host is in the sandbox"
            );
        }
    }
    ensure!(compared > 0, "this process has no variable to look for, so the case proves nothing");
    Ok(())
}

async fn descriptors_of_the_host_are_absent(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import json, os
links = {}
for name in os.listdir('/proc/self/fd'):
    try: links[name] = os.readlink('/proc/self/fd/' + name)
    except OSError: pass
print(json.dumps(links))";
    let links = json(&sandbox, code).await?;
    let links = links.as_object().cloned().unwrap_or_default();
    ensure!(links.len() >= 3, "the standard streams are not seen: {links:?}");
    ensure!(links.len() <= 8, "too many descriptors: {links:?}");
    for (number, target) in &links {
        let target = target.as_str().unwrap_or_default();
        let harmless = ["/dev/null", "pipe:", "socket:", "/proc/"];
        ensure!(
            harmless.iter().any(|start| target.starts_with(start)),
            "descriptor {number} is {target}"
        );
    }
    Ok(())
}

/// Tries to read a path; `absent`, `denied` or what was read.
fn probe(path: &str) -> String {
    format!(
        "
try: found = open({path:?}, 'rb').read(200)
except FileNotFoundError: found = 'absent'
except (PermissionError, NotADirectoryError, IsADirectoryError): found = 'denied'
found"
    )
}

async fn is_out_of_reach(sandbox: &sandbox_core::Sandbox, path: &str) -> Checked {
    let found = text(sandbox, &probe(path)).await?;
    ensure!(
        found == as_shown("'absent'") || found == as_shown("'denied'"),
        "{path} is readable: {found}"
    );
    Ok(())
}

async fn a_file_of_the_host_is_absent(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let marker = std::env::temp_dir().join(host::token("host-file-"));
    fs::write(&marker, "secret of the host")?;
    let path = marker.display().to_string();
    let checked = async {
        is_out_of_reach(&sandbox, &path).await?;
        is_out_of_reach(&sandbox, &format!("/proc/self/root{path}")).await?;
        is_out_of_reach(&sandbox, &format!("/proc/1/root{path}")).await?;
        is_out_of_reach(&sandbox, &format!("/workspace/../../../..{path}")).await
    };
    let checked = checked.await;
    fs::remove_file(&marker)?;
    checked?;
    // The probe itself can read.
    let control = text(&sandbox, &probe("/etc/passwd")).await?;
    ensure!(control.contains(":x:") || control.contains("::"), "control: {control}");
    is_out_of_reach(&sandbox, &std::env::current_exe()?.display().to_string()).await
}

async fn password_hashes_are_absent(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for path in [
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/shadow-",
        "/etc/ssh/ssh_host_rsa_key",
        "/var/log/syslog",
    ] {
        is_out_of_reach(&sandbox, path).await?;
    }
    Ok(())
}

async fn the_home_of_the_host_user_is_absent(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for path in ["/root/.bashrc", "/root/.profile", "/root/.ssh/id_rsa", "/home/user/.bashrc"] {
        is_out_of_reach(&sandbox, path).await?;
    }
    let home = text(&sandbox, "import os; os.listdir(os.path.expanduser('~'))").await?;
    ensure_eq!(home, "[]", "the home directory");
    Ok(())
}

async fn system_files_are_read_only(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for path in
        ["/usr/written", "/usr/bin/written", "/usr/lib/written", "/etc/passwd", "/lib/written"]
    {
        raises_os_error(&sandbox, &format!("open({path:?}, 'a').write('x')")).await?;
    }
    for code in [
        "os.unlink('/usr/bin/env')",
        "os.rename('/usr/bin/env', '/tmp/env')",
        "os.chmod('/usr/bin/env', 0o777)",
        "os.rename('/etc', '/etc2')",
    ] {
        raises_os_error(&sandbox, &format!("import os\n{code}")).await?;
    }
    // The same code writes where it may.
    ok(&sandbox, "open('/tmp/written', 'a').write('x')").await?;
    ok(&sandbox, "open('written', 'a').write('x')").await?;
    Ok(())
}

/// Requires an `OSError` of any class.
pub(super) async fn raises_os_error(sandbox: &sandbox_core::Sandbox, code: &str) -> Checked {
    let code = format!(
        "try:\n    exec({code:?})\nexcept OSError as e: denied = type(e).__name__\nelse: denied = ''\ndenied"
    );
    let denied = text(sandbox, &code).await?;
    ensure!(denied != as_shown("''"), "nothing stopped {code}");
    Ok(())
}

async fn the_host_is_not_named(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
    let code = "import os, platform, socket
own = {os.uname().nodename, platform.node(), platform.uname().node, socket.gethostname()}
own.add(open('/proc/sys/kernel/hostname').read().strip())
' '.join(own)";
    let own = text(&sandbox, code).await?;
    let own = own.trim_matches('\'');
    ensure!(!own.contains(' '), "it has several names: {own}");
    // A host may have the name that cells have.
    ensure!(own == "sandbox" || own != host.trim(), "it is named {own}");
    Ok(())
}

async fn kernel_settings_are_read_only(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern")?;
    for path in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/drop_caches",
    ] {
        raises_os_error(&sandbox, &format!("open({path:?}, 'w').write('|/x')")).await?;
    }
    ensure_eq!(
        fs::read_to_string("/proc/sys/kernel/core_pattern")?,
        before,
        "core_pattern of the host"
    );
    Ok(())
}

async fn the_system_tree_is_empty(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let found =
        text(&sandbox, "import os; os.listdir('/sys') if os.path.exists('/sys') else []").await?;
    ensure_eq!(found, "[]", "/sys");
    ensure!(!text(&sandbox, "os.listdir('/')").await?.contains("oldroot"), "the old root is there");
    Ok(())
}

async fn devices_are_harmless(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os, stat; sorted(n for n in os.listdir('/dev') if stat.S_ISBLK(os.lstat('/dev/' + n).st_mode))";
    ensure_eq!(text(&sandbox, code).await?, "[]", "block devices");
    for name in ["mem", "kmem", "port", "kvm", "kmsg", "fuse", "net/tun", "loop-control"] {
        is_out_of_reach(&sandbox, &format!("/dev/{name}")).await?;
    }
    raises_os_error(&sandbox, "import os; os.mknod('/tmp/disk', 0o60666, os.makedev(8, 0))")
        .await?;
    raises_os_error(&sandbox, "import os; os.unlink('/dev/null')").await?;
    ensure_eq!(text(&sandbox, "open('/dev/zero', 'rb').read(3)").await?, "b'\\x00\\x00\\x00'");
    Ok(())
}

async fn mounts_cannot_be_changed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
results = [
    libc.mount(b'none', b'/tmp', b'tmpfs', 0, None),
    libc.mount(b'none', b'/usr', None, 32, None),
    libc.umount2(b'/proc', 2),
    libc.umount2(b'/usr', 2),
    libc.chroot(b'/tmp'),
    libc.sethostname(b'x', 1),
    libc.setuid(0),
]
results";
    let found = text(&sandbox, code).await?;
    ensure_eq!(found, "[-1, -1, -1, -1, -1, -1, -1]");
    // The same library does what is allowed.
    ensure_eq!(text(&sandbox, "libc.getpid() == __import__('os').getpid()").await?, "True");
    Ok(())
}

async fn hard_links_to_the_host_fail(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    raises_os_error(&sandbox, "import os; os.link('/usr/bin/env', '/tmp/env')").await?;
    ok(&sandbox, "import os; open('/tmp/a', 'w').close(); os.link('/tmp/a', '/tmp/b')").await?;
    Ok(())
}

async fn the_files_of_another_sandbox_are_absent(f: Fixture) -> Checked {
    let (one, two) = (f.sandbox().await?, f.sandbox().await?);
    let token = host::token("mine-");
    for directory in ["/workspace", "/tmp", "/dev/shm", "/home/sandbox", "/var/tmp", "/data"] {
        let path = format!("{directory}/{token}");
        ok(&one, &format!("open({path:?}, 'w').write('mine')")).await?;
        ensure_eq!(
            text(&one, &format!("open({path:?}).read()")).await?,
            as_shown("'mine'"),
            "control"
        );
        raises(&two, &format!("open({path:?})"), "FileNotFoundError").await?;
    }
    Ok(())
}

/// Workers come from one parent. What a worker does must not reach it.
async fn a_later_sandbox_sees_no_trace(f: Fixture) -> Checked {
    let one = f.sandbox().await?;
    let spoil = "import builtins, sys, json, os\nbuiltins.trace = sys.trace = json.trace = 1\nsys.path.insert(0, '/evil')\nos.environ['TRACE'] = '1'";
    ok(&one, spoil).await?;
    let two = f.sandbox().await?;
    let look = "import builtins, sys, json, os\n[hasattr(builtins, 'trace'), hasattr(sys, 'trace'), hasattr(json, 'trace'), '/evil' in sys.path, 'TRACE' in os.environ]";
    ensure_eq!(text(&two, look).await?, "[False, False, False, False, False]");
    ensure_eq!(text(&one, look).await?, "[True, True, True, True, True]", "control");
    Ok(())
}

/// The code looks for a prefix and compares the digest of what follows, so that looking does not plant the secret.
async fn no_memory_of_the_host_is_mapped(f: Fixture) -> Checked {
    let secret = host::token("secret-of-the-host-");
    let sandbox = f.sandbox().await?;
    let tell = format!("import hashlib\nhashlib.sha256({secret:?}.encode()).hexdigest()");
    let digest = text(&sandbox, &tell).await?;
    // Another sandbox does the looking; the first one has the secret in its code.
    let other = f.sandbox().await?;
    let code = format!(
        "
import hashlib, os
def found(prefix, digest):
    hits = 0
    with open('/proc/self/mem', 'rb', 0) as memory:
        for line in open('/proc/self/maps'):
            where, rights = line.split()[:2]
            if 'r' not in rights or '[v' in line: continue
            start, end = (int(x, 16) for x in where.split('-'))
            try:
                memory.seek(start)
                data = memory.read(end - start)
            except (OSError, OverflowError): continue
            at = data.find(prefix)
            while at >= 0:
                hits += hashlib.sha256(data[at:at + len(prefix) + 16]).hexdigest() == digest
                at = data.find(prefix, at + 1)
    return hits
planted = b'secret-of-the-guest-' + os.urandom(8).hex().encode()
(found(b'secret-of-the-host-', {digest}) > 0, found(b'secret-of-the-guest-', hashlib.sha256(planted).hexdigest()) > 0)"
    );
    ensure_eq!(text(&other, &code).await?, "(False, True)", "(the secret, the control)");
    ensure!(secret.starts_with("secret"), "the secret lives in this process until here");
    Ok(())
}

async fn it_says_what_it_is(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let isolation = sandbox.info().isolation.unwrap_or_default();
    ensure!(!isolation.boundary.is_empty() && !isolation.layers.is_empty(), "{isolation:?}");
    ensure!(isolation.network.contains("none"), "network: {:?}", isolation.network);
    let identity = text(
        &sandbox,
        "import os; (os.getuid() != 0, os.getgid() != 0, os.getgroups() in ([], [os.getgid()]))",
    )
    .await?;
    ensure_eq!(identity, "(True, True, True)");
    is_usable(&sandbox).await?;
    ensure_eq!(run(&sandbox, "import os; os.getlogin").await?.failure, None);
    Ok(())
}
