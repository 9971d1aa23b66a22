"""Says of each notebook whether nbformat finds it valid, and fails when it does not."""

import sys
import warnings

import nbformat

# What nbformat would mend is wrong, too.
warnings.simplefilter("error")
for path in sys.argv[1:]:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5), path
    ids = [cell["id"] for cell in notebook.cells]
    assert len(ids) == len(set(ids)), ids
    print("valid", path)
