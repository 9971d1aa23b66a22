//! Adapts requests to Podman, which gives the same requests some other meanings.
//!
//! Podman reads the rules for system calls from a file, has other options of directories in memory, copies host names into
//! containers, and makes further directories writable. What it leaves out silently is found inside the container: see
//! [`crate::verify`].

use std::collections::HashMap;
use std::fs::{DirBuilder, File, remove_dir_all};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, HostConfig, ImageInspect, Mount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountType, ResourcesUlimits,
};
use rustix::process::{Resource, getrlimit};
use sandbox_core::{Error, ErrorKind, Result, random_hex};

use crate::config::Options;

/// Prefix of the rules for system calls in a request.
const SECCOMP_OPTION: &str = "seccomp=";

/// Host names of a container, in place of those of the engine's host.
const HOSTS: &str = "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost\n";

/// Directory that Podman makes writable without a limit where the root is read-only.
const UNLIMITED_DIRECTORY: &str = "/run";

/// Limit of processes of one user on the engine's host. Podman has no more itself, and requests more for a container by
/// default. The limit of the container is another one.
const MAX_PROCESSES: u64 = 32_768;

/// Limit of open files where the engine refuses the requested one. By default Podman requests the largest that it knows.
const DEFAULT_OPEN_FILES: u64 = 1024;

/// Files that an engine of this host reads while it creates and starts a container. Dropping this removes them.
#[derive(Debug)]
pub(crate) struct Files {
    directory: PathBuf,
}

impl Files {
    fn new() -> io::Result<Self> {
        let directory = std::env::temp_dir().join(format!("code-sandboxes-{}", random_hex(8)));
        DirBuilder::new().mode(0o700).create(&directory)?;
        Ok(Self { directory })
    }

    /// Writes a file for every user: it holds no secret, and code of another user reads some of them.
    fn write(&self, name: &str, text: &str) -> io::Result<PathBuf> {
        let path = self.directory.join(name);
        let mut file = File::options().write(true).create_new(true).mode(0o644).open(&path)?;
        file.write_all(text.as_bytes())?;
        Ok(path)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Err(error) = remove_dir_all(&self.directory) {
            tracing::debug!(%error, "files for an engine could not be removed");
        }
    }
}

/// Refuses an image for another platform than the requested one, which Podman would ignore.
///
/// # Errors
/// `Unsupported`.
pub(crate) fn check_platform(image: &ImageInspect, options: &Options) -> Result<()> {
    let Some(requested) = &options.platform else { return Ok(()) };
    let part = |part: &Option<String>| part.clone().unwrap_or_default().to_ascii_lowercase();
    let (os, architecture, variant) =
        (part(&image.os), part(&image.architecture), part(&image.variant));
    let found = format!("{os}/{architecture}");
    let exact = format!("{found}/{variant}");
    if [&found, &exact].contains(&&requested.to_ascii_lowercase()) {
        return Ok(());
    }
    let name = &options.image;
    let message =
        format!("Podman has {name} for {found}, and ignores the requested platform {requested}");
    Err(Error::unsupported("create", message)
        .with_context("platform", requested.clone())
        .with_hint(format!("podman pull --platform {requested} {name}")))
}

/// Adapts a request to Podman. The returned files have to exist until the container has started.
///
/// # Errors
/// `ResourceExhausted` when the files cannot be written.
pub(crate) fn apply(request: &mut ContainerCreateBody) -> Result<Files> {
    // Older versions accept ids only without the prefix.
    let id = request.image.as_deref().and_then(|image| image.strip_prefix("sha256:"));
    if let Some(id) = id.map(str::to_owned) {
        request.image = Some(id);
    }
    let Some(host) = &mut request.host_config else {
        return Err(Error::new(ErrorKind::Unexpected, "create", "the request has no limits"));
    };
    fill(host).map_err(|error| {
        Error::new(
            ErrorKind::ResourceExhausted,
            "create",
            "the files that Podman reads could not be written",
        )
        .with_source(error)
        .with_hint("they are written to TMPDIR, or /tmp, which has to be writable")
    })
}

