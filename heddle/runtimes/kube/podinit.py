"""The first process of a shard's pod: `python -m heddle.runtimes.kube.podinit`. It prepares the pod, then reaps.

Sysctls become writable, the BPF file system is mounted, and a file says that the shard is ready. Each daemon of a node
becomes a child of this process, so it waits for all of them. The pod ends with it, by SIGTERM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from heddle.base.problems import HeddleError, first_lines
from heddle.base.sysctls import SYSCTLS
from heddle.kernel.libbpf import ensure_bpffs
from heddle.runtimes.kube.manifests import READY

TRY: Final = "--try"  # a probe: be ready in any case, since it asks for the reasons itself
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


def reap() -> None:
    """Wait for children until SIGTERM or SIGINT. Both are blocked, so that none is missed between two waits."""
    while signal.sigwait({signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}) == signal.SIGCHLD:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def main(words: list[str]) -> int:
    """Prepare, say that the pod is ready, and stay."""
    failed = prepare()
    if failed and TRY not in words:
        text = "the pod cannot be prepared: " + "; ".join(f"{name}: {why}" for name, why in failed.items())
        print(text, file=sys.stderr)
        with suppress(OSError):
            _SAID.write_text(text, encoding="utf-8")
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT})
    Path(READY).touch()
    reap()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
