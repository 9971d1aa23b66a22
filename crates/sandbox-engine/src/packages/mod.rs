//! Python packages for a sandbox: the host fetches wheels, the sandbox installs them.
//!
//! A sandbox may have no network, and nothing of a package may run on the host. So the interpreter's own pip resolves
//! and downloads on the host, only wheels: nothing of a wheel is executed, and a pip that would start a program is
//! stopped. The wheels go into the sandbox as files, and pip in there unpacks them into `.packages` below the home
//! directory. A remote sandbox with a network of its own does all of it inside.

mod fetch;

pub use self::fetch::is_option;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host::FileSystem;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{
    ByteRange, ByteStream, CommandEvent, Error, ErrorKind, Failure, FailureKind, Result,
    StartCommand, WriteOptions,
};
use serde_json::Value;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;
use tokio::sync::Mutex;

use self::fetch::{Pinned, Pip};
use crate::base::SandboxBase;
use crate::environment::user_site;

const OPERATION: &str = "install_packages";

/// Directory of packages, below the home directory of the sandbox. The worker looks there (`worker/installed.py`).
const SITE: &str = ".packages";

/// Directory of wheels that are being installed, below the home directory.
const INCOMING: &str = ".incoming";

const PROGRAM: &str = include_str!("install.py");

/// Bytes of a wheel that are read at once.
const CHUNK_SIZE: usize = 1 << 20;

/// Maximum number of bytes of pip's output in an error.
const MAX_TOOL_OUTPUT: usize = 4 << 10;

/// Maximum size of pip's report of what it would install.
const MAX_REPORT_SIZE: usize = 64 << 20;

/// The packages that were installed into one sandbox.
#[derive(Debug)]
pub struct Packages {
    pip: Pip,
    executable: PathBuf,
    /// Set when the sandbox fetches for itself.
    inside: bool,
    /// The directory of packages, if it is not below the home directory.
    site: Option<String>,
    /// The version of an interpreter of a virtual environment, which has no user packages unless it is configured to.
    virtual_version: Option<String>,
    /// All requirements so far; the next ones have to fit them. Locked while packages are installed.
    pub(crate) wanted: Mutex<Vec<String>>,
    pub(crate) any: AtomicBool,
}

impl Packages {
    /// Starts without packages. They are for that interpreter; `options` of pip say where they come from.
    pub fn new(executable: PathBuf, options: Vec<String>) -> Self {
        Self::with(Pip::new(executable.clone(), options), executable)
    }

    /// Starts without packages, fetched by an interpreter of this host for one of the same version in the sandbox.
    pub fn between(here: PathBuf, there: PathBuf, options: Vec<String>) -> Self {
        Self::with(Pip::elsewhere(here, options), there)
    }

    fn with(pip: Pip, there: PathBuf) -> Self {
        let (wanted, any) = (Mutex::default(), AtomicBool::new(false));
        let (inside, site, virtual_version) = (false, None, None);
        Self { pip, executable: there, inside, site, virtual_version, wanted, any }
    }

    /// Starts without packages, fetched in the sandbox by that interpreter into that directory.
    pub fn inside(there: PathBuf, site: String, options: Vec<String>) -> Self {
        let packages = Self::new(there, options);
        Self { inside: true, site: Some(site), ..packages }
    }

    /// Sets the version of the interpreter of a virtual environment.
    #[must_use]
    pub fn of_virtual_environment(self, version: Option<String>) -> Self {
        Self { virtual_version: version, ..self }
    }
}

/// Checks options of pip that a caller gives: only options about where packages come from.
///
/// # Errors
/// `InvalidArgument` with `provider_options`.
pub fn pip_options(given: &[Value]) -> Result<Vec<String>> {
    let option = |option: &Value| {
        let text = option.as_str().filter(|text| is_option(text) && !text.contains('\0'));
        text.map(str::to_owned).ok_or_else(|| {
            let message = format!(
                "pip has {option}, which does not say where packages come from, as `--index-url=..` does"
            );
            Error::invalid("provider_options", message)
        })
    };
    given.iter().map(option).collect()
}

