//! Turns the spec of a cell into a plan. Nothing here touches the system.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::host_view::{Entry, EntryKind, HostView};
use crate::mount::HostMount;
use crate::plan::{Attributes, Op, Owner, Plan, is_plain};
use crate::policy::landlock::{MIN_VERSION_CONFINED, Ruleset};
use crate::policy::seccomp::{Filter, FilterProfile};
use crate::private_dir::workspace_in;
use crate::spec::{CellKind, CellSpec, DEFAULT_OPEN_FILES, Resource, Rlimit};

pub(crate) mod landlock;
pub(crate) mod seccomp;

/// The user and group of a strict cell, as seen inside.
pub(crate) const CELL_ID: u32 = 1000;
/// The initial working directory of programs in a strict cell.
pub(crate) const WORK_DIR: &str = "/workspace";
const MAX_LIMITS: usize = 15;

/// Files of `/proc` that show or change the whole machine, the same as container engines hide.
const MASKED: [&str; 10] = [
    "acpi",
    "asound",
    "interrupts",
    "kcore",
    "keys",
    "latency_stats",
    "sched_debug",
    "scsi",
    "timer_list",
    "timer_stats",
];
const READ_ONLY: [&str; 6] = ["bus", "fs", "irq", "pressure", "sys", "sysrq-trigger"];

/// Returns the accounts of a cell.
fn passwd(user: &str) -> String {
    format!(
        "root:x:0:0:root:/root:/usr/sbin/nologin\n\
         {user}:x:{CELL_ID}:{CELL_ID}:{user}:/home/{user}:/bin/sh\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
}

/// Returns the groups of a cell.
fn group(user: &str) -> String {
    format!("root:x:0:\ntty:x:5:\n{user}:x:{CELL_ID}:\nnogroup:x:65534:\n")
}

/// Returns the home of the user of a cell.
pub(crate) fn home_of(user: &str) -> PathBuf {
    Path::new("/home").join(user)
}

const NSSWITCH: &str = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n\
    networks: files\nprotocols: files\nservices: files\n";
/// Without a gate nothing listens there, so a lookup fails at once.
const RESOLV: &str = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";
/// A gate answers there, with the latency of the host's own resolver.
const RESOLV_BY_GATE: &str = "nameserver 127.0.0.1\noptions timeout:10 attempts:2\n";

/// Returns the plan of a strict cell. `binds` are those of the spec, resolved on the host.
pub(crate) fn strict(
    spec: &CellSpec,
    binds: &[Entry],
    host: &HostView,
    profile: FilterProfile,
) -> Result<Plan, Error> {
    check(spec, binds)?;
    let mut plan =
        Builder { closes_root: !Ruleset::is_supported(host.landlock), ..Builder::default() };
    plan.op(Op::PrivateMounts);
    plan.op(Op::NewRoot {
        base: host.base.clone(),
        options: format!("size={},nr_inodes={},mode=1777", spec.disk_bytes, spec.disk_inodes),
    });
    plan.own_directories(&home_of(&spec.user));
    for entry in &host.system {
        plan.entry(entry);
    }
    for entry in host.configuration().iter().chain(binds) {
        plan.entry(entry);
    }
    plan.own_files(&spec.files)?;
    plan.configuration(spec);
    plan.devices(&shown_devices(host, profile), spec.shm_bytes);
    plan.processes();
    let mut own = plan.further_directories(&spec.own);
    own.extend(plan.writable_directories(&spec.writable)?);
    own.extend(plan.host_mounts(&spec.mounts)?);
    plan.op(Op::Loopback);
    if spec.gate {
        plan.op(Op::Gate);
    }
    if profile.counts_memory {
        plan.op(Op::SocketCounts);
    }
    plan.op(Op::Hostname(spec.hostname.clone()));
    plan.op(Op::LeaveHost);
    plan.close_root();
    plan.op(Op::ChangeDirectory(WORK_DIR.into()));
    let devices = writable_devices(host, profile);
    let home = home_of(&spec.user);
    if let Some(ruleset) = Ruleset::strict(host.landlock, &home, &own, &devices) {
        plan.op(Op::Ruleset(ruleset));
    }
    plan.op(Op::Filter(Filter::new(profile)));
    plan.finish(&limits(spec, profile), Op::Identity { uid: CELL_ID, gid: CELL_ID }, Op::Seal)
}

/// Mapped shared by a process that may write it, this device gives memory that the monitor does not see.
const ZERO: &str = "zero";

/// Returns the devices in `/dev`. Without Landlock every device can be opened for writing.
fn shown_devices(host: &HostView, profile: FilterProfile) -> Vec<&'static str> {
    let closed = profile.counts_memory && !Ruleset::is_supported(host.landlock);
    host.devices.iter().copied().filter(|device| !(closed && *device == ZERO)).collect()
}

