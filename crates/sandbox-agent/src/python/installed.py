"""Makes packages importable that were installed into the box while the interpreter runs.

`install_packages` puts them into one directory, and pip that code starts into another: the packages of the
user, which outside an interpreter finds when it starts.
"""

import os
import sys
from os import environ
from posix import F_OK, access, stat
from posixpath import basename, dirname

NAMES = ("site-packages", "dist-packages")


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
        """Shows what was installed since the last time. Tells whether there is anything."""
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
    # For what its `.pth` files ask for.
    site.addsitedir(directory)
    invalidate_caches()


def put_first(name, path):
    """Programs that code starts find what was installed, too."""
    former = environ.get(name)
    environ[name] = path + ":" + former if former else path
