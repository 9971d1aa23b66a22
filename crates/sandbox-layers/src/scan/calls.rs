//! Functions and modules of Python that rules are about.

use super::ScanRule::{self, DynamicCode, Network, Process};

/// A name with dots, and what it does. A name stands for everything below it; one that ends in `*` for every name that
/// begins so.
type Rule = (&'static str, ScanRule, &'static str);

const RULES: &[Rule] = &[
    ("os.system", Process, "starts a program"),
    ("os.popen", Process, "starts a program"),
    ("os.exec*", Process, "replaces the process by a program"),
    ("os.spawn*", Process, "starts a program"),
    ("os.posix_spawn*", Process, "starts a program"),
    ("os.fork", Process, "starts a process"),
    ("os.forkpty", Process, "starts a process"),
    ("os.startfile", Process, "starts a program"),
    ("os.kill", Process, "signals a process"),
    ("os.killpg", Process, "signals processes"),
    ("subprocess.*", Process, "starts a program"),
    ("commands.*", Process, "starts a program"),
    ("multiprocessing.*", Process, "starts processes"),
    ("concurrent.futures.ProcessPoolExecutor", Process, "starts processes"),
    ("asyncio.create_subprocess_*", Process, "starts a program"),
    ("asyncio.subprocess.*", Process, "starts a program"),
    ("pty.*", Process, "starts a program on a terminal"),
    ("pexpect.*", Process, "starts a program"),
    ("sh.*", Process, "starts a program"),
    ("plumbum.*", Process, "starts a program"),
    ("psutil.Process", Process, "looks at and signals processes"),
    ("psutil.Popen", Process, "starts a program"),
    ("socket.*", Network, "opens connections"),
    ("ssl.*", Network, "opens connections"),
    ("socketserver.*", Network, "waits for connections"),
    ("http.client.*", Network, "opens connections"),
    ("http.server.*", Network, "waits for connections"),
    ("urllib.request.*", Network, "opens connections"),
    ("urllib3.*", Network, "opens connections"),
    ("urllib2.*", Network, "opens connections"),
    ("requests.*", Network, "opens connections"),
    ("httpx.*", Network, "opens connections"),
    ("aiohttp.*", Network, "opens connections"),
    ("websocket.*", Network, "opens connections"),
    ("websockets.*", Network, "opens connections"),
    ("ftplib.*", Network, "opens connections"),
    ("smtplib.*", Network, "sends mail"),
    ("poplib.*", Network, "opens connections"),
    ("imaplib.*", Network, "opens connections"),
    ("nntplib.*", Network, "opens connections"),
    ("telnetlib.*", Network, "opens connections"),
    ("xmlrpc.*", Network, "opens connections"),
    ("paramiko.*", Network, "opens connections"),
    ("asyncio.open_connection", Network, "opens connections"),
    ("asyncio.open_unix_connection", Network, "opens connections"),
    ("asyncio.start_server", Network, "waits for connections"),
    ("asyncio.start_unix_server", Network, "waits for connections"),
    ("webbrowser.*", Network, "opens an address"),
    ("eval", DynamicCode, "runs text as code"),
    ("exec", DynamicCode, "runs text as code"),
    ("compile", DynamicCode, "makes code of text"),
    ("execfile", DynamicCode, "runs a file as code"),
    ("code.*", DynamicCode, "runs text as code"),
    ("codeop.*", DynamicCode, "makes code of text"),
    ("runpy.*", DynamicCode, "runs a file as code"),
    ("types.FunctionType", DynamicCode, "makes a function of code objects"),
    ("types.CodeType", DynamicCode, "makes code objects"),
    ("marshal.load*", DynamicCode, "loads code objects"),
    ("pickle.load*", DynamicCode, "runs what the data say"),
    ("pickle.Unpickler", DynamicCode, "runs what the data say"),
    ("_pickle.load*", DynamicCode, "runs what the data say"),
    ("dill.load*", DynamicCode, "runs what the data say"),
    ("cloudpickle.load*", DynamicCode, "runs what the data say"),
    ("shelve.open", DynamicCode, "runs what the data say"),
    ("ctypes.*", DynamicCode, "calls native code"),
    ("_ctypes.*", DynamicCode, "calls native code"),
    ("cffi.*", DynamicCode, "calls native code"),
    ("mmap.*", DynamicCode, "maps memory"),
    ("gc.get_objects", DynamicCode, "reaches internals of the interpreter"),
    ("gc.get_referrers", DynamicCode, "reaches internals of the interpreter"),
    ("sys._getframe", DynamicCode, "reaches internals of the interpreter"),
    ("sys.settrace", DynamicCode, "reaches internals of the interpreter"),
    ("sys.setprofile", DynamicCode, "reaches internals of the interpreter"),
    ("sys.meta_path", DynamicCode, "changes how modules are found"),
    ("sys.path_hooks", DynamicCode, "changes how modules are found"),
    ("inspect.currentframe", DynamicCode, "reaches internals of the interpreter"),
    ("inspect.stack", DynamicCode, "reaches internals of the interpreter"),
    ("importlib.reload", DynamicCode, "loads a module again"),
    ("importlib.util.spec_from_file_location", DynamicCode, "runs a file as code"),
    ("importlib.machinery.*", DynamicCode, "runs a file as code"),
];

