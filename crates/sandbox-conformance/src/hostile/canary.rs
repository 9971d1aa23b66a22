//! What is on the host and no sandbox may touch: files, listening sockets, a process, a secret.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::case::{Checked, Failure, ensure};
use crate::host::{self, Decoy};
use crate::leak_check::walk;

/// The name of a variable of the host process. Its value must be in nothing that a sandbox gives back.
pub(crate) const SECRET: &str = "SANDBOX_HOSTILE_SECRET";

/// Settings of the kernel that code likes to change.
const SETTINGS: [&str; 3] =
    ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_forward"];

/// Everything that is watched.
#[derive(Debug)]
pub(crate) struct Canaries {
    /// A tree of files that code may try to read and change.
    pub(crate) tree: PathBuf,
    /// A server on every address of the host.
    pub(crate) tcp: SocketAddr,
    /// The same for datagrams.
    pub(crate) udp: SocketAddr,
    /// A socket with a path.
    pub(crate) socket: PathBuf,
    /// A socket with a name in the abstract namespace.
    pub(crate) name: String,
    fingerprint: u64,
    heard: Arc<Mutex<Vec<String>>>,
    decoy: Mutex<Decoy>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Canaries {
    /// Puts them up, the files below `folder`.
    pub(crate) fn start(folder: &Path) -> io::Result<Self> {
        let tree = folder.join("host-tree");
        plant(&tree)?;
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let tcp = TcpListener::bind("0.0.0.0:0")?;
        let udp = UdpSocket::bind("0.0.0.0:0")?;
        let (tcp_address, udp_address) = (tcp.local_addr()?, udp.local_addr()?);
        let socket = folder.join("host-socket");
        let path = UnixListener::bind(&socket)?;
        let name = host::token("host-canary-");
        let named = UnixListener::bind_addr(&UnixAddress::from_abstract_name(&name)?)?;
        // Each waits for the rest of the life of this process.
        listen(&heard, "the TCP port", move || tcp.accept().map(|(_, peer)| format!("{peer}")));
        listen(&heard, "the UDP port", move || {
            udp.recv_from(&mut [0; 64]).map(|(_, peer)| format!("{peer}"))
        });
        listen(&heard, "the socket with a path", move || {
            path.accept().map(|(_, peer)| format!("{peer:?}"))
        });
        listen(&heard, "the abstract socket", move || {
            named.accept().map(|(_, peer)| format!("{peer:?}"))
        });
        let decoy = Mutex::new(Decoy::start()?);
        let fingerprint = fingerprint(&tree)?;
        let (tcp, udp) = (tcp_address, udp_address);
        Ok(Self { tree, tcp, udp, socket, name, fingerprint, heard, decoy })
    }

    /// The process that must live.
    pub(crate) fn decoy(&self) -> u32 {
        locked(&self.decoy).pid()
    }

    /// Whether all is as it was. What was heard is told once.
    pub(crate) fn check(&self) -> Checked {
        self.look().map_err(Failure::finally)
    }

    fn look(&self) -> Checked {
        let heard = std::mem::take(&mut *locked(&self.heard));
        ensure!(heard.is_empty(), "the host was reached: {heard:?}");
        ensure!(locked(&self.decoy).is_alive()?, "a process of the host was killed");
        let found = fingerprint(&self.tree)?;
        ensure!(found == self.fingerprint, "files or settings of the host were changed");
        Ok(())
    }
}

/// A thread that notes every client.
fn listen(
    heard: &Arc<Mutex<Vec<String>>>,
    what: &'static str,
    next: impl Fn() -> io::Result<String> + Send + 'static,
) {
    let heard = Arc::clone(heard);
    std::thread::spawn(move || {
        while let Ok(peer) = next() {
            locked(&heard).push(format!("{what} by {peer}"));
        }
    });
}

/// Files of every kind that an attacker could want.
fn plant(tree: &Path) -> io::Result<()> {
    fs::create_dir_all(tree.join("private"))?;
    fs::set_permissions(tree.join("private"), fs::Permissions::from_mode(0o700))?;
    for (name, mode) in [("readme", 0o644), ("private/key", 0o600), ("tool", 0o755)] {
        let secret = std::env::var(SECRET).unwrap_or_default();
        fs::write(tree.join(name), format!("of the host: {secret}\n"))?;
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode))?;
    }
    // Open to all users: only walls keep code out.
    fs::create_dir_all(tree.join("public"))?;
    fs::set_permissions(tree.join("public"), fs::Permissions::from_mode(0o777))?;
    fs::write(tree.join("public/open"), "of the host")?;
    fs::set_permissions(tree.join("public/open"), fs::Permissions::from_mode(0o666))?;
    symlink("readme", tree.join("link"))
}

