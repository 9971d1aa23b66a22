//! Executes a plan: sets up the file system, network and name of a cell.
//!
//! Every operation must succeed. The first failure ends the cell.

use core::ffi::CStr;

use crate::confine::{self, Confinement};
use crate::gate;
use crate::identity::{self, OuterIds};
use crate::idmap;
use crate::mounts;
use crate::protocol::op;
use crate::sys::{
    self, AT_FDCWD, EEXIST, EINVAL, ENOENT, ENOTDIR, EOPNOTSUPP, ESTALE, Errno, Limit, O_CREAT,
    O_DIRECTORY, O_EXCL, O_PATH, O_WRONLY, Result,
};
use crate::wire::Reader;

pub const MAX_LIMITS: usize = 16;

/// The state that a plan leaves for the lifetime of the cell.
pub struct Prepared {
    pub strict: bool,
    pub outer_ids: OuterIds,
    pub limits: [(u32, Limit); MAX_LIMITS],
    pub limit_count: usize,
    /// The directory to remove at the end: descriptor and path.
    pub own_directory: Option<(i32, &'static CStr)>,
    /// Sockets for the host's gate.
    pub gate: Option<[i32; gate::SOCKETS]>,
    /// A socket with which the host lists the sockets of the cell.
    pub socket_counts: Option<i32>,
    /// The confinement of every program.
    pub confinement: Confinement,
    oldroot: i32,
    sysctl: i32,
}

/// A failed operation: its name, and the path or name it worked on.
pub struct Failure {
    pub step: &'static [u8],
    pub detail: &'static [u8],
    pub errno: Errno,
}

/// Executes the operations of a plan in order.
pub fn carry_out(
    plan: &'static [u8],
    root_mode: bool,
    strict: bool,
) -> core::result::Result<Prepared, Failure> {
    sys::umask(0);
    let mut cell = Prepared {
        strict,
        outer_ids: OuterIds::LAUNCHER,
        limits: [(0, Limit { soft: 0, hard: 0 }); MAX_LIMITS],
        limit_count: 0,
        own_directory: None,
        gate: None,
        socket_counts: None,
        confinement: Confinement::NONE,
        oldroot: -1,
        sysctl: -1,
    };
    if strict {
        cell.outer_ids = identity::outer_ids(root_mode).map_err(|errno| Failure {
            step: b"read /proc/self",
            detail: b"",
            errno,
        })?;
    }
    let mut reader = Reader::new(plan);
    let mut sealed = false;
    while !reader.is_empty() {
        let code = reader.u8().unwrap_or(0);
        let mut detail: &'static [u8] = b"";
        let outcome = cell.operation(code, &mut reader, &mut detail);
        outcome.map_err(|errno| Failure { step: name(code), detail, errno })?;
        sealed = matches!(code, op::SEAL | op::SEAL_OFF);
    }
    if sealed {
        Ok(cell)
    } else {
        Err(Failure { step: b"plan without a seal", detail: b"", errno: EINVAL })
    }
}

fn name(code: u8) -> &'static [u8] {
    match code {
        op::PRIVATE_MOUNTS => b"make mounts private",
        op::NEW_ROOT => b"mount a new root over",
        op::DIRECTORY => b"make directory",
        op::SYMLINK => b"make link",
        op::FILE => b"write",
        op::BIND => b"bind",
        op::HOST_MOUNT => b"mount of the host:",
        op::MOUNT => b"mount",
        op::RESTRICT => b"restrict",
        op::SEPARATE => b"separate",
        op::MASK => b"mask",
        op::LOOPBACK => b"bring up loopback",
        op::GATE => b"open the gate",
        op::SOCKET_COUNTS => b"count sockets",
        op::HOSTNAME => b"set hostname",
        op::LEAVE_HOST => b"detach the host's files",
        op::CHANGE_DIRECTORY => b"enter",
        op::LIMIT => b"set limit",
        op::SYSCTL => b"open /proc/sys",
        op::IDENTITY => b"take identity",
        op::SEAL | op::SEAL_OFF => b"seal",
        op::OWN_DIRECTORY => b"open",
        op::RULESET => b"make a Landlock ruleset",
        op::FILTER => b"take the filter of system calls",
        _ => b"unknown operation",
    }
}

type Detail<'a> = &'a mut &'static [u8];

