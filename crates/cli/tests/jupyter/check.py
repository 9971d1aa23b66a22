"""Validates each notebook with nbformat, and fails when one is invalid."""

import sys
import warnings

import nbformat

# A warning about a defect that nbformat mends is an error too.
warnings.simplefilter("error")
for path in sys.argv[1:]:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5), path
    ids = [cell["id"] for cell in notebook.cells]
    assert len(ids) == len(set(ids)), ids
    print("valid", path)
