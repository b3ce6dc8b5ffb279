"""Run a program: a process for each rank in the network of its host, from the first to the last one's end.

In:  a lab, seats (a place of each rank in the fabric; its environment as torchrun and mpirun set it), the command.
Out: ProgramEnd. Each line that a rank prints is passed on, with the rank. The first rank that fails ends the others.
runtimes/enter.py starts the processes of a host in a namespace of processes: with its first process, all of them end.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from heddle.base.files import absent
from heddle.base.mounts import scratch
from heddle.base.problems import CheckError, InputError, MachineError, Problem, trouble
from heddle.base.process import find_program
from heddle.base.tables import many
from heddle.base.userfiles import caller, give_to_caller
from heddle.endpoints.rdma.rxestack import rxe_devices
from heddle.fabric.model import Fabric
from heddle.kernel.rdma import link_name
from heddle.lab.lab import Lab
from heddle.runtimes.netns import HELPER
from heddle.traffic.flow import Endpoint
from heddle.traffic.placement import place
from heddle.wire.layout import TOS_DATA

MASTER_PORT: Final = 29500  # torchrun's; each host has ports of its own
_MOST: Final = 256  # ranks: each is a process of this machine


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """ranks: processes. per_host: of each host, which then share its NICs; None: one for each NIC.

    placement: as of a run. limit_s: seconds until the ranks are ended; None: no limit. rdma: whether NICs have
    soft-RoCE devices meanwhile.
    """

    ranks: int
    per_host: int | None = None
    placement: str = "block"
    limit_s: float | None = None
    rdma: bool = False


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank: its NIC, and its number among the ranks of its host. node: the number of its host."""

    end: Endpoint
    local: int
    locals: int
    node: int

    @property
    def rank(self) -> int:
        """Its number."""
        return self.end.rank

    @property
    def text(self) -> str:
        """`rank 3 on host2`."""
        return f"rank {self.rank} on {self.end.host}"


def seats(fabric: Fabric, options: ProgramOptions) -> tuple[Seat, ...]:
    """The place of each rank. InputError for more ranks than there are NICs or, with per_host, hosts."""
    ranks, per_host = options.ranks, options.per_host
    if not 1 <= ranks <= _MOST:
        raise InputError(Problem("", f"--ranks {ranks}", f"is outside 1 to {_MOST}", "each rank is a process"))
    every = place(fabric, options.placement, least=1)
    if per_host is None:
        if ranks > len(every):
            why = f"is more than the {many(len(every), 'NIC')} to place them on"
            hint = "use --per-host N: they share NICs"
            raise InputError(Problem("", f"--ranks {ranks}", why, f"try --ranks {len(every)}, or {hint}"))
        chosen = every[:ranks]
    else:
        chosen = _by_host(every, ranks, per_host)
    hosts = list(dict.fromkeys(end.host for end in chosen))
    on = {host: [end for end in chosen if end.host == host] for host in hosts}
    return tuple(
        Seat(replace(end, rank=rank), sum(other.host == end.host for other in chosen[:rank]), len(on[end.host]), at)
        for rank, end in enumerate(chosen)
        for at in [hosts.index(end.host)]
    )


def _by_host(every: Sequence[Endpoint], ranks: int, per_host: int) -> tuple[Endpoint, ...]:
    """per_host ranks on each host, over its NICs in turn."""
    nics: dict[str, list[Endpoint]] = {}
    for end in every:
        nics.setdefault(end.host, []).append(end)
    if per_host < 1:
        raise InputError(Problem("", f"--per-host {per_host}", "is less than 1", "use 1 or more"))
    if ranks % per_host:
        why = f"is not a multiple of --per-host {per_host}"
        raise InputError(Problem("", f"--ranks {ranks}", why, f"try --ranks {ranks + per_host - ranks % per_host}"))
    if ranks // per_host > len(nics):
        why = f"needs {ranks // per_host} hosts with --per-host {per_host}, but there are {len(nics)}"
        raise InputError(Problem("", f"--ranks {ranks}", why, f"try --ranks {len(nics) * per_host}"))
    hosts = list(nics.values())
    return tuple(hosts[rank // per_host][rank % per_host % len(hosts[rank // per_host])] for rank in range(ranks))


def environment(seat: Seat, every: Sequence[Seat]) -> dict[str, str]:
    """The variables of one rank, as torchrun sets them; and those by which programs find their rank under mpirun.

    The latter do not connect MPI itself: docs/programs.md shows what does. Interfaces are those of the rank's NIC.
    """
    rank, size, hosts = str(seat.rank), str(len(every)), str(every[-1].node + 1 if every else 1)
    local, local_size, nic = str(seat.local), str(seat.locals), seat.end.port
    torch = {
        "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": str(seat.node), "GROUP_WORLD_SIZE": hosts, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": "heddle", "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0", "MASTER_ADDR": every[0].end.ip, "MASTER_PORT": str(MASTER_PORT),
    }  # fmt: skip
    mpi = {
        "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_LOCAL_RANK": local,
        "OMPI_COMM_WORLD_LOCAL_SIZE": local_size, "OMPI_COMM_WORLD_NODE_RANK": local,
    }  # fmt: skip
    sockets = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), nic)
    return {**torch, **mpi, **sockets}


