"""Whom a kernel asks on the stdin channel."""


def stdin_peer(kernel):
    """Whom to ask, and about which request: those of the request that is worked on now."""
    variable = getattr(kernel, "_shell_parent_ident", None)
    if variable is not None and hasattr(kernel, "_get_shell_context_var"):
        ident = kernel._get_shell_context_var(variable)
    else:
        ident = kernel._parent_ident["shell"]
    return ident, kernel.get_parent("shell")
