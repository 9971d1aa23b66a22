"""`!command` and `%pip` in cells.

Python comes first: only a cell that does not compile is looked at, and of it only the lines that
the compiler points at. So valid Python, and the content of strings, never changes.
"""

import builtins
import os
import sys
from os import environ

SHELL = "__sandbox_shell__"
ABOUT = "__sandbox_about__"
HINT = "run it with the jupyter engine, which has IPython"


def translate(source, filename, flags, error):
    """Returns the syntax tree and text of a cell with its commands translated, or the error raised."""
    lines = source.split("\n")
    changed = set()
    tree = None
    while tree is None:
        at = (error.lineno or 0) - 1
        line = translated(lines[at]) if at not in changed and 0 <= at < len(lines) else None
        if line is None:
            raise error
        changed.add(at)
        lines[at] = line
        try:
            tree = compile("\n".join(lines), filename, "exec", flags, True)
        except SyntaxError as another:
            error = another
    setattr(builtins, SHELL, shell)
    setattr(builtins, ABOUT, about)
    return tree, "\n".join(lines)


def translated(line):
    """Returns one line as Python, or None when it is no command of ours."""
    code = line.lstrip()
    indent = line[: len(line) - len(code)]
    code = code.rstrip()
    if code.startswith("%"):
        return indent + magic(code)
    if code.startswith("!!"):
        return "%s%s(%r, True)" % (indent, SHELL, code[2:])
    if code.startswith("!"):
        return "%s%s(%r, False)" % (indent, SHELL, code[1:])
    if code and "?" in (code[0], code[-1]):
        name, detailed = code.strip("?"), "??" in (code[:2], code[-2:])
        known = all(part.isidentifier() for part in name.strip().split("."))
        return "%s%s(%r, %r)" % (indent, ABOUT, name.strip(), detailed) if known else None
    name, equals, command = code.partition("=")
    name, command = name.rstrip(), command.lstrip()
    if equals and name and command.startswith("!") and not command.startswith("!="):
        return "%s%s = %s(%r, True)" % (indent, name, SHELL, command[1:])
    if equals and name.isidentifier() and command.startswith("%"):
        magic(command)
    return None


def magic(code):
    name = code.split()[0]
    if code.split()[:2] == ["%matplotlib", "inline"]:
        return "pass"  # plots are shown inline anyway
    if name != "%pip":
        kind = "cell magic" if name.startswith("%%") else "line magic"
        raise SyntaxError("%s %s is not supported here; %s" % (kind, name, HINT))
    return "%s(%r, False)" % (SHELL, code)


def shell(command, collect):
    """Runs a shell command; its output goes where the cell's goes, or is returned as lines."""
    import subprocess

    caller = sys._getframe(1)
    command = interpolate(command, caller.f_globals, caller.f_locals)
    arguments = ["/bin/sh", "-c", command]
    if command.startswith("%pip"):
        words = command.split()[1:]
        check_pip(words)
        arguments[2] = 'exec "$0" -m pip ' + command[len("%pip") :] + place_of_pip(words)
        arguments.append(sys.executable)
    for stream in (sys.stdout, sys.stderr):
        # A stream that code has put there may have no more than `write`.
        getattr(stream, "flush", int)()
    done = subprocess.run(arguments, stdout=subprocess.PIPE if collect else None)
    # What the command has installed is there for the next line.
    load("hooks")["STATE"]["driver"].arrivals.look()
    if collect:
        return done.stdout.decode("utf-8", "replace").splitlines()
    return None


def about(name, detailed):
    """Shows what is known of an object, as text: `name?`, and with its source `name??`."""
    caller = sys._getframe(1)
    try:
        value = eval(name, caller.f_globals, caller.f_locals)
    except Exception:
        text = "Object `%s` not found." % name
    else:
        text = "\n".join(facts(name.rpartition(".")[2], value, detailed))
    load("rich")["publish"](load("hooks")["STATE"]["driver"], {"text/plain": text})


