//! A scan of code and commands before they run.
//!
//! Rules look at the syntax tree of Python and of the shell. A scan informs, and isolation protects: code can always be
//! written so that no rule recognizes what it does.

mod bash;
mod calls;
mod commands;
mod findings;
mod layer;
mod python;
mod secrets;
mod text;
mod tree;
mod watch;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use sandbox_core::{Error, Finding, Result};

use self::findings::Findings;

pub use self::layer::ScanLayer;

/// What happens to code with findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScanMode {
    /// Nothing is scanned.
    Off,
    /// The code runs, and its result has the findings.
    #[default]
    Warn,
    /// The code does not run. The error has the findings.
    Refuse,
}

impl FromStr for ScanMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim() {
            "off" => Ok(Self::Off),
            "warn" => Ok(Self::Warn),
            "refuse" => Ok(Self::Refuse),
            other => {
                Err(Error::invalid("scan", format!("{other:?} is not one of off, warn, refuse")))
            }
        }
    }
}

/// A group of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ScanRule {
    /// A module that is not on the list of allowed imports, or is on the list of denied ones.
    Import,
    /// Starts programs or processes, or signals others.
    Process,
    /// Opens connections.
    Network,
    /// Names a file outside of the working directory.
    OutsideFile,
    /// Runs text as code, hides what it runs, or reaches internals of the interpreter.
    DynamicCode,
    /// Has a key, a password or a token in it.
    Secret,
    /// Code that could not be looked at: too long, too deep, broken, or in another language.
    Unread,
}

impl ScanRule {
    /// Every group.
    pub const ALL: [Self; 7] = [
        Self::Import,
        Self::Process,
        Self::Network,
        Self::OutsideFile,
        Self::DynamicCode,
        Self::Secret,
        Self::Unread,
    ];

    /// Returns the name in findings, such as `dynamic_code`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Import => "import",
            Self::Process => "process",
            Self::Network => "network",
            Self::OutsideFile => "outside_file",
            Self::DynamicCode => "dynamic_code",
            Self::Secret => "secret",
            Self::Unread => "unread",
        }
    }
}

impl fmt::Display for ScanRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The language of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScanLanguage {
    /// Python, as cells and scripts have it: lines that begin with `!` or `%` are allowed.
    Python,
    /// A shell: sh or bash.
    Shell,
}

impl ScanLanguage {
    /// Finds a language by its name. `None`: this scan does not know it.
    pub fn find(name: &str) -> Option<Self> {
        match name.trim().to_ascii_lowercase().as_str() {
            "python" | "python3" | "py" | "ipython" => Some(Self::Python),
            "bash" | "sh" | "shell" => Some(Self::Shell),
            _ => None,
        }
    }
}

/// Rules of a scan, and what findings lead to.
///
/// ```
/// use sandbox_layers::{ScanLanguage, ScanPolicy, scan};
///
/// let policy = ScanPolicy::refuse().allow_imports(["json", "math"]);
/// let findings = scan("import math\nimport socket", ScanLanguage::Python, &policy);
/// assert_eq!((findings[0].line, findings[0].rule.as_str()), (2, "import"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanPolicy {
    mode: ScanMode,
    rules: BTreeSet<ScanRule>,
    allowed_imports: Option<BTreeSet<String>>,
    denied_imports: BTreeSet<String>,
    directories: Vec<String>,
    watches_imports: bool,
}

impl Default for ScanPolicy {
    /// Warns, with all rules. Every import is allowed. Files of `/workspace` and `/tmp` are inside.
    fn default() -> Self {
        Self {
            mode: ScanMode::Warn,
            rules: ScanRule::ALL.into(),
            allowed_imports: None,
            denied_imports: BTreeSet::new(),
            directories: vec!["/workspace".to_owned(), "/tmp".to_owned()],
            watches_imports: false,
        }
    }
}

impl ScanPolicy {
    /// Makes a policy for a mode, with all rules.
    pub fn new(mode: ScanMode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// Makes a policy that tells findings in the result.
    pub fn warn() -> Self {
        Self::new(ScanMode::Warn)
    }

    /// Makes a policy that refuses code with findings.
    pub fn refuse() -> Self {
        Self::new(ScanMode::Refuse)
    }

    /// Returns the mode.
    pub fn mode(&self) -> ScanMode {
        self.mode
    }

    /// Allows only these Python modules, and what is below them, such as `json` or `os.path`. May be repeated.
    #[must_use]
    pub fn allow_imports<T: Into<String>>(mut self, modules: impl IntoIterator<Item = T>) -> Self {
        let allowed = self.allowed_imports.get_or_insert_default();
        allowed.extend(modules.into_iter().map(Into::into));
        self
    }

    /// Denies these Python modules, and what is below them, also when they are allowed. May be repeated.
    #[must_use]
    pub fn deny_imports<T: Into<String>>(mut self, modules: impl IntoIterator<Item = T>) -> Self {
        self.denied_imports.extend(modules.into_iter().map(Into::into));
        self
    }

    /// Looks at the import statements of the code inside, too, when the interpreter executes them: those in strings that
    /// are executed, and of names that are computed. They are findings of the result, in every mode, because the code has
    /// run by then. Code that wants to hide an import can; this informs and is no wall.
    ///
    /// The first run in each context is preceded by one of a few lines that prepares the interpreter.
    #[must_use]
    pub fn watch_imports(mut self) -> Self {
        self.watches_imports = true;
        self
    }

    /// Counts the files of a directory as inside. May be repeated. Default: `/workspace` and `/tmp`.
    #[must_use]
    pub fn directory(mut self, path: impl Into<String>) -> Self {
        self.directories.push(path.into());
        self
    }

    /// Switches a group of rules off.
    #[must_use]
    pub fn without(mut self, rule: ScanRule) -> Self {
        self.rules.remove(&rule);
        self
    }

    /// Returns why a module must not be imported, if so.
    fn refused_import(&self, module: &str) -> Option<String> {
        let is_below = |known: &String| {
            module == known
                || module.strip_prefix(known.as_str()).is_some_and(|rest| rest.starts_with('.'))
        };
        if self.denied_imports.iter().any(is_below) {
            return Some(format!("the module `{module}` is denied"));
        }
        let allowed = self.allowed_imports.as_ref()?;
        let is_allowed = allowed.iter().any(is_below);
        (!is_allowed)
            .then(|| format!("the module `{module}` is not on the list of allowed imports"))
    }
}

/// Scans a text. The findings are in the order of their lines, and none has a secret of the text in its reason.
///
/// A text that takes longer than 0.4 seconds to parse is given up, which is a finding of [`ScanRule::Unread`].
pub fn scan(text: &str, language: ScanLanguage, policy: &ScanPolicy) -> Vec<Finding> {
    let mut findings = Findings::new(policy);
    scan_into(text, language, &mut findings);
    secrets::look(text, &mut findings);
    findings.finish()
}

fn scan_into(text: &str, language: ScanLanguage, findings: &mut Findings<'_>) {
    match language {
        ScanLanguage::Python => python::look(text, findings),
        ScanLanguage::Shell => bash::look(text, findings),
    }
}

#[cfg(test)]
mod tests;
