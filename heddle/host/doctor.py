"""Check what this machine can run, and how to fix what is missing.

In:  the machine. Out: Report, one Check for each capability. Nothing is changed: trials run in namespaces of a child
process and end with it (preflight.py). A check that raises an error counts as failed; there is no traceback.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from heddle.base import resources
from heddle.base.extras import EXTRAS, Extra
from heddle.base.problems import MachineError
from heddle.base.sysctls import SYSCTLS, WRITABLE, sysctls_read_only
from heddle.host import delivery, limits, packages, preflight
from heddle.host.engine import docker
from heddle.host.engine.docker import SETUP

APT: Final = "apt-get install"
_DEVICES: Final = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class Check:
    """One capability. A fabric needs all `required` ones; others add optional features."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """All checks, each after those that it depends on."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """True when every required check passed."""
        return all(c.ok for c in self.checks if c.required)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "checks": [asdict(c) for c in self.checks]}

    def text(self) -> str:
        """The verdict, what a fabric needs, and what only some features need."""
        absent = [c.name for c in self.checks if c.required and not c.ok]
        verdict = f"Missing on this machine: {', '.join(absent)}." if absent else "This machine can run fabrics."
        if packages.PARTS.keys() & absent:
            verdict += " ./inv setup fabric installs missing packages after you confirm."
        needed, optional = ([c for c in self.checks if c.required is required] for required in (True, False))
        apart = [("", "", ""), ("optional", "", "")] if optional else []
        return f"{verdict}\n\n{_table('needed', [*_rows(needed), *apart, *_rows(optional)])}"

    def table(self) -> str:
        """One row for each check, with the fix below each failed one."""
        return _table("check", _rows(self.checks))


def _table(heading: str, rows: Sequence[tuple[str, str, str]]) -> str:
    from heddle.base.tables import table

    return table((heading, "state", "details"), rows)


def _rows(checks: Iterable[Check]) -> list[tuple[str, str, str]]:
    rows = []
    for check in checks:
        state = "ok" if check.ok else "MISSING" if check.required else "no"
        rows.append((check.name, state, check.detail))
        if not check.ok and check.fix:
            rows.append(("", "", f"-> {check.fix}"))
    return rows


def examine(more: Mapping[str, Callable[[], Check]] | None = None) -> Report:
    """Run every check. Takes about a second; raises nothing.

    more: optional checks of rooms above this one, name -> check.
    """
    _probed.cache_clear()
    more = more or {}
    found = [_safely(name, check, required=name not in _OPTIONAL) for name, check in CHECKS.items()]
    return Report((*found, *(_safely(name, check, required=False) for name, check in more.items())))


def _safely(name: str, check: Callable[[], Check], *, required: bool) -> Check:
    try:
        return check()
    except Exception as error:
        return Check(name, False, f"could not be checked: {type(error).__name__}: {error}", required=required)


@cache
def _probed() -> Mapping[str, str]:
    return preflight.probe()


def _first_line(*argv: str) -> str:
    done = subprocess.run(list(argv), capture_output=True, text=True, timeout=60, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else ""


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _python() -> Check:
    return Check("python", sys.version_info >= (3, 11), f"{platform.python_version()} in {sys.prefix}")


def _root() -> Check:
    if os.geteuid() == 0:
        return Check("root", True, "running as root")
    if shutil.which("sudo"):
        return Check("root", True, "not root; verbs that need root use sudo")
    return Check("root", False, "not root, and there is no sudo", f"run Heddle as root, or {APT} sudo")


def _frr() -> Check:
    absent = [d for d in ("zebra", "bgpd") if packages.frr_daemon(d) is None]
    absent += [] if shutil.which("vtysh") else ["vtysh"]
    if absent:
        return Check("frr", False, f"no {' and no '.join(absent)}", f"{APT} frr")
    return Check("frr", True, _first_line(str(packages.frr_daemon("bgpd")), "-v"))


def _iproute2() -> Check:
    if packages.missing(["iproute2"]):
        return Check("iproute2", False, "no ip or no tc", f"{APT} iproute2")
    said = _first_line("ip", "-V")
    return Check("iproute2", True, said.removeprefix("ip utility, "))


def _libbpf() -> Check:
    found = packages.libbpf()
    return Check("libbpf", found is not None, found or "no libbpf.so", f"{APT} libbpf1 (libbpf0 on older systems)")


def _tool(name: str, part: str, *, required: bool) -> Check:
    absent = packages.missing([part])
    return Check(name, not absent, packages.PARTS[part].why, f"{APT} {packages.PARTS[part].packages[0]}", required)


def _host_tools() -> Check:
    """Usual tools for hosts: in namespaces, hosts use this machine's programs."""
    absent = packages.missing(packages.HOST_TOOLS)
    every = [program for name in packages.HOST_TOOLS for program in packages.PARTS[name].programs]
    none = [program for part in absent for program in part.programs]
    detail = f"no {' and no '.join(none)} for ./inv exec HOST" if none else f"{', '.join(every)} for ./inv exec HOST"
    fix = f"{APT} {' '.join(part.packages[0] for part in absent)}"
    return Check("host tools", not absent, detail, fix if absent else "", required=False)


