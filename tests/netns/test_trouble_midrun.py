"""A part of the lab or of the run disappears in mid-run: the run ends soon, and names the rank, the QP and the PSN.

Hashing that is switched meanwhile: data arrives all the same, and no path is called proven.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle.base import process, state
from heddle.base.events import Silent
from heddle.base.problems import CheckError, HeddleError, InputError, MachineError
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.rehash import set_hashing
from heddle.runs.lookup import paths_of
from heddle.runs.run import run
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan
from heddle.views.pathstext import paths_text
from tests.machine import patience
from tests.marks import deep
from tests.netns.collectives import proven
from tests.netns.during import run_and

pytestmark = pytest.mark.root

LIMIT_S = patience(4.0)  # of a run, from the start of its workers
SOON_S = patience(45.0)  # far less than the ten minutes after which a run counts as hung
QP = r"rank \d on host\d:eth1: QP 0x[0-9a-f]+ (to|from) rank \d on host\d:eth1: "
UNACKNOWLEDGED = QP + r"no acknowledgement after 2 retries of 0\.268 s \(last good PSN 0x[0-9a-f]+\)"
CTS = QP + r"(its clear-to-send \(CTS\) packets: )?no acknowledgement after 2 retries of 0\.268 s \(last good PSN 0x"
WAITS = r"waits for \d+ of 192 messages, .* from rank \d on host\d:eth1 \(QP 0x[0-9a-f]+: last good PSN 0x[0-9a-f]+\)"


@pytest.fixture
def broken(name: str) -> Lab:
    """A lab that a test may damage."""
    return life.up(load_fabric("tiny", name=name)).lab


def workers() -> list[int]:
    """The worker processes of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(each) for each in children if b"endpoints.worker" in Path(f"/proc/{each}/cmdline").read_bytes()]