def rdma_environment(lab: str, seat: Seat) -> dict[str, str]:
    """The variables of a rank whose NIC has a soft-RoCE device; those that the user has set win.

    UCX (ucx.conf of its documentation): data on reliable connections, which it connects over TCP by the NIC itself, in
    the lossless class with ECN. NCCL: its device and its traffic class.
    """
    device, tos = link_name(lab, seat.end.host, seat.end.port), str(TOS_DATA)
    return {
        "RDMA_DEVICE": device,
        "UCX_TLS": "rc_verbs,tcp", "UCX_NET_DEVICES": f"{device}:1,{seat.end.port}", "UCX_IB_TRAFFIC_CLASS": tos,
        "UCX_MAX_RNDV_LANES": "1",  # else large messages go half over TCP
        "NCCL_IB_HCA": f"={device}", "NCCL_IB_TC": tos,
    }  # fmt: skip


def hosts_file(fabric: Fabric, every: Sequence[Seat]) -> str:
    """/etc/hosts in a host of the fabric: `host1` (its first NIC), `host1-eth2` for each NIC, and `rank0`, ..."""
    names: dict[str, list[str]] = {"127.0.0.1": ["localhost"], "::1": ["localhost"]}
    for host, nics in fabric.nics_of.items():
        addressed = [(str(port.address.ip), port.name) for port in nics if port.address is not None]
        for at, (address, port) in enumerate(addressed):
            names.setdefault(address, []).extend([*([host] if at == 0 else []), f"{host}-{port}"])
    for seat in every:
        names.setdefault(seat.end.ip, []).append(f"rank{seat.rank}")
    return "".join(f"{address} {' '.join(words)}\n" for address, words in names.items())


def by_host(every: Sequence[Seat]) -> Mapping[str, Sequence[Seat]]:
    """Host -> the seats there."""
    found: dict[str, list[Seat]] = {}
    for seat in every:
        found.setdefault(seat.end.host, []).append(seat)
    return found


Stream = Literal["out", "err"]
Show = Callable[[Seat, Stream, str], None]
Mount = tuple[str, str, bool]  # source, target, read only
TIMED_OUT: Final = 124  # the exit code of timeout(1)
_PATIENCE_S: Final = 5.0  # between SIGTERM and SIGKILL
_KILLED_S: Final = 10.0  # for a process that was killed: it may be in a system call
_RDMA_FLOWS: Final = 64  # of each rank, that are counted at its NIC
_LINE: Final = 1 << 16  # bytes; a longer line is passed on in parts
_NAMES, _RESOLVER = Path("/etc/hosts"), Path("/etc/resolv.conf")


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """code: of the first rank that failed, 128 + n after signal n; 0 if none did. codes: of each rank, None where it
    was ended. failed: that first rank; late: those that ran when the time limit came. left: host -> processes that its
    ranks had left behind. seconds: from the start of the first to the end of the last.
    """

    code: int
    codes: tuple[int | None, ...]
    failed: Seat | None
    late: tuple[Seat, ...]
    left: Mapping[str, int]
    seconds: float

    def sentences(self, program: str, limit_s: float | None) -> list[str]:
        """What went wrong, a sentence each."""
        found = []
        count = sum(code is None for code in self.codes)
        others = f"; {many(count, 'other rank')} {'was' if count == 1 else 'were'} ended" if count else ""
        if self.failed is not None:
            how = f"was ended by signal {self.code - 128}" if self.code > 128 else f"ended with exit code {self.code}"
            found.append(f"{self.failed.text}: {program} {how}{others}")
        if self.late:
            names = ", ".join(seat.text for seat in self.late)
            found.append(f"{names}: {program} ran longer than the limit of {limit_s:g} s, and was ended")
        for host, count in self.left.items():
            were = "was" if count == 1 else "were"
            found.append(f"{host}: {many(count, 'process')} stayed behind the ranks, and {were} ended")
        return found


