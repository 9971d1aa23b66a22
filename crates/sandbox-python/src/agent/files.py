"""The files of a container, one by one: read, write, list, stat, make, remove, rename, modes, find."""

from os import utime
from posix import O_APPEND, O_CLOEXEC, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_RDONLY, O_WRONLY
from posix import chmod, close, fchmod, fstat, listdir, mkdir, open, pread, read, readlink, rename
from posix import rmdir, scandir, stat, unlink, write
from stat import S_ISDIR, S_ISLNK, S_ISREG

codec, paths, memory_release = load("codec"), load("paths"), load("memory_release")
number, put, as_number = codec["number"], codec["put"], codec["as_number"]
Problem, Place, Walk = paths["Problem"], paths["Place"], paths["Walk"]
opened, kind_of, temporary_name = paths["opened"], paths["kind_of"], paths["temporary_name"]

CHUNK = 64 << 10
TURN = 64  # entries looked at before others have their turn
MAX_ENTRIES = 100_000
MAX_LINE_LENGTH = 1024
EISDIR, ENOTDIR, EEXIST = 21, 20, 17
NANOS = 1_000_000_000


def describe(name, status, target):
    return (
        put(name)
        + number(kind_of(status))
        + number(status.st_size)
        + number(status.st_mtime_ns // NANOS)
        + number(status.st_mtime_ns % NANOS)
        + number(status.st_mode & 0o777)
        + put(target)
    )


def read_file(request, path, offset, length, can_be_taken):
    fd = paths["open_regular"](path, O_RDONLY)
    try:
        offset, left = as_number(offset), as_number(length)
        left = left if left >= 0 else 1 << 62
        if as_number(can_be_taken):
            yield from load("fd_transfer")["offer"](request, fd, offset, left)
        else:
            request.answer()
        while left > 0:
            most = yield from request.room()
            data = pread(fd, min(most, left), offset) if offset < 1 << 62 else b""
            if not data:
                break
            offset += len(data)
            left -= len(data)
            request.credit -= len(data)
            request.agent.data(request.stream, data)
            yield
    finally:
        close(fd)


def write_file(request, path, append, parents, mode, modified):
    """Writes complete content at once, or at the end of an existing file."""
    append, mode, modified = as_number(append), as_number(mode), as_number(modified)
    with Place(path, as_number(parents)) as place:
        if place.is_directory:
            raise OSError(EISDIR, "")
        name = None
        if append:
            fd = open_end(path, place, mode)
        else:
            mode = mode_of(path, mode)
            name = temporary_name()
            fd = create(name, place.parent, 0o600)
        written = 0
        try:
            while True:
                piece = yield from request.take()
                if piece is None:
                    break
                written += write_all(fd, piece)
            if not append:
                fchmod(fd, mode)
                if modified >= 0:
                    set_modified(fd, modified)
                yield from memory_release["renamed"](request, name, place.parent, place)
                name = None
        finally:
            close(fd)
            if name is not None:
                try_to_unlink(name, place.parent)
    return [number(written)]


def set_modified(fd, modified):
    """Sets the time of the last change. A time that the file system cannot have is ignored."""
    try:
        utime(fd, (modified, modified))
    except (OSError, OverflowError):
        pass


def open_end(path, place, mode):
    try:
        return paths["open_regular"](path, O_WRONLY | O_APPEND | O_NOFOLLOW)
    except FileNotFoundError:
        return create(place.name, place.parent, mode)


def mode_of(path, mode):
    """Returns the mode of an existing file, which must be one that may be written, and which is kept."""
    try:
        fd = paths["open_regular"](path, O_WRONLY | O_NOFOLLOW)
    except FileNotFoundError:
        return mode
    except OSError as error:
        if error.errno == 26:  # a program that runs can be replaced
            return 0o755
        raise
    try:
        return fstat(fd).st_mode & 0o777
    finally:
        close(fd)


def create(name, parent, mode):
    fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode, dir_fd=parent)
    fchmod(fd, mode)
    return fd


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[write(fd, view) :]
    return len(data)


