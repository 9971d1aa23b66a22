"""Settings that one run has for itself: arguments, working directory, environment variables."""

import sys
from os import environ
from posix import chdir

enter_directory, follow = load("directory")["enter"], load("library")["follow"]


def apply(undo, argv, cwd, env, work_dir):
    """Applies the settings; `env` has pairs, and without `argv` the arguments stay. `undo` gets what restores the former
    settings, the last step first."""
    if argv is not None:
        undo.append(lambda former=vars(sys).get("argv"): setattr(sys, "argv", former))
        sys.argv = argv
    former = enter_directory(cwd, work_dir)
    if cwd:
        undo.append(lambda: chdir(former))
    if env:
        names = [key for key, _ in env]
        undo.append(lambda: follow(names))
        for key, value in env:
            undo.append(lambda key=key, value=environ.get(key): set_variable(key, value))
            environ[key] = value
        follow(names)


def set_variable(key, value):
    if value is None:
        environ.pop(key, None)
    else:
        environ[key] = value
