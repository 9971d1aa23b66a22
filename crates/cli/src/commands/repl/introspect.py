"""Answers the line editor: is this code complete, and which names complete it.

It runs in a namespace of its own with `question`, `before` and `namespace`, and prints its answer as JSON.
"""

MAX_NAMES = 2000


def is_complete(source):
    """Return true for complete code. Invalid code is complete, too: running it shows the error."""
    import ast
    import codeop
    import warnings

    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if compiler(source, "<typed>", "exec") is None:
                return False
            body = ast.parse(source).body
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            return True
    last = body[-1] if body else None
    is_block = hasattr(last, "body") and last.end_lineno > last.lineno
    # An empty line ends a block.
    return not is_block or not source.rsplit("\n", 1)[-1].strip()


def names(before, namespace):
    """Return the word before the cursor, and the names that complete it."""
    import re

    line = before.rsplit("\n", 1)[-1]
    found = re.match(r"\s*from\s+([\w.]+)\s+import\s+(?:\w+\s*,\s*)*(\w*)$", line)
    if found:
        return found[2], members_of_module(found[1])
    found = re.match(r"\s*(?:from|import)\s+(?:[\w.]+\s*,\s*)*((?:\w+\.)*)(\w*)$", line)
    if found:
        return found[2], modules(found[1].rstrip("."))
    found = re.search(r"((?:[^\W\d]\w*\.)*)((?:[^\W\d]\w*)?)$", line)
    chain, word = found[1].rstrip("."), found[2]
    if line[: found.start()].endswith("."):
        return word, []  # attribute of a call or a literal, whose value is unknown
    if chain:
        return word, attributes(chain.split("."), namespace)
    return word, plain_names(namespace) if word else []


def plain_names(namespace):
    import builtins
    import keyword

    return {*namespace, *vars(builtins), *keyword.kwlist}


def attributes(chain, namespace):
    import builtins

    first, *rest = chain
    try:
        value = namespace[first] if first in namespace else vars(builtins)[first]
        for name in rest:
            value = getattr(value, name)
        return dir(value)
    except Exception:
        return []


def modules(package):
    import pkgutil
    import sys

    if not package:
        own = {name for name in sys.builtin_module_names if not name.startswith("_")}
        return own | {module.name for module in pkgutil.iter_modules()}
    loaded = sys.modules.get(package)
    path = getattr(loaded, "__path__", None)
    return {module.name for module in pkgutil.iter_modules(path)} if path else []


def members_of_module(name):
    import sys

    # Names of a module that is not loaded are unknown without running it.
    loaded = sys.modules.get(name)
    return {*dir(loaded), *modules(name)} if loaded else []


def answer(question, before, namespace):
    if question == "complete":
        return is_complete(before)
    word, found = names(before, namespace)
    fitting = {name for name in found if isinstance(name, str) and name.startswith(word)}
    if not word.startswith("_"):
        fitting = {name for name in fitting if not name.startswith("_")}
    return {"word": word, "names": sorted(fitting)[:MAX_NAMES]}


def print_answer():
    import json
    import sys

    # Code may have replaced the stream. A kernel's stream has its own class.
    is_replaced = type(sys.stdout).__module__ in ("_io", "__main__", "builtins")
    stream = sys.__stdout__ if is_replaced else sys.stdout
    stream.write(json.dumps(answer(question, before, namespace)))
    stream.flush()


print_answer()