/// Everything that a change would change: names, contents, rights, owners, times, numbers of links.
fn fingerprint(tree: &Path) -> io::Result<u64> {
    let mut paths = BTreeSet::new();
    walk(tree, &mut paths);
    let mut hasher = DefaultHasher::new();
    for path in paths {
        let meta = fs::symlink_metadata(&path)?;
        (meta.mode(), meta.uid(), meta.gid(), meta.nlink(), meta.len()).hash(&mut hasher);
        (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()).hash(&mut hasher);
        if meta.is_file() {
            fs::read(&path)?.hash(&mut hasher);
        }
        path.hash(&mut hasher);
    }
    for setting in SETTINGS {
        fs::read(setting).ok().hash(&mut hasher);
    }
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    //! Each canary is able to fail: a probe from the host trips it.

    use std::io::Write as _;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    fn canaries() -> (tempfile::TempDir, Canaries) {
        let folder = tempfile::tempdir().unwrap();
        let canaries = Canaries::start(folder.path()).unwrap();
        canaries.check().unwrap();
        (folder, canaries)
    }

    fn port(address: SocketAddr) -> SocketAddr {
        ([127, 0, 0, 1], address.port()).into()
    }

    /// Why the canaries fail, which may take a moment.
    fn tripped(canaries: &Canaries) -> String {
        let began = Instant::now();
        loop {
            match canaries.check() {
                Err(failure) => return failure.to_string(),
                Ok(()) if began.elapsed() > Duration::from_secs(10) => {
                    panic!("nothing was noticed")
                }
                Ok(()) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    #[test]
    fn whoever_connects_is_heard() {
        let (_folder, canaries) = canaries();
        TcpStream::connect(port(canaries.tcp)).unwrap();
        assert!(tripped(&canaries).contains("the TCP port"));
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", port(canaries.udp)).unwrap();
        assert!(tripped(&canaries).contains("the UDP port"));
        UnixStream::connect(&canaries.socket).unwrap();
        assert!(tripped(&canaries).contains("the socket with a path"));
        let name = UnixAddress::from_abstract_name(&canaries.name).unwrap();
        UnixStream::connect_addr(&name).unwrap();
        assert!(tripped(&canaries).contains("the abstract socket"));
        canaries.check().unwrap();
    }

    #[test]
    fn what_was_touched_is_final() {
        let (_folder, canaries) = canaries();
        fs::write(canaries.tree.join("public/new"), "").unwrap();
        assert!(tripped(&canaries).starts_with(crate::case::FINAL));
    }

    #[test]
    fn a_decoy_that_is_killed_is_missed() {
        let (_folder, canaries) = canaries();
        let killed = Command::new("kill").arg("-9").arg(canaries.decoy().to_string()).status();
        assert!(killed.unwrap().success());
        assert!(tripped(&canaries).contains("was killed"));
    }

    #[test]
    fn whatever_changes_a_file_is_seen() {
        type Change = fn(&Path) -> io::Result<()>;
        let changes: [Change; 6] = [
            |tree| fs::File::options().append(true).open(tree.join("readme"))?.write_all(b"x"),
            |tree| fs::write(tree.join("public/new"), ""),
            |tree| fs::remove_file(tree.join("link")),
            |tree| fs::set_permissions(tree.join("tool"), fs::Permissions::from_mode(0o777)),
            |tree| fs::hard_link(tree.join("readme"), tree.join("../elsewhere")),
            |tree| fs::rename(tree.join("tool"), tree.join("public/tool")),
        ];
        for change in changes {
            let (_folder, canaries) = canaries();
            change(&canaries.tree).unwrap();
            assert!(tripped(&canaries).contains("were changed"));
        }
    }
}
