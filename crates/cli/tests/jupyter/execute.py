"""Runs a notebook with a kernel of this interpreter, cell by cell, and writes it with its new outputs."""

import sys

import nbformat
from jupyter_client.manager import start_new_kernel

notebook = nbformat.read(sys.argv[1], as_version=4)
manager, client = start_new_kernel(kernel_name=notebook.metadata.kernelspec.name)
try:
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        outputs = []

        def take(message, outputs=outputs):
            if message["msg_type"] in ("stream", "display_data", "execute_result", "error"):
                outputs.append(nbformat.v4.output_from_msg(message))

        reply = client.execute_interactive(cell.source, output_hook=take, timeout=60)
        assert reply["content"]["status"] == "ok", reply
        cell.outputs = outputs
        cell.execution_count = reply["content"]["execution_count"]
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
nbformat.write(notebook, sys.argv[2])
