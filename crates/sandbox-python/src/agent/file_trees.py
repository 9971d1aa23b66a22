"""Whole trees of files: copies, and archives in both directions.

The format of archives is the host's; here an entry is its path, kind, mode, time and size or link.
"""

from posix import O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_PATH, O_RDONLY
from posix import close, fchmod, fstat, link, listdir, mkdir, open, read, readlink, rename
from posix import stat, symlink, unlink
from stat import S_ISDIR

codec, paths, files = load("codec"), load("paths"), load("files")
number, put, as_number = codec["number"], codec["put"], codec["as_number"]
Problem, Place, Walk = paths["Problem"], paths["Place"], paths["Walk"]
create, remove_tree, write_all = files["create"], files["remove_tree"], files["write_all"]
keep_time = files["set_modified"]
kind_of, temporary_name = paths["kind_of"], paths["temporary_name"]

CHUNK = 256 << 10
READ_DIRECTORY = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
FILE, DIRECTORY, LINK = 0, 1, 2
HARD_LINK = 3
FREE_HOLES, MAX_RATIO = 1 << 30, 200
EEXIST, ENOTDIR = 17, 20


def stat_in(name, directory):
    return stat(name, dir_fd=directory, follow_symlinks=False)


def about_target(error):
    """Marks an error as one about the target path."""
    if isinstance(error, OSError):
        return Problem(-error.errno, b"to")
    return error


def copy(request, source, target):
    with Place(source) as place:
        status = place.status()
        kind = kind_of(status)
        if place.is_directory and kind != DIRECTORY:
            raise OSError(ENOTDIR, "")
        try:
            there = Place(target)
        except OSError as error:
            raise about_target(error) from None
        with there:
            if there.is_directory and kind != DIRECTORY:
                raise Problem(-ENOTDIR, b"to")
            name = temporary_name()
            try:
                if kind == DIRECTORY:
                    must_be_free(there)
                    yield from copy_tree(place, there, name)
                    must_be_free(there)
                else:
                    yield from copy_one(place.parent, place.name, kind, there.parent, name)
                try:
                    yield from load("memory_release")["renamed"](request, name, there.parent, there)
                except OSError as error:
                    raise about_target(error) from None
                name = None
            finally:
                if name is not None:
                    discard(there.parent, name)
    return ()


def must_be_free(place):
    try:
        place.status()
    except FileNotFoundError:
        return
    raise Problem(-EEXIST, b"to")


def discard(parent, name):
    """Removes what was not finished, without a pause: the generator is not resumed."""
    try:
        unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError:
        try:
            for _ in remove_tree(parent, name):
                pass
        except OSError:
            pass  # it has a temporary name


def copy_tree(place, there, name):
    levels, walk = [(new_directory(name, there.parent), place.status().st_mode)], None
    try:
        own = fstat(levels[0][0])
        # Only now: a copy into itself is found when it meets itself.
        walk = Walk(open(place.name, READ_DIRECTORY, dir_fd=place.parent))
        while True:
            found = walk.next()
            if found is None:
                break
            while len(levels) > found.depth + 1:
                close_level(levels)
            into = levels[-1][0]
            if (found.status.st_dev, found.status.st_ino) == (own.st_dev, own.st_ino):
                raise Problem(paths["INSIDE_ITSELF"], b"copy")
            if found.kind == DIRECTORY:
                if not walk.enter(found):
                    raise PermissionError(13, "")
                levels.append((new_directory(found.name, into), found.status.st_mode))
            else:
                yield from copy_one(walk.directory, found.name, found.kind, into, found.name)
            yield
        while levels:
            close_level(levels)
    finally:
        if walk is not None:
            walk.close()
        for directory, _ in levels:
            close(directory)


def new_directory(name, parent):
    try:
        mkdir(name, 0o700, dir_fd=parent)
        return open(name, READ_DIRECTORY, dir_fd=parent)
    except OSError as error:
        raise about_target(error) from None


def close_level(levels):
    directory, mode = levels.pop()
    fchmod(directory, mode & 0o777)
    close(directory)


