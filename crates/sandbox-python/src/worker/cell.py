"""Compiles and runs cells and scripts in `__main__`."""

import builtins
import sys
from posix import getpid

import _ast

codec = load("codec")
Script = load("scripts")["Script"]
exit_status = load("system_exit")["exit_status"]
text, number, frame = codec["text"], codec["number"], codec["frame"]

ERROR, EXIT = 20, 21
ONLY_AST = 0x0400
TOP_LEVEL_AWAIT = 0x2000
COROUTINE = 0x0080
MAX_LINE_LENGTH = 1000
KEPT_SOURCES = 1000
KEPT_CHARACTERS = 16 << 20
set_traceback = BaseException.__traceback__.__set__
traceback_of = BaseException.__traceback__.__get__
# Types whose `repr` is all there is to show.
UNDERSCORES = ("_", "__", "___")
NOTHING = object()
PLAIN = frozenset(
    (int, float, complex, bool, str, bytes, bytearray, list, tuple, dict, set, frozenset, type(Ellipsis), range)
)


class Cells:
    def __init__(self, driver):
        self.driver = driver
        self.main = new_main()
        self.flags = 0
        self.cell_number = 0
        self.sources = {}
        self.kept = 0
        self.values = (NOTHING,) * len(UNDERSCORES)
        self.is_cell = False
        self.loop = None  # of cells that await
        self.events = None  # what libraries have called around cells
        self.loop_is_wanted = False  # by code that made tasks and awaited none
        self.displayhook = displayhook(self)

    def adopt(self):
        """Starts as a worker."""
        self.hook_up(self.main)
        sys.displayhook = self.displayhook

    def hook_up(self, module):
        sys.modules["__main__"] = module

    def run(self, run):
        """Runs one request; returns the frames that end it, all but the last."""
        error = None
        run.sent = run.code
        run.code = run.code[1:] if run.code.startswith("\ufeff") else run.code
        if run.script:
            run.filename = run.filename or "<stdin>"
            self.remember(run)
            shown, error = self.run_script(run)
        else:
            self.cell_number += 1
            run.filename = run.filename or "<cell-%d>" % self.cell_number
            self.remember(run)
            self.is_cell = True
            shown, error = self.run_cell(run)
            self.is_cell = False
        if "matplotlib.pyplot" in sys.modules:
            _, failure = self.driver.user(load("rich")["show_wanted_figures"], self.driver)
            error = error or failure
        if not self.driver.streams.are_own():
            self.driver.user(self.driver.streams.flush_replaced)
        return (shown or b"") + self.ending(run, error)

    def remember(self, run):
        """Keeps the source, so that tracebacks can show its lines."""
        former = self.sources.pop(run.filename, "")
        self.sources[run.filename] = run.code
        self.kept += len(run.code) - len(former)
        if len(self.sources) > KEPT_SOURCES or self.kept > KEPT_CHARACTERS:
            self.forget_oldest()
        load("hooks")["remember_source"](run.filename, run.code)

    def forget_oldest(self):
        """Drops half of what is kept: one at a time, each drop would look through all that are gone."""
        names = list(self.sources)
        half = len(names) // 2
        for position, oldest in enumerate(names[:-1]):
            if position >= half and self.kept <= KEPT_CHARACTERS:
                break
            self.kept -= len(self.sources.pop(oldest))
            load("hooks")["forget_source"](oldest)
        self.sources = dict(self.sources)

    def forget_all(self):
        for name in self.sources:
            load("hooks")["forget_source"](name)
        self.sources, self.kept, self.cell_number = {}, 0, 0
        self.values = (NOTHING,) * len(UNDERSCORES)
        for name in UNDERSCORES:
            self.main.__dict__.pop(name, None)

    # Cells.

    def run_cell(self, run):
        self.hook_up(self.main)
        load("hooks")["forget_warnings"](self.main)
        codes, error = self.driver.user(self.compile, run)
        if error is not None:
            return None, error
        if self.events is None:
            return self.driver.user(self.run_codes, codes)
        return self.run_with_events(codes)

    def run_with_events(self, codes):
        trigger = self.events.trigger
        shown = None
        for event in ("pre_execute", "pre_run_cell"):
            _, error = self.driver.user(trigger, event)
            if error is not None:
                return None, error
        shown, error = self.driver.user(self.run_codes, codes)
        for event in ("post_execute", "post_run_cell"):
            _, failure = self.driver.user(trigger, event)
            error = error or failure
        return shown, error

    def compile(self, run):
        """Returns the code objects of a cell: its statements, then the last expression if it has one."""
        flags = self.flags | TOP_LEVEL_AWAIT
        source = run.code
        code = expression_code(source, run.filename, flags)
        if code is not None:
            return [(code, True)]
        tree, source = self.parsed(run, flags | ONLY_AST)
        for statement in tree.body:
            if type(statement) is _ast.ImportFrom and statement.module == "__future__":
                flags |= future_flags(statement)
        last = tree.body[-1] if tree.body else None
        codes = []
        if type(last) is _ast.Expr and not ends_with_semicolon(source, last):
            tree.body.pop()
        else:
            last = None
        if tree.body:
            codes.append((exec_code(tree, run.filename, flags), False))
        if last is not None:
            expression = _ast.Expression(last.value)
            codes.append((compile(expression, run.filename, "eval", flags, True), True))
        self.flags = flags & ~TOP_LEVEL_AWAIT
        return codes

    def parsed(self, run, flags):
        """Returns the syntax tree and the text of a cell. A cell that is not Python may have commands and magics."""
        failure = None
        try:
            return compile(run.code, run.filename, "exec", flags, True), run.code
        except SyntaxError as error:
            failure = error
        text = without_indent(run.code)
        if text != run.code:
            run.code = text
            self.remember(run)
            try:
                return compile(text, run.filename, "exec", flags, True), text
            except SyntaxError as error:
                failure = error
        return load("magics")["translate"](text, run.filename, flags, failure)

    def run_codes(self, codes):
        namespace = self.main.__dict__
        namespace.setdefault("__builtins__", builtins)
        if any(code.co_flags & COROUTINE for code, _ in codes):
            value = load("top_level_await")["run"](self.driver, codes, namespace)
        else:
            value = None
            for code, _ in codes:
                value = eval(code, namespace)
        if not codes or not codes[-1][1] or getpid() != self.driver.pid:
            value, shown = None, None
        else:
            shown = self.show(value)
        if self.loop_is_wanted:
            load("top_level_await")["take_first_steps"](self.driver)
        return shown

    def show(self, value):
        """Returns the frames of the value of a cell, unless code shows values itself."""
        hook = getattr(sys, "displayhook", None)
        if hook is not self.displayhook and callable(hook):
            try:
                hook(value)
                return None
            except Exception as error:
                self.driver.streams.note("sys.displayhook failed: %s: %s" % (type(error).__name__, error))
        if value is None:
            return None
        shown = self.driver.result(value)
        self.remember_value(value)
        return shown

    def remember_value(self, value):
        """Names the last values, unless code uses one of these names for something else."""
        names = self.main.__dict__
        if "_" in builtins.__dict__:
            return
        for name, own in zip(UNDERSCORES, self.values):
            if name in names and names[name] is not own:
                return
        self.values = (value,) + self.values[:-1]
        names.update((name, own) for name, own in zip(UNDERSCORES, self.values) if own is not NOTHING)

    def is_last_value(self, name):
        return name in UNDERSCORES and self.main.__dict__[name] is self.values[len(name) - 1]

    def remember_error(self, error, filename):
        """Keeps an exception where debuggers look for it; its traceback begins where user code does."""
        trace = load("errors")["user_frames"](traceback_of(error), filename)
        if issubclass(type(error), MemoryError):
            trace = None  # the frames hold what there was no room for
        set_traceback(error, trace)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        if sys.hexversion >= 0x030C0000:
            sys.last_exc = error

    # Scripts.

    def run_script(self, run):
        module = new_main()
        script = Script(run.filename, run.sent, self.driver.work_dir)
        self.hook_up(module)
        try:
            script.begin(module)
            code, error = self.driver.user(
                compile, run.code, run.filename, "exec", 0, True
            )
            if error is None:
                _, error = self.driver.user(exec, code, module.__dict__)
            error = self.finish_script(run, error)
        finally:
            self.hook_up(self.main)
            if getpid() == self.driver.pid:
                script.end()
        return None, error

    def finish_script(self, run, error):
        """Waits for the threads of a program and runs its exit functions."""
        if getpid() != self.driver.pid or type(error) is KeyboardInterrupt:
            return error
        if "threading" in sys.modules:
            _, failure = self.driver.user(join_threads)
            error = error or failure
        if "atexit" in sys.modules:
            _, failure = self.driver.user(sys.modules["atexit"]._run_exitfuncs)
            error = error or failure
        return error

    # Endings.

    def ending(self, run, error):
        """Returns the frame with the end of the run, or nothing when it just ended."""
        if type(error) is not KeyboardInterrupt:
            self.driver.interrupted = False
        self.driver.pending = False
        if error is None:
            return b""
        try:
            if issubclass(type(error), SystemExit):
                ending, _ = self.driver.user(exit_status, error)
                status, message = ending or (1, None)
                if message is not None:
                    self.driver.streams.note(message)
                return frame(EXIT, number(run.id), number(status))
            described, failure = self.driver.user(describe, error, run.filename)
            if failure is not None:
                described = load("errors")["describe_plainly"](error)
            if not run.script:
                self.driver.user(self.remember_error, error, run.filename)
            return frame(ERROR, number(run.id), *[text(part) for part in described])
        finally:
            # A traceback keeps every frame and its variables alive. That of the last error is kept, as everywhere.
            if error is not getattr(sys, "last_value", None):
                set_traceback(error, None)


