"""Times another library from nothing to a first result, in milliseconds, one number per line on stdout."""

import sys
import time


def code_sandboxes():
    from code_sandboxes import Sandbox

    sandbox = Sandbox.create(variant="local-eval")
    try:
        sandbox.start()
        sandbox.run_code("1+1")
    finally:
        sandbox.stop()


def jupyter():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:
        client.execute_interactive("1+1", timeout=30, output_hook=lambda message: None)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def main():
    run = {"code-sandboxes": code_sandboxes, "jupyter": jupyter}[sys.argv[1]]
    run()
    for _ in range(int(sys.argv[2])):
        began = time.perf_counter()
        run()
        print((time.perf_counter() - began) * 1e3)


main()
