//! Which of the host's configuration cells show: what packages have put into `/etc` for programs, as far as everybody on
//! the host may read it and nothing in it is private.
//!
//! A file is shown when all of this holds: its directory below `/etc` belongs to an installed package, or is one of
//! [`USUAL`]; the name is not one of [`PRIVATE`], nor that of a service; its owner is that of `/etc`, and everybody may read
//! it; and no line of it looks like a credential. A directory in which all is shown is shown as one.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use memchr::memmem;

use super::credentials::has_credentials;
use super::{Entry, configuration, entry};

/// Names that programs of every system expect, most of them made by scripts of packages and so owned by none. Directories of
/// private keys are left out.
const USUAL: [&str; 24] = [
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "os-release",
    "pki/ca-trust",
    "pki/java",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "rpc",
    "services",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];

/// Beginnings of directories of languages, for systems whose packages cannot be asked.
const LANGUAGES: [&str; 9] =
    ["R", "java", "jvm", "maven", "mono", "perl", "php", "protocols", "services"];

/// Names below `/etc` that no cell shows, whichever package owns them, and what they are about. A `*` stands for any end.
const PRIVATE: [(&str, &[&str]); 7] = [
    (
        "accounts",
        &[
            "adduser.conf",
            "deluser.conf",
            "doas*",
            "group*",
            "gshadow*",
            "krb5*",
            "ldap",
            "libuser.conf",
            "login.defs",
            "nslcd*",
            "opasswd",
            "pam*",
            "passwd*",
            "polkit*",
            "security",
            "shadow*",
            "shells",
            "skel",
            "sssd",
            "subgid*",
            "subuid*",
            "sudo*",
        ],
    ),
    (
        "this host",
        &[
            "adjtime",
            "anacrontab",
            "apparmor*",
            "at.*",
            "audit*",
            "cloud*",
            "cron*",
            "crypttab",
            "default",
            "dracut*",
            "e2scrub*",
            "exports*",
            "fstab",
            "grub*",
            "host*",
            "init*",
            "insserv*",
            "issue*",
            "kernel*",
            "libaudit.conf",
            "logcheck",
            "logrotate*",
            "lvm",
            "machine-*",
            "mdadm*",
            "mke2fs.conf",
            "modprobe*",
            "modules*",
            "motd*",
            "mtab",
            "multipath*",
            "needrestart",
            "opt",
            "rc*",
            "rsyslog*",
            "selinux",
            "sensors*",
            "smartd*",
            "sysconfig",
            "sysctl*",
            "syslog*",
            "systemd",
            "tmpfiles*",
            "udev",
            "udisks2",
            "update-motd.d",
        ],
    ),
    (
        "networks",
        &[
            "NetworkManager",
            "bindresvport*",
            "dhcp*",
            "ethers",
            "gai.conf",
            "ipsec*",
            "iptables*",
            "iproute2",
            "ndctl*",
            "netconfig",
            "netplan",
            "network*",
            "nftables*",
            "nsswitch.conf",
            "openvpn",
            "ppp",
            "resolv*",
            "strongswan*",
            "swanctl",
            "tinc",
            "ufw",
            "wireguard",
            "wpa_supplicant",
        ],
    ),
    (
        "services",
        &[
            "PackageKit",
            "X11",
            "apache*",
            "bind",
            "cni",
            "containerd",
            "containers",
            "cups",
            "dbus*",
            "docker*",
            "dovecot",
            "exim*",
            "grafana",
            "httpd",
            "k3s",
            "kubernetes",
            "letsencrypt",
            "libvirt",
            "lighttpd",
            "lxc",
            "mongo*",
            "my.cnf*",
            "mysql",
            "nginx",
            "postfix",
            "postgresql*",
            "prometheus",
            "rabbitmq",
            "rancher",
            "redis",
            "samba",
            "snmp",
            "squid",
            "ssh",
            "stunnel",
            "vault*",
            "xdg",
        ],
    ),
    // Code that runs at the start of each interpreter of the host: those of a sandbox start without.
    ("interpreters", &["python2*", "python3*"]),
    ("shells", &["bash*", "csh*", "environment*", "fish", "inputrc", "profile*", "zsh*"]),
    (
        "package managers",
        &[
            "apk",
            "appstream.conf",
            "apt",
            "conda*",
            "debconf.conf",
            "debsums*",
            "dnf",
            "dpkg",
            "gitconfig",
            "npmrc",
            "pacman*",
            "pip*",
            "rpm",
            "ucf.conf",
            "yum*",
            "zypp",
        ],
    ),
];

