//! Turns a kernel's refusal into advice.

use std::env;
use std::fs;
use std::io;
use std::path::Path;

use crate::error::Error;

const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const ENOSYS: i32 = 38;

/// The step in which root without CAP_SYS_ADMIN switches to an unprivileged user.
const GIVE_UP_ROOT: &str = "give up the root account";

/// The step that redirects the cell's connections to the host.
pub(crate) const OPEN_GATE: &str = "open the gate";

/// Settings of this machine that affect isolation.
#[derive(Clone, Debug, Default)]
struct Facts {
    /// `kernel.unprivileged_userns_clone`, where it exists.
    userns_clone: Option<u64>,
    /// `user.max_user_namespaces`.
    max_user_namespaces: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, where it exists.
    apparmor: Option<u64>,
    container: bool,
}

impl Facts {
    fn read() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        let exists = |path: &&str| Path::new(path).exists();
        Self {
            userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
            apparmor: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            container: ["/.dockerenv", "/run/.containerenv"].iter().any(exists),
        }
    }
}

/// Returns the error of a launcher that cannot work.
pub(crate) fn start(step: String, source: io::Error) -> Error {
    unavailable(&step, &source, &Facts::read())
}

/// Returns the error of a cell that was not set up: isolation is unavailable here, or this one step failed.
pub(crate) fn setup(step: String, source: io::Error) -> Error {
    if step == OPEN_GATE {
        return Error::NoGate { source };
    }
    if is_refusal(&step, &source) {
        unavailable(&step, &source, &Facts::read())
    } else {
        Error::Setup { step, source }
    }
}

/// Prefixes of steps that work on a path from the caller.
const ABOUT_PATHS: [&str; 2] = ["bind ", "mount of the host"];

/// Returns whether the kernel refuses isolation itself, rather than this path or this number. Binds and mounts fail for
/// reasons of their own.
fn is_refusal(step: &str, source: &io::Error) -> bool {
    let code = source.raw_os_error().unwrap_or(0);
    let forbidden = matches!(code, EPERM | EACCES | ENOSYS);
    let limited = matches!(code, ENOSPC | EINVAL) && step == "make namespaces";
    !ABOUT_PATHS.iter().any(|about| step.starts_with(about)) && (forbidden || limited)
}

fn unavailable(step: &str, source: &io::Error, facts: &Facts) -> Error {
    Error::Unavailable {
        missing: format!("the kernel refused to {step} ({source})"),
        fix: if step == GIVE_UP_ROOT {
            "run as an ordinary user, or let root keep the capabilities CAP_SETUID and CAP_SETGID"
                .to_owned()
        } else {
            fix(source.raw_os_error().unwrap_or(0), facts)
        },
    }
}

fn fix(errno: i32, facts: &Facts) -> String {
    let text = if errno == ENOSYS {
        "Linux 5.12 or newer is needed"
    } else if facts.userns_clone == Some(0) {
        "allow user namespaces: sysctl -w kernel.unprivileged_userns_clone=1"
    } else if facts.max_user_namespaces == Some(0) {
        "allow user namespaces: sysctl -w user.max_user_namespaces=10000"
    } else if errno == ENOSPC {
        "too many namespaces exist: raise the sysctls user.max_*_namespaces"
    } else if facts.apparmor.is_some_and(|value| value != 0) {
        return by_apparmor(&env::current_exe().unwrap_or_else(|_| "/usr/bin/sandboxes".into()));
    } else if facts.container {
        "this container forbids it: start it with --security-opt seccomp=unconfined \
         --security-opt systempaths=unconfined, or with --privileged, or use a container backend"
    } else if errno == EINVAL {
        "the kernel was built without some namespace; see `lsns` and CONFIG_NAMESPACES"
    } else {
        "run as root, or allow unprivileged user namespaces"
    };
    text.to_owned()
}

/// Returns the advice where AppArmor allows user namespaces only to programs with a profile, as Ubuntu does since
/// 24.04.
///
/// The profile confines nothing: it is only a name that has the right. Child processes inherit the profile, including
/// the launcher, which is run from memory.
fn by_apparmor(program: &Path) -> String {
    let program = program.display();
    format!(
        "AppArmor allows user namespaces only to programs with a profile. Install one for this program: \
         printf '%s\\n' 'abi <abi/4.0>,' 'include <tunables/global>' \
         'profile code-sandboxes \"{program}\" flags=(unconfined) {{ userns, }}' \
         | sudo tee /etc/apparmor.d/code-sandboxes && sudo apparmor_parser -r /etc/apparmor.d/code-sandboxes. \
         Or allow them to every program: sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fix_for(errno: i32, facts: &Facts) -> String {
        match unavailable("make namespaces", &io::Error::from_raw_os_error(errno), facts) {
            Error::Unavailable { fix, .. } => fix,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_profile_for_apparmor_is_one_that_can_be_installed() {
        let fix = by_apparmor(Path::new("/opt/bin/sandboxes"));
        for part in [
            "profile code-sandboxes \"/opt/bin/sandboxes\" flags=(unconfined) { userns, }",
            "'abi <abi/4.0>,'",
            "sudo apparmor_parser -r /etc/apparmor.d/code-sandboxes",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ] {
            assert!(fix.contains(part), "{part}: {fix}");
        }
    }

    #[test]
    fn a_mount_that_fails_is_no_fault_of_the_machine() {
        for step in ["mount of the host: /srv", "bind /opt/x"] {
            let error = setup(step.to_owned(), io::Error::from_raw_os_error(EACCES));
            assert!(matches!(error, Error::Setup { .. }), "{error}");
        }
    }

    #[test]
    fn the_fix_names_the_obstacle() {
        let facts = Facts::default();
        for (errno, facts, word) in [
            (
                EPERM,
                Facts { userns_clone: Some(0), ..facts.clone() },
                "unprivileged_userns_clone=1",
            ),
            (
                ENOSPC,
                Facts { max_user_namespaces: Some(0), ..facts.clone() },
                "max_user_namespaces",
            ),
            (ENOSPC, facts.clone(), "user.max_*_namespaces"),
            (EPERM, Facts { apparmor: Some(1), ..facts.clone() }, "apparmor_restrict"),
            (EPERM, Facts { container: true, ..facts.clone() }, "--security-opt"),
            (ENOSYS, Facts { container: true, ..facts.clone() }, "5.12"),
            (EPERM, facts.clone(), "run as root"),
        ] {
            let fix = fix_for(errno, &facts);
            assert!(fix.contains(word), "{errno} {facts:?}: {fix}");
        }
    }

    #[test]
    fn root_that_cannot_switch_users_gets_advice() {
        let refused = io::Error::from_raw_os_error(EPERM);
        let facts = Facts { container: true, ..Facts::default() };
        let error = unavailable(GIVE_UP_ROOT, &refused, &facts).to_string();
        assert!(error.contains("CAP_SETUID") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn only_refusals_of_isolation_count_as_unavailable() {
        let kind = |step: &str, errno| setup(step.to_owned(), io::Error::from_raw_os_error(errno));
        assert!(matches!(kind("make namespaces", ENOSPC), Error::Unavailable { .. }));
        assert!(matches!(kind("mount proc", EPERM), Error::Unavailable { .. }));
        assert!(matches!(kind("bind /root/x", EACCES), Error::Setup { .. }));
        assert!(matches!(kind("write /etc/passwd", ENOSPC), Error::Setup { .. }));
    }
}
