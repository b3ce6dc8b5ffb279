"""A pool of running labs: tests with the same fabric share one, and each gets it as fresh as `up` leaves it.

Undone between two tests without a warning: links that are down, drains, faults of links, hashing and thresholds that
were set live, counters, kept runs. Reported: processes that were left, which are ended, and damage, after which the lab
must be built again.

    pool = Pool(most=2)
    lab = pool.take("tiny", user="test_mine.py::test_one")              # brought up, or reset and given again
    lab = pool.take(FabricRequest("zone", ("routing.ecmp=e-ecmp",)))    # the same as `up zone --set ...`
    pool.release(lab)                                                   # reset; what the user left is in the result
    with pool.borrow("tiny", user="test_mine.py") as lab: ...           # both
    pool.close()                                                        # every lab goes down

A lab in use is not shared. An idle lab is parked: no verb sees it, so a verb without --lab finds the lab of its test.
When a new lab would exceed `most`, the lab that was idle for the longest time goes down. One process, one thread.

A lab's name carries the process ID and the start time of its pytest: t, five digits, four digits, two digits, base 36.
Its claim is a file of the same name below /run/heddle-pytest. It is written before the lab and removed after it, so a
later session finds what a killed one left, also where that used another state directory. A lab without a claim is never
touched.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base import mounts as trees
from heddle.base import owners, state
from heddle.base.owners import held, late
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, first_lines, machine_errors
from heddle.base.process import end_all, start_of
from heddle.base.tables import many, some_of
from heddle.base.userfiles import as_caller
from heddle.spec.load import settings_of, value_text

if TYPE_CHECKING:
    from heddle.fabric.fabricfile import LoadedFabric
    from heddle.lab.lab import Lab

CLAIMS_DIR: Final = Path("/run/heddle-pytest")
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_ATTEMPTS: Final = 10
_SWEEP_S: Final = 120.0  # a lab is removed in a second or two, a large one in ten
_numbers = count()  # of this process, for all of its pools


@dataclass(frozen=True, slots=True)
class LabClaim:
    """A lab of a pytest. started: the process's start in clock ticks since boot. state_dir: where its record is."""

    lab: str
    pid: int
    started: int
    state_dir: str

    @property
    def alive(self) -> bool:
        """Whether the pytest that made the lab still runs; process IDs are used again, with another start."""
        return start_of(self.pid) == self.started


def new_name() -> str:
    """A name that no lab of another process has, and none of the last 1,295 of this one."""
    pid = os.getpid()
    return f"t{_base36(pid, 5)}{_base36(start_of(pid) or 0, 4)}{_base36(next(_numbers), 2)}"


def claim(lab: str, state_dir: Path) -> None:
    """Write the claim of this process to a lab that is about to be made. MachineError when it cannot be written."""
    own = LabClaim(lab, os.getpid(), start_of(os.getpid()) or 0, str(state_dir))
    with machine_errors(str(CLAIMS_DIR)):
        for attempt in range(_ATTEMPTS):
            try:
                CLAIMS_DIR.mkdir(mode=0o755, exist_ok=True)
                _check_owner()
                fd, beside = tempfile.mkstemp(prefix=".", dir=CLAIMS_DIR)
                break
            except FileNotFoundError:  # another session removed the empty directory meanwhile
                if attempt == _ATTEMPTS - 1:
                    raise
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump(asdict(own), file)
        Path(beside).replace(CLAIMS_DIR / lab)


def unclaim(lab: str) -> None:
    """Remove the claim to a lab that is gone, or that stays by the user's wish."""
    with suppress(OSError):
        (CLAIMS_DIR / lab).unlink(missing_ok=True)
    _remove_empty()


def _remove_empty() -> None:
    with suppress(OSError):
        CLAIMS_DIR.rmdir()  # others' claims are in it, or it is not there


def claims() -> list[LabClaim]:
    """All claims that can be read, by name."""
    _check_owner()
    found = []
    for path in sorted(CLAIMS_DIR.glob("[a-z]*")):
        with suppress(OSError, ValueError, TypeError):
            found.append(LabClaim(**json.loads(path.read_text(encoding="utf-8"))))
    return found


