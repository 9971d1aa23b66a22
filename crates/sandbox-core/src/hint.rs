//! Advice of errors and results, in the words of who reads it.
//!
//! The library writes advice in calls of its API, each in backticks: `` `.memory("512m")` ``. A face whose users set flags
//! turns those calls into flags with [`with_flags`].

/// Calls of builders, and the flags of the same meaning.
const FLAGS: [(&str, &str); 17] = [
    ("cpu", "--cpus"),
    ("cpu_time", "--cpu-time"),
    ("disk", "--disk"),
    ("environment", "--environment"),
    ("fallback", "--fallback"),
    ("gpu", "--gpu"),
    ("image", "--image"),
    ("lifetime", "--lifetime"),
    ("memory", "--memory"),
    ("name", "--name"),
    ("open_files", "--open-files"),
    ("output_limit", "--output-limit"),
    ("processes", "--processes"),
    ("snapshot_name", "--snapshot"),
    ("timeout", "-t"),
    ("variant", "-p"),
    ("working_dir", "--workdir"),
];

/// Calls and fields that are commands, or flags of one command.
const COMMANDS: [(&str, &str); 14] = [
    ("Sandbox::list()", "sandboxes ls"),
    ("Sandbox::delete_snapshot()", "sandboxes snapshot rm"),
    ("Registry::variants()", "sandboxes providers"),
    ("Backend::health()", "sandboxes doctor"),
    ("Backend::environments()", "sandboxes environments"),
    (".resume()", "sandboxes resume ID"),
    (".terminate()", "sandboxes rm ID"),
    (".files().upload(..)", "sandboxes cp"),
    ("Images::build(..)", "sandboxes image build"),
    ("Images::pull(..)", "sandboxes image pull"),
    ("ImageBuild::base", "--base"),
    ("ImageBuild::ca_bundle", "--ca-bundle"),
    ("ImageBuild::index_url", "--index-url"),
    ("ImageBuild::network", "--build-network"),
];

/// Returns a text whose calls of the API, each in backticks, are flags and commands of the command line. What has no flag
/// stays as it is.
///
/// ```
/// use sandbox_core::with_flags;
///
/// assert_eq!(with_flags("allow more with `.memory(\"512m\")`"), "allow more with `--memory 512m`");
/// assert_eq!(
///     with_flags("`.network(NetworkPolicy::allowlist([\"pypi.org\"])?)` opens it"),
///     "`--allow pypi.org` opens it"
/// );
/// ```
pub fn with_flags(text: &str) -> String {
    let mut told = String::with_capacity(text.len());
    for (index, part) in text.split('`').enumerate() {
        if index > 0 {
            told.push('`');
        }
        match flag(part).filter(|_| index % 2 == 1) {
            Some(flag) => told.push_str(&flag),
            None => told.push_str(part),
        }
    }
    told
}

/// Returns the flag of one call.
fn flag(call: &str) -> Option<String> {
    if let Some((_, command)) = COMMANDS.iter().find(|(known, _)| *known == call) {
        return Some((*command).to_owned());
    }
    let (method, arguments) = call.strip_prefix('.')?.strip_suffix(')')?.split_once('(')?;
    let texts = texts(arguments);
    let text = |at: usize| texts.get(at).copied().unwrap_or_default();
    Some(match method {
        "network" if arguments == "NetworkPolicy::all()" => "--network all".to_owned(),
        "network" if arguments == "NetworkPolicy::none()" => "--network none".to_owned(),
        "network" if !texts.is_empty() => format!("--allow {}", texts.join(",")),
        "isolation" => match arguments.strip_prefix("IsolationMode::")? {
            "BestEffort" => "--isolation best-effort".to_owned(),
            mode => format!("--isolation {}", mode.to_lowercase()),
        },
        "mount" if texts.len() == 2 => format!("--mount {}:{}", text(0), text(1)),
        "install_packages" => format!("sandboxes install ID {}", texts.join(" ")),
        "provider_option" => {
            let name = text(0).replace('_', "-");
            match texts.get(1) {
                Some(value) => format!("--{name} {value}"),
                None => format!("--{name}"),
            }
        }
        _ => {
            let (_, flag) = FLAGS.iter().find(|(known, _)| *known == method)?;
            match (texts.first(), arguments) {
                (Some(value), _) => format!("{flag} {value}"),
                (None, "" | "..") => (*flag).to_owned(),
                (None, number) => format!("{flag} {number}"),
            }
        }
    })
}

/// Returns the texts in quotes of a list of arguments.
fn texts(arguments: &str) -> Vec<&str> {
    arguments.split('"').skip(1).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_flags_and_the_rest_stays() {
        for (text, expected) in [
            ("`.network(NetworkPolicy::all())` opens it", "`--network all` opens it"),
            ("`.network(NetworkPolicy::allowlist([\"HOST\"])?)`", "`--allow HOST`"),
            ("no (`.isolation(IsolationMode::BestEffort)`)", "no (`--isolation best-effort`)"),
            ("`.isolation(IsolationMode::Off)`", "`--isolation off`"),
            ("`.mount(Mount::new(\"/a\", \"/b\"))` shows it", "`--mount /a:/b` shows it"),
            ("`.image(..)`, `.processes(64)`", "`--image`, `--processes 64`"),
            ("`.provider_option(\"writable_root\", true)`", "`--writable-root`"),
            ("`.provider_option(\"transport\", \"tcp\")`", "`--transport tcp`"),
            ("`.install_packages([\"a\", \"b\"])`", "`sandboxes install ID a b`"),
            ("`.resume()` resumes it", "`sandboxes resume ID` resumes it"),
            ("`Backend::health()` tells", "`sandboxes doctor` tells"),
            ("a command: `.cwd(\"/\")`", "a command: `.cwd(\"/\")`"),
            ("plain; .memory(..) text", "plain; .memory(..) text"),
            ("an open ` stays", "an open ` stays"),
        ] {
            assert_eq!(with_flags(text), expected);
        }
    }
}
