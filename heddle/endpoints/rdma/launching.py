"""Run a program for RDMA, as those of perftest, between two hosts of a lab: its server in one, its client in the other.

In:  a lab, two hosts, the program with its flags. Out: the exit code. The client's output is unchanged.
Both get a soft-RoCE device for as long as the program runs. The client runs in the first host: the data of a write or
send test flow from the first to the second.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from heddle.base import owners
from heddle.base.events import Observer
from heddle.base.problems import CheckError, InputError, MachineError, Problem, did_you_mean
from heddle.base.process import find_program
from heddle.endpoints.rdma.rxestack import rxe_devices
from heddle.endpoints.rdma.verbsdevice import gid_index
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Port
from heddle.kernel import rdma
from heddle.kernel.namespace import inside
from heddle.lab.lab import Lab

_SERVER_S: Final = 30.0  # until the server listens
_LISTEN: Final = "0A"  # TCP_LISTEN in /proc/net/tcp
# perftest fits cycles to microseconds over 200 waits (get_clock.c), and gives up on a poor fit: one pause of some
# milliseconds between the two reads of a wait is enough. Latency tests then divide by 0 (print_report_lat).
_NO_CLOCK: Final = "Correlation coefficient r^2"
_RUNS: Final = 3
_ADDED: Final = frozenset({"-d", "--ib-dev", "-x", "--gid-index"})


@dataclass(frozen=True, slots=True)
class _End:
    """A host's NIC with its device. gid: index of its address."""

    port: Port
    netns: Path
    device: str
    gid: int

    @property
    def ip(self) -> str:
        return str(self.port.address.ip) if self.port.address is not None else ""

    def command(self, argv: Sequence[str], *more: str) -> list[str]:
        """The program in this host, with the flags that choose its device."""
        return ["nsenter", f"--net={self.netns}", *argv, "-d", self.device, "-x", str(self.gid), *more]


def launch(
    lab: Lab, client: str, server: str, argv: Sequence[str], observer: Observer, output: IO[bytes] | None = None
) -> int:
    """Run the program in both hosts; return the client's exit code. output: of the client; None: the terminal's.

    A program of perftest that could not measure the processor's clock runs again, with a warning; `output` gets the
    last run. InputError for unknown hosts and flags that this function sets itself. MachineError when there is no
    soft-RoCE or no such program, CheckError when the server ends or does not listen, or no run measured the clock.
    """
    lab.require_here(
        "soft-RoCE is made on this machine, not in the kernels of shards", "./inv up FABRIC brings up a lab here"
    )
    ports = [_nic(lab.fabric, name) for name in (client, server)]
    if client == server:
        raise InputError(Problem("", f"launch {client} {server}", "names one host twice", "name two hosts"))
    if taken := [word for word in argv if word.partition("=")[0] in _ADDED]:
        raise InputError(Problem("", taken[0], "is set by launch itself: the device of each host", "leave it out"))
    if find_program(argv[0], "/usr/sbin", "/sbin") is None:
        why = "is not installed"
        raise MachineError(Problem("", argv[0], why, "run apt-get install perftest, or use --on vm"))
    rdma.require()
    with owners.lock(lab.name), _devices(lab, ports) as (source, target):
        for number in range(1, _RUNS + 1):
            if number > 1:
                again = f"it runs again ({number} of {_RUNS})"
                observer.warn(f"{argv[0]} could not measure the processor's clock: {again}")
                if output is not None:
                    output.seek(0)
                    output.truncate()
            code, clock = _run_both(source, target, argv, output)
            if clock:
                return code
    why = f"could not measure the processor's clock in {_RUNS} runs: do not trust its figures"
    raise CheckError(Problem("", argv[0], why, "end other programs on this machine, and run it again"))


def _run_both(source: _End, target: _End, argv: Sequence[str], output: IO[bytes] | None) -> tuple[int, bool]:
    """Run the server and the client once: the client's exit code, and whether it could measure the processor's clock.

    What the client writes to stderr is read on its way to this process's own stderr.
    """
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(target.command(argv), stdout=said, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _wait_for_server(process, target.netns, said)
            return _run_client(source.command(argv, target.ip), output)
        finally:
            process.terminate()


def _run_client(command: Sequence[str], output: IO[bytes] | None) -> tuple[int, bool]:
    with subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None  # noqa: S101  (a pipe was asked for)
        clock = True
        try:
            for line in io.TextIOWrapper(process.stderr, errors="replace", newline=""):  # "\r" stays as it is
                clock = clock and _NO_CLOCK not in line
                print(line, end="", file=sys.stderr, flush=True)
        except BaseException:  # a signal to this process, or its stderr is closed
            process.kill()
            raise
    return process.returncode, clock


def _nic(fabric: Fabric, name: str) -> Port:
    """The first NIC of a host."""
    names = [host.name for host in fabric.hosts]
    if name not in names:
        raise InputError(Problem("", f"launch {name}", "is not a host", did_you_mean(name, names)))
    if not (nics := fabric.nics_of[name]):
        why = "has no NIC in the network of the ranks"
        raise InputError(
            Problem("", f"launch {name}", why, did_you_mean(name, [host for host in names if fabric.nics_of[host]]))
        )
    return nics[0]


@contextmanager
def _devices(lab: Lab, ports: Sequence[Port]) -> Iterator[tuple[_End, _End]]:
    netns = {name: handle.netns for name, handle in lab.handles().items()}
    with rxe_devices(lab.name, [(port.node, port.name) for port in ports], netns, 1):
        first, second = (_end(lab.name, netns[port.node], port) for port in ports)
        yield first, second


def _end(lab: str, netns: Path, port: Port) -> _End:
    device = rdma.link_name(lab, port.node, port.name)
    with inside(netns):
        try:
            return _End(port, netns, device, gid_index(device, str(port.address.ip) if port.address else ""))
        except OSError as error:
            why = f"cannot be used: {error.strerror}"
            raise MachineError(Problem("", f"RDMA device {device}", why, "./inv status shows the ports")) from None


def _wait_for_server(process: subprocess.Popen[bytes], netns: Path, said: IO[bytes]) -> None:
    """Wait until a process in the namespace listens on a TCP port: a test connection would start the test."""
    deadline = time.monotonic() + _SERVER_S
    while not _listens(netns):
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            said.seek(0)
            text = said.read().decode(errors="replace").strip()
            why = f"ended with exit code {process.returncode}" if ended else f"does not listen after {_SERVER_S:g} s"
            raise CheckError(Problem("", "the server", why, f"it printed:\n{text}" if text else ""))
        time.sleep(0.1)


def _listens(netns: Path) -> bool:
    with inside(netns):
        tables = [Path(f"/proc/thread-self/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()]
    return any(len(row) > 3 and row[3] == _LISTEN for row in rows)
