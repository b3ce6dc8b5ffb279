"""The verbs that run commands in nodes: `exec` in one node or several; `launch` on ranks, or between two hosts."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base.files import absent
from heddle.base.problems import InputError, MachineError, Problem, shown
from heddle.base.process import find_program
from heddle.base.resources import HERE
from heddle.base.units import parse_duration
from heddle.cli import completion
from heddle.cli import helptexts as words
from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.endpoints.programruns import ProgramOptions, Seat, Stream
    from heddle.lab.fanout import NodeOutput
    from heddle.lab.lab import Lab

# Programs that read a terminal: always, or when nothing follows their name.
_SCREENS: Final = frozenset({"vi", "vim", "nano", "htop", "less", "more"})
_SHELLS: Final = frozenset({"bash", "sh", "dash", "zsh", "fish", "python3", "vtysh", "top"})
_NO_COMMAND: Final = 127  # exit code of shells, enter.py and container engines for an unknown command


@verb(
    group="Lab",
    help=words.EXEC,
    rest="cmd",
    rest_after_positionals=True,
    root=True,
    name="exec",
    typed_in=True,
)
def exec_(out: Console, node: str, cmd: Sequence[str] = (), lab: str | None = None) -> None:
    """Run a command in a node: ./inv exec rtsw1 vtysh -c 'show bgp summary'. The verb returns the command's exit code.

    Write flags of Heddle, and the lab where there are several, before the node: ./inv exec zone rtsw1 ip route.
    ./inv exec 'rtsw*' ip route runs it in several nodes. Each line of output begins with its node's name, the highest
    exit code counts, and there is no terminal.
    """
    run_inside(out, lab, node, cmd)


def run_inside(out: Console, lab: str | None, node: str, cmd: Sequence[str]) -> None:
    """Run a command in a node, or in all nodes that match a pattern; the verb's exit code is the highest of them."""
    from heddle.base import state
    from heddle.fabric.model import is_pattern
    from heddle.lab.control import require_frr
    from heddle.lab.frr import home_of, switches_of
    from heddle.lab.opening import open_lab

    labs = state.labs() if lab is None and cmd else []
    if node in labs and (len(labs) > 1 or node not in open_lab(node).handles()):
        lab, node, cmd = node, cmd[0], cmd[1:]
    where = open_lab(lab)
    several = is_pattern(node)
    names = _nodes(where, node) if several else [where.handle(node).name]
    if not cmd or not cmd[0]:
        hint = f"./inv exec {shlex.quote(node)} ip route" + ("" if several else f", or ./inv exec {node} bash")
        raise InputError(Problem("", f"exec {node}", "has no command", hint))
    if cmd[0].startswith("-"):
        hint = f"write flags of Heddle before the node: ./inv exec {cmd[0]} ... {shlex.quote(node)} COMMAND"
        raise InputError(Problem("", cmd[0], "is not a command", hint))
    if cmd[0] == "vtysh":
        require_frr(where, "vtysh")
    if several:
        return _run_on_all(out, where, names, cmd)
    if out.json:
        with tempfile.TemporaryFile() as file:
            with stdout_to(file.fileno()):
                out.exit_code = where.exec(node, cmd)
            file.seek(0)
            printed = file.read().decode(errors="replace")
        _explain_missing(where, node, cmd[0], out.exit_code)
        data = {"lab": where.name, "node": node, "command": shlex.join(cmd), "exit_code": out.exit_code}
        return out.result({**data, "stdout": printed})
    out.close()
    if list(cmd) == ["vtysh"] and (home := home_of(where, node)) != node:
        line = f"{home} runs the daemons of {', '.join(switches_of(where, home))}: write vrf {node} in commands"
        print(f"{line}, as show bgp vrf {node} summary", file=sys.stderr)
    out.exit_code = where.exec(node, cmd)
    _explain_missing(where, node, cmd[0], out.exit_code)
    return None


