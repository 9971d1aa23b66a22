"""The working directory of a run."""

from posix import chdir, getcwd, mkdir


def enter(path, usual):
    """Enters the directory, if it is given. Returns the former one, which is `usual` where that was removed."""
    try:
        former = getcwd()
    except OSError:
        try:
            mkdir(usual)
        except OSError:
            pass
        chdir(usual)
        former = usual
    if path:
        try:
            chdir(path)
        except OSError as error:
            problem = "%s (os error %d)" % (error.strerror, error.errno)
            raise OSError("working directory %s: %s" % (path, problem)) from None
    return former
