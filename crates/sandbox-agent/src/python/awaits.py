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
        try:
            for code, _ in codes:
                value = eval(code, namespace)
                if code.co_flags & COROUTINE:
                    value = await value
        except asyncio.CancelledError as error:
            # Interpreters before 3.11 make a new exception of it on the way out.
            state["trace"] = error.__traceback__
            raise
        return value

    loop = STATE["loop"]
    if loop is None or loop.is_closed():
        loop = STATE["loop"] = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    state = {"cancelled": False, "trace": None}
    task = loop.create_task(body())

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
    except asyncio.CancelledError:
        if not state["cancelled"]:
            raise
        raise KeyboardInterrupt().with_traceback(state["trace"]) from None
    finally:
        driver.cancel = None
        if not task.done():
            # Interrupted between two steps: it must not go on in the next cell.
            task.cancel()


def nothing():
    """Wakes the loop, so that it sees the cancellation."""