def copy_one(source, name, kind, target, new):
    if kind == LINK:
        symlink(readlink(name, dir_fd=source), new, dir_fd=target)
        return
    if kind != FILE:
        raise Problem(paths["NOT_REGULAR"], b"copy")
    fd = open(name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, dir_fd=source)
    copy = None
    try:
        status = fstat(fd)
        paths["must_be_regular"](status)
        try:
            copy = create(new, target, 0o600)
            while True:
                data = read(fd, CHUNK)
                if not data:
                    break
                write_all(copy, data)
                yield
            fchmod(copy, status.st_mode & 0o777)
        except OSError as error:
            raise about_target(error) from None
    finally:
        close(fd)
        if copy is not None:
            close(copy)


def pack(request, path):
    """Sends entries as they are found, each file with as many bytes as its entry says."""
    walk = Walk(paths["open_directory"](path))
    apparent = stored = 0
    linked = set()  # files that have several names
    try:
        request.answer()
        while True:
            found = walk.next()
            if found is None:
                return ()
            detail, fd = b"", None
            if found.kind == DIRECTORY:
                if not walk.enter(found):
                    raise Problem(paths["UNREADABLE"], found.path)
            elif found.kind == FILE:
                fd, status = open_to_pack(walk, found)
                apparent += status.st_size
                file = status.st_dev, status.st_ino
                if file not in linked:
                    stored += min(status.st_blocks * 512, status.st_size)
                if status.st_nlink > 1:
                    linked.add(file)
                detail = number(status.st_size)[4:]
            elif found.kind == LINK:
                try:
                    detail = readlink(found.name, dir_fd=walk.directory)
                except OSError:
                    continue  # it is no link any more
            else:
                continue  # it has no content
            try:
                if apparent > FREE_HOLES + stored * MAX_RATIO:
                    raise Problem(paths["TOO_LARGE"])
                yield from request.give(
                    put(
                        put(found.path)
                        + number(found.kind)
                        + number(found.status.st_mode & 0o777)
                        + number(max(0, int(found.status.st_mtime)))
                        + put(detail)
                    )
                )
                if fd is not None:
                    yield from content(request, fd, status.st_size)
            finally:
                if fd is not None:
                    close(fd)
    finally:
        walk.close()


def open_to_pack(walk, found):
    flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC
    try:
        fd = open(found.name, flags, dir_fd=walk.directory)
    except OSError:
        raise Problem(paths["UNREADABLE"], found.path) from None
    status = fstat(fd)
    try:
        paths["must_be_regular"](status)
    except BaseException:
        close(fd)
        raise
    return fd, status


def content(request, fd, left):
    while left:
        most = yield from request.room()
        data = read(fd, min(most, left))
        if not data:
            raise Problem(paths["SHORTER"])
        left -= len(data)
        request.credit -= len(data)
        request.agent.data(request.stream, data)
        yield


class Reader:
    """Reads records and raw bytes from the data of the host."""

    def __init__(self, request):
        self.request, self.buffer = request, b""

    def take(self, most):
        """Returns at least one and at most that many bytes. `None` at the end."""
        if not self.buffer:
            self.buffer = yield from self.request.take()
            if self.buffer is None:
                return None
        data, self.buffer = self.buffer[:most], self.buffer[most:]
        return data

    def exactly(self, count):
        data = b""
        while len(data) < count:
            piece = yield from self.take(count - len(data))
            if piece is None:
                return None
            data += piece
        return data


