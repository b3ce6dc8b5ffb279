"""Limits of the machine: raised for a lab, restored after the last one, and never a value that is not Heddle's."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle.base.events import Silent
from heddle.base.problems import MachineError
from heddle.base.process import Journal
from heddle.fabric.shapes import build
from heddle.host import doctor, limits
from heddle.host.limits import ARP, BACKLOG, HYSTERESIS, NDISC, MachineLimits, needs_of
from heddle.spec.shapes.clos import ClosSpec

DEFAULTS = {
    **{f"net.{family}.neigh.default.gc_thresh{i}": n for family in ("ipv4", "ipv6")
       for i, n in ((1, 128), (2, 512), (3, 1024))},
    BACKLOG: 1000,
}  # fmt: skip
BIG = {ARP.key: 512, NDISC.key: 2048, BACKLOG: 3840, HYSTERESIS: 1}  # 64 RTSW x 8 CTSW with 2 hosts a rack
ROOT = Path(__file__).parents[2]
DEAD = 2**22 + 1  # no process has this id (PID_MAX_LIMIT)


def gone(lab: str) -> bool:
    """No lab has anything on this machine."""
    return False


def there(lab: str) -> bool:
    """Every lab is on this machine."""
    return True


class Messages(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.warned: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.warned.append(text)


class Machine:
    """A /proc/sys, a /run, and labs that come and go on it."""

    def __init__(self, root: Path) -> None:
        self.limits = MachineLimits(root / "proc", root / "run", root / "sys")
        self.boot("first")
        self.messages = Messages()

    def boot(self, name: str) -> None:
        """As after a restart: every sysctl has its default."""
        self.limits.run.mkdir(exist_ok=True)
        for key, value in DEFAULTS.items():
            self.set(key, value)
        self.set("kernel.random.boot_id", name)

    def path(self, key: str) -> Path:
        return self.limits.proc.joinpath("sys", *key.split("."))

    def set(self, key: str, value: int | str) -> None:
        self.path(key).parent.mkdir(parents=True, exist_ok=True)
        self.path(key).write_text(f"{value}\n")

    def up(self, lab: str, needs: dict[str, int] | None = None, here: Callable[[str], bool] = there) -> str:
        journal = Journal()
        self.limits.raise_for(lab, BIG if needs is None else needs, here, journal, self.messages)
        return journal.script()

    def down(self, lab: str, here: Callable[[str], bool] = there) -> None:
        self.limits.release(lab, here, self.messages)

    def now(self) -> dict[str, int | None]:
        return {key: self.limits.value(key) for key in DEFAULTS}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return Machine(tmp_path)


def test_a_fabric_of_64_racks_needs_more_than_the_defaults(machine: Machine) -> None:
    fabric = build(ClosSpec(name="big", racks=64, ctsw=8, hosts_per_rack=2))
    assert needs_of(fabric) == BIG
    assert [each.limit for each in machine.limits.shortages("big", BIG)] == [NDISC, limits.PACKETS]
    single = build(ClosSpec.model_validate({"name": "q", "racks": 2, "ctsw": 2, "queues": {"burst": 1}}))
    assert needs_of(single)[HYSTERESIS] == 0, "ports that send single packets do not need the mode of htb"


def test_up_raises_low_limits_and_reports_it_and_down_restores_them(machine: Machine) -> None:
    script = machine.up("big")
    assert machine.now() == DEFAULTS | {
        "net.ipv6.neigh.default.gc_thresh1": 512,
        "net.ipv6.neigh.default.gc_thresh2": 2048,
        "net.ipv6.neigh.default.gc_thresh3": 4096,
        BACKLOG: 4096,
    }
    assert "sysctl -w net.ipv6.neigh.default.gc_thresh1=512 net.ipv6.neigh.default.gc_thresh2=2048" in script
    assert f"sysctl -w {BACKLOG}=4096" in script
    said = "\n".join(machine.messages.lines)
    assert "raised net.ipv6.neigh.default.gc_thresh1/2/3 from 128/512/1024 to 512/2048/4096: 2048 neighbours" in said
    assert "down of the last lab restores them" in said
    machine.down("big")
    assert machine.now() == DEFAULTS
    assert f"restored {BACKLOG} from 4096 to 1000" in machine.messages.lines
    assert list(machine.limits.run.iterdir()) == []


def test_the_script_has_the_same_commands_and_changes_nothing(machine: Machine) -> None:
    journal = Journal()
    machine.limits.write_script("big", BIG, journal)
    assert machine.now() == DEFAULTS
    assert [line for line in machine.up("big").splitlines() if line.startswith("sysctl")] == [
        line for line in journal.script().splitlines() if line.startswith("sysctl")
    ]
    small = Journal()
    machine.limits.write_script("small", {ARP.key: 8}, small)
    assert small.lines == []


def test_needs_of_labs_are_added_and_only_the_last_down_restores(machine: Machine) -> None:
    machine.up("one", {NDISC.key: 600})
    assert (machine.now(), machine.messages.lines) == (DEFAULTS, [])
    machine.up("two", {NDISC.key: 600})
    assert machine.limits.value(NDISC.key) == 4096
    machine.up("three", {NDISC.key: 3000})
    assert machine.limits.value(NDISC.key) == 16384
    machine.down("three")
    machine.down("two")
    assert machine.limits.value(NDISC.key) == 16384
    machine.down("one")
    assert machine.now() == DEFAULTS
    assert list(machine.limits.run.iterdir()) == []
    # Neighbours that belong to no lab count too.
    table = machine.limits.proc / "net/stat/ndisc_cache"
    table.parent.mkdir(parents=True)
    table.write_text(f"entries  allocs\n{1000:08x} 00000000\n{1000:08x} 00000000\n")
    machine.up("one", {NDISC.key: 25})
    assert machine.limits.value(NDISC.key) == 4096


def test_a_value_of_the_user_stays_and_is_the_one_to_restore(machine: Machine) -> None:
    second = "net.ipv6.neigh.default.gc_thresh2"
    machine.up("big")
    machine.set(NDISC.key, 9000)
    machine.down("big")
    assert (machine.limits.value(NDISC.key), machine.limits.value(second)) == (9000, 512)
    assert machine.limits.value(BACKLOG) == 1000
    assert f"{NDISC.key} = 9000 was set by the user or another program, and stays" in machine.messages.lines
    # Set while labs run, and raised for another one.
    machine.set(NDISC.key, 1024)
    machine.up("one")
    machine.set(NDISC.key, 2000)
    machine.up("two", {NDISC.key: 5000})
    assert machine.limits.value(NDISC.key) == 16384
    machine.down("one")
    machine.down("two")
    assert machine.limits.value(NDISC.key) == 2000
    # Higher than any need: never lowered.
    machine.set(second, 60000)
    machine.up("big")
    assert machine.limits.value(second) == 60000
    machine.down("big")
    assert machine.limits.value(second) == 60000


def test_after_a_restart_an_old_record_does_not_count(machine: Machine) -> None:
    machine.up("big")
    machine.boot("second")
    machine.set(NDISC.key, 4096)  # by the user's own sysctl.conf: as high as Heddle's value was
    machine.up("small", {NDISC.key: 8})
    machine.down("small")
    assert machine.limits.value(NDISC.key) == 4096
    assert list(machine.limits.run.iterdir()) == []


def test_a_lab_with_nothing_left_on_the_machine_does_not_keep_the_limits_up(machine: Machine) -> None:
    machine.up("big")
    machine.up("small", {NDISC.key: 8})
    machine.down("small", here=gone)  # big has no namespace yet, but this process makes it
    assert machine.limits.value(NDISC.key) == 4096
    text = machine.limits.file.path.read_text()
    machine.limits.file.path.write_text(text.replace(f"{os.getpid()},", f"{DEAD},"))  # its `up` was killed
    machine.up("small", {NDISC.key: 8})
    machine.down("small", here=there)  # its namespaces are there: `down big` has not been called yet
    assert machine.limits.value(NDISC.key) == 4096
    machine.up("small", {NDISC.key: 8})
    machine.down("small", here=gone)
    assert machine.now() == DEFAULTS


def test_an_up_that_is_killed_between_two_sysctls_is_restored_by_down(machine: Machine) -> None:
    """The process is killed with the record written and only some sysctls set."""
    program = f"""
