"""Extends an IPython kernel of a sandbox.

Runs inside the kernel, once, before any user code. The metadata of each request to run code holds the settings of this
run: environment, directory, standard input, and if it is a script. The reply is extended by what the protocol lacks,
such as an exit status. Calls of tools, and standard input, are messages on the stdin channel with a secret prefix.
"""

import builtins
import os
import sys
import threading
from _thread import allocate_lock, get_ident
from itertools import count
from signal import SIG_IGN, SIGINT, pthread_kill
from signal import signal as set_signal
from time import sleep

from IPython import get_ipython

PREFIX = SETTINGS["prefix"]
KEY = SETTINGS["key"]
# True if the descriptors 1 and 2 lead to the host, beside the published messages.
OWN_STREAMS = SETTINGS["own_streams"]
HOME = SETTINGS["home"]
INVALID = 2
ITEM_LIMIT = 16 << 20
RUN_LIMIT = 64 << 20
NAG_SECONDS = 0.002
MAIN_THREAD = get_ident()

PARTS = {"driver": globals()}


LOADING = threading.RLock()


def load(name):
    if name not in PARTS:
        with LOADING:
            if name not in PARTS:
                part = {"__name__": "sandbox_" + name, "load": load}
                exec(compile(SOURCES[name], "<sandbox %s>" % name, "exec"), part)
                PARTS[name] = part
    return PARTS[name]


codec = load("codec")
ipython = load("ipython")
described, is_formatter = ipython["described"], ipython["is_formatter"]
split, as_number = codec["split"], codec["as_number"]