def _kernel() -> Check:
    return Check("kernel", True, f"{platform.system()} {platform.release()} {platform.machine()}")


# The words of the shell and of the dynamic linker: nothing about the kernel. Rows iproute2 and libbpf have the fix.
_NOT_STARTED: Final = ("sh: ", "ip: error while loading", "tc: error while loading")


def _try(name: str, what: str, fix: str, *, required: bool = True) -> Check:
    """A check with the answer from the temporary namespace."""
    said = _probed().get(name, "was not tried")
    if said.startswith(_NOT_STARTED):
        return Check(name, False, f"{what}: not known, because ip or tc does not start", required=False)
    if said.endswith(preflight.READ_ONLY):  # the kernel has it
        fix = f"in a container: {WRITABLE}"
    return Check(name, said == "ok", what if said == "ok" else f"{what}: {said}", fix, required and _decides())


def _decides() -> bool:
    """Whether this process is root: missing rights of a user do not count, because verbs use sudo."""
    return os.geteuid() == 0


def _sysctls() -> Check:
    if sysctls_read_only():
        return Check("sysctls", False, f"{SYSCTLS} is read-only", f"in a container: {WRITABLE}", _decides())
    return Check("sysctls", True, f"{SYSCTLS} can be written")


def _bpf() -> Check:
    said = preflight.bpf_syscall()
    fix = "a container needs CAP_SYS_ADMIN, or CAP_BPF" if _decides() else "sudo ./inv doctor tries it as root"
    return Check("bpf", said == "ok", "bpf(2) creates maps" if said == "ok" else said, fix, _decides())


def _bpffs() -> Check:
    mounts = Path("/proc/mounts").read_text().splitlines()
    if any(line.split()[1:3] == ["/sys/fs/bpf", "bpf"] for line in mounts):
        return Check("bpffs", True, "mounted at /sys/fs/bpf")
    return _try("bpffs", "can be mounted", "mount -t bpf bpf /sys/fs/bpf")


def _limit(name: str, path: str, least: int, what: str) -> Check:
    value = _number(path)
    if value is None:
        return Check(name, True, f"this kernel has no {path}")
    key = path.removeprefix("/proc/sys/").replace("/", ".")
    return Check(name, value >= least, f"{key} = {value}, {what}", f"sysctl -w {key}={least}")


def _neighbours() -> Check:
    keys = {limits.ARP.key: "IPv4", limits.NDISC.key: "IPv6"}
    values = {key: value for key in keys if (value := limits.HERE.value(key)) is not None}
    if not values:
        return Check("neighbours", True, "their limit is not visible in this network namespace")
    least = min(values.values())
    shown = " and ".join(f"{value} ({keys[key]})" for key, value in values.items())
    detail = f"gc_thresh3 = {shown}: enough for {least // 4} links; {_raising(values)}"
    short = [key for key, value in values.items() if value < 1024 and not limits.HERE.writable(key)]
    return Check("neighbours", not short, detail, f"sysctl -w {' '.join(f'{key}=1024' for key in values)}")


