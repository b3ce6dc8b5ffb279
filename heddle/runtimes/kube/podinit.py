"""The first process of a shard's pod: `python -m heddle.runtimes.kube.podinit`. It prepares the pod, then is `tini`.

Sysctls become writable, the BPF file system is mounted, and a file with the pod's address says that the shard is ready.
Each daemon of a node becomes a child of the first process; tini waits for all of them, in 16 MB less than Python. The
pod ends with it, by SIGTERM.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from heddle.base.problems import HeddleError, first_lines
from heddle.base.sysctls import SYSCTLS
from heddle.kernel.libbpf import ensure_bpffs
from heddle.runtimes.kube.manifests import ADDRESS, READY

TRY: Final = "--try"  # a probe: be ready in any case, since it asks for the reasons itself
_STAYS: Final = ("tini", "--", "sleep", "infinity")
_SAID: Final = Path("/dev/termination-log")  # the kubelet copies it into the pod's status


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


def main(words: list[str]) -> int:
    """Prepare, say that the pod is ready, and become the process that stays. Returns only when that is not possible."""
    failed = prepare()
    if TRY in words:
        failed.clear()
    if not failed:
        Path(READY).write_text(os.environ.get(ADDRESS, ""), encoding="utf-8")
        try:
            os.execvp(_STAYS[0], _STAYS)  # noqa: S606  (no shell)
        except OSError as error:
            failed["first process"] = str(error)
    text = "the pod cannot be prepared: " + "; ".join(f"{name}: {why}" for name, why in failed.items())
    print(text, file=sys.stderr)
    with suppress(OSError):
        _SAID.write_text(text, encoding="utf-8")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