/// Returns the devices in `/dev` that may be opened for writing.
fn writable_devices(host: &HostView, profile: FilterProfile) -> Vec<PathBuf> {
    let all = Path::new("/dev");
    if !profile.counts_memory {
        return vec![all.to_owned()];
    }
    let devices = host.devices.iter().filter(|device| **device != ZERO);
    devices.chain(&["pts"]).map(|device| all.join(device)).collect()
}

/// Returns the plan of a cell without isolation around its private directory.
pub(crate) fn off(spec: &CellSpec, directory: &Path) -> Result<Plan, Error> {
    check_limits(spec)?;
    if !spec.binds.is_empty() {
        return Err(Error::Invalid("a cell without isolation cannot have binds".to_owned()));
    }
    check_no_mounts(spec)?;
    let mut plan = Builder::default();
    plan.op(Op::ChangeDirectory(workspace_in(directory)));
    plan.finish(&spec.rlimits, Op::OwnDirectory(directory.to_owned()), Op::SealOff)
}

/// Host configuration that confined programs read in addition, because they see the host's own.
const OWN_CONFIGURATION: [&str; 5] =
    ["/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf"];

/// Returns the plan of a cell without namespaces around its private directory.
pub(crate) fn confined(
    spec: &CellSpec,
    binds: &[Entry],
    host: &HostView,
    directory: &Path,
) -> Result<Plan, Error> {
    check_limits(spec)?;
    check_no_mounts(spec)?;
    if host.is_root {
        return Err(root_not_confinable());
    }
    if !host.filters {
        return Err(no_filters());
    }
    let shown = host.system.iter().chain(host.configuration()).map(|entry| entry.target.clone());
    let own = OWN_CONFIGURATION.iter().map(PathBuf::from);
    let bound = binds.iter().map(|entry| match &entry.kind {
        EntryKind::Directory(source) | EntryKind::File(source) => source.clone(),
        EntryKind::Link(_) => entry.target.clone(),
    });
    let readable: Vec<_> = shown.chain(own).chain(bound).collect();
    let ruleset = Ruleset::confined(host.landlock, &readable, directory).ok_or_else(no_landlock)?;
    let profile = FilterProfile {
        closes_network: spec.no_network,
        shares_processes: true,
        shares_user: true,
        ..FilterProfile::default()
    };
    let mut plan = Builder::default();
    plan.op(Op::ChangeDirectory(workspace_in(directory)));
    plan.op(Op::Ruleset(ruleset));
    plan.op(Op::Filter(Filter::new(profile)));
    plan.finish(&spec.rlimits, Op::OwnDirectory(directory.to_owned()), Op::SealOff)
}

/// Without a file system of its own, a cell has no mounts of its own.
fn check_no_mounts(spec: &CellSpec) -> Result<(), Error> {
    if spec.mounts.is_empty() {
        return Ok(());
    }
    Err(Error::Invalid("only a strict cell can have mounts".to_owned()))
}

/// Cells and containers of this library are such sandboxes: they refuse new filters.
fn no_filters() -> Error {
    Error::Unavailable {
        missing: "confinement without namespaces needs system call filters (seccomp), which are not available here".to_owned(),
        fix: "use a kernel with seccomp, and run outside of sandboxes that refuse new filters".to_owned(),
    }
}

fn no_landlock() -> Error {
    Error::Unavailable {
        missing: format!(
            "confinement without namespaces needs Landlock version {MIN_VERSION_CONFINED}"
        ),
        fix: "use Linux 6.2 or newer with `landlock` among its security modules (`lsm=` on its \
              command line)"
            .to_owned(),
    }
}

