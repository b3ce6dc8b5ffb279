"""Services that Debian's packages start by themselves: they stay off while Heddle installs the packages, and after it.

In:  the names of parts that are installed. Out: a machine on which none of their services was started.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.process import find_program
from heddle.host.engine.docker import SYSTEMD

POLICY: Final = Path("/usr/sbin/policy-rc.d")


@dataclass(frozen=True, slots=True)
class _Service:
    """A service that a Debian package starts: systemd's units, the init script, its pid file, and why it stays off."""

    units: tuple[str, ...]
    script: str
    pid_file: Path
    why: str


SERVICES: Final = {
    "containerd": _Service(
        ("containerd.service",),
        "/etc/init.d/containerd",
        Path("/run/containerd/containerd.sock"),
        "tests start their own, in namespaces",
    ),
    "etcd": _Service(
        ("etcd.service",), "/etc/init.d/etcd", Path("/run/etcd.pid"), "tests start their own, in namespaces"
    ),
    "frr": _Service(
        ("frr.service",),
        "/etc/init.d/frr",
        Path("/run/frr/zebra.pid"),
        "Heddle starts its daemons itself, a set for each switch",
    ),
    "openssh-server": _Service(
        ("ssh.service", "ssh.socket"),
        "/etc/init.d/ssh",
        Path("/run/sshd.pid"),
        "tests start their own sshd, on loopback",
    ),
}


@contextmanager
def quiet_services(before: list[str], parts: Sequence[str], say: Callable[[str], None]) -> Iterator[None]:
    """Keep the services of these parts from starting in the machine's own namespace while we install them."""
    systemd = SYSTEMD.is_dir()
    # A service that runs already belongs to the user.
    services = {name: SERVICES[name] for name in parts if not SERVICES[name].pid_file.exists()}

    def systemctl(service: _Service, *words: str) -> None:
        subprocess.run([*before, "systemctl", *words, *service.units], capture_output=True, check=False)

    if systemd:
        for service in services.values():
            systemctl(service, "mask", "--runtime")
    try:
        yield
    finally:
        for name, service in services.items():
            if systemd:
                systemctl(service, "unmask", "--runtime")
            # Also where neither runs: a package enables its service for the next start of the machine, in links of
            # systemd and of init scripts.
            for unit in service.units:  # each by itself: one that this release does not have must not keep the others
                if argv := _disabling(name, unit):
                    subprocess.run([*before, *argv], capture_output=True, check=False)
            if systemd:
                say(f"{name}'s own service stays off on this machine: {service.why}")
                continue
            if service.pid_file.exists():
                # Without systemd and without policy-rc.d the init script has started it.
                subprocess.run([*before, service.script, "stop"], capture_output=True, check=False)
                say(f"{name}'s own service was stopped: {service.why}")
            if find_program("update-rc.d", "/usr/sbin", "/sbin") and Path(service.script).exists():
                argv = [*before, "update-rc.d", Path(service.script).name, "disable"]
                subprocess.run(argv, capture_output=True, check=False)


def _disabling(package: str, unit: str) -> list[str]:
    """The command that removes the links which start a unit with the machine; empty where nothing has made any."""
    if find_program("systemctl"):
        return ["systemctl", "disable", unit]
    if find_program("deb-systemd-helper"):  # makes the links, also where systemd is not installed (yet)
        return ["env", f"DPKG_MAINTSCRIPT_PACKAGE={package}", "deb-systemd-helper", "disable", unit]
    return []


@contextmanager
def no_starts(wanted: bool) -> Iterator[None]:
    """Where systemd does not run, keep packages from starting their services while we install them.

    invoke-rc.d asks policy-rc.d, and 101 means no; an existing policy is not changed. Docker's engine
    would fail or change the firewall; where Heddle starts it itself, that is done otherwise (.engine/dockerd.py).
    """
    if not wanted or SYSTEMD.is_dir() or POLICY.exists() or os.geteuid() != 0:
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
