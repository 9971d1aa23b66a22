"""What a `SystemExit` means."""


def exit_status(error):
    """What the interpreter makes of it: status, and a text for standard error."""
    code = error.code
    if code is None:
        return 0, None
    if isinstance(code, int):
        code = int(code)
        return (code if -(1 << 63) <= code < 1 << 63 else -1), None
    return 1, str(code)
