"""The verb `queues`: show all queues, once or live, and set thresholds of a running lab."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from heddle.base import state
from heddle.base.problems import HeddleError, InputError, Problem, Problems, did_you_mean
from heddle.cli import helptexts as words
from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.lab.queues import QueueRow, QueuesResult, QueueWatch, SwitchRow

_SHORTEST, _LONGEST = 0.1, 60.0  # seconds between two readings of --watch
ACTIONS: Final = ("set", "reset")


@verb(
    group="Queues",
    help=words.QUEUES,
    positional=["action", "setting"],
    root=True,
    tool=Tool(
        "Show depth, high water, ECN marks, drops, PFC pauses of each port and class of a running lab.",
        without=("action", "setting", "watch", "every", "seconds"),
    ),
)
def queues(
    out: Console,
    action: str | None = None,
    setting: Sequence[str] = (),
    switch: Sequence[str] = (),
    port: Sequence[str] = (),
    class_: Sequence[str] = (),
    all_: bool = False,
    watch: bool = False,
    every: float = 0.5,
    seconds: float = 3600.0,
    lab: str | None = None,
) -> None:
    """Show depth, marks, drops and pauses of every port and class; or set thresholds of a running lab.

    ./inv queues set ecn.kmax=800KB pfc.xoff=80KB --switch 'ctsw*' sets keys below `queues` of the fabric file, without
    packet loss. Names can be patterns. ./inv queues --watch redraws until Ctrl-C. ./inv queues reset sets all counters
    to 0.
    """
    from heddle.lab.opening import open_lab

    if action is not None and action not in ACTIONS:
        near = did_you_mean(action, ACTIONS)
        hint = near if near.startswith("did") else f"set, reset, or ./inv queues --lab {action}"
        raise InputError(Problem("", f"queues {action}", "is not an action of queues", hint))
    where = open_lab(lab)
    wanted = _wanted(where, switch, port, class_, all_)
    if action == "set":
        _set(out, where, setting, switch, watch)
    elif setting:
        raise InputError(Problem("", setting[0], "is an unexpected word", "./inv queues set PATH=VALUE"))
    if action == "reset":
        from heddle.base import owners
        from heddle.lab.queues import forget

        with owners.lock(where.name):  # not during a run, which needs the difference of two readings
            forget(where)
    if watch:
        _check_watch(out, every, seconds)
        return _watch(out, where, wanted, every, seconds)
    return _show(out, where, wanted)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The rows to show: patterns of switches and ports, classes; empty: all. every: show quiet rows, too."""

    nodes: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    classes: tuple[int, ...] = ()
    every: bool = False

    def has_row(self, row: QueueRow) -> bool:
        """Whether a row matches, quiet or not."""
        return (
            self.has_node(row.port.partition(":")[0])
            and (not self.ports or any(fnmatchcase(row.port, each) for each in self.ports))
            and (not self.classes or row.traffic_class in self.classes)
        )

    def has_node(self, name: str) -> bool:
        """Whether a node matches."""
        return not self.nodes or any(fnmatchcase(name, each) for each in self.nodes)

    def rows(self, result: QueuesResult) -> tuple[list[QueueRow], int]:
        """The rows to show, and the number of quiet rows that match."""
        meant = [row for row in result.rows if self.has_row(row)]
        loud = [row for row in meant if self.every or not row.quiet]
        return loud, len(meant) - len(loud)

    def switches(self, result: QueuesResult) -> list[SwitchRow]:
        """The switches to show: all that match and ever held a packet."""
        some = [row for row in result.switches if self.has_node(row.switch) and not self.ports]
        return [row for row in some if self.every or row.high_water]


def matching(port: Sequence[str], class_: Sequence[str]) -> Callable[[str, int], bool] | None:
    """A function that tells whether (port, class) matches the typed patterns; None without patterns."""
    ports, classes = _ports(_split(port)), _split(class_)
    if not ports and not classes:
        return None
    return lambda ref, number: (
        (not ports or any(fnmatchcase(ref, each) for each in ports)) and (not classes or str(number) in classes)
    )


def _split(typed: Sequence[str]) -> tuple[str, ...]:
    from heddle.fabric.model import split_words

    return split_words(typed)


def _wanted(lab: Lab, switch: Sequence[str], port: Sequence[str], class_: Sequence[str], every: bool) -> RowFilter:
    """The typed patterns, checked against the lab: InputError for a pattern that matches nothing."""
    problems: list[Problem] = []
    nodes = [node.name for node in lab.fabric.nodes]
    refs = [each.ref for node in lab.fabric.nodes for each in node.ports]
    for flag, patterns, names, kind in (
        ("--switch", _split(switch), nodes, "node"),
        ("--port", _ports(_split(port)), refs, "port"),
    ):
        problems += [
            Problem(flag, each.removesuffix(":*"), f"is not a {kind} of {lab.name}", did_you_mean(each, names))
            for each in patterns
            if not any(fnmatchcase(name, each) for name in names)
        ]
    numbers = lab.fabric.policy.queues.numbers
    some = "classes in use: " + ", ".join(str(number) for number in numbers)
    known = {str(number): number for number in numbers}
    classes = _split(class_)
    problems += [
        Problem("--class", each, f"is not a class of {lab.name}", some) for each in classes if each not in known
    ]
    if problems:
        raise InputError(*problems)
    return RowFilter(_split(switch), _ports(_split(port)), tuple(known[each] for each in classes), every)