def facts(name, value, detailed):
    import inspect

    is_callable = callable(value)
    if is_callable:
        yield from fact("Signature", lambda: name + str(inspect.signature(value)))
    yield "Type: %s" % type(value).__name__
    if not is_callable and not inspect.ismodule(value):
        yield from fact("String form", lambda: str(value)[:500])
        yield from fact("Length", lambda: len(value))
    yield from fact("File", lambda: inspect.getfile(value if is_callable else type(value)))
    source = list(fact("Source", lambda: "\n" + inspect.getsource(value))) if detailed else []
    yield from source or fact("Docstring", lambda: inspect.getdoc(value))


def fact(name, get):
    """Returns one line, where there is a value."""
    try:
        value = get()
    except Exception:
        return
    if value is not None:
        yield "%s: %s" % (name, value)


def check_pip(words):
    """Refuses what pip would try for a long time: to reach an index without a network."""
    named = [word for word in words if not word.startswith("-")]
    if named[:1] not in (["install"], ["download"]) or finds_elsewhere(words) or leads_out():
        return
    missing = [word for word in named[1:] if not is_file(word)]
    if missing:
        # The host, which knows what its caller can do, adds that.
        raise RuntimeError("%%pip has no network here; install from outside: %s" % " ".join(missing))


def finds_elsewhere(words):
    """Returns true when options of pip name where packages are, which may be files."""
    told = ("--no-index", "--find-links", "-f", "--index-url", "-i", "--extra-index-url")
    if any(word.split("=")[0] in told for word in words):
        return True
    variables = [name.lstrip("-").replace("-", "_").upper() for name in told if name.startswith("--")]
    return any(environ.get("PIP_" + name) for name in variables)


def is_file(word):
    """Returns true for a wheel, a project, or a list of packages in this sandbox, and not for a package of an index."""
    path = word.split("[")[0]
    return os.path.isfile(path) or (os.sep in path and os.path.isdir(path)) or path == "."


def leads_out():
    """Returns true when a packet could leave this sandbox: a datagram socket that is connected sends none."""
    import socket

    if any(environ.get(name) for name in ("https_proxy", "HTTPS_PROXY", "ALL_PROXY", "PIP_PROXY")):
        return True
    for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                return True
        except OSError:
            pass
    return False


def place_of_pip(words):
    """Returns where pip installs for a virtual environment that cannot be changed: among the packages of the user."""
    own = ("--target", "-t", "--prefix", "--root", "--user")
    if "install" not in words or sys.prefix == sys.base_prefix:
        return ""
    if os.access(sys.prefix, os.W_OK) or any(word.split("=")[0] in own for word in words):
        return ""
    return ' --prefix "${PYTHONUSERBASE:-$HOME/.local}"'


def interpolate(command, global_names, local_names):
    """Replaces `{expression}` by its value and `{{text}}` by `{text}`.

    What cannot be evaluated stays as it is.
    """
    pieces = []
    at = 0
    while True:
        start = command.find("{", at)
        if start < 0:
            return "".join(pieces) + command[at:]
        if command.startswith("{{", start):
            end = command.find("}}", start)
            literal = command[start + 1 : end + 1] if end > 0 else "{{"
            pieces += [command[at:start], literal]
            at = end + 2 if end > 0 else start + 2
            continue
        end = closing_brace(command, start)
        value = evaluated(command[start + 1 : end], global_names, local_names) if end else None
        if value is None:
            pieces.append(command[at : start + 1])
            at = start + 1
        else:
            pieces += [command[at:start], value]
            at = end + 1


def closing_brace(command, start):
    depth = 0
    for at in range(start, len(command)):
        if command[at] == "{":
            depth += 1
        elif command[at] == "}":
            depth -= 1
            if depth == 0:
                return at
    return None


def evaluated(expression, global_names, local_names):
    try:
        return str(eval(expression, global_names, local_names))
    except Exception:
        return None
