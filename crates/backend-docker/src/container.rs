//! Specification of a container: as closed as an engine can make it, unless a create opens it.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use sandbox_core::{ByteSize, CreateSpec, Error, Result};
use sandbox_python::agent::{OpenFiles, arguments};

use crate::commit::BaseImage;
use crate::config::{CodeRunner, Options, User};
use crate::engine::EngineInfo;
use crate::mounts::HostFiles;
use crate::network::EgressMode;
use crate::optional_features::OptionalFeatures;
use crate::owner::{ID_LABEL, IMAGE_LABEL, OWNER_LABEL, Owner};
use crate::seccomp;

/// Default memory limit. With a disk limit the default is at least twice that limit.
const DEFAULT_MEMORY: ByteSize = ByteSize::gib(2);

/// Default disk limit. Files are in memory, and by default take at most half of it.
const DEFAULT_DISK: ByteSize = ByteSize::gib(1);

/// Default limit of processes and threads.
const DEFAULT_PROCESSES: u32 = 256;

/// Number of processes of any kernel. Kernels accept no greater limit.
const MAX_PROCESSES: u32 = 1 << 22;

/// Default soft and hard limits of open files of a process.
const DEFAULT_OPEN_FILES: u32 = 1024;
const DEFAULT_MAX_OPEN_FILES: u32 = 4096;

/// Further open files of the agent: some for each process and each connection.
const AGENT_OPEN_FILES: i64 = 4096;

/// Limit of the kernel unless `fs.nr_open` is set.
const MAX_OPEN_FILES: i64 = 1 << 20;

/// Limits of shared memory: bytes, and the divisor of the disk limit.
const MAX_SHARED_MEMORY: u64 = 64 << 20;
const SHARED_MEMORY_SHARE: u64 = 16;

/// Bytes of a directory in memory for each file that it may have.
const BYTES_PER_FILE: u64 = 4096;

/// Home directory of code.
pub(crate) const HOME: &str = "/home/sandbox";

/// Working directory of code.
pub(crate) const WORKSPACE: &str = "/workspace";

/// Further writable directories, with mode and divisor of the disk limit. The working directory has the rest.
const WRITABLE_DIRECTORIES: [(&str, &str, u64); 4] =
    [("/tmp", "1777", 16), ("/var/tmp", "1777", 32), ("/data", "0700", 32), (HOME, "0700", 4)];

/// Resource limits of a container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    pub(crate) memory: ByteSize,
    pub(crate) disk: ByteSize,
    pub(crate) processes: u32,
    pub(crate) cpu: Option<f64>,
}

impl Limits {
    pub(crate) fn from_spec(spec: &CreateSpec) -> Self {
        let memory = spec.memory.unwrap_or_else(|| {
            let for_disk = spec.disk.map_or(0, ByteSize::as_u64).saturating_mul(2);
            ByteSize::bytes(DEFAULT_MEMORY.as_u64().max(for_disk))
        });
        let half = ByteSize::bytes(DEFAULT_DISK.as_u64().min(memory.as_u64() / 2));
        let disk = spec.disk.unwrap_or(half);
        let processes = spec.processes.unwrap_or(DEFAULT_PROCESSES).min(MAX_PROCESSES);
        Self { memory, disk, processes, cpu: spec.cpu }
    }
}

/// Lists the layers of isolation for `info()`. `limits`: the limits of memory, processes and CPU are enforced.
pub(crate) fn layers(options: &Options, egress: EgressMode, limits: bool) -> Vec<String> {
    let mut layers = vec!["namespaces", "no-capabilities", "no-new-privileges", "seccomp"];
    layers.extend(limits.then_some("limits"));
    if !options.writable_root {
        layers.push("read-only-root");
    }
    if options.user().id != 0 {
        layers.push("unprivileged-user");
    }
    match egress {
        EgressMode::Closed => layers.push("no-network"),
        EgressMode::Gate => layers.push("network-gate"),
        EgressMode::Proxy => layers.push("network-proxy"),
    }
    let mut layers: Vec<String> = layers.into_iter().map(str::to_owned).collect();
    layers.extend(options.runtime.iter().map(|runtime| format!("runtime:{runtime}")));
    layers
}

/// Everything that the request for a container depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerSpec<'a> {
    pub(crate) spec: &'a CreateSpec,
    pub(crate) options: &'a Options,
    /// The image by its id, which no other image gets.
    pub(crate) image: &'a str,
    pub(crate) files: &'a HostFiles,
    pub(crate) egress: EgressMode,
    /// Facts about the engine's host.
    pub(crate) engine: EngineInfo,
    /// The image of the snapshot that the container starts from.
    pub(crate) base_image: Option<&'a BaseImage>,
}