import os, signal
from pathlib import Path
from heddle.base.events import Silent
from heddle.base.process import Journal
from heddle.host import limits
write = Path.write_text
def killed(self, text, **keys):
    if self.name == "gc_thresh3":
        os.kill(os.getpid(), signal.SIGKILL)
    return write(self, text, **keys)
Path.write_text = killed
root = Path({str(machine.limits.proc.parent)!r})
here = limits.MachineLimits(root / "proc", root / "run", root / "sys")
here.raise_for("big", {BIG!r}, lambda lab: False, Journal(), Silent())
"""
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert machine.limits.value("net.ipv6.neigh.default.gc_thresh2") == 2048
    assert machine.limits.value(NDISC.key) == 1024
    assert machine.limits.file.path.with_suffix(".lock").exists()  # its holder is dead, so it blocks no other process
    machine.down("big", here=gone)
    assert machine.now() == DEFAULTS
    assert list(machine.limits.run.iterdir()) == []


def _come_and_go(proc: Path, run: Path, lab: str, rounds: int) -> None:
    here = MachineLimits(proc, run, proc.parent / "sys")
    for _ in range(rounds):
        here.raise_for(lab, {NDISC.key: 2000}, there, Journal(), Silent())
        # Another lab may raise it now: then a plain file is empty for a moment, which a sysctl never is.
        now = here.value(NDISC.key)
        for _ in range(1000):
            now = here.value(NDISC.key) if now is None else now
        assert now is not None and now >= 2000
        here.release(lab, there, Silent())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what an ordinary user releases is nothing")
def test_labs_that_come_and_go_at_once_end_with_the_values_of_the_machine(machine: Machine) -> None:
    context = multiprocessing.get_context("spawn")
    args = (machine.limits.proc, machine.limits.run)
    workers = [context.Process(target=_come_and_go, args=(*args, f"lab{i}", 15)) for i in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(60)
    assert [each.exitcode for each in workers] == [0, 0, 0, 0]
    assert machine.now() == DEFAULTS
    assert list(machine.limits.run.iterdir()) == []


def test_a_required_sysctl_that_cannot_be_set_is_an_error_with_the_command(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only(NDISC.key, monkeypatch)
    with pytest.raises(MachineError) as caught:
        machine.up("big")
    said = str(caught.value)
    assert f"{NDISC.key} = 1024 is too low: 2048 neighbours are needed, and Heddle cannot raise it: " in said
    assert "sysctl -w net.ipv6.neigh.default.gc_thresh1=512" in said
    machine.down("big")
    assert machine.limits.value("net.ipv6.neigh.default.gc_thresh1") == 128


def test_a_backlog_that_cannot_be_raised_is_a_warning(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    read_only(BACKLOG, monkeypatch)
    machine.up("big")
    assert machine.limits.value(NDISC.key) == 4096
    (warned,) = machine.messages.warned
    assert "3840 packets in flight between ports are needed" in warned
    assert warned.endswith(f"sysctl -w {BACKLOG}=4096")
    machine.down("big")
    assert machine.now() == DEFAULTS
    machine.path(BACKLOG).unlink()  # as in a network namespace of a container: what is not visible is no limit
    machine.up("big")
    assert machine.limits.value(NDISC.key) == 4096
    assert len(machine.messages.warned) == 1


def read_only(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing this sysctl fails, as where /proc/sys is mounted read-only (tests/netns does that for real)."""
    write = Path.write_text

    def refuse(self: Path, data: str, *args: Any, **keys: Any) -> int:
        if self.parts[-len(key.split(".")) :] == tuple(key.split(".")):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        return write(self, data, *args, **keys)

    monkeypatch.setattr(Path, "write_text", refuse)


