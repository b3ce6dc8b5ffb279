"""`--heddle-pcap`: a capture of a fabric's ports during one test, kept only when the test failed.

In:  a running Lab, and the file that a failed test leaves. Out: that file (pcapng, each frame's headers), or nothing.
The capture runs in a thread of its own; each port has a tcpdump, which takes processor time from the fabric.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base.problems import CheckError, HeddleError, InputError, MachineError, Problem
from heddle.base.userfiles import output_directory

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.lab.capture import Captured, Tapped
    from heddle.lab.lab import Lab

MOST_PORTS: Final = 64  # a process each: what `capture` takes at once
_PACKETS: Final = 10_000_000
_SECONDS: Final = 86_400.0
_START_S: Final = 15.0
_END_S: Final = 15.0


def ports_of(fabric: Fabric) -> list[str]:
    """The ports to capture at: of all switches; else of the switches next to hosts; else the first of these."""
    ports = [port.ref for switch in fabric.switches for port in switch.ports]
    if len(ports) > MOST_PORTS:
        edge = [switch for switch in fabric.switches if fabric.level_of(switch).is_edge]
        ports = [port.ref for switch in edge for port in switch.ports]
    return ports[:MOST_PORTS]


class PortsCapture:
    """One capture. Use it in a with block; `failed` decides, before the end of the block, whether the file stays."""

    def __init__(self, lab: Lab, path: Path) -> None:
        from heddle.lab.capture import find_ports

        self.path = path
        self.failed = False
        self.done: Captured | None = None
        self.ports = ports_of(lab.fabric)
        self._taps: list[Tapped] = find_ports(lab, ",".join(self.ports))
        self._stop = threading.Event()
        self._listening = threading.Event()
        self._wrong: HeddleError | None = None
        self._thread = threading.Thread(target=self._run, name="heddle-pcap", daemon=True)

    def __enter__(self) -> PortsCapture:
        """Return when the capture listens at all ports. MachineError when it cannot."""
        self._thread.start()
        if not self._listening.wait(_START_S) or self._wrong is not None:
            self._stop.set()
            late = MachineError(Problem("", "--heddle-pcap", f"did not start to listen within {_START_S:g} s"))
            raise self._wrong or late
        return self

    def __exit__(self, *_: object) -> None:
        """End the capture; the file is complete, or gone, when this returns."""
        self._stop.set()
        self._thread.join(_END_S)

    @property
    def trouble(self) -> str:
        """The error of the capture, in one line; empty when there is none."""
        problems = self._wrong.problems if self._wrong is not None else self.done.problems if self.done else ()
        return "; ".join(str(each).partition("\n")[0] for each in problems)

    def _run(self) -> None:
        try:
            self._capture()
        except HeddleError as error:
            self._wrong = error
        except OSError as error:
            self._wrong = CheckError(Problem("", str(self.path), f"cannot be written: {error.strerror}"))
        finally:
            self._listening.set()

    def _capture(self) -> None:
        from heddle.lab.capture import Bounds, capture
        from heddle.wire.pcapng import PcapngFile

        output_directory(self.path.parent, "--heddle-pcap")
        with ExitStack() as stack:
            kept = stack.enter_context(PcapngFile(self.path, self.ports))
            bounds = Bounds(_PACKETS, _SECONDS)
            self.done = capture(
                self._taps, "", bounds, kept.write, stop=self._stop.is_set, listening=self._listening.set
            )
            if self.failed:
                kept.keep(self.done.ended_ns, self.done.dropped)


def file_of(directory: Path, nodeid: str) -> Path:
    """`DIR/test_mine.py--test_one.pcapng`: a file name of a test's ID, unique for tests of one session."""
    name = "".join(each if each.isalnum() or each in "._-" else "-" for each in nodeid)
    return directory / f"{name[:180].strip('.-')}.pcapng"


def check_tcpdump() -> None:
    """InputError when the option is given and tcpdump is not installed."""
    from heddle.host import packages

    if packages.missing(["tcpdump"]):
        raise InputError(
            Problem("", "--heddle-pcap", "needs tcpdump, which is not installed", "apt-get install tcpdump")
        )
