"""`!command` and `%pip` in cells.

Python comes first: only a cell that does not compile is looked at, and of it only the lines that
the compiler points at. So what is valid Python, and what stands in strings, never changes.
"""

import builtins
import sys

SHELL = "__sandbox_shell__"
ABOUT = "__sandbox_about__"
INSTALL = "install from outside, with `sandbox.install_packages([...])`"
HINT = "run it with the jupyter engine, which has IPython"


def translate(source, filename, flags, error):
    """The syntax tree and text of a cell with its commands translated, or the error raised."""
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
    """One line as Python, or None when it is no command of ours."""
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
    pip = command.startswith("%pip")
    if pip:
        check_pip(command.split()[1:])
    arguments = ["/bin/sh", "-c", command]
    if pip:
        arguments[2] = 'exec "$0" -m pip ' + command[len("%pip") :]
        arguments.append(sys.executable)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    done = subprocess.run(arguments, stdout=subprocess.PIPE if collect else None)
    if pip:
        from importlib import invalidate_caches

        invalidate_caches()
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
    """One line, where there is something to say."""
    try:
        value = get()
    except Exception:
        return
    if value is not None:
        yield "%s: %s" % (name, value)


def check_pip(words):
    """In a cell pip has no network and cannot write where it would install; a container may have one."""
    verb = [word for word in words if not word.startswith("-")][:1]
    if "--no-index" in words or verb not in (["install"], ["download"]):
        return
    if load("hooks")["STATE"]["driver"].isolated or not has_routes():
        raise RuntimeError("%pip {} has no network here; {}".format(verb[0], INSTALL))


def has_routes():
    """Whether anything leads out of this machine. Where nobody can tell, it may."""
    try:
        with open("/proc/net/route") as old, open("/proc/net/ipv6_route") as new:
            return len(old.readlines()) > 1 or any(not line.endswith(" lo\n") for line in new)
    except OSError:
        return True


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
