"""Representations of values beyond plain text, `display()`, and figures."""

import sys
from binascii import b2a_base64

codec = load("codec")
text, number, frame, cut = codec["text"], codec["number"], codec["frame"], codec["cut"]

CLEAR_OUTPUT = 19
RESULT, DISPLAY, UPDATE = 0, 1, 2
TEXT, BASE64, JSON = 0, 1, 2
ITEM_LIMIT = 16 << 20
RUN_LIMIT = 64 << 20
# All of one bundle must fit one frame.
BUNDLE_LIMIT = 60 << 20
METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_json_", "application/json"),
    ("_repr_latex_", "text/latex"),
    ("_repr_javascript_", "application/javascript"),
    ("_repr_pdf_", "application/pdf"),
)
BINARY = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")


class Handle:
    """The result of `display(..., display_id=...)`."""

    def __init__(self, driver, display_id):
        self.display_id = display_id
        self._driver = driver

    def __repr__(self):
        return "<DisplayHandle display_id=%s>" % self.display_id

    def display(self, obj, **options):
        display(self._driver, (obj,), display_id=self.display_id, **options)

    def update(self, obj, **options):
        display(self._driver, (obj,), display_id=self.display_id, update=True, **options)


def result(driver, value):
    """Returns the frames for the value of a cell."""
    bundle, metadata = represent(driver, value)
    done_with_figure(value)
    if not bundle:
        return None
    return driver.display(RESULT, limited(driver, from_mimebundle(driver, bundle)), dump(metadata))


def display(
    driver,
    objects,
    include=None,
    exclude=None,
    metadata=None,
    transient=None,
    display_id=None,
    raw=False,
    clear=False,
    update=False,
    **options,
):
    """Implements `display()` of user code. Options of IPython without a meaning here are ignored."""
    if display_id is True:
        from os import urandom

        display_id = urandom(16).hex()
    known_as = display_id or (transient or {}).get("display_id")
    if update and not known_as:
        raise TypeError("display_id required for update_display")
    if clear:
        globals()["clear"](driver, True)
    if not objects and display_id:
        objects, raw = ({},), True  # a place for what comes later
    for value in objects:
        bundle, told = (value, {}) if raw else represent(driver, value, include, exclude)
        if raw or bundle:
            publish(driver, bundle, merged(told, metadata), known_as, update)
    return Handle(driver, display_id) if display_id else None


def merged(own, given):
    """Returns the metadata of a display, with those that the caller gave."""
    if not isinstance(given, dict):
        return own
    return {**own, **{key: merged(own[key], value) if isinstance(own.get(key), dict) else value
                      for key, value in given.items()}}


def publish(driver, data, metadata=None, display_id=None, update=False):
    """Shows representations by their MIME types."""
    if not isinstance(data, dict):
        raise TypeError("data must be a dict, got: %r" % (data,))
    bundle = from_mimebundle(driver, data)
    if driver.current is None:
        # A thread that outlived its run can show nothing.
        sys.stdout.write("%s\n" % str(bundle[0][2] if bundle else b"", "utf-8", "replace"))
        return
    kept = limited(driver, bundle)
    if kept or not bundle and display_id:
        kind = UPDATE if update else DISPLAY
        name = "" if display_id is None else str(display_id)
        driver.show(driver.display(kind, kept, dump(metadata or {}), name))


def clear(driver, wait):
    current = driver.current
    if current is not None:
        driver.show(frame(CLEAR_OUTPUT, number(current), number(int(bool(wait)))))


