"""Runs in the box: installs the wheels of one directory into another, offline.

pip puts them into a directory of their own first. From there they are moved file by file, because
packages may share directories, after what they replace has been removed.
"""

import os
import shutil
import stat
import subprocess
import sys

MAX_RECORD_SIZE = 64 << 20

incoming, site = sys.argv[1:]
stage = os.path.join(incoming, "stage")


def canonical(name):
    return "-".join(name.lower().replace("_", "-").replace(".", "-").split("-"))


def distributions(directory):
    """The metadata directories below it, by canonical name."""
    found = {}
    for entry in os.listdir(directory):
        if entry.endswith(".dist-info"):
            found.setdefault(canonical(entry.split("-")[0]), []).append(os.path.join(directory, entry))
    return found


def record_of(metadata):
    """The lines of its record. Code may have put anything there, such as what never answers."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(os.path.join(metadata, "RECORD"), flags), "rb") as record:
        if not stat.S_ISREG(os.fstat(record.fileno()).st_mode):
            return []
        return record.read(MAX_RECORD_SIZE).decode("utf-8", "replace").splitlines()


def remove(metadata):
    """Removes an installed distribution, as its own record lists it."""
    import csv

    try:
        paths = [row[0] for row in csv.reader(record_of(metadata)) if row]
    except (OSError, csv.Error):
        paths = []
    for path in paths:
        if path.startswith("../../"):  # programs, as pip lists them for a target directory
            path = path[len("../../") :]
        path = os.path.normpath(os.path.join(site, path))
        if path.startswith(site + os.sep) and not path.startswith(incoming + os.sep):
            try:
                os.unlink(path)
            except OSError:
                pass
    shutil.rmtree(metadata, ignore_errors=True)


def move(source, target):
    os.makedirs(target, exist_ok=True)
    for entry in os.scandir(source):
        there = os.path.join(target, entry.name)
        if entry.is_dir(follow_symlinks=False):
            move(entry.path, there)
        else:
            os.replace(entry.path, there)


wheels = sorted(os.path.join(incoming, name) for name in os.listdir(incoming))
options = ["--isolated", "--no-index", "--no-deps", "--no-input", "--no-cache-dir", "--quiet"]
options += ["--disable-pip-version-check", "--no-warn-script-location", "--target", stage]
# What pip is told otherwise, such as where it installs for the user, is not about this.
settings = dict(os.environ, PIP_CONFIG_FILE=os.devnull)
program = [sys.executable, "-I", "-m", "pip", "install"]
status = subprocess.call(program + options + wheels, env=settings)
if status == 0:
    old = distributions(site)
    for name in distributions(stage):
        for metadata in old.get(name, ()):
            remove(metadata)
    move(stage, site)
sys.exit(status)
