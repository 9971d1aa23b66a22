//! Control groups of cells, where this process may make some: limits that the kernel enforces for all processes of a
//! cell together.
//!
//! A group has one owner. So none is made below a group that a service manager, a container engine or a job runner
//! keeps for itself: root makes groups where this process is in the topmost group of a hierarchy, or where the manager
//! has delegated it (`Delegate=yes`); an ordinary user makes them next to this process's group where that user owns the
//! parent. Existing processes stay in their groups.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;
use crate::spec::CellSpec;

/// Prefix of group names, followed by the creating process's id and a serial number.
const PREFIX: &str = "code-sandboxes-";

/// Writing a process id to this file moves the process into the group.
const PROCESSES: &str = "cgroup.procs";

/// The memory limit in the version 1 hierarchies.
const MEMORY_LIMIT_V1: &str = "memory.limit_in_bytes";

/// Attempts to remove a group, and the interval between them: its last processes have to be gone first.
const REMOVAL_ATTEMPTS: u32 = 1000;
const REMOVAL_POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(2);

/// The scheduler period, in microseconds.
const PERIOD_US: u64 = 100_000;

/// The enforcer of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Enforcer {
    /// The kernel, for all processes together, at every moment.
    Kernel,
    /// This process, ten times a second; the kernel only limits each process by itself.
    Watchdog,
}

/// Limits of whole cells that can be enforced on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// The enforcer of a memory limit.
    pub memory: Enforcer,
    /// True when a processor share can be enforced.
    pub cpu: bool,
}

/// Returns the limits of whole cells that can be enforced here. Detected once.
#[must_use]
pub fn host_limits() -> HostLimits {
    static FOUND: OnceLock<HostLimits> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let groups = CgroupTree::detect();
        let memory = if groups.memory.is_some() { Enforcer::Kernel } else { Enforcer::Watchdog };
        HostLimits { memory, cpu: groups.cpu.is_some() }
    })
}

/// A directory in which groups with one controller can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    directory: PathBuf,
    /// True for the unified hierarchy (version 2), false for one of version 1.
    unified: bool,
}

/// The hierarchies in which groups can be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CgroupTree {
    memory: Option<Hierarchy>,
    cpu: Option<Hierarchy>,
}

impl CgroupTree {
    /// Detects the hierarchies from the groups of this process.
    pub(crate) fn detect() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (own, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        let user = rustix::process::geteuid().as_raw();
        let is_ours = |directory: &Path| is_delegated(directory, user);
        let find = |controller| find_hierarchy(controller, &own, &mounts, user, is_ours);
        // A hierarchy that looks usable may be read-only or forbidden. Only trying shows it.
        let memory =
            find("memory").filter(|found| found.is_usable(&["memory.max", MEMORY_LIMIT_V1]));
        let cpu = find("cpu").filter(|found| found.is_usable(&["cpu.max", "cpu.cfs_quota_us"]));
        let groups = Self { memory, cpu };
        for hierarchy in groups.memory.iter().chain(&groups.cpu) {
            remove_stale(&hierarchy.directory);
        }
        groups
    }

    /// Returns whether the kernel enforces the memory limit of a spec.
    pub(crate) fn keep_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Creates the group of a cell. `None` when its spec needs none.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a limit that cannot be enforced here.
    pub(crate) fn group(&self, spec: &CellSpec) -> Result<Option<Cgroup>, Error> {
        let mut group = Cgroup::default();
        if let (Some(limit), Some(hierarchy)) = (spec.memory, &self.memory) {
            group.limit_memory(hierarchy, limit)?;
        }
        if let Some(thousandths) = spec.cpu {
            let hierarchy = self.cpu.as_ref().ok_or_else(no_cpu)?;
            group.limit_cpu(hierarchy, thousandths)?;
        }
        Ok((!group.directories.is_empty()).then_some(group))
    }
}

fn no_cpu() -> Error {
    Error::Unavailable {
        missing: "a processor share needs a control group, and this process may not make one"
            .to_owned(),
        fix: "run as root in the topmost control group, or in a group whose parent is delegated to this user \
              (`systemd-run --user --scope -p Delegate=yes`), or omit the limit"
            .to_owned(),
    }
}

