//! What a run found out, as JSON for people and for the backend matrix.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use sandbox_core::{Capabilities, IsolationMode, Variant};
use serde::{Deserialize, Serialize};

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
    /// The capabilities and conditions that it presupposes.
    pub needs: Vec<&'static str>,
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

/// What is known of a capability that a backend declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// A case that presupposes it has passed.
    Verified,
    /// It is declared, and no case shows it.
    Declared,
}

/// The declared capabilities, by name.
type Record = BTreeMap<String, Evidence>;

impl Report {
    /// Returns the declared capabilities, with what this run has shown of each.
    pub fn evidence(&self) -> BTreeMap<String, Evidence> {
        let declared = self.capabilities.entries().into_iter().filter(|(_, declared)| *declared);
        let passed = |name: &str| {
            let is_it =
                |case: &&CaseReport| case.outcome == Outcome::Passed && case.needs.contains(&name);
            match self.cases.iter().find(is_it) {
                Some(_) => Evidence::Verified,
                None => Evidence::Declared,
            }
        };
        declared.map(|(name, _)| (name.to_owned(), passed(name))).collect()
    }

    /// Compares this run with the record of a backend, from which its column in the documents is made. A run of every group
    /// has to show the same; one of some groups can show less. With `INSTA_UPDATE=always`, a run of every group writes it.
    pub(crate) fn check_record(&self, path: &Path, is_whole: bool) -> Result<(), String> {
        let found = self.evidence();
        if is_whole && std::env::var_os("INSTA_UPDATE").is_some_and(|value| value == "always") {
            let mut text =
                serde_json::to_string_pretty(&found).map_err(|error| error.to_string())?;
            text.push('\n');
            return std::fs::write(path, text)
                .map_err(|error| format!("{}: {error}", path.display()));
        }
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let recorded: Record = serde_json::from_str(&text).unwrap_or_default();
        let differs = |name: &&String| match (found.get(*name), recorded.get(*name)) {
            (Some(Evidence::Declared), Some(Evidence::Verified)) => is_whole,
            (found, recorded) => found != recorded,
        };
        let names: Vec<_> = found.keys().chain(recorded.keys()).filter(differs).cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{}: is not what this run shows of {}; with SANDBOX_TEST_FULL=1 and INSTA_UPDATE=always the suite writes it",
            path.display(),
            names.join(", ")
        ))
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    fn report(outcome: Outcome) -> Report {
        let case = |name: &str, needs| CaseReport {
            name: name.to_owned(),
            outcome,
            reason: None,
            seconds: 0.0,
            needs,
        };
        Report {
            name: "toy".into(),
            variant: Variant::LOCAL_EVAL,
            isolation: IsolationMode::Strict,
            capabilities: Capabilities { files: true, gpu: true, ..Capabilities::default() },
            passed: 0,
            failed: 0,
            ignored: 0,
            cases: vec![case("conformance::files::a", vec!["files"])],
        }
    }

    #[test]
    fn a_record_says_what_a_case_has_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("capabilities.json");
        let passed = report(Outcome::Passed);
        let evidence = passed.evidence();
        assert_eq!((evidence["files"], evidence["gpu"]), (Evidence::Verified, Evidence::Declared));
        let error = passed.check_record(&path, true).unwrap_err();
        assert!(error.contains("files, gpu"), "{error}");
        std::fs::write(&path, serde_json::to_string(&evidence).unwrap()).unwrap();
        passed.check_record(&path, true).unwrap();
        // A run of some groups shows less, and never something else.
        let ignored = report(Outcome::Ignored);
        ignored.check_record(&path, false).unwrap();
        ignored.check_record(&path, true).unwrap_err();
        std::fs::write(&path, r#"{"files": "declared", "gpu": "declared"}"#).unwrap();
        passed.check_record(&path, false).unwrap_err();
        std::fs::write(&path, r#"{"files": "verified"}"#).unwrap();
        ignored.check_record(&path, false).unwrap_err();
    }
}