/// Root owns the system's files, and Landlock has no right for modes and times: even without any capability, code could
/// make every file readable for all users, or unreadable.
fn root_not_confinable() -> Error {
    Error::Unavailable {
        missing: "root cannot be confined without namespaces: it owns the system's files, and Landlock does not \
                  restrict changes of their modes"
            .to_owned(),
        fix: "run as an ordinary user, or enable namespaces as `sandboxes doctor` explains".to_owned(),
    }
}

fn check(spec: &CellSpec, binds: &[Entry]) -> Result<(), Error> {
    const MIN_DISK: u64 = 64 * 1024;
    const MIN_INODES: u64 = 128;
    let invalid = |text: String| Err(Error::Invalid(text));
    check_limits(spec)?;
    let name = spec.hostname.as_bytes();
    let plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    if name.is_empty() || name.len() > 63 || !plain || name.starts_with(b"-") {
        return invalid(format!(
            "the host name {:?} is not 1 to 63 of `A-Z a-z 0-9 -`",
            spec.hostname
        ));
    }
    let user = spec.user.as_bytes();
    let plain =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(byte);
    let taken = ["root", "nobody", "tty", "nogroup"].contains(&spec.user.as_str());
    let starts = user.first().is_some_and(|byte| byte.is_ascii_lowercase() || *byte == b'_');
    if !starts || user.len() > 32 || !user.iter().all(plain) || taken {
        return invalid(format!(
            "the user {:?} is not 1 to 32 of `a-z 0-9 _ -`, or is taken",
            spec.user
        ));
    }
    // The kernel takes zero as no limit.
    if spec.disk_bytes < MIN_DISK || spec.disk_bytes > i64::MAX as u64 {
        return invalid(format!("the disk size of {} bytes is out of range", spec.disk_bytes));
    }
    if spec.disk_inodes < MIN_INODES || spec.disk_inodes > i64::MAX as u64 {
        return invalid(format!("the disk limit of {} files is out of range", spec.disk_inodes));
    }
    if spec.shm_bytes == 0 || spec.shm_bytes > i64::MAX as u64 {
        return invalid(format!(
            "the shared memory size of {} bytes is out of range",
            spec.shm_bytes
        ));
    }
    if let Some(path) = spec.own.iter().chain(&spec.writable).find(|path| !is_plain(path)) {
        return invalid(format!(
            "cannot make a directory at {}: the path is not absolute and plain",
            path.display()
        ));
    }
    binds.iter().try_for_each(check_target)
}

/// Returns the limits of every process.
fn limits(spec: &CellSpec, profile: FilterProfile) -> Vec<Rlimit> {
    let mut limits = spec.rlimits.clone();
    if let Some(memory) = spec.memory.filter(|_| profile.counts_memory) {
        limits.retain(|limit| limit.resource != Resource::Data);
        limits.push(Rlimit::fixed(Resource::Data, memory));
    }
    if profile.shares_user || profile.counts_memory {
        for limit in limits.iter_mut().filter(|limit| **limit == DEFAULT_OPEN_FILES) {
            (limit.soft, limit.hard) = (SHARED_OPEN_FILES, SHARED_OPEN_FILES);
        }
    }
    limits
}

/// The limit of open files where the cell runs as a user of the host. The kernel counts descriptors in flight through
/// sockets for that user: a process may send some while there are no more than its own limit, some 250 at once. So
/// programs of the host, with a limit of 1,024, can still send some whatever code in cells does.
const SHARED_OPEN_FILES: u64 = 512;

fn check_whole(spec: &CellSpec) -> Result<(), Error> {
    const MIN_MEMORY: u64 = 16 * 1024 * 1024;
    /// From a hundredth of a processor to more than any machine has.
    const SHARES: std::ops::RangeInclusive<u32> = 10..=4_096_000;
    let memory = spec.memory.is_none_or(|bytes| (MIN_MEMORY..=i64::MAX as u64).contains(&bytes));
    let cpu = spec.cpu.is_none_or(|thousandths| SHARES.contains(&thousandths));
    let none = spec.memory.is_none() && spec.cpu.is_none();
    if memory && cpu && (none || spec.isolation == CellKind::Strict) {
        return Ok(());
    }
    let (memory, cpu) = (spec.memory, spec.cpu);
    Err(Error::Invalid(format!(
        "memory {memory:?} or cpu {cpu:?} is out of range, or the isolation is {:?} and not strict",
        spec.isolation
    )))
}

