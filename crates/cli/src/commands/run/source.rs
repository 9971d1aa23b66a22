//! The source of a run, from the arguments and standard input.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use code_sandboxes::SingleUse;

use super::advice::Subject;
use crate::args::{LayerArgs, RunArgs, is_notebook};
use crate::error::CliError;
use crate::input::{self, ProgramInput};
use crate::languages::{self, Dependencies, Engine, Language, Runner};
use crate::layers;
use crate::notebook::{self, Notebook, Parameter};
use crate::printer::Printer;
use crate::settings::{mounted_place, network_mode};

/// Maximum size of a notebook file, which includes its saved outputs.
const MAX_NOTEBOOK_SIZE: u64 = 256 << 20;

/// Number of bytes of a file that are read for its first line.
const FIRST_LINE_SIZE: u64 = 256;

/// A source with its language and standard input.
pub(crate) struct Task {
    pub(crate) source: Source,
    /// The language, for results.
    pub(crate) language: &'static str,
    /// Standard input, unless that was the code.
    pub(crate) stdin: Option<ProgramInput>,
    /// Facts for advice about failures.
    pub(super) subject: Subject,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The program of a run.
#[derive(Debug)]
pub(crate) enum Source {
    /// A line for the shell.
    Shell(String),
    /// A program and its arguments, without a shell.
    Command(Vec<String>),
    /// Inline code for the sandbox's interpreter; its last value is printed.
    Cell(String),
    /// A program for the sandbox's interpreter.
    Script { code: String, name: String, arguments: Vec<String> },
    /// A program for tools in the sandbox.
    Program(Program),
    /// Cells for the sandbox's interpreter.
    Notebook { notebook: Notebook, path: PathBuf },
}

impl Source {
    /// Returns true when an interpreter of the sandbox runs it.
    pub(crate) fn is_code(&self) -> bool {
        matches!(self, Self::Cell(_) | Self::Script { .. } | Self::Notebook { .. })
    }

    /// Returns true when the existing sandbox decides whether it is code; see [`Task::in_sandbox`].
    pub(crate) fn depends_on_sandbox(&self) -> bool {
        matches!(self, Self::Program(program) if program.is_inline)
    }

    /// Returns the single use of the sandbox, if there is one.
    pub(crate) fn purpose(&self) -> Option<SingleUse> {
        match self {
            Self::Cell(_) | Self::Script { .. } => Some(SingleUse::Code),
            Self::Shell(_) | Self::Command(_) | Self::Program(_) => Some(SingleUse::Commands),
            Self::Notebook { .. } => None,
        }
    }

    /// Scans a program for tools in the sandbox, as the flags say. Other code is scanned when it is run.
    pub(crate) fn scan_program(&self, args: &LayerArgs, printer: &Printer) -> Result<(), CliError> {
        match self {
            Self::Program(program) => {
                layers::check_program(&program.text, program.language, args, printer)
            }
            _ => Ok(()),
        }
    }

    /// Returns the notebook, or one with the code as its only cell.
    pub(super) fn as_notebook(&self) -> Notebook {
        match self {
            Self::Notebook { notebook, .. } => notebook.clone(),
            Self::Cell(code) | Self::Script { code, .. } => Notebook::from_code(code),
            Self::Shell(_) | Self::Command(_) | Self::Program(_) => Notebook::default(),
        }
    }
}

/// A program for tools in the sandbox, which is written to a file there.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) language: &'static str,
    pub(crate) runners: &'static [Runner],
    pub(crate) install: &'static str,
    pub(crate) text: Bytes,
    /// True when the text is a word of the command line.
    pub(crate) is_inline: bool,
    /// The file name, without a directory.
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) dependencies: Option<Fetch>,
    /// The file on this host, and its path in the working directory of the sandbox after --with has copied it.
    pub(crate) file: Option<PathBuf>,
    pub(crate) within: Option<String>,
    /// True when the file is put into the working directory, where its modules are.
    pub(crate) beside: bool,
}

impl Program {
    /// Returns true when a new file in the working directory has the program.
    pub(super) fn is_placed_beside(&self) -> bool {
        self.beside && self.within.is_none()
    }

    /// Records that a directory was copied into the working directory, which may include the program.
    pub(super) fn move_into(&mut self, directory: &Path) {
        if let Some(within) = self.file.as_deref().and_then(|file| path_within(file, directory)) {
            self.within = Some(within).filter(|within| !within.is_empty());
        }
    }
}

/// Returns the path of a file in a directory of this host, when the file is in the directory.
pub(super) fn path_within(file: &Path, directory: &Path) -> Option<String> {
    let whole = |path: &Path| std::fs::canonicalize(path).ok();
    Some(whole(file)?.strip_prefix(whole(directory)?).ok()?.to_str()?.to_owned())
}

