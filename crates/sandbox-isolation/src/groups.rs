//! Control groups of cells, where this process may make some: limits that the kernel keeps for all processes of a cell
//! together.
//!
//! A group has one owner. So none is made below a group that a service manager, a container engine or a job runner has
//! put this process into: only root makes groups, and only where this process is in the topmost group of a hierarchy.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;
use crate::spec::CellSpec;

/// Names of groups are this, the number of the process that made it, and a serial number.
const PREFIX: &str = "code-sandboxes-";

/// How often the end of a group is tried, and how long between: its last processes have to be gone.
const REMOVALS: u32 = 200;
const REMOVAL_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// A period of the scheduler, in microseconds.
const PERIOD_US: u64 = 100_000;

/// Who keeps a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Enforcer {
    /// The kernel, for all processes together, at every moment.
    Kernel,
    /// This process, ten times a second; the kernel only for each process alone.
    Watchdog,
}

/// Which limits of whole cells can be kept on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Who keeps a limit of memory.
    pub memory: Enforcer,
    /// Whether a share of the processors can be kept.
    pub cpu: bool,
}

/// Which limits of whole cells can be kept here. Found out once.
#[must_use]
pub fn host_limits() -> HostLimits {
    static FOUND: OnceLock<HostLimits> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let groups = Groups::detect();
        let memory = if groups.memory.is_some() { Enforcer::Kernel } else { Enforcer::Watchdog };
        HostLimits { memory, cpu: groups.cpu.is_some() }
    })
}

/// A place where groups with one controller can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    directory: PathBuf,
    /// The one hierarchy of all controllers, or one of the older ones.
    unified: bool,
}

/// Where groups can be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Groups {
    memory: Option<Hierarchy>,
    cpu: Option<Hierarchy>,
}

impl Groups {
    /// Looks at what this process is in.
    pub(crate) fn detect() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self::default();
        }
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (own, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        let enabled = |directory: &Path| {
            let file = directory.join("cgroup.subtree_control");
            fs::read_to_string(file).unwrap_or_default()
        };
        let find = |controller| find(controller, &own, &mounts, enabled);
        let groups = Self { memory: find("memory"), cpu: find("cpu") };
        for hierarchy in groups.memory.iter().chain(&groups.cpu) {
            sweep(&hierarchy.directory);
        }
        groups
    }

    /// Whether the kernel keeps what a spec says of memory.
    pub(crate) fn keep_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// The group of a cell. `None` when its spec needs none.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a limit that cannot be kept here.
    pub(crate) fn group(&self, spec: &CellSpec) -> Result<Option<Group>, Error> {
        let mut group = Group::default();
        if let (Some(limit), Some(hierarchy)) = (spec.memory, &self.memory) {
            group.limit_memory(hierarchy, limit)?;
        }
        if let Some(thousandths) = spec.cpu {
            let hierarchy = self.cpu.as_ref().ok_or_else(no_cpu)?;
            group.limit_cpu(hierarchy, thousandths)?;
        }
        Ok((!group.parts.is_empty()).then_some(group))
    }
}

fn no_cpu() -> Error {
    Error::Unavailable {
        missing: "a share of the processors takes a control group, and this process may make none"
            .to_owned(),
        fix: "run as root in the topmost control group, or leave the limit out".to_owned(),
    }
}

/// Where groups with a controller can be made, from what the kernel says of this process.
fn find(
    controller: &str,
    own: &str,
    mounts: &str,
    enabled: impl Fn(&Path) -> String,
) -> Option<Hierarchy> {
    let older = own.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let mut older =
        older.filter(|(controllers, _)| controllers.split(',').any(|c| c == controller));
    if let Some((_, path)) = older.next() {
        let directory = (path == "/").then(|| mounted(mounts, "cgroup", Some(controller)))??;
        return Some(Hierarchy { directory, unified: false });
    }
    let unified = own.lines().any(|line| line == "0::/");
    let directory = unified.then(|| mounted(mounts, "cgroup2", None))??;
    let has = enabled(&directory).split_whitespace().any(|name| name == controller);
    has.then_some(Hierarchy { directory, unified: true })
}

/// Where a hierarchy is mounted, from its topmost group on.
fn mounted(mounts: &str, kind: &str, controller: Option<&str>) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (place, source) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, at) = (place.next()?, place.next()?);
        let mut source = source.split(' ');
        let matches = source.next()? == kind
            && controller.is_none_or(|name| {
                source.nth(1).is_some_and(|options| options.split(',').any(|o| o == name))
            });
        (matches && root == "/").then(|| PathBuf::from(at))
    })
}

/// Removes the groups of processes that did not live to remove them.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // A group with processes stays, whoever they are.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The group of one cell. Dropping it removes it, as soon as its processes are gone.
#[derive(Debug, Default)]
pub(crate) struct Group {
    parts: Vec<Part>,
    /// The file that says how often memory ran out.
    memory: Option<File>,
}

#[derive(Debug)]
struct Part {
    directory: PathBuf,
    /// Whoever writes a number of a process there moves it into the group.
    entrance: OwnedFd,
}

impl Group {
    fn limit_memory(&mut self, hierarchy: &Hierarchy, limit: u64) -> Result<(), Error> {
        let directory = self.part(hierarchy)?;
        let limit = limit.to_string();
        if hierarchy.unified {
            set(&directory, "memory.max", &limit)?;
            set_if_there(&directory, "memory.swap.max", "0")?;
        } else {
            set(&directory, "memory.limit_in_bytes", &limit)?;
            set_if_there(&directory, "memory.memsw.limit_in_bytes", &limit)?;
            // The older hierarchy counts the buffers of TCP apart.
            set_if_there(&directory, "memory.kmem.tcp.limit_in_bytes", &limit)?;
        }
        let events = if hierarchy.unified { "memory.events" } else { "memory.oom_control" };
        self.memory = File::open(directory.join(events)).ok();
        Ok(())
    }

