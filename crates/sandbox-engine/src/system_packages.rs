//! Packages of the system's package manager: names, the known package managers, and how each installs.

use sandbox_core::{Error, Result};

use crate::programs::on_path;

const OPERATION: &str = "install_packages";
const MAX_NAMES: usize = 1000;
const MAX_LENGTH: usize = 200;

/// Package managers of hosts: the program, and the arguments before the names.
const MANAGERS: [(&str, &str); 7] = [
    ("apt-get", "apt-get install -y"),
    ("dnf", "dnf install -y"),
    ("apk", "apk add"),
    ("pacman", "pacman -S --noconfirm"),
    ("zypper", "zypper install -y"),
    ("yum", "yum install -y"),
    ("nix-env", "nix-env -i"),
];

/// Shell script that installs packages as root of the sandbox with its package manager. The names are its arguments. It
/// ends early when its standard input ends. Without capabilities apt cannot become the user that fetches.
pub const SCRIPT: &str = r#"exec 3<&0 </dev/null
install() {
    if command -v apt-get >/dev/null; then
        set -- -y -q --no-install-recommends -o APT::Sandbox::User=root -- "$@"
        DEBIAN_FRONTEND=noninteractive apt-get install "$@" 2>/dev/null && return
        apt-get update -q -o APT::Sandbox::User=root -o Acquire::Retries=1
        DEBIAN_FRONTEND=noninteractive exec apt-get install "$@"
    fi
    if command -v apk >/dev/null; then exec apk add --no-cache -- "$@"; fi
    for manager in dnf microdnf yum; do
        if command -v "$manager" >/dev/null; then exec "$manager" install -y -- "$@"; fi
    done
    if command -v zypper >/dev/null; then exec zypper --non-interactive install -- "$@"; fi
    echo "the image has no package manager that is known: apt-get, apk, dnf, microdnf, yum, zypper" >&2
    exit 96
}
install "$@" & job=$!
{ cat <&3 >/dev/null; kill "$job"; } 2>/dev/null & watcher=$!
wait "$job"; status=$?
kill "$watcher" 2>/dev/null
exit "$status"
"#;

/// The status of [`SCRIPT`] where there is no package manager.
pub const NO_MANAGER: i64 = 96;

/// Checks names as package managers take them: no option, no path and no address.
///
/// # Errors
/// `InvalidArgument` for a malformed name.
pub fn checked(names: Vec<String>) -> Result<Vec<String>> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._+:=~-".contains(c);
    let is_name = |name: &String| {
        name.len() <= MAX_LENGTH
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(allowed)
    };
    if names.len() > MAX_NAMES {
        return Err(Error::invalid("packages", format!("must be at most {MAX_NAMES}")));
    }
    match names.iter().find(|name| !is_name(name)) {
        Some(name) => Err(Error::invalid(
            "packages",
            format!(
                "must be the name of a system package, perhaps with `=VERSION`, got {name:.100?}"
            ),
        )),
        None => Ok(names),
    }
}

/// Returns the command that installs the packages on this host.
#[must_use]
pub fn command_here(names: &[String]) -> String {
    let found = MANAGERS.iter().find(|(program, _)| on_path(program).is_some());
    let (_, words) = found.unwrap_or(&MANAGERS[0]);
    format!("{words} {}", names.join(" "))
}

/// Makes the hint for a sandbox that shows the programs of this host.
#[must_use]
pub fn hint_of_host(names: &[String]) -> String {
    format!(
        "install them on this host: `{}`; a sandbox sees what is below /usr, also one that runs already",
        command_here(names)
    )
}

/// Makes the error of a failed installation from its output.
#[must_use]
pub fn failed(said: &str, status: i64, closed: bool) -> Error {
    use sandbox_core::ErrorKind::{
        Cancelled, NotFound, ResourceExhausted, Unavailable, Unexpected, Unsupported,
    };
    let has = |parts: &[&str]| parts.iter().any(|part| said.contains(part));
    let kind = if status == NO_MANAGER {
        Unsupported
    } else if has(&[
        "Unable to locate package",
        "no such package",
        "Unable to find a match",
        "has no installation candidate",
    ]) && !closed
    {
        NotFound
    } else if has(&["No space left on device"]) {
        ResourceExhausted
    } else if closed
        || has(&["Temporary failure", "Could not connect", "Connection", "Could not resolve"])
    {
        Unavailable
    } else if status == 143 {
        Cancelled
    } else {
        Unexpected
    };
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let errors: Vec<&str> = lines.iter().copied().filter(|line| line.starts_with("E: ")).collect();
    let told =
        if errors.is_empty() { &lines[lines.len().saturating_sub(3)..] } else { &errors[..] };
    let words: String = told.join("; ").chars().take(1000).collect();
    let error = Error::new(kind, OPERATION, format!("system packages were not installed: {words}"));
    if closed && kind == Unavailable {
        let hint = "package managers fetch from the network, and this sandbox has none: create it with \
                    `.network(NetworkPolicy::all())`";
        return error.with_hint(hint);
    }
    error
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;

    use super::*;

    #[test]
    fn only_names_are_packages() {
        let one = |name: &str| checked(vec![name.to_owned()]);
        for fine in ["curl", "g++", "libc6:amd64", "python3=3.11.2-1+b1", "7zip"] {
            one(fine).unwrap();
        }
        for bad in
            ["", "-y", "--reinstall", "./x.deb", "/x.deb", "a b", "a;b", "$(x)", "a\nb", "http://x"]
        {
            assert_eq!(one(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad:?}");
        }
    }

    #[test]
    fn the_command_for_the_host_has_the_names() {
        let command = command_here(&["curl".into(), "wget".into()]);
        assert!(command.ends_with(" curl wget"), "{command}");
    }

    #[test]
    fn what_a_package_manager_says_is_told_by_its_kind() {
        let kind = |said: &str, closed| failed(said, 100, closed).kind();
        assert_eq!(kind("E: Unable to locate package nope", false), ErrorKind::NotFound);
        assert_eq!(kind("E: Unable to locate package nope", true), ErrorKind::Unavailable);
        assert_eq!(
            kind("E: You don't have enough: No space left on device", false),
            ErrorKind::ResourceExhausted
        );
        assert_eq!(failed("x", NO_MANAGER, false).kind(), ErrorKind::Unsupported);
        assert!(
            failed("E: one\nnoise", 100, true)
                .hint()
                .unwrap()
                .contains("`.network(NetworkPolicy::all())`")
        );
    }
}
