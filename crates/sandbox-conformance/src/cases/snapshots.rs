//! Snapshots: their content, sandboxes that start from them, and going back.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use sandbox_core::{
    CallContext, ErrorKind, Sandbox, SandboxBuilder, SingleBackend, SnapshotInfo, random_hex,
};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{
    WAIT_TIMEOUT, as_shown, is_usable, ok, raises, refused, reported, text, until_executing, within,
};
use crate::target::Unreported;
use crate::wheel::Wheelhouse;

pub(super) fn cases() -> Vec<Case> {
    cases!("snapshots", [snapshot, run_code, files], {
        others_start_with_its_files;
        it_is_listed_until_it_is_deleted;
        links_are_as_they_were;
        links_are_as_they_were_in_the_same_one needs restore_snapshot;
        its_files_are_those_of_the_workspace;
        the_sandbox_goes_on;
        code_meets_no_child_that_it_has_not_started;
        it_outlives_its_sandbox;
        others_start_with_the_variables_that_it_has;
        what_cannot_be_stored_is_named;
        variables_that_end_their_interpreter_are_told;
        a_sandbox_goes_back needs restore_snapshot;
        what_it_says_of_interpreters_holds needs restore_snapshot, variables;
        going_back_leaves_a_sandbox_that_works needs restore_snapshot, interrupt, contexts;
        one_of_a_descendant needs restore_snapshot;
        a_name_is_taken_once;
        what_is_no_name_is_refused needs restore_snapshot;
        what_is_not_there_is_not_found needs restore_snapshot;
        while_code_runs_there_is_none needs restore_snapshot;
        commands_are_named_and_end needs restore_snapshot, command_background;
        packages_come_along needs restore_snapshot, install_python, local;
        what_the_user_installs_comes_along needs restore_snapshot, strict;
        a_disk_too_small_is_told needs limit_disk;
        going_back_without_room_changes_nothing needs restore_snapshot, limit_disk;
        a_file_that_nobody_can_read_is_an_error needs strict;
    })
}

/// A name that no other case uses. Its snapshot goes with the value.
struct Name(String);

impl Name {
    fn new() -> Self {
        Self(format!("case-{}", random_hex(6)))
    }

    async fn delete(&self, f: &Fixture) -> Checked {
        Ok(f.backend().delete_snapshot(&CallContext::new(), &self.0).await?)
    }
}

async fn listed(f: &Fixture, name: &Name) -> Checked<Option<SnapshotInfo>> {
    let all = f.backend().list_snapshots(&CallContext::new()).await?;
    Ok(all.into_iter().find(|info| info.name == name.0))
}

async fn started_from(f: &Fixture, name: &Name) -> Checked<Sandbox> {
    f.create(|builder| builder.snapshot_name(&name.0)).await
}

async fn others_start_with_its_files(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    ok(
        &sandbox,
        "import os\nos.makedirs('d/e')\nopen('d/e/f', 'w').write('first')\nos.chmod('d/e/f', 0o750)\n\
         os.symlink('e/f', 'd/link')\nos.mkdir('empty')\nopen('.hidden', 'w').write('h')\n\
         os.utime('d/e/f', (1000000000, 1000000000))",
    )
    .await?;
    let info = sandbox.create_snapshot(&name.0).await?;
    ensure_eq!(info.name, name.0);
    ensure!(!info.directories.is_empty(), "it says which files it has: {info:?}");
    let has_size = reported(Unreported::SnapshotSize, true);
    ensure_eq!(info.size > 0, has_size, "it has a size: {info:?}");
    ok(&sandbox, "open('d/e/f', 'w').write('second')").await?;
    for _ in 0..2 {
        let other = started_from(&f, &name).await?;
        let found = "import os\ns = os.stat('d/e/f')\n(open('d/link').read(), oct(s.st_mode & 0o777), \
                     int(s.st_mtime), sorted(os.listdir('.')))";
        let expected = "('first', '0o750', 1000000000, ['.hidden', 'd', 'empty'])";
        ensure_eq!(text(&other, found).await?, expected);
        // It is its own, and may be changed.
        ok(&other, "open('d/e/f', 'a').write('x'); open('d/e/g', 'w').write('y')").await?;
    }
    name.delete(&f).await
}

