"""Makes packages importable that were installed into the box while the interpreter runs."""

import sys
from os import environ
from posixpath import basename

NAMES = ("site-packages", "dist-packages")


def show(directory):
    """Puts the directory before the packages of the interpreter, whose versions it may replace."""
    import site
    from importlib import invalidate_caches

    if directory not in sys.path:
        at = [basename(path) in NAMES for path in sys.path] + [True]
        sys.path.insert(at.index(True), directory)
        put_first("PATH", directory + "/bin")
        put_first("PYTHONPATH", directory)
    # For what its `.pth` files ask for.
    site.addsitedir(directory)
    invalidate_caches()


def put_first(name, path):
    """Programs that code starts find what was installed, too."""
    former = environ.get(name)
    environ[name] = path + ":" + former if former else path
