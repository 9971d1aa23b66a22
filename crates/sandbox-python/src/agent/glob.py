"""Patterns for names, as shells have them, matched in bounded time."""


def matches(pattern, path):
    """Returns true when a path below a directory matches. A pattern without `/` is matched against the last name only."""
    if b"/" in pattern:
        if pattern[:1] == b"/":
            pattern = pattern[1:]
        return parts_match(pattern.split(b"/"), path.split(b"/"))
    return name_matches(pattern, path.rpartition(b"/")[2])


def parts_match(parts, names):
    part = name = 0
    back = None
    while name < len(names):
        if part < len(parts) and parts[part] == b"**":
            back = (part, name)
            part += 1
        elif part < len(parts) and name_matches(parts[part], names[name]):
            part += 1
            name += 1
        elif back is not None:
            back = (back[0], back[1] + 1)
            part, name = back[0] + 1, back[1]
        else:
            return False
    return all(rest == b"**" for rest in parts[part:])


def name_matches(pattern, name):
    # A byte that is no UTF-8 counts as a character.
    pattern = pattern.decode("utf-8", "surrogateescape")
    name = name.decode("utf-8", "surrogateescape")
    at = here = 0
    back = None
    while here < len(name):
        if at < len(pattern) and pattern[at] == "*":
            back = (at, here)
            at += 1
            continue
        used = one(pattern, at, name[here])
        if used:
            at += used
            here += 1
        elif back is not None:
            back = (back[0], back[1] + 1)
            at, here = back[0] + 1, back[1]
        else:
            return False
    return all(rest == "*" for rest in pattern[at:])


def one(pattern, at, character):
    """Returns the length of the element that stands for that character; 0 when it does not."""
    if at >= len(pattern):
        return 0
    first = pattern[at]
    if first == "?":
        return 1
    if first == "[":
        found = in_class(pattern, at, character)
        if found is not None:
            return found[1] if found[0] else 0
        return int(character == "[")
    if first == "\\" and at + 1 < len(pattern):
        return 2 if pattern[at + 1] == character else 0
    return int(first == character)


def in_class(pattern, begin, character):
    inverted = pattern[begin + 1 : begin + 2] in ("!", "^")
    at = start = begin + (2 if inverted else 1)
    has = False
    while True:
        if at >= len(pattern):
            return None
        if pattern[at] == "]" and at > start:
            return has != inverted, at + 1 - begin
        low = high = pattern[at]
        at += 1
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
            high = pattern[at + 1]
            at += 2
        has = has or low <= character <= high
