//! What is to be run, as the arguments and standard input say.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use code_sandboxes::SingleUse;

use super::advice::Subject;
use crate::args::{RunArgs, is_notebook};
use crate::input::{self, ProgramInput};
use crate::languages::{self, Dependencies, Engine, Language, Runner};
use crate::notebook::{self, Notebook, Parameter};
use crate::problem::Problem;
use crate::settings::{mounted_place, network_mode};

/// The largest notebook that is read. Most of it are the outputs it was saved with.
const MOST_NOTEBOOK: u64 = 256 << 20;

/// How much of a file is read to see what runs it.
const FIRST_LINE: u64 = 256;

/// One thing to run.
pub(crate) struct Task {
    pub(crate) source: Source,
    /// Its language, for results.
    pub(crate) language: &'static str,
    /// Its standard input, unless that was the code.
    pub(crate) stdin: Option<ProgramInput>,
    /// What is known of it for advice about its failures.
    pub(super) subject: Subject,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("source", &self.source).finish_non_exhaustive()
    }
}

/// The ways to run something.
#[derive(Debug)]
pub(crate) enum Source {
    /// A line for the shell.
    Shell(String),
    /// A program and its arguments, no shell involved.
    Command(Vec<String>),
    /// Inline code of the sandbox's interpreter: the last value is shown.
    Cell(String),
    /// A program of the sandbox's interpreter.
    Script { code: String, name: String, arguments: Vec<String> },
    /// A program for tools in the sandbox.
    Program(Program),
    /// Cells for the sandbox's interpreter.
    Notebook { notebook: Notebook, path: PathBuf },
}

impl Source {
    /// Whether an interpreter of the sandbox runs it.
    pub(crate) fn is_code(&self) -> bool {
        matches!(self, Self::Cell(_) | Self::Script { .. } | Self::Notebook { .. })
    }

    /// Whether only a sandbox that is there can tell if it is code: see [`Task::in_sandbox`].
    pub(crate) fn depends_on_sandbox(&self) -> bool {
        matches!(self, Self::Program(program) if program.is_inline)
    }

    /// What the sandbox is needed for, when that is a single run.
    pub(crate) fn purpose(&self) -> Option<SingleUse> {
        match self {
            Self::Cell(_) | Self::Script { .. } => Some(SingleUse::Code),
            Self::Shell(_) | Self::Command(_) | Self::Program(_) => Some(SingleUse::Commands),
            Self::Notebook { .. } => None,
        }
    }

    /// The notebook that holds it: its own, or one with its code as the only cell.
    pub(super) fn as_notebook(&self) -> Notebook {
        match self {
            Self::Notebook { notebook, .. } => notebook.clone(),
            Self::Cell(code) | Self::Script { code, .. } => Notebook::of_code(code),
            Self::Shell(_) | Self::Command(_) | Self::Program(_) => Notebook::default(),
        }
    }
}

/// A program that is put into a file in the sandbox.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) language: &'static str,
    pub(crate) runners: &'static [Runner],
    pub(crate) install: &'static str,
    pub(crate) text: Bytes,
    /// Whether it is one word of the command line, and nothing but code.
    pub(crate) is_inline: bool,
    /// Its file name, without a directory.
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) dependencies: Option<Fetch>,
    /// Its file here, and where that is in the working directory of the sandbox, once it was copied there.
    pub(crate) file: Option<PathBuf>,
    pub(crate) within: Option<String>,
    /// Puts it into the working directory, from which it finds its modules.
    pub(crate) beside: bool,
}

impl Program {
    /// Tells whether a file of ours in the working directory has it.
    pub(super) fn is_placed_beside(&self) -> bool {
        self.beside && self.within.is_none()
    }

    /// Says that a directory was copied into the working directory: if the program is in it, it is there already.
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

/// Dependencies to fetch first.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) how: &'static Dependencies,
    /// Files for the directory of the program.
    pub(crate) files: Vec<(&'static str, Bytes)>,
    /// Whether the code has no network because none was asked for.
    pub(crate) network_is_closed: bool,
}

const BY_ENVIRONMENT: &str = "values for it go into the environment, with -e NAME=VALUE";

/// Where the code is.
enum Code {
    Inline(String),
    File(PathBuf),
    Stdin,
}

/// What the words are.
enum Choice {
    Command(Source),
    Code(Code, Vec<String>),
    Notebook(PathBuf),
}

impl Task {
    /// One that is no part of the command line.
    pub(crate) fn new(source: Source, language: &'static str, stdin: Option<ProgramInput>) -> Self {
        Self { source, language, stdin, subject: Subject::default() }
    }

