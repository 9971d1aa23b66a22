//! Requests for a sandbox, and their checks.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::directory::check_directory;
use crate::error::{Error, Result};
use crate::model::{Mount, NetworkMode, NetworkPolicy, Tags, check_mounts};
use crate::secret::Secret;
use crate::units::{ByteSize, check_lifetime, seconds};

/// The isolation of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationMode {
    /// Every layer the backend promises, or no sandbox at all.
    #[default]
    Strict,
    /// The layers this host can have.
    BestEffort,
    /// None: the code runs with the rights of the host process.
    Off,
}

impl IsolationMode {
    /// The name on the command line, such as `best-effort`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::BestEffort => "best-effort",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for IsolationMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for IsolationMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let name = text.trim().to_ascii_lowercase().replace('_', "-");
        [Self::Strict, Self::BestEffort, Self::Off]
            .into_iter()
            .find(|mode| mode.as_str() == name)
            .ok_or_else(|| {
                Error::invalid(
                    "isolation",
                    format!("{text:?} is not one of strict, best-effort, off"),
                )
            })
    }
}

/// The only use of a sandbox that is made for one thing.
///
/// A hint: a backend then prepares no more than that one thing needs. It never changes what code sees, and the sandbox
/// can do everything it could do otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SingleUse {
    /// One run of code.
    Code,
    /// Commands, and no code for the interpreter.
    Commands,
}

/// The request for a new sandbox. `None` means: the backend's default.
///
/// Its serialized form leaves the secrets out, and has the options of the backend as they are.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct CreateSpec {
    /// A name for people. Default: none.
    pub name: Option<String>,
    /// Environment, template or interpreter to start from.
    pub environment: Option<String>,
    /// Container image.
    pub image: Option<String>,
    /// Working directory inside; created when it is missing. A relative one is below the backend's own, such as
    /// `/workspace`, which is the default.
    pub working_dir: Option<String>,
    /// Environment variables of everything that runs inside. The host's are never inherited.
    pub env: BTreeMap<String, String>,
    /// Environment variables that are never shown.
    #[serde(skip)]
    pub secrets: BTreeMap<String, Secret>,
    /// Tags.
    pub tags: Tags,
    /// Memory of the whole sandbox.
    pub memory: Option<ByteSize>,
    /// CPU cores of the whole sandbox.
    pub cpu: Option<f64>,
    /// Disk of the whole sandbox.
    pub disk: Option<ByteSize>,
    /// Processes and threads in the sandbox at one time, its own first process included. At least 4.
    pub processes: Option<u32>,
    /// Files and directories that its disk may have. At least 1,024.
    pub disk_files: Option<u64>,
    /// Descriptors that each of its processes may have open. 128 to 1,048,576.
    pub open_files: Option<u32>,
    /// Bytes that each run and each command may put out: both streams, and what is displayed.
    pub output_limit: Option<ByteSize>,
    /// GPU type.
    pub gpu: Option<String>,
    /// Hosts that the code may reach.
    pub network: NetworkPolicy,
    /// The isolation of the code.
    pub isolation: IsolationMode,
    /// Files and directories of the host that it is given.
    pub mounts: Vec<Mount>,
    /// Maximum lifetime. At least 0.1 s. Default 24 hours.
    pub lifetime: Option<Duration>,
    /// Time without use after which the sandbox ends. At least 0.1 s. Default: no limit.
    pub idle_timeout: Option<Duration>,
    /// Name of a snapshot to start from.
    pub snapshot: Option<String>,
    /// Outlive this process, for that long.
    pub detached: Option<Duration>,
    /// The only use of the sandbox, when it has one use. Default: many runs.
    pub single_use: Option<SingleUse>,
    /// Options of one backend. Keys it does not know are refused.
    pub provider_options: Map<String, Value>,
}

/// Options of a backend may be secret, so only their names are shown.
impl fmt::Debug for CreateSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options: Vec<_> = self.provider_options.keys().collect();
        f.debug_struct("CreateSpec")
            .field("name", &self.name)
            .field("environment", &self.environment)
            .field("image", &self.image)
            .field("working_dir", &self.working_dir)
            .field("env", &self.env)
            .field("secrets", &self.secrets)
            .field("tags", &self.tags)
            .field("memory", &self.memory)
            .field("cpu", &self.cpu)
            .field("disk", &self.disk)
            .field("processes", &self.processes)
            .field("disk_files", &self.disk_files)
            .field("open_files", &self.open_files)
            .field("output_limit", &self.output_limit)
            .field("gpu", &self.gpu)
            .field("network", &self.network)
            .field("isolation", &self.isolation)
            .field("mounts", &self.mounts)
            .field("lifetime", &self.lifetime)
            .field("idle_timeout", &self.idle_timeout)
            .field("snapshot", &self.snapshot)
            .field("detached", &self.detached)
            .field("single_use", &self.single_use)
            .field("provider_options", &options)
            .finish()
    }
}

