//! What is kept of a run on this host: a notebook, and files with what was displayed.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::report::Facts;
use super::save;
use super::source::{Source, Task};
use crate::args::ExportArgs;
use crate::exit;
use crate::notebook::{Notebook, Recording};
use crate::printer::Printer;
use crate::problem::Problem;

/// Where results go. Nothing is written before the run has ended.
#[derive(Debug, Default)]
pub(crate) struct Export {
    notebook: Option<Target>,
    directory: Option<PathBuf>,
    overwrite: bool,
    allow_errors: bool,
}

/// The file of a notebook.
#[derive(Debug)]
struct Target {
    path: PathBuf,
    /// Whether a file that is there is replaced.
    replace: bool,
}

/// What was written.
#[derive(Debug, Default)]
pub(super) struct Kept {
    notebook: Option<PathBuf>,
    files: Option<Vec<PathBuf>>,
    /// What could not be written, and why.
    problems: Vec<String>,
}

impl Export {
    /// From flags, as far as they go together with what is run.
    ///
    /// # Errors
    /// Usage: it is nothing that has results of this kind, or something is in the way.
    pub(crate) fn of(args: &ExportArgs, source: &Source) -> Result<Self, Problem> {
        if args.allow_errors && !matches!(source, Source::Notebook { .. }) {
            return Err(Problem::usage("--allow-errors is for notebooks", "leave it out"));
        }
        if !args.parameters.is_empty() && !matches!(source, Source::Notebook { .. }) {
            let hint = "a program takes arguments: sandboxes run --file FILE -- ARGS";
            return Err(Problem::usage("-P is for notebooks", hint));
        }
        let flags = [
            ("--notebook", args.notebook.is_some()),
            ("--save-outputs", args.save_outputs.is_some()),
        ];
        let wanted = flags.iter().find_map(|(flag, given)| given.then_some(*flag));
        match wanted {
            Some(flag) if !source.is_code() => {
                return Err(Problem::usage(
                    format!("{flag} is for code of the interpreter, and this is a command"),
                    "leave it out, or say --lang python",
                ));
            }
            None if args.overwrite => {
                let what = "--overwrite says nothing without --notebook or --save-outputs";
                return Err(Problem::usage(what, "leave it out"));
            }
            _ => {}
        }
        let input = match source {
            Source::Notebook { path, .. } => Some(path.as_path()),
            _ => None,
        };
        let notebook = args.notebook.as_deref().map(|path| target(path, input, args.overwrite));
        if let Some(directory) = &args.save_outputs {
            save::check(directory, args.overwrite)?;
        }
        Ok(Self {
            notebook: notebook.transpose()?,
            directory: args.save_outputs.clone(),
            overwrite: args.overwrite,
            allow_errors: args.allow_errors,
        })
    }

    /// Says if a notebook is written.
    pub(super) fn writes_notebook(&self) -> bool {
        self.notebook.is_some()
    }

    /// Whether cells of a notebook go on after an exception.
    pub(super) fn allows_errors(&self) -> bool {
        self.allow_errors
    }

    /// The notebook that will have the results of a run.
    pub(super) fn notebook_of(&self, task: &Task, facts: &Facts) -> Notebook {
        if self.notebook.is_none() {
            return Notebook::default();
        }
        let mut notebook = task.source.as_notebook();
        facts.note_in(&mut notebook);
        notebook
    }

    /// Something to record the run with, if anything of it is kept.
    pub(super) fn recording(&self) -> Option<Recording> {
        (self.notebook.is_some() || self.directory.is_some()).then(Recording::default)
    }

