"""The data of a figure of matplotlib: what kind of chart each of its axes is, and the numbers in it.

The result is plain data for JSON. Of what is not one of the known kinds only title and labels are described.
"""

import re
import sys
from math import isfinite

# The data of a larger chart would be of no use, and cost more than its image.
MAX_POINTS = 50000
UNIT = re.compile(r"\s\(([^()]*)\)\s*$|\[([^\[\]]*)\]\s*$")


def describe(figure):
    """Returns the data of a drawn figure, or None when there is nothing in it, or too much."""
    axes = [ax for ax in figure.get_axes() if ax.get_label() != "<colorbar>" and ax.has_data()]
    if not axes or sum(map(points_in, axes)) > MAX_POINTS:
        return None
    if len(axes) == 1:
        return chart_of(axes[0])
    title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""
    return {"type": "superchart", "title": title or None, "elements": [chart_of(ax) for ax in axes]}


def points_in(ax):
    """Returns about how many numbers the data of axes would have."""
    lines = sum(len(line.get_xdata()) for line in ax.lines)
    return lines + sum(len(found.get_offsets()) for found in ax.collections) + len(ax.patches)


def chart_of(ax):
    """Returns the data of one axes."""
    patches, lines = sys.modules["matplotlib.patches"], own_lines(ax)
    collections = sys.modules["matplotlib.collections"]
    if boxes_of(ax):
        return box_chart(ax)
    if ax.containers and any(len(bars) for bars in bars_of(ax)):
        return bar_chart(ax)
    if ax.patches and all(isinstance(patch, patches.Wedge) for patch in ax.patches):
        return pie_chart(ax)
    scatters = [found for found in ax.collections if isinstance(found, collections.PathCollection)]
    if ax.patches or ax.images or len(scatters) < len(ax.collections):
        return dict(titled(ax, "unknown"), elements=[])
    if scatters and not lines:
        return point_chart(ax, "scatter", [scatter_data(n, found) for n, found in enumerate(scatters)])
    if lines and not scatters:
        return point_chart(ax, "line", [line_data(n, line) for n, line in enumerate(lines)])
    return dict(titled(ax, "unknown"), elements=[])


def titled(ax, kind):
    return {"type": kind, "title": ax.get_title() or None}


def labelled(ax, kind, swapped=False):
    """Returns the beginning of a chart with two directions, which are swapped for one that lies on its side."""
    labels = [ax.get_xlabel(), ax.get_ylabel()]
    if swapped:
        labels.reverse()
    chart = titled(ax, kind)
    for name, label in zip("xy", labels):
        unit = UNIT.search(label)
        chart[name + "_label"] = label or None
        chart[name + "_unit"] = (unit.group(1) or unit.group(2)) if unit else None
    return chart


def own_lines(ax):
    """Returns the lines with data. Those across all of the axes are marks, and no data."""
    return [line for line in ax.lines if line.get_transform() == ax.transData]


def named(label, what, number):
    """Returns the label of a series, which matplotlib names itself when code does not."""
    label = str(label)
    return "%s %d" % (what, number) if label.startswith("_") else label


