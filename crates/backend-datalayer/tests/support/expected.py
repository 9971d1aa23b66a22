"""What the scripts with other clients check, said aloud: one line for everything that was expected and seen."""

import sys
import time


def expect(what, expected, seen):
    """Ends the script where something else than the expected was seen."""
    if seen != expected:
        sys.exit(f"failed: {what}: expected {expected!r}, saw {seen!r}")
    print(f"ok: {what}: {expected!r}")


def expect_refusal(what, words, call):
    """Ends the script where the call is not refused with these words."""
    try:
        seen = call()
    except Exception as error:
        if words not in str(error):
            sys.exit(f"failed: {what}: expected {words!r} in {error!r}")
        print(f"ok: {what}: refused with {words!r}")
    else:
        sys.exit(f"failed: {what}: expected a refusal with {words!r}, saw {seen!r}")


def expect_soon(what, expected, look):
    """The same for what takes the service a moment."""
    for _ in range(100):
        if look() == expected:
            break
        time.sleep(0.1)
    expect(what, expected, look())
