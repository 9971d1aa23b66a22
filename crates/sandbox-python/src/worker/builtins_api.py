"""Names that user code finds among the builtins, beside Python's own."""

import builtins


class ToolError(Exception):
    """A tool of the host gave no result. Its text says why, and `tool` is the tool's name."""

    def __init__(self, message="", tool=None):
        Exception.__init__(self, message)
        self.tool = tool


def offer(driver):
    def tools(function, *arguments):
        return load("tools")[function](driver, ToolError, *arguments)

    async def call_tool(*names, **arguments):
        """Calls a tool of the host: `await call_tool("name", {"argument": 1})`, or `call_tool("name", argument=1)`.

        The value is the tool's JSON result. Raises ToolError when there is no result, TypeError or ValueError when
        the arguments have no JSON form. Calls made together, as with `asyncio.gather`, work at the same time.
        """
        return await tools("call", names, arguments)

    def call_tool_sync(*names, **arguments):
        """Calls a tool like `call_tool`, for code that does not await: waits until the result is there."""
        return tools("call_sync", names, arguments)

    def list_tools():
        """Returns the tools of the host: a list of dicts with `name`, `description` and `parameters`, a JSON schema."""
        return tools("listing")

    def display(*objects, **options):
        """Shows objects in their richest form."""
        return load("rich")["display"](driver, objects, **options)

    def update_display(obj, *, display_id, **options):
        """Shows an object in the place of an earlier one."""
        load("rich")["display"](driver, (obj,), display_id=display_id, update=True, **options)

    def clear_output(wait=False):
        """Clears what was shown so far."""
        load("rich")["clear"](driver, wait)

    functions = (display, update_display, clear_output, call_tool, call_tool_sync, list_tools, ToolError)
    for function in functions:
        function.__module__ = "builtins"
        function.__qualname__ = function.__name__
        setattr(builtins, function.__name__, function)
    builtins.__call_tool__ = call_tool
