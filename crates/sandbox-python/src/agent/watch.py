"""Changes below a directory, as the kernel reports them (inotify)."""

import sys
from posix import O_CLOEXEC, O_DIRECTORY, O_NONBLOCK, O_RDONLY
from posix import close, fstat, read, strerror
from select import EPOLLIN
from time import time

from _ctypes import get_errno

codec, paths, requests, worker = load("codec"), load("paths"), load("requests"), load("worker")
number, put, as_number = codec["number"], codec["put"], codec["as_number"]
Problem, Walk, WAIT = paths["Problem"], paths["Walk"], requests["WAIT"]

CREATE, MODIFY, DELETE, RENAME, OVERFLOW = range(5)
IN_MODIFY, IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 2, 4, 64, 128, 256, 512
IN_Q_OVERFLOW, IN_IGNORED, IN_ONLYDIR, IN_EXCL_UNLINK = 0x4000, 0x8000, 0x01000000, 0x04000000
IN_ISDIR = 0x40000000
WANTED = IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
WANTED |= IN_ONLYDIR | IN_EXCL_UNLINK
MAX_DIRECTORIES = 8192
HALF_RENAME = 0.002
POLL_INTERVAL = 0.5  # interval of checking whether the directory itself still exists
BUFFER = 256 << 10

_function, _Long, _Pointer = worker["_function"], worker["_Long"], worker["_Pointer"]
_init = _function("inotify_init1", _Long)
_add = _function("inotify_add_watch", _Long, _Pointer, _Long)
_remove = _function("inotify_rm_watch", _Long, _Long)


def checked(result):
    if result < 0 or result & 0xFFFFFFFF == 0xFFFFFFFF:
        errno = get_errno()
        if errno in (24, 28):
            raise Problem(paths["WATCHES"])
        raise OSError(errno, strerror(errno))
    return result & 0xFFFFFFFF


class Watching:
    def __init__(self, path, recursive):
        self.recursive = recursive
        self.root = paths["open_directory"](path)
        try:
            self.events = checked(_init(O_CLOEXEC | O_NONBLOCK))
        except BaseException:
            close(self.root)
            raise
        self.directories = {}
        self.told = set()

    def close(self):
        close(self.events)
        close(self.root)

    def add(self, directory, path):
        if len(self.directories) >= MAX_DIRECTORIES:
            raise Problem(paths["TOO_MANY"], b"directories")
        watch = checked(_add(self.events, b"/proc/self/fd/%d" % directory, WANTED))
        self.directories[watch] = path

    def add_below(self, path):
        """Watches every directory below; yields what is found there."""
        if not self.recursive:
            return
        try:
            rules = paths["BENEATH"] | paths["NO_SYMLINKS"]
            flags = O_RDONLY | O_DIRECTORY | O_NONBLOCK
            directory = paths["resolve"](path or b".", flags, self.root, rules)
        except OSError as error:
            if error.errno in (2, 13, 18, 20, 40):
                return  # it is gone, or cannot be read
            raise
        if path:
            try:
                self.add(directory, path)
            except BaseException:
                close(directory)
                raise
        walk = Walk(directory)
        try:
            while True:
                found = walk.next()
                if found is None:
                    return
                below = join(path, found.path)
                yield below
                if found.kind == 1 and walk.enter(found):
                    self.add(walk.directory, below)
        finally:
            walk.close()

    def read(self):
        try:
            data = read(self.events, BUFFER)
        except BlockingIOError:
            return []
        said, at = [], 0
        while at < len(data):
            watch, flags, cookie, length = [
                int.from_bytes(data[at + part : at + part + 4], sys.byteorder) for part in (0, 4, 8, 12)
            ]
            name = data[at + 16 : at + 16 + length].rstrip(b"\0")
            said.append((watch, flags, cookie, name))
            at += 16 + length
        return said

    def tell(self, said, other):
        """Returns the changes that one event of the kernel means, as (kind, path, new path)."""
        watch, flags, _, name = said
        if flags & IN_Q_OVERFLOW:
            for _ in self.add_below(b""):
                pass
            return [(OVERFLOW, b"", b"")]
        if flags & IN_IGNORED:
            self.directories.pop(watch, None)
            return []
        if watch not in self.directories:
            return []
        path = join(self.directories[watch], name)
        if other is not None and other[0] in self.directories:
            new = join(self.directories[other[0]], other[3])
            self.told.discard(path)
            self.moved(path, new)
            return [(RENAME, path, new)]
        if flags & (IN_DELETE | IN_MOVED_FROM):
            self.told.discard(path)
            if flags & IN_ISDIR:
                self.lose(path)
            return [(DELETE, path, b"")]
        if flags & (IN_CREATE | IN_MOVED_TO):
            return self.created(path, flags & IN_ISDIR)
        return [(MODIFY, path, b"")] if name else []

    def created(self, path, is_directory):
        if path in self.told:
            self.told.discard(path)
            return []
        events = [(CREATE, path, b"")]
        if is_directory:
            for below in self.add_below(path):
                events.append((CREATE, below, b""))
                self.told.add(below)
            if len(self.told) > MAX_DIRECTORIES:
                self.told.clear()
        return events

    def moved(self, old, new):
        for watch, path in self.directories.items():
            if is_below(path, old):
                self.directories[watch] = new + path[len(old) :]

    def lose(self, path):
        for watch in [watch for watch, known in self.directories.items() if is_below(known, path)]:
            del self.directories[watch]
            _remove(self.events, watch)


def join(directory, name):
    return directory + b"/" + name if directory and name else directory or name


def is_below(path, directory):
    return path == directory or path.startswith(directory + b"/")


def watch(request, path, recursive):
    watching = Watching(path, as_number(recursive))
    try:
        watching.add(watching.root, b"")
        for _ in watching.add_below(b""):
            pass
        request.answer()
        while True:
            said = watching.read()
            if said and said[-1][1] & IN_MOVED_FROM:
                yield HALF_RENAME
                said += watching.read()
            yield from tell_all(request, watching, said)
            if not said:
                if fstat(watching.root).st_nlink == 0:
                    yield from give(request, DELETE, b"", b"")
                    return ()
                request.agent.watch(watching.events, EPOLLIN, lambda events: stop_waiting(request, watching))
                try:
                    yield POLL_INTERVAL
                finally:
                    request.agent.unwatch(watching.events)
    finally:
        watching.close()


def stop_waiting(request, watching):
    request.agent.unwatch(watching.events)
    request.wake()


def tell_all(request, watching, said):
    last, at = None, 0
    while at < len(said):
        one, other = said[at], None
        at += 1
        if one[1] & IN_MOVED_FROM and at < len(said) and said[at][1] & IN_MOVED_TO and said[at][2] == one[2]:
            other = said[at]
            at += 1
        for event in watching.tell(one, other):
            if event[0] != MODIFY or event != last:
                yield from give(request, *event)
            last = event


def give(request, kind, path, new):
    yield from request.give(put(number(kind) + put(path) + put(new) + number(int(time() * 1e6))))