/// Bytes of all environment variables together. The kernel has limits of its own, not far above.
const MAX_ENV: usize = 128 << 10;

/// Maximum number of tags, and maximum bytes of a key and of a value.
const MAX_TAGS: usize = 256;
const MAX_TAG_KEY: usize = 256;
const MAX_TAG_VALUE: usize = 4096;

/// The sandbox's own first process, a shell, and both ends of a pipe.
const LEAST_PROCESSES: u32 = 4;

/// Minimum disk: the files of the sandbox itself, and room to work.
const LEAST_DISK_FILES: u64 = 1024;

/// Maximum number of open files. Interpreters use high descriptor numbers for themselves, and no kernel gives more.
const OPEN_FILES: RangeInclusive<u32> = 128..=1_048_576;

/// Checks a limit of what is put out.
pub(crate) fn check_output_limit(limit: Option<ByteSize>) -> Result<()> {
    match limit {
        Some(limit) if limit.as_u64() == 0 => {
            Err(Error::invalid("output_limit", "must be at least 1 byte"))
        }
        _ => Ok(()),
    }
}

impl CreateSpec {
    /// Checks everything that can be checked without a backend.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind) with the field and what is allowed.
    pub fn validate(&self) -> Result<()> {
        for (field, value) in [
            ("lifetime", self.lifetime),
            ("idle_timeout", self.idle_timeout),
            ("detached", self.detached),
        ] {
            value.map(|value| check_lifetime(field, value)).transpose()?;
        }
        self.network.validate()?;
        check_mounts(&self.mounts)?;
        check_cpu(self.cpu)?;
        check_size("memory", self.memory, ByteSize::mib(16))?;
        check_size("disk", self.disk, ByteSize::mib(1))?;
        if let Some(most) = self.processes.filter(|most| *most < LEAST_PROCESSES) {
            return Err(Error::invalid(
                "processes",
                format!("must be at least {LEAST_PROCESSES}, got {most}"),
            ));
        }
        if let Some(most) = self.disk_files.filter(|most| *most < LEAST_DISK_FILES) {
            return Err(Error::invalid(
                "disk_files",
                format!("must be at least {LEAST_DISK_FILES}, got {most}"),
            ));
        }
        if let Some(most) = self.open_files.filter(|most| !OPEN_FILES.contains(most)) {
            let (least, highest) = OPEN_FILES.into_inner();
            return Err(Error::invalid(
                "open_files",
                format!("must be from {least} to {highest}, got {most}"),
            ));
        }
        check_output_limit(self.output_limit)?;
        for (field, value) in [
            ("name", &self.name),
            ("environment", &self.environment),
            ("image", &self.image),
            ("gpu", &self.gpu),
            ("snapshot", &self.snapshot),
        ] {
            value.as_deref().map(|value| check_name(field, value)).transpose()?;
        }
        // `/` separates the parts of an id and `:` a sandbox from a path, so neither can be in a name.
        if let Some(name) = self.name.as_deref().filter(|name| name.contains(['/', ':'])) {
            return Err(Error::invalid(
                "name",
                format!("must have no `/` and no `:`, got {name:?}"),
            ));
        }
        self.working_dir.as_deref().map(|path| check_directory("working_dir", path)).transpose()?;
        check_env(self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
        let length = |(name, value): (&String, &str)| name.len() + value.len();
        let env = self.env.iter().map(|(name, value)| (name, value.as_str()));
        let secrets = self.secrets.iter().map(|(name, value)| (name, value.expose()));
        let total: usize = env.chain(secrets).map(length).sum();
        if total > MAX_ENV {
            return Err(Error::invalid(
                "env",
                format!("must be at most {MAX_ENV} bytes in all, got {total}"),
            ));
        }
        check_env(self.secrets.iter().map(|(name, value)| (name.as_str(), value.expose())))?;
        check_tags(&self.tags)
    }
}

/// Checks the tags of a sandbox, which are kept in memory and in every list: how many there are, how long each is, and that
/// none has a NUL.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind), naming the tag.
pub(crate) fn check_tags(tags: &Tags) -> Result<()> {
    if tags.len() > MAX_TAGS {
        let found = tags.len();
        return Err(Error::invalid("tags", format!("must be at most {MAX_TAGS}, got {found}")));
    }
    for (key, value) in tags {
        if key.contains('\0') || value.contains('\0') {
            return Err(Error::invalid("tags", "must not contain NUL"));
        }
        let (key_length, length) = (key.len(), value.len());
        if key_length > MAX_TAG_KEY || length > MAX_TAG_VALUE {
            let shown: String = key.chars().take(40).collect();
            return Err(Error::invalid(
                "tags",
                format!(
                    "must have keys of at most {MAX_TAG_KEY} bytes and values of at most {MAX_TAG_VALUE}, got {key_length} \
                     and {length} for {shown:?}"
                ),
            ));
        }
    }
    Ok(())
}

fn check_cpu(cpu: Option<f64>) -> Result<()> {
    match cpu {
        Some(cores) if !(cores.is_finite() && (0.01..=4096.0).contains(&cores)) => {
            Err(Error::invalid("cpu", format!("must be from 0.01 to 4096 cores, got {cores}")))
        }
        _ => Ok(()),
    }
}

fn check_size(field: &'static str, size: Option<ByteSize>, least: ByteSize) -> Result<()> {
    let most = ByteSize::gib(1 << 20);
    match size {
        Some(size) if size < least || size > most => {
            Err(Error::invalid(field, format!("must be from {least} to {most}, got {size}")))
        }
        _ => Ok(()),
    }
}

fn check_name(field: &'static str, value: &str) -> Result<()> {
    let printable = value.chars().all(|c| !c.is_control() && !c.is_whitespace() && !is_unseen(c));
    if value.is_empty() || value.len() > 256 || value.starts_with('-') || !printable {
        return Err(Error::invalid(
            field,
            format!(
                "must be 1 to 256 visible characters without spaces, not starting with `-`, got {value:?}"
            ),
        ));
    }
    Ok(())
}

/// Returns true for a character that is invisible or changes the order of others, so that two names could look alike.
fn is_unseen(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Checks a path inside a sandbox: not empty, no NUL, at most 4,096 bytes.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind), naming `field`.
pub fn check_path(field: &'static str, path: &str) -> Result<()> {
    if path.is_empty() || path.len() > 4096 || path.contains('\0') {
        return Err(Error::invalid(
            field,
            format!("must be a path of 1 to 4096 bytes without NUL, got {path:?}"),
        ));
    }
    Ok(())
}

/// Checks environment variables: names without `=`, NUL or newline, values without NUL.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind), naming the variable and never its value.
pub fn check_env<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<()> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0', '\n']) {
            return Err(Error::invalid(
                "env",
                format!(
                    "has the name {name:?}; names are not empty and have no `=`, NUL or newline"
                ),
            ));
        }
        if value.contains('\0') {
            return Err(Error::invalid("env", format!("has a NUL in the value of {name}")));
        }
    }
    Ok(())
}