/// Parts of names, in any directory, that stand for what is private.
const PRIVATE_PARTS: [&str; 10] = [
    ".key",
    ".kdbx",
    ".p12",
    ".pfx",
    "credential",
    "htpasswd",
    "id_rsa",
    "netrc",
    "private",
    "secret",
];

/// Shown one by one at most, where a directory cannot be shown as a whole.
const MAX_APART: usize = 64;

/// Levels of directories that are looked into.
const MAX_DEPTH: usize = 6;

/// Files that are looked at of one directory below `/etc`.
const MAX_FILES: usize = 4096;

/// The host's configuration that is shown, and that which is not although a package owns it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Configuration {
    pub(crate) shown: Vec<Entry>,
    pub(crate) hidden: Vec<Hidden>,
}

/// Something below `/etc` that cells do not show.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hidden {
    /// Where it is on the host.
    pub path: PathBuf,
    /// Why it is not shown, as the end of a sentence with "because", or what it is about.
    pub why: &'static str,
    /// Tells whether its name decided that, and not what was found there.
    pub is_by_name: bool,
}

impl Configuration {
    /// Looks below `etc`, with the records of the package manager below `records` and units of services in `units`.
    pub(crate) fn detect(etc: &Path, records: &Path, units: &[&Path]) -> Self {
        let owner = fs::metadata(etc).map_or(0, |metadata| metadata.uid());
        let mut found = Self::default();
        for name in USUAL {
            found.shown.extend(configuration(&etc.join(name)));
        }
        for name in owned(etc, records) {
            let path = etc.join(&name);
            if USUAL.iter().any(|usual| Path::new(usual).starts_with(&name)) {
                continue;
            }
            if let Some(why) = private(&name) {
                found.hidden.push(Hidden { path, why, is_by_name: true });
            } else if is_service(&name, units) {
                found.hidden.push(Hidden { path, why: "services", is_by_name: true });
            } else {
                let mut look = Look { owner, files: 0 };
                found.add(&path, look.at(&path, 0));
            }
        }
        found.hidden.sort();
        found.hidden.dedup();
        found
    }

    fn add(&mut self, path: &Path, seen: Seen) {
        match seen {
            Seen::Whole => {
                let known = |entry: &Entry| path.starts_with(&entry.target);
                if !self.shown.iter().any(known) {
                    // What is in it is in it.
                    self.shown.retain(|entry| !entry.target.starts_with(path));
                    // A link is made again, and leads only to what the cell has.
                    self.shown.extend(entry(path));
                }
            }
            Seen::Hidden(why) => {
                self.hidden.push(Hidden { path: path.to_owned(), why, is_by_name: false })
            }
            Seen::Apart(parts) => {
                let whole = |(_, seen): &&(PathBuf, Seen)| !matches!(seen, Seen::Hidden(_));
                if parts.iter().filter(whole).count() > MAX_APART {
                    let why = "something in it is private, among very many files";
                    self.hidden.push(Hidden { path: path.to_owned(), why, is_by_name: false });
                    return;
                }
                for (path, seen) in parts {
                    self.add(&path, seen);
                }
            }
        }
    }
}

/// The finding at one path.
enum Seen {
    /// All of it may be shown.
    Whole,
    /// Nothing of it.
    Hidden(&'static str),
    /// Some of it.
    Apart(Vec<(PathBuf, Seen)>),
}

struct Look {
    owner: u32,
    files: usize,
}

impl Look {
    fn at(&mut self, path: &Path, depth: usize) -> Seen {
        let Ok(metadata) = fs::symlink_metadata(path) else {
            return Seen::Hidden("it cannot be looked at");
        };
        self.files += 1;
        if self.files > MAX_FILES || depth > MAX_DEPTH {
            return Seen::Hidden("too much is in it to be looked at");
        }
        if depth > 0
            && path.file_name().is_some_and(|name| is_private_part(&name.to_string_lossy()))
        {
            return Seen::Hidden("its name says that it is private");
        }
        if metadata.is_symlink() {
            // Followed in the cell, where it leads to what is shown there.
            return Seen::Whole;
        }
        if let Some(why) = self.closed(&metadata) {
            return Seen::Hidden(why);
        }
        if metadata.is_dir() {
            return self.inside(path, depth);
        }
        if !metadata.is_file() {
            return Seen::Hidden("it is neither a file nor a directory");
        }
        match has_credentials(path, metadata.len()) {
            Ok(false) => Seen::Whole,
            Ok(true) => Seen::Hidden("a line of it looks like a credential"),
            Err(_) => Seen::Hidden("it cannot be looked at"),
        }
    }

