"""What is wrong with attached devices: the fact `attached` of a running lab, and the check of `validate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from heddle.base import owners
from heddle.base.problems import HeddleError, Problem
from heddle.base.tables import many
from heddle.checks.queuechecks import Found, NothingError, Subject
from heddle.fabric.wiring import Port
from heddle.kernel import netlink as nl
from heddle.lab import attached
from heddle.lab.attached import Attachment
from heddle.lab.facts import FactKind, LabLook
from heddle.lab.lab import Lab
from heddle_plugins.attach import devices as dev
from heddle_plugins.attach.holding import is_held
from heddle_plugins.attach.targets import spaces


def find(look: LabLook) -> Iterable[Problem]:
    """Devices that are gone, moved, down or changed since they were attached."""
    return faults(look.lab, attached.read(look.lab.dir))


def faults(lab: Lab, rows: Iterable[Attachment]) -> Iterator[Problem]:
    """The same of these attachments."""
    for row in rows:
        again = f"./inv detach {row.ref} --lab {lab.name}, then attach it again"
        yield from (Problem(row.ref, f"the device {row.device}", why, again) for why in _wrong(lab, row))


def _wrong(lab: Lab, row: Attachment) -> Iterator[str]:
    """What is wrong with one, as the end of a sentence."""
    port = lab.fabric.by_name[row.host].port(row.port) if row.host in lab.fabric.by_name else None
    if port is None:
        yield "is attached to a host that the lab no longer has"
        return
    space = next(spaces(row.space, row.identity), None)
    if space is None:
        yield f"is gone with its namespace: {row.target} has ended or was restarted"
        return
    try:
        with nl.RouteSocket(space) as netlink:
            found = dev.devices(netlink)
            held = row.far in found and is_held(netlink, found[row.far].index)
    except HeddleError:
        yield f"is gone with its namespace: {row.target} has ended or was restarted"
        return
    if held and not owners.working_on(lab.name):
        yield "is held: a `record` was killed, and nothing of the device reaches the fabric"
    device, far = found.get(row.device), found.get(row.far)
    if device is None or device.index != row.index:
        other = next((each.name for each in found.values() if each.index == row.index), "")
        yield f"was renamed to {other}" if other else f"is gone from {row.target}: it was removed or moved"
    elif far is None:
        yield f"has lost its wire {row.far}: that was removed or moved"
    else:
        yield from _differences(row, port, device, far)


def _differences(row: Attachment, port: Port, device: dev.Device, far: dev.Device) -> Iterator[str]:
    tap = device.kind == dev.TAP
    if not device.up or not far.up:
        yield f"is down ({device.name if not device.up else far.name})"
    elif not device.carrier and not tap:  # a TAP has none until a program opens it
        yield "has no carrier: its other end is down"
    if device.mtu != port.mtu:
        yield f"has the MTU {device.mtu}, and the port has {port.mtu}"
    if not tap and row.address not in device.addresses:
        yield f"has lost the address {row.address}"
    if row.before is not None and not (device.clsact and far.clsact):
        yield "has lost its programs (clsact): nothing of it reaches the fabric"


ATTACHED = FactKind(find, "attached", ("failed-check",))


def check(subject: Subject) -> Found:
    """Devices of users are there, up, and as they were attached."""
    if not (rows := attached.read(subject.lab.dir)):
        raise NothingError("no port is attached to a device of a user")
    return f"{many(len(rows), 'port')} attached to devices of users", []
