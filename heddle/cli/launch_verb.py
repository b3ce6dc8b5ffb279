"""The verb `launch`: a program on ranks in the hosts of a lab, or an RDMA program between two of them."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.base.files import absent
from heddle.base.problems import InputError, Problem, shown
from heddle.base.resources import HERE
from heddle.cli import completion
from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.endpoints.programruns import ProgramOptions, Seat, Stream


@verb(
    group="Traffic",
    help={
        "ranks": Option("run the command on so many ranks: a process in the host of each", value="N"),
        "per_host": Option("ranks of each host, which share its NICs (default: one for each NIC)", value="N"),
        "placement": Option(
            "placement of ranks on hosts, as of run: block, cyclic, host names, ...", completion.placements
        ),
        "time_limit": Option("end the ranks after this time, such as 60s (default: no limit)", value="TIME"),
        "rdma": "give the NICs of the ranks soft-RoCE devices, for UCX, MPI over UCX, or verbs",
        "client": "of an RDMA program, the host of the client: data of a write or send test flow from it",
        "server": "of an RDMA program, the host of the server",
        "cmd": "after --: the program with its flags, for example -- python3 train.py",
    },
    positional=["client", "server"],
    rest="cmd",
    root=True,
)
def launch(
    out: Console,
    client: str | None = None,
    server: str | None = None,
    cmd: Sequence[str] = (),
    ranks: int | None = None,
    per_host: int | None = None,
    placement: str = "block",
    time_limit: str | None = None,
    rdma: bool = False,
    lab: str | None = None,
) -> None:
    """Run a program on ranks, one process in the host of each: ./inv launch --ranks 4 -- sh -c 'echo $RANK'.

    Each rank has the environment of torchrun, and of mpirun. Host names are known: host1, rank0. Each line that it
    prints begins with its rank and host. The first rank that fails ends the others and gives the exit code; no process
    stays behind. Its TCP and UDP flows are counted at every port, and ./inv paths proves them. docs/programs.md has
    programs to start with. With --rdma each rank's NIC has a soft-RoCE device, and UCX is set up to use it: --place vm
    has the kernel for that.
    With two hosts instead of --ranks: an RDMA program between them, with soft-RoCE: ./inv launch host1 host3 --
    ib_write_bw --tclass=98. Heddle makes a device in both hosts, starts the server, and adds the device, the address
    index and the server's address to the flags. Data flows from the first host to the second with ib_write_bw and
    ib_send_bw, and from the second to the first with ib_read_lat. Traffic class 98 puts the data into the lossless
    class with ECN; without --tclass they are best effort, and the fabric may drop them. The kernel needs soft-RoCE in
    namespaces: ./inv doctor shows whether it has it, and --place vm has it.
    """
    if ranks is None:
        return _rdma(out, client, server, cmd, lab, (per_host, time_limit, rdma or None))
    if client is not None:
        command = shlex.join(each for each in (client, server) if each)
        hint = f"choose hosts by --placement {client},..., or leave --ranks out for an RDMA program between two hosts"
        if not cmd:
            hint = f"write the command after --: ./inv launch --ranks {ranks} -- {command}"
        raise InputError(Problem("", f"--ranks {ranks} and {client}", "exclude each other", hint))
    if not cmd:
        hint = f"./inv launch --ranks {ranks} -- python3 traffic/programs/ring.py"
        raise InputError(Problem("", f"launch --ranks {ranks}", "has no program", hint))
    from heddle.endpoints.programruns import ProgramOptions

    words = [_from_anywhere(word) for word in cmd]
    return _ranks(out, ProgramOptions(ranks, per_host, placement, _seconds(time_limit), rdma), words, lab)


def _from_anywhere(word: str) -> str:
    """A program of Heddle, traffic/programs/NAME, is found from every working directory, and in a wheel."""
    folder, _, name = word.rpartition("/")
    own = HERE.content("traffic") / "programs" / name
    return str(own) if folder == "traffic/programs" and absent(Path(word)) and own.is_file() else word


def _seconds(text: str | None) -> float | None:
    from heddle.base.units import parse_duration

    if text is None:
        return None
    try:
        found = parse_duration(text) / 1e9
    except ValueError:
        found = 0
    if not found:
        raise InputError(Problem("", f"--time-limit {text}", "is not a time above 0", "write it as 60s"))
    return found


def _ranks(out: Console, options: ProgramOptions, cmd: Sequence[str], lab: str | None) -> None:
    """Run a program on ranks, and print its lines as they come."""
    from heddle.lab.opening import open_lab
    from heddle.runs.program import run_program

    printed: dict[int, dict[str, list[str]]] = {}

    def show(seat: Seat, stream: Stream, line: str) -> None:
        if out.json:
            kept = printed.setdefault(seat.rank, {"stdout": [], "stderr": []})
            kept["stdout" if stream == "out" else "stderr"].append(line)
        else:
            text = shown(f"[{seat.rank} {seat.end.host}] {line}")
            print(text, file=sys.stdout if stream == "out" else sys.stderr, flush=True)

    where = open_lab(lab)
    result = run_program(where, options, cmd, out.observer, show)
    for fault in result.faults:
        out.observer.warn(fault)
    ranks = [
        {"rank": rank.rank, "host": rank.host, "nic": rank.port, "exit_code": code}
        | {stream: "\n".join(lines) for stream, lines in printed.get(rank.rank, {}).items()}
        for rank, code in zip(result.record.header.ranks, result.end.codes, strict=True)
    ]
    out.result({**result.to_json(), "ranks": ranks}, "\n".join(result.lines()))
    out.exit_code = result.end.code


def _rdma(
    out: Console,
    client: str | None,
    server: str | None,
    cmd: Sequence[str],
    lab: str | None,
    others: tuple[object, ...],
) -> None:
    """Run an RDMA program between two hosts. others: flags that need --ranks."""
    if client is None or server is None or any(each is not None for each in others):
        why = "needs --ranks, or two hosts for an RDMA program"
        hint = f"./inv launch --ranks 2 -- {shlex.join(cmd) or 'COMMAND'}, or ./inv launch host1 host3 -- ib_write_bw"
        raise InputError(Problem("", "launch", why, hint))
    if not cmd:
        hint = f"./inv launch {client} {server} -- ib_write_bw"
        raise InputError(Problem("", f"launch {client} {server}", "has no program", hint))
    from heddle.endpoints.rdma.launching import launch as run
    from heddle.lab.opening import open_lab

    where = open_lab(lab)
    if not out.json:
        out.close()
        out.exit_code = run(where, client, server, cmd, out.observer)
        return
    with tempfile.TemporaryFile() as file:
        out.exit_code = run(where, client, server, cmd, out.observer, file)
        file.seek(0)
        printed = file.read().decode(errors="replace")
    data = {"lab": where.name, "client": client, "server": server, "command": shlex.join(cmd)}
    out.result({**data, "exit_code": out.exit_code, "stdout": printed})