/// Dependencies to download before the run.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) how: &'static Dependencies,
    /// Files beside the program.
    pub(crate) files: Vec<(&'static str, Bytes)>,
    /// True when the network flags leave the code without a network.
    pub(crate) network_is_closed: bool,
}

const BY_ENVIRONMENT: &str = "pass values in the environment, with -e NAME=VALUE";

/// The place of the code.
enum Code {
    Inline(String),
    File(PathBuf),
    Stdin,
}

/// The meaning of the words.
enum Choice {
    Command(Source),
    Code(Code, Vec<String>),
    Notebook(PathBuf),
}

impl Task {
    /// Makes a task without arguments of the command line.
    pub(crate) fn new(source: Source, language: &'static str, stdin: Option<ProgramInput>) -> Self {
        Self { source, language, stdin, subject: Subject::default() }
    }

    /// Makes the task of arguments, and reads its code.
    ///
    /// # Errors
    /// Usage: no source or two sources, an unknown language, a file that cannot be read.
    pub(crate) fn from_args(args: &RunArgs) -> Result<Self, CliError> {
        let (code, arguments) = match choose(args)? {
            Choice::Command(source) => {
                let stdin = if args.tty || args.no_stdin { None } else { input::for_program()? };
                let subject = Subject::from_args(args, &source);
                return Ok(Self { source, language: "sh", stdin, subject });
            }
            Choice::Notebook(path) => return Self::from_notebook(args, path),
            Choice::Code(code, arguments) => (code, arguments),
        };
        let is_own = !matches!(code, Code::Stdin);
        let language = language(args, &code)?;
        refuse_terminal(args, language, is_own)?;
        let source = match &language.engine {
            Engine::Interpreter => {
                refuse_dependencies(args, language)?;
                interpreted(code, arguments, args)?
            }
            Engine::Kernel => {
                refuse_dependencies(args, language)?;
                as_cell(code, &arguments)?
            }
            // The kernel of a flag runs inline code of any language.
            Engine::Tools { .. } if is_for_kernel(args, &code) => {
                interpreted(code, arguments, args)?
            }
            Engine::Tools { runners, install, dependencies, beside } => {
                let dependencies = match (args.deps, dependencies) {
                    (true, Some(how)) => Some(fetch(args, how, &code)?),
                    (true, None) => return Err(no_dependencies(language)),
                    (false, _) => None,
                };
                let path = match &code {
                    Code::File(path) => Some(path.as_path()),
                    Code::Inline(_) | Code::Stdin => None,
                };
                let (name, file) = (language.file_name(path), path.map(Path::to_owned));
                let is_inline = matches!(code, Code::Inline(_)) && !args.deps && !args.tty;
                let text = text(code)?.into();
                let language = language.name;
                Source::Program(Program {
                    language,
                    runners,
                    install,
                    text,
                    is_inline,
                    name,
                    arguments,
                    dependencies,
                    file,
                    within: None,
                    beside: *beside,
                })
            }
        };
        let reads = is_own && !args.tty && !args.no_stdin;
        let stdin = if reads { input::for_program()? } else { None };
        let subject = Subject::from_args(args, &source);
        Ok(Self { source, language: language.name, stdin, subject })
    }

    /// Makes the task of a notebook, which has its own language, and whose cells have no standard input.
    fn from_notebook(args: &RunArgs, path: PathBuf) -> Result<Self, CliError> {
        let flags = [("--tty", args.tty), ("--deps", args.deps), ("--lang", args.lang.is_some())];
        if let Some((flag, _)) = flags.iter().find(|(_, given)| *given) {
            return Err(CliError::usage(format!("{flag} is not for notebooks"), "leave it out"));
        }
        let mut notebook = read_notebook(&path)?;
        let parameters = args.export.parameters.iter().map(|text| Parameter::parse(text));
        let parameters = parameters.collect::<Result<Vec<_>, _>>().map_err(|why| {
            CliError::usage(format!("-P is invalid: {why}"), "write it as -P name=value")
        })?;
        notebook.set_parameters(&parameters).map_err(|language| {
            let message = format!(
                "-P is for notebooks in python, r, julia and bash, but this notebook is in {language}"
            );
            CliError::usage(message, BY_ENVIRONMENT)
        })?;
        let source = Source::Notebook { notebook, path };
        Ok(Self::new(source, "python", None))
    }
}

fn is_for_kernel(args: &RunArgs, code: &Code) -> bool {
    args.sandbox.kernel.is_given() && matches!(code, Code::Inline(_)) && !args.deps
}