fn fill(host: &mut HostConfig) -> io::Result<Files> {
    let files = Files::new()?;
    for option in host.security_opt.iter_mut().flatten() {
        if let Some(rules) = option.strip_prefix(SECCOMP_OPTION) {
            *option =
                format!("{SECCOMP_OPTION}{}", files.write("system-calls.json", rules)?.display());
        }
    }
    let directories = host.tmpfs.get_or_insert_with(HashMap::new);
    directories.values_mut().for_each(|options| *options = tmpfs_options(options));
    if host.readonly_rootfs == Some(true) {
        let closed = "ro,nosuid,nodev,noexec,size=4096,notmpcopyup".to_owned();
        directories.entry(UNLIMITED_DIRECTORY.to_owned()).or_insert(closed);
    }
    let mounts = host.mounts.get_or_insert_with(Vec::new);
    mounts.push(read_only(&files.write("hosts", HOSTS)?, "/etc/hosts"));
    // Without it a container without a network has the resolvers of its image.
    if let Some(resolvers) = host.dns.take().filter(|all| !all.is_empty()) {
        let lines: String = resolvers.iter().map(|one| format!("nameserver {one}\n")).collect();
        mounts.push(read_only(&files.write("resolvers", &lines)?, "/etc/resolv.conf"));
    }
    let limits = host.ulimits.get_or_insert_with(Vec::new);
    limits.push(limit("nproc", Resource::Nproc, MAX_PROCESSES));
    if !limits.iter().any(|limit| limit.name.as_deref() == Some("nofile")) {
        limits.push(limit("nofile", Resource::Nofile, DEFAULT_OPEN_FILES));
    }
    Ok(files)
}

/// Adapts the options of a directory in memory: `U` makes the container's user its owner, and only memory limits the number
/// of files.
fn tmpfs_options(options: &str) -> String {
    let known = |option: &&str| {
        !["uid=", "gid=", "nr_inodes="].iter().any(|unknown| option.starts_with(unknown))
    };
    let mut all: Vec<&str> = options.split(',').filter(known).collect();
    // Files of the image in that directory are not copied, as with Docker.
    all.push("notmpcopyup");
    if options.contains("uid=") {
        all.push("U");
    }
    all.join(",")
}

fn read_only(source: &Path, target: &str) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.to_owned()),
        read_only: Some(true),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

/// Returns a limit, or that of an engine that was started in the way of this program if that is smaller.
fn limit(name: &str, resource: Resource, most: u64) -> ResourcesUlimits {
    let most = getrlimit(resource).maximum.unwrap_or(most).min(most);
    let most = i64::try_from(most).ok();
    ResourcesUlimits { name: Some(name.into()), soft: most, hard: most }
}

#[cfg(test)]
mod tests {
    use std::fs::read_to_string;

    use super::*;
    use crate::config::DockerConfig;

    #[test]
    fn an_image_for_another_platform_is_refused() {
        let image = ImageInspect {
            os: Some("linux".into()),
            architecture: Some("arm64".into()),
            variant: Some("v8".into()),
            ..ImageInspect::default()
        };
        let check = |platform: &str| {
            let mut spec = sandbox_core::CreateSpec::default();
            spec.provider_options.insert("platform".into(), platform.into());
            check_platform(&image, &Options::from_spec(&DockerConfig::default(), &spec).unwrap())
        };
        check("linux/arm64").unwrap();
        check("linux/arm64/v8").unwrap();
        for other in ["linux/amd64", "linux/arm", "linux/arm64/v9"] {
            assert_eq!(check(other).unwrap_err().kind(), ErrorKind::Unsupported, "{other}");
        }
    }

    #[test]
    fn a_request_is_adapted() {
        let directory = "rw,nosuid,nodev,exec,size=1024,nr_inodes=7,mode=0700,uid=1,gid=2";
        let host_config = HostConfig {
            security_opt: Some(vec!["no-new-privileges:true".into(), "seccomp={}".into()]),
            tmpfs: Some(HashMap::from([("/workspace".to_owned(), directory.to_owned())])),
            readonly_rootfs: Some(true),
            dns: Some(vec!["127.0.0.1".into()]),
            ..HostConfig::default()
        };
        let mut request = ContainerCreateBody {
            image: Some("sha256:123".into()),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        };
        let files = apply(&mut request).unwrap();
        assert_eq!(request.image.as_deref(), Some("123"));
        let host = request.host_config.unwrap();
        let options = host.security_opt.unwrap();
        let path = options[1].strip_prefix(SECCOMP_OPTION).unwrap();
        assert_eq!(
            (options[0].as_str(), read_to_string(path).unwrap().as_str()),
            ("no-new-privileges:true", "{}")
        );
        let tmpfs = host.tmpfs.unwrap();
        assert_eq!(tmpfs["/workspace"], "rw,nosuid,nodev,exec,size=1024,mode=0700,notmpcopyup,U");
        assert!(tmpfs[UNLIMITED_DIRECTORY].starts_with("ro,"));
        let mounted: Vec<_> =
            host.mounts.unwrap().into_iter().map(|mount| mount.target.unwrap()).collect();
        assert_eq!(mounted, ["/etc/hosts", "/etc/resolv.conf"]);
        drop(files);
        assert!(!Path::new(path).exists());
    }
}
