"""The file of a script: it exists while the script runs, for code that reads it again."""

import sys
from errno import EEXIST
from os import environ
from posix import O_CLOEXEC, O_CREAT, O_EXCL, O_NONBLOCK, O_RDONLY, O_WRONLY
from posix import close, fstat, getcwd, getpid, mkdir, open, read, rmdir, stat, unlink, write
from posixpath import basename, dirname, join, normpath

from _frozen_importlib_external import SourceFileLoader

CHUNK_SIZE = 1 << 20
TRIES = 100


class Script:
    """A script under a name, in a sandbox whose own directory is `home`. One without a file has no `path`."""

    def __init__(self, filename, code, home):
        self.filename, self.home = filename, home
        self.path = None
        self.made = []
        self.former = None
        places = [""]
        if not filename.startswith("<"):
            named = join(getcwd(), filename)
            self.path = normpath(named)
            places = [dirname(self.path)]
            data = code.encode("utf-8", "surrogatepass")
            if not has(self.path, data):
                self.path = self.put_into_directory(data) or self.put_apart(data) or self.path
                # Modules are looked for where the script is, and where it would have been.
                places = [dirname(self.path)] + places * (dirname(self.path) != places[0])
        self.places = places

    def put_into_directory(self, data):
        """Puts the file where its name says, below the working directory, unless there is another one. Returns `None` otherwise,
        also where that is no directory of the sandbox itself, but a mounted one.
        """
        if not is_own(getcwd(), self.home):
            return None
        inside = not self.filename.startswith("/") and ".." not in self.filename.split("/")
        return self.put(join(getcwd(), self.filename if inside else basename(self.filename)), data)

    def put_apart(self, data):
        """Puts the file into a directory of its own. Returns `None` otherwise."""
        for number in range(TRIES):
            directory = "%s/script-%d-%d" % (environ.get("TMPDIR") or "/tmp", getpid(), number)
            try:
                mkdir(directory, 0o700)
            except OSError as error:
                if error.errno == EEXIST:
                    continue
                return None
            self.made.append((rmdir, directory))
            return self.put(join(directory, basename(self.filename)), data)
        return None

    def put(self, path, data):
        path, former = normpath(path), len(self.made)
        try:
            self.make_directories(dirname(path))
            file = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0o644)
            try:
                self.made.append((unlink, path))
                view = memoryview(data)
                while view:
                    view = view[write(file, view) :]
            finally:
                close(file)
        except (OSError, ValueError):
            self.remove(former)
            return None
        return path

    def make_directories(self, path):
        """Makes missing directories below the working directory."""
        missing = []
        while path not in ("", "/", getcwd()) and not is_there(path):
            missing.append(path)
            path = dirname(path)
        for path in reversed(missing):
            mkdir(path, 0o755)
            self.made.append((rmdir, path))

    def remove(self, kept=0):
        """Removes what was made, but for directories in which something else is."""
        while len(self.made) > kept:
            take_away, path = self.made.pop()
            try:
                take_away(path)
            except OSError:
                pass  # the script did it, or has files beside it

    def begin(self, module):
        """Shows the script where it is: in its module, in its arguments, and in the import path."""
        if self.path is not None:
            module.__file__ = self.path
            module.__loader__ = SourceFileLoader("__main__", self.path)
            if sys.argv[:1] == [self.filename] and normpath(join(getcwd(), self.filename)) != self.path:
                sys.argv[0] = self.path
        if type(sys.path) is not list:
            return
        self.former = sys.path.index("") if "" in sys.path else None
        if self.former is not None:
            del sys.path[self.former]
        sys.path[:0] = self.places

    def end(self):
        """Undoes `begin`."""
        if type(sys.path) is list and sys.path[: len(self.places)] == self.places:
            del sys.path[: len(self.places)]
            if self.former is not None:
                sys.path.insert(self.former, "")
        self.remove()


def is_own(directory, home):
    try:
        below = (directory + "/").startswith(home.rstrip("/") + "/")
        return below and stat(directory).st_dev == stat(home).st_dev
    except OSError:
        return False


def is_there(path):
    try:
        stat(path)
    except OSError:
        return False
    return True


def has(path, data):
    """Returns true for a file with exactly this content."""
    try:
        # A pipe would have this wait for its writer.
        file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        if fstat(file).st_size != len(data):
            return False
        there = b""
        while len(there) <= len(data):
            piece = read(file, CHUNK_SIZE)
            if not piece:
                break
            there += piece
        return there == data
    except OSError:
        return False
    finally:
        close(file)