fn check_limits(spec: &CellSpec) -> Result<(), Error> {
    check_whole(spec)?;
    if spec.rlimits.len() > MAX_LIMITS {
        return Err(Error::Invalid(format!(
            "{} limits are more than {MAX_LIMITS}",
            spec.rlimits.len()
        )));
    }
    match spec.rlimits.iter().find(|limit| limit.soft > limit.hard) {
        Some(limit) => {
            Err(Error::Invalid(format!("the soft limit is above the hard one: {limit:?}")))
        }
        None => Ok(()),
    }
}

fn check_target(entry: &Entry) -> Result<(), Error> {
    const TAKEN: [&str; 6] = ["/proc", "/sys", "/dev", "/oldroot", "/workspace", "/tmp"];
    let target = entry.target.as_path();
    let taken = TAKEN.iter().find(|taken| target == Path::new(taken));
    let inside = TAKEN[..4].iter().find(|taken| target.starts_with(taken));
    if !is_plain(target) || target == Path::new("/") || taken.or(inside).is_some() {
        return Err(Error::Invalid(format!(
            "cannot bind at {}: the path is reserved, or not absolute and plain",
            target.display()
        )));
    }
    Ok(())
}

fn directory(path: impl Into<PathBuf>, mode: u32, owner: Owner) -> Op {
    Op::Directory { path: path.into(), mode, owner }
}

#[derive(Default)]
struct Builder {
    ops: Vec<Op>,
    /// True when only mounts, and no Landlock, keep code from writing outside of its own directories. Each directory is
    /// then a mount of its own, so files cannot be renamed between them.
    closes_root: bool,
}

impl Builder {
    fn op(&mut self, op: Op) {
        self.ops.push(op);
    }

    fn finish(mut self, limits: &[Rlimit], identity: Op, seal: Op) -> Result<Plan, Error> {
        self.ops.extend(limits.iter().copied().map(Op::Limit));
        self.op(identity);
        self.op(seal);
        Ok(Plan { ops: self.ops })
    }

    /// Makes the directories above a path, unless an earlier operation makes them.
    fn parents(&mut self, path: &Path, owner: Owner) {
        let above: Vec<_> = path.ancestors().skip(1).collect();
        for parent in above.into_iter().rev().filter(|parent| *parent != Path::new("/")) {
            if !self.has(parent) {
                self.op(directory(parent, 0o755, owner));
            }
        }
    }

    /// Returns true for a path that an operation makes, or below a bind.
    fn has(&self, path: &Path) -> bool {
        self.ops.iter().any(|op| match op {
            Op::Directory { path: made, .. } => made == path,
            Op::Bind { source, target, directory: true, .. } => {
                target == path || (source == target && path.starts_with(target))
            }
            _ => false,
        })
    }

    fn entry(&mut self, entry: &Entry) {
        let target = entry.target.clone();
        let (source, directory) = match &entry.kind {
            EntryKind::Directory(source) => (source, true),
            EntryKind::File(source) => (source, false),
            EntryKind::Link(text) => {
                self.parents(&target, Owner::Outside);
                return self.op(Op::Symlink { target: text.clone(), path: target });
            }
        };
        if *source == target && self.has(&target) {
            return;
        }
        self.parents(&target, Owner::Outside);
        let attributes = Attributes::READ_ONLY;
        self.op(Op::Bind { source: source.clone(), target, directory, attributes });
    }

    fn file(&mut self, path: &str, contents: impl Into<String>) {
        self.op(Op::File { path: path.into(), mode: 0o644, contents: contents.into() });
    }

    /// Adds the cell's own files, outside of the host's files that it shows.
    fn own_files(&mut self, files: &[(PathBuf, String)]) -> Result<(), Error> {
        for (path, contents) in files {
            let kernel = ["/proc", "/sys", "/dev", "/etc"].iter().any(|own| path.starts_with(own));
            let bound = self.ops.iter().any(|op| match op {
                Op::Bind { target, .. } => path.starts_with(target),
                _ => false,
            });
            if !is_plain(path) || kernel || bound {
                return Err(Error::Invalid(format!(
                    "cannot make a file at {}: the path is reserved, or not absolute and plain",
                    path.display()
                )));
            }
            self.parents(path, Owner::Outside);
            self.op(Op::File { path: path.clone(), mode: 0o644, contents: contents.clone() });
        }
        Ok(())
    }