def _nodes(lab: Lab, typed: str) -> list[str]:
    """The nodes that match names and patterns with commas, in the lab's order."""
    from heddle.fabric.model import matching_names, split_words

    names = split_words([typed])
    if not names:
        raise InputError(
            Problem("", f"exec {typed}", "names no node", f"nodes of {lab.name}: {', '.join(lab.handles())}")
        )
    return matching_names(names, lab.handles(), f"is not a node of {lab.name}")


def _run_on_all(out: Console, lab: Lab, names: Sequence[str], cmd: Sequence[str]) -> None:
    """Print the output node by node, each line after its node's name; the highest exit code counts."""
    from heddle.lab.fanout import run_on

    if cmd[0] in _SCREENS or (cmd[0] in _SHELLS and len(cmd) == 1):
        hint = f"name one node: ./inv exec --lab {lab.name} {names[0]} {shlex.join(cmd)}"
        raise InputError(Problem("", shlex.join(cmd), "needs a terminal, and several nodes cannot share one", hint))
    width = max(len(name) for name in names) + 1

    def show(done: NodeOutput) -> None:
        head = f"{done.node}:".ljust(width)
        if done.out:
            out.show("\n".join(f"{head} {line}".rstrip() for line in done.out.splitlines()))
        failed = [f"exit code {done.code}"] if done.code else []
        for line in [*done.err.splitlines(), *failed]:
            print(shown(f"{head} {line}".rstrip()), file=sys.stderr)

    results = run_on(lab, names, cmd, show)
    out.exit_code = max(done.code for done in results)
    _explain_missing(lab, names[0], cmd[0], min(done.code for done in results))
    if out.json:
        rows = [{"node": r.node, "exit_code": r.code, "stdout": r.out, "stderr": r.err} for r in results]
        out.result({"lab": lab.name, "command": shlex.join(cmd), "exit_code": out.exit_code, "nodes": rows})


def _explain_missing(lab: Lab, node: str, program: str, code: int) -> None:
    """Print a hint on stderr when a command ended because its program is not available in the node."""
    from heddle.host.packages import part_of_program

    part = part_of_program(program)
    if code != _NO_COMMAND or "/" in program:
        return
    if not lab.runtime.daemons_here:  # a container has the programs of its image
        try:
            lab.output(node, ["sh", "-c", f"command -v {shlex.quote(program)}"])
        except MachineError:
            pass
        else:
            return  # the command itself has ended with this code
        hint = f"the image of {node} does not contain {program}"
    elif find_program(program, "/usr/sbin", "/sbin") is not None:
        return  # the command itself has ended with this code
    elif part is not None:
        hint = f"run apt-get install {part.packages[0]} to get {program}: nodes use the programs of this machine"
    else:
        hint = f"install {program} on this machine: nodes use its programs"
    print(shown(f"  hint: {hint}"), file=sys.stderr)


@contextmanager
def stdout_to(fd: int) -> Iterator[None]:
    """Redirect stdout of child processes to `fd`: stdout itself is for one JSON document."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(fd, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


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
        "client": Option(
            "of an RDMA program, the host of the client: data of a write or send test flow from it", completion.nodes
        ),
        "server": Option("of an RDMA program, the host of the server", completion.nodes),
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
    programs to start with. With --rdma each rank's NIC has a soft-RoCE device, and UCX is set up to use it: --on vm
    has the kernel for that.
    With two hosts instead of --ranks: an RDMA program between them, with soft-RoCE: ./inv launch host1 host3 --
    ib_write_bw --tclass=98. Heddle makes a device in both hosts, starts the server, and adds the device, the address
    index and the server's address to the flags. Data flows from the first host to the second with ib_write_bw and
    ib_send_bw, and from the second to the first with ib_read_lat. Traffic class 98 puts the data into the lossless
    class with ECN; without --tclass they are best effort, and the fabric may drop them. The kernel needs soft-RoCE in
    namespaces: ./inv doctor shows whether it has it, and --on vm has it.
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
    from heddle.runs.programs import run_program

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
        for rank, code in zip(result.record.ranks, result.end.codes, strict=True)
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
