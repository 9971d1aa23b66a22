//! Tests with an artificial `/etc` that has secrets in the usual places.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::super::EntryKind;
use super::*;

const SECRET: &str = "canary-4711";

/// Directories of a host: its `/etc`, the records of its packages, its units.
struct Host {
    folder: tempfile::TempDir,
    owned: Vec<&'static str>,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for directory in ["etc", "records/dpkg", "records/ucf", "units"] {
            fs::create_dir_all(folder.path().join(directory)).unwrap();
        }
        Self { folder, owned: Vec::new() }
    }

    fn etc(&self) -> PathBuf {
        self.folder.path().join("etc")
    }

    /// Writes a file with that mode.
    fn file(&self, name: &str, mode: u32, content: &str) -> &Self {
        let path = self.etc().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    /// Writes a file that an installed package owns.
    fn owned(&mut self, name: &'static str, mode: u32, content: &str) -> &mut Self {
        self.file(name, mode, content);
        self.owned.push(name);
        self
    }

    fn detect(&self) -> Configuration {
        let mut status = String::from("Package: x\nConffiles:\n");
        for name in &self.owned {
            status += &format!(" /etc/{name} d41d8cd98f00b204e9800998ecf8427e\n");
        }
        status += "Description: of /etc/unowned\n";
        let records = self.folder.path().join("records");
        fs::write(records.join("dpkg/status"), status).unwrap();
        Configuration::detect(&self.etc(), &records, &[&self.folder.path().join("units")])
    }

    /// Returns all readable text of the shown paths, and the paths.
    fn readable(&self) -> (Vec<String>, String) {
        fn walk(path: &Path, paths: &mut Vec<PathBuf>) {
            if path.is_dir() {
                fs::read_dir(path).unwrap().flatten().for_each(|entry| walk(&entry.path(), paths));
            } else {
                paths.push(path.to_owned());
            }
        }
        let mut paths = Vec::new();
        for entry in self.detect().shown {
            if !matches!(entry.kind, EntryKind::Link(_)) {
                walk(&entry.target, &mut paths);
            }
        }
        let text = paths.iter().map(|path| fs::read_to_string(path).unwrap_or_default()).collect();
        let name = |path: &PathBuf| path.strip_prefix(self.etc()).unwrap().display().to_string();
        let mut names: Vec<_> = paths.iter().map(name).collect();
        names.sort();
        (names, text)
    }
}

#[test]
fn programs_find_configuration_of_their_packages() {
    let mut host = Host::new();
    host.owned("java-17-openjdk/security/java.security", 0o644, "keystore.type=pkcs12\n")
        .owned("R/Makeconf", 0o644, "CC = gcc\n")
        .file("R/ldpaths", 0o644, "made by a script\n")
        .file("ld.so.conf", 0o644, "include x\n");
    let records = host.folder.path().join("records");
    fs::write(records.join("ucf/hashfile"), "00  /etc/php/8.2/cli/php.ini\n").unwrap();
    host.file("php/8.2/cli/php.ini", 0o644, "memory_limit = -1\n");
    let (names, _) = host.readable();
    let expected = [
        "R/Makeconf",
        "R/ldpaths",
        "java-17-openjdk/security/java.security",
        "ld.so.conf",
        "php/8.2/cli/php.ini",
    ];
    assert_eq!(names, expected);
    // Each directory is one mount, not one for each file.
    assert_eq!(host.detect().shown.len(), 4);
}

