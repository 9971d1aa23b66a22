"""System calls that a container may use, and the code in it may not.

A filter sees numbers and cannot follow a pointer. With `openat2` the mode of a new file is behind
one, so for code there is no such call, and programs use the older ones, whose modes the profile
of the container checks. The agent itself uses it.

Nor does code get filters of its own: they are compiled to memory that is limited for the whole
machine. The call fails as on a kernel without filters.
"""

import sys
from posix import getpid, getuid, uname

BPF_LOAD, BPF_IS, BPF_RETURN = 0x20, 0x15, 0x06
NUMBER_AT = 0
FIRST_ARGUMENT_AT = 16 if sys.byteorder == "little" else 20  # the half that the kernel looks at
SYS_OPENAT2 = 437  # the same number on every architecture
SYS_PRCTL, SYS_SECCOMP = {"aarch64": (167, 277)}.get(uname().machine, (157, 317))
PR_SET_SECCOMP, SECCOMP_SET_MODE_FILTER = 22, 1
RETURN_ENOSYS, RETURN_EINVAL, RETURN_ALLOW = 0x00050000 | 38, 0x00050000 | 22, 0x7FFF0000
IS_FIRST = getpid() == 1  # of a container. This part is loaded before anything else is started

worker = load("worker")


def instruction(code, otherwise, value):
    """Encodes a `struct sock_filter`, which continues with the next one, or skips `otherwise` when the comparison fails."""
    order = sys.byteorder
    return code.to_bytes(2, order) + bytes((0, otherwise)) + value.to_bytes(4, order)


PROGRAM = (
    instruction(BPF_LOAD, 0, NUMBER_AT)
    + instruction(BPF_IS, 1, SYS_OPENAT2)
    + instruction(BPF_RETURN, 0, RETURN_ENOSYS)
    + instruction(BPF_IS, 3, SYS_PRCTL)
    + instruction(BPF_LOAD, 0, FIRST_ARGUMENT_AT)
    + instruction(BPF_IS, 5, PR_SET_SECCOMP)
    + instruction(BPF_RETURN, 0, RETURN_EINVAL)
    + instruction(BPF_IS, 3, SYS_SECCOMP)
    + instruction(BPF_LOAD, 0, FIRST_ARGUMENT_AT)
    + instruction(BPF_IS, 1, SECCOMP_SET_MODE_FILTER)
    + instruction(BPF_RETURN, 0, RETURN_EINVAL)
    + instruction(BPF_RETURN, 0, RETURN_ALLOW)
)


def keep_login():
    """Sets the login id, once for all that starts here, so that no process writes another name into the logs of the host."""
    if IS_FIRST:
        worker["_write_if_possible"]("/proc/self/loginuid", b"%d" % getuid())


def give_up_calls():
    """Removes the calls from this process and everything that it starts. It has no new privileges already."""
    if IS_FIRST:
        worker["filter_calls"](PROGRAM)