def describe(error, filename):
    return load("errors")["describe"](error, filename)


def displayhook(cells):
    """Makes `sys.displayhook`. Code that has replaced it shows values itself."""

    def displayhook(value):
        """Shows a value as that of a cell."""
        driver = cells.driver
        if not cells.is_cell or driver.current is None:
            sys.__displayhook__(value)
        elif value is not None:
            driver.show(driver.result(value))
            cells.remember_value(value)

    return displayhook


def without_indent(source):
    """Returns the text without the spaces that its first line begins with. Lines stay where they are."""
    lines = source.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    if not indent:
        return source
    return "\n".join(line[len(indent) :] if line.startswith(indent) else line for line in lines)


def new_main():
    module = type(sys)("__main__")
    module.__builtins__ = builtins
    return module


def exec_code(tree, filename, flags):
    return compile(tree, filename, "exec", flags, True)


def expression_code(source, filename, flags):
    """Returns the code of a single line that is an expression, compiled in one step, or None."""
    if "\n" in source or source[:1].isspace() or len(source) > MAX_LINE_LENGTH:
        return None
    try:
        return compile(source, filename, "eval", flags, True)
    except SyntaxError:
        return None  # a statement, or an error that is found again where it is reported


def future_flags(statement):
    import __future__

    flags = 0
    for alias in statement.names:
        feature = getattr(__future__, alias.name, None)
        flags |= getattr(feature, "compiler_flag", 0)
    return flags


def ends_with_semicolon(source, statement):
    """Returns true for a semicolon at the end. Only brackets, comments and a semicolon can follow the last expression."""
    lines = source.encode("utf-8", "surrogatepass").splitlines()[statement.end_lineno - 1 :]
    lines[0] = lines[0][statement.end_col_offset :]
    return any(line.split(b"#")[0].rstrip().endswith(b";") for line in lines)


def join_threads():
    threading = sys.modules["threading"]
    own = threading.current_thread()
    for thread in threading.enumerate():
        if thread is not own and not thread.daemon:
            thread.join()
