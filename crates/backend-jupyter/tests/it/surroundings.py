"""What code finds around it in a kernel, by name. Of two kernels that are alike, all of it is equal."""


def surroundings():
    import sys

    modules = sorted(sys.modules)
    import asyncio
    import atexit
    import faulthandler
    import gc
    import io
    import json
    import locale
    import multiprocessing
    import os
    import pickle
    import platform
    import posix
    import random
    import re
    import resource
    import signal
    import site
    import subprocess
    import sysconfig
    import tempfile
    import threading
    import time
    import traceback
    import types
    import warnings

    own = str(os.getpid())

    def read(path):
        try:
            return open(path).read()
        except OSError as error:
            return repr(error)

    def status(names):
        lines = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
        return {name: lines.get(name, "").strip() for name in names}

    def child(code, *options):
        done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True)
        return [done.returncode, done.stdout, done.stderr]

    def pool(method):
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            return pool.map(len, ["abc"])

    def stream(of):
        raw = getattr(of, "buffer", None)
        of_raw = getattr(raw, "raw", None)
        return [
            type(of).__name__,
            str(of.name),
            of.encoding,
            str(of.errors),
            getattr(of, "mode", None),
            getattr(of, "line_buffering", None),
            getattr(of, "write_through", None),
            of.isatty(),
            of.fileno() if isinstance(of, io.TextIOWrapper) else None,
            of.seekable(),
            type(raw).__name__,
            getattr(raw, "mode", None),
            str(getattr(raw, "name", None)),
            repr(of_raw).replace(own, "N"),
        ]

    def interrupted():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
        except KeyboardInterrupt:
            return True
        return False

    def stack():
        return [[frame.name, os.path.basename(frame.filename)] for frame in traceback.extract_stack()][:4]

    def places(value):
        """Without what is each kernel's own: the folder with its sockets."""
        return re.sub(r"\.k-[0-9a-f]+", ".k-N", value)

    def debugger_of(pid):
        module = sys.modules.get("_pydevd_bundle._debug_adapter.pydevd_schema_log")
        return module is not None and module._pid == pid

    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    files = []
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            file = os.readlink("/proc/self/fd/" + name).split(":")
        except OSError:
            continue
        files.append([name, file[0]])
    # Each thread that has published something has one. Who imports the debugger is warned by it, which is published.
    published = len(get_ipython().kernel.iopub_thread._event_pipes)
    signals = {}
    for number in signal.valid_signals():
        signals[int(number)] = repr(signal.getsignal(number)).partition(" at 0x")[0]
    found = {
        "affinity": len(os.sched_getaffinity(0)),
        "argv": [places(word) for word in sys.argv],
        "asyncio": [type(asyncio.get_event_loop_policy()).__name__, type(asyncio.get_event_loop()).__name__],
        "audit": sys.audit.__name__,
        "base_prefix": [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.platlibdir],
        "builtins": sorted(dir(__builtins__) if isinstance(__builtins__, types.ModuleType) else __builtins__),
        "byte_code": [sys.dont_write_bytecode, sys.pycache_prefix, os.path.exists("/tmp/__pycache__")],
        "child": child("import sys, os; print(sys.flags, sys.path, dict(os.environ))".replace("dict(os.environ)", "sorted(os.environ)")),
        "cmdline": [places(word) for word in read("/proc/self/cmdline").split("\0")],
        "comm": read("/proc/self/comm"),
        "cwd": os.getcwd(),
        "debugger": [type(get_ipython().kernel.debugger).__name__, debugger_of(os.getpid())],
        "displayhook": type(sys.displayhook).__name__,
        "environ": {name: places(value) for name, value in os.environ.items()},
        "environ_kept": sorted(places(word) for word in read("/proc/self/environ").split("\0")),
        "environb": sorted(places(os.fsdecode(name)) for name in os.environb),
        "excepthook": repr(sys.excepthook).partition(" at 0x")[0],
        "exe": os.readlink("/proc/self/exe"),
        "executable": [sys.executable, sys._base_executable],
        "faulthandler": faulthandler.is_enabled(),
        "files": len(files) - published,
        "first_files": files[:3],
        "flags": repr(sys.flags),
        "frozen": gc.get_freeze_count(),
        "gc": [gc.isenabled(), gc.get_threshold()],
        "hooks": [repr(hook).partition(" at 0x")[0] for hook in sys.meta_path + sys.path_hooks],
        "home": [os.path.expanduser("~"), tempfile.gettempdir()],
        "id": [os.getuid(), os.getgid(), os.getgroups()],
        "importers": sorted(path for path, finder in sys.path_importer_cache.items()),
        "interrupted": interrupted(),
        "limits": limits,
        "locale": [locale.getpreferredencoding(), locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "main": [main.__name__, str(getattr(main, "__file__", None)), str(getattr(main, "__package__", None)), str(spec), str(getattr(main, "__loader__", None))[:30]],
        "main_names": sorted(name for name in vars(main) if not name.startswith("_i")),
        "machine": [*platform.uname(), platform.platform()],
        "main_thread": [threading.main_thread() is threading.current_thread(), threading.main_thread().name, threading.main_thread().native_id == os.getpid()],
        "modules": modules,
        "multiprocessing": [pool("fork"), pool("spawn"), multiprocessing.current_process().name, multiprocessing.parent_process()],
        "nice": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), read("/proc/self/oom_score_adj")],
        "orig_argv": [places(word) for word in getattr(sys, "orig_argv", [])],
        "path": sys.path,
        "posix_environ": sorted(places(os.fsdecode(name)) for name in posix.environ),
        "pickle": pickle.loads(pickle.dumps(os.path.join)) is os.path.join,
        "random": len({random.random() for _ in range(2)}),
        "recursion": sys.getrecursionlimit(),
        "session": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "signals": signals,
        "signals_blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "site": [site.ENABLE_USER_SITE, site.USER_SITE, site.USER_BASE, site.PREFIXES],
        "stack": stack(),
        "status": status(["NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "SigBlk", "SigIgn", "SigCgt", "Groups", "Umask", "CoreDumping"]),
        "streams": [stream(of) for of in (sys.__stdin__, sys.__stdout__, sys.__stderr__)],
        "streams_shown": [type(of).__name__ for of in (sys.stdin, sys.stdout, sys.stderr)],
        "switch": sys.getswitchinterval(),
        "sysconfig": [sysconfig.get_config_var("userbase"), sysconfig.get_path("purelib")],
        "tempfile": tempfile.gettempprefix(),
        # The debugger has threads when it is imported that are never started, and are numbered before or after these.
        "threads": sorted(re.sub(r"-[0-9]+ .(_watch_pipe_fd)", r" \1", thread.name) for thread in threading.enumerate()),
        "threads_so_far": threading.Thread().name,
        "time": [time.tzname, time.timezone, time.localtime(0)[3]],
        "umask": os.umask(0o22),
        "unraisable": repr(sys.unraisablehook),
        "warnings": [str(entry) for entry in warnings.filters],
        "xoptions": repr(sys._xoptions),
    }
    print(json.dumps(found))


surroundings()