/// Attributes that lead from any object to the internals of the interpreter.
const INTERNALS: [&str; 16] = [
    "__subclasses__",
    "__globals__",
    "__builtins__",
    "__code__",
    "__bases__",
    "__base__",
    "__mro__",
    "__closure__",
    "__getattribute__",
    "__loader__",
    "__reduce_ex__",
    "f_globals",
    "f_builtins",
    "f_back",
    "gi_frame",
    "tb_frame",
];

/// Functions that have paths as their arguments, and how many of the first arguments are paths.
const FILES: &[(&str, usize)] = &[
    ("open", 1),
    ("io.open", 1),
    ("codecs.open", 1),
    ("pathlib.Path", 8),
    ("pathlib.PosixPath", 8),
    ("pathlib.PurePath", 8),
    ("os.open", 1),
    ("os.listdir", 1),
    ("os.scandir", 1),
    ("os.walk", 1),
    ("os.chdir", 1),
    ("os.mkdir", 1),
    ("os.makedirs", 1),
    ("os.remove", 1),
    ("os.unlink", 1),
    ("os.rmdir", 1),
    ("os.removedirs", 1),
    ("os.rename", 2),
    ("os.replace", 2),
    ("os.link", 2),
    ("os.symlink", 2),
    ("os.readlink", 1),
    ("os.stat", 1),
    ("os.chmod", 1),
    ("os.chown", 1),
    ("os.truncate", 1),
    ("os.path.expanduser", 1),
    ("glob.glob", 1),
    ("glob.iglob", 1),
    ("shutil.copy", 2),
    ("shutil.copy2", 2),
    ("shutil.copyfile", 2),
    ("shutil.copytree", 2),
    ("shutil.move", 2),
    ("shutil.rmtree", 1),
    ("shutil.make_archive", 3),
    ("shutil.unpack_archive", 2),
    ("zipfile.ZipFile", 1),
    ("tarfile.open", 1),
    ("gzip.open", 1),
    ("sqlite3.connect", 1),
    ("numpy.load", 1),
    ("numpy.loadtxt", 1),
    ("numpy.save", 1),
    ("pandas.read_csv", 1),
    ("pandas.read_json", 1),
    ("pandas.read_excel", 1),
    ("pandas.read_parquet", 1),
    ("pandas.read_pickle", 1),
    ("pandas.read_table", 1),
];

/// Returns the rule that a name with dots breaks: its group, the name that is shown, and what it does.
pub(super) fn rule_of(path: &str) -> Option<(ScanRule, &str, &'static str)> {
    let plain = path.split('(').next().unwrap_or_default();
    RULES.iter().find_map(|(name, rule, does)| {
        let fits = match name.strip_suffix('*') {
            Some(begin) => plain.starts_with(begin) && plain.len() > begin.len(),
            None => plain
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.')),
        };
        fits.then_some((*rule, plain, *does))
    })
}

/// Returns true for an attribute that leads to the internals of the interpreter.
pub(super) fn is_internal(attribute: &str) -> bool {
    INTERNALS.contains(&attribute)
}

/// Returns how many of the first arguments of a function are paths.
pub(super) fn path_arguments(path: &str) -> usize {
    FILES.iter().find(|(name, _)| *name == path).map_or(0, |(_, count)| *count)
}

/// Returns true for a function of Python itself that is worth following when it gets another name.
pub(super) fn is_builtin(name: &str) -> bool {
    matches!(
        name,
        "eval"
            | "exec"
            | "compile"
            | "execfile"
            | "open"
            | "getattr"
            | "__import__"
            | "__builtins__"
            | "globals"
            | "locals"
            | "vars"
    )
}
