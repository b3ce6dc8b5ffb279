"""The first process of a pod: `python -m heddle_plugins.kubernetes.podinit`. It prepares the pod, then is `tini`.

Sysctls become writable, the BPF file system is mounted, and a file with the pod's address says that the pod is ready.
Each daemon of a node becomes a child of the first process; tini waits for all of them, in 16 MB less than Python. The
pod ends with it, by SIGTERM.

    --lease 120     a pod of a Job: its exit code is 0 only by `end_pod`; it ends when no `renew` came for 120 s. The
                    first process stays this one: tini has no such times
"""

from __future__ import annotations

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
from heddle_plugins.kubernetes.manifests import ADDRESS, EXPIRED, LEASE, READY

TRY: Final = "--try"  # a probe: be ready in any case, since it asks for the reasons itself
_STAYS: Final = ("tini", "--", "sleep", "infinity")
_SAID: Final = Path("/dev/termination-log")  # the kubelet copies it into the pod's status
_DONE: Final = signal.SIGUSR1
_LOOK_S: Final = 2.0


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


def reap(lease_s: float) -> int:
    """Wait for children until a signal ends this process; its exit code. lease_s: see above.

    The signals are blocked, so that none is missed between two waits.
    """
    watched = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, _DONE}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    while True:
        found = signal.sigtimedwait(watched, _LOOK_S)
        number = None if found is None else found.si_signo
        if number == _DONE:
            return 0
        if number in (signal.SIGTERM, signal.SIGINT):
            return 128 + signal.SIGTERM
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if time.time() - Path(READY).stat().st_mtime > lease_s:
            return _refuse(f"its ./inv experiment has been silent for {lease_s:g} s", EXPIRED)


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
    """Prepare, say that the pod is ready, and stay. Returns when a lease has ended, or when the pod cannot be ready."""
    failed = prepare()
    if TRY in words:
        failed.clear()
    if not failed:
        Path(READY).write_text(os.environ.get(ADDRESS, ""), encoding="utf-8")
        if LEASE in words:
            return reap(float(words[words.index(LEASE) + 1]))
        try:
            os.execvp(_STAYS[0], _STAYS)  # noqa: S606  (no shell)
        except OSError as error:
            failed["first process"] = str(error)
    return _refuse("the pod cannot be prepared: " + "; ".join(f"{name}: {why}" for name, why in failed.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
