"""A matplotlib backend that shows figures as images in the results of a cell."""

from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class FigureManager(FigureManagerBase):
    """Nothing to manage: there is no window."""

    def show(self):
        """`Figure.show()` shows at the end of the cell like every open figure."""


class FigureCanvas(FigureCanvasAgg):
    """The canvas by which our figures are recognised."""

    manager_class = FigureManager
    sandbox_inline = True


def new_figure_manager(num, *arguments, FigureClass=Figure, **options):
    return new_figure_manager_given_figure(num, FigureClass(*arguments, **options))


def new_figure_manager_given_figure(num, figure):
    return FigureManager(FigureCanvas(figure), num)
