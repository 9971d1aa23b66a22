"""Open files that a host on the same kernel takes from this process, so that their content needs no stream."""

import posix
from posix import close, fstat, write

codec, WAIT = load("codec"), load("requests")["WAIT"]
number, put = codec["number"], codec["put"]

WORTH_IT = 1 << 20  # bytes


def prove(request, word):
    """Keeps the nonce in an open file until the request is cancelled: a host that finds it there has found this process."""
    fd = posix.memfd_create("word", posix.MFD_CLOEXEC)
    try:
        write(fd, word)
        request.answer([number(fd)])
        while True:
            yield WAIT
    finally:
        close(fd)


def offer(request, fd, offset, left):
    """Answers with an open file. A host that takes it cancels the request; otherwise the file is sent at the end of the input."""
    status = fstat(fd)
    if min(left, status.st_size - offset) < WORTH_IT:
        request.answer()
        return
    names = (value.to_bytes(8, "little") for value in (status.st_dev, status.st_ino))
    request.answer([number(fd), *map(put, names)])
    while (yield from request.take()) is not None:
        pass
