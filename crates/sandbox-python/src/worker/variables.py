"""Reads and sets variables of `__main__` as JSON. Names are identifiers and never evaluated."""

import json
from keyword import iskeyword

NOT_FOUND, NOT_SERIALIZABLE, INVALID, TOO_LARGE = range(4)
LIMIT = 60 << 20

ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Failure(Exception):
    def __init__(self, kind, message):
        Exception.__init__(self, message)
        self.kind = kind


def refuse_constant(name):
    raise Failure(INVALID, "%s is not JSON" % name)


DECODER = json.JSONDecoder(parse_constant=refuse_constant)


def check_name(name):
    if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
        raise Failure(INVALID, "%r is not a variable name" % (name,))


def get(main, name):
    check_name(name)
    try:
        value = main.__dict__[name]
    except KeyError:
        raise Failure(NOT_FOUND, "variable %r is not defined" % name) from None
    try:
        content = ENCODER.encode(value).encode("utf-8")
    except MemoryError:
        raise Failure(TOO_LARGE, "variable %r is too large for JSON" % name) from None
    except Exception as error:
        message = "variable %r has no JSON form: %s" % (name, error)
        raise Failure(NOT_SERIALIZABLE, message) from None
    if len(content) > LIMIT:
        raise Failure(TOO_LARGE, "variable %r is %d bytes of JSON, over %d" % (name, len(content), LIMIT))
    return None, content


def put(main, document):
    try:
        values = DECODER.decode(document)
    except (ValueError, RecursionError) as error:
        raise Failure(INVALID, "not JSON that can be read: %s" % error) from None
    if type(values) is not dict:
        raise Failure(INVALID, "variables must be a JSON object")
    for name in values:
        check_name(name)
        if name.startswith("__") and name.endswith("__"):
            message = "%r belongs to the interpreter: names of variables do not both begin and end with `__`"
            raise Failure(INVALID, message % name)
    main.__dict__.update(values)
    return None, b"null"


def failure(error):
    """Returns what to report to the host about the error that ended `get` or `put`."""
    if type(error) is Failure:
        return error.kind, str(error)
    return NOT_SERIALIZABLE, "%s while the value was converted" % type(error).__name__
