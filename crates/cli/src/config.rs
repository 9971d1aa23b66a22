//! The configuration of this user: keys, and profiles with values for flags that are not given.
//!
//! It is read from `sandboxes/config.toml` in the directory for configurations, and never from the working directory, which
//! may be that of a stranger's project.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use code_sandboxes::{Configuration, configure};
use serde::{Deserialize, Serialize};

use crate::args::{Cli, Command, LayerArgs, SandboxArgs};
use crate::error::CliError;
use crate::time;

/// Maximum length of the file.
const MAX_SIZE: u64 = 1 << 20;

/// The file as a whole.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct File {
    /// The profile that is used when none is named.
    profile: Option<String>,
    /// Values of every profile that has none of its own.
    defaults: Profile,
    profiles: BTreeMap<String, Profile>,
    /// Variables with keys, for every profile.
    keys: BTreeMap<String, String>,
}

/// Values for flags that are not given.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Profile {
    provider: Option<String>,
    fallback: Option<Vec<String>>,
    timeout: Option<String>,
    workdir: Option<String>,
    isolation: Option<String>,
    network: Option<String>,
    allow: Option<Vec<String>>,
    deny: Option<Vec<String>>,
    memory: Option<String>,
    cpus: Option<f64>,
    disk: Option<String>,
    processes: Option<u32>,
    lifetime: Option<String>,
    idle_timeout: Option<String>,
    image: Option<String>,
    environment: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    env: Option<BTreeMap<String, String>>,
    audit: Option<PathBuf>,
    scan: Option<String>,
    allow_import: Option<Vec<String>>,
    deny_import: Option<Vec<String>>,
    mask_secrets: Option<bool>,
}

/// The settings in effect, and where they come from.
#[derive(Debug, Default)]
pub(crate) struct Effective {
    pub(crate) path: Option<PathBuf>,
    pub(crate) is_there: bool,
    pub(crate) profile: Option<String>,
    pub(crate) profiles: Vec<String>,
    pub(crate) settings: Profile,
    pub(crate) keys: BTreeMap<String, String>,
}

/// Returns the place of the file.
fn path() -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let directory = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).and_then(absolute);
    let directory = directory.or_else(|| Some(env::home_dir().and_then(absolute)?.join(".config")));
    Some(directory?.join("sandboxes/config.toml"))
}

/// Reads the configuration. Without the file it is empty.
///
/// # Errors
/// A file that cannot be read, is wrong, or has keys that other users can read; a profile that is not there.
pub(crate) fn load(wanted: Option<&str>) -> Result<Effective, CliError> {
    let Some(path) = path() else { return Ok(Effective::default()) };
    let (file, is_there) = match read(&path)? {
        Some(file) => (file, true),
        None => (File::default(), false),
    };
    let wanted = wanted.filter(|name| !name.is_empty());
    let profile = wanted.map(str::to_owned).or(file.profile);
    let own = match &profile {
        None => Profile::default(),
        Some(name) => file.profiles.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = file.profiles.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("the configuration has no profile {name:?}; it has {known}");
            CliError::usage(message, format!("add it to {}", path.display()))
        })?,
    };
    let profiles = file.profiles.into_keys().collect();
    let settings = own.or(file.defaults);
    Ok(Effective { path: Some(path), is_there, profile, profiles, settings, keys: file.keys })
}

fn read(path: &Path) -> Result<Option<File>, CliError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, &error.to_string())),
    };
    if metadata.len() > MAX_SIZE {
        return Err(unreadable(path, "it has more than 1 MiB"));
    }
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error.to_string()))?;
    let file: File = toml::from_str(&text).map_err(|error| {
        let line =
            error.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count());
        unreadable(path, &format!("near line {}: {}", line.max(1), error.message()))
    })?;
    if !file.keys.is_empty() && metadata.mode() & 0o077 != 0 {
        return Err(CliError::usage(
            format!("{} has keys, and other users may read it", path.display()),
            format!("run `chmod 600 {}`", path.display()),
        ));
    }
    Ok(Some(file))
}

fn unreadable(path: &Path, why: &str) -> CliError {
    let message = format!("the configuration {} cannot be used: {why}", path.display());
    CliError::usage(message, "mend the file, or move it away")
}

impl Profile {
    /// Takes what is missing from other settings.
    fn or(self, other: Self) -> Self {
        Self {
            provider: self.provider.or(other.provider),
            fallback: self.fallback.or(other.fallback),
            timeout: self.timeout.or(other.timeout),
            workdir: self.workdir.or(other.workdir),
            isolation: self.isolation.or(other.isolation),
            network: self.network.or(other.network),
            allow: self.allow.or(other.allow),
            deny: self.deny.or(other.deny),
            memory: self.memory.or(other.memory),
            cpus: self.cpus.or(other.cpus),
            disk: self.disk.or(other.disk),
            processes: self.processes.or(other.processes),
            lifetime: self.lifetime.or(other.lifetime),
            idle_timeout: self.idle_timeout.or(other.idle_timeout),
            image: self.image.or(other.image),
            environment: self.environment.or(other.environment),
            labels: self.labels.or(other.labels),
            env: self.env.or(other.env),
            audit: self.audit.or(other.audit),
            scan: self.scan.or(other.scan),
            allow_import: self.allow_import.or(other.allow_import),
            deny_import: self.deny_import.or(other.deny_import),
            mask_secrets: self.mask_secrets.or(other.mask_secrets),
        }
    }