def unpack(request, path, inside):
    """Unpacks all or nothing: first beside the target, and into its place when the archive is complete.

    With `inside`, no link may lead out of the archive.
    """
    place = holder = None
    try:
        try:
            holder = paths["open_directory"](path)
        except FileNotFoundError:
            place = Place(path, True)
            holder = open(b".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, dir_fd=place.parent)
        name = temporary_name()
        mkdir(name, 0o700, dir_fd=holder)
        try:
            root = open(name, READ_DIRECTORY, dir_fd=holder)
            try:
                directories = yield from take_entries(request, root, as_number(inside))
                if place is None:
                    check_conflicts(root, holder)
                for entry, mode, modified in sorted(directories, key=lambda pair: -len(pair[0])):
                    directory = descend(root, entry.split(b"/"))
                    fchmod(directory, mode | 0o700)
                    keep_time(directory, modified)
                    close(directory)
                if place is None:
                    merge(root, holder)
                else:
                    must_be_free(place)
                    fchmod(root, 0o755)
                    rename(name, place.name, src_dir_fd=holder, dst_dir_fd=place.parent)
                    name = None
            finally:
                close(root)
        finally:
            if name is not None:
                discard(holder, name)
    finally:
        if holder is not None:
            close(holder)
        if place is not None:
            place.close()
    return ()


def take_entries(request, root, inside):
    reader, directories, links = Reader(request), [], []
    while True:
        length = yield from reader.exactly(4)
        if length is None:
            for path in links:
                must_stay_inside(root, path)
            return directories
        record = yield from reader.exactly(int.from_bytes(length, "little"))
        path, kind, mode, modified, detail = codec["split"](record)
        kind, mode = as_number(kind), as_number(mode)
        above, _, name = path.rpartition(b"/")
        parent = parent_of(root, path, above)
        try:
            if kind == FILE:
                yield from take_file(reader, name, parent, as_number(detail), mode, as_number(modified))
            elif kind == DIRECTORY:
                make_directory(name, parent)
                directories.append((path, mode, as_number(modified)))
            elif kind == LINK:
                symlink(detail, name, dir_fd=parent)
                if inside:
                    links.append(path)
            else:
                link_again(root, detail, name, parent)
        except OSError as error:
            raise archive_problem(path, error) from None
        finally:
            close(parent)
        yield


def must_stay_inside(root, path):
    """Refuses links that lead out through other links, although none of them looks like it."""
    try:
        close(paths["resolve"](path, O_PATH, root, paths["BENEATH"]))
    except OSError as error:
        # A link that leads nowhere, or in a circle, is no danger.
        if error.errno not in (2, 13, 20, 40):
            raise Problem(paths["LEADS_OUT"], path) from None


def archive_problem(path, error):
    if error.errno in (EEXIST, ENOTDIR, 40, 21, 18):
        return Problem(paths["IN_ARCHIVE"], path)
    return error


def parent_of(root, path, above):
    try:
        return descend(root, above.split(b"/") if above else [], True)
    except OSError as error:
        raise archive_problem(path, error) from None


def descend(root, names, make=False):
    """Opens a directory below, through no link."""
    directory = open(b".", READ_DIRECTORY, dir_fd=root)
    for name in names:
        try:
            try:
                below = open(name, READ_DIRECTORY, dir_fd=directory)
            except FileNotFoundError:
                if not make:
                    raise
                mkdir(name, 0o755, dir_fd=directory)
                below = open(name, READ_DIRECTORY, dir_fd=directory)
        finally:
            close(directory)
        directory = below
    return directory


def make_directory(name, parent):
    try:
        mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        if not S_ISDIR(stat_in(name, parent).st_mode):
            raise


def take_file(reader, name, parent, size, mode, modified):
    fd = create(name, parent, 0o600)
    try:
        while size:
            data = yield from reader.take(size)
            if data is None:
                raise Problem(paths["SHORTER"])
            write_all(fd, data)
            size -= len(data)
        fchmod(fd, mode)
        keep_time(fd, modified)
    finally:
        close(fd)


def link_again(root, target, name, parent):
    above, _, last = target.rpartition(b"/")
    try:
        directory = descend(root, above.split(b"/") if above else [])
    except OSError:
        raise Problem(paths["IN_ARCHIVE"], target) from None
    try:
        if kind_of(stat_in(last, directory)) != FILE:
            raise Problem(paths["IN_ARCHIVE"], target)
        link(last, name, src_dir_fd=directory, dst_dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        raise Problem(paths["IN_ARCHIVE"], target) from None
    finally:
        close(directory)


def both(name, source, target):
    """Returns true for a directory on both sides; an error when it is one on only one side."""
    here = S_ISDIR(stat_in(name, source).st_mode)
    try:
        there = S_ISDIR(stat_in(name, target).st_mode)
    except FileNotFoundError:
        return False
    if here != there:
        raise Problem(paths["OTHER_KIND"], name)
    return here


def in_both(name, source, target, action):
    one = open(name, READ_DIRECTORY, dir_fd=source)
    try:
        other = open(name, READ_DIRECTORY, dir_fd=target)
        try:
            action(one, other)
        finally:
            close(other)
    finally:
        close(one)


def names_in(directory):
    return [name.encode("utf-8", "surrogateescape") for name in listdir(directory)]


def check_conflicts(source, target):
    for name in names_in(source):
        if both(name, source, target):
            in_both(name, source, target, check_conflicts)


def merge(source, target):
    for name in names_in(source):
        if both(name, source, target):
            in_both(name, source, target, merge)
        else:
            rename(name, name, src_dir_fd=source, dst_dir_fd=target)


VERBS = {"copy": copy, "pack": pack, "unpack": unpack}
