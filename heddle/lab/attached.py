"""The record of ports that are attached to devices of users: written before each change, so that `down` can undo it.

    LABDIR/attached.json     {"attached": [{"host": "host1", "port": "eth1", "kind": "netns", ...}, ...]}

Plugin `attach` does the work. Everything else only reads here which ports are attached.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from heddle.base import state
from heddle.base.plugins import function
from heddle.base.problems import InputError, Problem

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_FILE: Final = "attached.json"


@dataclass(frozen=True, slots=True)
class Before:
    """A device of the user as it came. addresses: as `10.0.0.1/24`. mtu: bytes."""

    mtu: int
    up: bool
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attachment:
    """A port that is attached, or is being attached. kind, name: as the user typed them: `netns`, `blue`.

    space: a path of the namespace of the device, which has the numbers `identity` (device and inode): the path may be
    gone. device: its name there; index: its interface index. far: the end of the wire there, the device itself where
    Heddle makes it. inner: the end in the host's namespace. before: None for a device that Heddle makes.
    routes: added there, as `PREFIX via GATEWAY metric N`. address: of the port.
    """

    host: str
    port: str
    kind: str
    name: str
    space: str
    identity: tuple[int, int]
    device: str
    far: str
    inner: str
    address: str
    index: int = 0
    before: Before | None = None
    routes: tuple[str, ...] = field(default=())

    @property
    def ref(self) -> str:
        """`host1:eth1`."""
        return f"{self.host}:{self.port}"

    @property
    def target(self) -> str:
        """`netns blue`, `tap hd-host1`."""
        return f"{self.kind} {self.name}"

    @property
    def text(self) -> str:
        """`host1:eth1 is attached to netns blue (hd-host1)`."""
        more = "" if self.device == self.name else f" ({self.device})"
        return f"{self.ref} is attached to {self.target}{more}"

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """What asdict made; TypeError, KeyError or ValueError for other data."""
        found = cls(**data)
        before = None if found.before is None else Before(**data["before"])
        if before is not None:
            before = replace(before, addresses=tuple(map(str, before.addresses)))
        dev, inode = found.identity
        return replace(found, identity=(int(dev), int(inode)), before=before, routes=tuple(map(str, found.routes)))


def read(directory: Path) -> tuple[Attachment, ...]:
    """The attachments of a lab, in the order in which they were made; without damaged rows."""
    try:
        data = json.loads((directory / _FILE).read_text(encoding="utf-8"))["attached"]
    except (OSError, ValueError, TypeError, KeyError):
        return ()
    found = []
    for each in data if isinstance(data, list) else ():
        try:
            found.append(Attachment.from_json(each))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return tuple(found)


def write(directory: Path, rows: Iterable[Attachment]) -> None:
    """Replace the record of a lab."""
    state.write_file(directory / _FILE, json.dumps({"attached": [asdict(each) for each in rows]}))


def restore_devices(lab: str) -> int:
    """Restore all devices that are attached to a lab which is about to be removed; returns their number.

    InputError without the plugin that can do it.
    """
    rows = read(state.lab_dir(lab))
    if rows:
        function("restore-devices", f"down {lab}")(rows)
    return len(rows)


def check_free(lab: Lab, what: str, hosts: Collection[str]) -> None:
    """InputError where a host is attached: its traffic is the user's. what: that needs the hosts."""
    problems = [
        Problem("", what, f"needs {each.host}, and {each.text}", f"run ./inv detach {each.ref}, or use other hosts")
        for each in read(lab.dir)
        if each.host in hosts
    ]
    if problems:
        raise InputError(*problems)
