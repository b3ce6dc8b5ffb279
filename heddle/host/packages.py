"""System packages: which are missing, their names, and installation through apt.

In:  names of PARTS (those that a verb needs).
Out: nothing, or MachineError with the command to run. A part is present when its file is: dpkg is not asked, so FRR
built from source counts, too.
Installing frr must not disturb this machine: Debian's package starts zebra at once, in the machine's own namespace.
Where systemd runs, the unit is masked while apt works (only in /run, so a reboot undoes it after an error), and then
disabled. An frr that was installed before is never changed. The same applies to sshd, which only tests need.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
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


FRR_DIRS: Final = (Path("/usr/lib/frr"), Path("/usr/libexec/frr"))
LIBBPF: Final = ("libbpf.so.1", "libbpf.so.0")
_RXE_DRIVER: Final = Path("/etc/libibverbs.d/rxe.driver")


@dataclass(frozen=True, slots=True)
class Need:
    """A part of the system that Heddle uses: how to detect it, and the Debian packages that contain it.

    packages: the first that apt knows is taken (libbpf1 was libbpf0 before Debian 12 and Ubuntu 22.10).
    programs: those that Heddle or its tests start.
    optional: Heddle works without it; it is installed together with required parts.
    """

    name: str
    why: str
    packages: tuple[str, ...]
    present: Callable[[], bool]
    programs: tuple[str, ...] = ()
    optional: bool = False


def frr_daemon(name: str) -> Path | None:
    """Where zebra or bgpd is, or None. Debian keeps them out of PATH."""
    for directory in FRR_DIRS:
        if os.access(directory / name, os.X_OK):
            return directory / name
    return None


def _library(*names: str) -> str | None:
    """The first of these names under which a shared library can be loaded, or None."""
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def libbpf() -> str | None:
    """The name under which the system's libbpf can be loaded, or None."""
    return _library(*LIBBPF)


def libdeflate() -> bool:
    """Whether the system's libdeflate can be loaded."""
    return _library("libdeflate.so.0") is not None


def _program(name: str) -> Callable[[], bool]:
    # sbin is not in every user's PATH.
    return lambda: find_program(name, "/usr/sbin", "/sbin") is not None


def _tool(name: str, why: str, *programs: str, packages: tuple[str, ...] = (), optional: bool = False) -> Need:
    """A part that is present when these programs are; by default the program with the name of the part."""
    needed = programs or (name,)
    return Need(name, why, packages or (name,), lambda: all(_program(each)() for each in needed), needed, optional)


def _frr() -> bool:
    return all(frr_daemon(d) for d in ("zebra", "bgpd")) and _program("vtysh")()


