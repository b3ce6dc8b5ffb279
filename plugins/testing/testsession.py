"""One session of pytest as the plugin sees it: its pool, its options, and the lab of each test.

In:  pytest's configuration and items. Out: running labs, skips with the reason, failures without a traceback, and the
lines of the summary at the end; with `--heddle-pcap` a capture of a failed test (pcapng, each frame's headers). Each
port has a tcpdump then, which takes processor time from the fabric.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

from heddle.base.problems import CheckError, HeddleError, InputError, MachineError, Problem, first_lines
from heddle.base.userfiles import output_directory
from heddle_plugins.testing.assertions import run_text
from heddle_plugins.testing.pool import EXAMPLE, FabricRequest, LeftoverWarning, Pool, ResetResult, request_of

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.host.doctor import Check
    from heddle.lab.capture import Captured, Tapped
    from heddle.lab.lab import Lab
    from heddle.runs.runrecord import RunRecord

FIXTURES: Final = ("heddle_lab", "heddle_run", "heddle_paths", "heddle_queues")
FAILED: Final = pytest.StashKey[bool]()


@dataclass(slots=True)
class LabOfTest:
    """Facts about the lab of one test for its report. runs: of this test, oldest first."""

    lab: Lab
    title: str
    runs: list[RunRecord] = field(default_factory=list)


LAB_OF_TEST: Final = pytest.StashKey[LabOfTest]()


_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """SIGTERM and SIGHUP end a pytest that has labs up as Ctrl-C does: its labs go down first.

    Handlers for the time in which labs are up; only the main thread can install them. A signal with another handler
    keeps it.
    """

    def __init__(self) -> None:
        self._installed: list[signal.Signals] = []

    def install(self) -> None:
        """Handle the signals that have their default action."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)
                self._installed.append(number)

    def restore(self) -> None:
        """Restore the default action."""
        if threading.current_thread() is threading.main_thread():
            while self._installed:
                signal.signal(self._installed.pop(), signal.SIG_DFL)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """pytest ends its session on KeyboardInterrupt, fixtures included.

    Often two signals come: `timeout` signals the process and then its group. The second must not break off what takes
    the labs down.
    """
    for each in _SIGNALS:
        if signal.getsignal(each) is _interrupt:
            signal.signal(each, _ends_already)
    where = os.environ.get("PYTEST_CURRENT_TEST", "")
    raise KeyboardInterrupt(f"signal {signal.Signals(number).name}" + (f" in {where}" if where else ""))


def _ends_already(number: int, frame: FrameType | None) -> None:
    """A handler, not SIG_IGN, which children would inherit."""


@dataclass(slots=True)
class HeddleSession:
    """runtime, keep, pcap, no_skip: the options. notes: lines for the summary."""

    rootdir: Path
    runtime: str
    keep: bool
    pcap: Path | None
    no_skip: bool
    pool: Pool
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    signals: StopSignals = field(default_factory=StopSignals)

    @classmethod
    def of(cls, config: pytest.Config) -> HeddleSession:
        """The options of a session. UsageError for values that cannot be."""
        pcap = config.getoption("--heddle-pcap")
        if pcap is not None and (pcap.endswith(".py") or "::" in pcap):
            raise pytest.UsageError(f"--heddle-pcap took {pcap} as its directory: write --heddle-pcap=DIR")
        most = config.getoption("--heddle-labs")
        if most < 1:
            raise pytest.UsageError(f"--heddle-labs {most}: at least 1 lab must be up at once")
        session = cls(
            rootdir=config.rootpath,
            runtime=config.getoption("--heddle-runtime"),
            keep=config.getoption("--heddle-keep"),
            pcap=Path(pcap).absolute() if pcap is not None else None,
            no_skip=config.getoption("--heddle-no-skip"),
            pool=Pool(most=most),
        )
        session.pool.note = session.notes.append
        session.pool.on_first = session.signals.install
        return session

    def close(self) -> None:
        """Take all labs down that were not kept."""
        self.pool.close()
        self.signals.restore()

    def request(self, item: pytest.Item) -> FabricRequest:
        """The fabric that a test asks for. InputError with every mistake of its marker, or when it has none."""
        mark = item.get_closest_marker("fabric")
        if mark is None:
            why, hint = "needs a fabric", f"put {EXAMPLE} above the test"
            raise InputError(Problem(self._where(item), item.name, why, hint))
        return request_of(mark.args, mark.kwargs, where=self._where(item), directory=item.path.parent)

    def _where(self, item: pytest.Item) -> str:
        """`tests/test_mine.py:7`, where the test begins."""
        _, line, _ = item.location
        path = item.path.relative_to(self.rootdir) if item.path.is_relative_to(self.rootdir) else item.path
        return f"{path}:{line + 1}" if line is not None else str(path)

    @contextmanager
    def lab_of(self, item: pytest.Item) -> Iterator[Lab]:
        """The lab of a test, for the length of its fixture; what the test left in it is a warning."""
        with _problems_fail():
            request = self.request(item)
            self._check_machine(request)
            lab = self.pool.take(request, self.runtime, user=item.nodeid)
        item.stash[LAB_OF_TEST] = LabOfTest(lab, request.title)
        capture = None
        try:
            if self.pcap is not None:
                with _problems_fail():
                    capture = PortsCapture(lab, file_of(self.pcap, item.nodeid)).__enter__()
            yield lab
        finally:
            failed = item.stash.get(FAILED, False)
            if capture is not None:
                self._end_capture(capture, item, failed=failed)
            with _problems_fail():
                self._take_back(lab, item, failed=failed)

    def _check_machine(self, request: FabricRequest) -> None:
        reason = cannot_run(request.load().fabric, self.runtime)
        if reason and self.no_skip:
            pytest.fail(f"this machine cannot run the test: {reason}", pytrace=False)
        if reason:
            raise pytest.skip.Exception(reason, _use_item_location=True)

    def _end_capture(self, capture: PortsCapture, item: pytest.Item, *, failed: bool) -> None:
        capture.failed = failed
        capture.__exit__()
        if capture.trouble:
            self.notes.append(f"the capture of {item.nodeid} is not complete: {capture.trouble}")
        elif failed:
            what = f"{capture.done.packets:,} packets at {len(capture.ports)} ports" if capture.done else "packets"
            self.notes.append(f"{item.nodeid}: {what} in {capture.path}")

    def _take_back(self, lab: Lab, item: pytest.Item, *, failed: bool) -> None:
        if self.interrupted:
            return  # the session ends now, and all labs go down with it
        if failed and self.keep:
            self.pool.keep(lab)
            self.notes.append(f"{item.nodeid}: lab {lab.name} is left up; {look_at(lab.name)}")
            return
        left = self.pool.release(lab)
        if text := leftover_text(left):
            item.warn(LeftoverWarning(f"{item.nodeid} {text}"))

    def about(self, item: pytest.Item) -> str:
        """The section of a failed test's report; empty when it had no lab."""
        known = item.stash.get(LAB_OF_TEST, None)
        if known is None:
            return ""
        lines = [f"lab {known.lab.name}: {known.title}, runtime {known.lab.runtime.name}"]
        lines += map(run_text, known.runs)
        lines.append(
            look_at(known.lab.name) if self.keep else "pytest --heddle-keep leaves the lab of a failed test up"
        )
        return "\n".join(lines)