def represent(driver, value, include=None, exclude=None):
    """Returns the representations of a value by MIME type and their metadata. There are none when it shows itself."""
    if shows_itself(driver, value):
        return {}, {}
    bundle = {}
    metadata = {}
    ours = figure_bundle(driver, value)
    of_ipython = load("shell")["formatter"]()
    if ours is not None:
        bundle.update(ours)
    elif of_ipython is not None:
        return of_ipython.format(value, include, exclude)
    elif not isinstance(value, type):
        for mime, data, told in formatted(driver, value, include, exclude):
            if data is not None and mime not in bundle:
                bundle[mime] = data
                if told:
                    metadata[mime] = told
        bundle[TABLE] = table(value)
    if "text/plain" not in bundle and wanted("text/plain", include, exclude):
        bundle["text/plain"] = cut(plain(value))
    kept = {mime: data for mime, data in bundle.items() if data is not None and wanted(mime, include, exclude)}
    return kept, {mime: told for mime, told in metadata.items() if mime in kept}


def wanted(mime, include, exclude):
    return (not include or mime in include) and not (exclude and mime in exclude)


def shows_itself(driver, value):
    """Shows a value that shows itself. Returns true if it did."""
    method = method_of(value, "_ipython_display_")
    if method is None:
        return False
    return attempt(driver, lambda: [method()], "_ipython_display_") is not None


def plain(value):
    """Returns the text of a value, as IPython writes it where the value asks for that and IPython is there."""
    if method_of(value, "_repr_pretty_") is not None:
        try:
            from IPython.lib.pretty import pretty
        except Exception:
            pass  # not there, or not to be used
        else:
            return pretty(value)
    return repr(value)


def formatted(driver, value, include, exclude):
    """Returns what the `_repr_*_` methods of a value return: (mime, data, metadata)."""
    method = method_of(value, "_repr_mimebundle_")
    if method is not None:
        data, told = split_metadata(attempt(driver, method, include=include, exclude=exclude))
        if isinstance(data, dict):
            for mime, content in data.items():
                yield mime, content, told.get(mime) if isinstance(told, dict) else None
    for name, mime in METHODS:
        method = method_of(value, name) if wanted(mime, include, exclude) else None
        if method is not None:
            data, told = split_metadata(attempt(driver, method))
            yield mime, data, told


def method_of(value, name):
    """Returns a method of the class, as for special methods, or None. Proxies that answer to any name do not have one."""
    try:
        if getattr(type(value), name, None) is None and name not in getattr(value, "__dict__", ()):
            return None
        method = getattr(value, name, None)
    except Exception:
        return None
    return method if callable(method) else None


def attempt(driver, method, name=None, **options):
    """Calls a formatter; one that raises is left out with a note, unless it is only missing."""
    try:
        return method(**options)
    except NotImplementedError:
        return None
    except Exception as error:
        name = name or getattr(method, "__name__", "formatter")
        driver.streams.note("%s failed: %s: %s" % (name, type(error).__name__, safe_str(error)))
        return None


def split_metadata(value):
    if isinstance(value, tuple) and len(value) == 2:
        return value
    return value, None


def from_mimebundle(driver, bundle):
    """Returns a dictionary of MIME types as bundle items, plain text first."""
    items = []
    for mime in sorted(bundle, key=lambda mime: mime != "text/plain"):
        data = bundle[mime]
        if data is None:
            continue
        try:
            items.append((str(mime),) + encoded(str(mime), data))
        except Exception as error:
            driver.streams.note("%s dropped: %s" % (mime, safe_str(error)))
    return items