_ALL: Final = (
    Need("frr", "the switches' control plane: zebra and bgpd", ("frr",), _frr, ("zebra", "bgpd", "vtysh")),
    _tool("iproute2", "namespaces, links and queues: ip and tc", "ip", "tc", "ss"),
    Need("libbpf", "loads the hashing and counting programs", ("libbpf1", "libbpf0"), lambda: libbpf() is not None),
    Need("libdeflate", "a faster CRC for the NICs than zlib's", ("libdeflate0",), libdeflate, optional=True),
    _tool("util-linux", "enters namespaces: nsenter and setpriv", "nsenter", "setpriv", "unshare"),
    _tool("mount", "tests mount file systems", "mount", "umount"),
    _tool("procps", "tests look at processes and sysctls", "ps", "sysctl"),
    _tool("iputils-ping", "tests send pings", "ping"),
    _tool("traceroute", "shows a path hop by hop, from inside a host", optional=True),
    _tool("iperf3", "sends TCP and UDP between hosts by hand", optional=True),
    _tool("sudo", "tests run the main job as an ordinary user"),
    _tool("git", "tests of --on make a checkout"),
    _tool("ethtool", "tests look at offloads with it"),
    _tool("tcpdump", "captures the packets of a port"),
    _tool("tshark", "tests compare our packets with its dissection", "tshark", "dumpcap"),
    _tool("openssh-server", "tests of --on log in to it", "sshd"),
    _tool("openssh-client", "tests of --on make keys for it", "ssh-keygen", "ssh-agent", "ssh-add"),
    _tool("clang", "rebuilds the BPF programs and the NICs' fast path", "clang", "readelf"),
    _tool("gcc", "builds the NICs' fast path with checks of its memory, for tests"),
    _tool("lld", "links the NICs' fast path for two kinds of processor", "ld.lld"),
    _tool("qemu-user", "tests run the NICs' fast path for aarch64 in it", "qemu-aarch64"),
    _tool("chromium", "tests look at pages in it"),
    _tool("chromium-driver", "tests steer Chromium with it", "chromedriver"),
    _tool("mmdebstrap", "creates the system of images and of the VM"),
    Need(
        "debian-archive-keyring",
        "Debian's keys, for the base image",
        ("debian-archive-keyring",),
        Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists,
    ),
    _tool("qemu", "runs the VM of --on vm", "qemu-system-x86_64", packages=("qemu-system-x86",)),
    _tool("e2fsprogs", "makes the disk of the VM", "mke2fs"),
    _tool("uidmap", "makes the system of the VM without root", "newuidmap"),
    Need("libibverbs", "verbs, for --transport rxe", ("libibverbs1",), lambda: bool(_library("libibverbs.so.1"))),
    Need("ibverbs-providers", "libibverbs for soft-RoCE", ("ibverbs-providers",), _RXE_DRIVER.exists),
    Need("perftest", "programs for ./inv launch", ("perftest",), _program("ib_write_bw")),
    _tool("docker", "the container engine: dockerd", "dockerd", packages=("docker.io",)),
    # A separate package from Debian 13 on; before, and on Ubuntu, docker.io contains it.
    _tool("docker-cli", "the container engine's command", "docker", packages=("docker-cli", "docker.io")),
    Need(
        "golang",
        "builds containerlab where its release does not run, and the Kubernetes of tests",
        ("golang-go",),
        lambda: find_program("go", "/usr/local/go/bin", "/usr/lib/go/bin") is not None,
        ("go",),
    ),
    _tool("etcd", "the database of the Kubernetes of tests", packages=("etcd-server",)),
    _tool("containerd", "runs the pods of the Kubernetes of tests", "containerd", "ctr"),
    _tool("runc", "starts the containers of these pods"),
    Need(
        "cni",
        "gives these pods their network",
        ("containernetworking-plugins",),
        lambda: all(os.access(f"/usr/lib/cni/{name}", os.X_OK) for name in ("bridge", "host-local", "loopback")),
    ),
    Need("libbpf-dev", "headers for the BPF programs", ("libbpf-dev",), Path("/usr/include/bpf/bpf_helpers.h").exists),
)
PARTS: Final = {p.name: p for p in _ALL}
# What a running lab needs of this machine; FRR too, where its daemons are the machine's; and what every test of a suite
# needs. What only some tests need is in TEST_EXTRAS: those have the mark `needs`.
LAB: Final = ("iproute2", "libbpf", "libdeflate", "util-linux")
FABRIC: Final = ("frr", *LAB)
# What people type first in a host: optional parts of what labs need.
HOST_TOOLS: Final = ("iputils-ping", "traceroute", "iperf3", "tcpdump")
CAPTURE: Final = ("tcpdump", "util-linux")
UNIT_TESTS: Final = ("libbpf", "util-linux")
TEST_EXTRAS: Final = (
    "e2fsprogs", "ethtool", "gcc", "git", "iputils-ping", "mmdebstrap", "mount", "openssh-client", "openssh-server",
    "procps", "sudo", "tcpdump", "tshark", "uidmap",
)  # fmt: skip
BROWSER: Final = ("chromium", "chromium-driver")
BUILD: Final = ("clang", "libbpf-dev", "lld", "qemu-user")
VERBS: Final = ("libibverbs", "ibverbs-providers", "perftest")
ENGINE: Final = ("docker", "docker-cli")
GO: Final = ("golang",)
IMAGE: Final = ("mmdebstrap", "debian-archive-keyring")
VM: Final = ("qemu",)
VM_BUILD: Final = (*IMAGE, "e2fsprogs")
VM_BUILD_USER: Final = (*VM_BUILD, "uidmap")
KUBE: Final = ("etcd", "containerd", "runc", "cni", "openssh-client", "procps", "mount", *GO, *IMAGE)


def for_runtime(runtime: str) -> Sequence[str]:
    """The parts that labs of this runtime need. Containers and pods have their own FRR."""
    return {"containerlab": LAB, "kubernetes": ()}.get(runtime, FABRIC)


def missing(names: Sequence[str]) -> list[Need]:
    """The missing parts among `names`."""
    return [PARTS[n] for n in names if not PARTS[n].present()]


def absence(name: str, installs: str) -> Problem:
    """The problem of a missing part. installs: a line with --yes that installs it."""
    part = PARTS[name]
    sudo = "" if os.geteuid() == 0 else "sudo "
    hint = f"run {sudo}apt-get install --no-install-recommends {part.packages[0]}, or {installs}"
    return Problem("", part.packages[0], f"is not installed: it {part.why}", hint)


def part_of_program(program: str) -> Need | None:
    """The part of HOST_TOOLS that brings a program."""
    return next((PARTS[name] for name in HOST_TOOLS if program in PARTS[name].programs), None)


