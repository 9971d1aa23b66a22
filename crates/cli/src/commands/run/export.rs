//! Results of a run that are written to this host: a notebook, and files with displayed objects.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::artifacts;
use super::report::RunMetadata;
use super::source::{Source, Task};
use crate::args::ExportArgs;
use crate::error::CliError;
use crate::exit;
use crate::notebook::{Notebook, Recording};
use crate::printer::Printer;

/// The results to write. They are written after the run has ended.
#[derive(Debug, Default)]
pub(crate) struct Export {
    notebook: Option<Target>,
    directory: Option<PathBuf>,
    overwrite: bool,
    allow_errors: bool,
}

/// The file of the notebook.
#[derive(Debug)]
struct Target {
    path: PathBuf,
    /// True when an existing file is replaced.
    replace: bool,
}

/// The files that were written.
#[derive(Debug, Default)]
pub(super) struct ExportedFiles {
    notebook: Option<PathBuf>,
    files: Option<Vec<PathBuf>>,
    /// Messages about failed writes.
    problems: Vec<String>,
}

impl Export {
    /// Makes an export of flags, and checks that they fit what is run.
    ///
    /// # Errors
    /// Usage: the run has no results of this kind, or a file exists already.
    pub(crate) fn from_args(args: &ExportArgs, source: &Source) -> Result<Self, CliError> {
        if args.allow_errors && !matches!(source, Source::Notebook { .. }) {
            return Err(CliError::usage("--allow-errors is for notebooks", "leave it out"));
        }
        if !args.parameters.is_empty() && !matches!(source, Source::Notebook { .. }) {
            let hint = "a program takes arguments: sandboxes run --file FILE -- ARGS";
            return Err(CliError::usage("-P is for notebooks", hint));
        }
        let flags = [
            ("--notebook", args.notebook.is_some()),
            ("--save-outputs", args.save_outputs.is_some()),
        ];
        let wanted = flags.iter().find_map(|(flag, given)| given.then_some(*flag));
        match wanted {
            Some(flag) if !source.is_code() => {
                return Err(CliError::usage(
                    format!("{flag} is for code of the interpreter, not for commands"),
                    "leave it out, or add --lang python",
                ));
            }
            None if args.overwrite => {
                let what = "--overwrite has no effect without --notebook or --save-outputs";
                return Err(CliError::usage(what, "leave it out"));
            }
            _ => {}
        }
        let input = match source {
            Source::Notebook { path, .. } => Some(path.as_path()),
            _ => None,
        };
        let notebook = args.notebook.as_deref().map(|path| target(path, input, args.overwrite));
        if let Some(directory) = &args.save_outputs {
            artifacts::check(directory, args.overwrite)?;
        }
        Ok(Self {
            notebook: notebook.transpose()?,
            directory: args.save_outputs.clone(),
            overwrite: args.overwrite,
            allow_errors: args.allow_errors,
        })
    }

    /// Returns true when a notebook is written.
    pub(super) fn writes_notebook(&self) -> bool {
        self.notebook.is_some()
    }

    /// Returns true when a notebook continues after an exception.
    pub(super) fn allows_errors(&self) -> bool {
        self.allow_errors
    }

    /// Makes the notebook for the results of a run.
    pub(super) fn notebook_of(&self, task: &Task, metadata: &RunMetadata) -> Notebook {
        if self.notebook.is_none() {
            return Notebook::default();
        }
        let mut notebook = task.source.as_notebook();
        metadata.note_in(&mut notebook);
        notebook
    }

    /// Makes a recording, if results are written.
    pub(super) fn recording(&self) -> Option<Recording> {
        (self.notebook.is_some() || self.directory.is_some()).then(Recording::default)
    }

    /// Writes the recorded results. `name` returns the prefix of file names for the number of a cell.
    pub(super) fn write(
        &self,
        recording: Option<Recording>,
        mut notebook: Notebook,
        widgets: Option<Value>,
        name: impl Fn(usize) -> String,
        disk: Option<u64>,
        printer: &Printer,
    ) -> ExportedFiles {
        let mut exported = ExportedFiles::default();
        let Some((cells, dropped)) = recording.map(Recording::end) else { return exported };
        if dropped > 0 {
            printer.warning(&format!(
                "the output is too large to be kept: {dropped} parts were dropped"
            ));
        }
        if let Some(directory) = &self.directory {
            let (mut files, mut budget) = (Vec::new(), artifacts::SpaceBudget::new(disk));
            for cell in &cells {
                let name = name(cell.number);
                let written =
                    artifacts::write(directory, &name, &cell.outputs, self.overwrite, &mut budget);
                for result in written {
                    match result {
                        Ok(path) => files.push(path),
                        Err(problem) => exported.problems.push(problem),
                    }
                }
            }
            exported.problems.extend(budget.problem(directory));
            for path in &files {
                printer.note(&format!("saved: {}", path.display()));
            }
            if files.is_empty() && exported.problems.is_empty() {
                printer.note("nothing was displayed, so no file was saved");
            }
            exported.files = Some(files);
        }
        if let Some(target) = &self.notebook {
            notebook.set_outputs(cells, widgets);
            match target.write(&notebook.to_bytes()) {
                Ok(()) => {
                    printer.note(&format!("notebook written: {}", target.path.display()));
                    exported.notebook = Some(target.path.clone());
                }
                Err(error) => {
                    let path = target.path.display();
                    exported.problems.push(format!("{path} cannot be written: {error}"));
                }
            }
        }
        for problem in &exported.problems {
            printer.failure(problem, None);
        }
        exported
    }
}