def _ports(typed: Sequence[str]) -> tuple[str, ...]:
    """A node without a port means all its ports, as for `capture`."""
    return tuple(each if ":" in each else f"{each}:*" for each in typed)


def _set(out: Console, lab: Lab, settings: Sequence[str], switches: Sequence[str], watch: bool) -> None:
    from heddle.lab.thresholds import late_marks, set_queues

    if not settings:
        hint = f"./inv queues set ecn.kmax=800KB --switch '{lab.fabric.top_level.word}*'"
        raise InputError(Problem("", "queues set", "needs a PATH=VALUE", hint))
    if watch:
        raise InputError(
            Problem("", "queues set and --watch", "exclude each other", "first set, then run ./inv queues --watch")
        )
    set_queues(lab, settings, _split(switches))
    for each in late_marks(lab):
        out.observer.warn(each)


def _show(out: Console, lab: Lab, wanted: RowFilter) -> None:
    from heddle.lab import attached
    from heddle.lab.queues import read_queues
    from heddle.views.queuetext import queues_text

    result = read_queues(lab)
    rows, hidden = wanted.rows(result)
    switches = wanted.switches(result)
    data = result.to_json()
    # JSON always has the quiet rows: programs can filter them.
    data["ports"] = [row.to_json() for row in result.rows if wanted.has_row(row)]
    data["switches"] = [row.to_json() for row in result.switches if wanted.has_node(row.switch)]
    foreign = [each.text for each in attached.read(lab.dir)]
    data |= {"attached": foreign} if foreign else {}
    text = queues_text(result, rows, switches, hidden)
    out.result(data, "\n".join([text, *(f"foreign: {each}" for each in foreign)]))


def _check_watch(out: Console, every: float, seconds: float) -> None:
    from heddle.lab.capture import MOST_SECONDS

    problems = Problems()
    if out.json:
        hint = "./inv queues --format json prints one reading"
        problems.add(where="", what="--watch and --format json", why="exclude each other", hint=hint)
    if not _SHORTEST <= every <= _LONGEST:
        why = f"is outside {_SHORTEST:g} to {_LONGEST:g} seconds"
        problems.add(where="", what=f"--every {every:g}", why=why, hint="for example --every 1")
    if not 0 < seconds <= MOST_SECONDS:
        why = f"is outside 0 to {MOST_SECONDS:g}"
        problems.add(where="", what=f"--seconds {seconds:g}", why=why, hint="for example --seconds 60")
    problems.raise_if_any()


def _watch(out: Console, lab: Lab, wanted: RowFilter, every: float, seconds: float) -> None:
    """Redraw in place on a terminal, else print a table each time; until Ctrl-C, the end of `seconds` or of the lab.

    BPF maps stay readable after their lab is gone while they are open, so a node's namespace is checked.
    """
    from heddle.cli.queuelive import Screen
    from heddle.lab.queues import QueueWatch
    from heddle.switch.queues.cells import LabQueues

    end = time.monotonic() + seconds
    with ExitStack() as stack:
        live = stack.enter_context(LabQueues.pinned(lab.fabric)) if lab.runtime.here else None
        screen = stack.enter_context(Screen(sys.stdout, out))
        watch = QueueWatch(lab, live)
        namespace = _namespace(lab)
        try:
            while True:
                result = _reading(watch, lab, namespace)
                rows, hidden = wanted.rows(result)
                screen.draw(result, rows, wanted.switches(result), hidden)
                left = end - time.monotonic()
                if left <= 0:
                    return
                time.sleep(min(every, left))
        except KeyboardInterrupt:  # the usual end
            return


def _reading(watch: QueueWatch, lab: Lab, namespace: int | None) -> QueuesResult:
    """One reading; InputError when the lab was taken down before it or during it."""
    gone = InputError(Problem("", f"lab {lab.name}", "was taken down", "./inv up brings it up again"))
    if namespace is None or _namespace(lab) != namespace:
        raise gone
    try:
        return watch.read()
    except HeddleError:
        if _namespace(lab) != namespace:
            raise gone from None
        raise


def _namespace(lab: Lab) -> int | None:
    """The inode of the first node's namespace, or of the directory of a lab in shards; None when it is gone."""
    try:
        if not lab.runtime.here:
            return state.lab_dir(lab.name).stat().st_ino
        return lab.handle(lab.fabric.nodes[0].name).netns.stat().st_ino
    except (OSError, HeddleError):  # its files can disappear at any moment, too
        return None
