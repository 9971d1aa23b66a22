"""Runs cells that await at their top level.

They share one event loop that lives as long as the worker, so tasks and connections of one cell
can be awaited in the next. Between such cells the loop does not run. A cell that makes tasks and
awaits none uses the same loop; its tasks take their first steps when it has ended.
"""

import asyncio
from _thread import get_ident
from contextvars import copy_context
from functools import wraps

COROUTINE = 0x0080
MAIN_THREAD = load("driver")["MAIN_THREAD"]
# Functions that need a loop, and have one in every cell of a notebook.
WANTING = ("create_task", "ensure_future", "gather", "get_event_loop", "shield", "wrap_future")
FIRST_STEPS = 20


def run(driver, codes, namespace):
    """Runs the code objects of a cell one after the other; the value is that of the last."""

    async def body():
        value = None
        for code, _ in codes:
            value = eval(code, namespace)
            if code.co_flags & COROUTINE:
                value = await value
        return value

    return run_in_loop(driver, body())


def take_first_steps(driver):
    """Starts the tasks that a cell has made without awaiting them."""
    driver.cells.loop_is_wanted = False

    async def body():
        for _ in range(FIRST_STEPS):
            await asyncio.sleep(0)

    run_in_loop(driver, body())


def run_in_loop(driver, coroutine):
    """Runs a coroutine of user code. Variables of its context are those of the code that comes after it."""

    async def body():
        try:
            return await coroutine
        except asyncio.CancelledError as error:
            # Interpreters before 3.11 make a new exception of it on the way out.
            state["trace"] = error.__traceback__
            raise
        finally:
            state["context"] = copy_context()

    state = {"cancelled": False, "trace": None, "context": {}}
    loop = shared_loop(driver)
    task = loop.create_task(body())

    def cancel():
        """Called in the signal handler. Returns false when raising is better."""
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
            # Interrupted between two steps: it must not continue in the next cell.
            task.cancel()
        for variable, value in state["context"].items():
            if variable.get(state) is not value:
                variable.set(value)


def shared_loop(driver):
    loop = driver.cells.loop
    if loop is None or loop.is_closed():
        loop = driver.cells.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def offer_loop(driver):
    """Gives code of cells the loop where it asks for one, and none is running."""
    for name in WANTING:
        setattr(asyncio, name, with_loop(driver, getattr(asyncio, name)))


def with_loop(driver, function):
    create_task = function is asyncio.create_task

    @wraps(function)
    def wrapper(*arguments, **options):
        is_cell = driver.cells.is_cell and get_ident() == MAIN_THREAD
        if is_cell and asyncio._get_running_loop() is None:
            loop = shared_loop(driver)
            driver.cells.loop_is_wanted = True
            if create_task:
                return loop.create_task(*arguments, **options)
        return function(*arguments, **options)

    return wrapper


def nothing():
    """Wakes the loop, so that it sees the cancellation."""