impl Prepared {
    fn operation(
        &mut self,
        code: u8,
        plan: &mut Reader<'static>,
        detail: Detail<'_>,
    ) -> Result<()> {
        let mut text = |plan: &mut Reader<'static>| -> Result<&'static CStr> {
            let text = plan.text()?;
            if detail.is_empty() {
                *detail = text.to_bytes();
            }
            Ok(text)
        };
        match code {
            op::PRIVATE_MOUNTS => private_mounts(),
            op::NEW_ROOT => self.new_root(text(plan)?, plan.text()?),
            op::DIRECTORY => self.directory(text(plan)?, plan.u32()?, plan.u8()? != 0),
            op::SYMLINK => {
                let target = plan.text()?;
                sys::symlink(target, text(plan)?).map(drop)
            }
            op::FILE => file(text(plan)?, plan.u32()?, plan.bytes()?),
            op::BIND => {
                let (source, target) = (text(plan)?, plan.text()?);
                self.bind(source, target, plan.u8()? != 0, plan.u64()?)
            }
            op::HOST_MOUNT => {
                let source = text(plan)?;
                self.host_mount(&HostMount::read(source, plan)?)
            }
            op::MOUNT => {
                let (kind, target) = (plan.text()?, text(plan)?);
                let flags = plan.u64()?;
                mounts::mount(kind, target, kind, flags, plan.text()?).map(drop)
            }
            op::RESTRICT => restrict(text(plan)?, plan.u64()?, plan.u8()? != 0),
            op::SEPARATE => separate(text(plan)?, plan.u8()? != 0),
            op::MASK => mask(text(plan)?),
            op::LOOPBACK => loopback(),
            op::GATE => {
                self.gate = Some(gate::open(plan.bytes()?, plan.bytes()?)?);
                Ok(())
            }
            op::SOCKET_COUNTS => {
                self.socket_counts = Some(gate::socket_counts()?);
                Ok(())
            }
            op::HOSTNAME => sys::set_hostname(text(plan)?.to_bytes()).map(drop),
            op::LEAVE_HOST => self.leave_host(),
            op::CHANGE_DIRECTORY => sys::chdir(text(plan)?).map(drop),
            op::LIMIT => self.limit(plan.u32()?, Limit { soft: plan.u64()?, hard: plan.u64()? }),
            op::IDENTITY => identity::assume(self.outer_ids, plan.u32()?, plan.u32()?, self.sysctl),
            op::SYSCTL => self.keep_sysctl(),
            op::SEAL => identity::seal(),
            op::SEAL_OFF => identity::seal_off(),
            op::OWN_DIRECTORY => self.own(text(plan)?),
            op::RULESET => {
                self.confinement.ruleset = Some(confine::ruleset(plan)?);
                Ok(())
            }
            op::FILTER => {
                self.confinement.filter = plan.bytes()?;
                Ok(())
            }
            _ => Err(EINVAL),
        }
    }

    fn new_root(&mut self, base: &CStr, options: &CStr) -> Result<()> {
        const NOSUID_NODEV: u64 = 2 | 4;
        mounts::mount(c"tmpfs", base, c"tmpfs", NOSUID_NODEV, options)?;
        sys::chdir(base)?;
        sys::mkdir(c"oldroot", 0o700)?;
        mounts::pivot_root(c".", c"oldroot")?;
        sys::chdir(c"/")?;
        self.oldroot = sys::open(AT_FDCWD, c"/oldroot", O_PATH | O_DIRECTORY, 0)?;
        Ok(())
    }

