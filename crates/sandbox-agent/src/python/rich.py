"""Representations of values beyond plain text, `display()`, and figures."""

import sys
from binascii import b2a_base64

codec = load("codec")
text, number, frame = codec["text"], codec["number"], codec["frame"]

CLEAR_OUTPUT = 19
RESULT, DISPLAY, UPDATE = 0, 1, 2
TEXT, BASE64, JSON = 0, 1, 2
ITEM_LIMIT = 16 << 20
RUN_LIMIT = 64 << 20
# All of one bundle must fit one frame.
BUNDLE_LIMIT = 60 << 20
TEXT_LIMIT = 1 << 20
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
    """What `display(..., display_id=...)` returns."""

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
    """Frames for the value of a cell."""
    bundle, metadata = represent(driver, value)
    done_with_figure(value)
    return driver.display(RESULT, limited(driver, bundle), metadata)


def display(
    driver, objects, raw=False, display_id=None, metadata=None, update=False, clear=False, **options
):
    """`display()` of user code. Options of IPython that mean nothing here are let pass."""
    if display_id is True:
        from os import urandom

        display_id = urandom(16).hex()
    if clear:
        globals()["clear"](driver, True)
    for value in objects:
        if raw:
            bundle, told = from_mimebundle(driver, value), {}
        else:
            bundle, told = represent(driver, value, dumps=False)
        if metadata:
            told.update(metadata)
        if driver.current is None:
            # A thread that outlived its run has nowhere to show anything.
            sys.stdout.write("%s\n" % str(bundle[0][2] if bundle else b"", "utf-8", "replace"))
            continue
        bundle = limited(driver, bundle)
        if bundle:
            kind = UPDATE if update else DISPLAY
            driver.show(driver.display(kind, bundle, dump(told), display_id or ""))
    return Handle(driver, display_id) if display_id else None


def clear(driver, wait):
    current = driver.current
    if current is not None:
        driver.show(frame(CLEAR_OUTPUT, number(current), number(int(bool(wait)))))


def represent(driver, value, dumps=True):
    """The bundle of a value, as (mime, encoding, bytes), and its metadata."""
    bundle = {}
    metadata = {}
    ours = figure_bundle(driver, value)
    if ours is not None:
        bundle.update(ours)
    elif not isinstance(value, type):
        for mime, data, told in formatted(driver, value):
            if data is not None and mime not in bundle:
                bundle[mime] = data
                if told:
                    metadata[mime] = told
    if "text/plain" not in bundle:
        bundle["text/plain"] = cut(repr(value))
    items = from_mimebundle(driver, bundle)
    return items, dump(metadata) if dumps else metadata


def formatted(driver, value):
    """What the `_repr_*_` methods of a value give: (mime, data, metadata)."""
    method = method_of(value, "_repr_mimebundle_")
    if method is not None:
        data, told = split_metadata(attempt(driver, method, include=None, exclude=None))
        if isinstance(data, dict):
            for mime, content in data.items():
                yield mime, content, told.get(mime) if isinstance(told, dict) else None
    for name, mime in METHODS:
        method = method_of(value, name)
        if method is not None:
            data, told = split_metadata(attempt(driver, method))
            yield mime, data, told


def method_of(value, name):
    """A method of the class, as for special methods, or None. Proxies that answer to any name
    do not have one."""
    try:
        if getattr(type(value), name, None) is None and name not in getattr(value, "__dict__", ()):
            return None
        method = getattr(value, name, None)
    except Exception:
        return None
    return method if callable(method) else None


def attempt(driver, method, **options):
    """Calls a formatter; one that raises is left out, and says so."""
    try:
        return method(**options)
    except Exception as error:
        name = getattr(method, "__name__", "formatter")
        driver.streams.note("%s failed: %s: %s" % (name, type(error).__name__, safe_str(error)))
        return None


def split_metadata(value):
    if isinstance(value, tuple) and len(value) == 2:
        return value
    return value, None


def from_mimebundle(driver, bundle):
    """A dictionary of mime types as bundle items, plain text first."""
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
    """How the data of one mime type travels: (encoding, bytes)."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return BASE64, b2a_base64(data, newline=False)
    if mime == "application/json" or mime.endswith("+json") or not isinstance(data, str):
        return JSON, dump(data).encode("utf-8", "backslashreplace")
    if mime in BINARY:
        return BASE64, "".join(data.split()).encode("ascii")
    return TEXT, data.encode("utf-8", "backslashreplace")


def limited(driver, bundle):
    """The bundle without what is over the limits; each drop says so."""
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


def figure_bundle(driver, value):
    """A matplotlib figure has no method for this, so it is drawn here."""
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    if figure is None or not isinstance(value, figure):
        return None
    image = attempt(driver, lambda: draw(value))
    return {"text/plain": repr(value), "image/png": image}


def draw(figure):
    from io import BytesIO

    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if not hasattr(figure.canvas, "print_png"):
        FigureCanvasAgg(figure)
    file = BytesIO()
    figure.canvas.print_figure(file, format="png", dpi=figure.dpi, bbox_inches="tight")
    return file.getvalue()


def open_figures():
    """The figures that our backend holds open, with their managers' numbers."""
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    managers = helpers.Gcf.get_all_fig_managers() if helpers else ()
    return [
        (manager.num, manager.canvas.figure)
        for manager in managers
        if getattr(manager.canvas, "sandbox_inline", False)
    ]


def show_figures(driver):
    """Shows and closes every open figure."""
    figures = open_figures()
    for num, figure in figures:
        sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(num)
        display(driver, (figure,))


def done_with_figure(value):
    """A figure that was shown as the value of a cell is not shown once more."""
    for num, figure in open_figures():
        if figure is value:
            sys.modules["matplotlib._pylab_helpers"].Gcf.destroy(num)


def dump(value):
    if not value:
        return "{}" if isinstance(value, dict) else json_encoder().encode(value)
    return json_encoder().encode(value)


def json_encoder():
    from json import JSONEncoder

    return JSONEncoder(allow_nan=False, separators=(",", ":"))


def cut(value):
    if len(value) <= TEXT_LIMIT:
        return value
    return "%s\n... [cut: %d characters in all]" % (value[:TEXT_LIMIT], len(value))


def safe_str(error):
    try:
        return str(error)
    except Exception:
        return "?"
