"""Writes a program as byte code of this interpreter, from which interpreters with the same byte code can start.

It is a part of the zygote, which writes its own byte code, and a program of its own for agents elsewhere.
"""

import marshal
import sys

# As in `loader`.
FILE_NAME = "<sandbox importlib._bootstrap %s>"
OTHER = 3  # the exit status where this interpreter has other byte code than is asked for


def compiled(sources, program, name):
    """Returns byte code that does the same as a program of that text, whose first line is the table of its parts."""
    parts = {
        part: marshal.dumps(compile(source, FILE_NAME % part, "exec", dont_inherit=True))
        for part, source in sources.items()
    }
    text = "SOURCES = %r\n%s" % (parts, program.partition("\n")[2])
    return marshal.dumps(compile(text, name, "exec", dont_inherit=True))


def main():
    magic = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER
    if magic.hex() != sys.argv[1]:
        sys.exit(OTHER)
    program = sys.stdin.buffer.read().decode("ascii")
    table = {}
    exec(program.partition("\n")[0], table)
    sys.stdout.buffer.write(compiled(table["SOURCES"], program, FILE_NAME % "agent"))


if __name__ == "__main__":
    main()
