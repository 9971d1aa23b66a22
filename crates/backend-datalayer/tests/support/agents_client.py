"""The provider's client of the newer API, agent-runtimes 1.5.85, against the control plane for tests.

Its key and its addresses come from the environment, as its users have them.
"""

import os
import sys

from agent_runtimes.client import AgentClient
from expected import expect, expect_refusal, expect_soon


def account(client):
    """`POST login`, `GET whoami`"""
    expect("authenticate", True, client.authenticate())
    profile = client.get_profile()
    expect("whoami", ("01U", "me", "me@example.com"), (profile.uid, profile.handle, profile.email))
    expect_refusal("a wrong key", "status=401", AgentClient(api_key="wrong").list_runtimes)


def create(client):
    """`GET environments`, `POST runtimes`, `GET runtimes`, `GET runtimes/{name}`"""
    listed = client.list_environments()
    told = [(one.name, one.burning_rate) for one in listed]
    expect("environments", [
        ("python-cpu-env", 0.00025), ("python-gpu-env", 0.01), ("python-small-gpu-env", 0.02)
    ], told)
    made = client.create_runtime(name="mine", environment="python-cpu-env", time_reservation=10)
    expect("the runtime", ("mine", "python-cpu-env", 0.00025), (made.name, made.environment, made.burning_rate))
    expect("its reservation", 600, round(float(made.expired_at) - float(made.started_at)))
    fields = ("uid", "name", "runtime_name", "ingress", "jupyter_token", "reservation_id", "started_at", "expired_at")
    all_told = (made, *client.list_runtimes(), client.get_runtime(made.runtime_name))
    told = [[getattr(one, field) for field in fields] for one in all_told]
    expect("all tell the same of it", [told[0]] * 2, told[1:])
    expect_refusal("a runtime that is not there", "Failed to get runtime 'nope'", lambda: client.get_runtime("nope"))
    return made


def run(runtime):
    """Code and values, in a kernel behind the ingress."""
    expect("output", "hello", runtime.execute("print('hello')").stdout.strip())
    expect("an error", True, "ZeroDivisionError" in runtime.execute("1 / 0").stderr)
    runtime.set_variable("x", {"a": [1, 2.5, "b"]})
    expect("a variable", {"a": [1, 2.5, "b"]}, runtime.get_variable("x"))


def snapshots(client, runtime):
    """`POST sandbox-snapshots`, `GET sandbox-snapshots`, `DELETE sandbox-snapshots/{uid}`"""
    made = client.create_snapshot(runtime, name="kept", description="a word", stop=False)
    listed = client.list_snapshots()
    told = [(one.uid, one.name, one.description, one.environment) for one in listed]
    expect("snapshots", [(made.uid, "kept", "a word", "python-cpu-env")], told)
    with client.create_runtime(name="restored", environment="python-cpu-env", snapshot_name="kept") as restored:
        expect("a runtime of the snapshot", {"a": [1, 2.5, "b"]}, restored.get_variable("x"))
    expect("delete", True, client.delete_snapshot(made)["success"])
    expect_soon("no snapshots", [], client.list_snapshots)


def hold(client, runtime):
    """`POST runtimes/{name}/pause`, `POST runtimes/{name}/resume`"""
    expect("pause", True, client.pause_runtime(runtime))
    expect_soon("resume", True, lambda: client.resume_runtime(runtime))
    # It does not make a WebSocket again that broke: a run is a success without output. Who connects anew has all of it.
    expect("a run on the connection of before", "", runtime.execute("print('hello')").stdout)
    again = client.get_runtime(runtime.runtime_name)
    again.start()
    expect("what was held", {"a": [1, 2.5, "b"]}, again.get_variable("x"))


def main():
    client = AgentClient()
    expect("the addresses are those of the environment", os.environ["DATALAYER_RUNTIMES_URL"], client.urls.runtimes_url)
    account(client)
    made = create(client)
    with made as runtime:
        run(runtime)
        snapshots(client, runtime)
        hold(client, runtime)
    expect("the end of the block is the end of the runtime", [], client.list_runtimes())
    other = client.create_runtime(environment="python-gpu-env")
    expect("stop", True, client.stop_runtime(other))
    expect("stop again", False, client.stop_runtime(other))
    expect("no runtimes", [], client.list_runtimes())


if __name__ == "__main__":
    sys.exit(main())
