"""Questions to a running QEMU, over its monitor (QMP, docs/interop/qmp-spec of QEMU).

In:  the directory of a guest, with the monitor's socket.
Out: what it answers; None when it does not answer.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from heddle.places.vm.hardware import MONITOR

IO_ERROR: Final = "io-error"  # the guest is paused: this machine's disk is full
_WAIT_S: Final = 3.0


def status(directory: Path) -> str | None:
    """`running`, `paused`, IO_ERROR and so on."""
    said = _ask(directory, "query-status")
    return str(said["status"]) if isinstance(said, dict) and "status" in said else None


def resume(directory: Path) -> None:
    """Let a paused guest go on."""
    _ask(directory, "cont")


def registers(directory: Path) -> str:
    """Instruction pointer, stack pointer and flags of each processor, one a line; empty without an answer."""
    said = _ask(directory, "human-monitor-command", {"command-line": "info registers -a"})
    lines = str(said or "").splitlines()
    return "\n".join(line.strip() for line in lines if line.startswith(("RIP=", "EIP=", "CPU#")))


def _ask(directory: Path, command: str, arguments: Mapping[str, str] | None = None) -> Any:
    """The answer to one command; None when QEMU does not answer in time."""
    try:
        # The path of a socket has at most 107 characters; through a descriptor it always fits.
        spot = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(_WAIT_S)
                link.connect(f"/proc/self/fd/{spot}/{MONITOR}")
                with link.makefile("rw", encoding="utf-8", newline="\n") as lines:
                    lines.readline()  # its greeting
                    _command(lines, "qmp_capabilities", {})
                    return _command(lines, command, arguments or {})
        finally:
            os.close(spot)
    except (OSError, ValueError):
        return None


def _command(lines: Any, name: str, arguments: Mapping[str, str]) -> Any:
    lines.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
    lines.flush()
    while line := lines.readline():
        said = json.loads(line)
        if "return" in said:
            return said["return"]
        if "error" in said:
            raise ValueError(said["error"])
    return None
