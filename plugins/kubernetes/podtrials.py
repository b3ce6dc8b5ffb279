"""Try in a pod what a shard needs: `python -m heddle_plugins.kubernetes.podtrials`. A probe pod runs it.

    check PORT [ADDRESS]   prints rows of checks as JSON; PORT: of tunnels; ADDRESS: a pod that answers datagrams
    answer PORT            answers datagrams until its standard input ends; it prints a line when it is ready

The last trial is a whole fabric, preset tiny: namespaces, links, queues, BPF programs, FRR and its routes.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from statistics import median
from typing import Final

from heddle.base.problems import HeddleError, first_lines
from heddle.base.process import run
from heddle.base.resources import HERE
from heddle.host.doctor import Check, examine
from heddle.switch.links.cuts import TUNNEL_PORT
from heddle_plugins.kubernetes import podinit

_ALSO: Final = frozenset({"fast path", "netem"})  # optional checks of doctor that say something about a node
_NOT: Final = frozenset({"python", "root", "sysctls", "bpffs", "memory"})  # of an image; tried by podinit; of the probe
_LAB: Final = "probe"
_LINK: Final = "heddleprobe"
_WAIT_S: Final = 1.0
_SENT: Final = 20
_LARGE: Final = 4200  # bytes: a frame of RoCE with 4 KB, as it crosses a cut
_HEADERS: Final = 28  # of IPv4 and UDP
_VXLAN: Final = b"\x08\0\0\0\0\0\1\0"  # RFC 7348: a network may look into it
_BLOCKED: Final = "allow UDP between these pods: look at NetworkPolicies, and at the cluster's network plugin"
_OTHERS: Final = (TUNNEL_PORT, 24789, 4790, 8472, 4789)  # UDP ports that may pass where the one of tunnels does not
_CAPABILITIES: Final = (
    "allow the pods NET_ADMIN, NET_RAW and SYS_ADMIN, and no AppArmor or SELinux profile that forbids it"
)
_KERNEL: Final = "use nodes with a full kernel (docs/kernels.md)"


def checks(port: int, peer: str = "") -> Iterator[Check]:
    """All rows. port: of tunnels. peer: the address of the pod that answers; empty: there is none."""
    failed = podinit.prepare()
    for name in podinit.STEPS:
        yield Check(name, name not in failed, failed.get(name, "prepared in the pod"), _CAPABILITIES)
    yield from (each for each in examine().checks if each.name not in _NOT and (each.required or each.name in _ALSO))
    yield _tried("ip netns", "named network namespaces", _CAPABILITIES, _netns)
    yield _tried("tunnel", "VXLAN with BPF's tunnel keys (external)", _KERNEL, _tunnel)
    if peer:
        yield _network(peer, port)
    yield _fabric()


def _tried(name: str, what: str, fix: str, trial: Callable[[], None]) -> Check:
    try:
        trial()
    except HeddleError as error:
        return Check(name, False, f"{what}: {'; '.join(first_lines(error.problems))}", fix)
    return Check(name, True, what)


def _netns() -> None:
    run(["ip", "netns", "add", _LINK])
    try:
        run(["ip", "netns", "exec", _LINK, "ip", "link", "set", "lo", "up"])
    finally:
        run(["ip", "netns", "delete", _LINK], check=False)


def _tunnel() -> None:
    run(["ip", "link", "add", _LINK, "type", "vxlan", "external", "dstport", str(TUNNEL_PORT)])
    run(["ip", "link", "delete", _LINK])


def _fabric() -> Check:
    begun = time.monotonic()
    done = run([*HERE.command(), "up", "tiny", "--name", _LAB, "--format", "json"], check=False, timeout=180)
    seconds = time.monotonic() - begun
    run([*HERE.command(), "down", _LAB], check=False, timeout=60)
    if done.code == 0:
        return Check("fabric", True, f"preset tiny is up in {seconds:.1f} s, with FRR, queues and BPF programs")
    with suppress(ValueError, KeyError, IndexError, TypeError):
        first = json.loads(done.out)["error"]["problems"][0]
        return Check("fabric", False, f"{first['what']} {first['why']}", first["hint"])
    return Check("fabric", False, f"preset tiny does not come up: {done.reason}")


def _network(peer: str, port: int) -> Check:
    """Datagrams of tunnels to the other pod, small ones and fragmented ones; on other ports if this one is blocked."""
    route = json.loads(run(["ip", "-json", "route", "get", peer]).out)[0]
    mtu = int(json.loads(run(["ip", "-json", "link", "show", "dev", route["dev"]]).out)[0]["mtu"])
    small, round_trips = _exchanged(peer, port, 64)
    large, _ = _exchanged(peer, port, _LARGE)
    if small < _SENT or large < _SENT:
        many = f"{small} of {_SENT} small datagrams and {large} of {_SENT} of {_LARGE} bytes are answered"
        found = [each for each in _OTHERS if each != port and not small and _exchanged(peer, each, 64)[0] == _SENT]
        fix = f"use --tunnel-port {found[0]}: UDP ports {', '.join(map(str, found))} pass" if found else _BLOCKED
        return Check("network", False, f"{many} by the pod at {peer}, UDP port {port}", fix)
    detail = f"UDP port {port} passes, MTU {mtu}, round trip {median(round_trips) * 1e3:.2f} ms to {peer}"
    return Check("network", True, detail + (f"; frames of {_LARGE} bytes are fragmented" if mtu < _LARGE else ""))


def _exchanged(peer: str, port: int, size: int) -> tuple[int, list[float]]:
    """How many datagrams are answered, and the round trips in seconds. size: bytes, with headers."""
    seconds: list[float] = []
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender, suppress(OSError):
        sender.settimeout(_WAIT_S)
        sender.connect((peer, port))
        for number in range(_SENT):
            begun = time.monotonic()
            sender.send(_VXLAN + number.to_bytes(4, "big") + bytes(size - _HEADERS - len(_VXLAN) - 4))
            while int.from_bytes(sender.recv(size)[len(_VXLAN) :][:4], "big") != number:
                pass
            seconds.append(time.monotonic() - begun)
    return len(seconds), seconds


def answer(port: int) -> int:
    """Send each datagram back, until standard input ends. port: of tunnels; the other ones are answered, too."""
    with ExitStack() as stack:
        for each in {port, *_OTHERS}:
            receiver = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))  # IPv4 as well
            receiver.bind(("::", each))
            threading.Thread(target=_echo, args=(receiver,), daemon=True).start()
        print("ready", flush=True)
        sys.stdin.buffer.read()
    return 0


def _echo(receiver: socket.socket) -> None:
    with suppress(OSError):
        while True:
            data, sender = receiver.recvfrom(1 << 16)
            receiver.sendto(data, sender)


def main(words: list[str]) -> int:
    """See above."""
    if words[:1] == ["answer"]:
        return answer(int(words[1]))
    print(json.dumps([asdict(each) for each in checks(int(words[1]), *words[2:3])]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
