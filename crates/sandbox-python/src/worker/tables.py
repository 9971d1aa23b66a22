"""The data of a table of pandas: its columns, and the values of each.

The result is plain data for JSON. A value that is missing is null; one that JSON does not know is text.
"""

# The data of a larger table would be of no use, and cost more than its text.
MAX_VALUES = 50000
PLAIN = (bool, int, float, str)


def describe(frame):
    """Returns the data of a table, or None when there is nothing in it, or too much."""
    if not 0 < frame.size <= MAX_VALUES:
        return None
    missing = frame.isna()
    columns = {}
    for at, name in enumerate(frame.columns):
        values = zip(frame.iloc[:, at].tolist(), missing.iloc[:, at].tolist())
        columns[str(name)] = [None if is_missing else plain(value) for value, is_missing in values]
    return columns


def plain(value):
    if isinstance(value, PLAIN):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
