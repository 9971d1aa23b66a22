"""Runs a program on a host that lacks something: `deny.py WHAT.. -- PROGRAM ARGUMENT..`.

A filter of system calls answers for the kernel as one does that never had it, or that may not give it.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000

X86 = platform.machine() == "x86_64"
CALLS = {
    # name: number on x86-64, number elsewhere
    "clone": (56, 220),
    "unshare": (272, 97),
    "clone3": (435, 435),
    "mount": (165, 40),
    "pivot_root": (155, 41),
    "setns": (308, 268),
    "seccomp": (317, 277),
    "prctl": (157, 167),
    "landlock_create_ruleset": (444, 444),
    "memfd_create": (319, 279),
    "openat2": (437, 437),
    "close_range": (436, 436),
}

# What is denied: call, error, bits of the first argument or None, whether they are its whole value.
NO_NAMESPACE = lambda bit: [  # noqa: E731
    ("unshare", errno.EPERM, bit, False),
    ("clone", errno.EPERM, bit, False),
    ("clone3", errno.ENOSYS, None, False),
]
DENIALS = {
    "user-namespaces": NO_NAMESPACE(NEWUSER),
    "network-namespaces": NO_NAMESPACE(NEWNET),
    "process-namespaces": NO_NAMESPACE(NEWPID),
    "mount-namespaces": NO_NAMESPACE(NEWNS),
    "mounts": [("mount", errno.EPERM, None, False)],
    "roots": [("pivot_root", errno.EPERM, None, False)],
    "entering": [("setns", errno.EPERM, None, False)],
    "seccomp": [("seccomp", errno.ENOSYS, None, False), ("prctl", errno.EINVAL, 22, True)],
    "landlock": [("landlock_create_ruleset", errno.ENOSYS, None, False)],
    "clone3": [("clone3", errno.ENOSYS, None, False)],
    "memory-files": [("memfd_create", errno.ENOSYS, None, False)],
    "openat2": [("openat2", errno.ENOSYS, None, False)],
    "close_range": [("close_range", errno.ENOSYS, None, False)],
}


def program(denials):
    """The filter, as the kernel reads it."""
    load, equal, any_bit, answer = 0x20, 0x15, 0x45, 0x06
    lines = [(load, 0, 0, 0)]
    for call, error, bits, whole in denials:
        number = CALLS[call][0 if X86 else 1]
        deny = (answer, 0, 0, 0x00050000 | error)
        if bits is None:
            lines += [(equal, 0, 1, number), deny]
        else:
            test = equal if whole else any_bit
            lines += [(equal, 0, 3, number), (load, 0, 0, 16), (test, 0, 1, bits), deny]
            lines += [(load, 0, 0, 0)]
    lines.append((answer, 0, 0, 0x7FFF0000))
    return b"".join(struct.pack("HBBI", *line) for line in lines), len(lines)


def main():
    end = sys.argv.index("--")
    what, command = sys.argv[1:end], sys.argv[end + 1 :]
    # Denying `prctl` would deny what follows, so it is one filter that is put on once.
    code, length = program([denial for name in what for denial in DENIALS[name]])
    libc = ctypes.CDLL(None, use_errno=True)
    held = ctypes.create_string_buffer(code)
    filter = struct.pack("HxxxxxxP", length, ctypes.addressof(held))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter, 0, 0):
        sys.exit("no filter: " + os.strerror(ctypes.get_errno()))
    os.execv(command[0], command)


main()
