"""Fields and frames, the byte format shared with the host."""

import sys

ACKNOWLEDGED = 28
TEXT_LIMIT = 1 << 20  # characters of a displayed text


def put(data):
    return len(data).to_bytes(4, "little") + data


def text(value):
    # A lone surrogate has no UTF-8; it is shown as its escape.
    # By the type, as code may have made one of its own.
    return put(str.encode(value, "utf-8", "backslashreplace"))


def number(value):
    return put(int.to_bytes(value, 8, "little", signed=True))


def several(fields):
    return put(b"".join(fields))


def packet(kind, *fields):
    return bytes((kind,)) + b"".join(fields)


def frame(kind, *fields):
    return put(packet(kind, *fields))


def acknowledged(request, problem, notes=()):
    """Answers a request about this process as a whole: an empty problem says that it was done."""
    return frame(ACKNOWLEDGED, put(request), text(problem), several([text(note) for note in notes]))


def cut(value):
    """Cuts a text that is over the limit, and says so in it."""
    if len(value) <= TEXT_LIMIT:
        return value
    return "%s\n... [cut: %d characters in all]" % (value[:TEXT_LIMIT], len(value))


def split(body):
    """Splits a message or a list into its fields. The host is trusted to write them well."""
    fields = []
    at = 0
    while at < len(body):
        start = at + 4
        at = start + int.from_bytes(body[at:start], "little")
        fields.append(body[start:at])
    return fields


def as_text(field):
    return str(field, "utf-8")


def as_number(field):
    return int.from_bytes(field, "little", signed=True)


def as_texts(field):
    return [str(item, "utf-8") for item in split(field)]


def as_pairs(field):
    items = as_texts(field)
    return list(zip(items[::2], items[1::2]))


def received_files(ancillary):
    """Returns the descriptors that came with a message."""
    files = []
    for level, kind, data in ancillary:
        if (level, kind) == (1, 1):  # SOL_SOCKET, SCM_RIGHTS
            whole = len(data) - len(data) % 4
            files += [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, whole, 4)]
    return files