/// Decides what the words mean.
fn choose(args: &RunArgs) -> Result<Choice, CliError> {
    if let Some(file) = &args.file {
        return file_with_arguments(args, file);
    }
    match (args.words.as_slice(), args.lang) {
        ([], _) if input::is_terminal() => Err(CliError::usage(
            "nothing to run",
            "give a shell command, --lang LANGUAGE with code, --file FILE, or code on standard input",
        )),
        (words, Some(_)) if args.after_dashes => Ok(Choice::Code(Code::Stdin, words.to_vec())),
        ([], _) => Ok(Choice::Code(Code::Stdin, Vec::new())),
        ([first, rest @ ..], _) if first == "-" && !args.after_dashes => {
            Ok(Choice::Code(Code::Stdin, rest.to_vec()))
        }
        ([code], Some(_)) => Ok(Choice::Code(Code::Inline(code.clone()), Vec::new())),
        ([first], None) if !args.after_dashes && means_notebook(first) => {
            Ok(Choice::Notebook(first.into()))
        }
        ([first, ..], None) if !args.after_dashes && means_notebook(first) => {
            Err(no_arguments_for_notebooks())
        }
        (_, Some(_)) => Err(CliError::usage(
            "inline code takes no arguments",
            "put the code in quotes; for a program with arguments use a file or standard input",
        )),
        (_, None) if args.deps => {
            Err(CliError::usage("--deps is for programs, not for shell commands", "use --lang go"))
        }
        ([line], None) if !args.after_dashes => Ok(Choice::Command(Source::Shell(line.clone()))),
        (_, None) if args.first_word_is_all() => Err(CliError::usage(
            "a line for the shell takes no arguments of its own",
            "put the whole line in quotes, or give a program and its arguments: sandboxes run ls -la",
        )),
        (words, None) => Ok(Choice::Command(Source::Command(words.to_vec()))),
    }
}

fn file_with_arguments(args: &RunArgs, file: &Path) -> Result<Choice, CliError> {
    if args.lang.is_some() && !args.words.is_empty() && !args.after_dashes {
        return Err(CliError::usage(
            "code and --file exclude each other",
            "put arguments of the program after `--`: sandboxes run --file FILE -- ARGS",
        ));
    }
    if is_notebook(file) {
        return match args.words.is_empty() {
            true => Ok(Choice::Notebook(file.to_owned())),
            false => Err(no_arguments_for_notebooks()),
        };
    }
    let code = if file.as_os_str() == "-" { Code::Stdin } else { Code::File(file.to_owned()) };
    Ok(Choice::Code(code, args.words.clone()))
}

/// Returns true for the name of a notebook, and false for a line of the shell that ends like one.
fn means_notebook(word: &str) -> bool {
    let is_shell_syntax = |c: char| c.is_whitespace() || "<>|&;$`(){}*?'\"\\".contains(c);
    let path = Path::new(word);
    is_notebook(path) && (!word.contains(is_shell_syntax) || path.is_file())
}

fn no_arguments_for_notebooks() -> CliError {
    CliError::usage(
        "a notebook takes no arguments",
        "set variables with -P NAME=VALUE, and environment variables with -e NAME=VALUE",
    )
}

fn read_notebook(path: &Path) -> Result<Notebook, CliError> {
    if path.is_dir() {
        return Err(unreadable(path, &io::ErrorKind::IsADirectory.into()));
    }
    let (shown, mut text) = (path.display(), Vec::new());
    File::open(path)
        .and_then(|file| file.take(MAX_NOTEBOOK_SIZE + 1).read_to_end(&mut text))
        .map_err(|error| unreadable(path, &error))?;
    if text.len() as u64 > MAX_NOTEBOOK_SIZE {
        return Err(CliError::usage(
            format!("{shown} has more than {} MiB", MAX_NOTEBOOK_SIZE >> 20),
            "clear its outputs: `jupyter nbconvert --clear-output FILE`",
        ));
    }
    let notebook = notebook::read(&text)
        .map_err(|refused| CliError::usage(format!("{shown} {}", refused.problem), refused.hint))?;
    for (number, index) in notebook.code_cells().into_iter().enumerate() {
        if notebook.cells[index].source.len() as u64 > input::MAX_CODE_SIZE {
            return Err(CliError::usage(
                format!(
                    "code cell {} of {shown} has more than {} MiB of code",
                    number + 1,
                    input::MAX_CODE_SIZE >> 20
                ),
                "put data into a file: `sandboxes cp`, or --mount",
            ));
        }
    }
    Ok(notebook)
}

