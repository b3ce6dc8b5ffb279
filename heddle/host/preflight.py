"""Check whether this machine can run a fabric, before anything is created; probes of what its kernel can do.

In:  a built fabric.
Out: nothing, or MachineError with a command that fixes each problem.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import run
from heddle.base.sysctls import HASH_SEED, SYSCTLS, WRITABLE, sysctls_read_only
from heddle.fabric.model import Fabric
from heddle.host.packages import FRR_DIRS

_PACKAGES: Final = {"ip": "iproute2", "tc": "iproute2", "setpriv": "util-linux"}
_THREADS_A_SWITCH: Final = 12  # zebra and bgpd have four or five each; a thread takes a process id
_THREADS_BESIDE: Final = 2000  # for other programs
_FILES: Final = 256  # open files of one process: tc and ip keep some for each line of a batch
# Often missing for root in a container; linux/capability.h.
_CAPABILITIES: Final = {
    "CAP_CHOWN": 0, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_NET_BIND_SERVICE": 10, "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13, "CAP_SYS_ADMIN": 21,
}  # fmt: skip
_MULTIPATH: Final = 16  # the default of FRR's configure.ac
STATUS: Final = Path("/proc/self/status")


def preflight(fabric: Fabric, *, daemons: bool = True) -> None:
    """Raise MachineError with all problems for the fabric here. daemons: whether FRR runs on this machine itself."""
    problems = [
        *_rights(),
        *_programs(daemons=daemons),
        *_kernel(fabric),
        *_limits(fabric, _THREADS_A_SWITCH * daemons),
    ]
    problems += _multipath(fabric) if daemons else []
    if problems:
        raise MachineError(*problems)


def frr_dir() -> Path | None:
    """Where FRR's daemons are, or None."""
    return next((path for path in FRR_DIRS if (path / "zebra").exists()), None)


def _rights() -> Iterator[Problem]:
    if os.geteuid() != 0:
        yield Problem("", "network namespaces", "need root", "sudo ./inv ...")
        return
    try:
        words = dict(line.split(":", 1) for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines())
        have = int(words["CapEff"], 16)
    except (OSError, KeyError, ValueError):
        return  # unknown, so up tries it
    missing = [name for name, bit in _CAPABILITIES.items() if not have >> bit & 1]
    if missing:
        hint = "run it on the machine itself, or start the container with --cap-add NET_ADMIN --cap-add SYS_ADMIN"
        yield Problem("", "root", f"does not have {', '.join(missing)} here", hint)


def _programs(*, daemons: bool) -> Iterator[Problem]:
    for program, package in _PACKAGES.items():
        if shutil.which(program) is None:
            yield Problem("", program, "is not installed", f"apt-get install {package}")
    directory = frr_dir()
    if not daemons:
        return
    if directory is None:
        yield Problem("frr", "zebra", "is not installed", "apt-get install frr")
    elif not (directory / "bgpd").exists():
        yield Problem("frr", f"{directory}/bgpd", "is missing: this FRR has no BGP", "apt-get install --reinstall frr")


def frr_release() -> tuple[int, ...] | None:
    """This machine's FRR, as (8, 4, 4); None if it is not installed or does not print its version."""
    found = re.search(r"version (\d+(?:\.\d+)*)", _zebra_says())
    return tuple(int(part) for part in found[1].split(".")) if found else None


def frr_multipath() -> int | None:
    """The compiled-in maximum of next hops in a route of this machine's FRR; None when FRR does not print it."""
    said = _zebra_says()
    found = re.search(r"--enable-multipath=(\d+)", said)
    if found:
        return int(found[1])
    return _MULTIPATH if "configured with" in said else None


@cache
def _zebra_says() -> str:
    directory = frr_dir()
    if directory is None:
        return ""
    try:
        return run([str(directory / "zebra"), "--version"], check=False).out
    except MachineError:
        return ""  # another check reports it


def _multipath(fabric: Fabric) -> Iterator[Problem]:
    """FRR's limit. The kernel's limit is far higher: a route message has room for 64 KB, thousands of next hops."""
    most = max((len(group.ports) for groups in fabric.next_hop_groups.values() for group in groups), default=1)
    wide = (fabric.uplinks_of(node) for node in fabric.switches if fabric.level_of(node).prepends)
    most = max(most, *wide, 1)  # maximum-paths, as rendered
    limit = frr_multipath()
    if limit is not None and most > limit:
        why = f"was built for {limit} next hops a route, and this fabric has {most}"
        above = ", ".join(level.word for level in fabric.switch_levels if level.prepends or not level.is_edge)
        yield Problem(
            "frr", "zebra", why, f"use fewer uplinks ({above}), or an FRR built with --enable-multipath={most}"
        )


def _kernel(fabric: Fabric) -> Iterator[Problem]:
    if sysctls_read_only(SYSCTLS):
        why = "is read-only here, and nodes need sysctls of their own"
        yield Problem("kernel", str(SYSCTLS), why, f"in a container: {WRITABLE}")
        return
    # Only the kernel's own hash needs it: in all other modes the BPF program has the seed.
    if not fabric.policy.routing.by_program and not SYSCTLS.joinpath(*HASH_SEED.split(".")).exists():
        yield Problem(
            "kernel",
            HASH_SEED,
            f"is missing in Linux {os.uname().release}: all switches would use the same hash",
            "boot Linux 6.11 or newer, or set routing.ecmp=e-ecmp",
        )
    if not (SYSCTLS / "net/ipv6").exists():
        yield Problem("kernel", "IPv6", "is switched off, and unnumbered BGP needs it", "boot without ipv6.disable=1")