def _backlog() -> Check:
    most = limits.HERE.value(limits.BACKLOG)
    if most is None:
        return Check("backlog", True, "its length is not visible here", required=False)
    detail = f"{limits.BACKLOG} = {most}: enough for {most // limits.at_once()} ports"
    ok = most >= 1000 or limits.HERE.writable(limits.BACKLOG)
    fix = f"sysctl -w {limits.BACKLOG}=1000"
    return Check("backlog", ok, f"{detail}; {_raising([limits.BACKLOG])}", fix, required=False)


def _raising(keys: Iterable[str]) -> str:
    """What `up` does, or has done, with these sysctls."""
    labs, raised = limits.HERE.state()
    if before := {raised[key] for key in keys if key in raised}:
        was = " and ".join(str(each) for each in sorted(before))
        return f"raised from {was}, until the last lab is down ({', '.join(labs)})"
    if all(map(limits.HERE.writable, keys)):
        return "up raises it for larger fabrics"
    return "it cannot be raised here: the sysctl is read-only"


def _order() -> Check:
    wanted = delivery.chosen()
    ok = wanted.delivery is delivery.Delivery.NAPI or any(_DEVICES.glob("*/queues/rx-*/rps_cpus"))
    detail = f"packets keep their order with {wanted.delivery.settings} ({wanted.reason})"
    return Check("order", ok, detail if ok else f"{detail}, and this kernel has no RPS", "use a kernel with CONFIG_RPS")


def _cpus() -> Check:
    from heddle.host.capacity import budget_pps

    count, compiled = len(os.sched_getaffinity(0)), _fastpath().ok
    budget = budget_pps(compiled=compiled)
    nics = "compiled" if compiled else "Python"
    return Check("cpus", True, f"{count} cores: about {budget:,} RoCE packets/s end to end with {nics} NICs")


def _memory() -> Check:
    from heddle.host.capacity import ENOUGH_MB, RESERVE_MB, SWITCH_MB, free_bytes

    free = free_bytes() >> 20
    detail = f"{free:,} MB free: about {max(0, free - RESERVE_MB) // SWITCH_MB:,} switches"
    return Check("memory", free >= ENOUGH_MB, detail, "free some memory, or use preset tiny")


def _fastpath() -> Check:
    """The compiled loop of the NICs: its object for this processor, and the library of its CRC."""
    try:
        resources.HERE.fastpath(platform.machine())
    except MachineError:
        what = f"no compiled NICs for {platform.machine()}: the Python NICs are slower"
        return Check("fast path", False, what, "", required=False)
    if packages.libdeflate():
        return Check("fast path", True, "compiled NICs, CRC by libdeflate", required=False)
    what = "compiled NICs, but CRC by zlib, which is slower"
    return Check("fast path", False, what, "apt-get install libdeflate0", required=False)


def _extra(extra: Extra) -> Check:
    """Python packages of one extra of the distribution, and what needs them."""
    detail = f"{'' if extra.present else 'no '}{extra.package}, for {extra.serves}"
    return Check(extra.name, extra.present, detail, extra.hint, required=False)


def _docker() -> Check:
    absent = packages.missing(packages.ENGINE)
    detail = f"no {' and no '.join(p.name for p in absent)}: {absent[0].why}" if absent else "the container engine"
    return Check("docker", not absent, detail, SETUP, required=False)


def _engine() -> Check:
    wrong = docker.trouble()
    if wrong is None:
        done = docker.docker(["info", "--format", "{{.ServerVersion}}, {{.Driver}}"], check=False, timeout=20)
        return Check("engine", True, f"answers: version {done.out.strip()}", required=False)
    return Check("engine", False, f"{wrong.what} {wrong.why}", wrong.hint, required=False)


def _containerlab() -> Check:
    from heddle.host.engine import binary

    wrong, path = binary.trouble(), binary.find()
    if wrong is not None or path is None:
        what = f"{wrong.what} {wrong.why}" if wrong else "is not installed"
        return Check("containerlab", False, what, wrong.hint if wrong else SETUP, required=False)
    found = binary.version(path)
    old = found is not None and found < binary.RECOMMENDED
    more = f"; {binary.text(binary.RECOMMENDED)} or newer is better" if old else ""
    return Check("containerlab", True, f"{path} is version {binary.version_text(path)}{more}", required=False)


