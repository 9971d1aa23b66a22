//! Variables by which everyday programs work in a closed sandbox, and the directories of packages that a user installs.

use std::collections::BTreeMap;

use sandbox_core::CreateSpec;

/// Variables that are set unless the caller sets them.
const DEFAULTS: [(&str, &str); 2] = [
    // LeakSanitizer traces its own process, which no sandbox allows, and ends a correct program with status 1.
    ("LSAN_OPTIONS", "detect_leaks=0"),
    // Debian's pip refuses to install into a user's home, to protect a system that nothing in a sandbox can change.
    ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
];

/// Adds to a whole environment what programs need in a closed sandbox. A variable that the caller sets stays.
pub fn add_defaults(env: &mut BTreeMap<String, String>, spec: &CreateSpec) {
    for (name, value) in DEFAULTS {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    add_user_programs(env, spec);
}

/// Adds the directory of the programs that a user installs, before those of the system.
pub fn add_user_programs(env: &mut BTreeMap<String, String>, spec: &CreateSpec) {
    if spec.env.contains_key("PATH") || spec.secrets.contains_key("PATH") {
        return;
    }
    if let Some(programs) = env.get("HOME").map(|home| format!("{home}/.local/bin"))
        && let Some(path) = env.get_mut("PATH")
    {
        *path = format!("{programs}:{path}");
    }
}

/// Returns the directory of packages that pip installs for a user, for the interpreter of a virtual environment: that
/// interpreter looks there only when it is configured to. `version` is its version, such as `3.11.2`.
#[must_use]
pub fn user_site(home: &str, version: &str) -> Option<String> {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next()?, parts.next()?);
    Some(format!("{home}/.local/lib/python{major}.{minor}/site-packages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_user_come_first_unless_the_caller_says_where_programs_are() {
        let env = || {
            BTreeMap::from(
                [("HOME", "/h"), ("PATH", "/usr/bin")].map(|(n, v)| (n.to_owned(), v.to_owned())),
            )
        };
        let mut usual = env();
        add_defaults(&mut usual, &CreateSpec::default());
        assert_eq!(usual["PATH"], "/h/.local/bin:/usr/bin");
        assert_eq!(usual["PIP_BREAK_SYSTEM_PACKAGES"], "1");
        assert_eq!(usual["LSAN_OPTIONS"], "detect_leaks=0");
        let mut spec = CreateSpec::default();
        spec.env.insert("PATH".into(), "/usr/bin".into());
        let mut own = env();
        own.insert("PIP_BREAK_SYSTEM_PACKAGES".into(), "0".into());
        add_defaults(&mut own, &spec);
        assert_eq!(
            (own["PATH"].as_str(), own["PIP_BREAK_SYSTEM_PACKAGES"].as_str()),
            ("/usr/bin", "0")
        );
    }

    #[test]
    fn the_packages_of_a_user_are_of_one_version() {
        assert_eq!(
            user_site("/h", "3.11.2").as_deref(),
            Some("/h/.local/lib/python3.11/site-packages")
        );
        assert_eq!(user_site("/h", "3"), None);
    }
}
