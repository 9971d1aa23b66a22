//! Artifacts: files with displayed objects. A file is named by the number of its output; of the code's data only plain letters
//! of the MIME type are in the name.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jupyter_protocol::media::is_json;
use serde_json::Value;

use super::export::write_whole;
use crate::error::CliError;
use crate::notebook::Output;

/// Maximum number of files of a run.
const MAX_FILES: usize = 10_000;
/// Size of a block: a file takes whole blocks.
const FILE_BLOCK: u64 = 4096;

const TEXT: &str = "text/plain";
/// Maximum number of letters of a MIME type in a file name.
const MAX_TYPE_LENGTH: usize = 60;

/// File extensions of well-known types.
const EXTENSIONS: [(&str, &str); 20] = [
    (TEXT, "txt"),
    ("text/html", "html"),
    ("text/markdown", "md"),
    ("text/latex", "tex"),
    ("text/csv", "csv"),
    ("application/json", "json"),
    ("application/geo+json", "geojson"),
    ("application/vnd.code-sandboxes.chart+json", "chart.json"),
    ("application/vnd.code-sandboxes.data+json", "data.json"),
    ("application/javascript", "js"),
    ("application/pdf", "pdf"),
    ("image/png", "png"),
    ("image/jpeg", "jpeg"),
    ("image/gif", "gif"),
    ("image/webp", "webp"),
    ("image/svg+xml", "svg"),
    ("audio/mpeg", "mp3"),
    ("audio/wav", "wav"),
    ("video/mp4", "mp4"),
    ("video/webm", "webm"),
];

/// Refuses a path that is not a directory, and a directory with files of an earlier run.
pub(super) fn check(directory: &Path, overwrite: bool) -> Result<(), CliError> {
    let shown = directory.display();
    if !directory.is_dir() && directory.symlink_metadata().is_ok() {
        return Err(CliError::usage(format!("{shown} is not a directory"), "name another one"));
    }
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    match names.find(|name| is_ours(name)) {
        Some(name) if !overwrite => Err(CliError::usage(
            format!("{shown} has the results of an earlier run, such as {name}"),
            "name another directory, or add --overwrite",
        )),
        _ => Ok(()),
    }
}

