"""Runs cells that await at their top level.

They share one event loop that lives as long as the worker, so tasks and connections of one cell
can be awaited in the next. Between such cells the loop stands still.
"""

import asyncio

COROUTINE = 0x0080
STATE = {"loop": None}


def run(driver, codes, namespace):
    """Runs the code objects of a cell one after the other; the value is that of the last."""

    async def body():
        value = None
        for code, _ in codes:
            value = eval(code, namespace)
            if code.co_flags & COROUTINE:
                value = await value
        return value

    loop = STATE["loop"]
    if loop is None or loop.is_closed():
        loop = STATE["loop"] = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(body())
    state = {"cancelled": False}

    def cancel():
        """Called in the signal handler. False means that raising is better."""
        if state["cancelled"] or task.done() or asyncio.current_task(loop) is not None:
            return False
        state["cancelled"] = True
        task.cancel()
        loop.call_soon_threadsafe(nothing)
        return True

    driver.cancel = cancel
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError as error:
        if not state["cancelled"]:
            raise
        raise KeyboardInterrupt().with_traceback(error.__traceback__) from None
    finally:
        driver.cancel = None
        if not task.done():
            # Interrupted between two steps: it must not go on in the next cell.
            task.cancel()


def nothing():
    """Wakes the loop, so that it sees the cancellation."""