/// Builds the request for a container whose init process is the bootstrap of the agent.
pub(crate) fn create_request(
    container: &ContainerSpec<'_>,
    features: OptionalFeatures,
    id: &str,
    nonce: &str,
    owner: Option<&Owner>,
) -> ContainerCreateBody {
    let ContainerSpec { spec, options, image, .. } = *container;
    let labels = [(ID_LABEL, id), (IMAGE_LABEL, &options.image)];
    let mut labels = HashMap::from(labels.map(|(name, value)| (name.to_owned(), value.to_owned())));
    labels.extend(owner.map(|owner| (OWNER_LABEL.to_owned(), owner.to_string())));
    ContainerCreateBody {
        image: Some(image.to_owned()),
        user: Some(options.user().to_string()),
        working_dir: Some("/".into()),
        entrypoint: Some(vec![options.python.clone()]),
        cmd: Some(arguments(nonce, Some(open_files(spec)))),
        tty: Some(false),
        open_stdin: Some(true),
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        hostname: Some("sandbox".into()),
        labels: Some(labels),
        stop_signal: Some("SIGKILL".into()),
        stop_timeout: Some(0),
        // A health check of the image would run beside the agent.
        healthcheck: Some(bollard::models::HealthConfig {
            test: Some(vec!["NONE".into()]),
            ..Default::default()
        }),
        host_config: Some(host_config(container, features)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(container: &ContainerSpec<'_>, features: OptionalFeatures) -> HostConfig {
    let ContainerSpec { spec, options, files, egress, engine, .. } = *container;
    let limits = Limits::from_spec(spec);
    let memory = engine.has_cgroups.then(|| signed(limits.memory.as_u64()));
    let profile = seccomp::profile(seccomp::ProfileOptions {
        writes_to_host: files.any_writable(),
        has_agent: options.runner != CodeRunner::None,
        has_devices: options.gpus.is_some(),
    });
    HostConfig {
        network_mode: Some("none".into()),
        dns: egress.resolvers(),
        readonly_rootfs: Some(!options.writable_root),
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".into()]),
        // Commands of root use the directories of code by it.
        group_add: options.has_root.then(|| vec![options.user().group.to_string()]),
        security_opt: Some(vec!["no-new-privileges:true".into(), format!("seccomp={profile}")]),
        ipc_mode: Some("private".into()),
        // Without it the paths of control groups of version 1 are those of the host.
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        init: Some(false),
        auto_remove: Some(true),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        memory,
        memory_swap: memory,
        #[expect(clippy::cast_possible_truncation, reason = "cores, which the spec has checked")]
        nano_cpus: limits.cpu.map(|cores| (cores * 1e9).round() as i64),
        pids_limit: engine.has_cgroups.then(|| limits.processes.into()),
        oom_score_adj: Some(500),
        shm_size: Some(signed(shared_memory(limits.disk))),
        ulimits: Some(ulimits(container, features)),
        tmpfs: Some(directories(spec, options, files, limits.disk)),
        mounts: files.for_engine(),
        sysctls: loopback_sysctls(features),
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        runtime: options.runtime.clone(),
        device_requests: options.gpus.map(|gpus| vec![gpus.request()]),
        ..HostConfig::default()
    }
}

/// Returns the size of `/dev/shm`, which is part of the disk limit.
fn shared_memory(disk: ByteSize) -> u64 {
    (disk.as_u64() / SHARED_MEMORY_SHARE).min(MAX_SHARED_MEMORY)
}

fn ulimits(container: &ContainerSpec<'_>, features: OptionalFeatures) -> Vec<ResourcesUlimits> {
    let ContainerSpec { spec, options, files, .. } = *container;
    let OpenFiles { soft, hard } = open_files(spec);
    let agent = (i64::from(hard) + AGENT_OPEN_FILES).min(MAX_OPEN_FILES);
    let mut ulimits = vec![ulimit("core", 0, 0), ulimit("memlock", 64 << 10, 64 << 10)];
    ulimits.extend(features.open_file_limits.then(|| ulimit("nofile", soft.into(), agent)));
    // A file with holes takes less than its size until it is copied. Files outside of the disk limit have no size limit.
    if !options.writable_root && !files.any_writable() {
        let disk = signed(Limits::from_spec(spec).disk.as_u64());
        ulimits.push(ulimit("fsize", disk, disk));
    }
    ulimits
}

/// Returns the soft and hard limits of open files of a process.
pub(crate) fn open_files(spec: &CreateSpec) -> OpenFiles {
    let [soft, hard] =
        [DEFAULT_OPEN_FILES, DEFAULT_MAX_OPEN_FILES].map(|n| spec.open_files.unwrap_or(n));
    OpenFiles { soft, hard }
}

/// Refuses a limit of open files that the engine cannot grant. `available` is the hard limit in a container of it.
///
/// # Errors
/// `Unsupported`.
pub(crate) fn check_open_files(spec: &CreateSpec, available: Option<u32>) -> Result<()> {
    let (Some(requested), Some(available)) = (spec.open_files, available) else { return Ok(()) };
    if available >= requested {
        return Ok(());
    }
    let message = format!(
        "{requested} open files are not available: the engine allows a process {available}"
    );
    Err(Error::unsupported("create", message).with_context("field", "open_files").with_hint(
        "request fewer, or raise the hard limit of the engine's service (`LimitNOFILE`)",
    ))
}

/// Lists the directories in memory of every container.
pub(crate) fn in_memory() -> impl Iterator<Item = &'static str> {
    WRITABLE_DIRECTORIES.iter().map(|(path, ..)| *path).chain([WORKSPACE])
}

/// Returns the writable directories with their mount options. Together they have the size of the disk limit.
fn directories(
    spec: &CreateSpec,
    options: &Options,
    files: &HostFiles,
    disk: ByteSize,
) -> HashMap<String, String> {
    let disk = disk.as_u64();
    let User { id: uid, group: gid } = options.user();
    let directory = |size: u64, mode: &str| {
        let files = (size / BYTES_PER_FILE).max(1024);
        format!(
            "rw,nosuid,nodev,exec,size={size},nr_inodes={files},mode={mode},uid={uid},gid={gid}"
        )
    };
    let parts = WRITABLE_DIRECTORIES.map(|(path, mode, part)| (path, mode, disk / part));
    let shared = shared_memory(ByteSize::bytes(disk));
    let mut rest = disk - shared - parts.iter().map(|(_, _, size)| size).sum::<u64>();
    let mut directories: HashMap<String, String> =
        parts.map(|(path, mode, size)| (path.to_owned(), directory(size, mode))).into();
    // A working directory that the caller names is writable as well, unless it is on the host.
    let named = spec.working_dir.as_deref().filter(|path| {
        path.starts_with('/')
            && !in_memory().any(|known| std::path::Path::new(path).starts_with(known))
    });
    let named = named.filter(|path| !files.covers(path));
    if let Some(path) = named.filter(|_| !options.writable_root) {
        rest /= 2;
        directories.insert(path.to_owned(), directory(rest, "0700"));
    }
    directories.insert(WORKSPACE.to_owned(), directory(rest, "0700"));
    // The engine's own is writable for every user, and no limit counts it.
    directories.insert("/dev/mqueue".to_owned(), "ro,nosuid,nodev,noexec,size=4096".to_owned());
    directories.retain(|path, _| !files.has_target(path));
    directories
}

/// Returns the setting that enables IPv6 on the loopback, which engines disable by default.
fn loopback_sysctls(features: OptionalFeatures) -> Option<HashMap<String, String>> {
    const SETTING: &str = "net.ipv6.conf.lo.disable_ipv6";
    features.dual_stack_loopback.then(|| HashMap::from([(SETTING.to_owned(), "0".to_owned())]))
}

fn ulimit(name: &str, soft: i64, hard: i64) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.into()), soft: Some(soft), hard: Some(hard) }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DockerConfig;

    fn host(spec: &CreateSpec) -> HostConfig {
        host_with(spec, EgressMode::Closed, OptionalFeatures::default())
    }

    fn host_with(spec: &CreateSpec, egress: EgressMode, features: OptionalFeatures) -> HostConfig {
        host_of(spec, egress, features, EngineInfo::DEFAULT)
    }

    fn host_of(
        spec: &CreateSpec,
        egress: EgressMode,
        features: OptionalFeatures,
        engine: EngineInfo,
    ) -> HostConfig {
        let options = Options::from_spec(&DockerConfig::default(), spec).unwrap();
        let files = HostFiles::default();
        let (image, base_image) = ("image", None);
        let container = ContainerSpec {
            spec,
            options: &options,
            image,
            files: &files,
            egress,
            engine,
            base_image,
        };
        create_request(&container, features, "id", "nonce", None).host_config.unwrap()
    }

    /// The engine may be on another host, whose kernel may differ from the kernel here.
    #[test]
    fn a_dual_stack_loopback_is_requested_unless_the_engine_has_refused_it() {
        let spec = CreateSpec::default();
        let sysctls = |egress, features| host_with(&spec, egress, features).sysctls;
        assert!(sysctls(EgressMode::Closed, OptionalFeatures::default()).is_some());
        assert!(sysctls(EgressMode::Gate, OptionalFeatures::default()).is_some());
        let without =
            OptionalFeatures { dual_stack_loopback: false, ..OptionalFeatures::default() };
        assert_eq!(sysctls(EgressMode::Closed, without), None);
    }

    #[test]
    fn unavailable_open_files_are_refused_where_they_were_requested() {
        let mut spec = CreateSpec::default();
        let limits = |spec: &CreateSpec, features| {
            let limits = host_with(spec, EgressMode::Closed, features).ulimits.unwrap();
            limits.into_iter().find(|limit| limit.name.as_deref() == Some("nofile"))
        };
        assert_eq!(limits(&spec, OptionalFeatures::default()).unwrap().hard, Some(8192));
        let without = OptionalFeatures { open_file_limits: false, ..OptionalFeatures::default() };
        assert_eq!(limits(&spec, without), None);
        check_open_files(&spec, Some(500)).unwrap();
        spec.open_files = Some(600);
        check_open_files(&spec, Some(600)).unwrap();
        check_open_files(&spec, None).unwrap();
        let error = check_open_files(&spec, Some(500)).unwrap_err();
        assert_eq!(error.kind(), sandbox_core::ErrorKind::Unsupported);
        assert!(error.message().contains("500") && error.hint().is_some(), "{error:?}");
    }

    #[test]
    fn the_default_is_closed() {
        let config = host(&CreateSpec::default());
        for egress in [EgressMode::Closed, EgressMode::Gate, EgressMode::Proxy] {
            let config = host_with(&CreateSpec::default(), egress, OptionalFeatures::default());
            assert_eq!(config.network_mode.as_deref(), Some("none"));
        }
        assert_eq!(config.readonly_rootfs, Some(true));
        assert_eq!(config.privileged, Some(false));
        assert_eq!(config.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(config.init, Some(false));
        assert_eq!(config.ipc_mode.as_deref(), Some("private"));
        assert_eq!(config.cgroupns_mode, Some(HostConfigCgroupnsModeEnum::PRIVATE));
        assert_eq!(config.memory, config.memory_swap);
        assert!(config.security_opt.unwrap()[1].contains("SCMP_ACT_ERRNO"));
        assert_eq!((config.binds, config.mounts, config.devices), (None, None, None));
    }

    #[test]
    fn a_limit_of_processes_is_at_most_that_of_kernels() {
        let mut spec = CreateSpec::default();
        for (requested, limit) in [(7, 7), (1 << 22, 1 << 22), (u32::MAX, 1 << 22)] {
            spec.processes = Some(requested);
            assert_eq!(host(&spec).pids_limit, Some(limit), "{requested}");
        }
    }

    /// An engine without control groups creates containers without these limits silently.
    #[test]
    fn limits_that_are_not_enforced_are_not_claimed() {
        let spec = CreateSpec::default();
        let options = Options::from_spec(&DockerConfig::default(), &spec).unwrap();
        let has =
            |limits| layers(&options, EgressMode::Closed, limits).contains(&"limits".to_owned());
        assert!(has(true) && !has(false));
        let without = EngineInfo { has_cgroups: false, ..EngineInfo::DEFAULT };
        let host = host_of(&spec, EgressMode::Closed, OptionalFeatures::default(), without);
        assert_eq!((host.memory, host.memory_swap, host.pids_limit), (None, None, None));
        assert!(host.tmpfs.is_some_and(|directories| directories["/tmp"].contains("size=")));
    }

    #[test]
    fn writable_directories_add_up_to_the_disk_limit() {
        let mut spec = CreateSpec::default();
        spec.disk = Some(ByteSize::mib(1536));
        let host = host(&spec);
        let shared = u64::try_from(host.shm_size.unwrap()).unwrap();
        let fsize =
            host.ulimits.unwrap().into_iter().find(|limit| limit.name.as_deref() == Some("fsize"));
        assert_eq!(fsize.and_then(|limit| limit.hard), Some(1536 << 20), "the largest file");
        let sizes: Vec<u64> = host
            .tmpfs
            .unwrap()
            .values()
            .filter(|options| options.starts_with("rw"))
            .map(|options| {
                let (_, size) = options.split_once("size=").unwrap();
                size.split_once(',').unwrap().0.parse().unwrap()
            })
            .collect();
        assert_eq!(sizes.iter().sum::<u64>() + shared, 1536 << 20);
    }
}
