# Executes a notebook by a kernel over TCP and converts it, with nbconvert.
# pip: nbconvert ipykernel pandas
# hide: /PYDEVD|frozen modules|Debugger warning/d; s/Writing [0-9]+ bytes/Writing/

cat > nb.ipynb <<'END'
{"cells": [
 {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# Title"},
 {"cell_type": "code", "id": "b", "metadata": {}, "execution_count": null, "outputs": [], "source": "x = 6\n!echo from shell\n%timeit -n1 -r1 pass"},
 {"cell_type": "code", "id": "c", "metadata": {}, "execution_count": null, "outputs": [], "source": "import pandas as pd\nprint(x * 7)\npd.DataFrame({'a': [1]})"}],
 "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}}, "nbformat": 4, "nbformat_minor": 5}
END
jupyter nbconvert --to notebook --execute nb.ipynb --output out.ipynb; echo "status $?"
python -c 'import json; print([[o["output_type"] for o in c.get("outputs", [])] for c in json.load(open("out.ipynb"))["cells"]])'
jupyter nbconvert --to markdown out.ipynb --stdout 2> /dev/null | grep -v 'per loop'; rm out.ipynb