@contextmanager
def orphans() -> Iterator[list[LabClaim]]:
    """The claims of processes that have ended; while the block runs, no other session removes the same labs.

    MachineError when another session has not ended its removals in _SWEEP_S.
    """
    _check_owner()
    path = CLAIMS_DIR / ".lock"
    try:
        with ExitStack() as stack:
            with machine_errors(str(path)), suppress(FileNotFoundError):  # there are no claims
                stack.enter_context(held(path, late(path, _SWEEP_S), seconds=_SWEEP_S))
            yield [each for each in claims() if not each.alive]
    finally:
        _remove_empty()


def _check_owner() -> None:
    """MachineError when others can write claims: root removes what a claim names."""
    with suppress(FileNotFoundError):
        status = CLAIMS_DIR.lstat()
        if status.st_uid != 0 or status.st_mode & 0o022 or not CLAIMS_DIR.is_dir() or CLAIMS_DIR.is_symlink():
            why = "is not a directory that only root can write"
            raise MachineError(Problem("", str(CLAIMS_DIR), why, f"run rm -r {CLAIMS_DIR}"))


def _base36(number: int, digits: int) -> str:
    text = ""
    for _ in range(digits):
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text


MOST: Final = 2  # labs that are up at once, by default
_STATE_DIR: Final = "HEDDLE_STATE_DIR"


class LeftoverWarning(UserWarning):
    """A test left something in its lab that a reset does not undo without a word."""


@dataclass(slots=True)
class _Pooled:
    """A lab of the pool. user: who has it, empty when it waits. used: when it was last taken, as a rank."""

    key: str
    title: str
    lab: Lab
    state_dir: Path
    fresh: frozenset[LabProcess]
    user: str
    used: int = 0