    fn closed(&self, metadata: &Metadata) -> Option<&'static str> {
        const ALL_READ: u32 = 0o004;
        const ALL_ENTER: u32 = 0o005;
        const ALL_WRITE: u32 = 0o002;
        let needed = if metadata.is_dir() { ALL_ENTER } else { ALL_READ };
        if metadata.uid() != self.owner || metadata.mode() & ALL_WRITE != 0 {
            return Some("it is not the system's own");
        }
        (metadata.mode() & needed != needed).then_some("not everybody on this host may read it")
    }

    fn inside(&mut self, directory: &Path, depth: usize) -> Seen {
        let Ok(entries) = fs::read_dir(directory) else {
            return Seen::Hidden("it cannot be looked at");
        };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let seen: Vec<_> = paths
            .into_iter()
            .map(|path| {
                let seen = self.at(&path, depth + 1);
                (path, seen)
            })
            .collect();
        if seen.iter().all(|(_, seen)| matches!(seen, Seen::Whole)) {
            Seen::Whole
        } else {
            Seen::Apart(seen)
        }
    }
}

/// Returns the private matter that such a name below `/etc` is about.
fn private(name: &str) -> Option<&'static str> {
    let matches = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    };
    let about = PRIVATE.iter().find(|(_, patterns)| patterns.iter().any(&matches));
    let by_name = || is_private_part(name).then_some("its name says that it is private");
    about.map(|(about, _)| *about).or_else(by_name)
}

fn is_private_part(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    PRIVATE_PARTS.iter().any(|part| name.contains(part))
}

/// Tells whether a service of that name is installed: its configuration is about what this host does, and not about programs.
fn is_service(name: &str, units: &[&Path]) -> bool {
    let stem = name.split('.').next().unwrap_or(name);
    let of_stem =
        [format!("{stem}.service"), format!("{stem}d.service"), format!("{stem}@.service")];
    let scripts = [stem.to_owned(), format!("{stem}d")];
    units
        .iter()
        .any(|directory| of_stem.iter().chain(&scripts).any(|unit| directory.join(unit).is_file()))
}

/// The names below `/etc` that packages own: by the records of dpkg and its tool `ucf`, and by what is usual elsewhere.
fn owned(etc: &Path, records: &Path) -> BTreeSet<String> {
    let below = |path: &str| {
        let rest = Path::new(path).strip_prefix("/etc").ok()?;
        Some(rest.components().next()?.as_os_str().to_str()?.to_owned())
    };
    let mut names = BTreeSet::new();
    let Ok(status) = fs::read(records.join("dpkg/status")) else {
        let entries = fs::read_dir(etc).into_iter().flatten().flatten();
        let known = entries.filter_map(|entry| entry.file_name().into_string().ok());
        return known.filter(|name| LANGUAGES.iter().any(|own| name.starts_with(own))).collect();
    };
    let start = b"\nConffiles:\n";
    for at in memmem::find_iter(&status, start) {
        let rest = &status[at + start.len()..];
        for line in rest.split(|byte| *byte == b'\n').map_while(|line| line.strip_prefix(b" ")) {
            // A file that the package no longer has is marked so.
            let path = line.split(|byte| *byte == b' ').next().unwrap_or_default();
            if !line.ends_with(b" obsolete") {
                names.extend(below(&String::from_utf8_lossy(path)));
            }
        }
    }
    let copies = fs::read_to_string(records.join("ucf/hashfile")).unwrap_or_default();
    names.extend(copies.lines().filter_map(|line| below(line.split_whitespace().nth(1)?)));
    names
}

#[cfg(test)]
mod tests;