impl ExportedFiles {
    /// Returns the exit status of a run that ended with `status`: a failed write is a failure, too.
    pub(super) fn status(&self, status: u8) -> u8 {
        if self.problems.is_empty() || status != exit::SUCCESS { status } else { exit::SANDBOX }
    }

    /// Adds the written files to the JSON object of a result.
    pub(super) fn describe(&self, object: &mut Value) {
        if let Some(path) = &self.notebook {
            object["notebook"] = path.to_string_lossy().into();
        }
        if let Some(files) = &self.files {
            object["saved"] = files.iter().map(|path| path.to_string_lossy()).collect();
        }
        if !self.problems.is_empty() {
            object["not_saved"] = json!(self.problems);
        }
    }
}

/// Checks the file of the notebook. An existing file is replaced with `overwrite`, or when it is the notebook that is run.
fn target(path: &Path, input: Option<&Path>, overwrite: bool) -> Result<Target, CliError> {
    let shown = path.display();
    if path.as_os_str() == "-" {
        return Err(CliError::usage(
            "--notebook needs a file, because standard output is for the program",
            "`./-` is a file with the name `-`",
        ));
    }
    if path.is_dir() {
        let hint = "name a file in it, such as out.ipynb";
        return Err(CliError::usage(format!("{shown} is a directory"), hint));
    }
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        let message = format!("{shown} exists already, and is not a file");
        return Err(CliError::usage(message, "name another file"));
    }
    // Missing directories are created when the notebook is written.
    let mut above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    let nearest = above.find(|above| above.symlink_metadata().is_ok());
    if let Some(place) = nearest.filter(|place| !place.is_dir()) {
        let message = format!("{shown} cannot be written: {} is not a directory", place.display());
        return Err(CliError::usage(message, "name a file in another directory"));
    }
    let replace = overwrite || input.is_some_and(|input| is_same_name(input, path));
    if !replace && path.symlink_metadata().is_ok() {
        return Err(CliError::usage(
            format!("{shown} exists already"),
            "name another file, or add --overwrite",
        ));
    }
    Ok(Target { path: path.to_owned(), replace })
}

/// Returns true when both paths are the same name in the same directory.
fn is_same_name(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = fs::canonicalize(parent.unwrap_or(Path::new("."))).ok()?;
        Some((parent, path.file_name()?.to_owned()))
    };
    place(one).is_some_and(|one| Some(one) == place(other))
}

impl Target {
    fn write(&self, content: &[u8]) -> io::Result<()> {
        // The target of a link is replaced, not the link.
        let path = fs::canonicalize(&self.path).ok().filter(|_| self.replace);
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        write_whole(path.as_deref().unwrap_or(&self.path), content, self.replace)
    }
}

/// Writes a file atomically. Fails for an existing file unless `replace` is set, and always for an existing path that is not a
/// file, such as a device.
pub(super) fn write_whole(path: &Path, content: &[u8], replace: bool) -> io::Result<()> {
    if path.symlink_metadata().is_ok_and(|found| !found.is_file() && !found.is_symlink()) {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the path exists already, and is not a file",
        ));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let before = path.metadata().ok().filter(|_| replace);
    let mut file = tempfile::Builder::new()
        .prefix(".sandboxes-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(parent.unwrap_or(Path::new(".")))?;
    file.write_all(content)?;
    if let Some(before) = before {
        file.as_file().set_permissions(before.permissions())?;
    }
    let done = if replace { file.persist(path) } else { file.persist_noclobber(path) };
    done.map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn an_existing_notebook_is_replaced_only_on_request() {
        let directory = tempfile::tempdir().unwrap();
        let [there, other, link] =
            ["there.ipynb", "other.ipynb", "link.ipynb"].map(|name| directory.path().join(name));
        fs::write(&there, "old").unwrap();
        symlink(&there, &link).unwrap();
        for (path, input, overwrite, replace) in [
            (&there, None, false, None),
            (&there, Some(&other), false, None),
            (&link, Some(&there), false, None),
            (&there, None, true, Some(true)),
            (&there, Some(&there), false, Some(true)),
            (&other, Some(&there), false, Some(false)),
        ] {
            let target = target(path, input.map(PathBuf::as_path), overwrite).ok();
            assert_eq!(target.map(|target| target.replace), replace, "{path:?} {input:?}");
        }
        for path in ["-", "/dev/null/x.ipynb", ".", "/dev/full"] {
            target(Path::new(path), None, true).unwrap_err();
        }
        target(&link, Some(&link), false).unwrap().write(b"new").unwrap();
        assert_eq!(fs::read(&there).unwrap(), b"new");
        assert!(link.is_symlink());
        let deep = directory.path().join("a/b/deep.ipynb");
        target(&deep, None, false).unwrap().write(b"deep").unwrap();
        assert_eq!(fs::read(&deep).unwrap(), b"deep");
        target(&there.join("x/y.ipynb"), None, true).unwrap_err();
    }

    #[test]
    fn files_are_written_atomically_with_their_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        write_whole(&path, b"one", false).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o600, 0o600);
        write_whole(&path, b"two", false).unwrap_err();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        write_whole(&path, b"three", true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let socket = directory.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        write_whole(&socket, b"four", true).unwrap_err();
        assert!(!socket.metadata().unwrap().is_file());
    }
}
