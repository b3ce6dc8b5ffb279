"""The verbs `attach`, `detach` and `record`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from heddle.base.problems import InputError, Problem
from heddle.cli import completion
from heddle.cli.argv import Option, Options
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.lab.attached import Attachment
    from heddle.lab.lab import Lab

_LONGEST_S: Final = 3600
_HOSTS: Final = "hosts, or their ports (host1:eth2), with commas; of a host its first port"
_ATTACH: Final[Options] = {
    "hosts": Option(_HOSTS, completion.nics),
    "name": Option("the name of the TAP, one for each host, with commas; otherwise hd-HOST"),
    "netns": Option("a namespace, by its name or by the ID of a process in it: it gets a device", value="NAME"),
    "netdev": Option("a device of this namespace: a veth, dummy, macvlan or TAP", value="NAME"),
    "tap": "a TAP, which is made if there is none of that name: for QEMU",
    "container": Option("a container of this machine's Docker: it gets a device", value="NAME"),
}


@verb(group="Lab", help=_ATTACH, positional=["name"], root=True)
def attach(
    out: Console,
    hosts: str,
    name: str | None = None,
    netns: str | None = None,
    netdev: str | None = None,
    tap: bool = False,
    container: str | None = None,
    lab: str | None = None,
) -> None:
    """Give a host's port to a device of yours: ./inv attach host1 --netns blue.

    The device gets the address, the routes and the MTU of the port. What it sends passes the queues, the hashing and
    the counters of the fabric. ./inv detach and ./inv down restore it as it came. docs/attach.md has more.
    """
    from heddle.lab.opening import open_lab
    from heddle_plugins.attach.attaching import attach as make
    from heddle_plugins.attach.saying import attached_text

    given = {"netns": netns, "netdev": netdev, "container": container, "tap": name or "" if tap else None}
    chosen = [(kind, text) for kind, text in given.items() if text is not None]
    if len(chosen) != 1 or (name is not None and not tap):
        hint = f"./inv attach {hosts} --netns NAME, --netdev NAME, --tap [NAME] or --container NAME"
        raise InputError(Problem("", f"attach {hosts}", "needs one kind of device", hint))
    (kind, text), where = chosen[0], open_lab(lab)
    rows = make(where, _split(hosts), kind, _split(text))
    out.result({"lab": where.name, "attached": [asdict(row) for row in rows]}, attached_text(where, rows))


@verb(group="Lab", help={"hosts": Option(f"{_HOSTS}; without: all that are attached", completion.nics)},
      positional=["hosts"], root=True)  # fmt: skip
def detach(out: Console, hosts: str | None = None, lab: str | None = None) -> None:
    """Restore devices that ports were attached to: ./inv detach host1."""
    from heddle.lab.opening import open_lab
    from heddle_plugins.attach.attaching import detach as end

    where: Lab = open_lab(lab)
    rows: Sequence[Attachment] = end(where, _split(hosts or ""))
    lines = [f"{row.ref}: {row.target} is restored" for row in rows]
    out.result({"lab": where.name, "detached": [asdict(row) for row in rows]}, "\n".join(lines))


@verb(
    group="Traffic",
    help={
        "for": Option("how long to record, such as 30s; Ctrl-C ends it early", value="TIME"),
        "cmd": "after --: record while this command runs",
    },
    rest="cmd",
    root=True,
)
def record(out: Console, for_: str | None = None, cmd: Sequence[str] = (), lab: str | None = None) -> None:
    """Record what attached devices send as a run: ./inv record --for 30s, or ./inv record -- COMMAND.

    Their flows (RoCEv2, UET, TCP, UDP) are those that the switches count. ./inv paths proves each, and report, compare
    and diagnose read the run. The command runs here, as root. docs/attach.md has more.
    """
    from heddle.base.units import parse_duration
    from heddle.cli.exec_verb import stdout_to
    from heddle.lab.opening import open_lab
    from heddle_plugins.attach.recording import record as make

    if (for_ is None) == (not cmd):
        raise InputError(Problem("", "record", "needs a time or a command", "./inv record --for 30s, or -- COMMAND"))
    seconds = None
    if for_ is not None:
        try:
            seconds = parse_duration(for_) / 1e9
        except ValueError:
            seconds = 0
        if not 0 < seconds <= _LONGEST_S:
            why, hint = f"is not a time up to {_LONGEST_S} s", "write it as 30s"
            raise InputError(Problem("", f"--for {for_}", why, hint))
    where = open_lab(lab)
    with stdout_to(2) if out.json else nullcontext():
        found = make(where, seconds, cmd, out.observer)
    for fault in found.result.faults:
        out.observer.warn(fault)
    out.result(found.to_json(), "\n".join(found.lines()))
    out.exit_code = found.result.end.code


def _split(text: str) -> list[str]:
    return [word for word in text.split(",") if word]
