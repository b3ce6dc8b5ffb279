"""Kernel limits that `up` raises, and that the `down` of the last lab restores.

In:  what a fabric needs of each limit. Several labs share one machine, so their needs are added.
Out: sysctls in place, one parameter of a kernel module, and a record of them.
All network namespaces and all users of the machine share these sysctls. So the record is not in a state directory,
but in /run. It is removed with the last lab.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from heddle.base.events import Observer
from heddle.base.owners import held, late
from heddle.base.problems import HeddleError, MachineError, Problem, machine_errors
from heddle.base.process import Journal, start_of
from heddle.fabric.model import Fabric
from heddle.spec.queuepolicy import QueuePolicy

_LOCK_S: Final = 30.0  # a holder needs milliseconds


@dataclass(frozen=True, slots=True)
class Claim:
    """A lab's needs: sysctl -> number. process: the `up` that makes the lab, as (id, start time)."""

    process: tuple[int, int]
    needs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RaisedKey:
    """A sysctl that Heddle has raised. ours: the values that Heddle has set; the user has set any other value."""

    before: int
    ours: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """The contents of the record. boot: the boot ID. After another boot there is no lab and no raised sysctl."""

    boot: str
    labs: Mapping[str, Claim] = field(default_factory=dict)
    raised: Mapping[str, RaisedKey] = field(default_factory=dict)

    def claimed(self, key: str, but: str) -> int:
        """The need of all labs except one."""
        return sum(each.needs.get(key, 0) for name, each in self.labs.items() if name != but)

    def without(self, lab: str) -> LimitRecord:
        """The record after that lab is down."""
        return replace(self, labs={name: each for name, each in self.labs.items() if name != lab})

    def without_dead(self, here: Callable[[str], bool]) -> LimitRecord:
        """The record without labs whose `up` has ended or was killed and that have no part on this machine (`here`)."""
        alive = {
            name: each for name, each in self.labs.items() if start_of(each.process[0]) == each.process[1] or here(name)
        }
        return replace(self, labs=alive)


_RECORD: Final = TypeAdapter(LimitRecord)


@dataclass(frozen=True, slots=True)
class RecordFile:
    """Where the record is, and the boot of this machine."""

    run: Path
    boot: str

    @property
    def path(self) -> Path:
        """The record; it exists as long as a lab does."""
        return self.run / "heddle-limits.json"

    def load(self) -> LimitRecord:
        """The record; an empty one when there is no file. MachineError when it cannot be read."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            return _RECORD.validate_python(data) if data["boot"] == self.boot else LimitRecord(self.boot)
        except FileNotFoundError:
            return LimitRecord(self.boot)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            hint = f"remove it (rm {self.path}), then check the limits that ./inv doctor shows"
            why = f"cannot be read: {str(error).splitlines()[0]}"
            raise MachineError(Problem("", str(self.path), why, hint)) from None

    def save(self, record: LimitRecord) -> None:
        """Write the record, atomically; remove the file when no lab is left. Call it with the lock held."""
        with machine_errors(str(self.path)):
            if not record.labs and not record.raised:
                self.path.unlink(missing_ok=True)
                return
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")
            new.chmod(0o644)  # doctor reads it as any user
            new.replace(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the record. The lock file is removed while it is held: a waiting process notices, and tries again."""
        path = self.path.with_suffix(".lock")
        with ExitStack() as stack:
            with machine_errors(str(path)):
                stack.enter_context(held(path, late(path, _LOCK_S), seconds=_LOCK_S))
            yield