    /// Reads the arguments, and the code that they name.
    ///
    /// # Errors
    /// Usage: nothing to run, two things to run, an unknown language, a file that cannot be read.
    pub(crate) fn of(args: &RunArgs) -> Result<Self, Problem> {
        let (code, arguments) = match choose(args)? {
            Choice::Command(source) => {
                let stdin = if args.tty || args.no_stdin { None } else { input::for_program()? };
                let subject = Subject::of(args, &source);
                return Ok(Self { source, language: "sh", stdin, subject });
            }
            Choice::Notebook(path) => return Self::of_notebook(args, path),
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
            // A kernel that is named runs what is typed for it, whatever its language.
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
        let subject = Subject::of(args, &source);
        Ok(Self { source, language: language.name, stdin, subject })
    }

    /// A notebook says its language itself, and its cells have no standard input.
    fn of_notebook(args: &RunArgs, path: PathBuf) -> Result<Self, Problem> {
        let flags = [("--tty", args.tty), ("--deps", args.deps), ("--lang", args.lang.is_some())];
        if let Some((flag, _)) = flags.iter().find(|(_, given)| *given) {
            return Err(Problem::usage(format!("{flag} is not for notebooks"), "leave it out"));
        }
        let mut notebook = read_notebook(&path)?;
        let parameters = args.export.parameters.iter().map(|text| Parameter::parse(text));
        let parameters = parameters.collect::<Result<Vec<_>, _>>().map_err(|why| {
            Problem::usage(format!("-P is not understood: {why}"), "write it as -P name=value")
        })?;
        notebook.set_parameters(&parameters).map_err(|language| {
            let message = format!(
                "-P is for notebooks in python, r, julia and bash, and this one is in {language}"
            );
            Problem::usage(message, BY_ENVIRONMENT)
        })?;
        let source = Source::Notebook { notebook, path };
        Ok(Self::new(source, "python", None))
    }
}

fn is_for_kernel(args: &RunArgs, code: &Code) -> bool {
    args.sandbox.kernel.is_given() && matches!(code, Code::Inline(_)) && !args.deps
}

/// What the words are, and the arguments of the program.
fn choose(args: &RunArgs) -> Result<Choice, Problem> {
    if let Some(file) = &args.file {
        return file_with_arguments(args, file);
    }
    match (args.words.as_slice(), args.lang) {
        ([], _) if input::is_terminal() => Err(Problem::usage(
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
        (_, Some(_)) => Err(Problem::usage(
            "inline code takes no arguments",
            "put the code in quotes; a program with arguments goes into a file, or to standard input",
        )),
        (_, None) if args.deps => {
            Err(Problem::usage("--deps is for programs, not for shell commands", "use --lang go"))
        }
        ([line], None) if !args.after_dashes => Ok(Choice::Command(Source::Shell(line.clone()))),
        (_, None) if args.first_word_is_all() => Err(Problem::usage(
            "a line for the shell takes no arguments of its own",
            "put all of it in quotes, or give a program and its arguments: sandboxes run ls -la",
        )),
        (words, None) => Ok(Choice::Command(Source::Command(words.to_vec()))),
    }
}

fn file_with_arguments(args: &RunArgs, file: &Path) -> Result<Choice, Problem> {
    if args.lang.is_some() && !args.words.is_empty() && !args.after_dashes {
        return Err(Problem::usage(
            "code and --file exclude each other",
            "arguments of the program go after `--`: sandboxes run --file FILE -- ARGS",
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

/// Whether a word is a notebook, and not a line for the shell that ends like one.
fn means_notebook(word: &str) -> bool {
    let is_of_shell = |c: char| c.is_whitespace() || "<>|&;$`(){}*?'\"\\".contains(c);
    let path = Path::new(word);
    is_notebook(path) && (!word.contains(is_of_shell) || path.is_file())
}

fn no_arguments_for_notebooks() -> Problem {
    Problem::usage(
        "a notebook takes no arguments",
        "values for its variables are given with -P NAME=VALUE, and for its environment with -e NAME=VALUE",
    )
}

fn read_notebook(path: &Path) -> Result<Notebook, Problem> {
    if path.is_dir() {
        return Err(unreadable(path, &io::ErrorKind::IsADirectory.into()));
    }
    let (shown, mut text) = (path.display(), Vec::new());
    File::open(path)
        .and_then(|file| file.take(MOST_NOTEBOOK + 1).read_to_end(&mut text))
        .map_err(|error| unreadable(path, &error))?;
    if text.len() as u64 > MOST_NOTEBOOK {
        return Err(Problem::usage(
            format!("{shown} has more than {} MiB", MOST_NOTEBOOK >> 20),
            "clear its outputs: `jupyter nbconvert --clear-output FILE`",
        ));
    }
    let notebook = notebook::read(&text)
        .map_err(|refused| Problem::usage(format!("{shown} {}", refused.why), refused.hint))?;
    for (number, index) in notebook.code_cells().into_iter().enumerate() {
        if notebook.cells[index].source.len() as u64 > input::MOST_CODE {
            return Err(Problem::usage(
                format!(
                    "code cell {} of {shown} has more than {} MiB of code",
                    number + 1,
                    input::MOST_CODE >> 20
                ),
                "put data into a file: `sandboxes cp`, or --mount",
            ));
        }
    }
    Ok(notebook)
}

fn language(args: &RunArgs, code: &Code) -> Result<&'static Language, Problem> {
    if let Code::File(path) = code
        && path.is_dir()
    {
        return Err(unreadable(path, &io::ErrorKind::IsADirectory.into()));
    }
    let by_file = |path: &Path| languages::of_file(path);
    let found = match (args.lang, code) {
        (Some(language), _) => Some(language),
        (None, Code::File(path)) => by_file(path).or_else(|| by_first_line(path)),
        (None, Code::Inline(_) | Code::Stdin) => None,
    };
    found.ok_or_else(|| {
        let what = match code {
            Code::File(path) => format!("the language of {} is not known", path.display()),
            Code::Inline(_) | Code::Stdin => {
                "no command is given, and the language of the code on standard input is not known"
                    .into()
            }
        };
        Problem::usage(what, format!("say the language with --lang: {}", languages::names()))
    })
}

/// The language of a script that names its interpreter in the first line. What is no regular file is read once only.
fn by_first_line(path: &Path) -> Option<&'static Language> {
    if !path.is_file() {
        return None;
    }
    let mut line = Vec::new();
    File::open(path).ok()?.take(FIRST_LINE).read_to_end(&mut line).ok()?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    languages::of_first_line(std::str::from_utf8(line).ok()?)
}

fn interpreted(code: Code, arguments: Vec<String>, args: &RunArgs) -> Result<Source, Problem> {
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

fn as_cell(code: Code, arguments: &[String]) -> Result<Source, Problem> {
    if arguments.is_empty() {
        return Ok(Source::Cell(unicode(code)?));
    }
    Err(Problem::usage("a cell of a kernel takes no arguments", BY_ENVIRONMENT))
}

fn unicode(code: Code) -> Result<String, Problem> {
    let text = String::from_utf8(text(code)?)
        .map_err(|_| Problem::usage("the code is not UTF-8 text", "convert it to UTF-8"))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

fn text(code: Code) -> Result<Vec<u8>, Problem> {
    match code {
        Code::Inline(text) => Ok(text.into_bytes()),
        Code::File(path) => read(&path),
        Code::Stdin => input::read_code(),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Problem> {
    let mut code = Vec::new();
    File::open(path)
        .and_then(|file| file.take(input::MOST_CODE + 1).read_to_end(&mut code))
        .map_err(|error| unreadable(path, &error))?;
    input::check_size(code, &path.display().to_string())
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    let message = format!("{} cannot be read: {error}", path.display());
    Problem::Usage { message, hint: None }
}

/// The interpreter of the sandbox has no terminal, and a program whose text came from ours has ours no more.
fn refuse_terminal(args: &RunArgs, language: &Language, is_own: bool) -> Result<(), Problem> {
    if !args.tty || (is_own && matches!(language.engine, Engine::Tools { .. })) {
        return Ok(());
    }
    Err(Problem::usage(
        "--tty is for commands and for program files",
        "for code on a terminal there is `sandboxes repl`",
    ))
}

fn refuse_dependencies(args: &RunArgs, language: &Language) -> Result<(), Problem> {
    if args.deps { Err(no_dependencies(language)) } else { Ok(()) }
}

fn no_dependencies(language: &Language) -> Problem {
    Problem::usage(format!("--deps is not for {}", language.name), "it is for go")
}

/// Reads the manifest beside the file, or in the current directory.
fn fetch(args: &RunArgs, how: &'static Dependencies, code: &Code) -> Result<Fetch, Problem> {
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