    fn limit_cpu(&mut self, hierarchy: &Hierarchy, thousandths: u32) -> Result<(), Error> {
        let directory = self.part(hierarchy)?;
        let quota = PERIOD_US * u64::from(thousandths) / 1000;
        if hierarchy.unified {
            set(&directory, "cpu.max", &format!("{quota} {PERIOD_US}"))
        } else {
            set(&directory, "cpu.cfs_period_us", &PERIOD_US.to_string())?;
            set(&directory, "cpu.cfs_quota_us", &quota.to_string())
        }
    }

    /// The directory of this cell in a hierarchy, made when it is not there.
    fn part(&mut self, hierarchy: &Hierarchy) -> Result<PathBuf, Error> {
        const CONTEXT: &str = "cannot make a control group";
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let made = self.parts.iter().find(|part| part.directory.starts_with(&hierarchy.directory));
        if let Some(part) = made {
            return Ok(part.directory.clone());
        }
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{serial}", std::process::id());
        let directory = hierarchy.directory.join(name);
        fs::create_dir(&directory).map_err(Error::io(CONTEXT))?;
        let entrance = File::options().write(true).open(directory.join("cgroup.procs"));
        match entrance {
            Ok(entrance) => {
                let part = Part { directory: directory.clone(), entrance: entrance.into() };
                self.parts.push(part);
                Ok(directory)
            }
            Err(error) => {
                let _ = fs::remove_dir(&directory);
                Err(Error::Io { context: CONTEXT, source: error })
            }
        }
    }

    /// The files through which processes enter.
    pub(crate) fn entrances(&self) -> impl Iterator<Item = &OwnedFd> {
        self.parts.iter().map(|part| &part.entrance)
    }

    /// Moves a process into the group.
    pub(crate) fn enter(&self, pid: u32) -> io::Result<()> {
        for entrance in self.entrances() {
            rustix::io::write(entrance, pid.to_string().as_bytes())?;
        }
        Ok(())
    }

    /// How many processes the kernel has ended because the group had too much memory.
    pub(crate) fn memory_ends(&self) -> u64 {
        let mut text = [0; 512];
        let length = self.memory.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = str::from_utf8(&text[..length.unwrap_or(0)]).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// Removes it now, if its processes are gone.
    pub(crate) fn remove(&self) {
        for part in &self.parts {
            let _ = fs::remove_dir(&part.directory);
        }
    }

    /// What the group limits, in words.
    pub(crate) fn layers(&self) -> Vec<&'static str> {
        let memory = self.memory.iter().map(|_| "cgroup-memory");
        let cpu = self.parts.iter().any(|part| {
            ["cpu.max", "cpu.cfs_quota_us"].iter().any(|file| part.directory.join(file).exists())
        });
        memory.chain(cpu.then_some("cgroup-cpu")).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut left: Vec<_> = self.parts.drain(..).map(|part| part.directory).collect();
        left.retain(|directory| fs::remove_dir(directory).is_err() && directory.exists());
        if !left.is_empty() {
            // Its processes are about to end, and whoever drops it must not wait for that.
            std::thread::spawn(move || remove_in_time(left));
        }
    }
}

fn remove_in_time(mut left: Vec<PathBuf>) {
    for _ in 0..REMOVALS {
        std::thread::sleep(REMOVAL_PAUSE);
        left.retain(|directory| fs::remove_dir(directory).is_err() && directory.exists());
        if left.is_empty() {
            return;
        }
    }
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

    fn found(controller: &str, own: &str, mounts: &str, enabled: &str) -> Option<Hierarchy> {
        find(controller, own, mounts, |_| enabled.to_owned())
    }

    #[test]
    fn groups_are_made_in_the_topmost_group_only() {
        let cpu = Hierarchy { directory: "/sys/fs/cgroup/cpu,cpuacct".into(), unified: false };
        assert_eq!(found("cpu", "4:cpu,cpuacct:/\n0::/\n", MOUNTS, ""), Some(cpu));
        for own in ["4:cpu,cpuacct:/user.slice\n0::/\n", "4:cpuset:/\n", "0::/user.slice\n", ""] {
            assert_eq!(found("cpu", own, MOUNTS, "cpu"), None, "{own}");
        }
        // What is mounted is only a part of the hierarchy.
        assert_eq!(found("memory", "5:memory:/\n0::/\n", MOUNTS, ""), None);
    }

    #[test]
    fn the_one_hierarchy_is_used_as_far_as_it_has_the_controller() {
        let all = Hierarchy { directory: "/sys/fs/cgroup/unified".into(), unified: true };
        assert_eq!(found("memory", "0::/\n", MOUNTS, "cpu memory pids\n"), Some(all));
        assert_eq!(found("memory", "0::/\n", MOUNTS, "cpu\n"), None);
        assert_eq!(found("memory", "0::/a\n", MOUNTS, "memory\n"), None);
    }

    #[test]
    fn a_share_that_nobody_can_keep_is_refused() {
        let spec = CellSpec { cpu: Some(500), ..CellSpec::strict() };
        let outcome = Groups::default().group(&spec);
        assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
        assert!(Groups::default().group(&CellSpec::strict()).unwrap().is_none());
    }
}