    /// Fills in the flags that are not given.
    fn fill(&self, args: &mut SandboxArgs, timeout_given: bool) -> Result<(), CliError> {
        let time_of =
            |name: &str, text: &String| time::parse(text).map_err(|why| wrong(name, &why));
        if args.provider.provider.is_none() && !args.kernel.is_given() {
            args.provider.provider.clone_from(&self.provider);
        }
        fill_list(&mut args.fallback, &self.fallback);
        if !timeout_given
            && args.timeout.is_finite()
            && let Some(text) = &self.timeout
        {
            args.timeout = time_of("timeout", text)?;
        }
        fill(&mut args.workdir, &self.workdir);
        parse("isolation", &mut args.isolation, &self.isolation)?;
        if args.network.is_none() && args.allow.is_empty() {
            parse("network", &mut args.network, &self.network)?;
            fill_list(&mut args.allow, &self.allow);
        }
        fill_list(&mut args.deny, &self.deny);
        parse("memory", &mut args.memory, &self.memory)?;
        fill(&mut args.cpus, &self.cpus);
        parse("disk", &mut args.disk, &self.disk)?;
        fill(&mut args.processes, &self.processes);
        for (name, flag, text) in [
            ("lifetime", &mut args.lifetime, &self.lifetime),
            ("idle-timeout", &mut args.idle_timeout, &self.idle_timeout),
        ] {
            if let (None, Some(text)) = (&flag, text) {
                *flag = Some(time_of(name, text)?);
            }
        }
        fill(&mut args.image, &self.image);
        fill(&mut args.environment, &self.environment);
        // Flags come last, so that they count more.
        let pairs = |map: &Option<BTreeMap<String, String>>| -> Vec<String> {
            map.iter().flatten().map(|(name, value)| format!("{name}={value}")).collect()
        };
        args.label.splice(0..0, pairs(&self.labels));
        args.env.splice(0..0, pairs(&self.env));
        self.fill_layers(&mut args.layers)
    }

    fn fill_layers(&self, args: &mut LayerArgs) -> Result<(), CliError> {
        fill(&mut args.audit, &self.audit);
        if args.scan.is_none() {
            parse("scan", &mut args.scan, &self.scan)?;
            fill_list(&mut args.allow_import, &self.allow_import);
            fill_list(&mut args.deny_import, &self.deny_import);
        }
        args.mask_secrets |= self.mask_secrets.unwrap_or_default();
        Ok(())
    }
}

fn fill<T: Clone>(flag: &mut Option<T>, value: &Option<T>) {
    if flag.is_none() {
        flag.clone_from(value);
    }
}

fn fill_list(flag: &mut Vec<String>, value: &Option<Vec<String>>) {
    if let (true, Some(value)) = (flag.is_empty(), value) {
        flag.clone_from(value);
    }
}

fn parse<T: std::str::FromStr<Err = code_sandboxes::Error>>(
    name: &str,
    flag: &mut Option<T>,
    value: &Option<String>,
) -> Result<(), CliError> {
    if let (None, Some(text)) = (&flag, value) {
        *flag = Some(
            text.parse().map_err(|error: code_sandboxes::Error| wrong(name, error.message()))?,
        );
    }
    Ok(())
}

fn wrong(name: &str, why: &str) -> CliError {
    CliError::usage(
        format!("`{name}` of the configuration: {why}"),
        "`sandboxes config` shows the file",
    )
}

/// Sets the keys of the configuration, and fills in the flags of a command that are not given.
///
/// # Errors
/// Those of [`load`], and a value that is wrong.
pub(crate) fn apply(cli: &mut Cli) -> Result<(), CliError> {
    if matches!(
        cli.command,
        Command::Completion { .. } | Command::Man { .. } | Command::Supervisor(_)
    ) {
        return Ok(());
    }
    let effective = load(cli.global.profile.as_deref())?;
    let mut configuration = Configuration::new();
    for (name, value) in effective.keys {
        // The environment of this call counts more than a file.
        if env::var_os(&name).is_none_or(|value| value.is_empty()) {
            configuration = configuration.variable(name, value);
        }
    }
    configure(configuration)?;
    let (settings, timeout_given) = (&effective.settings, cli.timeout_given);
    match &mut cli.command {
        Command::Run(args) => settings.fill(&mut args.sandbox, timeout_given),
        Command::Create(args) => settings.fill(&mut args.sandbox, true),
        #[cfg(feature = "mcp")]
        Command::Mcp(args) => settings.fill(&mut args.serve.sandbox, timeout_given),
        Command::Exec(args) => settings.fill_layers(&mut args.layers),
        Command::Audit(args) => {
            fill(&mut args.command.log_mut().directory, &settings.audit);
            Ok(())
        }
        _ => Ok(()),
    }
}