/// Returns true for names that [`write()`] uses.
fn is_ours(name: &str) -> bool {
    let rest = name.strip_prefix("cell-").map_or(name, |name| {
        name.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('-')
    });
    rest.strip_prefix("output-").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Remaining bytes and files of a run: as many bytes as the sandbox may have on its disk, and at most [`MAX_FILES`].
#[derive(Debug)]
pub(super) struct SpaceBudget {
    bytes: u64,
    files: usize,
    /// Number of files that did not fit.
    skipped: usize,
}

impl SpaceBudget {
    /// Makes the budget of a sandbox with that disk.
    pub(super) fn new(disk: Option<u64>) -> Self {
        Self { bytes: disk.unwrap_or(u64::MAX), files: MAX_FILES, skipped: 0 }
    }

    /// Takes space for a file. Returns false when it does not fit.
    fn take(&mut self, size: u64) -> bool {
        let blocks = size.div_ceil(FILE_BLOCK).max(1).saturating_mul(FILE_BLOCK);
        let (Some(files), Some(bytes)) =
            (self.files.checked_sub(1), self.bytes.checked_sub(blocks))
        else {
            self.skipped += 1;
            return false;
        };
        (self.files, self.bytes) = (files, bytes);
        true
    }

    /// Returns the message about files that did not fit.
    pub(super) fn problem(&self, directory: &Path) -> Option<String> {
        let count = self.skipped;
        (count > 0).then(|| {
            format!(
                "{count} files were not saved to {}: more than {MAX_FILES} files, or more bytes than the disk of the sandbox has",
                directory.display()
            )
        })
    }
}

/// Writes each representation of each object, while there is space. Returns the paths, and messages about failed writes.
pub(super) fn write(
    directory: &Path,
    name: &str,
    outputs: &[Output],
    overwrite: bool,
    budget: &mut SpaceBudget,
) -> Vec<Result<PathBuf, String>> {
    let mut written = Vec::new();
    let mut names = HashSet::new();
    for (index, data) in outputs.iter().filter_map(Output::data).enumerate() {
        // Text beside another representation is only a placeholder.
        let shown = data.iter().filter(|(mime, _)| *mime != TEXT || data.len() == 1);
        for (mime, value) in shown {
            let extension = extension(mime);
            let stem = format!("{name}output-{}", index + 1);
            let mut file = format!("{stem}.{extension}");
            let mut copy = 2;
            while !names.insert(file.clone()) {
                file = format!("{stem}-{copy}.{extension}");
                copy += 1;
            }
            let path = directory.join(file);
            let result = match content(mime, value) {
                // One message covers all files that do not fit.
                Ok(content) if !budget.take(content.len() as u64) => continue,
                Ok(content) => fs::create_dir_all(directory)
                    .and_then(|()| write_whole(&path, &content, overwrite))
                    .map_err(|error| error.to_string()),
                Err(reason) => Err(reason),
            };
            let failed = |reason| format!("{} not saved: {reason}", path.display());
            written.push(result.map(|()| path.clone()).map_err(failed));
        }
    }
    written
}

fn extension(mime: &str) -> String {
    let known = EXTENSIONS.iter().find(|(known, _)| mime.eq_ignore_ascii_case(known));
    if let Some((_, extension)) = known {
        return (*extension).to_owned();
    }
    let kind = mime.split([';', ' ']).next().unwrap_or_default();
    let kind = kind.split_once('/').map_or(kind, |(_, kind)| kind);
    let kind = kind.strip_suffix("+json").unwrap_or(kind);
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = kind.chars().take(MAX_TYPE_LENGTH).map(letter).collect();
    let name = name.trim_matches('-');
    let last = match mime {
        mime if is_json(mime) => "json",
        mime if is_encoded(mime) => "bin",
        _ => "txt",
    };
    if name.is_empty() { last.to_owned() } else { format!("{name}.{last}") }
}

/// Returns true for binary types, which are base64.
fn is_encoded(mime: &str) -> bool {
    let mime = mime.to_ascii_lowercase();
    let is = |kind: &str| mime.starts_with(kind);
    (is("image/") || is("audio/") || is("video/") || is("font/")) && !mime.ends_with("+xml")
        || matches!(
            mime.as_str(),
            "application/pdf" | "application/octet-stream" | "application/zip"
        )
}

fn content(mime: &str, value: &Value) -> Result<Vec<u8>, String> {
    match value {
        Value::String(text) if is_encoded(mime) => {
            let packed: String = text.split_ascii_whitespace().collect();
            STANDARD.decode(packed).map_err(|_| format!("its {mime} is not base64"))
        }
        Value::String(text) if !is_json(mime) => Ok(text.clone().into_bytes()),
        value => Ok(format!("{value:#}\n").into_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn displayed(data: &Value) -> Output {
        let data = serde_json::from_value(data.clone()).unwrap();
        Output::Display { data, metadata: Default::default() }
    }

    fn names(directory: &Path) -> Vec<String> {
        let files = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn every_representation_is_a_file_with_its_extension() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("new/place");
        let outputs = [
            displayed(&json!({"text/plain": "<Figure>", "image/png": "aGVs\nbG8=\n"})),
            displayed(&json!({"text/plain": "é"})),
            Output::Error { name: "E".into(), value: "v".into(), traceback: Vec::new() },
            displayed(&json!({"text/html": "<b>", "image/svg+xml": "<svg/>", "text/latex": "$x$",
                "text/markdown": "# a", "application/json": {"a": 1}, "image/jpeg": "AAAA",
                "application/pdf": "AAAA", "application/vnd.plotly.v1+json": {"data": []}})),
        ];
        let written = write(&directory, "cell-2-", &outputs, false, &mut SpaceBudget::new(None));
        assert!(written.iter().all(Result::is_ok), "{written:?}");
        insta::assert_snapshot!(names(&directory).join("\n"), @"
        cell-2-output-1.png
        cell-2-output-2.txt
        cell-2-output-3.html
        cell-2-output-3.jpeg
        cell-2-output-3.json
        cell-2-output-3.md
        cell-2-output-3.pdf
        cell-2-output-3.svg
        cell-2-output-3.tex
        cell-2-output-3.vnd-plotly-v1.json
        ");
        let read = |name: &str| fs::read(directory.join(name)).unwrap();
        assert_eq!(read("cell-2-output-1.png"), b"hello");
        assert_eq!(read("cell-2-output-2.txt"), "é".as_bytes());
        assert_eq!(read("cell-2-output-3.json"), b"{\n  \"a\": 1\n}\n");
    }

    #[test]
    fn hostile_types_get_harmless_names() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("out");
        let long = "x".repeat(5000);
        let outputs = [displayed(&json!({
            "../../escape": "1", "text/../../../escape": "2", "/etc/passwd": "3", "": "4",
            "text/a b": "5", "text/a c": "6", "text/.hidden\u{0}\n": "7", "é/é": "8", long: "9",
            "text/plain": {"not": "text"},
        }))];
        let written = write(&directory, "", &outputs, false, &mut SpaceBudget::new(None));
        assert_eq!(names(parent.path()), ["out"]);
        let names = names(&directory);
        assert_eq!((written.iter().filter(|w| w.is_ok()).count(), names.len()), (9, 9));
        let harmless = |name: &String| {
            name.starts_with("output-1") && name.is_ascii() && !name.contains(['/', ' '])
        };
        assert!(names.iter().all(harmless), "{names:?}");
    }

    #[test]
    fn nothing_is_overwritten_without_the_flag() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("output-1.txt");
        let outputs = [displayed(&json!({"text/plain": "new"}))];
        fs::write(&path, "old").unwrap();
        check(directory.path(), false).unwrap_err();
        check(directory.path(), true).unwrap();
        let refused = write(directory.path(), "", &outputs, false, &mut SpaceBudget::new(None));
        assert!(refused[0].as_ref().unwrap_err().contains("output-1.txt not saved"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(
            write(directory.path(), "", &outputs, true, &mut SpaceBudget::new(None))[0].is_ok()
        );
        assert_eq!(fs::read(&path).unwrap(), b"new");
        // The target of a link is not replaced.
        let elsewhere = directory.path().join("elsewhere");
        fs::write(&elsewhere, "theirs").unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(
            write(directory.path(), "", &outputs, false, &mut SpaceBudget::new(None))[0].is_err()
        );
        assert!(
            write(directory.path(), "", &outputs, true, &mut SpaceBudget::new(None))[0].is_ok()
        );
        assert_eq!(fs::read(&elsewhere).unwrap(), b"theirs");
        check(&elsewhere, true).unwrap_err();
    }

    #[test]
    fn only_files_of_earlier_runs_conflict() {
        for (name, ours) in [
            ("output-1.png", true),
            ("cell-12-output-3-2.json", true),
            ("output.png", false),
            ("cell-notes.txt", false),
            ("README.md", false),
        ] {
            assert_eq!(is_ours(name), ours, "{name}");
        }
    }

    #[test]
    fn invalid_base64_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let outputs = [displayed(&json!({"image/png": "not base64!"}))];
        let written = write(directory.path(), "", &outputs, false, &mut SpaceBudget::new(None));
        let message = written[0].as_ref().unwrap_err();
        assert!(
            message.ends_with("output-1.png not saved: its image/png is not base64"),
            "{message}"
        );
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn what_does_not_fit_on_the_disk_limit_the_sandbox_is_skipped_and_told() {
        let directory = tempfile::tempdir().unwrap();
        let outputs: Vec<Output> =
            ["a", "b", "c"].map(|text| displayed(&json!({"text/plain": text}))).into();
        let mut budget = SpaceBudget::new(Some(2 * FILE_BLOCK));
        let written = write(directory.path(), "", &outputs, false, &mut budget);
        assert!(written.len() == 2 && written.iter().all(Result::is_ok), "{written:?}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        assert!(budget.problem(directory.path()).unwrap().starts_with("1 files were not saved"));
        let mut budget = SpaceBudget { files: 1, ..SpaceBudget::new(None) };
        assert_eq!(write(directory.path(), "x-", &outputs, false, &mut budget).len(), 1);
        assert_eq!(budget.skipped, 2);
        assert!(SpaceBudget::new(None).problem(directory.path()).is_none());
    }
}
