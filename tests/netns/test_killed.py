"""`up` and `down` are killed at steps of their work; the next `down` removes everything that is left.

The steps of `up` are the entries of its journal (heddle/base/process.py), each written just before it is done, and the
beginnings that an observer reports. The steps of `down` are the calls that remove something.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.fabric.shapes import build
from heddle.lab import lifecycle as life
from heddle.runtimes.netns_cleanup import end_processes, remove_directories
from heddle.runtimes.netns_space import RUN_DIR
from heddle.spec.shapes.clos import ClosSpec
from tests.machine import patience, until

pytestmark = pytest.mark.deep  # tests/netns/test_runtime_contract.py kills `up` in its middle

ROOT = Path(__file__).parents[2]
Leftovers = Callable[[str], list[str]]
SMALL = {"racks": 1, "ctsw": 1, "hosts_per_rack": 1}

# In a process of its own: `up` of the small fabric, which kills itself at one of its steps. Prints the number of steps.
UP = f"""
import itertools, os, signal, sys
from heddle.base.events import Silent
from heddle.base.process import Journal
from heddle.lab import lifecycle
from heddle.spec.shapes.clos import ClosSpec

name, last = sys.argv[1], int(sys.argv[2])
numbers = itertools.count(1)
done = 0

def step():
    global done
    done = next(numbers)
    if done == last:
        os.kill(os.getpid(), signal.SIGKILL)

def before(function):
    return lambda journal, *more: (step(), function(journal, *more))

Journal.note, Journal.comment = before(Journal.note), before(Journal.comment)

class Steps(Silent):
    def begin(self, step_name, total=None):
        step()

lifecycle.up(ClosSpec(name=name, **{SMALL!r}), observer=Steps())
print(done)
"""

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


def test_up_killed_at_any_step_goes_down_clean(name: str, leftovers: Leftovers) -> None:
    whole = begun(UP, name, "0")
    assert whole.returncode == 0, whole.stderr
    assert life.down(name)
    steps = int(whole.stdout)
    assert steps > 3 * len(build(ClosSpec.model_validate({"name": name, **SMALL})).nodes)
    # Most steps are repeated for each node or port: every fourth one, and the last.
    for step in (*range(1, steps, 4), steps):
        killed = begun(UP, name, str(step))
        assert killed.returncode == -signal.SIGKILL, f"step {step} of {steps}: {killed.stderr}"
        life.down(name)
        assert leftovers(name) == [], f"step {step} of {steps}"


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