/// An environment of Python has such links, to the interpreter.
const LINKS: [&str; 3] = ["/usr/bin/python3", "../../elsewhere", "d/../../up"];
const LINKS_READ: &str = "import os\n[os.readlink(f'd/{n}') for n in range(3)]";

async fn with_links(sandbox: &Sandbox) -> Checked {
    let make = "import os\nos.mkdir('d')\nfor n, to in enumerate(LINKS): os.symlink(to, f'd/{n}')";
    ok(sandbox, &format!("LINKS = {LINKS:?}\n{make}")).await?;
    ensure_eq!(text(sandbox, LINKS_READ).await?, format!("{LINKS:?}").replace('"', "'"));
    Ok(())
}

async fn links_are_as_they_were(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    with_links(&sandbox).await?;
    sandbox.create_snapshot(&name.0).await?;
    let other = started_from(&f, &name).await?;
    ensure_eq!(text(&other, LINKS_READ).await?, text(&sandbox, LINKS_READ).await?);
    name.delete(&f).await
}

async fn links_are_as_they_were_in_the_same_one(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    with_links(&sandbox).await?;
    let before = text(&sandbox, LINKS_READ).await?;
    sandbox.create_snapshot(&name.0).await?;
    ok(&sandbox, "os.unlink('d/0')").await?;
    sandbox.restore_snapshot(&name.0).await?;
    ensure_eq!(text(&sandbox, LINKS_READ).await?, before);
    name.delete(&f).await
}

async fn it_is_listed_until_it_is_deleted(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    let call = CallContext::new();
    ensure!(listed(&f, &name).await?.is_none(), "it is not there before");
    let instance = sandbox.instance("test")?;
    let info = instance.snapshots()?.create_snapshot(&call, &name.0, "what it is for").await?;
    ensure_eq!(info.description, "what it is for");
    ensure_eq!(info.sandbox_id.clone(), sandbox.id());
    let found = listed(&f, &name).await?;
    ensure_eq!(found.as_ref(), Some(&info));
    // Its id is as good as its name.
    f.backend().delete_snapshot(&call, &info.id).await?;
    ensure!(listed(&f, &name).await?.is_none(), "it is gone");
    Ok(())
}

/// Wherever the sandbox works, and wherever those work that start from it.
async fn its_files_are_those_of_the_workspace(f: Fixture) -> Checked {
    let (elsewhere, name) = (f.create(|builder| builder.working_dir("sub")).await?, Name::new());
    ok(&elsewhere, "open('a', 'w').write('1'); open('../b', 'w').write('2')").await?;
    elsewhere.create_snapshot(&name.0).await?;
    let usual = started_from(&f, &name).await?;
    ensure_eq!(text(&usual, "open('sub/a').read() + open('b').read()").await?, as_shown("'12'"));
    let other = f.create(|b| b.snapshot_name(&name.0).working_dir("new")).await?;
    ensure_eq!(
        text(&other, "open('../sub/a').read() + open('../b').read()").await?,
        as_shown("'12'")
    );
    name.delete(&f).await
}

async fn the_sandbox_goes_on(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    ok(&sandbox, "x = 1; open('a', 'w').write('1')").await?;
    sandbox.create_snapshot(&name.0).await?;
    let after = sandbox.run_code("x += 1; (x, open('a').read())").await?;
    ensure_eq!(after.text(), Some("(2, '1')"));
    name.delete(&f).await
}

