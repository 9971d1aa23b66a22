"""Turns a forked process into a worker: enters the cell, gives up all rights, checks that."""

import sys
from _signal import SIGKILL
from os import environ
from posix import O_CLOEXEC, O_DIRECTORY, O_RDONLY, O_WRONLY
from posix import _exit, chdir, close, closerange, dup2, listdir, mkdir, open, read
from posix import setresgid, setresuid
from posix import setsid, strerror, umask, write

import _ctypes
from fcntl import F_DUPFD_CLOEXEC, fcntl
from resource import RLIM_INFINITY, getrlimit, setrlimit
from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_USE_ERRNO, CFuncPtr, _SimpleCData, dlopen, get_errno

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
INSTRUCTION = 8  # bytes of one instruction of a filter
PR_GET_SECUREBITS = 27
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
CELL = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
CAPABILITY_VERSION_3 = 0x20080522
# The same numbers on every architecture.
SYS_CLONE3 = 435
SYS_CLOSE_RANGE = 436
SYS_LANDLOCK_RESTRICT_SELF = 446
# Accesses that only rulesets of Landlock refuse: in a cell any process could write its root otherwise, and on a host
# any process may list it, and few may write.
UNWRITABLE = "/.unwritable"
UNREADABLE = "/"
CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapAmb")
STATUS_MAX = 16384
# No user id means privileges, and none come back: each with its lock.
SECUREBITS = 0b1110_1111
MAX_FILES = (1 << 31) - 1
LAST_CAPABILITY = [0]  # of this kernel, known once prepared
EACCES, ENOSYS = 13, 38
REFUSED = 17
# The control stream and the spare copies of standard input, output and error live here, out of
# the way of the small numbers that programs like to use for themselves.
CONTROL = 100
FIRST_FREE = 101


# `ctypes` itself costs milliseconds to import; this is the little of it that is needed here.
class _Long(_SimpleCData):
    _type_ = "l"


class _Pointer(_SimpleCData):
    _type_ = "z"