def check_command(argv: Sequence[str]) -> None:
    """InputError when there is no such program: before anything starts."""
    program = argv[0]
    if not program:
        raise InputError(Problem("", "the program", "is an empty word", "is a variable of the shell empty?"))
    if "/" in program:
        if not os.access(program, os.X_OK) or Path(program).is_dir():
            why, hint = absent(Path(program)), "name another program"
            if not why and Path(program).is_file():
                hint = f"name its interpreter: -- python3 {program}"
            raise InputError(Problem("", program, why or "is not a program", hint))
    elif find_program(program) is None:
        hint = "install it on this machine, or name it by its path: hosts use this machine's programs"
        raise InputError(Problem("", program, "is not in PATH", hint))


def run_ranks(
    lab: Lab, every: Sequence[Seat], argv: Sequence[str], show: Show, limit_s: float | None = None, *,
    rdma: bool = False,
) -> ProgramEnd:  # fmt: skip
    """Run the program until all ranks have ended, one has failed, or the time is up. No process stays behind.

    rdma: the NICs of the ranks have soft-RoCE devices meanwhile. MachineError where this machine cannot make them.

    The ranks run as the user who called sudo, with this process's environment and working directory. CheckError when a
    host cannot be entered. After Ctrl-C all processes are ended, and KeyboardInterrupt goes on.
    """
    with ExitStack() as stack:
        spot = stack.enter_context(scratch("heddle-launch-"))
        spot.chmod(0o711)  # the user of the ranks passes through it
        shared = spot / "shared"
        shared.mkdir(mode=0o700)
        give_to_caller(shared)
        mounts = []
        # Without a resolv.conf each look-up of an unknown name waits for a name server that the fabric does not have.
        for file, text in ((_NAMES, hosts_file(lab.fabric, every)), (_RESOLVER, "# no name server: see /etc/hosts\n")):
            if file.exists():
                (spot / file.name).write_text(text)
                mounts.append((str(spot / file.name), str(file), True))
        if rdma:
            nics = list(dict.fromkeys((seat.end.host, seat.end.port) for seat in every))
            netns = {host: lab.handle(host).netns for host, _ in nics}
            stack.enter_context(rxe_devices(lab.name, nics, netns, _RDMA_FLOWS * len(every)))
        run = _Running(stack, show, len(every), str(shared), lab.name if rdma else "")
        try:
            for host, mine in by_host(every).items():
                run.start(host, str(lab.handle(host).netns), mounts, mine, every, argv)
            run.wait(limit_s)
        finally:
            run.end()
    return run.result()