fn language(args: &RunArgs, code: &Code) -> Result<&'static Language, CliError> {
    if let Code::File(path) = code
        && path.is_dir()
    {
        return Err(unreadable(path, &io::ErrorKind::IsADirectory.into()));
    }
    let by_file = |path: &Path| languages::by_file(path);
    let found = match (args.lang, code) {
        (Some(language), _) => Some(language),
        (None, Code::File(path)) => by_file(path).or_else(|| by_first_line(path)),
        (None, Code::Inline(_) | Code::Stdin) => None,
    };
    found.ok_or_else(|| {
        let message = match code {
            Code::File(path) => format!("the language of {} is unknown", path.display()),
            Code::Inline(_) | Code::Stdin => {
                "no command is given, and the language of the code on standard input is unknown"
                    .into()
            }
        };
        CliError::usage(message, format!("give the language with --lang: {}", languages::names()))
    })
}

/// Returns the language of a script whose first line names its interpreter. Reads only regular files, because others can be
/// read only once.
fn by_first_line(path: &Path) -> Option<&'static Language> {
    if !path.is_file() {
        return None;
    }
    let mut line = Vec::new();
    File::open(path).ok()?.take(FIRST_LINE_SIZE).read_to_end(&mut line).ok()?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    languages::by_first_line(std::str::from_utf8(line).ok()?)
}

fn interpreted(code: Code, arguments: Vec<String>, args: &RunArgs) -> Result<Source, CliError> {
    let name = match &code {
        Code::Inline(_) => None,
        Code::File(path) => Some(
            mounted_place(path, &args.sandbox.mount)
                .unwrap_or_else(|| path.to_string_lossy().into_owned()),
        ),
        Code::Stdin => Some(String::new()),
    };
    let code = unicode(code)?;
    Ok(match name {
        None => Source::Cell(code),
        Some(name) => Source::Script { code, name, arguments },
    })
}

fn as_cell(code: Code, arguments: &[String]) -> Result<Source, CliError> {
    if arguments.is_empty() {
        return Ok(Source::Cell(unicode(code)?));
    }
    Err(CliError::usage("a cell of a kernel takes no arguments", BY_ENVIRONMENT))
}

fn unicode(code: Code) -> Result<String, CliError> {
    let text = String::from_utf8(text(code)?)
        .map_err(|_| CliError::usage("the code is not UTF-8 text", "convert it to UTF-8"))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

fn text(code: Code) -> Result<Vec<u8>, CliError> {
    match code {
        Code::Inline(text) => Ok(text.into_bytes()),
        Code::File(path) => read(&path),
        Code::Stdin => input::read_code(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let mut code = Vec::new();
    File::open(path)
        .and_then(|file| file.take(input::MAX_CODE_SIZE + 1).read_to_end(&mut code))
        .map_err(|error| unreadable(path, &error))?;
    input::check_size(code, &path.display().to_string())
}

fn unreadable(path: &Path, error: &io::Error) -> CliError {
    let message = format!("{} cannot be read: {error}", path.display());
    CliError::Usage { message, hint: None }
}

/// Refuses --tty for code of the interpreter, which has no terminal, and for code on standard input.
fn refuse_terminal(args: &RunArgs, language: &Language, is_own: bool) -> Result<(), CliError> {
    if !args.tty || (is_own && matches!(language.engine, Engine::Tools { .. })) {
        return Ok(());
    }
    Err(CliError::usage(
        "--tty is for commands and for program files",
        "use `sandboxes repl` for code on a terminal",
    ))
}

fn refuse_dependencies(args: &RunArgs, language: &Language) -> Result<(), CliError> {
    if args.deps { Err(no_dependencies(language)) } else { Ok(()) }
}

fn no_dependencies(language: &Language) -> CliError {
    CliError::usage(format!("--deps is not for {}", language.name), "it is for go")
}

/// Reads the manifest beside the program, or in the current directory.
fn fetch(args: &RunArgs, how: &'static Dependencies, code: &Code) -> Result<Fetch, CliError> {
    let directory = match code {
        Code::File(path) => path.parent().map(Path::to_owned).unwrap_or_default(),
        Code::Inline(_) | Code::Stdin => PathBuf::new(),
    };
    let mut files = vec![(how.manifest, read(&directory.join(how.manifest))?.into())];
    for name in how.optional {
        let path = directory.join(name);
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => files.push((name, read(&path)?.into())),
        }
    }
    use code_sandboxes::NetworkMode::{Inherit, None as Closed};
    let network = network_mode(&args.sandbox);
    Ok(Fetch { how, files, network_is_closed: matches!(network, Inherit | Closed) })
}