class _Function(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
    _restype_ = _Long


def _function(name, *arguments):
    function = _Function(_ctypes.dlsym(dlopen(None, 0), name))
    function.argtypes = arguments
    return function


_prctl = _function("prctl", _Long, _Long, _Long, _Long, _Long)
_seccomp = _function("prctl", _Long, _Long, _Pointer, _Long, _Long)
_setns = _function("setns", _Long, _Long)
_unshare = _function("unshare", _Long)
_capset = _function("capset", _Pointer, _Pointer)
_syscall = _function("syscall", _Long, _Long, _Long, _Long)


def _check(result):
    # The return type of these functions is `int`; the upper half of the register is noise.
    if result & 0xFFFFFFFF == 0xFFFFFFFF:
        number = get_errno()
        raise OSError(number, strerror(number))


def lowered(bound, soft, hard):
    """Returns lowered limits: below what this process may have, they are already met."""

    def least(one, other):
        if RLIM_INFINITY in (one, other):
            return one if other == RLIM_INFINITY else other
        return min(one, other)

    hard = least(bound, hard)
    return least(hard, soft), hard


def prctl(option, argument=0, more=0):
    _check(_prctl(option, argument, more, 0, 0))


def setns(file, kinds):
    _check(_setns(file, kinds))


class Request:
    """The request to a forked process."""

    def __init__(self, codec, fields, files):
        isolated, uid, gid, work_dir, rlimits, subreaper, ruleset, self.filter, arguments = fields
        self.codec, number = codec, codec["as_number"]
        self.isolated = bool(number(isolated))
        self.uid = number(uid)
        self.gid = number(gid)
        self.work_dir = codec["as_text"](work_dir)
        self.arguments = codec["as_texts"](arguments)
        limits = [number(field) for field in codec["split"](rlimits)]
        self.rlimits = list(zip(limits[::3], limits[1::3], limits[2::3]))
        self.subreaper = bool(number(subreaper))
        self.confined = bool(number(ruleset))
        expected = 4 + self.isolated + self.confined
        if len(files) != expected:
            raise ValueError("%d descriptors came, %d are needed" % (len(files), expected))
        self.control = files[0]
        self.standard = files[1:4]
        self.cell = files[4] if self.isolated else None
        self.ruleset = files[-1] if self.confined else None
        self.self_check = ""

    def environment(self):
        """Reads the environment, which comes only to the worker.

        Later workers could find what the zygote had read in their memory.
        """
        return self.codec["as_pairs"](_taken(int.from_bytes(_taken(4), "little")))


def _taken(count):
    data = b""
    while len(data) < count:
        piece = read(CONTROL, count - len(data))
        if not piece:
            _exit(0)  # the host is gone
        data += piece
    return data


def prepare(forgets_home=True):
    """Prepares the zygote, once: it adopts orphans of dead workers, and no core file will have its memory or theirs."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    _write_if_possible("/proc/self/coredump_filter", b"0")
    file = open("/proc/sys/kernel/cap_last_cap", O_RDONLY | O_CLOEXEC)
    LAST_CAPABILITY[0] = int(read(file, 16))
    close(file)
    # Nothing of the zygote's environment is for a worker, which gets all of its own.
    load("library")["forget"]()
    site = sys.modules.get("site")
    if site is not None and forgets_home:
        # Found from the home of the user who started this; a worker finds its own when it asks.
        site.USER_BASE = site.USER_SITE = None


def enter(request):
    """Turns this process into the worker, or reports the failure to the host and exits."""
    step = ["descriptors"]
    try:
        _enter(request, step)
    except BaseException as error:
        _refuse(step[0], "%s: %s" % (type(error).__name__, error))


def _enter(request, step):
    prctl(PR_SET_PDEATHSIG, SIGKILL)
    _arrange_files(request)
    if request.isolated:
        # Processes of the cell may be of the same user, and must not take it over before it has its filter.
        prctl(PR_SET_DUMPABLE, 0)
        step[0] = "namespaces"
        setns(request.cell, CELL)
        close(request.cell)
        # A worker's own UTS namespace marks what it starts; code inside cannot leave it.
        _check(_unshare(CLONE_NEWUTS))
        step[0] = "identity"
        _set_identity(request.uid, request.gid)
    step[0] = "session"
    setsid()
    umask(0o022)
    step[0] = "limits"
    for resource, soft, hard in request.rlimits:
        setrlimit(resource, lowered(getrlimit(resource)[1], soft, hard))
    step[0] = "privileges"
    if request.isolated:
        _drop_capabilities()
    elif request.filter:
        _give_up_capabilities()
    if request.subreaper:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    # Without privileges, so that only what its code may enter is entered.
    step[0] = "work dir"
    try:
        chdir(request.work_dir)
    except FileNotFoundError:
        mkdir(request.work_dir)  # code of an earlier worker may have removed it
        chdir(request.work_dir)
    step[0] = "last settings"
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    # Changing credentials clears it, so it is set again after the last change.
    prctl(PR_SET_PDEATHSIG, SIGKILL)
    step[0] = "confinement"
    if request.confined:
        _check(_syscall(SYS_LANDLOCK_RESTRICT_SELF, request.ruleset, 0, 0))
        close(request.ruleset)
    if request.filter:
        filter_calls(request.filter)
    prctl(PR_SET_DUMPABLE, 1)
    step[0] = "self-check"
    request.self_check = _self_check(request)
    step[0] = "environment"
    for name, value in request.environment():
        environ[name] = value
    load("library")["follow_all"]()
    _reseed()
    _forget_host()


def _arrange_files(request):
    """Moves the descriptors to their places and closes all others."""
    sources = [request.control] + request.standard
    further = [file for file in (request.cell, request.ruleset) if file is not None]
    spare = [fcntl(file, F_DUPFD_CLOEXEC, CONTROL + 10) for file in sources + further]
    places = [CONTROL, 0, 1, 2] + list(range(FIRST_FREE, FIRST_FREE + len(further)))
    for file, place in zip(spare, places):
        dup2(file, place, place < 3)
    request.control = CONTROL
    request.cell = FIRST_FREE if request.isolated else None
    request.ruleset = places[-1] if request.confined else None
    _close_range(3, CONTROL - 1)
    _close_range(places[-1] + 1 if further else FIRST_FREE, MAX_FILES)


def _close_range(first, last):
    # `os.closerange` may close one by one, depending on how the interpreter was built.
    if _syscall(SYS_CLOSE_RANGE, first, last, 0) != 0:
        closerange(first, 1 + min(last, max(int(name) for name in listdir("/proc/self/fd"))))


def _set_identity(uid, gid):
    setresgid(gid, gid, gid)
    setresuid(uid, uid, uid)


def _drop_capabilities():
    prctl(PR_SET_SECUREBITS, SECUREBITS)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(LAST_CAPABILITY[0] + 1):
        prctl(PR_CAPBSET_DROP, capability)
    _give_up_capabilities()


def _give_up_capabilities():
    header = CAPABILITY_VERSION_3.to_bytes(4, sys.byteorder) + bytes(4)
    _check(_capset(header, bytes(24)))


def filter_calls(instructions):
    # `struct sock_fprog`: the count, and where they are. The bytes of a pointer object are an address.
    count = len(instructions) // INSTRUCTION
    program = count.to_bytes(8, sys.byteorder) + bytes(_Pointer(instructions))
    _check(_seccomp(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0))


def _write_if_possible(path, data):
    try:
        file = open(path, O_WRONLY | O_CLOEXEC)
        try:
            write(file, data)
        finally:
            close(file)
    except OSError:
        pass  # the kernel may be built without it; core files are limited to 0 as well


def _self_check(request):
    """Reads back the kernel's state of this process; raises unless it is as requested."""
    file = open("/proc/self/status", O_RDONLY | O_CLOEXEC)
    status = str(read(file, STATUS_MAX), "ascii", "replace")
    close(file)
    expected = [("NoNewPrivs", "1")]
    if request.isolated or request.filter:
        expected += [(name, "0" * 16) for name in CAPABILITY_SETS]
    if request.isolated:
        expected.append(("CapBnd", "0" * 16))
        expected.append(("Uid", "\t".join([str(request.uid)] * 4)))
        expected.append(("Gid", "\t".join([str(request.gid)] * 4)))
        if _prctl(PR_GET_SECUREBITS, 0, 0, 0, 0) & 0xFFFFFFFF != SECUREBITS:
            raise ValueError("the secure bits are not locked")
    if request.filter:
        expected.append(("Seccomp", "2"))
        _syscall(SYS_CLONE3, 0, 0, 0)
        # Without a filter, a kernel that has the call finds fault with its arguments.
        if get_errno() != ENOSYS:
            raise ValueError("the filter of system calls lets pass what it should refuse")
    if request.confined:
        if request.isolated:
            _must_be_refused("write", mkdir, UNWRITABLE)
        else:
            _must_be_refused("read", open, UNREADABLE, O_RDONLY | O_CLOEXEC | O_DIRECTORY)
    for name, value in expected:
        if "\n%s:\t%s\n" % (name, value) not in status:
            found = status.partition("\n%s:\t" % name)[2].partition("\n")[0]
            raise ValueError("%s is %r, not %r" % (name, found, value))
    return " ".join(["%s=%s" % (name, value.replace("\t", ",")) for name, value in expected])


def _must_be_refused(what, call, path, *arguments):
    try:
        call(path, *arguments)
    except PermissionError as error:
        if error.errno == EACCES:
            return
    except OSError:
        pass
    raise ValueError("the ruleset of Landlock lets %s %s" % (what, path))


def _reseed():
    """Reseeds random numbers, which must differ between siblings. The interpreter reseeds `random` itself."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()


def _forget_host():
    """Has `platform` look again: its values are of the zygote, with the name of the host."""
    platform = sys.modules.get("platform")
    if platform is not None:
        platform._uname_cache = None
        getattr(platform, "_platform_cache", {}).clear()


def _refuse(step, message):
    codec = load("codec")
    try:
        write(CONTROL, codec["frame"](REFUSED, codec["text"](step), codec["text"](message)))
    finally:
        _exit(1)
