"""Attach ports of hosts to devices of users, and restore the devices.

In:  a running lab, ports, targets. Out: Attachments, recorded before the first change.

A veth leads from the namespace of the host into that of the user. `edge` sends what comes out of it by the host's
port; `nic` at that port passes what the fabric delivers on to it. In a namespace or a container the far end is the
user's device. Beside a device that stays where it is, two programs connect the far end to it: to its egress and
ingress, or the other way round for a TAP, whose endpoint is the program that has opened it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from errno import EEXIST
from functools import cache
from pathlib import Path
from typing import Final

from heddle.base import owners
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, Problems, did_you_mean
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Port
from heddle.host import delivery
from heddle.kernel import inorder
from heddle.kernel import netlink as nl
from heddle.kernel.libbpf import Object
from heddle.lab import attached
from heddle.lab.attached import Attachment, Before
from heddle.lab.lab import Lab
from heddle.switch.queues.classes import port_ids
from heddle_plugins.attach import devices as dev
from heddle_plugins.attach.targets import HERE, AttachTarget, find, make_tap, spaces
from heddle_plugins.attach.wires import WireMaps

_INNER: Final = "wire-"  # and the port: the end in the namespace of the host
ELSEWHERE: Final = ("a device of this machine cannot be attached there", "./inv up FABRIC brings up a lab here")
_METRIC: Final = 4000  # and the number of the port: several ports of a lab can be in one namespace


def attach(lab: Lab, words: Sequence[str], kind: str, names: Sequence[str]) -> list[Attachment]:
    """Attach these ports. words: `host1` (its first port) or `host1:eth2`. names: of the targets, one for each; of TAPs
    they may be empty.

    InputError with everything that is wrong before a change; MachineError where the kernel refuses: then all is undone.
    """
    lab.require_here(*ELSEWHERE)
    with owners.lock(lab.name, work="attach"):
        return attach_locked(lab, words, kind, names)


def attach_locked(lab: Lab, words: Sequence[str], kind: str, names: Sequence[str]) -> list[Attachment]:
    """The same for a caller that holds the lab's lock."""
    ports = [port_of(lab.fabric, word) for word in words]
    _drop_broken(lab, [port.ref for port in ports])
    rows, targets = _planned(lab, ports, kind, names)
    others = attached.read(lab.dir)
    attached.write(lab.dir, [*others, *rows])
    try:
        with WireMaps(lab.name) as wires, wires.programs() as programs:
            made = [
                _Wiring(lab, wires, programs, port, target).make(row)
                for port, target, row in zip(ports, targets, rows, strict=True)
            ]
    except BaseException:
        _undo(lab, rows)
        attached.write(lab.dir, others)
        raise
    attached.write(lab.dir, [*others, *made])
    return made


def detach(lab: Lab, words: Sequence[str]) -> list[Attachment]:
    """Restore the devices of these ports or hosts; of all without words. InputError for one that is not attached."""
    with owners.lock(lab.name, work="detach"):
        rows = attached.read(lab.dir)
        chosen = [row for row in rows if not words or {row.host, row.ref} & {*words}]
        refs = [*{row.host for row in rows}, *(row.ref for row in rows)]
        lost = [word for word in words if word not in refs]
        if lost or not rows:
            what, hint = (lost[0] if lost else lab.name), did_you_mean(lost[0], refs) if lost and refs else ""
            why = "is not attached" if lost else "has no port that is attached"
            raise InputError(Problem("", what, why, hint or "./inv status lists what is attached"))
        _undo(lab, chosen)
        attached.write(lab.dir, [row for row in rows if row not in chosen])
        return chosen


def _drop_broken(lab: Lab, refs: Sequence[str]) -> None:
    """Forget attachments of these ports whose namespace or device is gone, as after the restart of a container."""
    rows = attached.read(lab.dir)
    gone = [row for row in rows if row.ref in refs and far_device(row) is None]
    if gone:
        _undo(lab, gone)
        attached.write(lab.dir, [row for row in rows if row not in gone])


def far_device(row: Attachment) -> dev.Device | None:
    """The far end of the wire; None where it is gone."""
    for space in spaces(row.space, row.identity):
        with suppress(HeddleError), nl.RouteSocket(space) as netlink:
            return dev.devices(netlink).get(row.far)
    return None


def port_of(fabric: Fabric, word: str) -> Port:
    """The port of `host1:eth2`, or the first one of `host1`; InputError for another word."""
    name, _, port = word.partition(":")
    hosts = [node.name for node in fabric.hosts]
    if name not in hosts:
        raise InputError(Problem("", word, "is not a host", did_you_mean(name, hosts)))
    ports = fabric.by_name[name].ports
    found = [each for each in ports if each.name == (port or ports[0].name)]
    if not found:
        raise InputError(Problem("", word, "is not a port", did_you_mean(port, [each.name for each in ports])))
    return found[0]


