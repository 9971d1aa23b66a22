"""Requests of the host, by name."""

import sys
from _frozen_importlib_external import PathFinder

codec, kernel = load("codec"), load("processes")
number, text, as_number = codec["number"], codec["text"], codec["as_number"]


def begin(request, verb, arguments):
    """Returns the generator of one request."""
    children = request.agent.children
    if verb == "kill_tree":
        return children.kill_tree(as_number(arguments[0]), request)
    if verb == "end_started":
        return children.end_started(*[as_number(field) for field in arguments], request)
    if verb in ("contexts", "commands"):
        return at_once(getattr(request.agent.resident, verb))
    if verb == "clock":
        return at_once(children.clock)
    if verb == "usage":
        return at_once(lambda: [number(figure) for figure in kernel["usage"]()])
    if verb == "python":
        return at_once(python, *map(codec["as_text"], arguments))
    if verb == "resize":
        return at_once(children.resize, *[as_number(field) for field in arguments])
    if verb in ("prepare", "restore", "export_variables"):
        key, *rest = arguments
        return at_once(getattr(children.checkpoints, verb), as_number(key), *rest)
    if verb in ("pause", "resume"):
        return getattr(children.pauser, verb)()
    if verb == "connect":
        return load("tunnel")["connect"](request, *arguments)
    if verb in ("listen", "accept"):
        return load("listeners")[verb](request, *arguments)
    if verb == "prove":
        return load("fd_transfer")["prove"](request, *arguments)
    if verb == "watch":
        return load("watch")["watch"](request, *arguments)
    for part in ("files", "file_trees"):
        action = load(part)["VERBS"].get(verb)
        if action is not None:
            return action(request, *arguments)
    raise ValueError("unknown verb %s" % verb)


def python(*packages):
    """Describes this interpreter: its path, its version, and which packages it has."""
    found = [number(PathFinder.find_spec(name) is not None) for name in packages]
    return [text(sys.executable), text(sys.prefix), *map(number, sys.version_info[:2]), *found]


def at_once(action, *arguments):
    return action(*arguments) or ()
    yield
