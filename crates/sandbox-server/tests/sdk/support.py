"""What the flows check with."""

import asyncio
import inspect
import os
import time
import urllib.error
import urllib.request

URL = os.environ["E2B_API_URL"]


async def w(value):
    """Returns the value, awaited where it has to be."""
    return await value if inspect.isawaitable(value) else value


def equal(found, expected, what=""):
    if found != expected:
        raise AssertionError(f"{what} expected {expected!r}, found {found!r}")


def holds(condition, what):
    if not condition:
        raise AssertionError(what)


async def raises(kind, value, text=""):
    """Checks that an awaited value, or a call, raises that kind of error with that text. Returns the error."""
    try:
        found = value() if callable(value) else value
        found = await w(found)
    except kind as error:
        holds(text in str(error), f"{text!r} is not in {error}")
        return error
    raise AssertionError(f"expected {kind}, found {found!r}")


async def until(condition, what, seconds=5.0):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while True:
        found = await w(condition())
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"timed out: {what}")
        await asyncio.sleep(0.05)


def raw(method, path, headers=None, body=None, host=None):
    """Sends a request of its own. Returns status, headers and body."""
    headers = dict(headers or {})
    if host:
        headers["Host"] = host
    request = urllib.request.Request(URL + path, data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()
