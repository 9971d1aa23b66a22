//! What a run found out, as JSON for people and for the backend matrix.

use std::io;
use std::path::{Path, PathBuf};

use sandbox_core::{Capabilities, IsolationMode, Variant};
use serde::Serialize;

/// One run of the suite.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The name of the target.
    pub name: String,
    /// The variant of its backend.
    pub variant: Variant,
    /// How its sandboxes are isolated.
    pub isolation: IsolationMode,
    /// What it declares.
    pub capabilities: Capabilities,
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failed: usize,
    /// Cases that do not apply.
    pub ignored: usize,
    /// Every case that was run or ignored, by name.
    pub cases: Vec<CaseReport>,
}

/// What came of one case.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// Its full name, `conformance::<group>::<case>`.
    pub name: String,
    /// How it went.
    pub outcome: Outcome,
    /// Why it failed or was ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Seconds it took.
    pub seconds: f64,
}

/// How a case went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It behaved.
    Passed,
    /// It did not.
    Failed,
    /// It does not apply to this target.
    Ignored,
}

impl Report {
    pub(crate) fn count(&mut self) {
        self.cases.sort_by(|a, b| a.name.cmp(&b.name));
        let count = |outcome| self.cases.iter().filter(|case| case.outcome == outcome).count();
        (self.passed, self.failed, self.ignored) =
            (count(Outcome::Passed), count(Outcome::Failed), count(Outcome::Ignored));
    }

    /// Writes `<name>.json` into `SANDBOX_CONFORMANCE_DIR`, or `conformance` in cargo's target directory.
    pub(crate) fn write(&self) -> io::Result<PathBuf> {
        let directory = directory();
        std::fs::create_dir_all(&directory)?;
        let path = directory.join(format!("{}.json", self.name));
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(&path, text)?;
        Ok(path)
    }
}

fn directory() -> PathBuf {
    if let Some(chosen) = std::env::var_os("SANDBOX_CONFORMANCE_DIR") {
        return chosen.into();
    }
    // Cargo puts test executables into <target>/<profile>/deps.
    let executable = std::env::current_exe().unwrap_or_default();
    let target = executable
        .ancestors()
        .find(|path| path.ends_with("deps"))
        .and_then(|deps| deps.parent()?.parent());
    target.unwrap_or(Path::new("target")).join("conformance")
}