def encoded(mime, data):
    """Returns how the data of one MIME type is sent: (encoding, bytes)."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return BASE64, b2a_base64(data, newline=False)
    if mime == "application/json" or mime.endswith("+json") or not isinstance(data, str):
        return JSON, dump(data).encode("utf-8", "backslashreplace")
    if mime in BINARY:
        return BASE64, "".join(data.split()).encode("ascii")
    return TEXT, data.encode("utf-8", "backslashreplace")


def limited(driver, bundle):
    """Returns the bundle without what is over the limits; each drop is noted."""
    kept = []
    total = 0
    for mime, how, data in bundle:
        if len(data) > ITEM_LIMIT:
            limit = "%d MiB for one item" % (ITEM_LIMIT >> 20)
        elif total + len(data) > BUNDLE_LIMIT:
            limit = "%d MiB for one display" % (BUNDLE_LIMIT >> 20)
        elif driver.shown + len(data) > RUN_LIMIT:
            limit = "%d MiB for one run" % (RUN_LIMIT >> 20)
        else:
            total += len(data)
            driver.shown += len(data)
            kept.append((mime, how, data))
            continue
        driver.streams.note("%s of %d bytes dropped: over the limit of %s" % (mime, len(data), limit))
    return kept


# The data of a chart, and of a table.
CHART = "application/vnd.code-sandboxes.chart+json"
TABLE = "application/vnd.code-sandboxes.data+json"


def table(value):
    """Returns the data of a table of pandas. None: another value, or a table without data of use."""
    frame = getattr(sys.modules.get("pandas"), "DataFrame", None)
    if frame is None or not isinstance(value, frame):
        return None
    # A table that is not understood has its text.
    try:
        return load("tables")["describe"](value)
    except Exception:
        return None


def figure_bundle(driver, value):
    """Draws a matplotlib figure, which has no method for this."""
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    if figure is None or not isinstance(value, figure):
        return None
    image = attempt(driver, lambda: draw(value))
    # Labels of ticks are known when it has been drawn. A figure that is not understood has its image.
    try:
        chart = load("charts")["describe"](value)
    except Exception:
        chart = None
    return {"text/plain": repr(value), "image/png": image, CHART: chart}


def draw(figure):
    from io import BytesIO

    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if not hasattr(figure.canvas, "print_png"):
        FigureCanvasAgg(figure)
    file = BytesIO()
    figure.canvas.print_figure(file, format="png", dpi=figure.dpi, bbox_inches="tight")
    return file.getvalue()


def open_figures():
    """Returns the figures that our backend holds open, with their managers' numbers."""
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    managers = helpers.Gcf.get_all_fig_managers() if helpers else ()
    return [
        (manager.num, manager.canvas.figure)
        for manager in managers
        if getattr(manager.canvas, "sandbox_inline", False)
    ]


def show_figures(driver):
    """Shows and closes every open figure."""
    for num, figure in open_figures():
        sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(num)
        display(driver, (figure,))


def show_wanted_figures(driver):
    """Shows open figures at the end of a run, unless all of them were made after `ioff()`."""
    if any(figure.canvas.sandbox_wanted for _, figure in open_figures()):
        show_figures(driver)


def done_with_figure(value):
    """Closes a figure that was shown as the value of a cell, so that it is not shown once more."""
    for num, figure in open_figures():
        if figure is value:
            sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(num)


def dump(value):
    """Writes a value as JSON. What has no JSON is written as Jupyter does it: dates, numbers of numpy, arrays, sets, NaN."""
    if not value and isinstance(value, dict):
        return "{}"
    from json import JSONEncoder

    encoder = JSONEncoder(allow_nan=False, separators=(",", ":"), default=as_json)
    try:
        return encoder.encode(value)
    except (TypeError, ValueError):
        return encoder.encode(cleaned(value))


def as_json(value):
    """Converts a value that JSON does not know."""
    import datetime
    import numbers
    from collections.abc import Iterable, Mapping

    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=datetime.datetime.now().astimezone().tzinfo)
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return str(b2a_base64(value, newline=False), "ascii")
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if type(value).__module__ == "numpy" and callable(getattr(value, "tolist", None)):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Iterable):
        return list(value)
    raise TypeError("%s is not JSON" % type(value).__name__)


def cleaned(value):
    """Converts a whole document, whose keys may be anything, and whose numbers may be no JSON."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else repr(float(value))
    if isinstance(value, dict):
        plain_keys = (str, int, type(None))
        return {key if isinstance(key, plain_keys) else str(key): cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(item) for item in value]
    return cleaned(as_json(value))


def safe_str(error):
    try:
        return str(error)
    except Exception:
        return "?"
