"""The command line of a container: sends the nonce, and takes the agent from standard input."""

import marshal
import sys
from posix import read, write


def take(count):
    data = b""
    while len(data) < count:
        piece = read(0, count - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data


magic = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER
write(1, ("code-sandboxes-agent 1 %s %s\n" % (sys.argv[1], magic.hex())).encode())
ready_made = take(1) == b"\1"
program = take(int.from_bytes(take(4), "little"))
program = marshal.loads(program) if ready_made else compile(program, "<sandbox importlib._bootstrap agent>", "exec")
open_files = tuple(map(int, sys.argv[2].split(":")))
exec(program, {"__name__": "<sandbox agent>", "NONCE": sys.argv[1], "OPEN_FILES": open_files, "RESIDENT": None})