def _planned(
    lab: Lab, ports: Sequence[Port], kind: str, names: Sequence[str]
) -> tuple[list[Attachment], list[AttachTarget]]:
    """What will be attached, before any change. InputError with all that is wrong."""
    problems, rows, targets = Problems(), list[Attachment](), list[AttachTarget]()
    taken = {row.ref: row for row in attached.read(lab.dir)}
    used = {(row.identity, row.device) for row in taken.values()}
    with nl.RouteSocket(HERE) as netlink:
        here = dev.devices(netlink)
    if names and len(names) != len(ports):
        why = f"names {len(names)} for {len(ports)} ports"
        raise InputError(Problem("", f"--{kind} {','.join(names)}", why, "name one for each, with commas"))
    for at, port in enumerate(ports):
        if port.ref in taken or port in ports[:at]:
            why = taken[port.ref].text.partition(" ")[2] if port.ref in taken else "is named twice"
            problems.add(where="", what=port.ref, why=why, hint=f"run ./inv detach {port.ref} first")
            continue
        own = dev.device_name(f"hd-{port.node}" if port == _first(lab.fabric, port) else f"{port.name}-{port.node}")
        target = find(kind, names[at] if names else own, here)
        if isinstance(target, Problem):
            problems.found.append(target)
            continue
        row = _row(lab.fabric, port, target, own)
        problems.found += _clashes(row, target, port, used)
        used.add((row.identity, row.device))
        rows.append(row)
        targets.append(target)
    problems.raise_if_any()
    return rows, targets


def _first(fabric: Fabric, port: Port) -> Port:
    return fabric.by_name[port.node].ports[0]


def _row(fabric: Fabric, port: Port, target: AttachTarget, own: str) -> Attachment:
    device, beside = target.device, target.kind in ("netdev", "tap")
    before = None if device is None else Before(device.mtu, device.up, device.addresses)
    name = target.name if beside else own
    return Attachment(
        port.node, port.name, target.kind, target.name, str(target.space).replace("thread-self", "self"),
        target.identity, name, f"w{port_ids(fabric)[port.node, port.name]}-{port.node}"[:15] if beside else name,
        f"{_INNER}{port.name}", str(port.address), 0 if device is None else device.index, before,
        () if target.is_tap else tuple(routes_of(fabric, port)),
    )  # fmt: skip


def routes_of(fabric: Fabric, port: Port) -> Iterator[str]:
    """The routes of a port to the rest of its network: `PREFIX via GATEWAY metric N src ADDRESS`."""
    peer = fabric.by_name[port.peer_node].port(port.peer_port)
    if port.address is None or peer.address is None:
        return
    part = fabric.part_of.get(port.peer_node)
    apart = len({fabric.part_of.get(node.name) for node in fabric.edges}) > 1
    pool = fabric.policy.of(port.network).pool
    own = [node.prefix for node in fabric.edges if fabric.part_of.get(node.name) == part and node.prefix is not None]
    for prefix in own if apart else [pool]:
        metric = _METRIC + port_ids(fabric)[port.node, port.name]
        yield f"{prefix} via {peer.address.ip} metric {metric} src {port.address.ip}"


def _clashes(
    row: Attachment, target: AttachTarget, port: Port, used: set[tuple[tuple[int, int], str]]
) -> Iterator[Problem]:
    """What is in the way in the namespace of the target."""
    what = f"--{row.kind} {row.name}"
    if (row.identity, row.device) in used:
        yield Problem("", what, f"is attached already as {row.device}", "run ./inv detach first, or use another one")
        return
    try:
        with nl.RouteSocket(target.space) as netlink:
            found = dev.devices(netlink)
    except HeddleError as error:
        yield from error.problems
        return
    for name in dict.fromkeys([row.far, *([row.device] if target.device is None else [])]):
        if name in found:
            yield Problem("", what, f"has a device {name} already", "rename or remove that device")
    address = str(port.address.ip) if port.address is not None else ""
    for each in found.values() if not target.is_tap else ():
        if any(text.partition("/")[0] == address for text in each.addresses):
            yield Problem("", what, f"has the address {address} of {port.ref} already, on {each.name}", "remove it")