impl Hierarchy {
    /// Tests whether a group can be made there that has one of those files, and be entered from outside.
    fn is_usable(&self, files: &[&str]) -> bool {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = self.directory.join(format!("{PREFIX}{}-try{serial}", std::process::id()));
        if fs::create_dir(&directory).is_err() {
            return false;
        }
        let writable = |path: PathBuf| File::options().write(true).open(path).is_ok();
        // Moving a process needs write access to the common parent of both groups.
        let usable = writable(directory.join(PROCESSES))
            && writable(self.directory.join(PROCESSES))
            && files.iter().any(|file| writable(directory.join(file)));
        fs::remove_dir(&directory).is_ok() && usable
    }
}

/// Returns whether the owner of a group delegates it to this user.
fn is_delegated(directory: &Path, user: u32) -> bool {
    let delegated = ["trusted.delegate", "user.delegate"].iter().any(|name| {
        let mut value = [0; 8];
        rustix::fs::getxattr(directory, *name, &mut value[..])
            .is_ok_and(|size| value[..size] == *b"1")
    });
    let owner = || fs::metadata(directory).ok().map(|meta| meta.uid());
    // For root the owner means nothing: root owns everything.
    delegated || user != 0 && owner() == Some(user)
}

/// Finds the hierarchy in which groups with a controller can be made, from the kernel's files about this process.
fn find_hierarchy(
    controller: &str,
    own: &str,
    mounts: &str,
    user: u32,
    is_ours: impl Fn(&Path) -> bool,
) -> Option<Hierarchy> {
    let has = |directory: &Path| {
        let enabled = fs::read_to_string(directory.join("cgroup.subtree_control"));
        enabled.is_ok_and(|enabled| enabled.split_whitespace().any(|name| name == controller))
    };
    let older = own.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let mut older =
        older.filter(|(controllers, _)| controllers.split(',').any(|c| c == controller));
    if let Some((_, path)) = older.next() {
        let topmost = path == "/" && user == 0;
        let (root, directory) =
            topmost.then(|| find_mount(mounts, "cgroup", Some(controller)))??;
        return (root == "/").then_some(Hierarchy { directory, unified: false });
    }
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let (root, top) = find_mount(mounts, "cgroup2", None)?;
    // A group with processes cannot enable controllers for its children, except the topmost. So the new group is made
    // next to this process's group.
    let directory = match path {
        "/" if root == "/" && user == 0 => top,
        _ => {
            let inside = Path::new(path).strip_prefix(root).ok()?;
            let parent = top.join(inside.parent()?);
            is_ours(&parent).then_some(parent)?
        }
    };
    has(&directory).then_some(Hierarchy { directory, unified: true })
}

/// Returns the root group of a mounted hierarchy, and its mount point.
fn find_mount<'a>(
    mounts: &'a str,
    kind: &str,
    controller: Option<&str>,
) -> Option<(&'a str, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (place, source) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, at) = (place.next()?, place.next()?);
        let mut source = source.split(' ');
        let matches = source.next()? == kind
            && controller.is_none_or(|name| {
                source.nth(1).is_some_and(|options| options.split(',').any(|o| o == name))
            });
        matches.then(|| (root, PathBuf::from(at)))
    })
}