def look_at(lab: str) -> str:
    """The commands that inspect and remove a lab that was left up."""
    place = os.environ.get("HEDDLE_STATE_DIR")
    before = f"HEDDLE_STATE_DIR={shlex.quote(place)} " if place else ""
    commands = (f"{before}./inv {words}" for words in (f"status {lab}", f"paths --lab {lab}", f"down {lab}"))
    return str(Problem("", "look at it: " + ", ".join(commands), ""))


def leftover_text(left: ResetResult) -> str:
    """Leftovers of a test in its lab, as the rest of a sentence; empty when there are none."""
    parts = []
    if left.ended:
        parts.append(f"left {', '.join(left.ended)}: ended")
    if left.damage:
        parts.append(f"left its lab damaged ({'; '.join(left.damage)}): the next test gets a new lab")
    return "; ".join(parts)


@contextmanager
def _problems_fail() -> Iterator[None]:
    """Fail the test with the text of a problem of the user or of the machine, without a traceback."""
    try:
        yield
    except HeddleError as error:
        fail(error)


def fail(error: HeddleError) -> NoReturn:
    """Fail the test with the text of its problems."""
    pytest.fail(str(error), pytrace=False)


# By its path: sudo has a PATH of its own, whose Python may have no Heddle.
_AS_ROOT: Final = f"sudo -E {shlex.quote(sys.executable)} -m pytest"
_ROOT: Final = f"root: network namespaces need root (run pytest as root, for example: {_AS_ROOT})"
_CONTAINERS: Final = ("docker", "engine", "containerlab", "images")  # optional checks that runtime containerlab needs
_ON_HOST: Final = ("root", "frr")  # "root" has a text of its own here; containers have an FRR of their own


def cannot_run(fabric: Fabric, runtime: str) -> str:
    """The reason, with the command that helps; empty when nothing is missing."""
    reasons = [] if os.geteuid() == 0 else [_ROOT]
    needed = _needed(fabric, runtime)
    reasons += [_text(check) for check in _checks() if not check.ok and _counts(check, runtime, needed)]
    reasons += _short_of_memory(fabric)
    # A problem's text names the program as the user started it.
    return str(Problem("", "; ".join(reasons or _refused(fabric, runtime)), ""))


@cache
def _checks() -> tuple[Check, ...]:
    """All checks of doctor, made once a session: they take a second."""
    from heddle.host.doctor import examine

    return examine().checks


def _needed(fabric: Fabric, runtime: str) -> set[str]:
    """Optional checks that this fabric or this runtime needs."""
    queues = fabric.policy.queues
    wanted = set(_CONTAINERS) if runtime == "containerlab" else set()
    if queues.scheduler == "ets":
        wanted.add("ets")
    if queues.ecn.enabled and queues.ecn.marker == "red":
        wanted.add("red")
    return wanted


