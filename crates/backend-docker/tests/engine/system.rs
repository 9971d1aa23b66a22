//! System packages, installed by the image's package manager.

use std::sync::Arc;

use backend_docker::DockerBackend;
use sandbox_core::{ErrorKind, Sandbox};

use super::support::{docker, has_engine};
use super::{container, create};

/// Script that makes a repository with one package, run as root of the container.
const REPOSITORY: &str = r#"set -e
mkdir -p /repository/p/DEBIAN /repository/p/usr/bin
cd /repository
printf 'Package: tiny-package\nVersion: 1.0\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n' >p/DEBIAN/control
printf '#!/bin/sh\necho ran\n' >p/usr/bin/tiny-program
chmod 755 p/usr/bin/tiny-program
dpkg-deb --root-owner-group -b p tiny.deb >/dev/null
cp p/DEBIAN/control Packages
printf 'Filename: ./tiny.deb\nSize: %s\nSHA256: %s\n' "$(stat -c %s tiny.deb)" "$(sha256sum tiny.deb | cut -d' ' -f1)" >>Packages
rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/repository ./' >/etc/apt/sources.list.d/tiny.list"#;

#[tokio::test]
async fn system_packages_are_installed_with_a_writable_root() {
    assert!(has_engine(), "there is no engine to test with");
    let closed = create().await;
    let refused = closed.install_system_packages(["tiny-package"]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.hint().unwrap().contains("writable_root"), "{refused:?}");
    let sandbox = Sandbox::builder(Arc::new(DockerBackend::default()))
        .provider_option("writable_root", true)
        .create()
        .await
        .unwrap();
    docker(&["exec", "--user", "0", &container(&sandbox), "sh", "-c", REPOSITORY]).await;
    sandbox.install_system_packages(["tiny-package"]).await.unwrap();
    let ran = sandbox.commands().run("tiny-program; cat /proc/self/status").await.unwrap();
    assert!(ran.stdout.starts_with("ran\n"), "{}", ran.stdout);
    assert!(ran.stdout.contains("CapBnd:\t0000000000000000"), "{}", ran.stdout);
    // Code has no further rights: it cannot change the installed files.
    let write = sandbox.commands().run("echo x >>/usr/bin/tiny-program").await.unwrap();
    assert_ne!(write.exit_code, 0);
    let unknown = sandbox.install_system_packages(["no-such-package"]).await.unwrap_err();
    assert!(unknown.to_string().contains("no-such-package"), "{unknown}");
    assert!(unknown.hint().unwrap().contains("NetworkPolicy::all()"), "{unknown:?}");
    let option = sandbox.install_system_packages(["--reinstall"]).await.unwrap_err();
    assert_eq!(option.kind(), ErrorKind::InvalidArgument, "{option}");
}
