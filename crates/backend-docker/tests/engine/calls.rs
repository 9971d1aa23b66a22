//! System calls that are refused to code in a container, and their errors.

use super::create;
use super::support::has_engine;

/// A line discipline would load a driver into the kernel, and inserted characters would look like a user's input.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn terminals_are_used_and_not_controlled() {
    assert!(has_engine(), "there is no engine to test with");
    let sandbox = create().await;
    let code = "
import ctypes, fcntl, os, pty, struct, termios
libc = ctypes.CDLL(None, use_errno=True)
ends = pty.openpty()
def attempt(request, value):
    failed = []
    for end in ends:
        try: fcntl.ioctl(end, request, struct.pack('i', value))
        except OSError as error: failed.append(error.errno)
    word = ctypes.create_string_buffer(struct.pack('i', value))
    ctypes.set_errno(0)
    done = libc.ioctl(ends[1], ctypes.c_ulong(request | 1 << 32), word)
    return failed + [done and ctypes.get_errno()]
# TIOCSETD with the current discipline and with one that would be loaded, TIOCSTI, TIOCLINUX, TIOCCONS.
refused = [attempt(*each) for each in [(0x5423, 0), (0x5423, 27), (0x5412, 65), (0x541c, 6), (0x541d, 0)]]
# Control: common requests of programs, and their neighbours by number.
used = [fcntl.ioctl(ends[1], termios.TIOCGWINSZ, bytes(8)), fcntl.ioctl(ends[1], 0x5424, bytes(4)),
        termios.tcgetattr(ends[1])[2] > 0, os.isatty(ends[1])]
refused, used";
    let result = sandbox.run_code(code).await.unwrap();
    let refused = ["[1, 1, 1]"; 5].join(", ");
    let zeros = |count: usize| format!("b'{}'", "\\x00".repeat(count));
    let expected = format!("([{refused}], [{}, {}, True, True])", zeros(8), zeros(4));
    assert_eq!(result.text(), Some(&*expected), "{result:?}");
}

/// Programs use another call after ENOSYS, where they would fail after EPERM.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn optional_calls_are_answered_as_not_implemented() {
    assert!(has_engine(), "there is no engine to test with");
    let sandbox = create().await;
    // The numbers from 424 on are the same on every architecture.
    let code = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def answer(number):
    ctypes.set_errno(0)
    return libc.syscall(number, -1, -1, -1, -1, -1, -1) == -1 and ctypes.get_errno()
placement = (239, 238, 206) if os.uname().machine == 'x86_64' else (236, 237, 0)
# get_mempolicy, set_mempolicy, io_setup; clone3, process_madvise, memfd_secret, set_mempolicy_home_node, cachestat, \
mseal, and a call that does not exist yet.
gone = [answer(number) for number in (*placement, 435, 440, 447, 450, 451, 462, 480, 1000)]
# Control: calls that are refused with EPERM, and one that is allowed.
gone, [answer(number) for number in (425, 428, 438)], os.getpid() > 1";
    let result = sandbox.run_code(code).await.unwrap();
    let expected = format!("([{}], [1, 1, 1], True)", ["38"; 11].join(", "));
    assert_eq!(result.text(), Some(&*expected), "{result:?}");
}
