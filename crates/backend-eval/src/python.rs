//! Which interpreter, and where its parts are.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sandbox_cells::cell::Hello;
use sandbox_cells::interpreters::{Fingerprint, is_script};
use sandbox_cells::visible_paths::shown_for_program;
use sandbox_core::{Error, ErrorKind, Result};
use sandbox_engine::programs::{DEFAULT_PATH, is_executable, on_path};
use sandbox_isolation::is_of_system;
use sandbox_python::cache;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use crate::config::Options;

/// How long a shim may take to say which interpreter it stands for.
const SHIM_TIMEOUT: Duration = Duration::from_secs(30);

/// More than a shim prints that says which interpreter it stands for, or what is wrong.
const ANSWER_BYTES: u64 = 64 * 1024;

/// An interpreter, and where its parts are as far as that is known without starting it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Python {
    pub(crate) executable: PathBuf,
    pub(crate) layout: Option<Layout>,
}

/// Where the parts of an interpreter are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layout {
    pub(crate) version: String,
    pub(crate) prefix: PathBuf,
    pub(crate) base_prefix: PathBuf,
    pub(crate) sys_path: Vec<PathBuf>,
}

impl Python {
    /// What a cell shows of it, as far as that is known.
    pub(crate) fn shown(&self, layout: Option<&Layout>) -> Vec<PathBuf> {
        let mut shown = layout.map(Layout::shown).unwrap_or_default();
        shown.extend(shown_for_program(&self.executable));
        shown
    }

    /// The directories of its programs.
    pub(crate) fn programs(&self) -> Vec<PathBuf> {
        self.executable.parent().map(Path::to_path_buf).into_iter().collect()
    }

    /// The virtual environment that it belongs to.
    pub(crate) fn virtual_environment(&self) -> Option<&Path> {
        let root = self.executable.parent()?.parent()?;
        root.join("pyvenv.cfg").is_file().then_some(root)
    }
}

impl Layout {
    pub(crate) fn from_hello(hello: &Hello) -> Self {
        Self {
            version: hello.version.clone(),
            prefix: PathBuf::from(&hello.prefix),
            base_prefix: PathBuf::from(&hello.base_prefix),
            sys_path: hello.sys_path.iter().map(PathBuf::from).collect(),
        }
    }

    /// The environment itself, and directories of packages elsewhere that it has taken in.
    fn shown(&self) -> Vec<PathBuf> {
        let mut shown = vec![self.base_prefix.clone(), self.prefix.clone()];
        shown.extend(self.sys_path.iter().filter(|path| is_of_an_interpreter(path)).cloned());
        shown
    }

    /// Directories that it looks for modules in and that no cell shows: whole projects, as `pip install -e` names them
    /// in `.pth` files.
    pub(crate) fn unseen(&self) -> Vec<PathBuf> {
        let shown = self.shown();
        let is_seen = |path: &PathBuf| {
            is_of_system(path) || shown.iter().any(|shown| path.starts_with(shown))
        };
        self.sys_path.iter().filter(|path| path.is_dir() && !is_seen(path)).cloned().collect()
    }
}

/// The standard library or installed packages, by what interpreters call them: as in `template.py`. Whatever else is on
/// `sys.path` may be anything.
fn is_of_an_interpreter(path: &Path) -> bool {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let of_packages = ["site-packages", "dist-packages", "lib-dynload"];
    let named = real.file_name().is_some_and(|name| of_packages.iter().any(|own| name == *own));
    named || real.join("os.py").is_file() && real.join("lib-dynload").is_dir()
}

/// Finds the interpreter that `options` and the environment name.
pub(crate) async fn locate(options: &Options) -> Result<Python> {
    let found = candidate(options)?;
    let print = Fingerprint::from_path(&found).map_err(|error| unusable(&found, error))?;
    if let Some(python) = known(&found, &print) {
        return Ok(python);
    }
    let executable = if is_script(&found).map_err(|error| unusable(&found, error))? {
        ask_shim(&found).await?
    } else {
        found.clone()
    };
    Cache::store(&found, Entry { print, executable: executable.clone(), layout: None });
    Ok(Python { executable, layout: None })
}

/// Remembers where the parts of an interpreter are.
pub(crate) fn remember(options: &Options, layout: &Layout) {
    let Ok(found) = candidate(options) else { return };
    let Ok(print) = Fingerprint::from_path(&found) else { return };
    let mut cache = Cache::load();
    if let Some(mut entry) = cache.take(&found, &print)
        && entry.layout.as_ref() != Some(layout)
    {
        entry.layout = Some(layout.clone());
        Cache::store(&found, entry);
    }
}