/// Its variables are written aside, by a process that the code does not see.
async fn code_meets_no_child_that_it_has_not_started(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import os, threading, time\nx = [bytes(1 << 20) for _ in range(8)]").await?;
    let children =
        "try: found = os.waitpid(-1, os.WNOHANG)\nexcept ChildProcessError: found = 'none'\nfound";
    // A copy is made in one way of an interpreter with one thread, and in another of one with more.
    for before in ["0", "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"] {
        ok(&sandbox, before).await?;
        let name = Name::new();
        let taken = sandbox.create_snapshot(&name.0).await?;
        ensure!(has_variables(&taken), "they are stored: {taken:?}");
        ensure_eq!(text(&sandbox, children).await?, as_shown("'none'"));
        name.delete(&f).await?;
    }
    Ok(())
}

async fn it_outlives_its_sandbox(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    ok(&sandbox, "x = 1; open('a', 'w').write('1')").await?;
    let taken = sandbox.create_snapshot(&name.0).await?;
    sandbox.terminate().await?;
    let info = listed(&f, &name).await?.ok_or_else(|| "it is gone".to_owned())?;
    // Interpreters are gone with the sandbox, and it says so.
    ensure_eq!(info.contexts, Vec::<String>::new());
    ensure_eq!(info.variables, taken.variables);
    let other = started_from(&f, &name).await?;
    ensure_eq!(text(&other, "open('a').read()").await?, as_shown("'1'"));
    if has_variables(&info) {
        ensure_eq!(text(&other, "x").await?, "1");
    } else {
        raises(&other, "x", "NameError").await?;
    }
    name.delete(&f).await
}

fn has_variables(info: &SnapshotInfo) -> bool {
    info.variables.iter().any(|context| context == "default")
}

/// Of every kind that Python has by name alone, and what they have to do with each other.
const VARIABLES: &str =
    "import json as j, dataclasses, enum, typing, collections, functools, abc, re
x = [1, 2]; y = x
def fact(n): return 1 if n < 2 else n * fact(n - 1)
def counter():
    n = 0
    def up():
        nonlocal n; n += 1; return n
    def get(): return n
    return up, get
up, get = counter(); up()
class A:
    'says what it is'
    count = 0
    __slots__ = ('v', 'me')
    def __init__(self, v): self.v = v
    @property
    def double(self): return self.v * 2
    @classmethod
    def make(cls): return cls(9)
    @staticmethod
    def word(): return 's'
class B(A):
    def __init__(self, v): super().__init__(v); self.me = self
b = B(4)
@dataclasses.dataclass(order=True)
class D:
    n: int
    l: list = dataclasses.field(default_factory=list)
d = D(1)
class Color(enum.Enum):
    RED = 1
    BLUE = enum.auto()
    def low(self): return self.name.lower()
red = Color.RED
class N(typing.NamedTuple):
    a: int
    b: str = 'z'
    def both(self): return self.a, self.b
n = N(2); P = collections.namedtuple('P', 'x y', defaults=(3,)); p = P(1)
T = typing.TypeVar('T')
class G(typing.Generic[T]):
    def get(self) -> T: return 1