    /// Writes what was recorded. `name` begins the names of files, for the number of a cell.
    pub(super) fn keep(
        &self,
        recording: Option<Recording>,
        mut notebook: Notebook,
        widgets: Option<Value>,
        name: impl Fn(usize) -> String,
        disk: Option<u64>,
        printer: &Printer,
    ) -> Kept {
        let mut kept = Kept::default();
        let Some((cells, dropped)) = recording.map(Recording::end) else { return kept };
        if dropped > 0 {
            printer
                .warning(&format!("too much output to keep all of it: {dropped} pieces left out"));
        }
        if let Some(directory) = &self.directory {
            let (mut files, mut room) = (Vec::new(), save::Room::new(disk));
            for cell in &cells {
                let name = name(cell.number);
                let written =
                    save::write(directory, &name, &cell.outputs, self.overwrite, &mut room);
                for result in written {
                    match result {
                        Ok(path) => files.push(path),
                        Err(problem) => kept.problems.push(problem),
                    }
                }
            }
            kept.problems.extend(room.problem(directory));
            for path in &files {
                printer.note(&format!("saved: {}", path.display()));
            }
            if files.is_empty() && kept.problems.is_empty() {
                printer.note("nothing to save: nothing was displayed");
            }
            kept.files = Some(files);
        }
        if let Some(target) = &self.notebook {
            notebook.take_in(cells, widgets);
            match target.write(&notebook.to_bytes()) {
                Ok(()) => {
                    printer.note(&format!("notebook written: {}", target.path.display()));
                    kept.notebook = Some(target.path.clone());
                }
                Err(error) => {
                    let path = target.path.display();
                    kept.problems.push(format!("{path} cannot be written: {error}"));
                }
            }
        }
        for problem in &kept.problems {
            printer.failure(problem, None);
        }
        kept
    }
}

impl Kept {
    /// The exit status, when the run itself ended with that one.
    pub(super) fn status(&self, status: u8) -> u8 {
        if self.problems.is_empty() || status != exit::SUCCESS { status } else { exit::SANDBOX }
    }

    /// Says in a result where it is kept.
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

/// The notebook to write. One that is there is only replaced when that is said, or when it is the one that is run.
fn target(path: &Path, input: Option<&Path>, overwrite: bool) -> Result<Target, Problem> {
    let shown = path.display();
    if path.as_os_str() == "-" {
        return Err(Problem::usage(
            "--notebook needs a file: standard output is the program's",
            "`./-` is a file of that name",
        ));
    }
    if path.is_dir() {
        let hint = "name a file in it, such as out.ipynb";
        return Err(Problem::usage(format!("{shown} is a directory"), hint));
    }
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        let message = format!("{shown} is there already, and is no file");
        return Err(Problem::usage(message, "name another file"));
    }
    // Directories that are missing are made when it is written.
    let mut above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
    let nearest = above.find(|above| above.symlink_metadata().is_ok());
    if let Some(place) = nearest.filter(|place| !place.is_dir()) {
        let message = format!("{shown} cannot be written: {} is no directory", place.display());
        return Err(Problem::usage(message, "name a file in another one"));
    }
    let replace = overwrite || input.is_some_and(|input| is_same_name(input, path));
    if !replace && path.symlink_metadata().is_ok() {
        return Err(Problem::usage(
            format!("{shown} is there already"),
            "name another file, or say --overwrite",
        ));
    }
    Ok(Target { path: path.to_owned(), replace })
}

/// Whether both name one file, and not two that happen to have the same content.
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
        // A link stays one: what it leads to is replaced.
        let path = fs::canonicalize(&self.path).ok().filter(|_| self.replace);
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        write_whole(path.as_deref().unwrap_or(&self.path), content, self.replace)
    }
}

/// Writes a file that is there whole or not at all. Without `replace`, one that is there stays. So does always what is no
/// file, such as a device.
pub(super) fn write_whole(path: &Path, content: &[u8], replace: bool) -> io::Result<()> {
    if path.symlink_metadata().is_ok_and(|found| !found.is_file() && !found.is_symlink()) {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "it is there already, and is no file",
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
    fn a_notebook_that_is_there_is_replaced_only_when_that_is_said() {
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
    fn files_are_whole_and_keep_their_permissions() {
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
