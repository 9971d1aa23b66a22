"""What an interpreter of the toolbox lacks: the value of the last expression, exit statuses, scripts, standard input and
the output of child processes. Runs once in each interpreter, whose globals are the variables of a user.

`__sandbox_prepare__` gets the settings of the context and prints the process id behind a word. Afterwards
`__sandbox_run__(globals(), request)` runs one request and prints what came of it behind the word of the request.
"""


def __sandbox_prepare__(space, settings):
    import __future__
    import ast
    import base64
    import builtins
    import codecs
    import fcntl
    import inspect
    import io
    import json
    import keyword
    import linecache
    import os
    import select
    import shutil
    import signal
    import struct
    import sys
    import tempfile
    import termios
    import threading
    import time
    import traceback
    import types

    settings = json.loads(settings)
    piece_size = 32 << 10
    told_size = 100_000
    shown_frames = 100

    def tell(out, word, told):
        """Prints what came of a request: in pieces, for the toolbox takes no long lines."""
        text = json.dumps(told)
        for at in range(0, len(text), told_size):
            out.write("\0" + word + text[at : at + told_size] + "\n")
            out.flush()
        out.write("\0" + word + ".\n")
        out.flush()

    class Protocol(io.TextIOBase):
        """The stream to the toolbox, to which several threads write whole lines."""

        def __init__(self, descriptor):
            self.descriptor = descriptor
            self.local = threading.local()
            self.lock = threading.Lock()

        def writable(self):
            return True

        def write(self, text):
            parts = getattr(self.local, "parts", None)
            if parts is None:
                parts = self.local.parts = []
            parts.append(text)
            return len(text)

        def flush(self):
            data = "".join(getattr(self.local, "parts", ())).encode("utf-8", "replace")
            self.local.parts = []
            if not data:
                return
            # An interrupt in the middle of a line would spoil the next one too.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                with self.lock:
                    while data:
                        data = data[os.write(self.descriptor, data) :]
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    class Bytes(io.RawIOBase):
        """The binary side of a stream of code."""

        def __init__(self, stream):
            self.stream = stream

        def writable(self):
            return True

        def write(self, data):
            data = bytes(data)
            self.stream.write(data.decode("utf-8", "replace"))
            return len(data)

        def flush(self):
            self.stream.flush()

    class Stream(io.TextIOBase):
        """A standard stream of code: passes text on in pieces."""

        def __init__(self, out, descriptor):
            self.out = out
            self.descriptor = descriptor
            self.buffer = Bytes(self)

        encoding = "utf-8"
        errors = "replace"

        def writable(self):
            return True

        def fileno(self):
            return self.descriptor

        def write(self, text):
            if not isinstance(text, str):
                raise TypeError("write() argument must be str, not " + type(text).__name__)
            for at in range(0, len(text), piece_size):
                self.out.write(text[at : at + piece_size])
            return len(text)

        def flush(self):
            self.out.flush()

    class Child:
        """What processes write to a descriptor, passed on by a thread."""

        def __init__(self, descriptor, kind):
            self.kind = kind
            self.busy = False
            self.end, write = os.pipe()
            os.dup2(write, descriptor)
            os.close(write)
            threading.Thread(target=self.pump, daemon=True).start()

        def pump(self):
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            while True:
                select.select([self.end], [], [])
                self.busy = True
                data = os.read(self.end, piece_size)
                if not data:
                    return
                text = decoder.decode(data)
                out = sys.__stdout__
                if text:
                    out.write(json.dumps({"type": self.kind, "text": text}) + "\n")
                    out.flush()
                self.busy = False

        def drain(self):
            """Waits until all is passed on that was written so far."""
            end = time.monotonic() + 2
            size = struct.pack("i", 0)
            while time.monotonic() < end:
                unread = struct.unpack("i", fcntl.ioctl(self.end, termios.FIONREAD, size))[0]
                if not unread and not self.busy:
                    return
                time.sleep(0.001)

    def loop():
        import asyncio

        found = getattr(loop, "own", None)
        if found is None or found.is_closed():
            found = loop.own = asyncio.new_event_loop()
            asyncio.set_event_loop(found)
        return found

    def evaluate(code, space):
        value = eval(code, space)
        if code.co_flags & inspect.CO_COROUTINE:
            value = loop().run_until_complete(value)
        return value

    known = 0
    for feature in __future__.all_feature_names:
        known |= getattr(__future__, feature).compiler_flag
    future = 0

    def cell(source, name, space):
        nonlocal future
        if "asyncio" in source:
            loop()
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | future
        tree = compile(source, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        # All in one piece, so that tasks begin in the loop that awaits them.
        value = "__sandbox_value__"
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
            last = tree.body[-1]
            target = ast.copy_location(ast.Name(value, ast.Store()), last)
            tree.body[-1] = ast.copy_location(ast.Assign([target], last.value), last)
            ast.fix_missing_locations(tree)
        code = compile(tree, name, "exec", flags, dont_inherit=True)
        future |= code.co_flags & known
        try:
            evaluate(code, space)
        finally:
            shown = space.pop(value, None)
        return shown

    def script(request, path):
        module = types.ModuleType("__main__")
        module.__file__ = path
        module.__builtins__ = builtins
        before = sys.modules.get("__main__")
        argv, where = sys.argv, list(sys.path)
        sys.argv = [path] + request["argv"]
        sys.path.insert(0, os.path.dirname(path) if request["name"] else "")
        sys.modules["__main__"] = module
        try:
            exec(compile(request["code"], path, "exec", dont_inherit=True), module.__dict__)
        finally:
            sys.argv, sys.path[:] = argv, where
            if before is not None:
                sys.modules["__main__"] = before

    class File:
        """The file that a script is while it runs: one that is there, or one of its own."""

        def __init__(self, request):
            self.request = request
            self.directory = None

        def __enter__(self):
            name = self.request["name"]
            if not name:
                return "<stdin>"
            if self.is_there(name):
                return os.path.abspath(name)
            self.directory = tempfile.mkdtemp()
            path = os.path.join(self.directory, os.path.basename(name))
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.request["code"])
            return path

        def is_there(self, name):
            if not os.path.isfile(name):
                return False
            with open(name, encoding="utf-8", errors="replace") as file:
                return file.read() == self.request["code"]

        def __exit__(self, *_):
            if self.directory:
                shutil.rmtree(self.directory, ignore_errors=True)

    class Main(types.ModuleType):
        """`__main__` as code imports it: the variables of the context."""

        @property
        def __dict__(self):
            return variables

        def __getattr__(self, name):
            try:
                return variables[name]
            except KeyError:
                raise AttributeError(f"module '__main__' has no attribute {name!r}") from None

        def __setattr__(self, name, value):
            variables[name] = value

        def __delattr__(self, name):
            del variables[name]

        def __dir__(self):
            return list(variables)

    def explain(error, name):
        """The exception with the frames of code alone."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != name:
            trace = trace.tb_next
        depth, last = 0, trace
        while last is not None:
            depth, last = depth + 1, last.tb_next
        limit = shown_frames if depth > 2 * shown_frames else None
        lines = list(traceback.TracebackException(type(error), error, trace, limit=limit).format())
        if limit:
            lines.insert(-1, f"  [{depth - limit} more frames]\n")
        try:
            value = str(error)
        except BaseException:
            value = ""
        return [type(error).__name__, value, "".join(lines)]

    def check_name(name):
        if not name.isidentifier() or keyword.iskeyword(name):
            raise LookupError("invalid", f"{name!r} is not an identifier")
        if name.startswith("__") and name.endswith("__"):
            raise LookupError("invalid", f"{name!r} belongs to the interpreter")

    def get(space, name):
        check_name(name)
        if name not in space:
            raise LookupError("not_found", f"variable {name!r} not found")
        try:
            return json.dumps(space[name], allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise LookupError("invalid", f"{name!r} has no JSON form: {error}") from None

    class Environment:
        """Variables and a directory for one run."""

        def __init__(self, request):
            self.env = request.get("env") or {}
            self.cwd = request.get("cwd")

        def __enter__(self):
            self.before = {name: os.environ.get(name) for name in self.env}
            self.directory = None
            if self.cwd:
                self.directory = os.getcwd()
                try:
                    os.chdir(self.cwd)
                except OSError as error:
                    raise LookupError("directory", str(error)) from None
            os.environ.update(self.env)
            if "TZ" in self.env:
                time.tzset()

        def __exit__(self, *_):
            for name, value in self.before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            if "TZ" in self.env:
                time.tzset()
            if self.directory:
                try:
                    os.chdir(self.directory)
                except OSError:
                    pass

    count = 0

    def run(space, request):
        nonlocal count
        request = json.loads(request)
        told = {}
        out, err = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = Stream(out, 1), Stream(err, 2)
        given = base64.b64decode(request.get("stdin") or "")
        sys.stdin = io.TextIOWrapper(io.BytesIO(given), encoding="utf-8", errors="replace")
        name = request.get("name") or "<stdin>"
        sys.modules["__main__"] = main
        try:
            kind = request["kind"]
            if kind == "get":
                told["value"] = get(space, request["variable"])
            elif kind == "set":
                values = request["values"]
                for variable in values:
                    check_name(variable)
                space.update(values)
            elif kind == "script":
                count += 1
                with Environment(request), File(request) as path:
                    name = path
                    remember(name, request["code"])
                    script(request, path)
            else:
                count += 1
                name = f"<cell-{count}>"
                remember(name, request["code"])
                with Environment(request):
                    value = cell(request["code"], name, space)
                if value is not None:
                    space["_"] = value
                    told["text"] = repr(value)
        except LookupError as error:
            if len(error.args) == 2 and error.args[0] in ("not_found", "invalid", "directory"):
                told["failed"] = list(error.args)
            else:
                told["error"] = explain(error, name)
        except SystemExit as end:
            told["exit"] = status(end, err)
        except KeyboardInterrupt as error:
            told["interrupted"] = True
            told["error"] = explain(error, name)
        except BaseException as error:
            told["error"] = explain(error, name)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        sys.stdout, sys.stderr, sys.stdin = out, err, requests
        for child in children:
            child.drain()
        out.flush()
        err.flush()
        told["count"] = count
        told["threads"] = max(0, threading.active_count() - 1 - len(children))
        tell(out, request["word"], told)

    def status(end, err):
        code = end.code
        if code is None:
            return 0
        if isinstance(code, int):
            return int(code)
        err.write(f"{code}\n")
        return 1

    def remember(name, source):
        lines = source.splitlines(True)
        linecache.cache[name] = (len(source), None, lines, name)

    if not hasattr(builtins, "__sandbox_run__"):
        sys.__stdout__ = Protocol(os.dup(1))
        os.register_at_fork(
            after_in_child=lambda: setattr(sys.__stdout__, "lock", threading.Lock())
        )
        children = [Child(1, "stdout"), Child(2, "stderr")]
        # Code and its children must not read requests.
        requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        sys.stdin = requests
        builtins.__sandbox_run__ = run
        variables = space
        main = Main("__main__")
        os.environ.update(settings["env"])
        if settings["packages"] not in sys.path:
            sys.path.append(settings["packages"])
        if settings["cwd"]:
            os.makedirs(settings["cwd"], exist_ok=True)
            os.chdir(settings["cwd"])
    tell(sys.stdout, settings["word"], {"pid": os.getpid()})