@dataclass(slots=True)
class Pool:
    """Running labs by fabric. most: labs that are up at once. note: gets a line about what the user should know."""

    most: int = MOST
    note: Callable[[str], None] = lambda _: None
    on_first: Callable[[], None] = lambda: None  # before the first lab is made
    _labs: list[_Pooled] = field(default_factory=list)
    _ranks: Iterator[int] = field(default_factory=count)
    _pid: int = field(default_factory=os.getpid)
    _began: bool = False

    def take(self, fabric: FabricRequest | str, runtime: str = "netns", *, user: str = "a test") -> Lab:
        """A running lab of that fabric, fresh, for this user alone until `release`.

        InputError for a fabric that cannot be, MachineError when this machine cannot run it, CheckError when it does
        not converge; nothing of it is left then.
        """
        request = FabricRequest(fabric) if isinstance(fabric, str) else fabric
        loaded = request.load()
        key = f"{runtime} {_canonical(loaded)}"
        for found in [each for each in self._labs if each.key == key and not each.user]:
            with _state_in(found.state_dir):
                state.unpark(found.lab.name)
                lost = lost_parts(found.lab, found.fresh)
            if not lost:
                found.user, found.used = user, next(self._ranks)
                return found.lab
            self.note(f"lab {found.lab.name} ({found.title}) is built again for {user}: {'; '.join(lost)}")
            self._discard(found)
        self._make_room(self.most - 1)
        return self._made(request, runtime, key, user)

    def release(self, lab: Lab) -> ResetResult:
        """Take a lab back and reset it for the next user; one that is damaged goes down. The user's leftovers."""
        found = self._entry(lab)
        with _state_in(found.state_dir):
            left = reset(lab, found.fresh)
            if not left.damage:
                state.park(lab.name)
        found.user = ""
        if left.damage:
            self._discard(found)
        self._make_room(self.most)
        return left

    def drop_idle(self) -> None:
        """Take down every lab that waits."""
        self._make_room(0)

    def keep(self, lab: Lab) -> None:
        """Leave a lab up for the user to look at; the pool forgets it, and no later session removes it."""
        found = self._entry(lab)
        with _state_in(found.state_dir):
            if (record := state.read_record(lab.name)) is not None:
                state.write_record(replace(record, source=f"{found.title} (kept by pytest)"))
        unclaim(lab.name)
        self._labs.remove(found)

    @contextmanager
    def borrow(
        self, fabric: FabricRequest | str, runtime: str = "netns", *, user: str = "a test"
    ) -> Iterator[tuple[Lab, list[str]]]:
        """A lab for the length of a with block. The list gets what was left in it, a line each, when the block ends."""
        lab = self.take(fabric, runtime, user=user)
        left: list[str] = []
        try:
            yield lab, left
        finally:
            found = self.release(lab)
            left += [*found.ended, *found.damage]

    def close(self) -> None:
        """Take every lab down, those in use too. What cannot be removed is noted; a later session tries again."""
        if os.getpid() != self._pid:  # a child that was forked
            return
        for found in list(self._labs):
            try:
                self._discard(found)
            except HeddleError as error:
                self.note(f"lab {found.lab.name} is left: {error}")
        atexit.unregister(self.close)
        self._began = False

    def _entry(self, lab: Lab) -> _Pooled:
        return next(each for each in self._labs if each.lab.name == lab.name)

    def _make_room(self, most: int) -> None:
        """Take down labs that wait until only `most` are up; labs in use stay, also when they are more."""
        while len(self._labs) > most and (idle := [each for each in self._labs if not each.user]):
            self._discard(min(idle, key=lambda each: each.used))

    def _made(self, request: FabricRequest, runtime: str, key: str, user: str) -> Lab:
        from heddle.lab import lifecycle as life
        from heddle.runtimes.registry import on_machine

        if not self._began:
            self._began = True
            atexit.register(self.close)
            self.on_first()
            sweep(self.note)
        name = new_name()
        claim(name, state.state_dir())
        try:
            loaded = request.load(name)
            done = life.up(loaded, runtime=runtime, source=f"{request.title} (pytest)", rollback=True)
        except BaseException:
            if not on_machine(name):  # else the claim stays, and a later session tries again
                unclaim(name)
            raise
        made = _Pooled(key, request.title, done.lab, state.state_dir(), frozenset(), user, next(self._ranks))
        self._labs.append(made)
        made.fresh = processes_of(done.lab)
        return done.lab

    def _discard(self, found: _Pooled) -> None:
        _down(found.lab.name, found.state_dir)
        if found in self._labs:
            self._labs.remove(found)


def sweep(note: Callable[[str], None]) -> None:
    """Remove what killed sessions left: their claims exist, and their processes do not. note: gets a line for each."""
    with orphans() as found:
        for each in found:
            try:
                _down(each.lab, Path(each.state_dir))
                note(f"lab {each.lab} was removed: pytest (process {each.pid}) had ended without doing so")
            except HeddleError as error:
                note(f"lab {each.lab} of an earlier pytest cannot be removed: {error}")


def _down(name: str, state_dir: Path) -> None:
    from heddle.lab import lifecycle as life

    with _state_in(state_dir):
        life.down(name, force=True)
    unclaim(name)


def _canonical(loaded: LoadedFabric) -> str:
    """Every key of a fabric file but its name, defaults included; labs with equal texts can be shared."""
    from heddle.lab.opening import blueprint_from

    return json.dumps({**blueprint_from(loaded).spec_data(), "name": ""}, sort_keys=True, default=str)


@contextmanager
def _state_in(directory: Path) -> Iterator[None]:
    """Have Heddle keep its state there for the length of a with block: a test may have changed the variable."""
    before = os.environ.get(_STATE_DIR)
    os.environ[_STATE_DIR] = str(directory)
    try:
        yield
    finally:
        os.environ.pop(_STATE_DIR)
        if before is not None:
            os.environ[_STATE_DIR] = before


EXAMPLE: Final = '@pytest.mark.fabric("tiny")'
_SUFFIXES: Final = (".yml", ".yaml")