/// Returns the installed distributions from their `name-version.dist-info`, with the names as in file names.
fn installed(names: impl Iterator<Item = String>) -> BTreeSet<(String, String)> {
    let parts = |name: String| {
        let (name, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
        Some((fetch::canonical(name), version.to_owned()))
    };
    names.filter_map(parts).collect()
}

impl SandboxBase {
    fn packages(&self) -> Result<&Packages> {
        self.packages.as_ref().ok_or_else(|| self.unsupported(OPERATION))
    }

    pub(crate) fn site(&self) -> String {
        let given = self.packages.as_ref().and_then(|packages| packages.site.clone());
        given.unwrap_or_else(|| {
            format!("{}/{SITE}", self.env.get("HOME").map_or("/home/sandbox", String::as_str))
        })
    }

    /// Returns the environment of commands, which find the installed packages.
    pub fn command_env(&self) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        let mut put_first = |name: &str, path: &str| {
            let entry = env.entry(name.to_owned()).or_default();
            *entry = if entry.is_empty() { path.to_owned() } else { format!("{path}:{entry}") };
        };
        let packages = self.packages.as_ref();
        let version = packages.and_then(|packages| packages.virtual_version.as_deref());
        if let Some(user) =
            version.zip(self.env.get("HOME")).and_then(|(v, home)| user_site(home, v))
        {
            put_first("PYTHONPATH", &user);
        }
        if packages.is_some_and(|packages| packages.any.load(Ordering::Acquire)) {
            let site = self.site();
            put_first("PATH", &format!("{site}/bin"));
            put_first("PYTHONPATH", &site);
        }
        env
    }

    /// Installs what is missing of those packages and their dependencies; with `upgrade`, also what is older than the
    /// newest version that fits.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is no package, or that conflicts with what is there, `NotFound`, and
    /// failures of pip.
    pub async fn install_python(&self, names: Vec<String>, upgrade: bool) -> Result<()> {
        let names = fetch::requirements(names)?;
        if names.is_empty() {
            return Ok(());
        }
        let packages = self.packages()?;
        let mut wanted = packages.wanted.lock().await;
        if !upgrade && self.has_all(packages, &names).await? {
            return Ok(());
        }
        // The last requirement of a package replaces earlier ones.
        let is_new = |name: &String| names.iter().any(|new| fetch::is_same(new, name));
        let mut all: Vec<_> = wanted.iter().filter(|name| !is_new(name)).cloned().collect();
        all.extend(names.iter().cloned());
        let incoming = format!("{}/{INCOMING}", self.site());
        if packages.inside {
            let done = self.install_inside(packages, &incoming, &all, upgrade).await;
            let removed = self.remove(&incoming).await;
            done.and(removed)?;
        } else {
            let pinned = packages.pip.resolve(&all, upgrade).await?;
            let missing = self.missing(pinned).await?;
            if !missing.is_empty() {
                let wheels = packages.pip.download(&missing).await?;
                let done = self.install_wheels(&incoming, wheels.paths()).await;
                let removed = self.remove(&incoming).await;
                done.and(removed)?;
            }
        }
        *wanted = all;
        Ok(())
    }

    /// Returns true when the interpreter of the sandbox has all packages, where it is not the interpreter of this host.
    async fn has_all(&self, packages: &Packages, wanted: &[String]) -> Result<bool> {
        if !packages.pip.is_elsewhere() {
            return Ok(false);
        }
        let python = packages.executable.to_string_lossy();
        let look = [&*python, "-m", "pip", "install", "--dry-run", "--no-index", "--quiet", "--"];
        let program = look.into_iter().map(str::to_owned).chain(wanted.iter().cloned()).collect();
        let not_all = |_: &str| Error::new(ErrorKind::NotFound, OPERATION, "something is missing");
        match self.run(program, not_all).await {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            looked => looked.map(|()| true),
        }
    }

    async fn missing(&self, pinned: Vec<Pinned>) -> Result<Vec<Pinned>> {
        let site = self.site();
        let list = |files: Arc<dyn FileSystem>| async move {
            match files.list(&site).await {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
                listed => listed,
            }
        };
        let entries = self.with_files(OPERATION, list).await?;
        let there = installed(entries.into_iter().map(|entry| entry.name));
        let is_missing =
            |pin: &Pinned| !there.contains(&(fetch::canonical(&pin.name), pin.version.clone()));
        Ok(pinned.into_iter().filter(is_missing).collect())
    }

    async fn remove(&self, path: &str) -> Result<()> {
        let remove = |files: Arc<dyn FileSystem>| async move {
            match files.remove(path, true).await {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                removed => removed,
            }
        };
        self.with_files(OPERATION, remove).await
    }

    async fn install_wheels(&self, incoming: &str, wheels: Vec<PathBuf>) -> Result<()> {
        // An earlier call that was cancelled may have left wheels.
        self.remove(incoming).await?;
        for wheel in wheels {
            let name = wheel.file_name().unwrap_or_default().to_string_lossy();
            let target = format!("{incoming}/{name}");
            let file = File::open(&wheel).await.map_err(fetch::host_problem)?;
            let write = |files: Arc<dyn FileSystem>| async move {
                files.write(&target, content(file), WriteOptions::default()).await
            };
            self.with_files(OPERATION, write).await?;
        }
        self.unpack_wheels(self.packages()?, incoming).await
    }

    /// Installs in a sandbox that fetches for itself.
    async fn install_inside(
        &self,
        packages: &Packages,
        incoming: &str,
        wanted: &[String],
        upgrade: bool,
    ) -> Result<()> {
        self.remove(incoming).await?;
        let make =
            |files: Arc<dyn FileSystem>| async move { files.make_directory(incoming, true).await };
        self.with_files(OPERATION, make).await?;
        let report = format!("{incoming}/report.json");
        self.run(packages.pip.resolving(&report, wanted, upgrade), fetch::refused).await?;
        let read = |files: Arc<dyn FileSystem>| async move {
            let mut content = files.read(&report, ByteRange::default()).await?;
            let mut all = Vec::new();
            while let Some(piece) = content.next().await {
                all.extend_from_slice(&piece?);
                if all.len() > MAX_REPORT_SIZE {
                    let message = "the report of pip is too long";
                    return Err(Error::new(ErrorKind::ResourceExhausted, OPERATION, message));
                }
            }
            files.remove(&report, false).await?;
            Ok(all)
        };
        let report = self.with_files(OPERATION, read).await?;
        let missing = self.missing(fetch::pinned(&report)?).await?;
        if missing.is_empty() {
            return Ok(());
        }
        self.run(packages.pip.downloading(incoming, &missing), fetch::refused).await?;
        self.unpack_wheels(packages, incoming).await
    }

    async fn unpack_wheels(&self, packages: &Packages, incoming: &str) -> Result<()> {
        let python = packages.executable.to_string_lossy().into_owned();
        let program = [&python, "-I", "-c", PROGRAM, incoming, &self.site()].map(str::to_owned);
        self.run(program.to_vec(), not_unpacked).await?;
        packages.any.store(true, Ordering::Release);
        Ok(())
    }

    /// Runs a program in the sandbox. `failed` makes the error of a failure from the output.
    async fn run(&self, program: Vec<String>, failed: fn(&str) -> Error) -> Result<()> {
        let in_use = Box::new(self.expiry.in_use());
        let mut env = self.env.clone();
        env.retain(|name, _| !fetch::UNSET.contains(&&**name));
        let mut request = StartCommand::new(program);
        request.timeout = Some(fetch::STEP_TIMEOUT);
        let started = self.commands.start(env, "/", request, in_use).await;
        let mut command =
            started.map_err(|error| self.ensure_running(OPERATION).err().unwrap_or(error))?;
        let mut said = Vec::new();
        while let Some(event) = command.events.next().await {
            match event {
                CommandEvent::Output { data, .. } => {
                    said.extend_from_slice(&data);
                    let excess = said.len().saturating_sub(MAX_TOOL_OUTPUT);
                    said.drain(..excess);
                }
                CommandEvent::Finished(end) if end.exit_code == 0 => return Ok(()),
                CommandEvent::Finished(end) => match end.failure {
                    Some(Failure { kind: FailureKind::ConnectionLost, message, .. }) => {
                        return Err(Error::new(ErrorKind::ConnectionLost, OPERATION, message));
                    }
                    Some(Failure { kind: FailureKind::Timeout, .. }) => {
                        return Err(fetch::not_in_time());
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        self.ensure_running(OPERATION)?;
        Err(failed(&String::from_utf8_lossy(&said)))
    }
}

/// Makes the error of wheels that could not be unpacked.
fn not_unpacked(said: &str) -> Error {
    let full = said.contains("No space left on device");
    let kind = if full { ErrorKind::ResourceExhausted } else { ErrorKind::Unexpected };
    let message = format!("pip in the sandbox failed: {}", fetch::exit_message(said));
    let error = Error::new(kind, OPERATION, message);
    if full { error.with_hint("give the sandbox more disk") } else { error }
}

/// Reads a file of the host in chunks.
fn content(file: File) -> ByteStream {
    Box::pin(stream::unfold(Some(file), |file| async move {
        let mut file = file?;
        let mut piece = Vec::with_capacity(CHUNK_SIZE);
        match (&mut file).take(CHUNK_SIZE as u64).read_to_end(&mut piece).await {
            Ok(0) => None,
            Ok(_) => Some((Ok(piece.into()), Some(file))),
            Err(error) => Some((Err(fetch::host_problem(error)), None)),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_known_by_their_metadata() {
        let names =
            ["Foo_Bar-1.0.dist-info", "foo_bar", "bin", "x-2!1.0+l.dist-info", ".dist-info"];
        let found = installed(names.into_iter().map(str::to_owned));
        let expected = [("foo-bar", "1.0"), ("x", "2!1.0+l")];
        assert!(found.iter().map(|(n, v)| (n.as_str(), v.as_str())).eq(expected));
    }
}
