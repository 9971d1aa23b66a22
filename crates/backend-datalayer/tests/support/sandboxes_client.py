"""The Python library before this one, code-sandboxes 0.0.11, against the control plane for tests.

Its key and its addresses come from the environment: `run_url` asks for a function that no datalayer-core has.
"""

import sys

from code_sandboxes import Sandbox, SandboxConfig
from expected import expect, expect_refusal


def environments():
    """What can be asked for."""
    listed = Sandbox.list_environments()
    told = [(one.name, one.title, one.burning_rate) for one in listed]
    expect("environments", [
        ("python-cpu-env", "Python CPU", 0.00025),
        ("python-gpu-env", "Python GPU", 0.01),
        ("python-small-gpu-env", "Python GPU, small", 0.02),
    ], told)


def run(sandbox):
    """Code and values."""
    result = sandbox.run_code("print('hello')")
    expect("output", (True, "hello", ""), (result.success, result.stdout, result.stderr))
    # It has no value of a run, and an error is a success with two lines of standard error.
    result = sandbox.run_code("40 + 2")
    expect("a value", (True, None), (result.success, result.text))
    result = sandbox.run_code("1 / 0")
    told = (result.success, result.code_error, result.stderr)
    expect("an error", (True, None, "ZeroDivisionError\ndivision by zero"), told)
    result = sandbox.run_code("import os; print(os.environ['COLOUR'])", envs={"COLOUR": "green"})
    # It drops the end of a line that is a message of its own, and keeps the others.
    expect("variables of the environment", "green", result.stdout.rstrip())
    # A text that begins with a tilde is taken for a file of this computer.
    result = sandbox.run_code("~5")
    expect("a tilde", (False, True), (result.execution_ok, "home directory" in result.execution_error))
    sandbox.set_variable("x", [1, 2])
    expect("a variable", [1, 2], sandbox.get_variable("x"))


def listing(sandbox):
    """The sandboxes that run."""
    listed = list(Sandbox.list())
    expect("the listing", ["mine"], [one.info.name for one in listed])
    expect("its status", ["running"], [one.info.status.value for one in listed])
    # It knows its runtime by an id of its own, and lists it by that of the service.
    expect("its id", False, listed[0].sandbox_id == sandbox.sandbox_id)


def snapshots(sandbox):
    """A snapshot, and a sandbox of it."""
    made = sandbox.create_snapshot("kept", "a word")
    listed = sandbox.list_snapshots()
    expect("snapshots", [(made.id, "kept", "a word")], [(one.id, one.name, one.description) for one in listed])
    # A snapshot ends the runtime, which it does not say.
    expect("the runtime is gone", [], list(Sandbox.list()))
    result = sandbox.run_code("x")
    expect("code after that", (False, True), (result.execution_ok, "not started" in result.execution_error))
    with Sandbox.create(name="restored", snapshot_name="kept") as restored:
        expect("what was stored", [1, 2], restored.get_variable("x"))
        expect("delete", True, restored.client.delete_snapshot(made.id)["success"])


def main():
    environments()
    expect_refusal(
        "an environment that is not there", "Environment 'nope' not found",
        Sandbox.create(environment="nope").start,
    )
    with Sandbox.create(name="mine") as sandbox:
        run(sandbox)
        listing(sandbox)
        snapshots(sandbox)
    with Sandbox.create(config=SandboxConfig(name="long", gpu="T4", max_lifetime=3600)) as sandbox:
        expect("the environment of a GPU", "python-gpu-env", sandbox.runtime.environment)
        reserved = float(sandbox.runtime.expired_at) - float(sandbox.runtime.started_at)
        expect("a lifetime is a reservation", 3600, round(reserved))
        sandbox.terminate()
    expect("nothing is left", [], list(Sandbox.list()))


if __name__ == "__main__":
    sys.exit(main())