def try_to_unlink(name, parent):
    try:
        unlink(name, dir_fd=parent)
    except OSError:
        pass  # code has removed it


def list_files(request, path):
    directory = paths["open_directory"](path)
    try:
        request.answer()
        listed = []
        for name in listdir(directory):
            name = name.encode("utf-8", "surrogateescape")
            try:
                status = stat(name, dir_fd=directory, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if len(listed) == MAX_ENTRIES:
                raise Problem(paths["TOO_MANY"])
            listed.append(describe(name, status, link_target(name, directory, status)))
            if len(listed) % TURN == 0:
                yield
        yield from request.give(b"".join(put(entry) for entry in listed))
    finally:
        close(directory)


def link_target(name, directory, status):
    if not S_ISLNK(status.st_mode):
        return b""
    try:
        return readlink(name, dir_fd=directory)
    except OSError:
        return b""


def stat_file(request, path):
    fd = opened(path, O_PATH | O_NOFOLLOW)
    try:
        status = fstat(fd)
        target = readlink(b"", dir_fd=fd) if S_ISLNK(status.st_mode) else b""
        return [describe(b"", status, target)]
    finally:
        close(fd)
    yield


def make_directory(request, path, parents):
    if as_number(parents):
        try:
            paths["make_directories"](path)
        except NotADirectoryError:
            try:
                close(paths["resolve"](path, O_PATH))
            except OSError:
                raise NotADirectoryError(ENOTDIR, "") from None
            raise FileExistsError(EEXIST, "") from None
        return ()
    with Place(path) as place:
        mkdir(place.name, 0o755, dir_fd=place.parent)
    return ()
    yield


def remove_file(request, path, recursive):
    with Place(path) as place:
        if not S_ISDIR(place.status().st_mode):
            if place.is_directory:
                raise OSError(ENOTDIR, "")
            yield from memory_release["unlinked"](request, place.name, place.parent)
            return
        if not as_number(recursive):
            raise OSError(EISDIR, "")
        yield from remove_tree(place.parent, place.name, request)


def remove_tree(parent, name, request=None):
    """Removes a directory with everything in it, however deep. What is too deep is first moved up.

    Without a request it does not pause.
    """
    flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | paths["O_DIRECTORY"]
    stack = [(open(name, flags, dir_fd=parent), name)]
    count = 0
    try:
        while stack:
            directory, own = stack[-1]
            below = None
            for entry in listdir(directory):
                entry = entry.encode("utf-8", "surrogateescape")
                count += 1
                if count % TURN == 0:
                    yield
                try:
                    if request is None:
                        unlink(entry, dir_fd=directory)
                    else:
                        yield from memory_release["unlinked"](request, entry, directory)
                except FileNotFoundError:
                    pass
                except (IsADirectoryError, PermissionError):
                    status = stat(entry, dir_fd=directory, follow_symlinks=False)
                    if not S_ISDIR(status.st_mode):
                        raise
                    below = entry
                    break
            if below is not None:
                if len(stack) < paths["MAX_DEPTH"]:
                    stack.append((open(below, flags, dir_fd=directory), below))
                else:
                    up = temporary_name()
                    rename(below, up, src_dir_fd=directory, dst_dir_fd=stack[0][0])
                continue
            stack.pop()
            close(directory)
            try:
                rmdir(own, dir_fd=stack[-1][0] if stack else parent)
            except FileNotFoundError:
                pass
    finally:
        for directory, _ in stack:
            close(directory)


def rename_file(request, source, target):
    with Place(source) as place:
        status = place.status()
        try:
            there = Place(target)
        except OSError as error:
            raise Problem(-error.errno, b"to") from None
        with there:
            if there.is_directory and not S_ISDIR(status.st_mode):
                raise Problem(-ENOTDIR, b"to")
            try:
                yield from memory_release["renamed"](request, place.name, place.parent, there)
            except OSError as error:
                if error.errno == 22:
                    raise Problem(paths["INSIDE_ITSELF"], b"rename") from None
                raise Problem(-error.errno, b"" if error.errno in (2, 18) else b"to") from None
    return ()


def set_mode(request, path, mode):
    fd = opened(path, O_PATH | O_NOFOLLOW)
    try:
        status = fstat(fd)
        if not S_ISDIR(status.st_mode):
            paths["must_be_regular"](status)
        chmod("/proc/self/fd/%d" % fd, as_number(mode))
    finally:
        close(fd)
    return ()
    yield


def find_files(request, path, name, has_name, contains, has_contains, limit):
    limit, count = as_number(limit), 0
    matches = load("glob")["matches"] if as_number(has_name) else None
    contains = contains if as_number(has_contains) else None
    walk = Walk(paths["open_directory"](path))
    looked = 0
    try:
        request.answer()
        while count < limit:
            found = walk.next()
            if found is None:
                break
            looked += 1
            if looked % TURN == 0:
                yield
            if matches is None or matches(name, found.path):
                if contains is None:
                    count += 1
                    yield from request.give(put(put(found.path)))
                elif found.kind == 0:
                    for line, shown in (yield from lines_of(walk, found, contains, limit - count)):
                        count += 1
                        yield from request.give(put(put(found.path) + number(line) + put(shown)))
            if found.kind == 1:
                walk.enter(found)
    finally:
        walk.close()


def lines_of(walk, found, wanted, most):
    """Finds lines that contain the text, of whatever length, in a fixed amount of memory."""
    hits = []
    try:
        fd = open(found.name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, dir_fd=walk.directory)
    except OSError as error:
        if error.errno in (2, 6, 13, 40):
            return hits
        raise
    try:
        if not S_ISREG(fstat(fd).st_mode) or b"\n" in wanted:
            return hits
        overlap = len(wanted) - 1
        line, start, kept, hit = 1, b"", b"", False
        while len(hits) < most:
            piece = read(fd, CHUNK)
            if not piece:
                break
            end = piece.find(b"\n")
            rest = piece if end < 0 else piece[:end]
            hit = hit or wanted in kept + rest
            start += rest[: MAX_LINE_LENGTH - len(start)]
            if end < 0:
                kept = (kept + rest)[-overlap:] if overlap > 0 else b""
                yield
                continue
            if hit:
                hits.append((line, start.rstrip(b"\r")))
            last = piece.rfind(b"\n") + 1
            line = lines_in(piece, end + 1, last, line + 1, wanted, most, hits)
            rest = piece[last:]
            start, hit = rest[:MAX_LINE_LENGTH], wanted in rest
            kept = rest[-overlap:] if overlap > 0 else b""
            yield
        if hit:
            hits.append((line, start.rstrip(b"\r")))
        return hits[:most]
    finally:
        close(fd)


def lines_in(piece, at, last, line, wanted, most, hits):
    """Adds lines that are complete in this piece, from hit to hit; returns the number of the next line."""
    while len(hits) < most:
        found = piece.find(wanted, at, last)
        if found < 0 or found >= last:
            break
        begin = max(at, piece.rfind(b"\n", at, found) + 1)
        line += piece.count(b"\n", at, begin)
        end = piece.find(b"\n", found)
        hits.append((line, piece[begin : min(end, begin + MAX_LINE_LENGTH)].rstrip(b"\r")))
        line, at = line + 1, end + 1
    return line + piece.count(b"\n", at, last)


VERBS = {
    "read": read_file,
    "write": write_file,
    "list": list_files,
    "stat": stat_file,
    "make_directory": make_directory,
    "remove": remove_file,
    "rename": rename_file,
    "set_mode": set_mode,
    "find": find_files,
}