/// Removes groups left behind by processes that were killed.
fn remove_stale(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Fails for a group that still has processes.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The group of one cell. Dropping it removes it, as soon as its processes are gone.
#[derive(Debug, Default)]
pub(crate) struct Cgroup {
    directories: Vec<CgroupDir>,
    /// The file that counts how often memory ran out.
    memory: Option<File>,
}

#[derive(Debug)]
struct CgroupDir {
    directory: PathBuf,
    /// Writing a process id to this file moves the process into the group.
    entrance: OwnedFd,
}

impl Cgroup {
    fn limit_memory(&mut self, hierarchy: &Hierarchy, limit: u64) -> Result<(), Error> {
        let directory = self.directory_in(hierarchy)?;
        let limit = limit.to_string();
        if hierarchy.unified {
            set(&directory, "memory.max", &limit)?;
            set_if_there(&directory, "memory.swap.max", "0")?;
        } else {
            set(&directory, MEMORY_LIMIT_V1, &limit)?;
            set_if_there(&directory, "memory.memsw.limit_in_bytes", &limit)?;
            // Version 1 counts TCP buffers separately.
            set_if_there(&directory, "memory.kmem.tcp.limit_in_bytes", &limit)?;
        }
        let events = if hierarchy.unified { "memory.events" } else { "memory.oom_control" };
        self.memory = File::open(directory.join(events)).ok();
        Ok(())
    }

    fn limit_cpu(&mut self, hierarchy: &Hierarchy, thousandths: u32) -> Result<(), Error> {
        let directory = self.directory_in(hierarchy)?;
        let quota = PERIOD_US * u64::from(thousandths) / 1000;
        if hierarchy.unified {
            set(&directory, "cpu.max", &format!("{quota} {PERIOD_US}"))
        } else {
            set(&directory, "cpu.cfs_period_us", &PERIOD_US.to_string())?;
            set(&directory, "cpu.cfs_quota_us", &quota.to_string())
        }
    }

    /// Returns the directory of this cell in a hierarchy, making it if needed.
    fn directory_in(&mut self, hierarchy: &Hierarchy) -> Result<PathBuf, Error> {
        const CONTEXT: &str = "cannot make a control group";
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let made =
            self.directories.iter().find(|part| part.directory.starts_with(&hierarchy.directory));
        if let Some(part) = made {
            return Ok(part.directory.clone());
        }
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{serial}", std::process::id());
        let directory = hierarchy.directory.join(name);
        fs::create_dir(&directory).map_err(Error::io(CONTEXT))?;
        let entrance = File::options().write(true).open(directory.join(PROCESSES));
        match entrance {
            Ok(entrance) => {
                let part = CgroupDir { directory: directory.clone(), entrance: entrance.into() };
                self.directories.push(part);
                Ok(directory)
            }
            Err(error) => {
                let _ = fs::remove_dir(&directory);
                Err(Error::Io { context: CONTEXT, source: error })
            }
        }
    }

    /// Returns the files through which processes enter.
    pub(crate) fn entrances(&self) -> impl Iterator<Item = &OwnedFd> {
        self.directories.iter().map(|part| &part.entrance)
    }

    /// Moves a process into the group.
    pub(crate) fn enter(&self, pid: u32) -> io::Result<()> {
        for entrance in self.entrances() {
            rustix::io::write(entrance, pid.to_string().as_bytes())?;
        }
        Ok(())
    }

    /// Returns how many processes the kernel has killed because the group exceeded its memory limit.
    pub(crate) fn memory_ends(&self) -> u64 {
        let mut text = [0; 512];
        let length = self.memory.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = str::from_utf8(&text[..length.unwrap_or(0)]).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Removes the group after its processes have ended. The kernel notices their end a moment later than their parents
    /// do.
    pub(crate) async fn remove(&self) {
        let mut left: Vec<_> = self.directories.iter().map(|part| part.directory.clone()).collect();
        for _ in 0..REMOVAL_ATTEMPTS {
            if remove_empty(&mut left) {
                return;
            }
            tokio::time::sleep(REMOVAL_POLL_INTERVAL).await;
        }
    }

    /// Returns the names of the limits that the group enforces.
    pub(crate) fn layers(&self) -> Vec<&'static str> {
        let memory = self.memory.iter().map(|_| "cgroup-memory");
        let cpu = self.directories.iter().any(|part| {
            ["cpu.max", "cpu.cfs_quota_us"].iter().any(|file| part.directory.join(file).exists())
        });
        memory.chain(cpu.then_some("cgroup-cpu")).collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let mut left: Vec<_> = self.directories.drain(..).map(|part| part.directory).collect();
        if !remove_empty(&mut left) {
            // Its processes are about to end, and the dropping thread must not wait for that.
            std::thread::spawn(move || remove_in_time(left));
        }
    }
}

fn remove_in_time(mut left: Vec<PathBuf>) {
    for _ in 0..REMOVAL_ATTEMPTS {
        std::thread::sleep(REMOVAL_POLL_INTERVAL);
        if remove_empty(&mut left) {
            return;
        }
    }
}

/// Removes the groups without processes, and keeps the others in the list. Returns true when none is left.
fn remove_empty(left: &mut Vec<PathBuf>) -> bool {
    left.retain(|directory| fs::remove_dir(directory).is_err() && directory.exists());
    left.is_empty()
}

fn set(directory: &Path, file: &str, value: &str) -> Result<(), Error> {
    let written = fs::write(directory.join(file), value);
    written.map_err(Error::io("cannot set the limit of a control group"))
}

fn set_if_there(directory: &Path, file: &str, value: &str) -> Result<(), Error> {
    if directory.join(file).exists() { set(directory, file, value) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
        31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
        32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        33 30 0:29 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    fn found(controller: &str, own: &str, mounts: &str) -> Option<Hierarchy> {
        find_hierarchy(controller, own, mounts, 0, |_| false)
    }

    #[test]
    fn in_version_1_root_uses_only_the_topmost_group() {
        let cpu = Hierarchy { directory: "/sys/fs/cgroup/cpu,cpuacct".into(), unified: false };
        let own = "4:cpu,cpuacct:/\n0::/\n";
        assert_eq!(found("cpu", own, MOUNTS), Some(cpu));
        assert_eq!(find_hierarchy("cpu", own, MOUNTS, 1000, |_| true), None);
        for own in ["4:cpu,cpuacct:/user.slice\n0::/\n", "4:cpuset:/\n", "0::/user.slice\n", ""] {
            assert_eq!(found("cpu", own, MOUNTS), None, "{own}");
        }
        // Only a part of the hierarchy is mounted.
        assert_eq!(found("memory", "5:memory:/\n0::/\n", MOUNTS), None);
    }

    /// Makes a tree of groups, each with the controllers that it enables for its children.
    fn tree(groups: &[(&str, &str)]) -> (tempfile::TempDir, String) {
        let top = tempfile::tempdir().unwrap();
        for (path, controllers) in groups {
            let directory = top.path().join(path);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup.subtree_control"), controllers).unwrap();
        }
        let mounts = format!("31 30 0:27 / {} rw - cgroup2 cgroup2 rw\n", top.path().display());
        (top, mounts)
    }

    #[test]
    fn version_2_is_used_for_its_enabled_controllers() {
        let (top, mounts) = tree(&[("", "cpu memory pids\n"), ("a", "memory\n")]);
        let all = Hierarchy { directory: top.path().into(), unified: true };
        assert_eq!(found("memory", "0::/\n", &mounts), Some(all));
        assert_eq!(found("io", "0::/\n", &mounts), None);
        assert_eq!(found("memory", "0::/a/b\n", &mounts), None, "the group has another owner");
    }

    #[test]
    fn a_delegated_group_is_used_beside_the_process() {
        let user = "user.slice/user-1000.slice/user@1000.service";
        let (slice, scope) = (format!("{user}/app.slice"), format!("{user}/app.slice/x.scope"));
        let (top, mounts) = tree(&[("", "cpu memory\n"), (&slice, "memory pids\n"), (&scope, "")]);
        let ours = |directory: &Path| directory.starts_with(top.path().join(user));
        let found = |controller, own: &str| find_hierarchy(controller, own, &mounts, 1000, ours);
        let own = format!("0::/{scope}\n");
        let beside = Hierarchy { directory: top.path().join(&slice), unified: true };
        assert_eq!(found("memory", &own), Some(beside.clone()));
        assert_eq!(found("cpu", &own), None, "the parent does not enable it");
        assert_eq!(find_hierarchy("memory", &own, &mounts, 1000, |_| false), None);
        // The process's own group cannot enable controllers, and its ancestors belong to the system.
        assert_eq!(found("memory", &format!("0::/{user}\n")), None);
        assert_eq!(found("memory", "0::/\n"), None);
        assert_eq!(found("memory", "0::/user.slice\n"), None);
        // A container sees a part of the hierarchy, under the paths of the whole.
        let part = format!(
            "31 30 0:27 /{user} {} rw - cgroup2 cgroup2 rw\n",
            top.path().join(user).display()
        );
        assert_eq!(find_hierarchy("memory", &own, &part, 1000, ours), Some(beside));
        assert_eq!(find_hierarchy("memory", "0::/elsewhere/x\n", &part, 1000, ours), None);
    }

    #[test]
    fn a_plain_directory_is_no_hierarchy() {
        let files = ["memory.max"];
        let read_only = Hierarchy { directory: "/proc".into(), unified: true };
        assert!(!read_only.is_usable(&files));
        // A plain directory, without the kernel's files, is not a group.
        let (top, _) = tree(&[("", "memory\n")]);
        let before = fs::read_dir(top.path()).unwrap().count();
        assert!(!Hierarchy { directory: top.path().into(), unified: true }.is_usable(&files));
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), before, "nothing is left");
        assert!(!is_delegated(top.path(), 0), "ownership by root is no delegation");
        let own = rustix::process::geteuid().as_raw();
        assert_eq!(is_delegated(top.path(), own), own != 0);
        assert!(!is_delegated(top.path(), own + 1));
    }

    #[test]
    fn a_share_that_cannot_be_enforced_is_refused() {
        let spec = CellSpec { cpu: Some(500), ..CellSpec::strict() };
        let outcome = CgroupTree::default().group(&spec);
        assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
        assert!(CgroupTree::default().group(&CellSpec::strict()).unwrap().is_none());
    }
}