def ensure(
    names: Sequence[str],
    *,
    yes: bool = False,
    ask: Callable[[str], bool] = lambda _: False,
    say: Callable[[str], None] = lambda _: None,
    again: str = "run the same command again with --yes",
) -> None:
    """Return when all parts are present; install missing parts if that is allowed.

    Allowed means: `yes`, or CI=true in the environment, or `ask` returned True. MachineError names the missing parts
    and the command that installs them, if that is not allowed, not possible (no apt-get, no root), or did not help.
    """
    absent = missing(names)
    if all(part.optional for part in absent):
        return
    if tuple(names) in (FABRIC, LAB):
        absent += [replace(part, optional=True) for part in missing(HOST_TOOLS)]
    apt = shutil.which("apt-get")
    if apt is None:
        hint = "install it with the package manager of this system (the names are Debian's)"
        raise _missing(absent, hint)
    sudo = _sudo()
    words = _known(absent)
    line = shlex.join([*([] if os.geteuid() == 0 else ["sudo"]), "apt-get", "install", *words])
    for part in absent:
        say(f"missing: {part.packages[0]} ({part.why})")
    announced = _announced(words)
    say(announced)
    for name, service in SERVICES.items():
        if any(part.name == name for part in absent) and not service.pid_file.exists():
            say(f"{name} has a service of its own: it is neither started nor enabled, because {service.why}")
    if sudo is None or not allowed(", ".join(words), yes=yes, ask=ask, say=say):
        hint = f"{line}\nor let Heddle install it: {again}"
        raise _missing(absent, hint)
    _install(absent, [*sudo, "env", "DEBIAN_FRONTEND=noninteractive"], line, announced, say)


def allowed(what: str, *, yes: bool, ask: Callable[[str], bool], say: Callable[[str], None]) -> bool:
    """Whether `what` may be installed: `yes`, or CI=true in the environment, or `ask` returns True."""
    by = "--yes" if yes else "CI=true" if os.environ.get("CI", "").lower() in ("1", "true", "yes") else ""
    if by:
        say(f"{by} allows this without a question")
    return bool(by) or ask(f"Install {what} now?")


def _missing(absent: Sequence[Need], hint: str) -> MachineError:
    """The missing parts that are needed; the hint is for all of them, so it stands once, below the last one."""
    *others, last = [part for part in absent if not part.optional]
    found = [Problem("", part.packages[0], f"is missing: {part.why}") for part in others]
    return MachineError(*found, Problem("", last.packages[0], f"is missing: {last.why}", hint))


def _announced(words: Sequence[str]) -> str:
    """The packages that apt would install, with all dependencies, as a sentence. `apt-get -s` changes nothing."""
    argv = ["apt-get", "-s", "-q", "-y", "install", "--no-install-recommends", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    names = sorted({line.split()[1] for line in done.stdout.splitlines() if line.startswith("Inst ")})
    if done.returncode or not names:  # no package lists yet, as on a new machine
        return f"apt-get would install {', '.join(words)}, and all dependencies; they stay installed when labs are down"
    count = f"{len(names)} package{'' if len(names) == 1 else 's'}"
    return f"apt-get would install {count}, which stay installed when labs are down: {', '.join(names)}"


def _sudo() -> list[str] | None:
    """The words before a command that needs root; None when there is no sudo."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    return [sudo] if sudo else None


def _install(absent: Sequence[Need], before: list[str], line: str, announced: str, say: Callable[[str], None]) -> None:
    get = [*before, "apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
    words = _known(absent)
    names = [p.name for p in absent]
    served = [name for name in names if name in SERVICES]
    with quiet_services(before, served, say), no_starts(bool(served) or "docker" in names):
        say(f"installing {' '.join(words)}")
        ended = _apt([*get, "install", "--no-install-recommends", *words])
        if ended:
            # A new machine has no package lists, or old ones.
            say("running apt-get update, then trying again")
            _apt([*get, "update"])
            words = _known(absent)
            if (now := _announced(words)) != announced:
                say(now)
            ended = _apt([*get, "install", "--no-install-recommends", *words])
    still = [p for p in absent if not p.present() and not p.optional]
    if still:
        why = f"could not be installed (apt-get ended with {ended})" if ended else "is still missing"
        raise MachineError(
            *[Problem("", p.packages[0], why, f"see apt's messages above, or run: {line}") for p in still]
        )


def _apt(argv: list[str]) -> int:
    # apt's output goes to stderr: stdout is the verb's result. No program may ask questions.
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode


def _known(absent: Sequence[Need]) -> list[str]:
    """For each part, the first of its packages that apt knows, else the first; optional parts if apt knows them."""
    words = []
    for part in absent:
        if part.optional and not any(map(_has, part.packages)):
            continue  # not every distribution has it, and one unknown name would end the whole installation
        seen = (w for w in part.packages if len(part.packages) == 1 or _has(w))
        words.append(next(seen, part.packages[0]))
    return list(dict.fromkeys(words))  # one package may contain two parts


def _has(package: str) -> bool:
    done = subprocess.run(["apt-cache", "show", package], capture_output=True, check=False)
    return done.returncode == 0 and bool(done.stdout)