def _counts(check: Check, runtime: str, needed: Iterable[str]) -> bool:
    if check.name in ("root", "memory") or (check.name in _ON_HOST and runtime == "containerlab"):
        return False
    return check.required or check.name in needed


def _short_of_memory(fabric: Fabric) -> list[str]:
    """Less memory than doctor asks of a machine is enough for a small fabric: here its switches are known."""
    from heddle.host.capacity import ENOUGH_MB, RESERVE_MB, SWITCH_MB, free_bytes

    free, needed = free_bytes() >> 20, RESERVE_MB + SWITCH_MB * len(fabric.switches)
    why = f"memory: {free:,} MB free, and {len(fabric.switches)} switches need about {needed:,} MB (free some memory)"
    return [why] if free < min(needed, ENOUGH_MB) else []


def _text(check: Check) -> str:
    """`frr: no zebra and no bgpd (apt-get install frr)`."""
    return f"{check.name}: {check.detail}" + (f" ({check.fix})" if check.fix else "")


def _refused(fabric: Fabric, runtime: str) -> list[str]:
    """Reasons for which `up` would refuse the fabric before it makes anything."""
    from heddle.host.preflight import preflight
    from heddle.runtimes.registry import get_runtime
    from heddle.switch import install as switch

    try:
        preflight(fabric, daemons=get_runtime(runtime).daemons_here)
        switch.check(fabric)
    except MachineError as error:
        heads = [f"{each.where}  {each.what} {each.why}".strip() for each in error.problems]
        return [
            f"{head} ({each.hint})" if each.hint else head for head, each in zip(heads, error.problems, strict=True)
        ]
    return []


MOST_PORTS: Final = 64  # a process each: what `capture` takes at once
_PACKETS: Final = 10_000_000
_SECONDS: Final = 86_400.0
_START_S: Final = 15.0
_END_S: Final = 15.0


def ports_of(fabric: Fabric) -> list[str]:
    """The ports to capture at: of all switches; else of the switches next to hosts; else the first of these."""
    ports = [port.ref for switch in fabric.switches for port in switch.ports]
    if len(ports) > MOST_PORTS:
        edge = [switch for switch in fabric.switches if fabric.level_of(switch).is_edge]
        ports = [port.ref for switch in edge for port in switch.ports]
    return ports[:MOST_PORTS]


class PortsCapture:
    """One capture. Use it in a with block; `failed` decides, before the end of the block, whether the file stays."""

    def __init__(self, lab: Lab, path: Path) -> None:
        from heddle.lab.capture import find_ports

        self.path = path
        self.failed = False
        self.done: Captured | None = None
        self.ports = ports_of(lab.fabric)
        self._taps: list[Tapped] = find_ports(lab, ",".join(self.ports))
        self._stop = threading.Event()
        self._listening = threading.Event()
        self._wrong: HeddleError | None = None
        self._thread = threading.Thread(target=self._run, name="heddle-pcap", daemon=True)

    def __enter__(self) -> PortsCapture:
        """Return when the capture listens at all ports. MachineError when it cannot."""
        self._thread.start()
        if not self._listening.wait(_START_S) or self._wrong is not None:
            self._stop.set()
            late = MachineError(Problem("", "--heddle-pcap", f"did not start to listen within {_START_S:g} s"))
            raise self._wrong or late
        return self

    def __exit__(self, *_: object) -> None:
        """End the capture; the file is complete, or gone, when this returns."""
        self._stop.set()
        self._thread.join(_END_S)

    @property
    def trouble(self) -> str:
        """The error of the capture, in one line; empty when there is none."""
        problems = self._wrong.problems if self._wrong is not None else self.done.problems if self.done else ()
        return "; ".join(first_lines(problems))

    def _run(self) -> None:
        try:
            self._capture()
        except HeddleError as error:
            self._wrong = error
        except OSError as error:
            self._wrong = CheckError(Problem("", str(self.path), f"cannot be written: {error.strerror}"))
        finally:
            self._listening.set()

    def _capture(self) -> None:
        from heddle.lab.capture import Bounds, capture
        from heddle.wire.pcapng import PcapngFile

        output_directory(self.path.parent, "--heddle-pcap")
        with ExitStack() as stack:
            kept = stack.enter_context(PcapngFile(self.path, self.ports))
            bounds = Bounds(_PACKETS, _SECONDS)
            self.done = capture(
                self._taps, "", bounds, kept.write, stop=self._stop.is_set, listening=self._listening.set
            )
            if self.failed:
                kept.keep(self.done.ended_ns, self.done.dropped)


def file_of(directory: Path, nodeid: str) -> Path:
    """`DIR/test_mine.py--test_one.pcapng`: a file name of a test's ID, unique for tests of one session."""
    name = "".join(each if each.isalnum() or each in "._-" else "-" for each in nodeid)
    return directory / f"{name[:180].strip('.-')}.pcapng"


def check_tcpdump() -> None:
    """InputError when the option is given and tcpdump is not installed."""
    from heddle.host import packages

    if packages.missing(["tcpdump"]):
        raise InputError(
            Problem("", "--heddle-pcap", "needs tcpdump, which is not installed", "apt-get install tcpdump")
        )
