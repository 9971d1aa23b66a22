"""What a container may do, and the code in it may not.

A filter sees numbers and looks behind no pointer. With `openat2` the mode of a new file is behind
one, so for code there is no such call, and programs take the older ones, whose modes the profile
of the container judges. The agent itself makes it.
"""

import sys
from posix import getpid, getuid

BPF_LOAD, BPF_IS, BPF_RETURN = 0x20, 0x15, 0x06
SYS_OPENAT2 = 437  # the same number on every architecture
RETURN_ENOSYS, RETURN_ALLOW = 0x00050000 | 38, 0x7FFF0000
IS_FIRST = getpid() == 1  # of a container. This part is loaded before anything else is started

worker = load("worker")


def instruction(code, otherwise, value):
    """A `struct sock_filter`, which goes on with the next one unless the comparison fails."""
    order = sys.byteorder
    return code.to_bytes(2, order) + bytes((0, otherwise)) + value.to_bytes(4, order)


PROGRAM = (
    instruction(BPF_LOAD, 0, 0)  # the number of the call
    + instruction(BPF_IS, 1, SYS_OPENAT2)
    + instruction(BPF_RETURN, 0, RETURN_ENOSYS)
    + instruction(BPF_RETURN, 0, RETURN_ALLOW)
)


def keep_login():
    """Set once, it is set for all that starts here: nobody writes another name into the logs of the host."""
    if IS_FIRST:
        worker["_write_if_possible"]("/proc/self/loginuid", b"%d" % getuid())


def give_up_calls():
    """For this process and whatever it starts. It has no new privileges already."""
    if IS_FIRST:
        worker["filter_calls"](PROGRAM)