def ended(lab: Lab, change: Callable[[], object], **more: Any) -> HeddleError:
    """The error of a run in which something changes; it ends soon, and leaves no worker."""
    options: dict[str, Any] = {"sizes": (16 << 20,), "iters": 1, "warmup": 0, "timeout": 16, "retries": 2}
    began = time.monotonic()
    with pytest.raises(HeddleError) as caught:
        run_and(lab, RunOptions(**{**options, **more}), change)
    assert time.monotonic() - began < SOON_S
    assert workers() == []
    return caught.value


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"fastpath": "on"}, UNACKNOWLEDGED),
        deep({"fastpath": "off"}, UNACKNOWLEDGED),
        deep({"transport": "srd", "entropy": 4}, UNACKNOWLEDGED),
        ({"admission": True}, CTS),
        ({"transport": "uc"}, rf"rank \d on host\d:eth1: {WAITS}, but no packet moves any more"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_link_of_a_host_that_goes_down_ends_the_run(
    tiny: Lab, options: dict[str, Any], why: str, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: tiny.output("rtsw2", ["ip", "link", "set", "eth3", "up"]))
    error = ended(tiny, lambda: tiny.output("rtsw2", ["ip", "link", "set", "eth3", "down"]), **options)
    assert isinstance(error, CheckError)
    error_has(error, why)
    hint = "use --transport rc, or ./inv queues" if "transport" in options and options["transport"] == "uc" else "run ."
    assert error.problems[0].hint.startswith(hint)


def test_a_link_that_is_down_before_a_run_is_named(tiny: Lab, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: tiny.output("rtsw2", ["ip", "link", "set", "eth3", "up"]))
    tiny.output("rtsw2", ["ip", "link", "set", "eth3", "down"])
    with pytest.raises(CheckError, match="rank 2 on host3:eth1: its link is down at host3:eth1 or at rtsw2:eth3\n"):
        run(tiny, RunOptions(sizes=(1 << 16,), iters=1, warmup=0), Silent())
    assert workers() == []


@pytest.mark.parametrize(("sent", "transport"), [(signal.SIGKILL, "rc"), deep(signal.SIGTERM, "uc")])
def test_a_worker_that_ends_by_a_signal_ends_the_run(tiny: Lab, sent: signal.Signals, transport: str) -> None:
    error = ended(tiny, lambda: os.kill(workers()[0], sent), transport=transport)
    assert isinstance(error, MachineError)
    assert str(error).startswith(f"the worker of rank 0 on host1:eth1, rank 2 on host3:eth1 was ended by {sent.name}\n")
    assert len(error.problems) == 2, "the other worker still knows what it waits for"
    error_has(error, rf"rank [13] on host\d:eth1: {WAITS}$")


@pytest.mark.deep
def test_a_worker_that_does_not_move_ends_the_run_at_its_limit(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "max_seconds", LIMIT_S)
    error = ended(tiny, lambda: os.kill(workers()[0], signal.SIGSTOP), transport="uc")
    assert isinstance(error, CheckError)
    first, silent, waits = error.problems
    assert str(first).startswith(f"the run did not end within {LIMIT_S:g} s\n")
    assert str(silent) == "the worker of rank 0 on host1:eth1, rank 2 on host3:eth1 did not answer within 2 s"
    error_has(CheckError(waits), rf"rank [13] on host\d:eth1: {WAITS}$")


def test_a_port_that_is_removed_ends_the_run(broken: Lab) -> None:
    error = ended(broken, lambda: broken.output("host3", ["ip", "link", "del", "eth1"]))
    assert isinstance(error, CheckError)
    error_has(error, rf"rank 2 on host3:eth1: its port is gone: .*; it {WAITS}|{UNACKNOWLEDGED}")


def test_a_run_outlives_the_name_of_a_host_namespace_and_the_next_one_names_the_host(broken: Lab) -> None:
    """The sockets of the NICs keep the namespace until the run ends. Then the kernel removes it."""
    name = broken.handle("host3").netns.name
    options = RunOptions(sizes=(16 << 20,), iters=1, warmup=0)
    assert run_and(broken, options, lambda: process.run(["ip", "netns", "del", name])).wrong == 0
    assert workers() == []
    with pytest.raises(HeddleError, match="host3"):
        run(broken, options, Silent())


def test_a_leaf_whose_bgpd_ends_ends_the_run(broken: Lab) -> None:
    """Its peers withdraw the routes to its hosts; the transport must not wait for them."""
    error = ended(broken, lambda: os.kill(int(broken.output("rtsw2", ["cat", "/run/frr/bgpd.pid"])), signal.SIGKILL))
    error_has(error, UNACKNOWLEDGED)


def error_has(error: HeddleError, pattern: str) -> None:
    assert re.search(pattern, str(error), re.MULTILINE), str(error)


LONG_RUN = RunOptions(qps=4, sizes=(1 << 21,), iters=4, warmup=0, placement="cyclic")  # two seconds at line rate


def test_a_mode_is_switched_in_the_middle_of_a_run_and_its_paths_are_not_called_proven(tiny: Lab) -> None:
    set_hashing(tiny, "flow")
    result = run_and(tiny, LONG_RUN, lambda: set_hashing(tiny, "e-ecmp"))
    assert result.wrong == 0
    proof = paths_of(tiny)
    assert not proof.agree
    assert proof.notes[0].startswith("hashing was changed during the run, so no path follows one rule: rtsw1, rtsw2")
    assert paths_text(proof).startswith("NOT PROVEN")


@pytest.mark.deep
def test_there_and_back_is_noticed_too(tiny: Lab) -> None:
    """Under spray all that e-ecmp does lies within the ways that there are."""
    set_hashing(tiny, "spray")

    def there_and_back() -> None:
        set_hashing(tiny, "e-ecmp", switches=["rtsw1"])
        set_hashing(tiny, "spray", switches=["rtsw1"])

    assert run_and(tiny, LONG_RUN, there_and_back).wrong == 0
    proof = paths_of(tiny)
    assert not any(row.why for row in proof.flows)
    assert not proof.agree
    assert proof.notes[0].endswith(": rtsw1")
    assert paths_text(proof).startswith("NOT PROVEN: the paths of 16 QPs")
    assert run(tiny, RunOptions(sizes=(4096,), iters=1), Silent()).wrong == 0
    proven(tiny)


def test_a_lab_whose_hashing_is_being_switched_is_not_taken_down_under_it(tiny: Lab) -> None:
    with state.lock(tiny.name, state.CHANGES), pytest.raises(InputError, match="is being worked on by another Heddle"):
        life.down(tiny.name)
    assert open_lab(tiny.name).fabric == tiny.fabric