@dataclass(frozen=True, slots=True)
class FabricRequest:
    """A fabric that a test asks for: a preset's name or a path, and overrides as `path=value` each."""

    fabric: str
    overrides: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """`zone, routing.ecmp=e-ecmp`."""
        return ", ".join((self.fabric, *self.overrides))

    def load(self, name: str | None = None) -> LoadedFabric:
        """The fabric, checked; name: of the lab. InputError with everything that is wrong."""
        from heddle.fabric.fabricfile import load_fabric

        return load_fabric(self.fabric, name=name, overrides=self.overrides)


def request_of(
    args: Sequence[object], keys: Mapping[str, object], *, where: str = "", directory: Path | None = None
) -> FabricRequest:
    """The marker's arguments as a request that can be loaded; InputError with every mistake.

    where: `test_mine.py:7`, named in problems. directory: paths of fabric files are relative to it.
    """
    problems: list[Problem] = []
    if len(args) != 1 or not isinstance(args[0], str | os.PathLike) or not os.fspath(args[0]):
        shown = ", ".join(map(repr, args))
        why = "needs one argument: a preset's name or the path of a fabric file"
        problems.append(Problem(where, f"fabric({shown})", why, f"write {EXAMPLE}"))
    if "name" in keys:
        why = "cannot be set: the plugin chooses the names of its labs"
        problems.append(Problem(where, f"name: {keys['name']}", why, "remove it"))
    overrides = []
    for path, value in settings_of({key: value for key, value in keys.items() if key != "name"}):
        text = value_text(path, value)
        if text is None:
            why = f"is a Python {type(value).__name__}, which no fabric file can contain"
            problems.append(Problem(where, f"{path}: {value!r}"[:120], why, "use texts, numbers, True, False or lists"))
        elif not path or "=" in path or not all(path.split(".")):
            problems.append(
                Problem(where, repr(path), "is not a key of a fabric file", "docs/fabric-keys.md lists them")
            )
        else:
            overrides.append(f"{path}={text}")
    if problems:
        raise InputError(*problems)
    request = FabricRequest(_located(os.fspath(args[0]), directory), tuple(overrides))  # type: ignore[call-overload]
    try:
        request.load()
    except InputError as error:
        raise InputError(*(replace(each, where=_shown(each.where, where)) for each in error.problems)) from None
    return request


def _located(fabric: str, directory: Path | None) -> str:
    """A path is relative to the test file; a word without a slash or a suffix is a preset's name."""
    path = Path(fabric)
    if directory is None or path.is_absolute() or not ("/" in fabric or path.suffix in _SUFFIXES):
        return fabric
    return str((directory / path).resolve())


def _shown(place: str, marker: str) -> str:
    """Where a problem is: the marker in place of the command line's `--set`; a file as the user would type it."""
    return marker if place in ("", "--set") else place.removeprefix(f"{Path.cwd()}{os.sep}")