def _images() -> Check:
    from heddle.host.engine import docker, images
    from heddle.render.dialects import image_names

    fix = "./inv image"
    if docker.trouble() is not None:
        return Check("images", False, "unknown: no engine answers", f"{SETUP} builds them, too", required=False)
    absent = images.missing()
    names = ", ".join(absent or image_names().values())
    return Check("images", not absent, f"not built: {names}" if absent else names, fix, required=False)


_VM: Final = "use --on vm: Debian's full kernel in a VM (docs/kernels.md)"
_FULL: Final = f"use a kernel that has it (Debian's and Ubuntu's own do), or {_VM}"
_NO_RED: Final = f"not needed: Heddle's BPF program marks by the exact depth. For queues.ecn.marker: red, {_VM}"
_NO_ETS: Final = f"not needed: HTB serves classes by the same weights. For queues.scheduler: ets, {_VM}"
_CONTAINER: Final = "run as root; a container needs NET_ADMIN, SYS_ADMIN and a writable /proc/sys (docs/install.md)"
_POLICY: Final = f"use Linux 5.12 or newer, or {_VM}"
_SEED: Final = f"use Linux 6.11 or newer, or --set routing.ecmp=e-ecmp, or {_VM}"
CHECKS: Final[Mapping[str, Callable[[], Check]]] = {
    "python": _python,
    "root": _root,
    "kernel": _kernel,
    "frr": _frr,
    "iproute2": _iproute2,
    "libbpf": _libbpf,
    "util-linux": lambda: _tool("util-linux", "util-linux", required=True),
    "namespaces": lambda: _try("namespaces", "network namespaces can be created", _CONTAINER),
    "sysctls": _sysctls,
    "veth": lambda: _try("veth", "virtual links can be created", _FULL),
    "hash policy": lambda: _try("hash policy", "fib_multipath_hash_policy 3 with selected fields", _POLICY),
    "hash seed": lambda: _try("hash seed", "fib_multipath_hash_seed can be set", _SEED),
    "htb": lambda: _try("htb", f"ports can be shaped; {limits.HERE.bursts()}", _FULL),
    "bfifo": lambda: _try("bfifo", "queues can be limited in bytes", _FULL),
    "tbf": lambda: _try("tbf", "lossless classes can be paused", f"{_FULL}, or set queues.lossless: []"),
    "clsact": lambda: _try("clsact", "BPF can be attached to ports", _FULL),
    "bpf": _bpf,
    "bpffs": _bpffs,
    "fast path": _fastpath,
    "order": _order,
    "neighbours": _neighbours,
    "inotify": lambda: _limit("inotify", "/proc/sys/fs/inotify/max_user_instances", 128, "instances of one user"),
    "pids": lambda: _limit("pids", "/proc/sys/kernel/pid_max", 8192, "two daemons a switch"),
    "cpus": _cpus,
    "memory": _memory,
    "backlog": _backlog,
    "red": lambda: _try("red", "the kernel's own ECN marker (sch_red)", _NO_RED, required=False),
    "ets": lambda: _try("ets", "the kernel's own scheduler of classes (sch_ets)", _NO_ETS, required=False),
    "netem": lambda: _try("netem", "delay and jitter of links (sch_netem)", _VM, required=False),
    "docker": _docker,
    "engine": _engine,
    "containerlab": _containerlab,
    "images": _images,
    "host tools": _host_tools,
    "tcpdump": lambda: _tool("tcpdump", "tcpdump", required=False),
    "tshark": lambda: _tool("tshark", "tshark", required=False),
    **{extra.name: partial(_extra, extra) for extra in EXTRAS.values()},
}
_OPTIONAL: Final = frozenset(
    {
        "fast path",
        "backlog",
        "red",
        "ets",
        "netem",
        "docker",
        "engine",
        "containerlab",
        "images",
        "host tools",
        "tcpdump",
        "tshark",
        *EXTRAS,
    }
)