/// The configuration of the Python library this one supersedes, field by field, for files and callers that have one.
///
/// Unknown fields are refused. [`SandboxConfig::into_spec`] checks and converts it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// Seconds a run may take by default.
    pub timeout: f64,
    /// Memory in bytes.
    pub memory_limit: Option<u64>,
    /// CPU cores.
    pub cpu_limit: Option<f64>,
    /// Environment name.
    pub environment: Option<String>,
    /// Working directory inside.
    pub working_dir: Option<String>,
    /// Environment variables.
    pub env_vars: BTreeMap<String, String>,
    /// GPU type.
    pub gpu: Option<String>,
    /// Name.
    pub name: Option<String>,
    /// Network mode.
    pub network_policy: NetworkMode,
    /// Hosts of an allowlist.
    pub allowed_hosts: Vec<String>,
    /// Seconds without use before the sandbox ends.
    pub idle_timeout: Option<f64>,
    /// Seconds the sandbox lives at most.
    pub max_lifetime: f64,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            timeout: 30.0,
            memory_limit: None,
            cpu_limit: None,
            environment: None,
            working_dir: None,
            env_vars: BTreeMap::new(),
            gpu: None,
            name: None,
            network_policy: NetworkMode::Inherit,
            allowed_hosts: Vec::new(),
            idle_timeout: None,
            max_lifetime: 86_400.0,
        }
    }
}

