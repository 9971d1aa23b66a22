"""The provider's client of the older API, datalayer-core 1.1.12, against the control plane for tests.

Its key and its addresses come from the environment, as its users have them. What it gets wrong itself is expected as it
is, with a word on why.
"""

import os
import sys

from datalayer_core import DatalayerClient
from expected import expect, expect_refusal


def account(client):
    """`POST login`, `GET whoami`"""
    expect("authenticate", True, client.authenticate())
    profile = client.get_profile()
    expect("whoami", ("01U", "me", "me@example.com"), (profile.uid, profile.handle, profile.email))
    stranger = DatalayerClient(token="wrong")
    expect("authenticate with a wrong key", False, stranger.authenticate())
    expect_refusal("whoami with a wrong key", "Failed to get profile", stranger.get_profile)


def environments(client):
    """`GET environments`"""
    listed = client.list_environments()
    told = [(one.name, one.title, one.language, one.owner, one.visibility, one.burning_rate) for one in listed]
    expect("environments", [
        ("python-cpu-env", "Python CPU", "python", "datalayer", "public", 0.00025),
        ("python-gpu-env", "Python GPU", "python", "datalayer", "public", 0.01),
        ("python-small-gpu-env", "Python GPU, small", "python", "datalayer", "public", 0.02),
    ], told)
    expect("the rest of an environment is its metadata", "1500m", listed[0].metadata["resources"]["cpu"])


def create(client):
    """`POST runtimes`, `GET runtimes`"""
    expect_refusal(
        "a runtime of no environment", "Environment 'nope' not found",
        lambda: client.create_runtime(name="mine", environment="nope"),
    )
    made = client.create_runtime(name="mine", environment="python-cpu-env", time_reservation=10)
    expect("the runtime", ("mine", "python-cpu-env", 0.00025), (made.name, made.environment, made.burning_rate))
    # 0.15 credits at 0.00025 a second.
    expect("its reservation", 600, round(float(made.expired_at) - float(made.started_at)))
    listed = client.list_runtimes()
    fields = ("uid", "name", "pod_name", "ingress", "jupyter_token", "reservation_id", "started_at", "expired_at")
    told = [[getattr(one, field) for field in fields] for one in (made, *listed)]
    expect("the listing has it as it was created", [told[0]], told[1:])
    return made


def run(runtime):
    """Code, in a kernel behind the ingress."""
    answer = runtime.execute("print('hello')")
    expect("output", (True, "hello\n", ""), (answer.success, answer.stdout, answer.stderr))
    expect("a value", "42", shown(runtime.execute("x = 40; x + 2")))
    # It tells of an error only here: it is a success all the same.
    answer = runtime.execute("1 / 0")
    expect("an error", (True, "ZeroDivisionError\ndivision by zero"), (answer.success, answer.stderr))
    # What goes to standard error is in its standard output as well.
    answer = runtime.execute("import sys; print('aside', file=sys.stderr)")
    expect("standard error", ("aside\n", ""), (answer.stdout, answer.stderr))


def variables(runtime):
    """Values, as bundles in code."""
    expect("a variable of the code", 40, runtime.get_variable("x"))
    runtime.set_variable("given", {"a": [1, 2.5, "b"]})
    expect("a variable of the client", "1", shown(runtime.execute("given['a'][0]")))
    expect("the same back", {"a": [1, 2.5, "b"]}, runtime.get_variable("given"))
    expect("a variable for one run", "43", shown(runtime.execute("x + y", variables={"y": 3})))
    expect("a variable after a run", 7, runtime.execute("z = 7", output="z"))
    # A variable that is not there is printed as a warning, and None.
    expect("no such variable", None, runtime.get_variable("nowhere"))


def shown(answer):
    """The text of the value of a run."""
    return answer.execute_response[0]["data"]["text/plain"]


def snapshots(client, runtime):
    """`POST runtime-snapshots`, `GET runtime-snapshots`, `DELETE runtime-snapshots/{uid}`"""
    expect("no snapshots", [], client.list_snapshots())
    made = client.create_snapshot(runtime, name="kept", description="a word", stop=False)
    listed = client.list_snapshots()
    told = [(one.uid, one.name, one.description, one.environment) for one in listed]
    expect("snapshots", [(made.uid, "kept", "a word", "python-cpu-env")], told)
    expect("the runtime goes on", "40", shown(runtime.execute("x")))
    restored = client.create_runtime(name="restored", environment="python-cpu-env", snapshot_name="kept")
    with restored:
        expect("a runtime of the snapshot", {"a": [1, 2.5, "b"]}, restored.get_variable("given"))
        expect("and its code", "40", shown(restored.execute("x")))
    expect_refusal(
        "a runtime of no snapshot", "Snapshot 'nope' not found. Available snapshots: ['kept']",
        lambda: client.create_runtime(environment="python-cpu-env", snapshot_name="nope"),
    )
    expect("delete", True, client.delete_snapshot(made)["success"])
    expect("no snapshots again", [], client.list_snapshots())
    # The key of the envelope is misspelled where a deletion is refused.
    expect("delete again", False, client.delete_snapshot(made).get("sucess"))


def stopping_snapshot(client):
    """Without a word, a snapshot ends its runtime."""
    runtime = client.create_runtime(name="short", environment="python-cpu-env")
    with runtime:
        runtime.execute("x = 1")
        made = runtime.create_snapshot(name="last")
        expect("the snapshot", ["last"], [one.name for one in client.list_snapshots()])
        expect("its runtime has ended", [], [one.name for one in client.list_runtimes() if one.name == "short"])
        expect_refusal("code after that", "Kernel client is not started", lambda: runtime.execute("x"))
    expect("delete", True, client.delete_snapshot(made.uid)["success"])


def main():
    client = DatalayerClient()
    expect("the addresses are those of the environment", os.environ["DATALAYER_RUN_URL"], client.urls.run_url)
    account(client)
    environments(client)
    made = create(client)
    with made as runtime:
        run(runtime)
        variables(runtime)
        snapshots(client, runtime)
        stopping_snapshot(client)
        expect("runtimes", ["mine"], [one.name for one in client.list_runtimes()])
    expect("the end of the block is the end of the runtime", [], client.list_runtimes())
    other = client.create_runtime(environment="python-gpu-env")
    expect("a name of its own", "runtime-python-gpu-env-", other.name[:23])
    expect("terminate", True, client.terminate_runtime(other))
    expect("terminate again", False, client.terminate_runtime(other.pod_name))
    expect("no runtimes", [], client.list_runtimes())


if __name__ == "__main__":
    sys.exit(main())
