"""Probe what the kernel supports, in namespaces of a child process, which leaves nothing behind.

Out: for each capability `ok`, or the message of the kernel or of the tool.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import subprocess
from typing import Final

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