/// Answers of this process first, then those of earlier ones.
fn known(found: &Path, print: &Fingerprint) -> Option<Python> {
    static OWN: Mutex<Cache> = Mutex::new(Cache { interpreters: BTreeMap::new() });
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let complete = |entry: &&Entry| entry.layout.is_some();
    if own.get(found, print).filter(complete).is_none() {
        let entry = Cache::load().get(found, print)?.clone();
        own.interpreters.insert(found.to_path_buf(), entry);
    }
    let Entry { executable, layout, .. } = own.get(found, print)?.clone();
    Some(Python { executable, layout })
}

fn candidate(options: &Options) -> Result<PathBuf> {
    if let Some(path) = &options.python {
        return named(path, "the option `python`");
    }
    if let Some(path) = env::var_os("CODE_SANDBOXES_PYTHON").filter(|path| !path.is_empty()) {
        return named(Path::new(&path), "CODE_SANDBOXES_PYTHON");
    }
    if let Some(venv) = env::var_os("VIRTUAL_ENV").filter(|path| !path.is_empty()) {
        let path = Path::new(&venv).join("bin/python");
        if is_executable(&path) {
            return Ok(path);
        }
    }
    on_path("python3").or_else(|| on_path("python")).ok_or_else(|| {
        let message = match env::var_os("PATH") {
            Some(_) => "no python3 on PATH".to_owned(),
            None => format!("PATH is not set, and there is no python3 in {DEFAULT_PATH}"),
        };
        Error::new(ErrorKind::Unavailable, "start_python", message).with_hint(
            "install Python 3.9 or later (Debian: apt-get install python3), or name one with CODE_SANDBOXES_PYTHON",
        )
    })
}

fn named(path: &Path, by: &str) -> Result<PathBuf> {
    let found = if path.components().count() > 1 {
        is_executable(path).then(|| path.to_path_buf())
    } else {
        path.to_str().and_then(on_path)
    };
    found.ok_or_else(|| {
        let message = format!("{} (from {by}) is not an executable file", path.display());
        Error::new(ErrorKind::Unavailable, "start_python", message)
    })
}

/// A shim is a script that picks an interpreter, as pyenv's and asdf's do. Running it on every start would cost more
/// than everything else.
async fn ask_shim(shim: &Path) -> Result<PathBuf> {
    let mut command = Command::new(shim);
    command.args(["-c", "import sys; print(sys.executable)"]).stdin(Stdio::null());
    let answer = async {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn()?;
        let printed = (answer_on(child.stdout.take()), answer_on(child.stderr.take()));
        let (stdout, stderr) = tokio::try_join!(printed.0, printed.1)?;
        io::Result::Ok((child.wait().await?, stdout, stderr))
    };
    let answer = timeout(SHIM_TIMEOUT, answer).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let (status, stdout, stderr) = answer.map_err(|error| unusable(shim, error))?;
    let path = PathBuf::from(stdout.trim());
    if status.success() && path.is_absolute() && is_executable(&path) {
        return Ok(path);
    }
    Err(unusable(shim, io::Error::other(stderr.trim().to_owned())))
}

/// What a shim prints, if that may be an answer.
async fn answer_on(stream: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let mut printed = Vec::new();
    if let Some(stream) = stream {
        stream.take(ANSWER_BYTES).read_to_end(&mut printed).await?;
    }
    if printed.len() as u64 == ANSWER_BYTES {
        return Err(io::Error::other("it prints more than the name of an interpreter"));
    }
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

fn unusable(path: &Path, error: io::Error) -> Error {
    let message = format!("{} cannot be used as an interpreter", path.display());
    Error::new(ErrorKind::Unavailable, "start_python", message)
        .with_source(error)
        .with_hint("install Python 3.9 or later, or name one with CODE_SANDBOXES_PYTHON")
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    print: Fingerprint,
    executable: PathBuf,
    layout: Option<Layout>,
}

/// Answers of the past, in the user's cache directory. Losing it costs time and nothing else.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Cache {
    interpreters: BTreeMap<PathBuf, Entry>,
}

impl Cache {
    /// Entries kept; the file is for a few interpreters.
    const MOST: usize = 32;

    const FILE: &str = "interpreters.json";

    fn load() -> Self {
        let read = || serde_json::from_slice(&cache::read(Self::FILE)?).ok();
        read().unwrap_or_default()
    }

    fn get(&self, found: &Path, print: &Fingerprint) -> Option<&Entry> {
        let entry = self.interpreters.get(found)?;
        (entry.print == *print && is_executable(&entry.executable)).then_some(entry)
    }

    fn take(&mut self, found: &Path, print: &Fingerprint) -> Option<Entry> {
        self.interpreters.remove(found).filter(|entry| entry.print == *print)
    }

    fn store(found: &Path, entry: Entry) {
        let mut cache = Self::load();
        if cache.interpreters.len() >= Self::MOST {
            cache.interpreters.clear();
        }
        cache.interpreters.insert(found.to_path_buf(), entry);
        match serde_json::to_vec(&cache) {
            Ok(bytes) => cache::write(Self::FILE, &bytes),
            Err(error) => tracing::debug!(%error, "interpreters are not remembered"),
        }
    }
}