#[test]
fn nothing_secret_is_shown_wherever_it_was_put() {
    let mut host = Host::new();
    host.owned("tool/good.conf", 0o644, "colour = yes\n");
    let line = format!("password = {SECRET}\n");
    for name in [
        "shadow",
        "gshadow",
        "sudoers",
        "passwd",
        "group",
        "machine-id",
        "hostname",
        "hosts",
        "resolv.conf",
        "pip.conf",
        "netrc",
        "environment",
        "my.cnf",
        "npmrc",
        "gitconfig",
    ] {
        host.owned(Box::leak(name.to_owned().into_boxed_str()), 0o644, SECRET);
    }
    for name in [
        "ssh/ssh_host_key",
        "ssl/private/a.pem",
        "docker/daemon.json",
        "kubernetes/admin.conf",
        "mysql/debian.cnf",
        "apt/auth.conf",
        "NetworkManager/wifi",
        "wireguard/wg0.conf",
        "sudoers.d/x",
        "profile.d/x.sh",
        "default/x",
        "systemd/x",
        "cron.d/x",
        "rancher/k3s.yaml",
        "cloud/x",
        "letsencrypt/x",
    ] {
        host.owned(Box::leak(name.to_owned().into_boxed_str()), 0o644, SECRET);
    }
    // Hidden inside shown directories: by mode, by name, by content, and files that no package owns.
    host.file("tool/closed.conf", 0o640, SECRET)
        .file("tool/own.key", 0o644, SECRET)
        .file("tool/login.conf", 0o644, &line)
        .file("tool/index.conf", 0o644, &format!("url = https://me:{SECRET}@host/\n"))
        .file("tool/sub/api.conf", 0o644, &format!("api_key: {SECRET}\n"))
        .file("unowned/app.conf", 0o644, SECRET)
        .file("unowned.conf", 0o644, SECRET);
    let (names, text) = host.readable();
    assert_eq!(names, ["tool/good.conf"], "only the control is shown");
    assert!(!text.contains(SECRET));
    let hidden = host.detect().hidden;
    let hidden_for = |name: &str, why: &str| {
        hidden.iter().any(|hidden| hidden.path == host.etc().join(name) && hidden.why.contains(why))
    };
    assert!(hidden_for("tool/login.conf", "credential"), "{hidden:?}");
    assert!(hidden_for("tool/closed.conf", "not every user"), "{hidden:?}");
    assert!(hidden_for("shadow", "accounts"), "{hidden:?}");
}

/// A word processor's defaults have thousands of lines about passwords, and are too large to scan.
#[test]
fn what_is_as_its_package_delivered_it_is_shown_whatever_it_looks_like() {
    const DELIVERED: &str = "password = example\n";
    const CHECKSUM: &str = "f48760322120bc8e28eb82201108c8d9";
    let mut host = Host::new();
    host.owned("office/small.conf", 0o644, "x");
    let records = host.folder.path().join("records");
    let delivered = ["office/main.conf", "office/changed.conf", "sudoers.d/main.conf"];
    let lines: String = delivered.map(|name| format!("{CHECKSUM}  /etc/{name}\n")).concat();
    fs::write(records.join("ucf/hashfile"), lines).unwrap();
    host.file("office/main.conf", 0o644, DELIVERED)
        .file("office/changed.conf", 0o644, &format!("password = {SECRET}\n"))
        .file("office/unowned.conf", 0o644, DELIVERED)
        .file("sudoers.d/main.conf", 0o644, DELIVERED);
    let (names, text) = host.readable();
    assert_eq!(names, ["office/main.conf", "office/small.conf"]);
    assert!(!text.contains(SECRET));
}

#[test]
fn configuration_of_services_is_not_shown() {
    let mut host = Host::new();
    host.owned("tool/a", 0o644, "x").owned("fancyd/a", 0o644, "x").owned("fancy.conf", 0o644, "x");
    assert_eq!(host.readable().0, ["fancy.conf", "fancyd/a", "tool/a"]);
    fs::write(host.folder.path().join("units/fancyd.service"), "").unwrap();
    assert_eq!(host.readable().0, ["tool/a"]);
}

#[test]
fn files_that_others_can_change_are_not_shown() {
    let mut host = Host::new();
    host.owned("tool/a", 0o644, "x").owned("tool/open", 0o666, "x");
    symlink("/etc/shadow", host.etc().join("tool/link")).unwrap();
    let shown = host.detect().shown;
    assert!(shown.iter().all(|entry| !entry.target.ends_with("open")), "{shown:?}");
    assert!(shown.iter().any(|entry| entry.target.ends_with("tool/a")), "{shown:?}");
    // A link is followed in the cell, where its target is not shown.
    let link = shown.iter().find(|entry| entry.target.ends_with("link"));
    assert!(link.is_none_or(|entry| matches!(entry.kind, EntryKind::Link(_))), "{link:?}");
}

/// A line of `services` looks like a credential, and no package owns `os-release`, which is a link.
#[test]
fn names_of_services_and_of_the_system_are_shown() {
    let mut host = Host::new();
    host.owned("services", 0o644, "kpasswd 464/tcp\n").owned("protocols", 0o644, "tcp 6 TCP\n");
    host.file("os-release", 0o644, "ID=debian\n");
    assert_eq!(host.readable().0, ["os-release", "protocols", "services"]);
}