    fn link(&mut self, path: &str, target: &str) {
        self.op(Op::Symlink { target: target.into(), path: path.into() });
    }

    fn restrict(&mut self, path: impl Into<PathBuf>, attributes: Attributes, optional: bool) {
        self.op(Op::Restrict { path: path.into(), attributes, optional });
    }

    fn mount(&mut self, kind: &'static str, target: &str, flags: Attributes, options: String) {
        self.op(Op::Mount { kind, target: target.into(), flags, options });
    }

    fn configuration(&mut self, spec: &CellSpec) {
        let hostname = &spec.hostname;
        self.file("/etc/passwd", passwd(&spec.user));
        self.file("/etc/group", group(&spec.user));
        self.file("/etc/hostname", format!("{hostname}\n"));
        self.file(
            "/etc/hosts",
            format!("127.0.0.1 localhost {hostname}\n::1 localhost ip6-localhost\n"),
        );
        self.file("/etc/nsswitch.conf", NSSWITCH);
        self.file("/etc/resolv.conf", if spec.gate { RESOLV_BY_GATE } else { RESOLV });
        self.link("/etc/mtab", "/proc/self/mounts");
        self.restrict("/etc", Attributes::READ_ONLY, false);
    }

    fn devices(&mut self, devices: &[&str], shm_bytes: u64) {
        const SHM_INODES: u64 = 16 * 1024;
        self.op(directory("/dev", 0o755, Owner::Outside));
        self.op(Op::Separate { path: "/dev".into(), optional: false });
        for device in devices {
            let path = Path::new("/dev").join(device);
            let attributes = Attributes::NO_EXEC_DEVICES;
            self.op(Op::Bind { source: path.clone(), target: path, directory: false, attributes });
        }
        self.op(directory("/dev/pts", 0o755, Owner::Outside));
        self.op(directory("/dev/shm", 0o755, Owner::Outside));
        self.link("/dev/ptmx", "pts/ptmx");
        self.link("/dev/fd", "/proc/self/fd");
        self.link("/dev/stdin", "/proc/self/fd/0");
        self.link("/dev/stdout", "/proc/self/fd/1");
        self.link("/dev/stderr", "/proc/self/fd/2");
        self.restrict("/dev", Attributes::READ_ONLY_DEVICES, false);
        // The kernel limits the terminals of all mounts of the host together.
        const TERMINALS: u32 = 64;
        let terminals = format!("newinstance,ptmxmode=0666,mode=620,max={TERMINALS}");
        self.mount("devpts", "/dev/pts", Attributes::NO_EXEC_DEVICES, terminals);
        let shared = format!("size={shm_bytes},nr_inodes={SHM_INODES},mode=1777");
        self.mount("tmpfs", "/dev/shm", Attributes::PLAIN, shared);
    }

    fn own_directories(&mut self, home: &Path) {
        const OPEN: u32 = 0o1777;
        for (path, mode, owner) in [
            (Path::new(WORK_DIR), 0o755, Owner::Cell),
            (Path::new("/data"), 0o755, Owner::Cell),
            (Path::new("/etc"), 0o755, Owner::Outside),
            (Path::new("/home"), 0o755, Owner::Outside),
            (home, 0o755, Owner::Cell),
            (Path::new("/run"), 0o755, Owner::Cell),
            (Path::new("/sys"), 0o755, Owner::Outside),
            (Path::new("/tmp"), OPEN, Owner::Outside),
            (Path::new("/var"), 0o755, Owner::Outside),
            (Path::new("/var/tmp"), OPEN, Owner::Outside),
        ] {
            self.op(directory(path, mode, owner));
            if owner == Owner::Cell || mode == OPEN {
                self.stays_writable(path);
            }
        }
        self.op(Op::Separate { path: "/etc".into(), optional: false });
    }

    /// Makes the directories that do not exist yet, and returns them.
    fn further_directories(&mut self, paths: &[PathBuf]) -> Vec<PathBuf> {
        let new: Vec<_> = paths.iter().filter(|path| !self.is_taken(path)).cloned().collect();
        for path in &new {
            self.parents(path, Owner::Outside);
            self.op(directory(path, 0o755, Owner::Cell));
            self.stays_writable(path);
        }
        new
    }