BACKLOG: Final = "net.core.netdev_max_backlog"
# HTB's mode in which a port with a backlog releases `queues.burst` packets from one timer interrupt, not one.
HYSTERESIS: Final = "sch_htb.htb_hysteresis"
_PARAMETERS: Final = {HYSTERESIS: "module/sch_htb/parameters/htb_hysteresis"}  # below /sys, not /proc/sys


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of the machine, and the sysctls to raise for it.

    factors: sysctl -> its value for a need of 1; the last one is the limit itself. table: /proc/net/stat/TABLE counts
    the use of all namespaces. required: a lab cannot come up without it. most: the highest value of `key`: 1 for a
    switch, which changes only what a lab costs, so nothing is printed about it.
    """

    factors: Mapping[str, float]
    what: str
    table: str = ""
    required: bool = True
    most: int | None = None

    @property
    def key(self) -> str:
        """The sysctl that is the limit."""
        return list(self.factors)[-1]

    def values(self, need: int) -> dict[str, int]:
        """The values for this need: sysctl -> value."""
        step = 1 << (need - 1).bit_length()
        return {key: int(step * factor) for key, factor in self.factors.items()}


def _neighbours(family: str, table: str) -> Limit:
    # Above gc_thresh2 the kernel looks for entries to remove every 5 s (neigh_alloc in net/core/neighbour.c), so
    # gc_thresh2 gets the need. The proportions are the kernel's: 128, 512, 1024.
    factors = {f"net.{family}.neigh.default.gc_thresh{i}": factor for i, factor in ((1, 0.25), (2, 1), (3, 2))}
    return Limit(factors, "neighbours", table)


ARP: Final = _neighbours("ipv4", "arp_cache")
NDISC: Final = _neighbours("ipv6", "ndisc_cache")
# If the backlog of a CPU is full, its packets are lost between two switches, and no queue counts them.
PACKETS: Final = Limit({BACKLOG: 1}, "packets in flight between ports", required=False)
BURSTS: Final = Limit({HYSTERESIS: 1}, "switch", required=False, most=1)
LIMITS: Final = (ARP, NDISC, PACKETS, BURSTS)
_KEYS: Final = frozenset(key for limit in LIMITS for key in limit.factors)


def needs_of(fabric: Fabric) -> dict[str, int]:
    """What a fabric needs of each limit: sysctl -> number."""
    hosts = len(fabric.host_ports)  # of every network
    between = len(fabric.links) - hosts
    # Hosts and their switches resolve each other, by the fabric's IP; switches one another by IPv6 always. For each
    # entry there is one of a multicast group.
    arp, nd = (4 * hosts, 4 * between) if fabric.policy.ip_version == 4 else (0, 4 * (hosts + between))
    burst = fabric.policy.queues.burst
    packets = at_once(burst) * sum(len(node.ports) for node in fabric.nodes)
    return {ARP.key: arp, NDISC.key: nd, PACKETS.key: packets, BURSTS.key: int(burst > 1)}


def at_once(burst: int = QueuePolicy().burst) -> int:
    """Full packets that a port which was idle sends at once: HTB's burst, the same again by hysteresis, and one."""
    return max(2, 2 * burst - 1)


@dataclass(frozen=True, slots=True)
class Shortage:
    """A limit that is too low: its value, the need, and its sysctls before and after."""

    limit: Limit
    have: int
    need: int
    before: Mapping[str, int]
    after: Mapping[str, int]

    def __str__(self) -> str:
        """`net.ipv4.neigh.default.gc_thresh1/2/3 from 128/512/1024 to 1024/4096/8192`."""
        first, *more = self.after
        values = ("/".join(str(each) for each in side.values()) for side in (self.before, self.after))
        return f"{'/'.join([first, *(key[-1] for key in more)])} from {' to '.join(values)}"

    @property
    def argv(self) -> list[str]:
        """The command that raises it."""
        return _setting(self.after)

    def problem(self, reason: str) -> Problem:
        """The shortage as an error. reason: why Heddle cannot raise it."""
        why = f"is too low: {self.need} {self.limit.what} are needed, and Heddle cannot raise it: {reason}"
        hint = "run on the machine itself, not in a container: " + " ".join(self.argv)
        return Problem("kernel", f"{self.limit.key} = {self.have}", why, hint)