class Base(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
class Real(Base):
    def f(self): return 'real'
real = Real()
@functools.lru_cache(maxsize=8)
def cached(n): return n + 1
def twice(f):
    @functools.wraps(f)
    def wrapper(*a): return f(f(*a))
    return wrapper
@twice
def add(n): return n + 1
class Boom(Exception): pass
boom = Boom('why')
cycle = {}; cycle['self'] = cycle
word = re.compile('w+')
async def later(): return 5";

const CHECKS: &str = "import asyncio, dataclasses
@dataclasses.dataclass
class E(D):
    m: int = 7
try:
    Base(); made = True
except TypeError:
    made = False
class C(B): pass
class Other(G[int]): pass
[x is y, fact(5), get(), up(), get(), b.v, b.me is b, isinstance(b, A), C(1).double, A.make().v, A.word(), A.__doc__,
 hasattr(b, '__dict__'), d == D(1), D(1) < D(2), D(2).l, E(1).m, repr(d), Color.RED is red, Color(2).low(), n.both(),
 n._replace(b='k').b, p == (1, 3), P(5, 6).y, Other().get(), made, real.f(), cached(3), add(1), add.__name__,
 isinstance(boom, Boom) and boom.args, cycle['self'] is cycle, bool(word.match('ww')), asyncio.run(later()),
 j.dumps(x), fact.__module__, A.__qualname__]";

const CHECKED: &str = "[True, 120, 1, 2, 2, 4, True, True, 2, 9, 's', 'says what it is', True, True, True, [], 7, \
                       'D(n=1, l=[])', True, 'blue', (2, 'z'), 'k', True, 6, 1, False, 'real', 4, 3, 'add', \
                       ('why',), True, True, 5, '[1, 2]', '__main__', 'A']";

async fn others_start_with_the_variables_that_it_has(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    ok(&sandbox, VARIABLES).await?;
    let info = sandbox.create_snapshot(&name.0).await?;
    if has_variables(&info) {
        let other = started_from(&f, &name).await?;
        ensure_eq!(text(&other, CHECKS).await?.replace('\n', ""), CHECKED);
        // They are its own.
        ok(&other, "x.append(3); up(); A.count += 1").await?;
        ensure_eq!(text(&sandbox, "x, get(), A.count").await?, "([1, 2], 1, 0)");
        let third = started_from(&f, &name).await?;
        ensure_eq!(text(&third, "x, get(), A.count").await?, "([1, 2], 1, 0)");
    }
    name.delete(&f).await
}

async fn what_cannot_be_stored_is_named(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    let code = "class Refuses:\n    def __reduce__(self): raise ValueError('not me')\nx = 1\nrefuses = Refuses()\n\
                stream = (n for n in 'ab')";
    ok(&sandbox, code).await?;
    let info = sandbox.create_snapshot(&name.0).await?;
    if has_variables(&info) {
        for (variable, why) in [("refuses", "not me"), ("stream", "generator")] {
            let said = |note: &String| note.contains(variable) && note.contains(why);
            ensure!(
                info.left_out.iter().any(said),
                "{variable} is named with the reason: {info:?}"
            );
            let other = started_from(&f, &name).await?;
            ensure_eq!(text(&other, "x").await?, "1");
            raises(&other, variable, "NameError").await?;
        }
    }
    name.delete(&f).await
}

async fn variables_that_end_their_interpreter_are_told(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    let code =
        "import os\nclass Ends:\n    def __reduce__(self): return os._exit, (3,)\nends = Ends()";
    ok(&sandbox, code).await?;
    let info = sandbox.create_snapshot(&name.0).await?;
    if has_variables(&info) {
        let builder = f.builder().snapshot_name(&name.0);
        let error = refused(builder.create().await, ErrorKind::Protocol)?;
        ensure!(error.message().contains(&name.0), "it does not say of what: {error}");
    }
    name.delete(&f).await
}

async fn a_sandbox_goes_back(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    ok(&sandbox, "import os\nos.makedirs('d/e')\nopen('d/e/f', 'w').write('1')").await?;
    sandbox.create_snapshot(&name.0).await?;
    for _ in 0..2 {
        ok(
            &sandbox,
            "import os\nopen('d/e/f', 'w').write('2'); open('new', 'w').close(); os.mkdir('.more')\n\
             os.rename('d', 'moved'); os.chdir('moved/e')",
        )
        .await?;
        sandbox.restore_snapshot(&name.0).await?;
        let found = "import os\n(open('d/e/f').read(), os.listdir('.'), os.getcwd() == os.path.realpath('.'))";
        ensure_eq!(text(&sandbox, found).await?, "('1', ['d'], True)");
    }
    name.delete(&f).await
}

async fn what_it_says_of_interpreters_holds(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    ok(&sandbox, "import json as j\nx = [1]\ndef f(): return x, j.dumps(x)").await?;
    let info = sandbox.create_snapshot(&name.0).await?;
    ok(&sandbox, "x.append(2); del f").await?;
    let restored = sandbox.restore_snapshot(&name.0).await?;
    if info.contexts.iter().chain(&info.variables).any(|context| context == "default") {
        ensure_eq!(restored.contexts, ["default"], "what was said before and after");
        ensure_eq!(text(&sandbox, "f()").await?, "([1], '[1]')");
        ensure_eq!(sandbox.get_variable::<serde_json::Value>("x").await?, serde_json::json!([1]));
    } else {
        let named = info.left_out.iter().any(|what| what.contains("default"));
        ensure!(named, "what it has not is named: {info:?}");
        raises(&sandbox, "x", "NameError").await?;
    }
    name.delete(&f).await
}

async fn going_back_leaves_a_sandbox_that_works(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    ok(&sandbox, "x = 1").await?;
    sandbox.run_code("y = 1").context("other").await?;
    sandbox.create_snapshot(&name.0).await?;
    for _ in 0..3 {
        sandbox.restore_snapshot(&name.0).await?;
        let printed =
            ok(&sandbox, "import sys\nprint('out'); print('err', file=sys.stderr)").await?;
        ensure_eq!(
            (printed.stdout_trimmed(), printed.stderr_trimmed()),
            ("out".into(), "err".into())
        );
        ensure!(!printed.restarted, "nothing was lost that was not asked for");
        let limit = Duration::from_millis(300);
        let late = sandbox.run_code("while True: pass").timeout(limit).await?;
        ensure_eq!(late.failure.map(|f| f.kind), Some(sandbox_core::FailureKind::Timeout));
        let running = sandbox.clone();
        let run =
            tokio::spawn(async move { running.run_code("import time; time.sleep(60)").await });
        until_executing(&sandbox).await?;
        ensure!(sandbox.interrupt().await?, "it is interrupted");
        ensure!(run.await??.interrupted, "the run says so");
        let other = sandbox.run_code("1 + 1").context("other").await?;
        ensure_eq!(other.text(), Some("2"));
        let died = sandbox.run_code("import os; os._exit(7)").await?;
        ensure_eq!(died.exit_code, Some(7));
        is_usable(&sandbox).await?;
    }
    name.delete(&f).await
}

async fn one_of_a_descendant(f: Fixture) -> Checked {
    let (sandbox, first, second) = (f.sandbox().await?, Name::new(), Name::new());
    ok(&sandbox, "open('a', 'w').write('1')").await?;
    sandbox.create_snapshot(&first.0).await?;
    let child = started_from(&f, &first).await?;
    ok(&child, "open('b', 'w').write('2')").await?;
    child.create_snapshot(&second.0).await?;
    // A sandbox may go to any snapshot, not only to one of its own.
    sandbox.restore_snapshot(&second.0).await?;
    let found = "import os\nsorted(os.listdir('.'))";
    ensure_eq!(text(&sandbox, found).await?, "['a', 'b']");
    let grandchild = started_from(&f, &second).await?;
    first.delete(&f).await?;
    ensure_eq!(text(&grandchild, found).await?, "['a', 'b']");
    second.delete(&f).await
}

async fn a_name_is_taken_once(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    ok(&sandbox, "open('a', 'w').write('1')").await?;
    let info = sandbox.create_snapshot(&name.0).await?;
    ok(&sandbox, "open('a', 'w').write('2')").await?;
    refused(sandbox.create_snapshot(&name.0).await, ErrorKind::AlreadyExists)?;
    ensure_eq!(listed(&f, &name).await?, Some(info));
    let other = started_from(&f, &name).await?;
    ensure_eq!(text(&other, "open('a').read()").await?, as_shown("'1'"));
    name.delete(&f).await?;
    sandbox.create_snapshot(&name.0).await?;
    let other = started_from(&f, &name).await?;
    ensure_eq!(text(&other, "open('a').read()").await?, as_shown("'2'"));
    name.delete(&f).await
}

async fn what_is_no_name_is_refused(f: Fixture) -> Checked {
    let (sandbox, call) = (f.sandbox().await?, CallContext::new());
    let long = "x".repeat(10 << 10);
    for name in ["", "../x", "/etc/passwd", ".", "..", "a/b", "a\0b", "a\nb", &long] {
        let kind = ErrorKind::InvalidArgument;
        refused(sandbox.create_snapshot(name).await, kind)?;
        refused(sandbox.restore_snapshot(name).await, kind)?;
        refused(f.backend().delete_snapshot(&call, name).await, kind)?;
        refused(f.builder().snapshot_name(name).create().await, kind)?;
    }
    is_usable(&sandbox).await.map(drop)
}

async fn what_is_not_there_is_not_found(f: Fixture) -> Checked {
    let (sandbox, name, call) = (f.sandbox().await?, Name::new(), CallContext::new());
    let kind = ErrorKind::NotFound;
    refused(f.builder().snapshot_name(&name.0).create().await, kind)?;
    refused(f.backend().delete_snapshot(&call, &name.0).await, kind)?;
    refused(sandbox.restore_snapshot(&name.0).await, kind)?;
    ok(&sandbox, "x = 1; open('a', 'w').write('1')").await?;
    sandbox.create_snapshot(&name.0).await?;
    name.delete(&f).await?;
    refused(f.builder().snapshot_name(&name.0).create().await, kind)?;
    refused(f.backend().delete_snapshot(&call, &name.0).await, kind)?;
    refused(sandbox.restore_snapshot(&name.0).await, kind)?;
    ensure_eq!(text(&sandbox, "(x, open('a').read())").await?, "(1, '1')");
    Ok(())
}

async fn while_code_runs_there_is_none(f: Fixture) -> Checked {
    let (sandbox, before, name) = (f.sandbox().await?, Name::new(), Name::new());
    sandbox.create_snapshot(&before.0).await?;
    let running = sandbox.clone();
    let run = tokio::spawn(async move { running.run_code("import time; time.sleep(1); 7").await });
    until_executing(&sandbox).await?;
    refused(sandbox.create_snapshot(&name.0).await, ErrorKind::Unavailable)?;
    refused(sandbox.restore_snapshot(&before.0).await, ErrorKind::Unavailable)?;
    ensure!(listed(&f, &name).await?.is_none(), "nothing is left of it");
    ensure_eq!(run.await??.text(), Some("7"), "the run did not notice");
    sandbox.create_snapshot(&name.0).await?;
    before.delete(&f).await?;
    name.delete(&f).await
}

async fn commands_are_named_and_end(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    let command = sandbox.commands().run("sleep 600").background().start().await?;
    let info = sandbox.create_snapshot(&name.0).await?;
    let named = info.left_out.iter().any(|what| what.contains("sleep 600"));
    ensure!(named, "it is named: {info:?}");
    sandbox.restore_snapshot(&name.0).await?;
    let end = command.events.filter(|event| {
        std::future::ready(matches!(event, sandbox_core::CommandEvent::Finished(_)))
    });
    let ended = within(WAIT_TIMEOUT, pin!(end).next()).await?;
    ensure!(ended.is_some(), "it has ended");
    name.delete(&f).await
}

async fn packages_come_along(f: Fixture) -> Checked {
    let (wheels, name) = (Wheelhouse::new()?, Name::new());
    wheels.module("tinya", "1.0", &[])?;
    wheels.module("tinyb", "2.0", &[])?;
    let options = wheels.options();
    let make =
        |builder: SandboxBuilder<SingleBackend>| builder.provider_option("pip", options.clone());
    let sandbox = f.create(&make).await?;
    sandbox.install_packages(["tinya"]).await?;
    sandbox.create_snapshot(&name.0).await?;
    let other = f.create(|builder| make(builder).snapshot_name(&name.0)).await?;
    ensure_eq!(text(&other, "import tinya; tinya.VERSION").await?, as_shown("'1.0'"));
    other.install_packages(["tinyb"]).await?;
    ensure_eq!(
        text(&other, "import tinyb; (tinya.VERSION, tinyb.VERSION)").await?,
        "('1.0', '2.0')"
    );
    other.restore_snapshot(&name.0).await?;
    ensure_eq!(text(&other, "import tinya; tinya.VERSION").await?, as_shown("'1.0'"));
    raises(&other, "import tinyb", "ModuleNotFoundError").await?;
    name.delete(&f).await
}

async fn what_the_user_installs_comes_along(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    let install = |module: &str| {
        format!(
            "import pathlib, sys\n\
             home = pathlib.Path.home()\n\
             site = home / '.local/lib' / ('python%d.%d' % sys.version_info[:2]) / 'site-packages'\n\
             site.mkdir(parents=True, exist_ok=True)\n\
             n = (site / '{module}.py').write_text('VERSION = 1')"
        )
    };
    ok(&sandbox, &install("tinya")).await?;
    ok(&sandbox, "import tinya; n = (home / 'notes.txt').write_text('x')").await?;
    let taken = sandbox.create_snapshot(&name.0).await?;
    let names_it = |told: &String| told.contains("notes.txt");
    ensure!(taken.left_out.iter().any(names_it), "not told: {:?}", taken.left_out);
    let other = f.create(|builder| builder.snapshot_name(&name.0)).await?;
    ensure_eq!(text(&other, "import tinya; tinya.VERSION").await?, "1");
    ok(&other, &install("tinyb")).await?;
    ok(&other, "import tinyb").await?;
    other.restore_snapshot(&name.0).await?;
    ensure_eq!(text(&other, "import tinya; tinya.VERSION").await?, "1");
    raises(&other, "import tinyb", "ModuleNotFoundError").await?;
    name.delete(&f).await
}

async fn a_disk_too_small_is_told(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    ok(&sandbox, "open('a', 'wb').write(b'x' * (20 << 20))").await?;
    sandbox.create_snapshot(&name.0).await?;
    let small = |mib| f.builder().snapshot_name(&name.0).disk(sandbox_core::ByteSize::mib(mib));
    refused(small(8).create().await, ErrorKind::ResourceExhausted)?;
    let enough = small(64).create().await?;
    f.keep(&enough);
    ensure_eq!(text(&enough, "import os; os.path.getsize('a') >> 20").await?, "20");
    name.delete(&f).await
}

async fn going_back_without_room_changes_nothing(f: Fixture) -> Checked {
    let name = Name::new();
    let sandbox = f.with_room(sandbox_core::ByteSize::mib(32)).await?;
    ok(&sandbox, "open('a', 'wb').write(b'x' * (12 << 20))").await?;
    sandbox.create_snapshot(&name.0).await?;
    ok(&sandbox, "x = 1\nopen('b', 'wb').write(b'x' * (12 << 20))").await?;
    refused(sandbox.restore_snapshot(&name.0).await, ErrorKind::ResourceExhausted)?;
    let found = "import os\n(x, sorted(os.listdir('.')))";
    ensure_eq!(text(&sandbox, found).await?, "(1, ['a', 'b'])");
    sandbox.files().remove("b", false).await?;
    sandbox.restore_snapshot(&name.0).await?;
    ensure_eq!(text(&sandbox, "import os\nos.listdir('.')").await?, "['a']");
    name.delete(&f).await
}

async fn a_file_that_nobody_can_read_is_an_error(f: Fixture) -> Checked {
    let (sandbox, name) = (f.sandbox().await?, Name::new());
    sandbox.files().write("sealed", "1").await?;
    ok(&sandbox, "import os\nos.chmod('sealed', 0)").await?;
    let error = refused(sandbox.create_snapshot(&name.0).await, ErrorKind::PermissionDenied)?;
    ensure!(error.to_string().contains("sealed"), "it is named: {error}");
    ensure!(listed(&f, &name).await?.is_none(), "nothing is left of it");
    Ok(())
}
