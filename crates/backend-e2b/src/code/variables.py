"""Reads a variable, or sets some, and prints the answer as one line of JSON."""

import json


def checked(value, depth=0):
    if depth > 100:
        raise ValueError("it is nested too deeply")
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        value.encode("utf-8")
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError("it is not finite")
        return value
    if isinstance(value, (list, tuple)):
        return [checked(item, depth + 1) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("it has keys that are no strings")
        return {checked(key): checked(item, depth + 1) for key, item in value.items()}
    raise ValueError("it is of the type " + type(value).__name__)


def answer():
    if "set" in settings:
        import keyword

        bad = [name for name in settings["set"] if not name.isidentifier() or keyword.iskeyword(name)]
        if bad:
            return {"kind": "name", "why": "must be an identifier, got %r" % bad[0]}
        names.update(settings["set"])
        return {"value": None}
    name = settings["get"]
    import keyword

    if not name.isidentifier() or keyword.iskeyword(name):
        return {"kind": "name", "why": "must be an identifier, got %r" % name}
    if name not in names:
        return {"kind": "missing"}
    try:
        return {"value": checked(names[name])}
    except (ValueError, RecursionError) as error:
        return {"kind": "value", "why": str(error)}


# `print` could be a variable of the code.
__import__("builtins").print(settings["word"] + json.dumps(answer()))
