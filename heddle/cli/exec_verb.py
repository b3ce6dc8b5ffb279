"""The verb `exec`: any command in a node, or in several."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from heddle.base.problems import InputError, MachineError, Problem, shown
from heddle.base.process import find_program
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
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

    Write flags of Heddle before the node: ./inv exec --lab zone rtsw1 ip route.
    ./inv exec 'rtsw*' ip route runs it in several nodes. Each line of output begins with its node's name, the highest
    exit code counts, and there is no terminal.
    """
    run_inside(out, lab, node, cmd)


def run_inside(out: Console, lab: str | None, node: str, cmd: Sequence[str]) -> None:
    """Run a command in a node, or in all nodes that match a pattern; the verb's exit code is the highest of them."""
    from heddle.fabric.model import is_pattern
    from heddle.lab.opening import open_lab

    where = open_lab(lab)
    several = is_pattern(node)
    names = _nodes(where, node) if several else [where.handle(node).name]
    if not cmd or not cmd[0]:
        hint = f"./inv exec {shlex.quote(node)} ip route" + ("" if several else f", or ./inv exec {node} bash")
        raise InputError(Problem("", f"exec {node}", "has no command", hint))
    if cmd[0].startswith("-"):
        hint = f"write flags of Heddle before the node: ./inv exec {cmd[0]} ... {shlex.quote(node)} COMMAND"
        raise InputError(Problem("", cmd[0], "is not a command", hint))
    if several:
        return _run_on_all(out, where, names, cmd)
    if out.json:
        with tempfile.TemporaryFile() as file:
            with _stdout_to(file.fileno()):
                out.exit_code = where.exec(node, cmd)
            file.seek(0)
            printed = file.read().decode(errors="replace")
        _explain_missing(where, node, cmd[0], out.exit_code)
        data = {"lab": where.name, "node": node, "command": shlex.join(cmd), "exit_code": out.exit_code}
        return out.result({**data, "stdout": printed})
    out.close()
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
def _stdout_to(fd: int) -> Iterator[None]:
    """Redirect stdout of child processes to `fd`: stdout itself is for one JSON document."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(fd, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
