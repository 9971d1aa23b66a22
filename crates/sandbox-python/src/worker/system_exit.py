"""Evaluates a `SystemExit`."""


def exit_status(error):
    """Returns the exit status and the text for standard error, as the interpreter does."""
    code = error.code
    if code is None:
        return 0, None
    if isinstance(code, int):
        code = int(code)
        return (code if -(1 << 63) <= code < 1 << 63 else -1), None
    return 1, str(code)
