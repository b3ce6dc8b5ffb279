"""`down` is killed at each call that removes something; the next one removes the rest. For other kills: tests/soak."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.lab import lifecycle as life
from heddle.runtimes import netns_cleanup
from heddle.runtimes.netns_cleanup import end_processes, remove_directories
from heddle.runtimes.netns_space import RUN_DIR
from heddle.spec.shapes.clos import ClosSpec
from tests.machine import child, patience, until

pytestmark = pytest.mark.deep  # tests/netns/test_runtime_contract.py kills `up` in its middle

ROOT = Path(__file__).parents[2]
Leftovers = Callable[[str], list[str]]
SMALL = {"racks": 1, "ctsw": 1, "hosts_per_rack": 1}

# What `down` calls to remove something, in its order.
REMOVALS = [
    "heddle.switch.pfc.control.stop",
    "heddle.runtimes.netns_cleanup.end_processes",
    "heddle.runtimes.netns_cleanup.run",  # `ip netns del`
    "heddle.base.mounts.remove",
    "heddle.switch.install.remove",
    "heddle.host.limits.MachineLimits.release",
    "heddle.base.owners.disown_lab",
    "heddle.base.state.remove_record",
]
DOWN = """
import importlib, os, signal, sys
from heddle.lab import lifecycle

name, path = sys.argv[1:]
place, _, called = path.rpartition(".")
try:
    owner = importlib.import_module(place)
except ModuleNotFoundError:
    module, _, cls = place.rpartition(".")
    owner = getattr(importlib.import_module(module), cls)
assert callable(getattr(owner, called))
setattr(owner, called, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
lifecycle.down(name)
"""


def begun(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", program, *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=patience(60))


MOUNTED = "mount --bind {}/heddle/{}/n/etc /etc/frr && exec sleep 60"


def test_only_mounts_of_the_labs_own_directory_make_a_process_the_labs(name: str) -> None:
    """Another user's process has another user namespace, and can have mounts with any name in it."""
    own = RUN_DIR / name
    (own / "n/etc").mkdir(parents=True)
    of_others = f"mount -t tmpfs t /tmp && mkdir -p /tmp/heddle/{name}/n/etc && " + MOUNTED.format("/tmp", name)
    scripts = [("-rmnU", of_others), ("-rmnU", MOUNTED.format("/run", name)), ("-mn", MOUNTED.format("/run", name))]
    processes = [subprocess.Popen(["unshare", flags, "sh", "-c", script]) for flags, script in scripts]
    try:
        until(lambda: all(Path(f"/proc/{each.pid}/cmdline").read_bytes().startswith(b"sleep") for each in processes))
        assert end_processes(name, []) == 1
        assert [each.poll() for each in processes[:2]] == [None, None]
        assert processes[2].wait(5) == -signal.SIGTERM
    finally:
        for each in processes:
            each.kill()
            each.wait()
        remove_directories(own)


VISITOR = """
import sys, time
from pathlib import Path
from heddle.kernel.namespace import inside

with inside(Path(sys.argv[1])):
    print("there", flush=True)
    time.sleep(0.3)
time.sleep(60)
"""


@pytest.mark.parametrize(("patience_s", "ended"), [(2.0, 0), (0.0, 1)])
def test_a_verb_that_reads_in_a_namespace_of_the_lab_is_not_ended(
    name: str, patience_s: float, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netns_cleanup, "_VISIT_S", patience_s)
    space = f"heddle-{name}-n"
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        with child([sys.executable, "-c", VISITOR, f"/run/netns/{space}"], cwd=ROOT, stdout=subprocess.PIPE) as visitor:
            assert visitor.stdout is not None
            visitor.stdout.readline()
            assert end_processes(name, [Path("/run/netns", space)]) == ended
            assert (visitor.poll() is None) == (not ended)
            visitor.kill()
    finally:
        subprocess.run(["ip", "netns", "del", space], check=True)


@pytest.mark.long
def test_down_killed_at_one_removal_after_the_other_is_finished_by_the_last_down(
    name: str, leftovers: Leftovers
) -> None:
    life.up(ClosSpec.model_validate({"name": name, **SMALL}))
    for removal in REMOVALS:  # each `down` gets as far as the next of them
        killed = begun(DOWN, name, removal)
        assert killed.returncode == -signal.SIGKILL, f"{removal}: {killed.stderr}"
    assert life.down(name), "the record goes last, so there is something to remove until the end"
    assert leftovers(name) == []
    assert not life.down(name)
