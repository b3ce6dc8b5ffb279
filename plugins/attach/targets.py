"""What the user attaches a port to: a namespace, a device, a TAP or a container; as typed, and as it is here.

In:  a kind with a name. Out: AttachTarget, or a Problem with the reason why it cannot be attached.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem, did_you_mean, trouble
from heddle.base.userfiles import caller
from heddle.host.engine.docker import docker
from heddle.kernel.namespace import NETNS_DIR, inside
from heddle_plugins.attach.devices import TAP, Device, identity

KINDS: Final[Mapping[str, str]] = {
    "netns": "a namespace, by its name or by the ID of a process in it, which gets a device",
    "netdev": "a device of this namespace: veth, dummy, macvlan, TAP",
    "tap": "a TAP for QEMU, which Heddle makes unless there is one of that name",
    "container": "a container of this machine's Docker, which gets a device",
}
HERE: Final = Path("/proc/thread-self/ns/net")
# Devices whose frames a program at tc can take over. A NIC of this machine, a bridge or a bond carries its own traffic.
_KINDS_OF_DEVICES: Final = ("veth", "dummy", "macvlan", "ipvlan", "ifb", "vlan", TAP)
_NAME: Final = re.compile(r"[^\s/:]{1,15}")
_LAB: Final = "heddle-"
_TUNSETIFF, _TUNSETPERSIST, _TUNSETOWNER = 0x400454CA, 0x400454CB, 0x400454CC
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000


@dataclass(frozen=True, slots=True)
class AttachTarget:
    """Where a port leads. name: as typed, or of the TAP that is made. space: the namespace. device: an existing one."""

    kind: str
    name: str
    space: Path
    identity: tuple[int, int]
    device: Device | None = None

    @property
    def is_tap(self) -> bool:
        """Whether the endpoint is the program that has opened the device, not the kernel of the namespace."""
        return self.kind == "tap" or (self.device is not None and self.device.kind == TAP)


def find(kind: str, name: str, here: Mapping[str, Device]) -> AttachTarget | Problem:
    """The target. here: the devices of this namespace. A name of a TAP that does not exist yet is fine."""
    if kind == "netns":
        return _namespace(kind, name, _path_of(name))
    if kind == "container":
        return _container(name)
    if not _NAME.fullmatch(name):
        return Problem("", f"--{kind} {name}", "is not a name of a device", "use 1 to 15 characters")
    own = identity(HERE)
    device = here.get(name)
    if own is None or (device is None and kind == "netdev"):
        return Problem("", f"--netdev {name}", "is not a device of this namespace", did_you_mean(name, here))
    if device is not None and (why := _unfit(device, kind)):
        return Problem("", f"--{kind} {name}", *why)
    return AttachTarget(kind, name, HERE, own, device)


def _path_of(name: str) -> Path:
    named = NETNS_DIR / name
    return Path(f"/proc/{name}/ns/net") if name.isdigit() and not named.exists() else named


def _namespace(kind: str, name: str, space: Path) -> AttachTarget | Problem:
    found, what = identity(space), f"--{kind} {name}"
    if "/" in name or not name or found is None:
        names = [each.name for each in NETNS_DIR.glob("*")] if NETNS_DIR.is_dir() else []
        return Problem("", what, "is neither a namespace nor a process of this machine", did_you_mean(name, names))
    if found in {identity(each) for each in NETNS_DIR.glob(f"{_LAB}*")}:
        return Problem("", what, "is a node of a lab", "use a namespace of your own: ip netns add NAME")
    return AttachTarget(kind, name, space, found)


def _container(name: str) -> AttachTarget | Problem:
    what = f"--container {name}"
    try:
        done = docker(["inspect", "--type", "container", "--format", "{{.State.Pid}}", "--", name], check=False)
    except MachineError as error:
        return error.problems[0]
    if done.code:
        return Problem("", what, "is not a container of this machine's Docker", "docker ps --all lists them")
    pid = done.out.strip()
    if not pid.isdigit() or pid == "0":
        return Problem("", what, "does not run", f"docker start {name}")
    return _namespace("container", name, Path(f"/proc/{pid}/ns/net"))


def _unfit(device: Device, kind: str) -> tuple[str, str] | None:
    """Why the device cannot be attached, and a hint."""
    if kind == "tap" and device.kind != TAP:
        return f"is a {device.kind or 'NIC'}, not a TAP", "use another name, or --netdev"
    if device.kind not in _KINDS_OF_DEVICES:
        what = f"a {device.kind}" if device.kind else "a NIC of this machine"
        return f"is {what}, which carries other traffic", "make a veth, a TAP or a macvlan of your own, and attach that"
    if device.master:
        return "belongs to a bridge or a bond", f"ip link set {device.name} nomaster"
    if device.clsact:
        return "has programs of its own (clsact)", f"tc qdisc del dev {device.name} clsact, or use another device"
    if any(each in ("0.0.0.0/0", "::/0") for each in device.routes):
        return "has the default route of this namespace", "use another device"
    return None


def spaces(path: str, wanted: tuple[int, int]) -> Iterator[Path]:
    """Paths of the namespace with these numbers: the recorded one first, for that may be gone."""
    processes = (Path("/proc", each.name, "ns/net") for each in os.scandir("/proc") if each.name.isdigit())
    for each in (Path(path), HERE, *(NETNS_DIR.glob("*") if NETNS_DIR.is_dir() else ()), *processes):
        if identity(each) == wanted:
            yield each


def make_tap(name: str, space: Path) -> None:
    """Make a TAP that stays, for the user who called sudo. MachineError where the kernel refuses."""
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    try:
        with inside(space):
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
                if (user := caller()) is not None:
                    fcntl.ioctl(fd, _TUNSETOWNER, user.pw_uid)
                fcntl.ioctl(fd, _TUNSETPERSIST, 1)
            finally:
                os.close(fd)
    except OSError as error:
        raise trouble(error, f"TAP {name}") from None