class Driver:
    """Provides the interface of a worker to the parts."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.shell = kernel.shell
        self.pid = os.getpid()
        self.lock = allocate_lock()
        self.current = None
        self.calls = None
        self.masked = 0
        self.pending = self.interrupted = self.nagging = False
        self.gate = allocate_lock()
        self.interruptible = self.cancelled = None
        self.buffer = b""
        self.stdin_channel = None
        self.streams = own_streams() if OWN_STREAMS else ipython["Published"]()
        if OWN_STREAMS:
            self.streams.deliver_by(self.deliver)
        self.arrivals = load("installed")["Arrivals"](HOME, self.streams.note)
        sys.meta_path.append(self.arrivals)
        self.baseline = set()
        self.request, self.published = None, count()
        self.marks, self.marking = count(1), allocate_lock()

    # The connection to the host.

    @property
    def control(self):
        return self.opened().near.fileno()

    def opened(self):
        if self.stdin_channel is None:
            self.stdin_channel = load("stdin_channel")["StdinChannel"](self)
        return self.stdin_channel

    def send(self, data):
        if os.getpid() == self.pid:
            self.masked += get_ident() == MAIN_THREAD
            try:
                self.opened().near.sendall(data)
            finally:
                self.masked -= get_ident() == MAIN_THREAD

    def receive(self, flags=0):
        try:
            data = self.opened().near.recv(1 << 20, flags)
        except BlockingIOError:
            return
        self.buffer = bytearray(self.buffer) + data if self.buffer else data

    def buffered_answer(self):
        buffer = self.buffer
        if len(buffer) < 4:
            return None
        end = 4 + int.from_bytes(buffer[:4], "little")
        if len(buffer) < end:
            return None
        self.buffer = buffer[end:]
        return buffer[4], split(bytes(buffer[5:end]))

    # Interrupts. The host names the run, so that no other run is interrupted.

    def interrupt(self, run):
        """Interrupts a run. Called by the thread that receives messages of the host."""
        with self.gate:
            if self.interruptible == run:
                # A real signal, because nothing else wakes a blocking call.
                pthread_kill(MAIN_THREAD, SIGINT)
            else:
                self.cancelled = run

    def on_interrupt(self, signum, frame):
        if os.getpid() == self.pid and (self.masked or self.is_writing(frame)):
            return self.postpone()
        self.pending = False
        self.interrupted = True
        raise KeyboardInterrupt

    def is_writing(self, frame):
        """Returns true if an interrupt could make the text stream write bytes twice."""
        return OWN_STREAMS and frame is not None and frame.f_code is load("streams")["WRITE"]

    def postpone(self):
        """Repeats the interrupt until it meets code that may be interrupted, or the run has ended."""
        self.pending = True
        if not self.nagging:
            self.nagging = True
            threading.Thread(target=self.nag, daemon=True).start()

    def nag(self):
        while self.pending and self.current is not None:
            sleep(NAG_SECONDS)
            if self.pending and not self.masked and self.current is not None:
                pthread_kill(MAIN_THREAD, SIGINT)
        self.nagging = False

    def deliver(self):
        if self.pending and not self.masked and get_ident() == MAIN_THREAD:
            self.pending = False
            self.interrupted = True
            raise KeyboardInterrupt

    # Requests.

    async def execute(self, asked, original, arguments):
        """Executes one request. Returns the reply of the kernel with additions."""
        if "get" in asked or "set" in asked:
            return {"status": "ok", "user_expressions": {}, "payload": [], KEY: self.variable(asked)}
        undo = []
        told = {}
        self.shown, self.unshown, self.traced = 0, None, None
        self.stdin_channel.address()
        self.interrupted = self.pending = False
        self.request, self.published = ipython["request_of"](self.kernel.get_parent("shell")), count()
        try:
            self.prepare(asked, undo)
        except Exception as error:
            while undo:
                undo.pop()()
            return {"status": "ok", "user_expressions": {}, "payload": [], KEY: {"failed": str(error)}}
        self.current = asked["id"]
        set_signal(SIGINT, self.on_interrupt)
        with self.gate:
            self.interruptible = asked["id"]
            come_before = self.cancelled == asked["id"]
        error = None
        try:
            if come_before:
                self.interrupted = True
                raise KeyboardInterrupt
            if "script" in asked:
                reply, error = self.run_script(arguments["code"], asked["script"])
            else:
                reply = await self.run_cell(original, arguments)
                error = self.raised()
                if error is None and self.traced is not None:
                    error, lines = self.traced
                    reply.update(failure_of(error, lines))
                elif error is None and self.unshown is not None:
                    error = self.unshown
                    reply.update(failure_of(error, described(error, error.__traceback__)))
                elif self.interrupted and type(error).__name__ == "CancelledError":
                    reply.update(failure_of(KeyboardInterrupt(), ["KeyboardInterrupt"]))
            self.masked += 1
            self.leave_copy(error, reply)
            if isinstance(error, SystemExit):
                status, message = load("system_exit")["exit_status"](error)
                if message is not None:
                    self.streams.note(message)
                told["exit"] = status
                reply = {"status": "ok", "user_expressions": {}, "payload": []}
        except KeyboardInterrupt:
            # The interrupt came before the code had started, or when it had just ended.
            self.masked += 1
            reply = failure_of(KeyboardInterrupt(), ["KeyboardInterrupt"])
            reply.update(user_expressions={}, payload=[])
        with self.gate:
            self.interruptible = None
        set_signal(SIGINT, SIG_IGN)
        self.masked = 0
        self.pending = False
        with self.lock:
            self.current = None
        for step in reversed(undo):
            try:
                step()
            except Exception:
                pass  # user code has made this step impossible
        self.streams.flush()
        # The kernel writes to the streams before it replies, and does not reply if they are closed.
        self.streams.restore()
        if self.calls is not None:
            self.calls.end()
        if reply.get("status") == "error":
            reply["ename"], reply["evalue"] = clean(reply["ename"]), clean(reply["evalue"])
            reply["traceback"] = [clean(line) for line in reply.get("traceback") or ()]
        told["interrupted"] = self.interrupted
        told["threads"] = self.threads()
        told["published"] = next(self.published)
        reply[KEY] = told
        return reply

    async def run_cell(self, original, arguments):
        """Runs a cell. Creates the reply if the kernel does not, because an exception raises in its own text."""
        shell = self.shell
        before = getattr(shell, "last_execution_result", None)
        try:
            return await original(**arguments)
        except (Exception, SystemExit):
            result, error = getattr(shell, "last_execution_result", None), self.raised()
            if error is None or result is before:
                raise
            reply = failure_of(error, getattr(shell, "_last_traceback", None) or [])
            reply.update(execution_count=shell.execution_count - 1, user_expressions={}, payload=[])
            return reply

    def prepare(self, asked, undo):
        self.streams.restore()
        self.streams.put_in_place()
        self.arrivals.look()
        if "script" in asked:
            undo.append(self.streams.lend())
        if "stdin" in asked:
            read, write = os.pipe()
            undo.append(self.streams.give_stdin(read))
            undo.append(self.opened().feed(write))
        has_arguments = "script" in asked or "argv" in asked
        argv = asked.get("argv") or [asked.get("script") or "-"] if has_arguments else None
        env = list(asked.get("env", {}).items())
        load("run_settings")["apply"](undo, argv, asked.get("cwd"), env, SETTINGS["cwd"])

    def limited(self, bundle):
        """Returns the representations within the limits, and notes the others."""
        kept = {}
        for mime, data in bundle.items():
            if isinstance(data, str):
                data = clean(data)
            elif not isinstance(data, bytes):
                data, problem = self.sendable(data)
                if problem is not None:
                    self.streams.note("%s dropped: %s" % (mime, problem))
                    continue
            size = len(data) if isinstance(data, (str, bytes)) else 0
            if mime == "text/plain" and isinstance(data, str):
                data = codec["cut"](data)
                size = len(data)
            if size > ITEM_LIMIT:
                limit = "%d MiB for one item" % (ITEM_LIMIT >> 20)
            elif self.shown + size > RUN_LIMIT:
                limit = "%d MiB for one run" % (RUN_LIMIT >> 20)
            else:
                self.shown += size
                kept[mime] = data
                continue
            self.streams.note("%s of %d bytes dropped: over the limit of %s" % (mime, size, limit))
        return kept

    def described(self, metadata):
        """Returns the metadata of representations, without metadata that cannot be sent."""
        if not metadata:
            return metadata
        sent, problem = self.sendable(metadata)
        if problem is not None:
            self.streams.note("metadata of a representation dropped: %s" % problem)
        return sent if problem is None else {}

    def sendable(self, data):
        """Returns the data as a message would contain it, and the reason if it cannot be sent and would cost the reply.

        The returned data must be used instead of the original: an iterator in it yields its values once.
        """
        session = self.kernel.session
        try:
            return session.unpack(session.pack(data)), None
        except Exception as error:
            return None, "%s: %s" % (type(error).__name__, error)

    def formatter_failed(self, error):
        """Omits a representation that raised. A cell value without plain text is an error."""
        frame = sys._getframe()
        plain = hooked = False
        trace = error.__traceback__
        while trace is not None and is_formatter(trace.tb_frame):
            plain = plain or type(trace.tb_frame.f_locals.get("self")).__name__ == "PlainTextFormatter"
            trace = trace.tb_next
        while frame is not None:
            hooked = hooked or frame.f_code.co_filename.endswith("IPython/core/displayhook.py")
            frame = frame.f_back
        if plain and hooked:
            self.unshown = error
        else:
            self.streams.note("a representation failed: %s: %s" % (type(error).__name__, error))

    def traceback_shown(self, error, lines):
        """Records an exception of code within a cell, such as `%run`. The reply reports the last one."""
        if self.traced is not None:
            self.streams.note("\n".join(self.traced[1]))
        self.traced = error, lines

    def raised(self):
        """Returns the exception of a cell."""
        result = getattr(self.shell, "last_execution_result", None)
        error = getattr(result, "error_before_exec", None)
        return getattr(result, "error_in_exec", None) if error is None else error

    def run_script(self, code, filename):
        """Runs a program in a new `__main__`, without echo. Its directory is the first entry of the import path."""
        module = type(sys)("__main__")
        module.__builtins__ = builtins
        script = load("scripts")["Script"](filename, code, SETTINGS["cwd"])
        former = sys.modules.get("__main__")
        load("hooks")["remember_source"](filename, code)
        sys.modules["__main__"] = module
        self.exits.active = True
        error = None
        try:
            script.begin(module)
            program = compile(code[1:] if code.startswith("\ufeff") else code, filename, "exec", 0, True)
            exec(program, module.__dict__)
        except BaseException as raised:
            error = raised
        if os.getpid() == self.pid and not isinstance(error, KeyboardInterrupt):
            for step in (self.join_threads, self.run_exit_functions):
                try:
                    step()
                except BaseException as raised:
                    error = error or raised
        self.exits.active = False
        try:
            self.streams.flush_replaced()
        except Exception:
            pass  # a stream of user code
        sys.modules["__main__"] = former
        if os.getpid() == self.pid:
            script.end()
        self.show_figures()
        reply = {"status": "ok", "user_expressions": {}, "payload": []}
        if error is not None:
            name, value, trace = load("errors")["describe"](error, filename)
            reply.update(status="error", ename=name, evalue=value, traceback=trace.split("\n"))
        return reply, error

    def show_figures(self):
        inline = sys.modules.get("matplotlib_inline.backend_inline")
        if inline is not None:
            try:
                inline.flush_figures()
            except Exception:
                pass  # the kernel would not report it either

    def join_threads(self):
        own = threading.current_thread()
        for thread in threading.enumerate():
            if thread is not own and not thread.daemon and thread not in self.baseline:
                thread.join()

    def run_exit_functions(self):
        """Runs the exit functions of the program. Those of the kernel run at its own end."""
        for function, arguments, options in self.exits.taken():
            function(*arguments, **options)

    def threads(self):
        return len([thread for thread in threading.enumerate() if thread not in self.baseline])

    def leave_copy(self, error, reply):
        """Ends a forked copy of the kernel whose user code did not exit, as at the end of a program."""
        if os.getpid() == self.pid:
            return
        status = 0
        if isinstance(error, SystemExit):
            status = load("system_exit")["exit_status"](error)[0] & 0xFF
        elif error is not None:
            status = 1
            self.streams.note("\n".join(reply.get("traceback") or ()))
        self.streams.flush()
        os._exit(status)

    def variable(self, asked):
        variables = load("variables")
        name = "get" if "get" in asked else "set"
        action = variables["get" if "get" in asked else "put"]
        try:
            failure, content = action(self.shell.user_module, asked[name])
        except BaseException as error:
            failure, content = variables["failure"](error)
        text = content if isinstance(content, str) else str(content, "utf-8")
        return {"value": text} if failure is None else {"failure": failure, "message": text}


def clean(text):
    """Escapes lone surrogates, which have no UTF-8 form."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def failure_of(error, lines):
    value = load("errors")["value_of"](error)
    return {"status": "error", "ename": type(error).__name__, "evalue": value, "traceback": lines}


