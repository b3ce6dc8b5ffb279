"""The first process of a pod: `python -m heddle_plugins.kubernetes.podinit`. It prepares the pod, and keeps its server.

Sysctls become writable, the BPF file system is mounted, and a file with the pod's address says that the pod is ready.
Commands are then started by the server of agents (heddle/shards/server.py), which this process starts again when it has
ended. Each daemon of a node becomes a child of this process. The pod ends with it, by SIGTERM.

    --lease 120     a pod of a Job: its exit code is 0 only by `end_pod`; it ends when no `renew` came for 120 s
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from heddle.base.problems import HeddleError, first_lines
from heddle.base.sysctls import SYSCTLS
from heddle.kernel.libbpf import ensure_bpffs
from heddle.shards import server
from heddle_plugins.kubernetes.manifests import ADDRESS, EXPIRED, LEASE, READY

TRY: Final = "--try"  # a probe: be ready in any case, since it asks for the reasons itself
_SAID: Final = Path("/dev/termination-log")  # the kubelet copies it into the pod's status
_DONE: Final = signal.SIGUSR1
_ENDS: Final = {signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGINT: 128 + signal.SIGTERM, _DONE: 0}


def _writable_sysctls() -> None:
    """A container's /proc/sys is read-only; CAP_SYS_ADMIN may change that in its own mount namespace."""
    subprocess.run(["mount", "-o", "remount,rw,bind", str(SYSCTLS)], check=True, capture_output=True, text=True)


STEPS: Final[Mapping[str, Callable[[], None]]] = {"sysctls": _writable_sysctls, "bpffs": ensure_bpffs}


def prepare() -> dict[str, str]:
    """Step -> why it failed; empty when all is ready."""
    failed: dict[str, str] = {}
    for name, step in STEPS.items():
        try:
            step()
        except HeddleError as error:
            failed[name] = "; ".join(first_lines(error.problems))
        except subprocess.CalledProcessError as error:
            failed[name] = (error.stderr.strip().splitlines() or [str(error)])[-1]
        except OSError as error:
            failed[name] = str(error)
    return failed


def renew() -> None:
    """This pod is needed."""
    os.utime(READY)


def end_pod(*, done: bool) -> None:
    """End this pod, from another process in it. done: its work is complete."""
    if Path(READY).exists():  # process 1 is the one above
        os.kill(1, _DONE if done else signal.SIGTERM)


def _refuse(text: str, code: int = 1) -> int:
    print(text, file=sys.stderr)
    with suppress(OSError):
        _SAID.write_text(text, encoding="utf-8")
    return code


def main(words: list[str]) -> int:
    """Prepare, say that the pod is ready, and stay. Returns when the pod ends, or cannot be ready."""
    failed = prepare()
    if failed and TRY not in words:
        return _refuse("the pod cannot be prepared: " + "; ".join(f"{name}: {why}" for name, why in failed.items()))
    lease_s = float(words[words.index(LEASE) + 1]) if LEASE in words else math.inf

    def look() -> int | None:
        if time.time() - Path(READY).stat().st_mtime <= lease_s:
            return None
        return _refuse(f"its ./inv experiment has been silent for {lease_s:g} s", EXPIRED)

    server.install()
    Path(READY).write_text(os.environ.get(ADDRESS, ""), encoding="utf-8")
    return server.keep(_ENDS, look)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
