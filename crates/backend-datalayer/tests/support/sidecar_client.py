"""The provider's client of the older API, datalayer-core 1.1.12, beside the backend, on the same account.

The backend has made the runtime `mine` and the snapshot `kept`. The runtime `theirs` is left to it.
"""

import os
import sys

from datalayer_core import DatalayerClient
from expected import expect


def main():
    client = DatalayerClient()
    expect("the runtime of the backend", ["mine"], [one.name for one in client.list_runtimes()])
    expect("its snapshot", ["kept"], [one.name for one in client.list_snapshots()])
    with client.create_runtime(name="copy", environment="python-cpu-env", snapshot_name="kept") as copy:
        expect("what it stored", {"a": [1, 2]}, copy.get_variable("x"))
    theirs = client.create_runtime(name="theirs", environment="python-cpu-env")
    theirs._start()
    theirs.set_variable("y", {"b": 3})
    expect("what is left to it", {"b": 3}, theirs.get_variable("y"))
    # A kernel client ends its kernel when it is collected.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
