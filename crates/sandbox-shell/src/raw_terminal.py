"""Writes every byte, reads every byte, and says whether they came as they were sent."""

import os
import sys

word = sys.argv[1].encode()


def write(data):
    while data:
        data = data[os.write(1, data) :]


if sys.version_info < (3, 9):
    write(word + b" lacking python\n")
    sys.exit(1)
every = bytes(range(256))
write(word + b" ready\n" + every)
heard = b""
while len(heard) < len(every):
    piece = os.read(0, len(every) - len(heard))
    if not piece:
        sys.exit(1)
    heard += piece
write(word + (b" clean\n" if heard == every else b" unclean\n"))
sys.exit(heard != every)
