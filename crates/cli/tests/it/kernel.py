"""Flows of E2B's SDK for Python over a Jupyter kernel. Exits with 1 and the first failure."""

import threading
import time

from e2b_code_interpreter import Sandbox


def equal(found, expected):
    if found != expected:
        raise AssertionError(f"expected {expected!r}, found {found!r}")


s = Sandbox.create(timeout=120)
equal(s.get_info().template_id, "code-interpreter-v1")

# A real kernel: IPython, its magics, and state.
equal(s.run_code("x = 41; type(get_ipython()).__name__").text, "ZMQInteractiveShell")
equal(s.run_code("x + 1").text, "42")
equal(s.run_code("!echo shell").logs.stdout, ["shell\n"])
failed = s.run_code("1 / 0")
equal(failed.error.name, "ZeroDivisionError")
assert "1 / 0" in failed.error.traceback, failed.error.traceback

# Results by their types, and callbacks while code runs.
results = []
rich = s.run_code(
    "from IPython.display import HTML, JSON, Latex, Markdown, display\n"
    "display(HTML('<b>x</b>')); display(Markdown('# m')); display(JSON({'a': 1})); display(Latex('$x$'))\n5",
    on_result=results.append,
)
equal([r.is_main_result for r in rich.results], [False] * 4 + [True])
equal([rich.results[0].html, rich.results[1].markdown, rich.results[2].json], ["<b>x</b>", "# m", {"a": 1}])
equal((rich.results[3].latex, rich.text, len(results)), ("$x$", "5", 5))
times = []
s.run_code("import time\nprint(1)\ntime.sleep(0.4)\nprint(2)", on_stdout=lambda _: times.append(time.monotonic()))
assert times[-1] - times[0] > 0.3, times

# Data of charts, as the SDK has them.
figure = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n{}\nax.set_title('T')\nplt.show()"
for kind, draw in [
    ("line", "ax.plot([1, 2, 3], [2, 4, 8])"),
    ("bar", "ax.bar(['a', 'b'], [1, 2])"),
    ("pie", "ax.pie([1, 2], labels=['a', 'b'])"),
]:
    shown = s.run_code(figure.format(draw))
    assert shown.error is None, shown.error
    equal((shown.results[0].chart.type.value, shown.results[0].chart.title), (kind, "T"))
    assert shown.results[0].png, kind

# Contexts are kernels of their own, and run beside each other.
context = s.create_code_context(cwd="/tmp")
equal(s.run_code("import os; os.getcwd()", context=context).text, "/tmp")
equal(s.run_code("'x' in globals()", context=context).text, "False")
begin = time.monotonic()
slow = threading.Thread(target=s.run_code, args=("import time; time.sleep(2)",), kwargs={"context": context})
slow.start()
equal(s.run_code("x").text, "41")
assert time.monotonic() - begin < 1.9, "it has waited for another context"
slow.join()
s.restart_code_context(context)
equal(s.run_code("'os' in globals()", context=context).text, "False")
s.remove_code_context(context)
equal([c.id for c in s.list_code_contexts()], ["default"])

# A client that gives up interrupts the code, and the state stays.
try:
    s.run_code("import time; time.sleep(60)", timeout=1)
except Exception as error:
    equal(type(error).__name__, "TimeoutException")
else:
    raise AssertionError("no time limit")
begin = time.monotonic()
equal(s.run_code("x").text, "41")
assert time.monotonic() - begin < 10, "the code still ran"

# The same user, home and files as commands have; and a kernel that dies is replaced.
s.files.write("given.txt", "by the API")
equal(s.run_code("import os; (open('given.txt').read(), os.getcwd())").text, "('by the API', '/home/user')")
died = s.run_code("import os; os._exit(3)")
equal(died.error.name, "KernelDied")
equal(s.run_code("'x' in globals()").text, "False")
s.kill()
print("all flows")