impl SandboxConfig {
    /// The default timeout of a run, and the spec of the sandbox.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind) with the field that is wrong.
    pub fn into_spec(self) -> Result<(Duration, CreateSpec)> {
        let timeout = seconds("timeout", self.timeout)?;
        let allow = self.allowed_hosts.iter().map(|host| host.parse()).collect::<Result<_>>()?;
        let spec = CreateSpec {
            name: self.name,
            environment: self.environment,
            working_dir: self.working_dir,
            env: self.env_vars,
            memory: self.memory_limit.map(ByteSize::bytes),
            cpu: self.cpu_limit,
            gpu: self.gpu,
            network: NetworkPolicy { mode: self.network_policy, allow, deny: Vec::new() },
            lifetime: Some(seconds("max_lifetime", self.max_lifetime)?),
            idle_timeout: self
                .idle_timeout
                .map(|value| seconds("idle_timeout", value))
                .transpose()?,
            ..CreateSpec::default()
        };
        spec.validate()?;
        Ok((timeout, spec))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> CreateSpec {
        CreateSpec::default()
    }

    #[test]
    fn options_are_shown_by_name_alone() {
        let options = Map::from_iter([("token".to_owned(), "hunter2".into())]);
        let shown = format!("{:?}", CreateSpec { provider_options: options, ..spec() });
        assert!(shown.contains("token") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn bad_values_name_their_field() {
        let many = (0..=MAX_TAGS).map(|n| (n.to_string(), String::new())).collect();
        let cases: [(&str, CreateSpec); 26] = [
            ("tags", CreateSpec { tags: many, ..spec() }),
            ("tags", CreateSpec { tags: [("a".into(), "x".repeat(1 << 20))].into(), ..spec() }),
            ("tags", CreateSpec { tags: [("x".repeat(300), "b".into())].into(), ..spec() }),
            ("name", CreateSpec { name: Some("a\u{202e}b".into()), ..spec() }),
            ("name", CreateSpec { name: Some("a\u{200b}b".into()), ..spec() }),
            ("name", CreateSpec { name: Some("a/b".into()), ..spec() }),
            ("name", CreateSpec { name: Some("a:b".into()), ..spec() }),
            ("env", CreateSpec { env: [("A".into(), "x".repeat(200_000))].into(), ..spec() }),
            ("lifetime", CreateSpec { lifetime: Some(Duration::ZERO), ..spec() }),
            ("lifetime", CreateSpec { lifetime: Some(Duration::from_nanos(1)), ..spec() }),
            ("processes", CreateSpec { processes: Some(3), ..spec() }),
            ("disk_files", CreateSpec { disk_files: Some(0), ..spec() }),
            ("open_files", CreateSpec { open_files: Some(3), ..spec() }),
            ("open_files", CreateSpec { open_files: Some(u32::MAX), ..spec() }),
            ("output_limit", CreateSpec { output_limit: Some(ByteSize::bytes(0)), ..spec() }),
            ("idle_timeout", CreateSpec { idle_timeout: Some(Duration::MAX), ..spec() }),
            ("cpu", CreateSpec { cpu: Some(f64::NAN), ..spec() }),
            ("cpu", CreateSpec { cpu: Some(-1.0), ..spec() }),
            ("cpu", CreateSpec { cpu: Some(f64::INFINITY), ..spec() }),
            ("memory", CreateSpec { memory: Some(ByteSize::bytes(1)), ..spec() }),
            ("disk", CreateSpec { disk: Some(ByteSize::bytes(u64::MAX)), ..spec() }),
            ("environment", CreateSpec { environment: Some("a b".into()), ..spec() }),
            ("image", CreateSpec { image: Some("--privileged".into()), ..spec() }),
            ("working_dir", CreateSpec { working_dir: Some("/a\0b".into()), ..spec() }),
            ("working_dir", CreateSpec { working_dir: Some("..".into()), ..spec() }),
            ("env", CreateSpec { env: [("A=B".into(), "x".into())].into(), ..spec() }),
        ];
        for (field, spec) in cases {
            let error = spec.validate().unwrap_err();
            assert!(error.to_string().contains(&format!("`{field}`")), "{field}: {error}");
        }
        spec().validate().unwrap();
    }

    #[test]
    fn the_reference_configuration_converts() {
        let json = r#"{"timeout": 120, "memory_limit": 4294967296, "cpu_limit": 2.0, "network_policy": "none"}"#;
        let config: SandboxConfig = serde_json::from_str(json).unwrap();
        let (timeout, spec) = config.into_spec().unwrap();
        assert_eq!(timeout, Duration::from_secs(120));
        assert_eq!(spec.memory, Some(ByteSize::gib(4)));
        assert_eq!(spec.network.mode, NetworkMode::None);
        assert_eq!(spec.lifetime, Some(Duration::from_secs(86_400)));
        serde_json::from_str::<SandboxConfig>(r#"{"timeuot": 1}"#).unwrap_err();
        SandboxConfig { timeout: 0.0, ..Default::default() }.into_spec().unwrap_err();
    }
}