def own_streams():
    """Creates standard streams on the descriptors themselves: exact, in order, and blocking without a reader."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        former = getattr(getattr(sys, name), "_original_stdstream_copy", None)
        if former is not None:
            getattr(sys, name).flush()
            os.dup2(former, number)
    streams = load("streams")["Streams"]()
    streams.adopt()
    return streams


def attach():
    shell = get_ipython()
    kernel = shell.kernel
    driver = Driver(kernel)
    driver.exits = ipython["Exits"]()
    own = {name: getattr(builtins, name, None) for name in ("display",)}
    load("builtins_api")["offer"](driver)
    from IPython import display as shown

    for name in ("display", "update_display", "clear_output"):
        setattr(builtins, name, own.get(name) or getattr(shown, name))
    original = kernel.do_execute

    async def do_execute(code, silent, store_history=True, user_expressions=None, allow_stdin=False, **more):
        arguments = dict(
            code=code,
            silent=silent,
            store_history=store_history,
            user_expressions=user_expressions,
            allow_stdin=allow_stdin,
        )
        asked = (kernel.get_parent("shell") or {}).get("metadata", {}).get(KEY)
        if not isinstance(asked, dict):
            return await original(**arguments)
        return await driver.execute(asked, original, arguments)

    kernel.do_execute = do_execute
    kernel.raw_input = ipython["read_line"]
    kernel.getpass = ipython["read_password"]
    kernel._execute_sleep = 0
    # Otherwise an interrupt may hit code of the kernel, which does not survive it.
    kernel.pre_handler_hook = kernel.post_handler_hook = lambda: None
    kernel._cancel_on_sigint = ipython["interruptible"](driver)
    ipython["uninterrupted_callbacks"](driver)
    ipython["nested_run"]()
    ipython["counted"](driver)
    if OWN_STREAMS:
        ipython["marked"](driver)
    ipython["plain_tracebacks"](driver)
    ipython["bounded_displays"](driver)
    ipython["describes_data"](shell)
    # Commands use the descriptors; IPython would create a terminal for each.
    shell.system = shell.system_raw
    load("hooks")["STATE"]["driver"] = driver
    shell.register_magic_function(lambda line: load("magics")["shell"]("%pip " + line, False), "line", "pip")
    ipython["shows_pages"](shell)
    # Keeps line numbers.
    cleaned = shell.input_transformer_manager.cleanup_transforms
    cleaned[:] = [transform for transform in cleaned if getattr(transform, "__name__", "") != "leading_empty_lines"]
    from IPython.core import interactiveshell

    interactiveshell.warn = ipython["quieter"](interactiveshell.warn)
    for name in ("exit", "quit"):
        shell.user_ns[name] = shell.user_ns_hidden[name] = ipython["Exit"](shell)
        setattr(builtins, name, shell.user_ns[name])
    sys.argv = [""]
    if "" not in sys.path:
        sys.path.insert(0, "")
    driver.opened()
    driver.baseline = set(threading.enumerate())


attach()