class _Running:
    """The processes of a program while they run."""

    def __init__(self, stack: ExitStack, show: Show, ranks: int, shared: str, rdma_lab: str) -> None:
        self._show, self._shared, self._rdma_lab = show, shared, rdma_lab
        self._poll = stack.enter_context(selectors.DefaultSelector())
        self._helpers: dict[str, subprocess.Popen[bytes]] = {}
        self._controls: dict[str, int] = {}
        self._text: dict[tuple[int, Stream], bytes] = {}
        self._codes: list[int | None] = [None] * ranks
        self._ending = False
        self._seats: dict[int, Seat] = {}
        self._failed: Seat | None = None
        self._late: tuple[Seat, ...] = ()
        self._left: dict[str, int] = {}
        self._began = time.monotonic()
        self._ended = self._began

    def start(
        self,
        host: str,
        netns: str,
        mounts: Sequence[Mount],
        mine: Sequence[Seat],
        every: Sequence[Seat],
        argv: Sequence[str],
    ) -> None:
        """Start the ranks of one host."""
        user = caller()
        given: list[int] = []

        def pipe(read: bool = True) -> tuple[int, int]:
            """Our end, and that of the helper."""
            ends = os.pipe2(os.O_CLOEXEC)
            own, other = ends if read else ends[::-1]
            given.append(other)
            return own, other

        rows = []
        for seat in mine:
            self._seats[seat.rank] = seat
            words = rdma_environment(self._rdma_lab, seat) if self._rdma_lab else {}
            own = {key: word for key, word in words.items() if key not in os.environ}
            row: dict[str, object] = {"env": {**environment(seat, every), **own}}
            for stream in ("out", "err"):
                end, row[stream] = pipe()
                self._text[seat.rank, stream] = b""
                self._poll.register(end, selectors.EVENT_READ, (seat, stream))
            rows.append(row)
        end, status = pipe()
        self._poll.register(end, selectors.EVENT_READ, (host, mine))
        self._controls[host], control = pipe(read=False)
        job = {
            "node": host, "netns": netns, "mounts": mounts, "argv": list(argv),
            "ranks": rows, "status": status, "control": control, "env": {},
            "user": None if user is None else {
                "uid": user.pw_uid, "gid": user.pw_gid, "groups": os.getgrouplist(user.pw_name, user.pw_gid),
            },
        }  # fmt: skip
        if user is not None:
            job["env"] = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
        # One thread, as torchrun: many ranks share the processors. Lines of Python come when they are printed.
        env = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **os.environ, "SHARED_DIR": self._shared}
        try:
            self._helpers[host] = subprocess.Popen(
                [*HELPER, "ranks", json.dumps(job)], env=env, pass_fds=given, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise trouble(error, host) from None
        finally:
            for fd in given:
                os.close(fd)

    def wait(self, limit_s: float | None) -> None:
        """Pass on what the ranks print until all have ended, one has failed, or the time is up."""
        until = None if limit_s is None else self._began + limit_s
        while self._poll.get_map() and self._failed is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                self._late = tuple(seat for rank, seat in sorted(self._seats.items()) if self._codes[rank] is None)
                return
            self._step(left)
        if self._failed is None and (lost := [seat for seat in self._seats.values() if self._codes[seat.rank] is None]):
            why = "ended without an exit code: the process that starts the ranks of its host was killed"
            raise CheckError(Problem("", lost[0].text, why, "the kernel's log says why: dmesg"))

    def _step(self, seconds: float | None) -> None:
        for key, _ in self._poll.select(seconds):
            data = os.read(key.fd, _LINE)
            first, second = key.data
            if not data:
                self._poll.unregister(key.fileobj)
                os.close(key.fd)
            if isinstance(first, Seat):
                self._print(first, second, data)
            else:
                for line in data.decode(errors="replace").splitlines():
                    self._report(first, second, line)

    def _print(self, seat: Seat, stream: Literal["out", "err"], data: bytes) -> None:
        """Whole lines; the rest at its end."""
        text = self._text[seat.rank, stream] + data
        lines = text.split(b"\n")
        rest = lines.pop()
        if not data or len(rest) >= _LINE:
            lines, rest = [*lines, *([rest] if rest else [])], b""
        self._text[seat.rank, stream] = rest
        for line in lines:
            self._show(seat, stream, line.decode(errors="replace").rstrip("\r"))

    def _report(self, host: str, mine: Sequence[Seat], line: str) -> None:
        """A line of a host's first process: `NUMBER STATUS`, `left COUNT`, or an error."""
        word, _, number = line.partition(" ")
        if word == "left":
            if int(number) and not self._ending:
                self._left[host] = int(number)
        elif word.isdigit():
            code = os.waitstatus_to_exitcode(int(number))
            seat, code = mine[int(word)], 128 - code if code < 0 else code
            if self._ending:
                return  # not by itself
            self._codes[seat.rank] = code
            if code and self._failed is None:
                self._failed = seat
        else:
            raise CheckError(Problem("", host, line, "run ./inv down, then ./inv up, to recreate the lab"))

    def end(self) -> None:
        """End what still runs: SIGTERM, and SIGKILL where that is not enough. What it prints meanwhile is passed on."""
        self._ended, self._ending = time.monotonic(), True
        try:
            if any(helper.poll() is None for helper in self._helpers.values()):
                for fd in self._controls.values():
                    with suppress(BrokenPipeError):
                        os.write(fd, bytes([signal.SIGTERM]))
                until = time.monotonic() + _PATIENCE_S
                while self._poll.get_map() and (left := until - time.monotonic()) > 0:
                    self._step(left)
        finally:
            for fd in self._controls.values():
                os.close(fd)  # the first process of the host ends, and the kernel ends all others
            for key in list(self._poll.get_map().values()):
                os.close(key.fd)
            for host, helper in self._helpers.items():
                try:
                    helper.wait(_KILLED_S)
                except subprocess.TimeoutExpired:
                    helper.kill()
                    why = "does not end: one is in a system call that cannot be interrupted"
                    raise MachineError(Problem("", f"a program on {host}", why)) from None

    def result(self) -> ProgramEnd:
        """Of all ranks."""
        code = TIMED_OUT if self._late else 0
        if self._failed is not None:
            code = self._codes[self._failed.rank] or 0
        left = {host: self._left[host] for host in self._helpers if host in self._left}
        return ProgramEnd(code, tuple(self._codes), self._failed, self._late, left, self._ended - self._began)