def _limits(fabric: Fabric, threads_a_switch: int) -> Iterator[Problem]:
    """Limits that all namespaces of the machine share.

    FRR's inotify watch is not one of them: zebra opens one only for VRFs in namespaces, so with shared daemons.
    """
    from heddle.host import limits  # predictions ask only for the release of FRR

    yield from limits.HERE.unmet(fabric.name, limits.needs_of(fabric))
    threads = threads_a_switch * len(fabric.switches)
    yield from _at_least("kernel.pid_max", threads + _THREADS_BESIDE, "processes and threads")
    yield from _at_least("kernel.threads-max", threads + _THREADS_BESIDE, "processes and threads")
    yield from _at_least("user.max_net_namespaces", len(fabric.nodes), "network namespaces")
    # Daemons run as user frr. Only root is exempt from this limit.
    yield from _ulimit("-u", resource.RLIMIT_NPROC, threads, "processes and threads")
    yield from _ulimit("-n", resource.RLIMIT_NOFILE, _FILES, "open files")


def _ulimit(flag: str, limit: int, need: int, what: str) -> Iterator[Problem]:
    have, most = resource.getrlimit(limit)
    if have != resource.RLIM_INFINITY and have < need:
        step = 1 << (need - 1).bit_length()
        hint = f"ulimit {flag} {step}"
        if most != resource.RLIM_INFINITY and most < step:
            hint += ", as root and in the shell that starts ./inv"
        yield Problem("", f"ulimit {flag} = {have}", f"is too low: {need} {what} are needed", hint)


def _at_least(key: str, need: int, what: str) -> Iterator[Problem]:
    try:
        have = int(SYSCTLS.joinpath(*key.split(".")).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return  # this kernel does not have this limit
    if have < need:
        step = 1 << (need - 1).bit_length()
        yield Problem("kernel", f"{key} = {have}", f"is too low: {need} {what} are needed", f"sysctl -w {key}={step}")


# bpf(2) has no wrapper in libc; numbers from the kernel's syscall tables.
_BPF_SYSCALL: Final = {"x86_64": 321, "aarch64": 280}
_BPF_MAP_CREATE: Final = 0
_BPF_MAP_TYPE_ARRAY: Final = 2

READ_ONLY: Final = "cannot be written"  # as `put` below says it
_TRY: Final = """\
try() { name=$1; shift; said=$("$@" 2>&1) && echo "$name=ok" || echo "$name=$(echo "$said" | head -n 1)"; }
put() {
  [ -e "$1" ] || { echo "this kernel has no $1"; return 1; }
  { echo "$2" > "$1"; } 2>/dev/null || { echo "$1 cannot be written"; return 1; }
}
echo namespaces=ok
try veth ip link add name heddle0 type veth peer name heddle1
try htb tc qdisc add dev heddle0 root handle 1: htb
tc class add dev heddle0 parent 1: classid 1:1 htb rate 10mbit 2>/dev/null
try bfifo tc qdisc add dev heddle0 parent 1:1 bfifo limit 10000
try tbf tc qdisc replace dev heddle0 parent 1:1 tbf rate 40gbit burst 100000b limit 10000b
try clsact tc qdisc add dev heddle0 clsact
try red tc qdisc add dev heddle1 root red limit 100000 min 10000 max 30000 avpkt 1000 bandwidth 10mbit ecn nodrop
tc qdisc del dev heddle1 root 2>/dev/null
try ets tc qdisc add dev heddle1 root ets bands 2 strict 1
tc qdisc del dev heddle1 root 2>/dev/null
try netem tc qdisc add dev heddle1 root netem delay 1ms
policy() { put /proc/sys/net/ipv4/fib_multipath_hash_policy 3 && put /proc/sys/net/ipv4/fib_multipath_hash_fields 55; }
try 'hash policy' policy
try 'hash seed' put /proc/sys/net/ipv4/fib_multipath_hash_seed 7
try bpffs mount -t bpf bpf /mnt
"""


def probe() -> dict[str, str]:
    """Capability -> `ok` or the reason. If the namespace cannot be created, that is the reason for all."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return dict.fromkeys(_names(), "unshare is missing (util-linux)")
    # The child's mounts are private. Without root, a user namespace may allow the rest.
    argv = [unshare, "--net", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", _TRY]
    env = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LC_ALL": "C"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, env=env)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    said = (done.stderr.strip().splitlines() or ["was not tried"])[0]
    return {name: found.get(name, said) for name in _names()}


def _names() -> list[str]:
    words = [line.split("try ", 1)[1] for line in _TRY.splitlines() if line.startswith("try ")]
    return ["namespaces", *[w.split("'")[1] if w.startswith("'") else w.split()[0] for w in words]]


def bpf_syscall() -> str:
    """`ok` when bpf(2) creates a map here, else the reason."""
    number = _BPF_SYSCALL.get(platform.machine())
    if number is None:
        return f"not known for {platform.machine()}"
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = (ctypes.c_uint32 * 32)(_BPF_MAP_TYPE_ARRAY, 4, 4, 1)  # type, key bytes, value bytes, entries
    fd = int(libc.syscall(number, _BPF_MAP_CREATE, ctypes.byref(attributes), ctypes.sizeof(attributes)))
    if fd >= 0:
        os.close(fd)
        return "ok"
    code = ctypes.get_errno()
    return "this kernel has no bpf(2)" if code == errno.ENOSYS else os.strerror(code)