def _setting(values: Mapping[str, int]) -> list[str]:
    """The command that sets these: all sysctls, or one parameter."""
    for key, value in values.items():
        if key in _PARAMETERS:
            return ["sh", "-c", f"echo {value} > /sys/{_PARAMETERS[key]}"]
    return ["sysctl", "-w", *(f"{key}={value}" for key, value in values.items())]


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The limits of one machine."""

    proc: Path = Path("/proc")
    run: Path = Path("/run")
    sys: Path = Path("/sys")

    @property
    def file(self) -> RecordFile:
        """The record."""
        try:
            boot = self._sysctl("kernel.random.boot_id").read_text(encoding="ascii").strip()
        except OSError:
            boot = ""
        return RecordFile(self.run, boot)

    def value(self, key: str) -> int | None:
        """A sysctl; None where this kernel or this network namespace has no such sysctl."""
        try:
            return int(self._sysctl(key).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def writable(self, key: str) -> bool:
        """Whether root can set a sysctl; in a container /proc/sys is often read-only."""
        path = self._sysctl(key)
        try:
            if os.geteuid() == 0:
                return os.access(path, os.W_OK)
            return path.stat().st_uid == 0 and not os.statvfs(path).f_flag & os.ST_RDONLY
        except OSError:
            return False

    def state(self) -> tuple[list[str], Mapping[str, int]]:
        """The labs in the record, and the value before each sysctl that still has the value that Heddle has set."""
        try:
            record = self.file.load()
        except MachineError:
            return [], {}
        raised = {key: each.before for key, each in record.raised.items() if self.value(key) in each.ours}
        return sorted(record.labs), raised

    def bursts(self) -> str:
        """How ports release packets on this machine, for doctor."""
        now = self.value(HYSTERESIS)
        if now is None:
            return "htb_hysteresis is not visible here"
        if HYSTERESIS in self.state()[1]:
            return "htb_hysteresis = 1, until the last lab is down: fewer timer interrupts"
        if now == 0 and not self.writable(HYSTERESIS):
            return "htb_hysteresis = 0 and read-only: every packet of a backlog has its own timer interrupt"
        return f"htb_hysteresis = {now}" + ("; up sets it to 1: fewer timer interrupts" if now == 0 else "")

    def shortages(self, lab: str, needs: Mapping[str, int], record: LimitRecord | None = None) -> list[Shortage]:
        """The limits that are too low for a lab together with the other labs of the record."""
        record = record or self.file.load()
        found = []
        for limit in LIMITS:
            have, need = self.value(limit.key), needs.get(limit.key, 0)
            if have is None or need == 0:
                continue  # not in this kernel or namespace, so no limit here
            # A lab that is coming up does not use all that it needs yet, and not every entry belongs to a lab.
            need += max(record.claimed(limit.key, but=lab), self._in_use(limit))
            need = need if limit.most is None else min(need, limit.most)
            if have < need:
                before = {key: value for key in limit.factors if (value := self.value(key)) is not None}
                after = {key: max(before[key], value) for key, value in limit.values(need).items() if key in before}
                found.append(Shortage(limit, have, need, before, after))
        return found

    def unmet(self, lab: str, needs: Mapping[str, int]) -> Iterator[Problem]:
        """The required limits that are too low and that Heddle cannot raise."""
        for short in self.shortages(lab, needs):
            if short.limit.required and not all(map(self.writable, short.after)):
                yield short.problem("the sysctl is read-only here")

    def write_script(self, lab: str, needs: Mapping[str, int], journal: Journal) -> None:
        """Note the commands that `raise_for` would run."""
        short = self.shortages(lab, needs)
        if short:
            journal.comment("Limits of this machine that are too low; the down of the last lab restores them.")
        for each in short:
            journal.note(each.argv)

    def raise_for(
        self, lab: str, needs: Mapping[str, int], here: Callable[[str], bool], journal: Journal, observer: Observer
    ) -> None:
        """Record a lab's needs, and raise limits that are too low. MachineError when a required limit cannot be raised.

        here: whether any part of a lab is on this machine; otherwise the lab does not count.
        """
        file = self.file
        with file.locked():
            record = file.load().without_dead(here)
            record = replace(record, labs={**record.labs, lab: Claim((os.getpid(), start_of(os.getpid()) or 0), needs)})
            short = self.shortages(lab, needs, record)
            record = _with_raises(record, short)
            file.save(record)  # first: if this process is killed now, the record knows every sysctl that was raised
            done = [each for each in short if self._raise(each, observer)]
            file.save(self._settled(record))
        for each in done:
            journal.note(each.argv)
        told = [each for each in done if each.limit.most is None]
        for each in told:
            observer.say(f"raised {each}: {each.need} {each.limit.what} are possible")
        if told:
            observer.say("these are limits of the whole machine; the down of the last lab restores them")

    def release(self, lab: str, here: Callable[[str], bool], observer: Observer) -> None:
        """Remove a lab from the record; after the last lab, restore the limits. A failure is only a warning."""
        file = self.file
        if not file.path.exists() or os.geteuid() != 0:
            return
        try:
            with file.locked():
                record = file.load().without(lab).without_dead(here)
                if not record.labs:
                    for key, each in record.raised.items():
                        self._restore(key, each, observer)
                    record = replace(record, raised={})
                file.save(record)
        except HeddleError as error:
            observer.warn(f"the limits of this machine were not restored: {error}")

    def _sysctl(self, key: str) -> Path:
        if key in _PARAMETERS:
            return self.sys / _PARAMETERS[key]
        return self.proc.joinpath("sys", *key.split("."))

    def _in_use(self, limit: Limit) -> int:
        """The use of all namespaces: the first column of each line, in hex, is that of the whole table."""
        try:
            lines = (self.proc / "net/stat" / limit.table).read_text(encoding="ascii").splitlines()
            return int(lines[1].split()[0], 16)
        except (OSError, IndexError, ValueError):
            return 0

    def _raise(self, short: Shortage, observer: Observer) -> bool:
        try:
            for key, value in short.after.items():
                self._sysctl(key).write_text(f"{value}\n", encoding="ascii")
        except OSError as error:
            problem = short.problem(error.strerror or str(error))
            if short.limit.required:
                raise MachineError(problem) from None
            if short.limit.most is None:
                observer.warn(str(problem))
            return False
        return True

    def _settled(self, record: LimitRecord) -> LimitRecord:
        """The record after the sysctls were set, with only the current value of each."""
        raised = {
            key: replace(each, ours=(now,)) if (now := self.value(key)) in each.ours else each
            for key, each in record.raised.items()
        }
        return replace(record, raised=raised)

    def _restore(self, key: str, raised: RaisedKey, observer: Observer) -> None:
        now = self.value(key)
        if key not in _KEYS or now is None or now == raised.before:
            return
        if now not in raised.ours:
            observer.say(f"{key} = {now} was set by the user or another program, and stays")
            return
        try:
            self._sysctl(key).write_text(f"{raised.before}\n", encoding="ascii")
        except OSError as error:
            command = shlex.join(_setting({key: raised.before}))
            observer.warn(f"{key} = {now} cannot be restored: {error.strerror}; {command}")
        else:
            if key in _PARAMETERS:
                return
            observer.say(f"restored {key} from {now} to {raised.before}")


def _with_raises(record: LimitRecord, short: list[Shortage]) -> LimitRecord:
    """The record with the sysctls that will be raised. A value that Heddle has not set is the one to restore."""
    raised = dict(record.raised)
    for each in short:
        for key, want in each.after.items():
            have, known = each.before[key], raised.get(key)
            if want == have:
                continue
            if known is not None and have in known.ours:
                raised[key] = RaisedKey(known.before, (have, want))
            else:
                raised[key] = RaisedKey(have, (want,))
    return replace(record, raised=raised)


HERE: Final = MachineLimits()