def plain(value):
    """Returns a value as JSON has it: a number, text, or a date as text."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ == "datetime64":
        return str(value.astype("datetime64[s]"))
    if isinstance(value, (str, bool)):
        return value
    try:
        value = float(value)
    except (TypeError, ValueError):
        return str(value)
    return value if isfinite(value) else None


def rounded(value):
    """Returns a number without the noise of the last digits."""
    return float("%.9g" % float(value))


def line_data(number, line):
    points = zip(line.get_xdata(), line.get_ydata())
    return {"label": named(line.get_label(), "Line", number), "points": [[plain(x), plain(y)] for x, y in points]}


def scatter_data(number, found):
    points = [[plain(x), plain(y)] for x, y in found.get_offsets()]
    return {"label": named(found.get_label(), "Points", number), "points": points}


def point_chart(ax, kind, elements):
    chart = labelled(ax, kind)
    for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        chart[name + "_ticks"] = ticks(axis)
        chart[name + "_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
        chart[name + "_scale"] = scale(axis)
    return dict(chart, elements=elements)


def is_date(axis):
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    return "Date" in type(converter).__name__


def ticks(axis):
    values = axis.get_ticklocs()
    if is_date(axis):
        from matplotlib.dates import num2date

        return [num2date(value).isoformat() for value in values]
    return [plain(value) for value in values]


def scale(axis):
    if is_date(axis):
        return "datetime"
    if hasattr(axis.units, "_mapping"):
        return "categorical"
    return axis.get_scale()


def label_at(axis, place):
    """Returns the label of the tick at a place; where there is none, the place."""
    labels = [label.get_text() for label in axis.get_ticklabels()]
    for tick, label in zip(axis.get_ticklocs(), labels):
        if label and abs(tick - place) < 1e-6:
            return label
    return "%g" % place


def bars_of(ax):
    return [found for found in ax.containers if type(found).__name__ == "BarContainer"]


def bar_chart(ax):
    groups = bars_of(ax)
    lies = all(getattr(bars, "orientation", "vertical") == "horizontal" for bars in groups)
    elements = []
    for number, bars in enumerate(groups):
        for bar in bars:
            if lies:
                place, value, axis = bar.get_y() + bar.get_height() / 2, bar.get_width(), ax.yaxis
            else:
                place, value, axis = bar.get_x() + bar.get_width() / 2, bar.get_height(), ax.xaxis
            group = named(bars.get_label(), "Group", number)
            elements.append({"label": label_at(axis, place), "group": group, "value": rounded(value)})
    return dict(labelled(ax, "bar", lies), elements=elements)


def pie_chart(ax):
    elements = [
        {"label": wedge.get_label(), "angle": rounded(abs(wedge.theta2 - wedge.theta1)), "radius": rounded(wedge.r)}
        for wedge in ax.patches
    ]
    return dict(titled(ax, "pie"), elements=elements)


def boxes_of(ax):
    """Returns the outlines of boxes: left, bottom, right and top."""
    path = sys.modules["matplotlib.patches"].PathPatch
    outlines = [patch.get_path().vertices for patch in ax.patches if isinstance(patch, path)]
    if not ax.patches:
        outlines = [line.get_xydata() for line in ax.lines if is_rectangle(line.get_xydata())]
    elif len(outlines) < len(ax.patches):
        return []
    return [(min(x), min(y), max(x), max(y)) for x, y in (zip(*outline) for outline in outlines)]


def is_rectangle(points):
    """Returns true for a closed line with four corners, two on each side."""
    closed = len(points) == 5 and tuple(points[0]) == tuple(points[4])
    return closed and len({x for x, _ in points}) == 2 and len({y for _, y in points}) == 2


def box_chart(ax):
    boxes = boxes_of(ax)
    lines = [line.get_xydata() for line in ax.lines]
    turned = [(bottom, left, top, right) for left, bottom, right, top in boxes]
    sideways = any(is_whisker([(y, x) for x, y in points], turned) for points in lines)
    lies = sideways and not any(is_whisker(points, boxes) for points in lines)
    axis = ax.yaxis if lies else ax.xaxis
    elements = [box_data(ax, axis, box, lies) for box in boxes]
    return dict(labelled(ax, "box_and_whisker", lies), elements=elements)


def is_whisker(points, boxes):
    """Returns true for a line that leads from the middle of a box upward or downward."""
    if len(points) != 2 or points[0][0] != points[1][0]:
        return False
    place, ends = rounded(points[0][0]), (points[0][1], points[1][1])
    return any(
        place == rounded((left + right) / 2) and (min(ends) < bottom or max(ends) > top)
        for left, bottom, right, top in boxes
    )


def box_data(ax, axis, box, lies):
    left, low, right, high = (box[1], box[0], box[3], box[2]) if lies else box
    middle = (left + right) / 2
    ends, medians, outliers = [low, high], [], []
    for line in ax.lines:
        points = [(y, x) if lies else (x, y) for x, y in line.get_xydata()]
        if not points or not all(left - 1e-9 <= x <= right + 1e-9 for x, _ in points):
            continue
        if line.get_linestyle() == "None":
            outliers.extend(rounded(y) for _, y in points)
        elif len(points) == 2 and points[0][0] == points[1][0]:
            ends.extend(y for _, y in points)
        elif len(points) == 2 and points[0][1] == points[1][1] and low <= points[0][1] <= high:
            medians.append((abs(points[0][0] - points[1][0]), points[0][1]))
    # Caps at the ends of whiskers are shorter than the median.
    median = max(medians)[1] if medians else (low + high) / 2
    return {
        "label": label_at(axis, middle),
        "min": rounded(min(ends)),
        "first_quartile": rounded(low),
        "median": rounded(median),
        "third_quartile": rounded(high),
        "max": rounded(max(ends)),
        "outliers": outliers,
    }