    /// Makes directories that code may write, and returns those that are in no such directory already.
    fn writable_directories(&mut self, paths: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
        let mut new = Vec::new();
        for path in paths {
            let is_own = self.is_own(path);
            if self.is_below_taken(path) || (!is_own && self.has(path)) {
                return Err(Error::Invalid(format!(
                    "cannot make {} writable: the path belongs to what the sandbox shows of the host, or to its system",
                    path.display()
                )));
            }
            if is_own {
                if !self.has(path) {
                    self.parents(path, Owner::Cell);
                    self.op(directory(path, 0o755, Owner::Cell));
                }
                continue;
            }
            self.parents(path, Owner::Outside);
            self.op(directory(path, 0o755, Owner::Cell));
            self.stays_writable(path);
            new.push(path.clone());
        }
        Ok(new)
    }

    /// Keeps a directory writable when the root becomes read-only.
    fn stays_writable(&mut self, path: impl Into<PathBuf>) {
        if self.closes_root {
            self.op(Op::Separate { path: path.into(), optional: false });
        }
    }

    /// Makes the root read-only, after the last change to it.
    fn close_root(&mut self) {
        if self.closes_root {
            self.restrict("/", Attributes::READ_ONLY, false);
        }
    }

    /// Adds the mounts of the host, and returns the writable targets.
    fn host_mounts(&mut self, mounts: &[HostMount]) -> Result<Vec<PathBuf>, Error> {
        let mut writable = Vec::new();
        for HostMount { facts, .. } in mounts {
            let target = facts.target.as_path();
            let refuse = |why: &str| {
                Err(Error::Invalid(format!("cannot mount at {}: {why}", target.display())))
            };
            if !is_plain(target) || target == Path::new("/") {
                return refuse("the path is not absolute and plain");
            }
            if self.is_below_taken(target) {
                return refuse("the path is inside a directory of the host that the sandbox shows");
            }
            if self.hides(target) {
                return refuse("the mount would hide files that the sandbox needs");
            }
            let owner = if self.is_own(target) { Owner::Cell } else { Owner::Outside };
            self.parents(target, owner);
            self.op(Op::HostMount(facts.clone()));
            if facts.writable {
                writable.push(facts.target.clone());
            }
        }
        Ok(writable)
    }

    /// Returns true when a mount would cover anything but a directory of the cell.
    fn hides(&self, target: &Path) -> bool {
        self.ops.iter().any(|op| match op {
            Op::Bind { target: other, .. } | Op::Mount { target: other, .. } => {
                other.starts_with(target)
            }
            Op::HostMount(facts) => facts.target.starts_with(target),
            Op::Symlink { path, .. } | Op::File { path, .. } => path.starts_with(target),
            _ => false,
        })
    }

    /// Returns true for a path in a directory that belongs to the cell.
    fn is_own(&self, path: &Path) -> bool {
        self.ops.iter().any(|op| match op {
            Op::Directory { path: made, owner: Owner::Cell, .. } => path.starts_with(made),
            _ => false,
        })
    }

    /// Returns true for a path that exists, or below one that the cell may not change.
    fn is_taken(&self, path: &Path) -> bool {
        self.has(path) || self.is_below_taken(path)
    }

    /// Returns true for a path at or below one that the cell may not change.
    fn is_below_taken(&self, path: &Path) -> bool {
        self.ops.iter().any(|op| match op {
            Op::Bind { target, .. } | Op::Mount { target, .. } => path.starts_with(target),
            Op::HostMount(facts) => path.starts_with(&facts.target),
            Op::Symlink { path: link, .. } => path.starts_with(link),
            _ => false,
        })
    }

    fn processes(&mut self) {
        let proc = Path::new("/proc");
        self.op(directory(proc, 0o755, Owner::Outside));
        self.mount("proc", "/proc", Attributes::NO_EXEC, String::new());
        self.op(Op::KeepSysctl);
        for name in MASKED {
            self.op(Op::Mask { path: proc.join(name) });
        }
        for name in READ_ONLY {
            self.op(Op::Separate { path: proc.join(name), optional: true });
            self.restrict(proc.join(name), Attributes::READ_ONLY_NO_EXEC, true);
        }
    }
}

#[cfg(test)]
mod tests;