def test_only_limits_of_a_record_are_written_and_a_damaged_one_stops_up_but_not_down(machine: Machine) -> None:
    machine.set("kernel.panic", 1)
    machine.up("big")
    record = json.loads(machine.limits.file.path.read_text())
    record["raised"]["kernel.panic"] = {"before": 7, "ours": [1]}
    machine.limits.file.path.write_text(json.dumps(record))
    machine.down("big")
    assert machine.path("kernel.panic").read_text() == "1\n"
    assert machine.now() == DEFAULTS
    machine.up("big")
    machine.limits.file.path.write_text("{}")
    with pytest.raises(MachineError, match="cannot be read"):
        machine.up("more")
    machine.down("big")
    assert "were not restored" in machine.messages.warned[0]


def test_doctor_reports_the_limits_and_who_has_raised_them(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HERE", machine.limits)
    found = doctor.CHECKS["neighbours"]()
    assert found.ok
    assert found.detail.startswith("gc_thresh3 = 1024 (IPv4) and 1024 (IPv6): enough for 256 links; up raises it")
    assert doctor.CHECKS["backlog"]().detail.endswith("enough for 333 ports; up raises it for larger fabrics")
    machine.up("big")
    found = doctor.CHECKS["neighbours"]()
    assert "1024 (IPv4) and 4096 (IPv6)" in found.detail
    assert found.detail.endswith("raised from 1024, until the last lab is down (big)")
    machine.down("big")
    machine.set(NDISC.key, 500)
    monkeypatch.setattr(MachineLimits, "writable", lambda self, key: False)
    found = doctor.CHECKS["neighbours"]()
    assert not found.ok
    assert found.detail.endswith("enough for 125 links; it cannot be raised here: the sysctl is read-only")
    assert found.fix == f"sysctl -w {ARP.key}=1024 {NDISC.key}=1024"


@pytest.fixture
def htb(machine: Machine) -> Path:
    """The parameter of a module that has been loaded."""
    path = machine.limits.sys / "module/sch_htb/parameters/htb_hysteresis"
    path.parent.mkdir(parents=True)
    path.write_text("0\n")
    return path


def test_the_mode_of_htb_is_set_and_restored_without_a_word(machine: Machine, htb: Path) -> None:
    needs = {HYSTERESIS: 1}
    assert "echo 1 > /sys/module/sch_htb/parameters/htb_hysteresis" in machine.up("one", needs)
    assert "echo" not in machine.up("two", needs), "two labs need no more than one"
    machine.down("one")
    assert machine.limits.value(HYSTERESIS) == 1
    machine.down("two")
    assert machine.limits.value(HYSTERESIS) == 0
    assert list(machine.limits.run.iterdir()) == []
    htb.write_text("1\n")
    assert "echo" not in machine.up("one", needs)
    machine.down("one")
    assert machine.limits.value(HYSTERESIS) == 1, "where it is on already it stays on"
    assert machine.messages.lines + machine.messages.warned == []


def test_where_the_mode_of_htb_cannot_be_set_a_lab_comes_up_without_a_warning(
    machine: Machine, htb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only(htb.name, monkeypatch)
    machine.up("one", {HYSTERESIS: 1})
    assert machine.limits.value(HYSTERESIS) == 0
    machine.down("one")
    assert machine.messages.lines + machine.messages.warned == []


def test_doctor_tells_what_up_does_with_the_mode_of_htb(
    machine: Machine, htb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.limits.bursts() == "htb_hysteresis = 0; up sets it to 1: fewer timer interrupts"
    machine.up("one", {HYSTERESIS: 1})
    assert machine.limits.bursts() == "htb_hysteresis = 1, until the last lab is down: fewer timer interrupts"
    machine.down("one")
    monkeypatch.setattr(MachineLimits, "writable", lambda self, key: False)
    assert "read-only: every packet of a backlog has its own timer interrupt" in machine.limits.bursts()
    htb.unlink()
    assert machine.limits.bursts() == "htb_hysteresis is not visible here"