    fn directory(&self, path: &CStr, mode: u32, owned: bool) -> Result<()> {
        match sys::mkdir(path, mode) {
            Ok(_) => {}
            Err(EEXIST) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        if owned {
            sys::chown(path, self.outer_ids.uid, self.outer_ids.gid)?;
        }
        Ok(())
    }

    fn bind(&self, source: &CStr, target: &CStr, directory: bool, attributes: u64) -> Result<()> {
        if directory {
            self.directory(target, 0o755, false)?;
        } else {
            empty_file(target)?;
        }
        let place = sys::open_inside(self.oldroot, relative(source)?)?;
        let tree = mounts::copy_tree(place, c"", true);
        sys::close(place);
        settle(tree?, target, attributes)
    }

    /// Mounts exactly the file that the host has checked: links are not followed, and the file must be the one that the
    /// host has open.
    fn host_mount(&self, mount: &HostMount) -> Result<()> {
        if mount.directory {
            self.directory(mount.target, 0o755, true)?;
        } else {
            empty_file(mount.target)?;
        }
        let place = sys::open_exactly(self.oldroot, relative(mount.source)?)?;
        let tree = match sys::identity(place) {
            Ok(found) if found == mount.identity => mounts::copy_tree(place, c"", true),
            Ok(_) => Err(ESTALE),
            Err(errno) => Err(errno),
        };
        sys::close(place);
        let tree = tree?;
        if self.outer_ids.change
            && idmap::idmap_mount(tree, mount.owner, self.outer_ids).is_err()
            && mount.writable
        {
            // The cell's new files would belong to no account, and later perhaps to another cell.
            sys::close(tree);
            return Err(EOPNOTSUPP);
        }
        settle(tree, mount.target, mount.attributes)
    }

    fn leave_host(&mut self) -> Result<()> {
        sys::close(self.oldroot);
        self.oldroot = -1;
        mounts::detach(c"/oldroot")?;
        sys::unlink(AT_FDCWD, c"/oldroot", true)?;
        Ok(())
    }

    fn keep_sysctl(&mut self) -> Result<()> {
        self.sysctl = sys::open(AT_FDCWD, c"/proc/sys", O_PATH | O_DIRECTORY, 0)?;
        Ok(())
    }

    fn limit(&mut self, resource: u32, limit: Limit) -> Result<()> {
        let slot = self.limits.get_mut(self.limit_count).ok_or(EINVAL)?;
        *slot = (resource, limit);
        self.limit_count += 1;
        Ok(())
    }

    fn own(&mut self, path: &'static CStr) -> Result<()> {
        let fd = sys::open(AT_FDCWD, path, O_DIRECTORY | sys::O_NOFOLLOW, 0)?;
        self.own_directory = Some((fd, path));
        Ok(())
    }
}

/// A file or directory of the host, and its path in the cell.
struct HostMount {
    source: &'static CStr,
    target: &'static CStr,
    directory: bool,
    writable: bool,
    attributes: u64,
    identity: (u32, u32, u64),
    owner: (u32, u32),
}

impl HostMount {
    fn read(source: &'static CStr, plan: &mut Reader<'static>) -> Result<Self> {
        Ok(Self {
            source,
            target: plan.text()?,
            directory: plan.u8()? != 0,
            writable: plan.u8()? != 0,
            attributes: plan.u64()?,
            identity: (plan.u32()?, plan.u32()?, plan.u64()?),
            owner: (plan.u32()?, plan.u32()?),
        })
    }
}

fn private_mounts() -> Result<()> {
    const REC_PRIVATE: u64 = 0x4000 | 1 << 18;
    mounts::mount(c"none", c"/", c"", REC_PRIVATE, c"").map(drop)
}

/// Removes the leading slashes of an absolute path; returns `.` for the root itself.
fn relative(path: &CStr) -> Result<&CStr> {
    let mut rest = path;
    while rest.to_bytes().first() == Some(&b'/') {
        let bytes = &rest.to_bytes_with_nul()[1..];
        rest = CStr::from_bytes_until_nul(bytes).map_err(|_| EINVAL)?;
    }
    Ok(if rest.is_empty() { c"." } else { rest })
}

fn empty_file(path: &CStr) -> Result<()> {
    match sys::open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL, 0o644) {
        Ok(fd) => {
            sys::close(fd);
            Ok(())
        }
        Err(EEXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn file(path: &CStr, mode: u32, contents: &[u8]) -> Result<()> {
    let fd = sys::open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL, mode)?;
    let mut rest = contents;
    let outcome = loop {
        if rest.is_empty() {
            break Ok(());
        }
        match sys::write(fd, rest) {
            Ok(count) => rest = &rest[count..],
            Err(errno) => break Err(errno),
        }
    };
    sys::close(fd);
    outcome
}

fn settle(tree: i32, target: &CStr, attributes: u64) -> Result<()> {
    let outcome =
        mounts::restrict_tree(tree, attributes).and_then(|_| mounts::place_tree(tree, target));
    sys::close(tree);
    outcome.map(drop)
}

fn separate(path: &CStr, optional: bool) -> Result<()> {
    match mounts::copy_tree(AT_FDCWD, path, false) {
        Ok(tree) => settle(tree, path, 0),
        Err(ENOENT) if optional => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn restrict(path: &CStr, attributes: u64, optional: bool) -> Result<()> {
    match mounts::restrict(path, attributes) {
        Ok(_) => Ok(()),
        Err(ENOENT) if optional => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn mask(path: &CStr) -> Result<()> {
    const BIND: u64 = 4096;
    const RDONLY_NOSUID_NODEV_NOEXEC: u64 = 1 | 2 | 4 | 8;
    match mounts::mount(c"/dev/null", path, c"", BIND, c"") {
        Ok(_) | Err(ENOENT) => Ok(()),
        Err(ENOTDIR) => {
            let options = c"size=4k,nr_inodes=1,mode=555";
            mounts::mount(c"tmpfs", path, c"tmpfs", RDONLY_NOSUID_NODEV_NOEXEC, options).map(drop)
        }
        Err(errno) => Err(errno),
    }
}

fn loopback() -> Result<()> {
    const AF_INET: usize = 2;
    const SOCK_DGRAM: usize = 2;
    const SIOCSIFFLAGS: usize = 0x8914;
    const IFF_UP: u8 = 1;
    let mut request = [0_u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16] = IFF_UP;
    let socket = sys::socket(AF_INET, SOCK_DGRAM, 0)?;
    let outcome = sys::ioctl(socket, SIOCSIFFLAGS, request.as_ptr() as usize);
    sys::close(socket);
    outcome.map(drop)
}