_PATIENCE_S: Final = 1.0  # between SIGTERM and SIGKILL
_COMMAND: Final = 60  # characters of a command that are shown
_SECONDS: Final = 30.0  # for routes to come back after a fault
_SHOWN: Final = 3
# The checks of `validate` that read and send nothing: a lab that passes them is configured as its fabric file.
_CHECKED: Final = (
    "sysctls", "hashing", "queues", "offloads", "order", "programs", "thresholds", "faults", "links", "daemons", "bgp",
    "routes", "reachability", "pauses",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LabProcess:
    """A process in a namespace of a lab. started: in clock ticks since boot, so that a reused ID is another process."""

    node: str
    pid: int
    started: int

    def text(self) -> str:
        """`process 4711 in host1 (sleep 600)`."""
        return f"process {self.pid} in {self.node}{self.command()}"

    def command(self) -> str:
        """` (sleep 600)`; empty when the process has ended."""
        try:
            words = Path("/proc", str(self.pid), "cmdline").read_bytes().split(b"\0")
        except OSError:
            return ""
        line = b" ".join(words).decode(errors="replace").strip()
        return f" ({line[:_COMMAND]}{'...' if len(line) > _COMMAND else ''})" if line else ""


def processes_of(lab: Lab) -> frozenset[LabProcess]:
    """All processes in the lab's namespaces, without this one, the PFC agent and its keeper."""
    from heddle.switch.pfc import control as pfc

    nodes: dict[tuple[int, int], str] = {}
    for name, handle in lab.handles().items():
        with suppress(OSError):
            found = handle.netns.stat()
            nodes[found.st_dev, found.st_ino] = name
    agents = pfc.alive(lab.name)
    beside = {os.getpid(), agents.agent, agents.keeper}
    pids = [int(each.name) for each in os.scandir("/proc") if each.name.isdigit() and int(each.name) not in beside]
    return frozenset(each for pid in pids if (each := _in_lab(pid, nodes)) is not None)


def _in_lab(pid: int, nodes: dict[tuple[int, int], str]) -> LabProcess | None:
    try:
        space = Path("/proc", str(pid), "ns/net").stat()
    except OSError:
        return None
    node = nodes.get((space.st_dev, space.st_ino))
    started = start_of(pid) if node is not None else None
    return LabProcess(node, pid, started) if node is not None and started is not None else None


def end_processes(lab: Lab, processes: Collection[LabProcess]) -> None:
    """Send SIGTERM to each, then SIGKILL to those that still run; processes that have left the lab are not touched."""
    end_all(_opened(processes, processes_of(lab)), _PATIENCE_S)


def _opened(processes: Iterable[LabProcess], now: Collection[LabProcess]) -> Iterable[int]:
    for each in processes:
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(each.pid)
            if each in now and start_of(each.pid) == each.started:
                yield fd
            else:
                os.close(fd)


@dataclass(frozen=True, slots=True)
class ResetResult:
    """ended: processes that were left in the lab's nodes, as texts. damage: what could not be undone, a line each."""

    ended: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()


def reset(lab: Lab, fresh: Collection[LabProcess]) -> ResetResult:
    """Undo what a test has done to the lab. It raises nothing: an error is reported as damage."""
    from heddle.checks.validate import validate
    from heddle.lab.health import restore_configured

    try:
        if lost := lost_parts(lab, fresh):
            return ResetResult(damage=tuple(lost))
        extra = sorted(processes_of(lab).difference(fresh), key=lambda each: (each.node, each.pid))
        texts = tuple(each.text() for each in extra)
        end_processes(lab, extra)
        restore_configured(lab, _SECONDS)
        if wrong := [f"{each.name}: {each.detail}" for each in validate(lab, _CHECKED) if not each.ok]:
            return ResetResult(texts, tuple(wrong))
        _clear(lab)
    except HeddleError as error:
        return ResetResult(damage=tuple(first_lines(error.problems)))
    return ResetResult(texts)


def lost_parts(lab: Lab, fresh: Collection[LabProcess]) -> list[str]:
    """Parts that were destroyed by hand, one line each: the lab, some of its nodes, or processes of a fresh lab."""
    record = state.read_record(lab.name)
    if record is None or record.phase != "running":
        return [f"lab {lab.name} was taken down"]
    if lost := lab.runtime.missing_nodes(lab.name, lab.topology):
        return list(first_lines(lost))
    gone = frozenset(fresh) - processes_of(lab)
    return [_ended_text(gone)] if gone else []


def _clear(lab: Lab) -> None:
    """Counters and kept runs. An error when a run is still in progress: it holds the lock."""
    from heddle.switch import counters
    from heddle.switch.queues.cells import LabQueues

    with owners.lock(lab.name), LabQueues.pinned(lab.fabric) as live:
        live.forget()
        counters.clear(lab.fabric)
        if (lab.dir / "runs").is_dir():
            with as_caller(lab.dir):
                trees.remove(lab.dir / "runs")


def _ended_text(gone: Collection[LabProcess]) -> str:
    nodes = some_of(sorted({each.node for each in gone}), _SHOWN)
    return f"{many(len(gone), 'process')} of the lab ended, in {nodes}"
