"""Open files that a host on the same kernel takes from this process, so that their content needs no way of its own."""

import posix
from posix import close, fstat, write

codec, WAIT = load("codec"), load("requests")["WAIT"]
number, put = codec["number"], codec["put"]

WORTH_IT = 1 << 20  # bytes


def prove(request, word):
    """Has the word in an open file until the request is given up: who finds it there has found this process."""
    fd = posix.memfd_create("word", posix.MFD_CLOEXEC)
    try:
        write(fd, word)
        request.answer([number(fd)])
        while True:
            yield WAIT
    finally:
        close(fd)


def offer(request, fd, offset, left):
    """Answers. Who takes the file gives the request up; otherwise it is sent, once nothing more is said to it."""
    status = fstat(fd)
    if min(left, status.st_size - offset) < WORTH_IT:
        request.answer()
        return
    names = (value.to_bytes(8, "little") for value in (status.st_dev, status.st_ino))
    request.answer([number(fd), *map(put, names)])
    while (yield from request.take()) is not None:
        pass
