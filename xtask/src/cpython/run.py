"""Runs modules of CPython's own regression tests, and says what became of each test: one JSON object per module."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as tree

SECONDS = 400


def ended(case):
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            text = child.text or "".join(child.attrib.values())
            return child.tag, " ".join(text.split())[-200:]
    return "passed", ""


def run(module, directory):
    report = os.path.join(directory, module + ".xml")
    command = [sys.executable, "-m", "test", "--timeout", str(SECONDS), "--junit-xml", report, module]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS, cwd=directory)
    except subprocess.TimeoutExpired:
        return {module: ["timeout", ""]}
    found = {}
    try:
        cases = tree.parse(report).iter("testcase")
        # A test of which a part failed has no name here. It is missing then, which is a difference too.
        found = {case.get("name"): ended(case) for case in cases if case.get("name")}
    except (OSError, tree.ParseError):
        pass
    # Without a single test the module itself was skipped, or could not be run at all.
    skipped = done.returncode == 0 or "skipped" in done.stdout
    return found or {module: ("skipped" if skipped else "error", " ".join(done.stdout.split())[-200:])}


if __name__ == "__main__":
    # The parent may ignore the signal, which programs inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as directory:
        for module in sys.argv[1:]:
            print(module, file=sys.stderr, flush=True)
            print(json.dumps(run(module, directory)), flush=True)
