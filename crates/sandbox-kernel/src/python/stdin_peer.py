"""Determines the peer of a kernel on the stdin channel."""


def stdin_peer(kernel):
    """Returns the identity of the client, and the parent, of the current request."""
    variable = getattr(kernel, "_shell_parent_ident", None)
    if variable is not None and hasattr(kernel, "_get_shell_context_var"):
        ident = kernel._get_shell_context_var(variable)
    else:
        ident = kernel._parent_ident["shell"]
    return ident, kernel.get_parent("shell")
