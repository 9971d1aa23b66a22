"""Makes packages importable that were installed into the sandbox while the interpreter runs.

`install_packages` puts them into one directory, and pip that code starts into another: the packages of the
user, which other interpreters find when they start.
"""

import os
import sys
from os import environ
from posix import F_OK, O_CLOEXEC, O_NONBLOCK, O_RDONLY, access, close, fstat, listdir, open, read, stat
from posixpath import basename, dirname, join, normpath

NAMES = ("site-packages", "dist-packages")
MAX_PTH_BYTES = 64 * 1024
S_IFMT, S_IFREG = 0o170000, 0o100000


class Arrivals:
    """The directories that may get packages, and the last finder of modules, which looks there again.

    So `import x` also works right behind the `subprocess.run([.., "pip", "install", "x"])` of one cell.
    """

    def __init__(self, home, note):
        self.note = note
        self.own = None
        self.changed = {}
        if home:
            self.own = home + "/.packages"
            base = environ.get("PYTHONUSERBASE") or home + "/.local"
            user = "%s/lib/%s/site-packages" % (base, basename(dirname(os.__file__)))
            self.changed = {self.own: None, user: None}

    def look(self):
        """Shows what was installed since the last time. Returns true when there is anything."""
        arrived = False
        for directory, before in self.changed.items():
            # Most have none, and an exception each time would take longer than what a small run does.
            if not access(directory, F_OK):
                continue
            try:
                changed = stat(directory).st_mtime_ns
            except OSError:
                continue
            if changed != before:
                self.changed[directory] = changed
                arrived = True
                try:
                    show(directory, directory == self.own)
                except Exception as error:
                    self.note("packages cannot be shown: %s" % error)
        return arrived

    def find_spec(self, name, path=None, target=None):
        if path is not None or not self.look():
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, path, target)


def show(directory, own=True):
    """Puts the directory before the packages of the interpreter, whose versions it may replace."""
    import site
    from importlib import invalidate_caches

    if not own and environ.get("PYTHONNOUSERSITE"):
        return
    if directory not in sys.path:
        at = [basename(path) in NAMES for path in sys.path] + [True]
        sys.path.insert(at.index(True), directory)
        if own:
            put_first("PATH", directory + "/bin")
        # Interpreters of a virtual environment have no packages of the user otherwise.
        if own or sys.prefix != sys.base_prefix:
            put_first("PYTHONPATH", directory)
    if own:
        # For what its `.pth` files ask for.
        site.addsitedir(directory)
    else:
        show_places(directory)
    invalidate_caches()


def show_places(directory):
    """Adds the directories that the `.pth` files of the user's packages name. Their lines of code are not run: this is
    done outside of any run, where no limit holds."""
    for name in sorted(listdir(directory)):
        if not name.endswith(".pth") or name.startswith("."):
            continue
        for line in lines_of(directory + "/" + name):
            if line.strip() and not line.startswith(("#", "import ", "import\t")):
                place = normpath(join(directory, line.rstrip()))
                if place not in sys.path and access(place, F_OK):
                    sys.path.append(place)


def lines_of(path):
    """The lines of a small regular file; none of anything else, such as a pipe, which may never end."""
    try:
        file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)
    except OSError:
        return []
    try:
        content = read(file, MAX_PTH_BYTES) if fstat(file).st_mode & S_IFMT == S_IFREG else b""
    except OSError:
        content = b""
    finally:
        close(file)
    return str(content, "utf-8", "surrogateescape").splitlines()


def put_first(name, path):
    """Puts a directory first in a variable, so that programs which code starts find what was installed, too."""
    former = environ.get(name)
    environ[name] = path + ":" + former if former else path