class _Wiring:
    """Makes one attachment, in an order in which no frame passes before all of it is there."""

    def __init__(self, lab: Lab, wires: WireMaps, programs: Object, port: Port, target: AttachTarget) -> None:
        self._lab, self._wires, self._port, self._target = lab, wires, port, target
        self._number = port_ids(lab.fabric)[port.node, port.name]
        self._fd: Callable[[str], int] = cache(lambda name: programs.program(name).fd)

    def make(self, row: Attachment) -> Attachment:
        """All of it; returns the row with the interface index of the device."""
        target, port, netns = self._target, self._port, self._lab.handle(self._port.node).netns
        beside = row.far != row.device
        if row.kind == "tap" and target.device is None:
            make_tap(row.device, target.space)
        mac = "" if beside else port.mac
        with nl.RouteSocket(netns) as host, nl.RouteSocket(target.space) as user, opened(target.space) as fd:
            dev.do(host, port.node, [dev.veth(row.inner, row.far, fd, port.mtu, mac)], _why)
            ends = {each.name: each.ifindex for each in nl.interfaces(host)}
            theirs = {each.name: each.ifindex for each in nl.interfaces(user)}
            for space, name in ((netns, row.inner), (target.space, row.far)):
                inorder.apply(space, {name: self._number}, delivery.chosen().delivery, inorder.cpus_here())
            inner, far, device = ends[row.inner], theirs[row.far], theirs[row.device]
            self._wires.prepare(self._number, port, ends[port.name], inner)
            edge = dev.program(inner, "ingress", "edge", self._fd("edge"), self._number)
            dev.do(host, port.node, [dev.silent(inner), dev.hook(inner), edge, dev.set_up(inner)])
            dev.do(user, f"{row.kind} {row.name}", self._of_user(row, far, device, beside=beside), _why)
        self._wires.open(self._number)
        return replace(row, index=device)

    def _of_user(self, row: Attachment, far: int, device: int, *, beside: bool) -> list[dev.LinkStep]:
        tap = self._target.is_tap
        steps = [dev.with_mtu(device, self._port.mtu)]
        if beside:
            towards, side = ("to_egress", "ingress") if tap else ("to_ingress", "egress")
            steps += [dev.hook(far), dev.program(far, "ingress", towards, self._fd(towards), device)]
            steps += [dev.hook(device), dev.program(device, side, "to_egress", self._fd("to_egress"), far)]
            steps += [dev.silent(far), dev.set_up(far)]
        steps += [] if tap else [dev.address(device, row.address)]
        return [*steps, dev.set_up(device), *(dev.route(device, each) for each in row.routes)]


@contextmanager
def opened(space: Path) -> Iterator[int]:
    """A descriptor of a namespace, for a with block."""
    fd = os.open(space, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _why(code: int) -> str:
    return "it is there already: remove it, or use another namespace" if code == EEXIST else ""


def _undo(lab: Lab, rows: Sequence[Attachment]) -> None:
    """Close the wires, then restore the devices."""
    numbers = port_ids(lab.fabric)
    with suppress(MachineError), WireMaps(lab.name) as wires:
        for row in rows:
            if (row.host, row.port) in numbers:
                wires.close(numbers[row.host, row.port])
    restore(rows)
    for row in rows:  # a device that was moved to another namespace goes with the end that is here
        with suppress(HeddleError), nl.RouteSocket(lab.handle(row.host).netns) as netlink:
            dev.undo(netlink, [dev.removed(row.inner)])


def restore(rows: Sequence[Attachment]) -> None:
    """Restore devices, whatever part of an attachment is there; what is gone is left out."""
    for row in rows:
        for space in spaces(row.space, row.identity):
            with suppress(HeddleError), nl.RouteSocket(space) as netlink:
                _restore(netlink, row)
                break


def _restore(netlink: nl.RouteSocket, row: Attachment) -> None:
    found = dev.devices(netlink)
    steps, device = list[dev.LinkStep](), found.get(row.device)
    if row.before is not None and device is not None and row.index in (0, device.index):
        steps += [dev.unhooked(device.index)] if device.clsact else []
        steps += [dev.route(device.index, each, add=False) for each in row.routes]
        steps += [dev.address(device.index, each, add=False) for each in device.addresses if each == row.address
                  and each not in row.before.addresses]  # fmt: skip
        steps += [dev.set_up(device.index, up=False)] if device.up and not row.before.up else []
        steps += [dev.with_mtu(device.index, row.before.mtu)] if device.mtu != row.before.mtu else []
        steps += [dev.address(device.index, each) for each in row.before.addresses if each not in device.addresses]
    far = found.get(row.far)
    steps += [dev.removed(row.far)] if far is not None and far.kind == "veth" else []
    if row.kind == "tap" and row.before is None and device is not None and device.kind == dev.TAP:
        steps.append(dev.removed(row.device))
    dev.undo(netlink, steps)
