"""A matplotlib backend that shows figures as images in the results of a cell."""

from matplotlib import is_interactive
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class FigureManager(FigureManagerBase):
    """Manages nothing: there is no window."""

    def show(self):
        """Shows the figure at the end of the cell, as every figure that is not held back."""
        self.canvas.sandbox_wanted = True


class FigureCanvas(FigureCanvasAgg):
    """The canvas by which our figures are recognised."""

    manager_class = FigureManager
    sandbox_inline = True
    # True when it is shown without a call.
    sandbox_wanted = False


def new_figure_manager(num, *arguments, FigureClass=Figure, **options):
    return new_figure_manager_given_figure(num, FigureClass(*arguments, **options))


def new_figure_manager_given_figure(num, figure):
    canvas = FigureCanvas(figure)
    canvas.sandbox_wanted = is_interactive()
    return FigureManager(canvas, num)
